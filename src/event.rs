//! What happens to locks, as a stream. Scripts publish events only while somebody listens.
//!
//! Who listens announces it every few seconds on a channel that all clients of a prefix hear; they pass it on to the
//! scripts that they call. So events cost neither state nor commands while nobody listens.

use crate::acquire::Mode;
use crate::client::Handle;
use crate::error::{Error, runtime_ended};
use crate::key::{self, Lock, shown};
use crate::owner::Owner;
use crate::script::{MOST_NUMBER, read_name};
use crate::token::FencingToken;
use crate::wire::{CONNECT_TIMEOUT, timed_out};
use redis::RedisError;
use std::collections::BTreeMap;
#[cfg(feature = "cluster")]
use std::collections::BTreeSet;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, broadcast};
use tokio::time::{Instant, timeout};
use tokio_stream::Stream;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;

/// How often a listener says that it is there, and for how long it is believed.
pub(crate) const ANNOUNCED_EVERY: Duration = Duration::from_secs(3);
pub(crate) const BELIEVED_FOR: Duration = Duration::from_secs(10);
/// Events that a stream keeps for a reader that is slow.
const BACKLOG: usize = 1024;
const ALL_LOCKS: &str = "*";

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// When, by the server's clock.
    pub at: SystemTime,
    /// The lock's name.
    pub lock: String,
    /// What happened.
    pub kind: EventKind,
    /// Whose request it was.
    pub owner: Owner,
    /// The client that asked: see [`ClientInfo::id`](crate::ClientInfo).
    pub client: String,
    /// The request's mode.
    pub mode: Mode,
    /// The token, of a grant.
    pub token: Option<FencingToken>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// It could not enter at once and took its place in the queue.
    Queued,
    /// It entered.
    Granted,
    /// It left the lock.
    Released,
    /// Its lease ran out, while it held or waited.
    Expired,
    /// It left the queue without having entered.
    Left,
    /// An operator threw it out.
    Evicted,
}

#[derive(Clone, Debug)]
enum Item {
    Event(Event),
    Gap,
    /// Nothing comes any more.
    Failed(RedisError),
}

/// The events of one lock, or of all locks of a client: see [`RwLock::events`](crate::RwLock::events).
///
/// It keeps the client's tasks alive. Dropped, it lets go of its subscription within seconds. It ends when the client is
/// shut down, with an error when the client's runtime ends, or if the server refuses to subscribe again after a lost connection.
#[must_use = "events are dropped if nobody reads the stream"]
pub struct Events {
    stream: BroadcastStream<Item>,
    lock: String,
    _handle: Arc<Handle>,
}

impl Events {
    pub(crate) async fn of_lock(handle: Arc<Handle>, lock: &Lock) -> Result<Self, Error> {
        let channel = key::event_channel(&lock.state);
        Self::subscribe(handle, channel, lock.state.to_string(), &lock.name).await
    }

    pub(crate) async fn of_all(handle: Arc<Handle>) -> Result<Self, Error> {
        let pattern = key::event_pattern(&handle.inner.prefix);
        #[cfg(feature = "cluster")]
        if matches!(handle.inner.route, crate::route::Route::Cluster(_)) {
            return Err(Error::Unsupported {
                lock: ALL_LOCKS.to_owned(),
                what: "the events of all locks",
                remedy: "a cluster brings those of single locks; poll the status of the others",
            });
        }
        Self::subscribe(handle, pattern, ALL_LOCKS.to_owned(), ALL_LOCKS).await
    }

    async fn subscribe(handle: Arc<Handle>, channel: String, subject: String, name: &str) -> Result<Self, Error> {
        if handle.inner.requests.has_ended() {
            return Err(Error::of_server(name, runtime_ended()));
        }
        let audience = &handle.inner.audience;
        let stream = audience.listen(channel.clone(), subject);
        let subscribed = timeout(CONNECT_TIMEOUT, audience.subscribed(&channel)).await;
        let subscribed = subscribed.unwrap_or_else(|_| Err(timed_out()));
        subscribed.map_err(|error| Error::of_server(name, error))?;
        Ok(Self {
            stream: BroadcastStream::new(stream),
            lock: shown(name),
            _handle: handle,
        })
    }

    fn missed(&self, why: &'static str) -> Error {
        let lock = self.lock.clone();
        Error::EventsMissed { lock, why }
    }
}

impl Stream for Events {
    type Item = Result<Event, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = ready!(Pin::new(&mut self.stream).poll_next(cx));
        Poll::Ready(item.map(|item| match item {
            Ok(Item::Event(event)) => Ok(event),
            Ok(Item::Failed(error)) => Err(Error::of_server(&self.lock, error)),
            Ok(Item::Gap) => Err(self.missed("the connection was lost")),
            Err(BroadcastStreamRecvError::Lagged(_)) => Err(self.missed("they were read too slowly")),
        }))
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("lock", &self.lock)
            .finish_non_exhaustive()
    }
}

/// What to subscribe to.
#[derive(Debug)]
pub(crate) enum Topic {
    Channel(String),
    Pattern(String),
}

#[derive(Debug)]
struct Source {
    /// What is announced: the key of a lock's state, or `*`.
    subject: String,
    items: broadcast::Sender<Item>,
    subscribed: bool,
    /// Its subscription was lost: what is published until it is made again is missed.
    missed: bool,
}

impl Source {
    fn miss(&mut self) {
        self.missed |= std::mem::take(&mut self.subscribed);
    }
}

/// Who listens: other clients, as far as they have been heard, and this one's own streams.
#[derive(Debug, Default)]
pub(crate) struct Audience {
    /// Whether anybody listens to anything. Looked at with every call, so kept apart.
    any: AtomicBool,
    heard: Mutex<BTreeMap<String, Instant>>,
    sources: Mutex<BTreeMap<String, Source>>,
    /// The last answer to who may not subscribe to this.
    refused: Mutex<BTreeMap<String, RedisError>>,
    /// The subscription connection has something to do.
    pub(crate) changed: Notify,
    /// It has done it.
    followed: Notify,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic runs while one of them is locked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Audience {
    /// Whether scripts that are about this lock should publish events.
    pub(crate) fn listens(&self, state: &str) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut heard = locked(&self.heard);
        let now = Instant::now();
        heard.retain(|_, until| *until > now);
        self.any.store(!heard.is_empty(), Ordering::Relaxed);
        heard.contains_key(state) || heard.contains_key(ALL_LOCKS)
    }

    /// Somebody listens to a lock, or to all.
    pub(crate) fn hear(&self, subject: &str) {
        let now = Instant::now();
        let mut heard = locked(&self.heard);
        // Here too: a client that only listens asks for none.
        heard.retain(|_, until| *until > now);
        heard.insert(subject.to_owned(), now + BELIEVED_FOR);
        drop(heard);
        self.any.store(true, Ordering::Relaxed);
    }

    fn listen(&self, channel: String, subject: String) -> broadcast::Receiver<Item> {
        // This client's own calls need not wait for the announcement.
        self.hear(&subject);
        locked(&self.refused).remove(&channel);
        let mut sources = locked(&self.sources);
        let source = sources.entry(channel).or_insert_with(|| Source {
            subject,
            items: broadcast::Sender::new(BACKLOG),
            subscribed: false,
            missed: false,
        });
        let receiver = source.items.subscribe();
        drop(sources);
        self.changed.notify_one();
        receiver
    }

    async fn subscribed(&self, channel: &str) -> Result<(), RedisError> {
        loop {
            let followed = self.followed.notified();
            if locked(&self.sources)
                .get(channel)
                .is_some_and(|source| source.subscribed)
            {
                return Ok(());
            }
            if let Some(error) = locked(&self.refused).remove(channel) {
                return Err(error);
            }
            followed.await;
        }
    }

    /// Nothing will come by this subscription: its streams end.
    pub(crate) fn is_refused(&self, channel: &str, error: RedisError) {
        locked(&self.refused).insert(channel.to_owned(), error);
        locked(&self.sources).remove(channel);
        self.followed.notify_waiters();
    }

    /// Nothing will come any more: all streams end with that error.
    pub(crate) fn fail(&self, error: &RedisError) {
        for (channel, source) in std::mem::take(&mut *locked(&self.sources)) {
            // Nobody may be reading any more.
            let _ = source.items.send(Item::Failed(error.clone()));
            locked(&self.refused).insert(channel, error.clone());
        }
        self.followed.notify_waiters();
    }

    /// Nothing will come any more: all streams end.
    pub(crate) fn end(&self) {
        locked(&self.sources).clear();
    }

    /// Channels to subscribe to, and channels that nobody reads any more.
    pub(crate) fn to_follow(&self) -> (Vec<Topic>, Vec<Topic>) {
        let mut sources = locked(&self.sources);
        let (mut new, mut gone) = (Vec::new(), Vec::new());
        sources.retain(|channel, source| {
            let read = source.items.receiver_count() > 0;
            let topic = match source.subject == ALL_LOCKS {
                true => Topic::Pattern(channel.clone()),
                false => Topic::Channel(channel.clone()),
            };
            match (read, source.subscribed) {
                (true, false) => new.push(topic),
                (false, true) => gone.push(topic),
                _ => {}
            }
            read
        });
        (new, gone)
    }

    pub(crate) fn follows(&self, channel: &str) {
        if let Some(source) = locked(&self.sources).get_mut(channel) {
            source.subscribed = true;
            // Not before: what follows the gap is complete.
            if std::mem::take(&mut source.missed) {
                let _ = source.items.send(Item::Gap);
            }
        }
        self.followed.notify_waiters();
    }

    /// What this client has to announce.
    pub(crate) fn subjects(&self) -> Vec<String> {
        locked(&self.sources)
            .values()
            .map(|source| source.subject.clone())
            .collect()
    }

    /// The connection is a new one: what was published meanwhile is lost.
    pub(crate) fn start_over(&self) {
        for source in locked(&self.sources).values_mut() {
            source.miss();
        }
        self.changed.notify_one();
    }

    /// The same for one channel, whose node is not listened to any more.
    #[cfg(feature = "cluster")]
    pub(crate) fn is_missed(&self, channel: &str) {
        if let Some(source) = locked(&self.sources).get_mut(channel) {
            source.miss();
        }
    }

    /// The channels that somebody reads.
    #[cfg(feature = "cluster")]
    pub(crate) fn channels(&self) -> BTreeSet<String> {
        let mut sources = locked(&self.sources);
        sources.retain(|_, source| source.items.receiver_count() > 0);
        sources.keys().cloned().collect()
    }

    /// A message on the channel, which came by this subscription.
    pub(crate) fn publish(&self, prefix: &str, subscription: &str, channel: &str, payload: &str) {
        let Some(lock) = key::name_of_event_channel(prefix, channel) else {
            return;
        };
        let sources = locked(&self.sources);
        let Some(source) = sources.get(subscription) else {
            return;
        };
        for event in read_events(&lock, payload) {
            // Nobody may be reading any more.
            let _ = source.items.send(Item::Event(event));
        }
    }
}

pub(crate) fn read_events(lock: &str, payload: &str) -> Vec<Event> {
    let mut lines = payload.split('\n');
    let at = lines
        .next()
        .and_then(|line| line.parse().ok())
        // Later than any token: not of a script, and more than calendars can show.
        .filter(|at| *at <= MOST_NUMBER)
        .map(Duration::from_micros);
    let Some(at) = at.and_then(|at| SystemTime::UNIX_EPOCH.checked_add(at)) else {
        return Vec::new();
    };
    lines.filter_map(|line| read_event(lock, at, line)).collect()
}

fn read_event(lock: &str, at: SystemTime, line: &str) -> Option<Event> {
    let mut words = line.split(' ');
    let kind = match words.next()? {
        "queued" => EventKind::Queued,
        "granted" => EventKind::Granted,
        "released" => EventKind::Released,
        "expired" => EventKind::Expired,
        "left" => EventKind::Left,
        "evicted" => EventKind::Evicted,
        _ => return None,
    };
    let (mode, client, owner) = read_name(words.next()?)?;
    let token = words.next()?.parse().ok().filter(|token| *token <= MOST_NUMBER)?;
    Some(Event {
        at,
        lock: lock.to_owned(),
        kind,
        owner,
        client: client.to_owned(),
        mode,
        token: (token > 0).then(|| FencingToken::new(token)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_line_by_line_and_unknown_ones_skipped() {
        let payload = "1760400000123456\nqueued w0a:7 0\ngranted r0b:8 1760400000123456\nsung r0b:8 0\nqueued";
        let events = read_events("a", payload);
        let kinds: Vec<_> = events
            .iter()
            .map(|event| (event.kind, event.mode, event.token))
            .collect();
        let token = Some(FencingToken::new(1_760_400_000_123_456));
        assert_eq!(
            kinds,
            [
                (EventKind::Queued, Mode::Write, None),
                (EventKind::Granted, Mode::Read, token)
            ]
        );
        assert!(read_events("a", "").is_empty());
        assert!(read_events("a", "99999999999999999999\nqueued w0a:7 0").is_empty());
        assert!(
            read_events("a", "253402300800000000\nqueued w0a:7 0").is_empty(),
            "the year 10000"
        );
    }

    #[test]
    fn nobody_listens_until_somebody_says_so() {
        let audience = Audience::default();
        assert!(!audience.listens("fairlock:{a}"));
        audience.hear("fairlock:{b}");
        assert!(!audience.listens("fairlock:{a}"));
        audience.hear("fairlock:{a}");
        assert!(audience.listens("fairlock:{a}"));
        audience.hear("*");
        assert!(audience.listens("fairlock:{c}"));
    }
}
