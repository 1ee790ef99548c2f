//! A hold on a lock.

use crate::acquire::{Access, Acquire, Read, Write};
use crate::claim::{End, Standing};
use crate::client::Handle;
use crate::error::{Error, LostReason, is_transient};
use crate::keeper::finish;
use crate::key::shown;
use crate::link::Backoff;
use crate::observe::{Ending, Hold};
use crate::owner::Owner;
use crate::registry::Request;
use crate::runtime;
use crate::token::FencingToken;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use tokio::time::{Instant, sleep_until};

/// A hold together with other readers.
pub type ReadGuard = Guard<Read>;

/// A hold alone.
pub type WriteGuard = Guard<Write>;

/// A hold on a lock, renewed in the background until it is released, dropped or lost.
///
/// Unlike a guard of a lock in memory it can be lost: when it could not be renewed within its lease, because the
/// process was frozen or cut off from the server. It says so by [`is_held`](Self::is_held), [`lost`](Self::lost) and
/// [`while_held`](Self::while_held), before the server gives the lock to anybody else. Between such a look and the
/// action that follows the process may be frozen again; what must not happen then has to be refused by the resource,
/// by the [`fencing_token`](Self::fencing_token).
///
/// Dropping it releases in the background and does not wait; [`release`](Self::release) does, and reports. It can be
/// moved between tasks and threads. One that is leaked with [`std::mem::forget`] is renewed for as long as the client
/// lives.
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct Guard<M> {
    handle: Arc<Handle>,
    /// Taken when it has been released.
    request: Option<Arc<Request>>,
    token: FencingToken,
    mode: PhantomData<fn() -> M>,
}

impl<M> Guard<M> {
    pub(crate) fn new(handle: Arc<Handle>, request: Arc<Request>, token: u64) -> Self {
        Self {
            handle,
            request: Some(request),
            token: FencingToken::new(token),
            mode: PhantomData,
        }
    }

    fn request(&self) -> &Arc<Request> {
        // Taken at the very end of release(), which consumes the guard.
        self.request.as_ref().expect("a released guard is not used again")
    }

    /// The number to give to the resource with every write: see [`FencingToken`].
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Who holds it: the [`Owner`] that was named, or the one that stands for this request alone.
    #[must_use]
    pub fn owner(&self) -> Owner {
        let request = self.request();
        let named = request.owner().and_then(Owner::of_name);
        named.unwrap_or_else(|| Owner::anonymous(self.handle.inner.id, request.number))
    }

    /// Whether the lock is certainly still held. Does no I/O. Once `false`, it stays so.
    ///
    /// "Certainly" means by this process' monotonic clock: the last renewal that the server confirmed was sent less
    /// than a lease ago, less a fiftieth for clocks that run at different rates.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let held_until = self.request().change(|claim| claim.held_until(Instant::now()));
        held_until.is_some()
    }

    /// Resolves when the hold is lost, and says why. While it is held it never resolves.
    ///
    /// ```no_run
    /// # async fn example(guard: fairlock::WriteGuard, mut rows: tokio::sync::mpsc::Receiver<u64>) {
    /// loop {
    ///     tokio::select! {
    ///         reason = guard.lost() => return println!("stop: {reason}"),
    ///         Some(row) = rows.recv() => println!("row {row}"),
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// It may be dropped and called again at any time.
    pub async fn lost(&self) -> LostReason {
        if runtime::check_timers().is_ok() {
            self.request().lost(Instant::now, sleep_until).await;
        } else {
            // In a box, so that nobody else's future is longer for it.
            Box::pin(self.request().lost(Instant::now, |_| self.untimed())).await;
        }
        self.reason()
    }

    /// For callers whose runtime has no timers. The keeper, whose runtime has some, tells them of the end of a proof. When
    /// the keeper is gone nobody can tell the time: the hold ends early.
    async fn untimed(&self) {
        if !self.handle.inner.requests.has_ended() {
            return std::future::pending().await;
        }
        self.request()
            .change(|claim| claim.end(End::Lost(LostReason::LeaseExpired)));
    }

    /// Runs a job for as long as the lock is held. When the lock is lost first, the job is dropped.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// let guard = lock.write().acquire_fair().await?;
    /// let rows = guard.while_held(async { /* ... */ 3 }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future drops the job; the lock stays held.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before the job was done.
    pub async fn while_held<F: Future>(&self, job: F) -> Result<F::Output, Error> {
        tokio::select! {
            biased;
            reason = self.lost() => Err(self.lost_because(reason)),
            done = job => Ok(done),
        }
    }

    /// Releases the lock and waits until the server has confirmed. Whoever is next has entered by then.
    ///
    /// # Cancel safety
    /// Dropped at any point, the lock is released all the same, in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if it had been lost before: others may have been inside at the same time.
    /// [`Error::Unavailable`] or [`Error::Server`] if the server did not confirm; then the release is tried in the
    /// background until the lease must have ended. [`Error::Runtime`] outside of a runtime with timers; then the lock is
    /// released in the background too.
    pub async fn release(mut self) -> Result<(), Error> {
        runtime::check_timers()?;
        let request = Arc::clone(self.request());
        let held_until = request.claim().held_until(Instant::now());
        let Some(held_until) = held_until else {
            return Err(self.lost_because(self.reason()));
        };
        // From here on the keeper does not renew it.
        let hold = end_hold(&request);
        let inner = &self.handle.inner;
        let lease = request.claim().lease();
        let mut backoff = Backoff::new();
        let mut sent_before = false;
        loop {
            let call = inner.call(&request.lock, lease);
            match call.release(&[request.name.as_str()]).await {
                Ok((stood, next)) => {
                    self.request = None;
                    inner.registry().remove(&request);
                    let released = match stood[..] {
                        // A greater token: its owner came in once more since.
                        [Standing::Holds { token }] => token <= self.token.get(),
                        // After an unanswered sending: that one was executed.
                        [Standing::Unknown] => sent_before,
                        _ => false,
                    };
                    if released {
                        end(hold, Ending::Released);
                        finish(inner, &request.lock, next).await;
                        return Ok(());
                    }
                    let reason = LostReason::UnknownToServer;
                    end(hold, Ending::Lost(reason));
                    finish(inner, &request.lock, next).await;
                    return Err(Error::Lost {
                        lock: shown(&request.lock.name),
                        reason,
                    });
                }
                Err(error) if is_transient(&error) && Instant::now() < held_until => {
                    tracing::debug!(lock = %request.lock.name, %error, "release not confirmed, sending it again");
                    sent_before |= call.may_be_done(&error);
                    backoff.pause().await;
                    // From then on "unknown" may mean that it expired and others have been in.
                    if Instant::now() >= held_until {
                        return Err(Error::of_server(&request.lock.name, error));
                    }
                }
                Err(error) => return Err(Error::of_server(&request.lock.name, error)),
            }
        }
    }

    fn reason(&self) -> LostReason {
        match self.request().claim().ended() {
            Some(End::Lost(reason)) => *reason,
            _ => LostReason::LeaseExpired,
        }
    }

    fn lost_because(&self, reason: LostReason) -> Error {
        Error::Lost {
            lock: shown(&self.request().lock.name),
            reason,
        }
    }
}

impl ReadGuard {
    /// Waits until the other readers have left, then writes too: this read hold stays, and when the write guard goes
    /// its owner falls back to reading.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// let reading = lock.read().acquire_fair().await?;
    /// let writing = reading.upgrade().await?; // a new token: nobody has written since it began to read
    /// writing.release().await?;               // it reads on
    /// reading.release().await
    /// # }
    /// ```
    ///
    /// # Fairness
    /// It waits ahead of the queue: nobody enters between. Its own owner's other reads count as its own.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue; the read hold stays, and those behind move on.
    ///
    /// # Errors
    /// [`Error::UpgradeConflict`], at once, if another reader is waiting to upgrade already: the two would wait for each
    /// other. This read hold stays; release it to let the other one through. [`Error::Lost`], at once, if the read hold is
    /// lost meanwhile, or the server forgot the upgrade. Otherwise those of [`Acquire::acquire_fair`].
    pub async fn upgrade(&self) -> Result<WriteGuard, Error> {
        let waiting = self.upgrading()?.acquire_fair();
        let writing = tokio::select! {
            biased;
            // Dropped, the upgrade leaves the queue.
            reason = self.lost() => return Err(self.lost_because(reason)),
            writing = waiting => writing,
        };
        match writing {
            Ok(writing) => {
                self.still_reading(&writing)?;
                Ok(writing)
            }
            // The server may have said so first.
            Err(Error::Lost { .. }) if !self.is_held() => Err(self.lost_because(self.reason())),
            Err(error) => Err(error),
        }
    }

    /// Writes too if nobody else reads. `None`: others do. Like [`upgrade`](Self::upgrade) otherwise.
    ///
    /// # Fairness
    /// It goes before all who wait, like every upgrade: they could not have entered before this read hold ends.
    ///
    /// # Cancel safety
    /// Dropping the future gives the write back, in the background, if it was granted; the read hold stays.
    ///
    /// # Errors
    /// Those of [`upgrade`](Self::upgrade).
    pub async fn try_upgrade(&self) -> Result<Option<WriteGuard>, Error> {
        let writing = self.upgrading()?.try_acquire().await?;
        if let Some(writing) = &writing {
            self.still_reading(writing)?;
        }
        Ok(writing)
    }

    fn upgrading(&self) -> Result<Acquire<Write>, Error> {
        if !self.is_held() {
            return Err(self.lost_because(self.reason()));
        }
        Ok(Acquire::again(Arc::clone(&self.handle), self.request(), self.owner()))
    }

    /// Whoever stopped reading meanwhile did not upgrade: others may have written in between.
    fn still_reading(&self, writing: &WriteGuard) -> Result<(), Error> {
        if self.is_held() {
            return Ok(());
        }
        tracing::debug!(token = %writing.token, "read hold lost while it was upgraded");
        Err(self.lost_because(self.reason()))
    }
}

impl WriteGuard {
    /// Turns the write hold into a read hold. Never waits for anybody; readers at the head of the queue come in with it.
    /// The token stays. If its owner holds other writes, the lock stays written.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// let writing = lock.write().acquire_fair().await?;
    /// let reading = writing.downgrade().await?; // nobody has written in between
    /// reading.release().await
    /// # }
    /// ```
    ///
    /// # Fairness
    /// Readers enter beside it up to the first writer in the queue. Nobody is passed.
    ///
    /// # Cancel safety
    /// Dropping the future releases the hold, in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the hold had been lost. [`Error::Unavailable`] or [`Error::Server`] if the server did not
    /// confirm within the lease; then the hold is released in the background.
    pub async fn downgrade(mut self) -> Result<ReadGuard, Error> {
        runtime::check_timers()?;
        let held_until = self.request().claim().held_until(Instant::now());
        let Some(held_until) = held_until else {
            return Err(self.lost_because(self.reason()));
        };
        let limit = self.request().claim().limit_left(Instant::now());
        // From here on the keeper does not renew it.
        let hold = end_hold(self.request());
        let again = Acquire::<Read>::again(Arc::clone(&self.handle), self.request(), self.owner()).max_hold(limit);
        let reading = again.instead_of(self.request(), held_until).await?;
        // With a greater token its owner came in once more since: others may have been inside in between.
        let Some(reading) = reading.filter(|reading| reading.token <= self.token) else {
            let reason = LostReason::UnknownToServer;
            end(hold, Ending::Lost(reason));
            return Err(self.lost_because(reason));
        };
        end(hold, Ending::Downgraded);
        if let Some(ended) = self.request.take() {
            self.handle.inner.registry().remove(&ended);
        }
        Ok(reading)
    }
}

/// Ends the hold, as far as this client is concerned. What is kept of it tells its end, by when it is dropped.
fn end_hold(request: &Request) -> Option<Box<Hold>> {
    let mut claim = request.claim();
    claim.end(End::Released);
    claim.ended_hold().map(|(hold, _)| hold)
}

fn end(hold: Option<Box<Hold>>, ending: Ending) {
    if let Some(hold) = hold {
        hold.end(ending);
    }
}

impl<M> Drop for Guard<M> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.handle.abandon(request);
        }
    }
}

impl<M: Access> fmt::Debug for Guard<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("lock", &self.request().lock.name)
            .field("mode", &M::MODE)
            .field("fencing_token", &self.token)
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}
