//! A request before it is sent: a mode, options, and how long the caller waits.

use crate::engine::attempt::{Attempt, Attempted};
use crate::engine::confirm;
use crate::engine::progress::Progress;
use crate::engine::runtime;
use crate::engine::session::Handle;
use crate::guard::{Guard, ReadGuard};
use crate::observe::{Hold, Wait};
use crate::protocol::key::Lock;
use crate::protocol::name::RequestName;
use crate::protocol::order::Origin;
use crate::protocol::replication::Replication;
use crate::state::claim::Claim;
use crate::state::request::Request;
use crate::types::clock;
use crate::types::error::{Error, LostReason};
use crate::types::limits::{MOST_LEASE, check_duration, check_lease, check_lock_delay, check_max_hold, check_permits};
use crate::types::mode::{Access, Admission, Grant, Permits, Read, When};
use crate::types::owner::Owner;
use futures::TryFutureExt as _;
use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// The request that is leaving its queue, and when its time limit ended, for a caller that waits for that.
pub(crate) type Leaver = Arc<OnceLock<(Arc<Request>, Instant)>>;

/// A request for a lock that the client has not sent yet. Set its options, then acquire.
#[must_use = "nothing is asked of the server until one of the acquire methods is awaited"]
pub struct Acquire<M> {
    pub(crate) handle: Arc<Handle>,
    lock: Arc<Lock>,
    owner: Option<Owner>,
    admission: Admission,
    /// The permits of a semaphore that it asks for.
    permits: Option<u32>,
    lease: Duration,
    max_hold: Option<Duration>,
    at_least: Duration,
    lock_delay: Duration,
    max_queue: Option<usize>,
    replication: Option<Replication>,
    /// Made from a hold: its owner may be that of a single request.
    further: bool,
    /// The token of the read hold that is to become a write hold.
    upgraded: Option<u64>,
    progress: Option<Arc<Progress>>,
    leaver: Option<Leaver>,
    mode: PhantomData<fn() -> M>,
}

impl<M> Acquire<M> {
    pub(crate) fn new(handle: Arc<Handle>, lock: Arc<Lock>, owner: Option<Owner>, admission: Admission) -> Self {
        let (lease, session) = (handle.shared().lease, &handle.session);
        Self {
            replication: session.replication,
            lock_delay: session.lock_delay,
            handle,
            lock,
            owner,
            admission,
            permits: None,
            lease,
            max_hold: None,
            at_least: Duration::ZERO,
            max_queue: None,
            further: false,
            upgraded: None,
            progress: None,
            leaver: None,
            mode: PhantomData,
        }
    }

    /// A further request of an owner that holds the lock, with the settings of that hold.
    pub(crate) fn again<H>(held: &Guard<H>) -> Self {
        let (hold, handle) = (held.request(), Arc::clone(&held.handle));
        let (lease, lock_delay) = {
            let claim = hold.claim();
            (claim.lease(), claim.lock_delay())
        };
        Self {
            lease,
            lock_delay,
            replication: held.replication,
            further: true,
            ..Self::new(handle, Arc::clone(&hold.lock), Some(held.owner()), hold.admission)
        }
    }

    /// The request is to turn the read hold with that token into a write hold.
    pub(crate) fn upgrading(mut self, token: u64) -> Self {
        self.upgraded = Some(token);
        self
    }

    /// Tells which request is leaving its queue, if the time limit ends.
    pub(crate) fn telling(mut self, leaver: &Leaver) -> Self {
        self.leaver = Some(Arc::clone(leaver));
        self
    }

    /// Somebody follows the acquisition.
    pub(crate) fn watched_by(mut self, progress: Arc<Progress>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Sets the lease of this request: how long others wait if this process dies, and how long the process may be cut
    /// off without losing the lock. The default is the client's lease; at least 100 ms, at most a year. The client
    /// renews every third of it. [`ClientBuilder::lease`](crate::ClientBuilder::lease) and
    /// [`leases`](crate::guide::leases) say how to choose one.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Bounds the hold. The time counts from when the caller gets the guard. After it the guard is lost and others
    /// enter, whatever the user does. There is no limit unless set; at least 1 ms.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Has the lock held for at least this time after the caller gets the guard, whatever becomes of the guard and of this
    /// process. There is no least time unless set; at most `max_hold`, at most a year.
    ///
    /// Release and drop are as ever. If the time is not over then, the server keeps the hold for the rest, nothing renews
    /// it, and others enter after that. So replicas whose clocks differ run a job once, and a
    /// [`release`](Guard::release) still says whether the lock was held until then:
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client) -> Result<(), fairlock::Error> {
    /// use std::time::Duration;
    /// // Twenty replicas try at midnight, each by its own clock.
    /// let job = client.rw_lock("nightly report").write().hold_at_least(Duration::from_secs(3600));
    /// if let Some(guard) = job.try_acquire().await? {
    ///     guard.while_held(async { /* ... */ }).await?;
    ///     // The others find the lock busy until one o'clock, and the job has run, whatever the error is.
    ///     if let Err(error) = guard.release().await { eprintln!("{error}") }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// A downgrade keeps the time, an eviction ends it. [`Client::shutdown`](crate::Client::shutdown) leaves the holds to
    /// the server. A crash costs others the rest of this time, if that is more than the lease. If the time is not well
    /// below the lease, acquiring may take one call more, because the guard comes when the server will keep the hold so
    /// long.
    pub fn hold_at_least(mut self, time: Duration) -> Self {
        self.at_least = time;
        self
    }

    /// Has the server wait for this time before others enter after a loss:
    /// [`ClientBuilder::lock_delay`](crate::ClientBuilder::lock_delay) does this for all requests and says what it costs.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// let guard = lock.write().lock_delay(std::time::Duration::from_secs(5)).acquire_fair().await?;
    /// # Ok(()) }
    /// ```
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
        self
    }

    /// Refuses to queue behind so many waiters or more, with [`Error::QueueFull`]. A request that enters at once, or that
    /// waited already and lost its place, is not refused. Those of whom it would stand in front do not count. 0: it never
    /// waits.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// use fairlock::Error;
    /// match lock.write().max_queue(100).acquire_fair().await {
    ///     Err(Error::QueueFull { waiting, .. }) => println!("503: {waiting} wait already"),
    ///     guard => drop(guard?),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn max_queue(mut self, waiters: usize) -> Self {
        self.max_queue = Some(waiters);
        self
    }

    /// Returns the guard only when so many replicas of the server have the grant.
    /// [`ClientBuilder::wait_for_replicas`](crate::ClientBuilder::wait_for_replicas) does this for all requests and
    /// says what it costs. 0 switches it off for this request. An upgrade of the hold asks the same as its request.
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

/// `lock.write().await` is `lock.write().acquire_fair().await`, with the future in a box.
impl<M: Access> IntoFuture for Acquire<M> {
    type Output = Result<Guard<M>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire_fair())
    }
}

impl<M: Access> fmt::Debug for Acquire<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("lock", &self.lock.name)
            .field("mode", &M::LABEL)
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .finish_non_exhaustive()
    }
}

impl<M: Access> Acquire<M> {
    /// Waits for the lock: first come, first served.
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
    /// The first poll of this future gives the request to the connection and waits for nothing. The server executes the
    /// requests of a client in the order of these first polls. A request takes its place in the queue when the server
    /// executes it. Two kinds of requests may come later: one whose owner still has another request to leave (see
    /// [`Owner`]), and one whose call got no reply, because the client sends it again. No conflicting later request
    /// enters earlier, except one of an owner that reenters, or of the mode that another [`Policy`](crate::Policy) prefers.
    /// If this process is frozen for longer than the lease, the request loses its place. Then it asks again with its old
    /// ticket, so that only requests that entered meanwhile overtake it.
    ///
    /// # Cancel safety
    /// If you drop the future, the request leaves the queue, in the background. If the server granted the lock at that
    /// moment, the client hands the lock over. A new call starts at the end of the queue.
    ///
    /// A future that nobody polls and nobody drops holds up no other call of the client. If it has seen the server's
    /// first reply, it keeps its place and, once granted, the lock. If it has not seen that reply, it keeps its place,
    /// or the lock, for one lease (the lock of a cluster: for a second), as the client renews no request without a reply.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no first reply comes within one lease, or if the client's runtime has ended. A waiter
    /// with a place in the queue waits on while the server is away, and keeps its place if the server's data survive.
    /// [`Error::UpgradeConflict`] and [`Error::OwnerWaiting`] concern owners: see [`Owner`]. [`Error::Server`] if the
    /// server refuses, [`Error::Shutdown`] after [`Client::shutdown`](crate::Client::shutdown), and
    /// [`Error::InvalidName`], [`Error::InvalidDuration`], [`Error::InvalidOwner`] or [`Error::Runtime`] before the
    /// client sends anything. [`Error::PolicyMismatch`] if others use the lock with another policy, and [`Error::Lost`]
    /// if an operator evicted the owner before it had the guard. [`Error::Deadlock`] concerns owners too,
    /// [`Error::InvalidPermits`] semaphores, and [`Error::QueueFull`] and [`Error::NotReplicated`] requests that set
    /// [`max_queue`](Self::max_queue) or [`wait_for_replicas`](Self::wait_for_replicas).
    pub fn acquire_fair(self) -> impl Future<Output = Result<Guard<M>, Error>> + Send {
        self.acquire(When::InTurn).map_ok(|guard| match guard {
            Some(guard) => guard,
            // Only a try gets "busy".
            None => unreachable!("a queued request was answered \"busy\""),
        })
    }

    /// Tries the lock: acquires it if nobody who conflicts holds it and nobody waits, and returns `None` otherwise.
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
    /// A try never overtakes a waiter, unless its owner is already inside or the [`Policy`](crate::Policy) prefers its mode.
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the lock in the background if the server granted it.
    ///
    /// # Errors
    /// Those of [`acquire_fair`](Self::acquire_fair). A server that does not reply is an error and not a "no".
    pub fn try_acquire(self) -> impl Future<Output = Result<Option<Guard<M>>, Error>> + Send {
        self.acquire(When::Now)
    }

    /// Waits in the queue for at most this time, and returns `None` if there was no grant in time. Zero is
    /// [`try_acquire`](Self::try_acquire); [`Duration::MAX`] waits without limit. The call waits for the server's first
    /// reply even if that takes longer, as `try_acquire` does.
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
    /// Those of [`acquire_fair`](Self::acquire_fair). When the time ends, the request leaves the queue.
    ///
    /// # Errors
    /// Those of [`acquire_fair`](Self::acquire_fair). [`Error::Unavailable`] if the server does not reply at all.
    pub fn try_acquire_for(self, limit: Duration) -> impl Future<Output = Result<Option<Guard<M>>, Error>> + Send {
        self.acquire(if limit.is_zero() {
            When::Now
        } else {
            When::Within(limit)
        })
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "its future would have the request twice, and a grant to a crowd reads and writes all their futures"
    )]
    pub(crate) fn acquire(mut self, when: When) -> impl Future<Output = Result<Option<Guard<M>>, Error>> + Send {
        async move {
            // Permits have no owner.
            self.owner = self
                .owner
                .or_else(|| Owner::current().filter(|_| self.permits.is_none()));
            self.check()?;
            runtime::check_timers()?;
            let mut wait = Wait::begin(&self.lock, M::LABEL, self.permits, when);
            // `Instrument` would keep a second span. The guard is made outside of the span, because the hold is not part
            // of the wait.
            let waited = {
                let mut waiting = pin!(self.wait(when, &wait));
                poll_fn(|context| wait.span.in_scope(|| waiting.as_mut().poll(context))).await
            };
            let Some((attempt, grant)) = wait.noted(waited)? else {
                return Ok(None);
            };
            wait.granted(grant);
            let hold = Hold::begin(grant.at, self.lock, M::LABEL, self.permits, grant.token);
            Ok(Some(Guard::of(
                attempt,
                self.handle,
                hold,
                grant.token,
                self.replication,
            )))
        }
    }

    async fn wait(&self, when: When, wait: &Wait) -> Result<Option<(Attempt, Grant)>, Error> {
        let (mut ticket, mut now) = (None, wait.begun);
        loop {
            let mut attempt = self.attempt(when.after(now.saturating_duration_since(wait.begun)), ticket, now);
            let asked = attempt.ask(now).await?;
            if let (None, Some(progress)) = (&asked, &self.progress) {
                progress.tell(&attempt).await;
            }
            let outcome = match (asked, when) {
                (Some(outcome), _) => outcome,
                (None, When::Within(limit)) => {
                    let left = limit.saturating_sub(clock::since(wait.begun));
                    // In a box, so that the futures of other callers do not grow.
                    match Box::pin(self.wait_for(&mut attempt, left)).await? {
                        Some(outcome) => outcome,
                        None => return Ok(None),
                    }
                }
                (None, When::Now | When::InTurn) => attempt.wait().await?,
            };
            match outcome {
                Attempted::Granted(mut grant) => {
                    let counts = match self.replication {
                        None => true,
                        Some(wish) => {
                            // In a box, so that the futures of other callers do not grow.
                            let counts = Box::pin(confirm::counts(&mut attempt, wish)).await?;
                            grant.at = clock::now();
                            counts
                        }
                    };
                    if counts {
                        return Ok(Some((attempt, grant)));
                    }
                    wait.requeued(&self.lock);
                    // The first number gives the same place back.
                    ticket = ticket.or(Some(grant.place));
                }
                Attempted::Busy => return Ok(None),
                // An upgrade ends when the server does not know it, because its read hold may have ended: it would be a
                // plain writer then.
                Attempted::AskAgain(_) if self.further => {
                    return Err(Error::Lost {
                        lock: self.lock.name.to_string(),
                        reason: LostReason::UnknownToServer,
                    });
                }
                Attempted::AskAgain(place) => {
                    wait.requeued(&self.lock);
                    ticket = ticket.or(place);
                }
            }
            now = clock::now();
        }
    }

    /// `None`: the time is over.
    async fn wait_for(&self, attempt: &mut Attempt, left: Duration) -> Result<Option<Attempted>, Error> {
        let begun = clock::now();
        if let Some(outcome) = attempt.wait_for(left).await {
            return outcome.map(Some);
        }
        if let Some(leaver) = &self.leaver {
            leaver.get_or_init(|| (Arc::clone(attempt.request()), begun + left));
        }
        Ok(None)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.lock.check_name()?;
        check_lease(&self.lock.name, self.lease)?;
        if let Some(max_hold) = self.max_hold {
            check_max_hold(&self.lock.name, max_hold)?;
        }
        let most = self.max_hold.unwrap_or(MOST_LEASE).min(MOST_LEASE);
        check_duration(&self.lock.name, "hold_at_least", self.at_least, Duration::ZERO, most)?;
        check_lock_delay(&self.lock.name, self.lock_delay)?;
        if let Some(replication) = self.replication {
            replication.check(&self.lock.name)?;
        }
        check_permits(&self.lock.name, self.admission, self.permits.unwrap_or(1))?;
        match self.owner {
            Some(owner) if (owner.is_anonymous() || owner.is_nobody()) && !self.further => Err(Error::InvalidOwner {
                lock: self.lock.name.to_string(),
                owner,
            }),
            _ => Ok(()),
        }
    }

    /// Registers a request under a new name before the client sends anything, so that no message comes too early.
    fn attempt(&self, when: When, ticket: Option<u64>, now: Instant) -> Attempt {
        let shared = self.handle.shared();
        let number = shared.next_number();
        let owner = self.owner.map(|owner| owner.name());
        let name = match self.permits {
            None => RequestName::write(M::MODE, shared.id, number, owner.as_deref()),
            Some(weight) => RequestName::write_weighted(shared.id, number, weight),
        };
        let claim = Claim::new(self.lease, self.max_hold.unwrap_or(Duration::MAX), now);
        let claim = claim.keeping(self.at_least, self.lock_delay);
        let request = Arc::new(Request::new(
            number,
            name,
            Arc::clone(&self.lock),
            self.admission,
            claim,
        ));
        shared.registry.insert(Arc::clone(&request), now);
        let origin = match (self.upgraded, ticket) {
            (Some(token), _) => Origin::Upgrade(token),
            (None, Some(ticket)) => Origin::Requeued(ticket),
            (None, None) => Origin::New,
        };
        let attempt = Attempt::new(Arc::clone(&self.handle), request, when, origin, self.lease);
        attempt.max_queue(self.max_queue)
    }
}

impl Acquire<Permits> {
    pub(crate) fn weighing(mut self, permits: u32) -> Self {
        self.permits = Some(permits);
        self
    }
}

impl Acquire<Read> {
    /// Replaces a write hold with that token, which is certain until then, by a read hold. `None`: the server does not
    /// know the write hold.
    pub(crate) async fn instead_of(
        self,
        from: &Request,
        token: u64,
        until: Instant,
    ) -> Result<Option<ReadGuard>, Error> {
        let attempt = self.attempt(When::InTurn, None, clock::now());
        let kept = from.claim().kept_until();
        attempt.request().claim().keep_on(kept);
        let Some(Grant { token, at, .. }) = attempt.take_over(from, token, until).await? else {
            return Ok(None);
        };
        let hold = Hold::begin(at, self.lock, Read::LABEL, None, token);
        Ok(Some(Guard::of(attempt, self.handle, hold, token, self.replication)))
    }
}
