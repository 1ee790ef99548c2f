//! A hold on a lock.

use crate::engine::release::finish;
use crate::engine::runtime;
use crate::engine::session::Handle;
use crate::observe::{Hold, HoldEnd};
use crate::protocol::reply::Standing;
use crate::state::claim::EndedBy;
use crate::state::request::Request;
use crate::transport::backoff::Backoff;
use crate::types::error::{Error, LostReason, is_transient, shown};
use crate::types::mode::{Access, Read, Write};
use crate::types::owner::Owner;
use crate::types::token::FencingToken;
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
    pub(crate) handle: Arc<Handle>,
    /// Taken when it has been released.
    request: Option<Arc<Request>>,
    pub(crate) token: FencingToken,
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

    pub(crate) fn request(&self) -> &Arc<Request> {
        // Taken at the very end of release(), which consumes the guard.
        self.request.as_ref().expect("a released guard is not used again")
    }

    /// Its request is over and forgotten: another has taken its place.
    pub(crate) fn forget(mut self) {
        if let Some(ended) = self.request.take() {
            self.handle.shared().registry.remove(&ended);
        }
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
        named.unwrap_or_else(|| Owner::anonymous(self.handle.shared().id, request.number))
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
        if !self.handle.shared().registry.has_ended() {
            return std::future::pending().await;
        }
        self.request()
            .change(|claim| claim.end(EndedBy::Lost(LostReason::LeaseExpired)));
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
        let hold = request.end_hold();
        let session = &self.handle.session;
        let lease = request.claim().lease();
        let mut backoff = Backoff::new();
        let mut sent_before = false;
        loop {
            let call = session.call(&request.lock, lease);
            match call.release(&[request.name.as_str()]).await {
                Ok((stood, next)) => {
                    self.request = None;
                    session.shared.registry.remove(&request);
                    let released = match stood[..] {
                        // A greater token: its owner came in once more since.
                        [Standing::Holds { token }] => token <= self.token.get(),
                        // After an unanswered sending: that one was executed.
                        [Standing::Unknown] => sent_before,
                        _ => false,
                    };
                    if released {
                        tell(hold, HoldEnd::Released);
                        finish(session, &request.lock, next).await;
                        return Ok(());
                    }
                    let reason = LostReason::UnknownToServer;
                    tell(hold, HoldEnd::Lost(reason));
                    finish(session, &request.lock, next).await;
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

    pub(crate) fn reason(&self) -> LostReason {
        match self.request().claim().ended() {
            Some(EndedBy::Lost(reason)) => *reason,
            _ => LostReason::LeaseExpired,
        }
    }

    pub(crate) fn lost_because(&self, reason: LostReason) -> Error {
        Error::Lost {
            lock: shown(&self.request().lock.name),
            reason,
        }
    }
}

/// Tells the record of a hold how it ended.
pub(crate) fn tell(hold: Option<Box<Hold>>, end: HoldEnd) {
    if let Some(hold) = hold {
        hold.end(end);
    }
}

impl<M> Drop for Guard<M> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.handle.shared().abandon(request);
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
