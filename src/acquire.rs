//! What a caller asks for: a mode, options, and how long to wait.

use crate::engine::attempt::{Attempt, Attempted};
use crate::engine::confirm;
use crate::engine::runtime;
use crate::engine::session::Handle;
use crate::guard::{Guard, ReadGuard};
use crate::observe::{Hold, Wait};
use crate::protocol::key::Lock;
use crate::protocol::name::RequestName;
use crate::protocol::replication::Replication;
use crate::state::claim::Claim;
use crate::state::request::Request;
use crate::types::error::{Error, LostReason, shown};
use crate::types::limits::{check_duration, check_lease};
use crate::types::mode::{Access, Policy, Read, When};
use crate::types::owner::Owner;
use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// A request for a lock that has not been sent yet: set its options, then acquire.
#[must_use = "nothing is asked of the server until one of the acquire methods is awaited"]
pub struct Acquire<M> {
    handle: Arc<Handle>,
    lock: Arc<Lock>,
    owner: Option<Owner>,
    policy: Policy,
    lease: Duration,
    max_hold: Option<Duration>,
    replication: Option<Replication>,
    /// Made from a hold: its owner may be that of a single request.
    further: bool,
    mode: PhantomData<fn() -> M>,
}

impl<M> Acquire<M> {
    pub(crate) fn new(handle: Arc<Handle>, lock: Arc<Lock>, owner: Option<Owner>, policy: Policy) -> Self {
        let (lease, replication) = (handle.shared().lease, handle.session.replication);
        Self {
            handle,
            lock,
            owner,
            policy,
            lease,
            max_hold: None,
            replication,
            further: false,
            mode: PhantomData,
        }
    }

    /// A further request of an owner that holds the lock, with the settings of that hold.
    pub(crate) fn again(handle: Arc<Handle>, hold: &Request, owner: Owner) -> Self {
        Self {
            replication: handle.session.replication,
            handle,
            lock: Arc::clone(&hold.lock),
            owner: Some(owner),
            policy: hold.policy,
            lease: hold.claim().lease(),
            max_hold: None,
            further: true,
            mode: PhantomData,
        }
    }

    /// The lease of this request: how long others wait if this process dies, and how long it may be cut off without
    /// losing the lock. The client's default unless set; at least 100 ms, at most a year. It is renewed at a third.
    /// How to choose it: [`ClientBuilder::lease`](crate::ClientBuilder::lease) and [`leases`](crate::guide::leases).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The longest time for which the lock is held, counted from when the guard is handed out: then the guard is lost
    /// and others enter, whatever its user does. No limit unless set; at least 1 ms.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Hands the guard out only when so many replicas of the server have the grant: a replica that takes over then knows
    /// of the hold. See [`ClientBuilder::wait_for_replicas`](crate::ClientBuilder::wait_for_replicas), which sets it for
    /// all requests; 0 switches it off for this one.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// let guard = lock.write().wait_for_replicas(1, std::time::Duration::from_millis(500)).acquire_fair().await?;
    /// # Ok(()) }
    /// ```
    pub fn wait_for_replicas(mut self, replicas: usize, timeout: Duration) -> Self {
        self.replication = Replication::in_memory(replicas, timeout);
        self
    }
}

impl<M: Access> fmt::Debug for Acquire<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("lock", &self.lock.name)
            .field("mode", &M::MODE)
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .finish_non_exhaustive()
    }
}

impl<M: Access> Acquire<M> {
    /// Waits for the lock, first come first served.
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client) -> Result<(), fairlock::Error> {
    /// let guard = client.rw_lock("invoice:42").write().acquire_fair().await?;
    /// // ... only we are here ...
    /// guard.release().await
    /// # }
    /// ```
    ///
    /// # Fairness
    /// The first poll of this future hands the request over to the connection, and does not wait for anything. The
    /// server executes the requests of a client in the order of these first polls, and a request takes its place in the
    /// queue when the server executes it. Two kinds of requests may come later: one whose owner still has another
    /// request to leave (see [`Owner`]), and one whose call got no answer, because it is sent again.
    /// Nobody who conflicts and asks later enters earlier, except an owner that reenters. If this process is frozen for longer than the lease it loses its place but asks again with
    /// its old ticket, so that only those pass it who entered in the meantime.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue, in the background. If the lock was granted at that moment, the grant
    /// is passed on to the next. A new call begins at the end of the queue.
    ///
    /// A future may be left without being polled or dropped: it holds up no other call of the client. A future that has
    /// seen the server's first answer keeps its place and, once granted, the lock. A future that was left
    /// before it saw that answer keeps its place, or the lock, for one lease: the client does not renew what it does
    /// not know to wait, as if the waiter had died.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no first answer comes within one lease, or if the client's runtime has ended. Who has a place in the queue waits on, also
    /// while the server is away, and keeps its place if the server's data survive. [`Error::UpgradeConflict`] and
    /// [`Error::OwnerWaiting`] concern owners: see [`Owner`]. [`Error::Server`] if the server refuses,
    /// [`Error::Shutdown`] after [`Client::shutdown`](crate::Client::shutdown), and
    /// [`Error::InvalidName`], [`Error::InvalidDuration`], [`Error::InvalidOwner`] or [`Error::Runtime`] before anything is
    /// sent.
    /// [`Error::PolicyMismatch`] if others use the lock with another policy, and [`Error::Lost`] if an operator evicted
    /// the waiting owner.
    pub async fn acquire_fair(self) -> Result<Guard<M>, Error> {
        match self.acquire(When::InTurn).await? {
            Some(guard) => Ok(guard),
            // Only a try can be told that the lock is busy.
            None => unreachable!("a queued request was answered \"busy\""),
        }
    }

    /// Takes the lock if that is possible now: nobody who conflicts holds it and nobody waits. `None`: it is not.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// match lock.write().try_acquire().await? {
    ///     Some(guard) => guard.release().await?,
    ///     None => println!("somebody else is at it"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Fairness
    /// It never enters before somebody who waits, unless its owner is inside already.
    ///
    /// # Cancel safety
    /// Dropping the future gives the lock back, in the background, if it was granted.
    ///
    /// # Errors
    /// Those of [`acquire_fair`](Self::acquire_fair). A server that does not answer is an error, not a "no".
    pub async fn try_acquire(self) -> Result<Option<Guard<M>>, Error> {
        self.acquire(When::Now).await
    }

    /// Waits in the queue for at most this time. `None`: its turn did not come. Zero is
    /// [`try_acquire`](Self::try_acquire); [`Duration::MAX`] waits without limit. The first answer of the server is waited
    /// for even if it takes longer, as `try_acquire` does.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// use std::time::Duration;
    /// let Some(guard) = lock.read().try_acquire_for(Duration::from_secs(5)).await? else {
    ///     return Ok(()); // not within five seconds
    /// };
    /// guard.release().await
    /// # }
    /// ```
    ///
    /// # Fairness and cancel safety
    /// Those of [`acquire_fair`](Self::acquire_fair). When the time is over the place in the queue is given up.
    ///
    /// # Errors
    /// Those of [`acquire_fair`](Self::acquire_fair). [`Error::Unavailable`] if the server does not answer at all.
    pub async fn try_acquire_for(self, limit: Duration) -> Result<Option<Guard<M>>, Error> {
        if limit.is_zero() {
            return self.try_acquire().await;
        }
        self.acquire(When::Within(limit)).await
    }

    async fn acquire(self, when: When) -> Result<Option<Guard<M>>, Error> {
        self.check()?;
        runtime::check_timers()?;
        let wait = Wait::begin(&self.lock, M::MODE, when);
        // Not by `Instrument`: it would keep a second span. The guard is made outside of the span: what holds is not part
        // of what waited.
        let waited = {
            let mut waiting = pin!(self.wait(when, &wait));
            poll_fn(|context| wait.span.in_scope(|| waiting.as_mut().poll(context))).await
        };
        match waited {
            Ok(Some((attempt, token))) => {
                let (via, heard) = attempt.granted_via();
                wait.granted(token, via, heard);
                Ok(Some(guard(attempt, Arc::clone(&self.handle), token)))
            }
            Ok(None) => {
                wait.not_granted();
                Ok(None)
            }
            Err(error) => {
                wait.failed(&error);
                Err(error)
            }
        }
    }

    async fn wait(&self, when: When, wait: &Wait) -> Result<Option<(Attempt, u64)>, Error> {
        let mut ticket = None;
        loop {
            let mut attempt = self.attempt(when, ticket);
            let outcome = match (attempt.ask().await?, when) {
                (Some(outcome), _) => outcome,
                (None, When::Within(limit)) => {
                    let begun = wait.begun;
                    let left = limit.saturating_sub(begun.elapsed());
                    match timeout(left, attempt.wait()).await {
                        Ok(outcome) => outcome?,
                        Err(_) => return Ok(None),
                    }
                }
                (None, When::Now | When::InTurn) => attempt.wait().await?,
            };
            match outcome {
                Attempted::Granted(token) => {
                    let counts = match self.replication {
                        None => true,
                        // In a box, so that who does not ask for it has no longer a future.
                        Some(wish) => Box::pin(confirm::counts(&mut attempt, wish)).await?,
                    };
                    if counts {
                        return Ok(Some((attempt, token)));
                    }
                    wait.requeued(&self.lock);
                    // As good a place as it had.
                    ticket = Some(token);
                }
                Attempted::Busy => return Ok(None),
                // An upgrade is over when the server does not know it: its read hold may be, and this would be a plain
                // writer then.
                Attempted::AskAgain(_) if self.further => {
                    return Err(Error::Lost {
                        lock: shown(&self.lock.name),
                        reason: LostReason::UnknownToServer,
                    });
                }
                Attempted::AskAgain(place) => {
                    wait.requeued(&self.lock);
                    ticket = place;
                }
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        self.lock.check_name()?;
        check_lease(&self.lock.name, self.lease)?;
        if let Some(max_hold) = self.max_hold {
            check_duration(
                &self.lock.name,
                "max_hold",
                max_hold,
                Duration::from_millis(1),
                Duration::MAX,
            )?;
        }
        if let Some(replication) = self.replication {
            replication.check(&self.lock.name)?;
        }
        match self.owner {
            Some(owner) if (owner.is_anonymous() || owner.is_nobody()) && !self.further => Err(Error::InvalidOwner {
                lock: shown(&self.lock.name),
                owner,
            }),
            _ => Ok(()),
        }
    }

    /// A request under a new name, registered before anything is sent: no message can come too early.
    fn attempt(&self, when: When, ticket: Option<u64>) -> Attempt {
        let shared = self.handle.shared();
        let (number, now) = (shared.next_number(), Instant::now());
        let owner = self.owner.map(|owner| owner.name());
        let name = RequestName::write(M::MODE, shared.id, number, owner.as_deref());
        let claim = Claim::new(self.lease, self.max_hold.unwrap_or(Duration::MAX), now);
        let request = Arc::new(Request::new(number, name, Arc::clone(&self.lock), self.policy, claim));
        shared.registry.insert(Arc::clone(&request), now);
        Attempt::new(Arc::clone(&self.handle), request, when, ticket, self.lease)
    }
}

impl Acquire<Read> {
    /// A read hold in the place of a write hold that is certain until then. `None`: the server does not know it.
    pub(crate) async fn instead_of(self, from: &Request, until: Instant) -> Result<Option<ReadGuard>, Error> {
        let attempt = self.attempt(When::InTurn, None);
        if attempt.take_over(from, until).await?.is_none() {
            return Ok(None);
        }
        match attempt.wait().await? {
            Attempted::Granted(token) => Ok(Some(guard(attempt, Arc::clone(&self.handle), token))),
            Attempted::AskAgain(_) | Attempted::Busy => Ok(None),
        }
    }
}

/// The guard of an attempt that was granted.
fn guard<M: Access>(attempt: Attempt, handle: Arc<Handle>, token: u64) -> Guard<M> {
    let request = attempt.into_request();
    request.observe(Hold::begin(&request.lock, M::MODE, token));
    // The end of its max_hold, if it has one, may come before the watchdog looks again.
    let now = Instant::now();
    let left = request.claim().limit_left(now);
    if let Some(end) = now.checked_add(left) {
        handle.shared().registry.schedule_check(&request.lock, end);
    }
    Guard::new(handle, request, token)
}
