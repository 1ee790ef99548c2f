//! The subscription connection: one per client, whatever the number of locks. What it brings are hints; whoever relies
//! on one asks again when a message may have been missed.

use crate::claim::{Claim, End};
use crate::client::Inner;
use crate::error::is_of_replica;
use crate::event::{ANNOUNCED_EVERY, Audience, BELIEVED_FOR, Topic};
use crate::key::{Lock, audience_channel, channel_base, introduction, is_state};
use crate::link::{Backoff, retrying};
use crate::observe::Outage;
use crate::owner::ClientId;
use crate::pulse::Pulse;
use crate::registry::Request;
use crate::rw_lock::Policy;
use crate::script::{read_message, read_request};
use crate::status::ClientInfo;
use crate::wire::{Backend, CONNECT_TIMEOUT, Connected, Wire, timed_out};
use futures::future::try_join_all;
use redis::{ErrorKind, PushInfo, PushKind, RedisError, ServerErrorKind, Value};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};

pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(1);
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(1);
pub(crate) const INTRODUCED_EVERY: Duration = Duration::from_secs(30);
pub(crate) const PINGS_BEFORE_RECONNECT: u32 = 2;

pub(crate) type Releases = mpsc::WeakUnboundedSender<Arc<Request>>;

pub(crate) struct Listener {
    backend: Backend,
    channel: String,
    audience_channel: String,
    label: Option<String>,
    introduction: Introduction,
}

/// Who the client is, for those who look at a lock's status: kept in the server while the client is there.
#[derive(Clone)]
struct Introduction {
    key: String,
    text: String,
}

/// A connection that listens, until `ended` is told.
pub(crate) struct Subscription {
    backend: Backend,
    wire: Wire,
    /// Of the server: see [`Backend::outdated`].
    term: u64,
    of_replica: bool,
    ended: Arc<Notify>,
    pulse: Arc<Pulse>,
    audience_channel: String,
    introduction: Introduction,
}

impl Listener {
    pub(crate) fn new(backend: Backend, prefix: &str, id: ClientId, label: Option<String>) -> Self {
        let channel = format!("{}{id}", channel_base(prefix));
        let audience_channel = audience_channel(prefix);
        let introduction = Introduction {
            key: introduction(prefix, &id.to_string()),
            text: ClientInfo::introduction(label.as_deref()),
        };
        Self {
            backend,
            channel,
            audience_channel,
            label,
            introduction,
        }
    }

    pub(crate) async fn subscribe(&self, inner: &Arc<Inner>, releases: Releases) -> Result<Subscription, RedisError> {
        let ended = Arc::new(Notify::new());
        let pulse = Arc::<Pulse>::default();
        let (listener, over, alive) = (Arc::downgrade(inner), Arc::clone(&ended), Arc::clone(&pulse));
        let on_push = Arc::new(move |push| {
            alive.beat();
            on_push(&listener, &releases, &over, &push);
        });
        let connected = self.backend.connect(self.label.as_deref(), Some(on_push)).await?;
        let Connected {
            mut wire,
            term,
            of_replica,
            ..
        } = connected;
        let channels = [self.channel.as_str(), &self.audience_channel];
        let subscribed = timeout(CONNECT_TIMEOUT, wire.subscribe(&channels)).await;
        subscribed.unwrap_or_else(|_| Err(timed_out()))?;
        let mut subscription = Subscription {
            backend: self.backend.clone(),
            wire,
            term,
            of_replica,
            ended,
            pulse,
            audience_channel: self.audience_channel.clone(),
            introduction: self.introduction.clone(),
        };
        subscription.introduce().await;
        subscription.look_around(&inner.audience).await;
        Ok(subscription)
    }

    /// Keeps the subscription up. Never ends.
    pub(crate) async fn run(&self, inner: &Arc<Inner>, releases: &Releases, mut subscription: Subscription) {
        let mut backoff = Backoff::new();
        loop {
            let (since, term) = (Instant::now(), subscription.term);
            let why = tokio::select! {
                biased;
                why = subscription.until_dead(&inner.audience) => why,
                () = self.backend.outdated(term) => "the server is not the master any more".to_owned(),
            };
            tracing::warn!(connection = Outage::SUBSCRIPTION, error = why, "connection lost");
            let outage = Outage::begin(Outage::SUBSCRIPTION);
            drop(subscription);
            backoff.after(since).await;
            subscription = retrying(
                || self.subscribe(inner, releases.clone()),
                |error| tracing::debug!(%error, "cannot subscribe yet"),
            )
            .await;
            inner.audience.start_over();
            let now = Instant::now();
            inner.requests.resync(now);
            // Holders, whose calls may be minutes apart, learn by this that the server began anew.
            inner.requests.recheck(now, |_| true);
            outage.end();
        }
    }
}

impl Subscription {
    /// Returns, with the reason, when the connection is dead.
    async fn until_dead(&mut self, audience: &Audience) -> String {
        let mut failures = 0;
        let mut announced = Instant::now();
        let mut introduced = Instant::now();
        loop {
            let new = tokio::select! {
                biased;
                () = self.ended.notified() => return "it was closed".to_owned(),
                () = audience.changed.notified() => true,
                () = sleep(PING_INTERVAL) => false,
            };
            // First: others may have ceased to publish, and what follows a gap is complete.
            if new || announced.elapsed() >= ANNOUNCED_EVERY {
                announced = Instant::now();
                self.announce(&audience.subjects()).await;
            }
            if let Err(error) = self.follow(audience).await {
                return error.to_string();
            }
            if introduced.elapsed() >= INTRODUCED_EVERY {
                introduced = Instant::now();
                self.introduce().await;
            }
            let ping = redis::cmd("PING");
            match self.pulse.answer(PING_TIMEOUT, self.wire.send(&ping)).await {
                Ok(_) => failures = 0,
                Err(error) if error.is_timeout() => failures += 1,
                Err(error) => return error.to_string(),
            }
            if failures >= PINGS_BEFORE_RECONNECT {
                return "the server does not answer".to_owned();
            }
        }
    }
}

impl Subscription {
    /// Subscribes to the events that this client's streams are about, and to no others.
    async fn follow(&mut self, audience: &Audience) -> Result<(), RedisError> {
        let (new, gone) = audience.to_follow();
        let wire = &mut self.wire;
        let changes = self.pulse.answer(CONNECT_TIMEOUT, async {
            for topic in new {
                let subscribed = match &topic {
                    Topic::Channel(channel) => wire.subscribe(&[channel]).await,
                    Topic::Pattern(pattern) => wire.psubscribe(pattern).await,
                };
                let (Topic::Channel(followed) | Topic::Pattern(followed)) = topic;
                match subscribed {
                    Ok(()) => audience.follows(&followed),
                    // A new connection would be refused the same, and the grants that come over this one missed.
                    Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => {
                        tracing::warn!(%error, topic = followed, "the server refuses to bring events");
                        audience.is_refused(&followed, error);
                    }
                    Err(error) => return Err(error),
                }
            }
            for topic in gone {
                match topic {
                    Topic::Channel(channel) => wire.unsubscribe(&channel).await?,
                    Topic::Pattern(pattern) => wire.punsubscribe(&pattern).await?,
                }
            }
            Ok(())
        });
        changes.await
    }

    /// An extra: failing is not fatal.
    async fn introduce(&mut self) {
        let mut set = redis::cmd("SET");
        set.arg(&self.introduction.key).arg(&self.introduction.text);
        set.arg("EX").arg(3 * INTRODUCED_EVERY.as_secs());
        if let Err(error) = self.wire.answer(PING_TIMEOUT, &set).await {
            tracing::debug!(%error, "cannot say who this client is");
            self.look_at(&error);
        }
    }

    /// A client that only listens, or reads, learns by this that its server is the master no longer.
    fn look_at(&self, error: &RedisError) {
        if is_of_replica(error) && !self.of_replica {
            self.backend.is_demoted(self.term);
        }
    }

    /// Tells all clients that somebody listens: those that are here by a message, later ones by a set that they look at.
    /// Events are an extra: failing is not fatal.
    async fn announce(&mut self, subjects: &[String]) {
        if subjects.is_empty() {
            return;
        }
        let mut add = redis::cmd("SADD");
        add.arg(&self.audience_channel).arg(subjects);
        let mut expire = redis::cmd("EXPIRE");
        expire.arg(&self.audience_channel).arg(BELIEVED_FOR.as_secs());
        let tell = subjects.iter().map(|subject| {
            let mut publish = redis::cmd("PUBLISH");
            publish.arg(&self.audience_channel).arg(subject);
            publish
        });
        let commands = [add, expire].into_iter().chain(tell);
        // Sent together: one round trip.
        let replies = commands.map(|command| {
            let mut wire = self.wire.clone();
            async move { wire.answer(PING_TIMEOUT, &command).await }
        });
        if let Err(error) = try_join_all(replies).await {
            tracing::debug!(%error, "cannot tell other clients about listeners");
            self.look_at(&error);
        }
    }

    /// Who listens already.
    async fn look_around(&mut self, audience: &Audience) {
        let mut members = redis::cmd("SMEMBERS");
        members.arg(&self.audience_channel);
        let found = self.wire.answer(PING_TIMEOUT, &members).await;
        match found.and_then(|found| Ok(redis::from_redis_value::<Vec<String>>(found)?)) {
            Ok(subjects) => subjects.iter().for_each(|subject| audience.hear(subject)),
            Err(error) => tracing::debug!(%error, "cannot see who listens to events"),
        }
    }
}

pub(crate) fn on_push(listener: &Weak<Inner>, releases: &Releases, over: &Notify, push: &PushInfo) {
    let text = |at: usize| match push.data.get(at) {
        Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes).ok(),
        _ => None,
    };
    let Some(inner) = listener.upgrade() else { return };
    match push.kind {
        PushKind::Message => match (text(0), push.data.get(1)) {
            (Some(channel), Some(Value::BulkString(payload))) if inner.channel.brings(channel) => {
                on_grants(&inner, releases, payload);
            }
            (Some(channel), _) if channel.ends_with(":events") => {
                inner
                    .audience
                    .publish(&inner.prefix, channel, channel, text(1).unwrap_or_default());
            }
            (Some(_), _) => inner.audience.hear(text(1).unwrap_or_default()),
            (None, _) => {}
        },
        PushKind::PMessage => {
            if let (Some(pattern), Some(channel), Some(payload)) = (text(0), text(1), text(2)) {
                inner.audience.publish(&inner.prefix, pattern, channel, payload);
            }
        }
        // Our own unsubscribing concerns channels of events.
        PushKind::Unsubscribe if text(0).is_some_and(|channel| channel.ends_with(":events")) => {}
        PushKind::Disconnection | PushKind::Unsubscribe => over.notify_one(),
        _ => {}
    }
}

pub(crate) fn on_grants(inner: &Inner, releases: &Releases, payload: &[u8]) {
    let Some((grants, key)) = read_message(payload) else {
        tracing::warn!(
            bytes = payload.len(),
            "a message that is not fairlock's came on the client's channel"
        );
        return;
    };
    let now = Instant::now();
    for (name, token) in grants {
        let Some((client, number)) = read_request(name) else {
            continue;
        };
        if inner.requests.heard(now, number, name, token) {
            continue;
        }
        let forgotten = inner.registry().get(number).is_none() && inner.has_named(client, number);
        if forgotten && is_state(&inner.prefix, key) {
            pass_on(inner, releases, name, number, key);
        } else {
            // Not this client's: whatever it is, it is not ours to release.
            tracing::warn!(
                request = name,
                key,
                "a message names a request that this client never made"
            );
        }
    }
}

/// A grant to a request that this client has forgotten: a command that was executed after its connection had been
/// given up. Nobody will use it.
fn pass_on(inner: &Inner, releases: &Releases, name: &str, number: u64, key: &str) {
    tracing::debug!(request = name, key, "passing on a grant that nobody waits for");
    let mut claim = Claim::new(inner.lease, Duration::MAX, Instant::now());
    claim.end(End::Released);
    let lock = Arc::new(Lock::of_key(key.to_owned(), key.into()));
    if let Some(releases) = releases.upgrade() {
        let _ = releases.send(Arc::new(Request::new(
            number,
            name.to_owned(),
            lock,
            Policy::Fifo,
            claim,
        )));
    }
}
