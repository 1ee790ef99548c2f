//! A request with a place in the queue, for callers who want to know how far their turn is.

use crate::acquire::Acquire;
use crate::engine::progress::Progress;
use crate::engine::runtime;
use crate::engine::session::Handle;
use crate::guard::Guard;
use crate::status::{self, Status};
use crate::types::error::Error;
use crate::types::mode::Access;
use std::fmt;
use std::future::{Future, poll_fn, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A request that the server knows: it waits, or it was granted already. Await it for the guard, `G`.
///
/// The request keeps its place while nobody polls this, because the client renews it in the background. Once granted, it
/// keeps the lock too, from others' point of view: take the guard soon, or drop this. `max_hold` counts from the guard on.
///
/// ```no_run
/// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
/// use std::time::Duration;
///
/// let mut queued = lock.write().max_queue(100).enqueue().await?;
/// println!("{} are before us", queued.ahead());
/// let guard = loop {
///     tokio::select! {
///         guard = &mut queued => break guard?,
///         () = tokio::time::sleep(Duration::from_secs(5)) => {
///             if let Some(place) = queued.place().await? {
///                 println!("{} are before us, {} hold", place.ahead, place.status.holding);
///             }
///         }
///     }
/// };
/// guard.release().await
/// # }
/// ```
///
/// # Cancel safety
/// If you drop it, the request leaves the queue, or the client hands the lock over, in the background. A dropped
/// `&mut queued` changes nothing.
///
/// # Errors
/// The future resolves to those of [`Acquire::acquire_fair`], or of [`Acquire::try_acquire_for`].
///
/// # Panics
/// The future panics if you poll it after it has resolved, as the future of any `async fn` does.
#[must_use = "the request leaves the queue as soon as this is dropped"]
pub struct Queued<G> {
    acquiring: Acquiring<G>,
    progress: Arc<Progress>,
    handle: Arc<Handle>,
    /// Whether it has been polled in a runtime with timers, perhaps another one than that which made it.
    has_timers: bool,
}

type Acquiring<G> = Pin<Box<dyn Future<Output = Result<G, Error>> + Send>>;

/// The place of a request in the queue, at one moment: see [`Queued::place`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Place {
    /// How many waiters stand before the request.
    pub ahead: usize,
    /// The lock at that moment. The first `ahead` of its waiters are those before the request, as far as it lists them.
    pub status: Status,
}

impl<M: Access> Acquire<M> {
    /// Takes a place in the queue and returns at once, with the request. Await that for the guard, and ask it for its place
    /// meanwhile: see [`Queued`]. If the lock lets the request in at once, there is no wait.
    ///
    /// # Fairness
    /// As for [`acquire_fair`](Self::acquire_fair).
    ///
    /// # Cancel safety
    /// If you drop the future, the request leaves the queue, in the background.
    ///
    /// # Errors
    /// Those of [`acquire_fair`](Self::acquire_fair).
    pub async fn enqueue(self) -> Result<Queued<Guard<M>>, Error> {
        Queued::of(self, Self::acquire_fair).await
    }

    /// The same, for at most this time: what it returns resolves to `None` if there was no grant in time. The time counts
    /// from the first poll of this call. The first poll after its end gives the guard if the lock was granted by then, and
    /// else the request leaves the queue. Zero does not queue, as [`try_acquire`](Self::try_acquire). [`Duration::MAX`]
    /// waits without limit.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// use std::time::Duration;
    ///
    /// let queued = lock.write().enqueue_for(Duration::from_secs(30)).await?;
    /// println!("{} are before us", queued.ahead());
    /// let Some(guard) = queued.await? else {
    ///     return Ok(()); // not within thirty seconds
    /// };
    /// guard.release().await
    /// # }
    /// ```
    ///
    /// # Fairness, cancel safety and errors
    /// Those of [`try_acquire_for`](Self::try_acquire_for). The call waits for the server's first reply even if that takes
    /// longer, so that a server that does not reply is an error and not a `None`.
    pub async fn enqueue_for(self, limit: Duration) -> Result<Queued<Option<Guard<M>>>, Error> {
        Queued::of(self, |request| request.try_acquire_for(limit)).await
    }
}

impl<G> Queued<G> {
    async fn of<M, F>(request: Acquire<M>, acquire: impl FnOnce(Acquire<M>) -> F) -> Result<Self, Error>
    where
        G: Send + 'static,
        F: Future<Output = Result<G, Error>> + Send + 'static,
    {
        let progress = Arc::<Progress>::default();
        let handle = Arc::clone(&request.handle);
        let mut acquiring: Acquiring<G> = Box::pin(acquire(request.watched_by(Arc::clone(&progress))));
        let over = poll_fn(|context| match acquiring.as_mut().poll(context) {
            Poll::Pending if progress.has_asked() => Poll::Ready(None),
            other => other.map(Some),
        });
        // Once asked, a request stops before it ends. So it is a try that found the lock busy.
        if let Some(busy) = over.await.transpose()? {
            acquiring = Box::pin(ready(Ok(busy)));
        }
        Ok(Self {
            acquiring,
            progress,
            handle,
            has_timers: false,
        })
    }

    /// How many waiters stood before the request when it queued. 0 too if it was granted at once.
    #[must_use]
    pub fn ahead(&self) -> usize {
        self.progress.ahead()
    }

    /// Reads where the request stands now, who holds the lock and who is before it. `None`: it does not wait any more, or it
    /// lost its place and asks again; await it. Costs as much as [`RwLock::status`](crate::RwLock::status).
    ///
    /// # Cancel safety
    /// The call changes nothing.
    ///
    /// # Errors
    /// Those of [`RwLock::status`](crate::RwLock::status).
    pub fn place(&self) -> impl Future<Output = Result<Option<Place>, Error>> + Send + use<G> {
        // The future does not borrow this, because a `&Queued` cannot be sent to another thread.
        let (progress, handle) = (Arc::clone(&self.progress), Arc::clone(&self.handle));
        async move {
            runtime::check_timers()?;
            // It has asked before there is a `Queued`.
            let Some(request) = progress.request() else {
                return Ok(None);
            };
            if handle.session.is_closed() {
                let lock = request.lock.name.to_string();
                return Err(Error::Shutdown { lock });
            }
            let (status, ahead) = status::read(&handle.session, &request.lock, 0, Some(&request.name)).await?;
            Ok(ahead.map(|ahead| Place { ahead, status }))
        }
    }
}

impl<G> Future for Queued<G> {
    type Output = Result<G, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.has_timers {
            if let Err(error) = runtime::check_timers() {
                return Poll::Ready(Err(error));
            }
            self.has_timers = true;
        }
        self.acquiring.as_mut().poll(context)
    }
}

impl<G> fmt::Debug for Queued<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = self.progress.request();
        f.debug_struct("Queued")
            .field("lock", &request.as_ref().map(|request| &request.lock.name))
            .field("ahead", &self.ahead())
            .finish_non_exhaustive()
    }
}
