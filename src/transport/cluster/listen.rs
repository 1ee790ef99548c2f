//! The cluster's subscriptions: one connection to each node whose locks have waiters, for their grants.

use super::super::backoff::Backoff;
use super::super::host::this_process;
use super::super::link::{How, Lane};
use super::super::server::Purpose;
use super::super::subscription::{Push, Subscription};
use super::node::{Agenda, Node};
use super::table::slot_of;
use super::{Cluster, locked};
use crate::observe::Outage;
use crate::protocol::introduction::Introduction;
use crate::protocol::key::{channel_base, is_event_channel};
use crate::protocol::order::Order;
use crate::state::request::Heard;
use crate::state::shared::Shared;
use crate::types::clock;
use crate::types::error::disconnected;
use crate::types::timers::{CONNECT_TIMEOUT, INTRODUCED_EVERY, PING_INTERVAL, PING_TIMEOUT};
use futures::future::{join_all, try_join_all};
use redis::{ErrorKind, PushInfo, PushKind, RedisError, ServerErrorKind, Value};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the client keeps a channel without waiters.
const LINGER: Duration = Duration::from_secs(3);
/// The number of SUBSCRIBE commands in flight on a connection.
const SUBSCRIBED_AT_ONCE: usize = 256;

/// The subscription to one node.
struct NodeSubscription {
    connection: Subscription,
    /// When the node confirmed each channel.
    confirmed: Arc<Mutex<HashMap<String, Instant>>>,
    /// Channels from which this client unsubscribes.
    unsubscribing: Arc<Mutex<BTreeSet<String>>>,
}

/// Channels of events of a connection. When this is dropped, their streams have a gap until another connection brings
/// them.
struct Streams<'a> {
    shared: &'a Shared,
    followed: BTreeSet<String>,
}

impl<'a> Streams<'a> {
    fn of(shared: &'a Shared) -> Self {
        let followed = BTreeSet::new();
        Self { shared, followed }
    }
}

impl Drop for Streams<'_> {
    fn drop(&mut self) {
        for channel in &self.followed {
            self.shared.subscribers.is_missed(channel);
        }
    }
}

impl NodeSubscription {
    async fn open(node: &Node, shared: &Arc<Shared>, label: Option<&str>) -> Result<Self, RedisError> {
        let unsubscribing = Arc::<Mutex<BTreeSet<String>>>::default();
        let confirmed = Arc::<Mutex<HashMap<String, Instant>>>::default();
        let (shared, ours, since) = (Arc::clone(shared), Arc::clone(&unsubscribing), Arc::clone(&confirmed));
        let on_push = move |push: PushInfo| match (&push.kind, push.data.as_slice()) {
            (PushKind::SMessage, [Value::BulkString(channel), Value::BulkString(payload)]) => {
                on_message(&shared, &since, channel, payload);
                Push::Heard
            }
            (PushKind::SUnsubscribe, [Value::BulkString(channel), ..])
                if std::str::from_utf8(channel).is_ok_and(|channel| locked(&ours).remove(channel)) =>
            {
                Push::Heard
            }
            // The slot has left the node. The redis crate takes this push for a reply if it waits for one.
            (PushKind::SUnsubscribe, _) => Push::Ends,
            _ => Push::Heard,
        };
        let connect = |on_push| node.backend.connect(label, Purpose::Pushes, Some(on_push));
        Ok(Self {
            connection: Subscription::open(connect, on_push).await?,
            confirmed,
            unsubscribing,
        })
    }

    async fn send(&self, name: &str, channel: &str) -> Result<Value, RedisError> {
        let mut command = redis::cmd(name);
        command.arg(channel);
        let mut wire = self.connection.wire.clone();
        let reply = self.connection.pulse.answer(CONNECT_TIMEOUT, wire.send(&command)).await;
        reply.and_then(Value::extract_error)
    }

    async fn subscribe(&self, channel: &str) -> Result<(), RedisError> {
        self.send("SSUBSCRIBE", channel).await?;
        locked(&self.confirmed).insert(channel.to_owned(), clock::now());
        Ok(())
    }

    async fn unsubscribe(&self, channel: String) -> Result<(), RedisError> {
        locked(&self.confirmed).remove(&channel);
        locked(&self.unsubscribing).insert(channel.clone());
        self.send("SUNSUBSCRIBE", &channel).await.map(|_| ())
    }
}

impl Cluster {
    /// This is optional, so a failure is not fatal.
    pub(super) async fn keep_introduced(&self) {
        let shared = &self.shared;
        let introduction = Introduction::new(&shared.prefix, shared.id, &this_process(), self.label.as_deref());
        let how = How::plainly(Lane::Background, PING_TIMEOUT);
        loop {
            let (set, sent) = (introduction.set(), AtomicBool::new(false));
            let said = self.call(&how, &introduction.key, &Order::command(&set, &sent)).await;
            if let Err(error) = said {
                tracing::debug!(%error, "cannot say who this client is");
            }
            sleep(INTRODUCED_EVERY).await;
        }
    }

    /// Subscribes to a node while its locks have waiters. Never ends.
    pub(super) async fn listen(&self, node: &Arc<Node>) {
        let mut backoff = Backoff::new();
        let mut outage: Option<Outage> = None;
        loop {
            while self.is_idle(node) {
                outage = None;
                node.suspect(false);
                node.wanted.notified().await;
            }
            let heard = match NodeSubscription::open(node, &self.shared, self.label.as_deref()).await {
                Ok(subscription) => {
                    let is_up = || {
                        // Without a pause: while slots move, each may end a subscription, and the waiters for other
                        // slots of the node are deaf meanwhile.
                        backoff = Backoff::new();
                        if let Some(outage) = outage.take() {
                            outage.end();
                        }
                    };
                    self.hear(node, subscription, is_up).await
                }
                Err(error) => Err(error),
            };
            self.deafen(node);
            let Err(error) = heard else { continue };
            let connection = Outage::SUBSCRIPTION;
            tracing::warn!(connection, node = %node.address, %error, "connection lost");
            outage.get_or_insert_with(|| Outage::begin(connection));
            // Perhaps nobody waits any more for what it cannot bring.
            self.forget_idle(|owner| owner.is_some_and(|owner| Arc::ptr_eq(owner, node)));
            node.suspect(true);
            self.stale.notify_one();
            backoff.pause().await;
        }
    }

    /// Follows the waiters' channels, until the connection is dead or nobody waits any more. Says that it is up when the
    /// node has taken the channels: a node of a cluster that is down may take the connection and refuse these.
    async fn hear(
        &self,
        node: &Arc<Node>,
        mut subscription: NodeSubscription,
        mut is_up: impl FnMut(),
    ) -> Result<(), RedisError> {
        let mut followed = BTreeSet::new();
        let mut streams = Streams::of(&self.shared);
        let mut ping_at = clock::now() + PING_INTERVAL;
        node.look_later();
        loop {
            match node.take_agenda() {
                Agenda::Everything(_) => {
                    let (new, gone) = self.changes(node, &followed);
                    self.follow(node, &subscription, &mut followed, new).await?;
                    self.unfollow(node, &subscription, &mut followed, gone).await?;
                    self.follow_events(node, &subscription, &mut streams).await?;
                }
                Agenda::Fresh(fresh) => self.follow_fresh(node, &subscription, &mut followed, fresh).await?,
            }
            is_up();
            if followed.is_empty() && self.is_idle(node) {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = subscription.connection.ended() => {
                    return Err(disconnected("the node has ended the subscription"));
                }
                () = node.wanted.notified() => continue,
                () = clock::sleep_until(ping_at) => {}
            }
            // Another node may have the slots by now, so read the table already.
            let answered = subscription.connection.ping().await?;
            node.suspect(!answered);
            if !answered {
                self.stale.notify_one();
            }
            ping_at = clock::now() + PING_INTERVAL;
            node.look_later();
        }
    }

    /// Follows the events of this node's locks, for this client's streams.
    async fn follow_events(
        &self,
        node: &Arc<Node>,
        subscription: &NodeSubscription,
        streams: &mut Streams<'_>,
    ) -> Result<(), RedisError> {
        let subscribers = &self.shared.subscribers;
        let wanted = self.events_at(node);
        // The stream may be new, and the subscription of another node may have missed events since.
        for channel in wanted.intersection(&streams.followed) {
            subscribers.follows(channel);
        }
        for channel in wanted.difference(&streams.followed.clone()) {
            match subscription.subscribe(channel).await {
                Ok(()) => {
                    streams.followed.insert(channel.clone());
                    subscribers.follows(channel);
                }
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) => {
                    self.redirect(&error, node, |at| self.own(slot_of(channel), at));
                    self.stale.notify_one();
                }
                // A new connection would be refused too, and the grants of this one would be missed.
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => {
                    tracing::warn!(%error, channel, "the server refuses to bring events");
                    subscribers.is_refused(channel, error);
                }
                Err(error) => return Err(error),
            }
        }
        for channel in streams.followed.clone().difference(&wanted) {
            streams.followed.remove(channel);
            // The slot may be another node's by now.
            subscribers.is_missed(channel);
            subscription.unsubscribe(channel.clone()).await?;
        }
        Ok(())
    }

    fn events_at(&self, node: &Arc<Node>) -> BTreeSet<String> {
        let mut channels = self.shared.subscribers.channels();
        let topology = locked(&self.topology);
        channels.retain(|channel| topology.has(node, slot_of(channel)));
        channels
    }

    /// Makes the subscriptions that are concerned check what they have to follow.
    pub(super) async fn keep_events(&self) {
        let subscribers = &self.shared.subscribers;
        loop {
            subscribers.changed.notified().await;
            for channel in subscribers.channels() {
                match self.owner(slot_of(&channel)) {
                    Some(node) => node.look(),
                    None => self.stale.notify_one(),
                }
            }
        }
    }

    /// Whether the client needs no channel of this node.
    fn is_idle(&self, node: &Arc<Node>) -> bool {
        self.awaited_at(node).is_empty() && self.events_at(node).is_empty()
    }

    fn channel(&self, lock: &str) -> String {
        format!("{}{}", channel_base(lock), self.shared.id)
    }

    async fn follow(
        &self,
        node: &Arc<Node>,
        subscription: &NodeSubscription,
        followed: &mut BTreeSet<Arc<str>>,
        new: Vec<Arc<str>>,
    ) -> Result<(), RedisError> {
        for some in new.chunks(SUBSCRIBED_AT_ONCE) {
            let replies = some
                .iter()
                .map(|lock| async { subscription.subscribe(&self.channel(lock)).await });
            let replies = join_all(replies).await;
            let now = clock::now();
            let mut failure = None;
            let mut confirmed = Vec::new();
            for (lock, reply) in some.iter().zip(replies) {
                match reply {
                    Ok(()) => confirmed.push(Arc::clone(lock)),
                    Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) => {
                        self.redirect(&error, node, |at| self.own(slot_of(lock), at));
                        self.stale.notify_one();
                    }
                    // A new connection would be refused too, and the messages of this one would be missed.
                    Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => {
                        tracing::warn!(%error, lock = &**lock, "the server refuses to bring grants");
                        self.shared.registry.refuse(lock, &error);
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
            // Renew now, to learn of earlier grants.
            self.shared.registry.resync_locks(&confirmed, now);
            followed.extend(confirmed);
            if let Some(error) = failure {
                return Err(error);
            }
            node.suspect(false);
        }
        Ok(())
    }

    /// Locks that got a first waiter since the last check.
    async fn follow_fresh(
        &self,
        node: &Arc<Node>,
        subscription: &NodeSubscription,
        followed: &mut BTreeSet<Arc<str>>,
        mut fresh: Vec<Arc<str>>,
    ) -> Result<(), RedisError> {
        fresh.retain(|lock| !followed.contains(lock));
        self.follow(node, subscription, followed, fresh).await
    }

    /// A request that starts to wait meanwhile does not wait for the end of this, and keeps its channel.
    async fn unfollow(
        &self,
        node: &Arc<Node>,
        subscription: &NodeSubscription,
        followed: &mut BTreeSet<Arc<str>>,
        gone: Vec<Arc<str>>,
    ) -> Result<(), RedisError> {
        for lock in &gone {
            followed.remove(lock);
        }
        for some in gone.chunks(SUBSCRIBED_AT_ONCE) {
            let idle = some.iter().filter(|lock| !followed.contains(*lock));
            let replies = idle.map(|lock| subscription.unsubscribe(self.channel(lock)));
            try_join_all(replies.collect::<Vec<_>>()).await?;
            self.follow_fresh(node, subscription, followed, node.take_fresh())
                .await?;
        }
        Ok(())
    }

    /// Returns the node's locks with waiters and without a channel, and those with a channel and without waiters.
    fn changes(&self, node: &Arc<Node>, followed: &BTreeSet<Arc<str>>) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        self.forget_idle(|owner| owner.is_some_and(|owner| Arc::ptr_eq(owner, node)));
        let here = self.awaited_at(node);
        let new = here.difference(followed).cloned().collect();
        let gone = followed.difference(&here).cloned().collect();
        (new, gone)
    }

    /// Forgets the locks of slots with such an owner that have had no waiters for a while.
    pub(super) fn forget_idle(&self, concerns: impl Fn(Option<&Arc<Node>>) -> bool) {
        let now = clock::now();
        let mut watches = locked(&self.watches);
        let topology = locked(&self.topology);
        let registry = &self.shared.registry;
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

    /// No message comes from that node.
    fn deafen(&self, node: &Arc<Node>) {
        for watch in locked(&self.watches).values_mut() {
            if watch.heard.as_ref().is_some_and(|(_, by)| Arc::ptr_eq(by, node)) {
                watch.heard = None;
            }
        }
    }
}

/// Takes in a message. Channels of events end in a word, and channels of grants in a client's name, which is none.
fn on_message(shared: &Shared, confirmed: &Mutex<HashMap<String, Instant>>, channel: &[u8], payload: &[u8]) {
    let texts = (std::str::from_utf8(channel), std::str::from_utf8(payload));
    match texts {
        (Ok(channel), Ok(payload)) if is_event_channel(channel) => {
            shared.subscribers.on_events(&shared.prefix, channel, channel, payload);
        }
        (channel, _) => {
            let confirmed = channel.ok().and_then(|channel| locked(confirmed).get(channel).copied());
            shared.on_message(Heard::over(confirmed, clock::now()), payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::key::Lock;
    use crate::protocol::name::RequestName;
    use crate::protocol::reply::Answer;
    use crate::state::claim::{Claim, Outcome};
    use crate::state::request::Request;
    use crate::state::shared::Identity;
    use crate::types::mode::{Admission, Mode};
    use tokio::sync::mpsc;

    #[test]
    fn a_message_over_a_new_channel_proves_nothing_that_was_asked_for_before_it() {
        let (releases, _released) = mpsc::unbounded_channel();
        let shared = Shared::new(Identity::new(), "p".to_owned(), Duration::from_secs(9), &releases);
        let now = clock::now();
        for is_new in [true, false] {
            let lock = Arc::new(Lock::new("p", "a".into()));
            let claim = Claim::new(Duration::from_secs(9), Duration::MAX, now);
            let number = shared.next_number();
            let name = RequestName::write(Mode::Write, shared.id, number, None);
            let request = Arc::new(Request::new(number, name.clone(), lock, Admission::FIFO, claim));
            shared.registry.insert(Arc::clone(&request), now);
            let queued = Answer::Queued {
                ticket: 7,
                seq: 7,
                ahead: 0,
            };
            request.claim().on_reply(now, queued);
            let since = if is_new { now + Duration::from_secs(1) } else { now };
            let channel = "p:{a}:channel";
            let confirmed = Mutex::new(HashMap::from([(channel.to_owned(), since)]));
            let message = format!("9 {name}\n{}", request.lock.state);
            on_message(&shared, &confirmed, channel.as_bytes(), message.as_bytes());
            let outcome = request.claim().poll_outcome(now + Duration::from_secs(1));
            assert_eq!(matches!(outcome, Some(Outcome::Renew)), is_new, "{outcome:?}");
        }
    }
}
