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
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

/// The number of events that a stream keeps for a slow reader.
const BACKLOG: usize = 1024;

#[derive(Clone, Debug)]
pub(crate) enum Item {
    Event(Event),
    Gap,
    /// No event comes any more.
    Failed(RedisError),
}

/// What to subscribe to.
#[derive(Debug)]
pub(crate) enum Topic {
    Channel(String),
    Pattern(String),
}

#[derive(Debug)]
struct Feed {
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
}

/// The listeners: other clients that have announced themselves, and this client's own streams.
#[derive(Debug, Default)]
pub(crate) struct EventSubscribers {
    /// Whether anybody listens to anything. It is apart, because every call reads it.
    any: AtomicBool,
    heard: Mutex<BTreeMap<String, Instant>>,
    feeds: Mutex<BTreeMap<String, Feed>>,
    /// The last error of a refused subscription.
    refused: Mutex<BTreeMap<String, RedisError>>,
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
        let mut heard = locked(&self.heard);
        let now = now();
        heard.retain(|_, until| *until > now);
        self.any.store(!heard.is_empty(), Ordering::Relaxed);
        heard.contains_key(state) || heard.contains_key(ALL_LOCKS)
    }

    /// Somebody has announced that it listens to a lock, or to all.
    pub(crate) fn on_announcement(&self, now: Instant, subject: &str) {
        let mut heard = locked(&self.heard);
        // Also here, because a client that only listens makes no calls.
        heard.retain(|_, until| *until > now);
        heard.insert(subject.to_owned(), now + BELIEVED_FOR);
        drop(heard);
        self.any.store(true, Ordering::Relaxed);
    }

    pub(crate) fn listen(&self, now: Instant, channel: String, subject: String) -> broadcast::Receiver<Item> {
        // This client's own calls need not wait for the announcement to come back.
        self.on_announcement(now, &subject);
        locked(&self.refused).remove(&channel);
        let mut feeds = locked(&self.feeds);
        let feed = feeds.entry(channel).or_insert_with(|| Feed {
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

    /// Waits until the channel is subscribed to. `false`: the client shuts down.
    pub(crate) async fn subscribed(&self, channel: &str, is_closed: impl Fn() -> bool) -> Result<bool, RedisError> {
        loop {
            let followed = self.followed.notified();
            if is_closed() {
                return Ok(false);
            }
            if locked(&self.feeds).get(channel).is_some_and(|feed| feed.subscribed) {
                return Ok(true);
            }
            // It stays for others that wait for the same channel, until somebody asks for it anew.
            if let Some(error) = locked(&self.refused).get(channel) {
                return Err(error.clone());
            }
            followed.await;
        }
    }

    /// Ends the streams of a subscription by which nothing will come.
    pub(crate) fn is_refused(&self, channel: &str, error: RedisError) {
        locked(&self.refused).insert(channel.to_owned(), error.clone());
        if let Some(feed) = locked(&self.feeds).remove(channel) {
            // Perhaps nobody reads.
            let _ = feed.items.send(Item::Failed(error));
        }
        self.followed.notify_waiters();
    }

    /// Ends all streams with that error.
    pub(crate) fn fail(&self, error: &RedisError) {
        for (channel, feed) in std::mem::take(&mut *locked(&self.feeds)) {
            // Perhaps nobody reads any more.
            let _ = feed.items.send(Item::Failed(error.clone()));
            locked(&self.refused).insert(channel, error.clone());
        }
        self.followed.notify_waiters();
    }

    /// Ends all streams.
    pub(crate) fn end(&self) {
        locked(&self.feeds).clear();
        self.followed.notify_waiters();
    }

    /// Channels to subscribe to, and channels that nobody reads any more.
    pub(crate) fn to_follow(&self) -> (Vec<Topic>, Vec<Topic>) {
        let mut feeds = locked(&self.feeds);
        let (mut new, mut gone) = (Vec::new(), Vec::new());
        feeds.retain(|channel, feed| {
            let read = feed.items.receiver_count() > 0;
            let topic = match feed.subject == ALL_LOCKS {
                true => Topic::Pattern(channel.clone()),
                false => Topic::Channel(channel.clone()),
            };
            match (read, feed.subscribed) {
                (true, false) => new.push(topic),
                (false, true) => gone.push(topic),
                _ => {}
            }
            read
        });
        (new, gone)
    }

    pub(crate) fn follows(&self, channel: &str) {
        if let Some(feed) = locked(&self.feeds).get_mut(channel) {
            feed.subscribed = true;
            // Not earlier, because what follows the gap must be complete.
            if std::mem::take(&mut feed.missed) {
                let _ = feed.items.send(Item::Gap);
            }
        }
        self.followed.notify_waiters();
    }

    /// Returns the subjects that this client has to announce.
    pub(crate) fn subjects(&self) -> Vec<String> {
        locked(&self.feeds).values().map(|feed| feed.subject.clone()).collect()
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
        feeds.retain(|_, feed| feed.items.receiver_count() > 0);
        feeds.keys().cloned().collect()
    }

    /// Takes in a message on the channel, by this subscription.
    pub(crate) fn on_events(&self, prefix: &str, subscription: &str, channel: &str, payload: &str) {
        let Some(lock) = key::name_of_event_channel(prefix, channel) else {
            return;
        };
        let feeds = locked(&self.feeds);
        let Some(feed) = feeds.get(subscription) else {
            return;
        };
        for event in read_events(&lock, payload) {
            // Perhaps nobody reads any more.
            let _ = feed.items.send(Item::Event(event));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_listens_until_somebody_says_so() {
        let subscribers = EventSubscribers::default();
        let now = Instant::now();
        assert!(!subscribers.listens("fairlock:{a}", || now));
        subscribers.on_announcement(now, "fairlock:{b}");
        assert!(!subscribers.listens("fairlock:{a}", || now));
        subscribers.on_announcement(now, "fairlock:{a}");
        assert!(subscribers.listens("fairlock:{a}", || now));
        subscribers.on_announcement(now, "*");
        assert!(subscribers.listens("fairlock:{c}", || now));
    }
}
