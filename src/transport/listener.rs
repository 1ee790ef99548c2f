//! The listener: the subscription of a single server, one per client, whatever the number of locks.
//!
//! Its messages are hints. The client renews whenever a message may have been missed.

use super::backend::Backend;
use super::backoff::{Backoff, retrying};
use super::host::this_process;
use super::link::{How, Lane, Link};
use super::quarantine::{Seat, run_of};
use super::server::Purpose;
use super::subscription::{Push, Subscription};
use crate::observe::Outage;
use crate::protocol::event::{self, ALL_LOCKS};
use crate::protocol::introduction::Introduction;
use crate::protocol::key::{ChannelKind, audience_channel, channel_base, kind_of_channel};
use crate::protocol::order::Order;
use crate::protocol::{message, server_time};
use crate::state::request::Heard;
use crate::state::shared::Shared;
use crate::types::clock;
use crate::types::error::{is_of_replica, is_transient, timed_out};
use crate::types::timers::{ANNOUNCED_EVERY, CONNECT_TIMEOUT, INTRODUCED_EVERY, PING_INTERVAL, PING_TIMEOUT};
use futures::future::try_join_all;
use redis::{ErrorKind, PushInfo, PushKind, RedisError, ServerErrorKind, Value};
use std::mem::replace;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

pub(crate) struct Listener {
    backend: Backend,
    label: Option<String>,
    introduction: Introduction,
    shared: Arc<Shared>,
    /// Of a server of a quorum. The messages of another server must not count for it.
    seat: Option<Seat>,
}

impl Listener {
    pub(crate) fn new(backend: Backend, label: Option<String>, shared: Arc<Shared>, seat: Option<Seat>) -> Self {
        let introduction = Introduction::new(&shared.prefix, shared.id, &this_process(), label.as_deref());
        Self {
            backend,
            label,
            introduction,
            shared,
            seat,
        }
    }

    /// The channel on which the scripts tell this client of its grants.
    fn channel(&self) -> String {
        format!("{}{}", channel_base(&self.shared.prefix), self.shared.id)
    }

    pub(crate) async fn subscribe(&self) -> Result<Subscription, RedisError> {
        let shared = Arc::clone(&self.shared);
        let label = self.label.as_deref();
        let connect = async |on_push| {
            let connected = self.backend.connect(label, Purpose::Pushes, Some(on_push)).await?;
            connected.of_one_server()
        };
        let confirmed = Arc::<OnceLock<Instant>>::default();
        let since = Arc::clone(&confirmed);
        let (seat, run) = (self.seat.clone(), Arc::<OnceLock<String>>::default());
        let sender = Arc::clone(&run);
        let hear = move |push: PushInfo| {
            let is_of_seat = |seat: &Seat| sender.get().is_none_or(|run| seat.is_of(run));
            match seat.as_ref().is_none_or(is_of_seat) {
                true => on_push(&shared, &push, || Heard::over(since.get().copied(), clock::now())),
                // Another server has the seat by now.
                false => Push::Ends,
            }
        };
        let mut subscription = Subscription::open(connect, hear).await?;
        if let Some(seat) = &self.seat {
            let of_server = run_of(&mut subscription.wire).await?;
            if !seat.is_of(&of_server) {
                // The address may lead to another server for a moment, so the client tries again.
                return Err(RedisError::from((
                    ErrorKind::Io,
                    "the subscription leads to another server than the calls",
                )));
            }
            run.get_or_init(|| of_server);
        }
        let channels = [self.channel(), audience_channel(&self.shared.prefix)];
        let channels = channels.each_ref().map(String::as_str);
        let subscribed = timeout(CONNECT_TIMEOUT, subscription.wire.subscribe(&channels)).await;
        subscribed.unwrap_or_else(|_| Err(timed_out()))?;
        confirmed.get_or_init(clock::now);
        self.introduce(&mut subscription).await;
        self.look_around(&mut subscription).await;
        Ok(subscription)
    }

    /// Keeps the subscription up. Never ends. `moved` says that `calls` has a new connection.
    pub(crate) async fn run(&self, mut subscription: Subscription, calls: &Link, moved: &Notify) {
        let registry = &self.shared.registry;
        let mut backoff = Backoff::new();
        loop {
            let (since, term) = (clock::now(), subscription.term);
            let why = tokio::select! {
                biased;
                why = self.until_dead(&mut subscription) => why,
                () = self.backend.outdated(term) => "the server is not the master any more".to_owned(),
                () = self.left_behind(calls, moved) => "the server of the calls does not know it".to_owned(),
            };
            tracing::warn!(connection = Outage::SUBSCRIPTION, error = why, "connection lost");
            let outage = Outage::begin(Outage::SUBSCRIPTION);
            self.shared.subscribers.is_deaf(clock::now());
            drop(subscription);
            backoff.after(since).await;
            let mut is_refused = false;
            subscription = retrying(
                || self.subscribe(),
                |error| {
                    tracing::debug!(%error, "cannot subscribe yet");
                    if !is_transient(&error) {
                        if !replace(&mut is_refused, true) {
                            tracing::warn!(%error, "the server refuses the subscription");
                        }
                        // The streams would stay silent, and nobody would know.
                        self.shared.subscribers.fail(&error);
                    }
                },
            )
            .await;
            let now = clock::now();
            self.shared.subscribers.hears_again(now);
            self.shared.subscribers.start_over();
            registry.resync(now);
            // By this, holders, whose calls may be minutes apart, learn that the server has restarted.
            registry.recheck(now, |_| true);
            outage.end();
        }
    }

    /// Returns the reason when the connection is dead.
    async fn until_dead(&self, subscription: &mut Subscription) -> String {
        let subscribers = &self.shared.subscribers;
        let mut announced = clock::now();
        let mut introduced = clock::now();
        loop {
            let new = tokio::select! {
                biased;
                () = subscription.ended() => return "it was closed".to_owned(),
                () = subscribers.changed.notified() => true,
                () = sleep(PING_INTERVAL) => false,
            };
            // This comes first: others may have stopped publishing, and what follows a gap must be complete.
            if clock::since(announced) >= ANNOUNCED_EVERY {
                announced = clock::now();
                self.announce(subscription, false).await;
            } else if new {
                self.announce(subscription, true).await;
            }
            if let Err(error) = self.follow(subscription).await {
                return error.to_string();
            }
            if clock::since(introduced) >= INTRODUCED_EVERY {
                introduced = clock::now();
                self.introduce(subscription).await;
            }
            match subscription.ping().await {
                Ok(_) => {}
                Err(error) if error.is_timeout() => return "the server does not answer".to_owned(),
                Err(error) => return error.to_string(),
            }
        }
    }

    /// Waits until the calls go to a server that does not know the subscription. The former one may be alive, and believe
    /// that it is a master, so nothing else would end the subscription.
    async fn left_behind(&self, calls: &Link, moved: &Notify) {
        let count = message::count_subscribers(&self.channel());
        let how = How::plainly(Lane::Background, CONNECT_TIMEOUT);
        loop {
            moved.notified().await;
            let sent = AtomicBool::new(false);
            let reply = calls.call(&how, &Order::command(&count, &sent)).await;
            match reply.and_then(message::read_subscribers) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if is_transient(&error) => {
                    sleep(PING_INTERVAL).await;
                    moved.notify_one();
                }
                // The right to ask is optional.
                Err(error) => tracing::debug!(%error, "cannot see whether the server knows the subscription"),
            }
        }
    }

    /// Subscribes to the events of this client's streams, and to no others.
    async fn follow(&self, subscription: &mut Subscription) -> Result<(), RedisError> {
        let subscribers = &self.shared.subscribers;
        let (new, gone) = subscribers.to_follow();
        let wire = &mut subscription.wire;
        let changes = subscription.pulse.answer(CONNECT_TIMEOUT, async {
            for topic in new {
                let followed = wire.follow(&topic).await;
                let feed = topic.feed();
                match followed {
                    Ok(()) => subscribers.follows(feed),
                    // A new connection would be refused too, and the grants of this one would be missed.
                    Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => {
                        tracing::warn!(%error, ?topic, "the server refuses to bring events");
                        subscribers.is_refused(feed, error);
                    }
                    Err(error) => return Err(error),
                }
            }
            for topic in gone {
                wire.unfollow(&topic).await?;
            }
            Ok(())
        });
        changes.await
    }

    /// This is optional, so a failure is not fatal.
    async fn introduce(&self, subscription: &mut Subscription) {
        let said = subscription.wire.answer(PING_TIMEOUT, &self.introduction.set()).await;
        if let Err(error) = said {
            tracing::debug!(%error, "cannot say who this client is");
            self.on_refusal(subscription, &error);
        }
    }

    /// A client that only listens or reads learns by a refused write that its server is no longer the master.
    fn on_refusal(&self, subscription: &Subscription, error: &RedisError) {
        if is_of_replica(error) && !subscription.of_replica {
            self.backend.is_demoted(subscription.term);
        }
    }

    /// Announces to all clients that this one listens. Events are optional, so a failure is not fatal.
    async fn announce(&self, subscription: &Subscription, only_new: bool) {
        let subjects = self.shared.subscribers.subjects(only_new);
        if subjects.is_empty() {
            return;
        }
        let say = |command| {
            let mut wire = subscription.wire.clone();
            async move { wire.answer(PING_TIMEOUT, &command).await }
        };
        let announced = async {
            let now = server_time::read(say(server_time::ask()).await?)? / 1000;
            // Sent together, in one round trip.
            let announcements = event::announce(&self.shared.prefix, &subjects, now);
            try_join_all(announcements.into_iter().map(say)).await
        };
        if let Err(error) = announced.await {
            tracing::debug!(%error, "cannot tell other clients about listeners");
            self.on_refusal(subscription, &error);
        }
    }

    /// Reads who listens already.
    async fn look_around(&self, subscription: &mut Subscription) {
        let ask = event::listeners(&self.shared.prefix);
        let found = subscription.wire.answer(PING_TIMEOUT, &ask).await;
        match found.and_then(event::read_listeners) {
            Ok(subjects) => {
                let subjects = subjects.iter().map(String::as_str);
                self.shared.subscribers.on_announcements(clock::now(), subjects);
            }
            Err(error) => tracing::debug!(%error, "cannot see who listens to events"),
        }
    }
}

pub(crate) fn on_push(shared: &Shared, push: &PushInfo, heard: impl Fn() -> Heard) -> Push {
    let text = |at: usize| match push.data.get(at) {
        Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes).ok(),
        _ => None,
    };
    let now = clock::now;
    let subscribers = &shared.subscribers;
    match push.kind {
        PushKind::Message => {
            let Some(channel) = text(0) else { return Push::Heard };
            match (kind_of_channel(&shared.prefix, channel), push.data.get(1)) {
                (ChannelKind::Grants, Some(Value::BulkString(payload))) => shared.on_message(heard(), payload),
                (ChannelKind::Grants, _) => {}
                (ChannelKind::Events, _) => {
                    subscribers.on_events(&shared.prefix, channel, channel, text(1).unwrap_or_default());
                }
                (ChannelKind::Announcements, _) => subscribers.on_announcements(now(), text(1)),
            }
        }
        PushKind::PMessage => {
            if let (Some(channel), Some(payload)) = (text(1), text(2)) {
                subscribers.on_events(&shared.prefix, ALL_LOCKS, channel, payload);
            }
        }
        // The client itself unsubscribes only from channels of events.
        PushKind::Unsubscribe if text(0).is_some_and(|channel| channel.ends_with(":events")) => {}
        PushKind::Unsubscribe => return Push::Ends,
        _ => {}
    }
    Push::Heard
}
