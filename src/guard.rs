//! Guards: holds on a lock, which the client renews and which may be lost.

use crate::engine::attempt::Attempt;
use crate::engine::follow_up::follow_up;
use crate::engine::runtime;
use crate::engine::seal;
use crate::engine::session::Handle;
use crate::observe::{Hold, HoldEnd};
use crate::protocol::replication::Replication;
use crate::protocol::reply::Standing;
use crate::state::claim::EndedBy;
use crate::state::request::Request;
use crate::transport::backoff::Backoff;
use crate::types::clock;
use crate::types::error::{Error, LostReason, is_transient, timed_out};
use crate::types::mode::{Access, Permits, Read, Write};
use crate::types::owner::Owner;
use crate::types::token::FencingToken;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A read hold, beside other readers.
pub type ReadGuard = Guard<Read>;

/// A write hold, which is exclusive.
pub type WriteGuard = Guard<Write>;

/// A hold on some permits of a [`Semaphore`](crate::Semaphore).
pub type PermitGuard = Guard<Permits>;

/// A hold on a lock. The client renews it in the background until you release or drop the guard, or until the hold is
/// lost.
///
/// Unlike a guard of a lock in memory, this guard can be lost: when the client could not renew it within its lease,
/// because the process was frozen or cut off from the server. The guard says so by [`is_held`](Self::is_held),
/// [`lost`](Self::lost) and [`while_held`](Self::while_held), before the server gives the lock to anybody else. Between
/// such a check and your next action the process may freeze again. Only the resource can refuse a late action, by the
/// [`fencing_token`](Self::fencing_token).
///
/// A drop releases in the background and does not wait. [`release`](Self::release) waits, and reports a loss. You can
/// move a guard between tasks and threads. If you leak a guard with [`std::mem::forget`], the client renews it for as
/// long as the client lives.
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct Guard<M> {
    pub(crate) handle: Arc<Handle>,
    /// `None` after the release.
    request: Option<Arc<Request>>,
    pub(crate) token: FencingToken,
    /// What its request asked of replicas: an upgrade asks the same.
    pub(crate) replication: Option<Replication>,
    mode: PhantomData<fn() -> M>,
}

impl<M> Guard<M> {
    /// The guard of an attempt that was granted.
    pub(crate) fn of(
        attempt: Attempt,
        handle: Arc<Handle>,
        hold: Box<Hold>,
        token: u64,
        replication: Option<Replication>,
    ) -> Self {
        let request = attempt.into_request();
        let now = hold.begun;
        let left = request.observe(hold, |claim| {
            claim.keep(now);
            claim.limit_left(now).unwrap_or_default()
        });
        // The end of its max_hold, if it has one, may come before the watchdog checks again.
        if let Some(end) = now.checked_add(left) {
            handle.shared().registry.schedule_check(&request.lock, end);
        }
        Self {
            handle,
            request: Some(request),
            token: FencingToken::new(token),
            replication,
            mode: PhantomData,
        }
    }

    pub(crate) fn request(&self) -> &Arc<Request> {
        // Only the end of release() takes it, and release() consumes the guard.
        self.request.as_ref().expect("a released guard is not used again")
    }

    /// Drops the guard without a release, because another request has replaced its own.
    pub(crate) fn forget(mut self) {
        if let Some(ended) = self.request.take() {
            self.handle.shared().registry.remove(&ended);
        }
    }

    /// The same hold, where the mode does not matter.
    pub(crate) fn of_any_mode(mut self) -> Guard<()> {
        Guard {
            handle: Arc::clone(&self.handle),
            request: self.request.take(),
            token: self.token,
            replication: self.replication,
            mode: PhantomData,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.request().lock.name
    }

    /// The hold ends after this time from then.
    pub(crate) fn limit(&self, now: Instant, max_hold: Duration) {
        let request = self.request();
        request.change(|claim| claim.limit(now, max_hold));
        if let Some(end) = now.checked_add(max_hold) {
            self.handle.shared().registry.schedule_check(&request.lock, end);
        }
    }

    /// Releases as a drop does, and waits until the server has confirmed that or the lease is over.
    pub(crate) async fn give_back(mut self) {
        if let Some(request) = self.request.take() {
            self.handle.withdraw(request).await;
        }
    }

    /// Returns the number to send to the resource with every write: see [`FencingToken`].
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Returns the owner: the named [`Owner`], or the one that stands for this request alone.
    #[must_use]
    pub fn owner(&self) -> Owner {
        let request = self.request();
        let named = request.owner().and_then(Owner::of_name);
        named.unwrap_or_else(|| Owner::anonymous(self.handle.shared().id, request.number))
    }

    /// Whether the lock is certainly still held, without I/O. Once `false`, the answer stays `false`.
    ///
    /// "Certainly" means by this process' monotonic clock. The client sent the last confirmed renewal less than a lease
    /// ago, minus a fiftieth for clocks that run at different rates. On Linux and Android the time for which the machine
    /// was suspended counts too. Elsewhere nothing tells that time, nor does it for a virtual machine that was stopped
    /// together with its clocks.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let held_until = self.request().change(|claim| claim.held_until(clock::now()));
        held_until.is_some()
    }

    /// Resolves when the hold is lost, and returns the reason. It never resolves while the lock is held.
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
    /// You may drop the future and call again at any time.
    pub async fn lost(&self) -> LostReason {
        if runtime::check_timers().is_ok() {
            self.request().lost(clock::now, clock::sleep_until).await;
        } else {
            // In a box, so that other futures do not grow.
            Box::pin(self.request().lost(clock::now, |_| self.untimed())).await;
        }
        self.reason()
    }

    /// For callers whose runtime has no timers. The watchdog's runtime has timers, so the watchdog tells them of the
    /// end of a proof. When the watchdog is gone nobody can tell the time, so the hold ends early.
    async fn untimed(&self) {
        if !self.handle.shared().registry.has_ended() {
            return std::future::pending().await;
        }
        self.request()
            .change(|claim| claim.end(EndedBy::Lost(LostReason::LeaseExpired)));
    }

    /// Runs a job while the lock is held. If the lock is lost first, `while_held` drops the job at its next await. What the
    /// job did before stays done, so make its writes one transaction, with the [`fencing_token`](Self::fencing_token).
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// let guard = lock.write().acquire_fair().await?;
    /// let rows = guard.while_held(async { /* ... */ 3 }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// If you drop the future, the job is dropped and the lock stays held.
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

    /// Releases the lock and waits for the server's confirmation. By then the next waiter has entered, unless the hold
    /// lasts longer by [`hold_at_least`](crate::Acquire::hold_at_least).
    ///
    /// # Cancel safety
    /// If you drop the future at any point, the client releases the lock all the same, in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock had been lost before: others may have been inside at the same time.
    /// [`Error::Unavailable`] or [`Error::Server`] if the server did not confirm before the lease might have ended. Then
    /// the client repeats the release in the background until the lease must have ended. [`Error::Runtime`] outside of a
    /// runtime with timers. Then too the client releases in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        runtime::check_timers()?;
        let request = Arc::clone(self.request());
        let mut now = clock::now();
        let held_until = request.claim().held_until(now);
        let Some(held_until) = held_until else {
            return Err(self.loss());
        };
        // From here on the watchdog does not renew the hold.
        let hold = request.end_hold(now);
        let session = &self.handle.session;
        let lease = request.claim().lease();
        let mut backoff = Backoff::new();
        let (mut sent_before, mut may_be_sealed) = (false, false);
        loop {
            // A call that left the line would stand behind whatever came meanwhile, and never get to its head.
            let call = session.call(&request.lock, lease).patient_until(held_until);
            let rest = request.claim().lease_to_seal(now);
            let left = match rest {
                Some(rest) => Box::pin(call.renew(&[(request.name.as_str(), rest.into())])).await,
                None => call.release(&[request.name.as_str()]).await,
            };
            match left {
                Ok((stood, next)) => {
                    self.request = None;
                    let released = match stood[..] {
                        // Greater than the hold's own token: the hold was interrupted.
                        [Standing::Holds { first, .. }] if first <= self.token.get() => true,
                        // After a sending without a reply: the server executed that one, and a late copy of the acquire may
                        // have come since.
                        _ => sent_before,
                    };
                    match rest {
                        Some(_) if released => seal::leave(session, &request),
                        // The server keeps another hold of that name for the least time, and nobody has it.
                        Some(_) if stood != [Standing::Unknown] => {
                            request.claim().keep_on(None);
                            session.shared.abandon(Arc::clone(&request), clock::now());
                        }
                        _ => session.shared.registry.remove(&request),
                    }
                    follow_up(session, &request.lock, next);
                    if released {
                        tell(hold, HoldEnd::Released);
                        return Ok(());
                    }
                    // The lease, or the least time for which it was sealed, may have ended after the user had left the hold, and
                    // before the server heard of that.
                    let now = clock::now();
                    let is_free = may_be_sealed && request.claim().lease_to_seal(now).is_none();
                    let may_have_ended = now >= held_until || is_free;
                    if stood == [Standing::Unknown] && may_have_ended {
                        return Err(Error::of_server(&request.lock.name, timed_out()));
                    }
                    let reason = LostReason::UnknownToServer;
                    tell(hold, HoldEnd::Lost(reason));
                    return Err(Error::Lost {
                        lock: request.lock.name.to_string(),
                        reason,
                    });
                }
                Err(error) if is_transient(&error) && clock::now() < held_until => {
                    tracing::debug!(lock = %request.lock.name, %error, "release not confirmed, sending it again");
                    // A renewal never makes a hold unknown, before its least time is over.
                    let may_be_done = call.may_be_done(&error);
                    sent_before |= rest.is_none() && may_be_done;
                    may_be_sealed |= rest.is_some() && may_be_done;
                    backoff.pause().await;
                    now = clock::now();
                    // From then on "unknown" may mean that the hold expired and others have been inside, or that a shutdown
                    // has released it.
                    if now >= held_until || session.is_closed() {
                        return Err(Error::of_server(&request.lock.name, error));
                    }
                }
                Err(error) => return Err(Error::of_server(&request.lock.name, error)),
            }
        }
    }

    /// The error of a hold that is lost.
    pub(crate) fn loss(&self) -> Error {
        self.lost_because(self.reason())
    }

    pub(crate) fn reason(&self) -> LostReason {
        match self.request().claim().ended() {
            Some(EndedBy::Lost(reason)) => *reason,
            _ => LostReason::LeaseExpired,
        }
    }

    pub(crate) fn lost_because(&self, reason: LostReason) -> Error {
        Error::Lost {
            lock: self.request().lock.name.to_string(),
            reason,
        }
    }
}

impl PermitGuard {
    /// How many permits it holds.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.request().weight
    }
}

/// Tells the record of a hold how the hold ended.
pub(crate) fn tell(hold: Option<Box<Hold>>, end: HoldEnd) {
    if let Some(hold) = hold {
        hold.end(end);
    }
}

impl<M> Drop for Guard<M> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.handle.shared().abandon(request, clock::now());
        }
    }
}

impl<M: Access> fmt::Debug for Guard<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("lock", &self.request().lock.name)
            .field("mode", &M::LABEL)
            .field("fencing_token", &self.token)
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}
