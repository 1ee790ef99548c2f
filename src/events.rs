//! Streams of events: what happens to locks. Scripts publish events only while somebody listens.
//!
//! A listener announces itself every few seconds on a channel to which all clients of a prefix subscribe. The clients
//! pass this on to the scripts that they call. So events cost neither state nor commands while nobody listens.

use crate::engine::session::Handle;
use crate::protocol::event::{self, Event};
use crate::protocol::key::{self, Lock};
use crate::state::subscribers::{Item, Topic};
use crate::transport::route::Route;
use crate::types::clock;
use crate::types::error::{ALL_LOCKS, Error, runtime_ended, timed_out};
use crate::types::timers::CONNECT_TIMEOUT;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::time::timeout;
use tokio_stream::Stream;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;

/// The events of one lock, or of all locks of a client: see [`RwLock::events`](crate::RwLock::events).
///
/// The stream keeps the client's tasks alive. After a drop the client unsubscribes within seconds. The stream ends when
/// the client is shut down. It ends with an error when the client's runtime ends, or when the server refuses the
/// subscription after a reconnect.
#[must_use = "events are dropped if nobody reads the stream"]
pub struct Events {
    stream: BroadcastStream<Item>,
    lock: String,
    _handle: Arc<Handle>,
}

impl Events {
    pub(crate) async fn of_lock(handle: Arc<Handle>, lock: &Lock) -> Result<Self, Error> {
        let topic = Topic::Channel(key::event_channel(&lock.state));
        Self::subscribe(handle, &topic, lock.state.to_string(), &lock.name).await
    }

    pub(crate) async fn of_all(handle: Arc<Handle>) -> Result<Self, Error> {
        let topic = Topic::Pattern(key::event_pattern(&handle.shared().prefix));
        if !matches!(handle.session.route, Route::Server(_)) {
            return Err(Error::Unsupported {
                lock: ALL_LOCKS.to_owned(),
                what: "the events of all locks",
                remedy: "a cluster brings those of single locks; poll the status of the others",
            });
        }
        Self::subscribe(handle, &topic, event::ALL_LOCKS.to_owned(), ALL_LOCKS).await
    }

    async fn subscribe(handle: Arc<Handle>, topic: &Topic, subject: String, name: &str) -> Result<Self, Error> {
        if handle.shared().registry.has_ended() {
            return Err(Error::of_server(name, runtime_ended()));
        }
        let subscribers = &handle.shared().subscribers;
        let mut stream = subscribers.listen(clock::now(), topic, subject);
        let subscribed = subscribers.subscribed(topic.feed(), || handle.session.is_closed());
        let Ok(subscribed) = timeout(CONNECT_TIMEOUT, subscribed).await else {
            return Err(Error::of_server(name, timed_out()));
        };
        if !subscribed {
            return Err(match stream.try_recv() {
                Ok(Item::Failed(error)) => Error::of_server(name, Arc::unwrap_or_clone(error)),
                _ => Error::Shutdown { lock: name.to_owned() },
            });
        }
        Ok(Self {
            stream: BroadcastStream::new(stream),
            lock: name.to_owned(),
            _handle: handle,
        })
    }

    /// Waits for the next event, as `StreamExt::next` does, and returns `None` when the stream has ended.
    ///
    /// # Cancel safety
    /// You may drop the future and call again: the stream skips nothing.
    ///
    /// # Errors
    /// See [`RwLock::events`](crate::RwLock::events).
    pub async fn next(&mut self) -> Option<Result<Event, Error>> {
        tokio_stream::StreamExt::next(self).await
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
            Ok(Item::Event(event)) => Ok(Arc::unwrap_or_clone(event)),
            Ok(Item::Failed(error)) => Err(Error::of_server(&self.lock, Arc::unwrap_or_clone(error))),
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
