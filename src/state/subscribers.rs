//! The listeners to events: this client's own streams, and other clients that have announced themselves.
//!
//! A listener announces itself every few seconds on a channel to which all clients of a prefix subscribe. The clients
//! pass this on to the scripts that they call. So events cost neither state nor commands while nobody listens. Time is
//! an argument.

use crate::protocol::event::{ALL_LOCKS, Event, read_events};
use crate::protocol::key;
use crate::types::timers::BELIEVED_FOR;
use redis::RedisError;
use std::collections::BTreeMap;
#[cfg(feature = "cluster")]
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

/// The number of events that a stream keeps for a slow reader.
const BACKLOG: usize = 1024;

/// Small, because each feed has room for [`BACKLOG`] of them from its beginning.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Event(Arc<Event>),
    Gap,
    /// No event comes any more.
    Failed(Arc<RedisError>),
}

/// What to subscribe to.
#[derive(Clone, Debug)]
pub(crate) enum Topic {
    Channel(String),
    Pattern(String),
}

impl Topic {
    /// The name of its feed. That of the pattern is no channel, because a lock named `*` has the pattern's text for one.
    pub(crate) fn feed(&self) -> &str {
        match self {
            Self::Channel(channel) => channel,
            Self::Pattern(_) => ALL_LOCKS,
        }
    }
}

#[derive(Debug)]
struct Feed {
    topic: Topic,
    /// The announced subject: the key of a lock's state, or `*`.
    subject: String,
    items: broadcast::Sender<Item>,
    subscribed: bool,
    /// The subscription was lost: the stream misses what the scripts publish before the client subscribes again.
    missed: bool,
}

impl Feed {
    fn miss(&mut self) {
        self.missed |= std::mem::take(&mut self.subscribed);
    }

    fn fail(self, error: &Arc<RedisError>) {
        // Perhaps nobody reads.
        let _ = self.items.send(Item::Failed(Arc::clone(error)));
    }

    fn is_read(&self) -> bool {
        self.items.receiver_count() > 0
    }
}

/// Until when this client believes that somebody listens to a subject.
#[derive(Debug, Default)]
struct Heard {
    until: BTreeMap<String, Instant>,
    /// The last of these times.
    latest: Option<Instant>,
    /// The subscription is lost since then, and with it the announcements: what was believed then stays believed.
    deaf_since: Option<Instant>,
    /// At so many subjects those that are over are dropped.
    prune_at: usize,
}

impl Heard {
    fn believe(&mut self, now: Instant, subject: &str) {
        let until = now + BELIEVED_FOR;
        self.until.insert(subject.to_owned(), until);
        self.latest = self.latest.max(Some(until));
        if self.until.len() > self.prune_at {
            self.until.retain(|_, until| *until > now);
            // So each subject is looked at a few times only, however many there are.
            self.prune_at = self.until.len() * 2 + 16;
        }
    }

    /// The time up to which this client would have heard announcements.
    fn heard_until(&self, now: Instant) -> Instant {
        self.deaf_since.map_or(now, |since| since.min(now))
    }

    fn is_believed(&self, now: Instant, subject: &str) -> bool {
        self.until.get(subject).is_some_and(|until| *until > now)
    }
}

/// The listeners: other clients that have announced themselves, and this client's own streams.
#[derive(Debug, Default)]
pub(crate) struct EventSubscribers {
    /// Whether anybody listens to anything. It is apart, because every call reads it.
    any: AtomicBool,
    heard: Mutex<Heard>,
    feeds: Mutex<BTreeMap<String, Feed>>,
    /// Wakes the subscription connection, which has something to do.
    pub(crate) changed: Notify,
    /// Says that the subscription connection has done it.
    followed: Notify,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that can panic runs while one of them is locked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EventSubscribers {
    /// Whether scripts about this lock should publish events.
    pub(crate) fn listens(&self, state: &str, now: impl FnOnce() -> Instant) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let heard = locked(&self.heard);
        let now = heard.heard_until(now());
        if heard.latest.is_none_or(|latest| latest <= now) {
            self.any.store(false, Ordering::Relaxed);
        }
        heard.is_believed(now, state) || heard.is_believed(now, ALL_LOCKS)
    }

    /// Others have announced that they listen to these locks, or to all.
    pub(crate) fn on_announcements<'a>(&self, now: Instant, subjects: impl IntoIterator<Item = &'a str>) {
        let mut heard = locked(&self.heard);
        for subject in subjects {
            heard.believe(now, subject);
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// The subscription is lost. A call that is made meanwhile may be executed when streams are complete again.
    pub(crate) fn is_deaf(&self, now: Instant) {
        locked(&self.heard).deaf_since.get_or_insert(now);
    }

    /// Announcements come again: who listened when the subscription was lost has until then to say so once more.
    pub(crate) fn hears_again(&self, now: Instant) {
        let mut heard = locked(&self.heard);
        let Some(since) = heard.deaf_since.take() else { return };
        let until = now + BELIEVED_FOR;
        for believed in heard.until.values_mut().filter(|believed| **believed > since) {
            *believed = until;
        }
        // Too late a time costs one look more.
        heard.latest = Some(until);
    }

    pub(crate) fn listen(&self, now: Instant, topic: &Topic, subject: String) -> broadcast::Receiver<Item> {
        // This client's own calls need not wait for the announcement to come back.
        self.on_announcements(now, [&*subject]);
        let mut feeds = locked(&self.feeds);
        let feed = feeds.entry(topic.feed().to_owned()).or_insert_with(|| Feed {
            topic: topic.clone(),
            subject,
            items: broadcast::Sender::new(BACKLOG),
            subscribed: false,
            missed: false,
        });
        let receiver = feed.items.subscribe();
        drop(feeds);
        self.changed.notify_one();
        receiver
    }

    /// Waits until the feed's topic is subscribed to. `false`: it is not going to be; the streams have been told why, unless the
    /// client shuts down.
    pub(crate) async fn subscribed(&self, feed: &str, is_closed: impl Fn() -> bool) -> bool {
        loop {
            let followed = self.followed.notified();
            if is_closed() {
                return false;
            }
            match locked(&self.feeds).get(feed) {
                Some(feed) if feed.subscribed => return true,
                Some(_) => {}
                None => return false,
            }
            followed.await;
        }
    }

    /// Ends the streams of a subscription by which nothing will come.
    pub(crate) fn is_refused(&self, feed: &str, error: RedisError) {
        if let Some(feed) = locked(&self.feeds).remove(feed) {
            feed.fail(&Arc::new(error));
        }
        self.followed.notify_waiters();
    }

    /// Ends all streams with that error.
    pub(crate) fn fail(&self, error: &RedisError) {
        let error = Arc::new(error.clone());
        let feeds = std::mem::take(&mut *locked(&self.feeds));
        feeds.into_values().for_each(|feed| feed.fail(&error));
        self.followed.notify_waiters();
    }

    /// Ends all streams.
    pub(crate) fn end(&self) {
        locked(&self.feeds).clear();
        self.followed.notify_waiters();
    }

    /// Topics to subscribe to, and topics that nobody reads any more.
    pub(crate) fn to_follow(&self) -> (Vec<Topic>, Vec<Topic>) {
        let mut feeds = locked(&self.feeds);
        let (mut new, mut gone) = (Vec::new(), Vec::new());
        feeds.retain(|_, feed| {
            let topic = feed.topic.clone();
            // Asked once: the last reader may go meanwhile.
            let is_read = feed.is_read();
            match (is_read, feed.subscribed) {
                (true, false) => new.push(topic),
                (false, true) => gone.push(topic),
                _ => {}
            }
            is_read
        });
        (new, gone)
    }

    pub(crate) fn follows(&self, feed: &str) {
        if let Some(feed) = locked(&self.feeds).get_mut(feed) {
            feed.subscribed = true;
            // Not earlier, because what follows the gap must be complete.
            if std::mem::take(&mut feed.missed) {
                let _ = feed.items.send(Item::Gap);
            }
        }
        self.followed.notify_waiters();
    }

    /// Returns the subjects that this client has to announce: all, or those that it is about to subscribe to.
    pub(crate) fn subjects(&self, only_new: bool) -> Vec<String> {
        let feeds = locked(&self.feeds);
        let announced = feeds.values().filter(|feed| !(only_new && feed.subscribed));
        announced.map(|feed| feed.subject.clone()).collect()
    }

    /// Notes a gap in all streams, because the connection is a new one.
    pub(crate) fn start_over(&self) {
        for feed in locked(&self.feeds).values_mut() {
            feed.miss();
        }
        self.changed.notify_one();
    }

    /// Notes a gap in one channel, to whose node the client is no longer subscribed.
    #[cfg(feature = "cluster")]
    pub(crate) fn is_missed(&self, channel: &str) {
        if let Some(feed) = locked(&self.feeds).get_mut(channel) {
            feed.miss();
        }
    }

    /// Returns the channels that somebody reads.
    #[cfg(feature = "cluster")]
    pub(crate) fn channels(&self) -> BTreeSet<String> {
        let mut feeds = locked(&self.feeds);
        feeds.retain(|_, feed| feed.is_read());
        feeds.keys().cloned().collect()
    }

    /// Takes in a message on the channel, for this feed.
    pub(crate) fn on_events(&self, prefix: &str, feed: &str, channel: &str, payload: &str) {
        let Some(lock) = key::name_of_event_channel(prefix, channel) else {
            return;
        };
        let feeds = locked(&self.feeds);
        let Some(feed) = feeds.get(feed) else {
            return;
        };
        for event in read_events(&lock, payload) {
            // Perhaps nobody reads any more.
            let _ = feed.items.send(Item::Event(Arc::new(event)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn nobody_listens_until_somebody_says_so() {
        let subscribers = EventSubscribers::default();
        let now = Instant::now();
        assert!(!subscribers.listens("fairlock:{a}", || now));
        subscribers.on_announcements(now, ["fairlock:{b}"]);
        assert!(!subscribers.listens("fairlock:{a}", || now));
        subscribers.on_announcements(now, ["fairlock:{a}"]);
        assert!(subscribers.listens("fairlock:{a}", || now));
        subscribers.on_announcements(now, ["*"]);
        assert!(subscribers.listens("fairlock:{c}", || now));
        assert!(!subscribers.listens("fairlock:{a}", || now + BELIEVED_FOR));
        assert!(!subscribers.any.load(Ordering::Relaxed), "the next call need not look");
    }

    #[test]
    fn what_a_deaf_client_believed_it_believes_until_the_listener_can_say_so_again() {
        let subscribers = EventSubscribers::default();
        let lost = Instant::now();
        let (later, back) = (lost + 5 * BELIEVED_FOR, lost + 9 * BELIEVED_FOR);
        subscribers.on_announcements(lost - BELIEVED_FOR, ["fairlock:{a}"]);
        subscribers.on_announcements(lost - BELIEVED_FOR / 2, ["fairlock:{b}"]);
        subscribers.is_deaf(lost);
        assert!(!subscribers.listens("fairlock:{a}", || later), "that was over before");
        assert!(subscribers.listens("fairlock:{b}", || later));
        subscribers.hears_again(back);
        let end = back + BELIEVED_FOR;
        for (lock, at, listens) in [
            ("b", end - BELIEVED_FOR / 9, true),
            ("b", end, false),
            ("a", back, false),
        ] {
            let state = format!("fairlock:{{{lock}}}");
            assert_eq!(subscribers.listens(&state, || at), listens, "{state}");
        }
        assert!(!subscribers.any.load(Ordering::Relaxed), "the next call need not look");
    }

    #[test]
    fn what_nobody_listens_to_any_more_is_forgotten() {
        let subscribers = EventSubscribers::default();
        let mut now = Instant::now();
        for number in 0..10_000 {
            subscribers.on_announcements(now, [&*format!("fairlock:{{{number}}}")]);
            now += BELIEVED_FOR / 100;
        }
        let kept = locked(&subscribers.heard).until.len();
        assert!(kept <= 300, "{kept} of 100 that are believed");
    }

    #[tokio::test]
    async fn nobody_waits_for_a_stream_of_a_client_that_is_closed() {
        let subscribers = EventSubscribers::default();
        let _stream = subscribers.listen(
            Instant::now(),
            &Topic::Channel("a".to_owned()),
            "fairlock:{a}".to_owned(),
        );
        assert_eq!(subscribers.subscribed("a", || false).now_or_never(), None);
        assert_eq!(subscribers.subscribed("a", || true).now_or_never(), Some(false));
    }

    #[tokio::test]
    async fn a_refusal_is_told_to_who_waits_and_then_forgotten() {
        let subscribers = EventSubscribers::default();
        let refuse = || subscribers.is_refused("a", RedisError::from((redis::ErrorKind::Io, "no")));
        let topic = Topic::Channel("a".to_owned());
        let listen = || subscribers.listen(Instant::now(), &topic, "fairlock:{a}".to_owned());
        for mut stream in [listen(), listen()] {
            refuse();
            assert!(!subscribers.subscribed("a", || false).await);
            assert!(matches!(stream.try_recv(), Ok(Item::Failed(_))));
            assert!(locked(&subscribers.feeds).is_empty());
        }
        let _again = listen();
        assert_eq!(subscribers.to_follow().0.len(), 1, "somebody asks for it anew");
    }

    /// Its channel is the pattern of all locks' channels.
    #[test]
    fn a_lock_named_by_an_asterisk_is_not_all_locks() {
        let subscribers = EventSubscribers::default();
        let (channel, pattern) = (key::event_channel("fairlock:{*}"), key::event_pattern("fairlock"));
        assert_eq!(channel, pattern);
        let (one, all) = (Topic::Channel(channel.clone()), Topic::Pattern(pattern));
        let mut of_one = subscribers.listen(Instant::now(), &one, "fairlock:{*}".to_owned());
        let mut of_all = subscribers.listen(Instant::now(), &all, ALL_LOCKS.to_owned());
        assert_eq!(subscribers.to_follow().0.len(), 2);
        subscribers.on_events(
            "fairlock",
            all.feed(),
            "fairlock:{b}:events",
            "1760400000123456\nqueued w0a:7 0",
        );
        assert!(of_one.try_recv().is_err() && of_all.try_recv().is_ok());
        subscribers.on_events("fairlock", one.feed(), &channel, "1760400000123456\nqueued w0a:7 0");
        assert!(of_one.try_recv().is_ok() && of_all.try_recv().is_err());
    }
}
