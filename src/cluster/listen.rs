//! One connection to each node on whose locks somebody waits, for their grants.

use super::table::slot_of;
use super::{Cluster, Node, ended, locked};
use crate::client::Inner;
use crate::key::{channel_base, introduction, is_event_channel};
use crate::link::{Backoff, Lane};
use crate::notify::{INTRODUCED_EVERY, PING_INTERVAL, PING_TIMEOUT, PINGS_BEFORE_RECONNECT, Releases, on_grants};
use crate::observe::Outage;
use crate::pulse::Pulse;
use crate::status::ClientInfo;
use crate::wire::{CONNECT_TIMEOUT, Wire};
use futures::future::{join_all, try_join_all};
use redis::{Cmd, ErrorKind, PushInfo, PushKind, RedisError, ServerErrorKind, Value};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

/// How long a channel is kept on which nobody waits.
const LINGER: Duration = Duration::from_secs(3);
/// Subscriptions under way at once on a connection.
const SUBSCRIBED_AT_ONCE: usize = 256;

/// A connection that listens to one node.
struct Ear {
    wire: Wire,
    ended: Arc<Notify>,
    pulse: Arc<Pulse>,
    /// Channels whose end we asked for ourselves.
    letting_go: Arc<Mutex<BTreeSet<String>>>,
}

/// Channels of events that come over a connection. Dropped, they are missed until another brings them.
struct Streams<'a> {
    inner: &'a Inner,
    followed: BTreeSet<String>,
}

impl<'a> Streams<'a> {
    fn of(inner: &'a Inner) -> Self {
        let followed = BTreeSet::new();
        Self { inner, followed }
    }
}

impl Drop for Streams<'_> {
    fn drop(&mut self) {
        for channel in &self.followed {
            self.inner.audience.is_missed(channel);
        }
    }
}

impl Ear {
    async fn send(&self, name: &str, channel: &str) -> Result<Value, RedisError> {
        let mut command = redis::cmd(name);
        command.arg(channel);
        let mut wire = self.wire.clone();
        let reply = self.pulse.answer(CONNECT_TIMEOUT, wire.send(&command)).await;
        reply.and_then(Value::extract_error)
    }

    async fn let_go(&self, channel: String) -> Result<Value, RedisError> {
        locked(&self.letting_go).insert(channel.clone());
        self.send("SUNSUBSCRIBE", &channel).await
    }
}

impl Cluster {
    /// An extra: failing is not fatal.
    pub(super) async fn keep_introduced(&self, inner: &Inner) {
        let key = introduction(&inner.prefix, &self.client);
        let text = ClientInfo::introduction(self.label.as_deref());
        loop {
            let set = |cmd: &mut Cmd| {
                cmd.arg("SET").arg(&key).arg(&text);
                cmd.arg("EX").arg(3 * INTRODUCED_EVERY.as_secs());
            };
            let said = inner.route.command(Lane::Background, PING_TIMEOUT, &key, &set);
            if let Err(error) = said.await {
                tracing::debug!(%error, "cannot say who this client is");
            }
            sleep(INTRODUCED_EVERY).await;
        }
    }

    /// Listens to a node while somebody waits for locks that it has. Never ends.
    pub(super) async fn listen(&self, node: &Arc<Node>, inner: &Arc<Inner>, releases: &Releases) {
        let mut backoff = Backoff::new();
        let mut outage: Option<Outage> = None;
        loop {
            while self.is_idle(node, inner) {
                outage = None;
                node.suspect.store(false, Ordering::Relaxed);
                node.wanted.notified().await;
            }
            let heard = match self.open(node, inner, releases).await {
                Ok(ear) => {
                    // However short it lasts: while slots move each may end one, and who waits for others of the node is
                    // deaf meanwhile.
                    backoff = Backoff::new();
                    if let Some(outage) = outage.take() {
                        outage.end();
                    }
                    self.hear(node, ear, inner).await
                }
                Err(error) => Err(error),
            };
            self.deafen(node);
            let Err(error) = heard else { continue };
            let connection = Outage::SUBSCRIPTION;
            tracing::warn!(connection, node = %node.address, %error, "connection lost");
            outage.get_or_insert_with(|| Outage::begin(connection));
            // Nobody may wait any more for what it cannot bring.
            self.forget_idle(inner, |owner| owner.is_some_and(|owner| Arc::ptr_eq(owner, node)));
            node.suspect.store(true, Ordering::Relaxed);
            self.stale.notify_one();
            backoff.pause().await;
        }
    }

    async fn open(&self, node: &Node, inner: &Arc<Inner>, releases: &Releases) -> Result<Ear, RedisError> {
        let ended = Arc::new(Notify::new());
        let pulse = Arc::<Pulse>::default();
        let letting_go = Arc::<Mutex<BTreeSet<String>>>::default();
        let on_push = {
            let (inner, releases) = (Arc::downgrade(inner), releases.clone());
            let (over, alive, ours) = (Arc::clone(&ended), Arc::clone(&pulse), Arc::clone(&letting_go));
            move |push: PushInfo| {
                alive.beat();
                match (&push.kind, push.data.as_slice()) {
                    (PushKind::SMessage, [Value::BulkString(channel), Value::BulkString(payload)]) => {
                        if let Some(inner) = inner.upgrade() {
                            on_message(&inner, &releases, channel, payload);
                        }
                    }
                    (PushKind::SUnsubscribe, [Value::BulkString(channel), ..])
                        if std::str::from_utf8(channel).is_ok_and(|channel| locked(&ours).remove(channel)) => {}
                    // The slot has left the node. The library takes this for a reply if it waits for one.
                    (PushKind::SUnsubscribe | PushKind::Disconnection, _) => over.notify_one(),
                    _ => {}
                }
            }
        };
        let connected = node.backend.connect(self.label.as_deref(), Some(Arc::new(on_push)));
        let wire = connected.await?.wire;
        Ok(Ear {
            wire,
            ended,
            pulse,
            letting_go,
        })
    }

    /// Follows what is awaited, until the connection is dead, or nobody waits any more.
    async fn hear(&self, node: &Arc<Node>, mut ear: Ear, inner: &Inner) -> Result<(), RedisError> {
        let mut followed = BTreeSet::new();
        let mut streams = Streams::of(inner);
        let mut failures = 0;
        let mut ping_at = Instant::now() + PING_INTERVAL;
        node.moved.store(true, Ordering::Relaxed);
        loop {
            if node.moved.swap(false, Ordering::Relaxed) {
                let (new, gone) = self.changes(node, &followed, inner);
                self.follow(node, &ear, inner, &mut followed, new).await?;
                self.let_go(node, &ear, inner, &mut followed, gone).await?;
                self.follow_events(node, &ear, &mut streams).await?;
            } else {
                self.follow_fresh(node, &ear, inner, &mut followed).await?;
            }
            if followed.is_empty() && self.is_idle(node, inner) {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = ear.ended.notified() => return Err(ended()),
                () = node.wanted.notified() => continue,
                () = sleep_until(ping_at) => {}
            }
            match ear.pulse.answer(PING_TIMEOUT, ear.wire.send(&redis::cmd("PING"))).await {
                Ok(_) => {
                    failures = 0;
                    node.suspect.store(false, Ordering::Relaxed);
                }
                // Another node may have the slots by now: no need to wait for the certainty.
                Err(error) if error.is_timeout() && failures + 1 < PINGS_BEFORE_RECONNECT => {
                    failures += 1;
                    node.suspect.store(true, Ordering::Relaxed);
                    self.stale.notify_one();
                }
                Err(error) => return Err(error),
            }
            ping_at = Instant::now() + PING_INTERVAL;
            node.moved.store(true, Ordering::Relaxed);
        }
    }

    /// The events of locks that this node has, for whoever reads them.
    async fn follow_events(&self, node: &Arc<Node>, ear: &Ear, streams: &mut Streams<'_>) -> Result<(), RedisError> {
        let audience = &streams.inner.audience;
        let wanted = self.events_at(node, streams.inner);
        // Its stream may be a new one, and another node's listener may have missed it since.
        for channel in wanted.intersection(&streams.followed) {
            audience.follows(channel);
        }
        for channel in wanted.difference(&streams.followed.clone()) {
            match ear.send("SSUBSCRIBE", channel).await {
                Ok(_) => {
                    streams.followed.insert(channel.clone());
                    audience.follows(channel);
                }
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) => {
                    self.redirect(&error, node, |at| self.own(slot_of(channel), at));
                    self.stale.notify_one();
                }
                // A new connection would be refused the same, and the grants that come over this one missed.
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => {
                    tracing::warn!(%error, channel, "the server refuses to bring events");
                    audience.is_refused(channel, error);
                }
                Err(error) => return Err(error),
            }
        }
        for channel in streams.followed.clone().difference(&wanted) {
            streams.followed.remove(channel);
            // It may be another node's by now.
            audience.is_missed(channel);
            ear.let_go(channel.clone()).await?;
        }
        Ok(())
    }

    fn events_at(&self, node: &Arc<Node>, inner: &Inner) -> BTreeSet<String> {
        let mut channels = inner.audience.channels();
        let topology = locked(&self.topology);
        channels.retain(|channel| topology.has(node, slot_of(channel)));
        channels
    }

    /// Has whoever should listen look at what it has to follow.
    pub(super) async fn keep_events(&self, inner: &Inner) {
        loop {
            inner.audience.changed.notified().await;
            for channel in inner.audience.channels() {
                match self.owner(slot_of(&channel)) {
                    Some(node) => node.look(),
                    None => self.stale.notify_one(),
                }
            }
        }
    }

    /// There is nothing to listen to at this node.
    fn is_idle(&self, node: &Arc<Node>, inner: &Inner) -> bool {
        self.awaited_at(node).is_empty() && self.events_at(node, inner).is_empty()
    }

    fn channel(&self, lock: &str) -> String {
        channel_base(lock) + &self.client
    }

    async fn follow(
        &self,
        node: &Arc<Node>,
        ear: &Ear,
        inner: &Inner,
        followed: &mut BTreeSet<Arc<str>>,
        new: Vec<Arc<str>>,
    ) -> Result<(), RedisError> {
        for some in new.chunks(SUBSCRIBED_AT_ONCE) {
            let replies = some
                .iter()
                .map(|lock| async { ear.send("SSUBSCRIBE", &self.channel(lock)).await });
            let replies = join_all(replies).await;
            let now = Instant::now();
            let mut failure = None;
            let mut confirmed = Vec::new();
            for (lock, reply) in some.iter().zip(replies) {
                match reply {
                    Ok(_) => confirmed.push(Arc::clone(lock)),
                    Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) => {
                        self.redirect(&error, node, |at| self.own(slot_of(lock), at));
                        self.stale.notify_one();
                    }
                    // A new connection would be refused the same, and what comes over this one missed.
                    Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => {
                        tracing::warn!(%error, lock = &**lock, "the server refuses to bring grants");
                        inner.registry().refuse(lock, &error);
                    }
                    Err(error) => failure = Some(error),
                }
            }
            let mut watches = locked(&self.watches);
            for lock in &confirmed {
                if let Some(watch) = watches.get_mut(lock) {
                    watch.heard = Some((now, Arc::clone(node)));
                }
            }
            drop(watches);
            // What was granted before is learned now.
            inner.requests.resync_locks(&confirmed, now);
            followed.extend(confirmed);
            if let Some(error) = failure {
                return Err(error);
            }
            node.suspect.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Locks that somebody has begun to wait for since the last look.
    async fn follow_fresh(
        &self,
        node: &Arc<Node>,
        ear: &Ear,
        inner: &Inner,
        followed: &mut BTreeSet<Arc<str>>,
    ) -> Result<(), RedisError> {
        let mut new = std::mem::take(&mut *locked(&node.fresh));
        new.retain(|lock| !followed.contains(lock));
        self.follow(node, ear, inner, followed, new).await
    }

    /// Whoever begins to wait meanwhile does not wait for the end of it, and keeps a channel that is to go.
    async fn let_go(
        &self,
        node: &Arc<Node>,
        ear: &Ear,
        inner: &Inner,
        followed: &mut BTreeSet<Arc<str>>,
        gone: Vec<Arc<str>>,
    ) -> Result<(), RedisError> {
        for lock in &gone {
            followed.remove(lock);
        }
        for some in gone.chunks(SUBSCRIBED_AT_ONCE) {
            let idle = some.iter().filter(|lock| !followed.contains(*lock));
            let replies = idle.map(|lock| ear.let_go(self.channel(lock)));
            try_join_all(replies.collect::<Vec<_>>()).await?;
            self.follow_fresh(node, ear, inner, followed).await?;
        }
        Ok(())
    }

    /// Locks of a node that somebody waits for and that it is not listened to about, and the other way round.
    fn changes(
        &self,
        node: &Arc<Node>,
        followed: &BTreeSet<Arc<str>>,
        inner: &Inner,
    ) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        locked(&node.fresh).clear();
        self.forget_idle(inner, |owner| owner.is_some_and(|owner| Arc::ptr_eq(owner, node)));
        let here = self.awaited_at(node);
        let new = here.difference(followed).cloned().collect();
        let gone = followed.difference(&here).cloned().collect();
        (new, gone)
    }

    /// Forgets locks for which nobody has waited for a while, of slots with such an owner.
    pub(super) fn forget_idle(&self, inner: &Inner, concerns: impl Fn(Option<&Arc<Node>>) -> bool) {
        let now = Instant::now();
        let mut watches = locked(&self.watches);
        let topology = locked(&self.topology);
        let registry = inner.registry();
        watches.retain(|lock, watch| {
            if !concerns(topology.owners[usize::from(watch.slot)].as_ref()) {
                return true;
            }
            if registry.is_awaited(lock) {
                watch.idle = None;
                return true;
            }
            now - *watch.idle.get_or_insert(now) <= LINGER
        });
    }

    fn awaited_at(&self, node: &Arc<Node>) -> BTreeSet<Arc<str>> {
        let watches = locked(&self.watches);
        let topology = locked(&self.topology);
        let here = watches.iter().filter(|(_, watch)| topology.has(node, watch.slot));
        here.map(|(lock, _)| Arc::clone(lock)).collect()
    }

    /// Nothing is heard from that node.
    fn deafen(&self, node: &Arc<Node>) {
        for watch in locked(&self.watches).values_mut() {
            if watch.heard.as_ref().is_some_and(|(_, by)| Arc::ptr_eq(by, node)) {
                watch.heard = None;
            }
        }
    }
}

/// Channels of events end in a word, those of grants in a client's name, which is none.
fn on_message(inner: &Inner, releases: &Releases, channel: &[u8], payload: &[u8]) {
    let texts = (std::str::from_utf8(channel), std::str::from_utf8(payload));
    match texts {
        (Ok(channel), Ok(payload)) if is_event_channel(channel) => {
            inner.audience.publish(&inner.prefix, channel, channel, payload);
        }
        _ => on_grants(inner, releases, payload),
    }
}
