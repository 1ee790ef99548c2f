//! A request to a quorum before it is sent, and how the caller waits for its end.

use super::ballot::{Ballot, Drivers, Wish, Work};
use super::guard::QuorumGuard;
use super::members::Members;
use super::tally::{End, Phase};
use crate::engine::runtime;
use crate::observe::{Hold, Wait};
use crate::protocol::key::Lock;
use crate::types::clock;
use crate::types::error::{Error, LostReason, timed_out};
use crate::types::limits::{LEAST_LEASE, call_limit, check_duration};
use crate::types::mode::{Access, Admission, Grant, GrantVia, Policy, When};
use crate::types::owner::Owner;
use futures::stream::StreamExt;
use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::mem::forget;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// A request to the servers of a quorum that the client has not sent yet. Set its options, then acquire.
#[must_use = "nothing is asked of the servers until one of the acquire methods is awaited"]
pub struct QuorumAcquire<M> {
    members: Arc<Members>,
    lock: Arc<Lock>,
    owner: Option<Owner>,
    policy: Policy,
    lease: Duration,
    max_hold: Option<Duration>,
    mode: PhantomData<fn() -> M>,
}

impl<M> QuorumAcquire<M> {
    pub(super) fn new(members: Arc<Members>, lock: Arc<Lock>, owner: Option<Owner>, policy: Policy) -> Self {
        Self {
            lease: members.lease,
            members,
            lock,
            owner,
            policy,
            max_hold: None,
            mode: PhantomData,
        }
    }

    /// Sets the lease of this request: at least 100 ms, at most the quorum's longest lease. The default is that of
    /// [`QuorumBuilder::lease`](crate::QuorumBuilder::lease).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Bounds the hold. The time counts from when the caller gets the guard. After it the guard is lost and others
    /// enter. There is no limit unless set; at least 1 ms.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }
}

impl<M: Access> QuorumAcquire<M> {
    /// Waits for the lock.
    ///
    /// ```no_run
    /// # async fn example(quorum: fairlock::Quorum) -> Result<(), fairlock::Error> {
    /// let guard = quorum.rw_lock("invoice:42").write().acquire_fair().await?;
    /// // ... only we are here ...
    /// guard.release().await
    /// # }
    /// ```
    ///
    /// # Fairness
    /// A request that has to wait takes its place at a majority of the servers by its second round trip, and mostly by its
    /// first. Nobody who asks after that and conflicts enters before it, unless its places are lost. Requests whose first two
    /// round trips overlap enter in some order, one after the other, because no server sees all of them arrive.
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the request at all servers, in the background. A new call starts at the
    /// end of the queue.
    ///
    /// A future that nobody polls and nobody drops keeps the votes whose replies it has seen, and the lock if these are a
    /// majority, as a future of one server does. If it was not polled since a majority answered, it agrees on no place:
    /// to others the servers of its votes are then as good as lost.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no majority answers within one lease, or if the client's runtime has ended. A waiter that
    /// has its places waits on while servers are away. [`Error::Server`], [`Error::PolicyMismatch`],
    /// [`Error::UpgradeConflict`] and [`Error::OwnerWaiting`] if so many servers refuse at a time that no majority is left, the
    /// last two also if a majority has answered before, one refuses for a lease, and no majority keeps the request;
    /// [`Error::Lost`] if an operator evicts the request at so many servers, or if the hold ended before the future was
    /// polled again;
    /// [`Error::Shutdown`] after [`Quorum::shutdown`](crate::Quorum::shutdown); [`Error::InvalidName`],
    /// [`Error::InvalidDuration`], [`Error::InvalidOwner`], [`Error::Unsupported`] (with [`Policy::Bounded`]) or
    /// [`Error::Runtime`] before the client sends anything.
    pub async fn acquire_fair(self) -> Result<QuorumGuard<M>, Error> {
        match self.acquire(When::InTurn).await? {
            Some(guard) => Ok(guard),
            // Only a try gets "busy".
            None => unreachable!("a queued request was answered \"busy\""),
        }
    }

    /// Tries the lock, and returns `None` unless a majority grants it at once. Of several tries that race for a free
    /// lock, all may get `None`. A majority must have answered before. If the answer of a server is needed and does not
    /// come, the try ends after a third of the lease, at least 100 ms and at most 2 s.
    ///
    /// # Cancel safety
    /// That of [`acquire_fair`](Self::acquire_fair).
    ///
    /// # Errors
    /// Those of [`acquire_fair`](Self::acquire_fair). Without answers of a majority the error is
    /// [`Error::Unavailable`].
    pub async fn try_acquire(self) -> Result<Option<QuorumGuard<M>>, Error> {
        self.acquire(When::Now).await
    }

    /// Waits for at most this time, and returns `None` if the lock was not granted in time. Zero is
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Fairness and cancel safety
    /// Those of [`acquire_fair`](Self::acquire_fair). When the time ends, the request leaves all queues.
    ///
    /// # Errors
    /// Those of [`acquire_fair`](Self::acquire_fair). [`Error::Unavailable`] if no majority answers within that time or one
    /// lease, whichever is shorter, but not before a third of the lease, at least 100 ms and at most 2 s.
    pub async fn try_acquire_for(self, limit: Duration) -> Result<Option<QuorumGuard<M>>, Error> {
        if limit.is_zero() {
            return self.try_acquire().await;
        }
        self.acquire(When::Within(limit)).await
    }

    async fn acquire(mut self, when: When) -> Result<Option<QuorumGuard<M>>, Error> {
        self.owner = self.owner.or_else(Owner::current);
        self.check()?;
        runtime::check_timers()?;
        let mut wait = Wait::begin(&self.lock, M::LABEL, None, when);
        let wish = Wish {
            lock: Arc::clone(&self.lock),
            mode: M::MODE,
            admission: Admission {
                policy: self.policy,
                limit: 0,
            },
            owner: self.owner,
            lease: self.lease,
            max_hold: self.max_hold.unwrap_or(Duration::MAX),
            when,
        };
        let mut open = Open::new(Ballot::new(self.members, wish));
        let decided = {
            let mut waiting = pin!(open.decided(when, wait.begun));
            poll_fn(|context| wait.span.in_scope(|| waiting.as_mut().poll(context))).await
        };
        let Some(token) = wait.noted(decided)? else {
            return Ok(None);
        };
        let via = if open.waited {
            GrantVia::Message
        } else {
            GrantVia::Reply
        };
        let (at, heard) = (clock::now(), None);
        wait.granted(Grant {
            token,
            place: token,
            at,
            via,
            heard,
        });
        let (ballot, work) = open.keep();
        ballot.observe(Hold::begin(at, self.lock, M::LABEL, None, token));
        Ok(Some(QuorumGuard::new(ballot, work, token)))
    }

    fn check(&self) -> Result<(), Error> {
        let name = &self.lock.name;
        self.lock.check_name()?;
        check_duration(name, "lease", self.lease, LEAST_LEASE, self.members.longest_lease)?;
        if let Some(max_hold) = self.max_hold {
            check_duration(name, "max_hold", max_hold, Duration::from_millis(1), Duration::MAX)?;
        }
        if let Policy::Bounded = self.policy {
            return Err(Error::Unsupported {
                lock: name.to_string(),
                what: "a bound on readers",
                remedy: "a majority of servers cannot count permits; use max_readers on one server",
            });
        }
        match self.owner {
            Some(owner) if owner.is_anonymous() || owner.is_nobody() => Err(Error::InvalidOwner {
                lock: name.to_string(),
                owner,
            }),
            _ if self.members.is_closed() => Err(Error::Shutdown { lock: name.to_string() }),
            _ => Ok(()),
        }
    }
}

/// A ballot whose caller still waits. If the caller leaves, the ballot is released.
struct Open {
    ballot: Option<Arc<Ballot>>,
    drivers: Option<Drivers>,
    work: Option<AbortHandle>,
    waited: bool,
}

impl Open {
    fn new(ballot: Arc<Ballot>) -> Self {
        Self {
            drivers: Some(ballot.drivers()),
            ballot: Some(ballot),
            work: None,
            waited: false,
        }
    }

    /// Waits for the end of the ballot's first phase, and returns the token of the hold. `None`: no majority in time.
    async fn decided(&mut self, when: When, begun: Instant) -> Result<Option<u64>, Error> {
        // Taken by keep() only, which comes later.
        let ballot = Arc::clone(self.ballot.as_ref().expect("an open ballot"));
        let lease = ballot.wish.lease;
        let patience = match when {
            When::Now => Duration::ZERO,
            When::Within(limit) => limit.min(lease),
            When::InTurn => lease,
        };
        let patience = begun + patience.max(call_limit(lease) * 2);
        let limit = match when {
            // A vote that nobody can count yet, or a server that was never reached, must not hold up a try.
            When::Now => Some(patience),
            When::Within(limit) => begun.checked_add(limit),
            When::InTurn => None,
        };
        loop {
            // Created before the look, so that no later change is missed.
            let changed = ballot.changed.notified();
            // Since the hold began this future may not have been polled for longer than the leases.
            ballot.weigh();
            let answered = {
                let mut tally = ballot.tally();
                match &mut tally.phase {
                    Phase::Holds { token, .. } => {
                        let token = *token;
                        tally.limit(clock::now());
                        return Ok(Some(token));
                    }
                    Phase::Over(end) => return ended(&ballot, end),
                    Phase::Asks => {}
                }
                self.waited |= tally.ticket.is_some();
                tally.is_answered()
            };
            let now = clock::now();
            if !answered && patience <= now {
                return Err(Error::of_server(&ballot.wish.lock.name, timed_out()));
            }
            if limit.is_some_and(|limit| limit <= now) && answered {
                return Ok(None);
            }
            if self.waited || !ballot.members.is_at_home() {
                self.work();
            }
            let wake = if answered { limit } else { Some(patience) };
            let mut drivers = self.drivers.as_mut().filter(|drivers| !drivers.is_empty());
            let drivers = poll_fn(|context| match &mut drivers {
                // The caller has moved to another runtime.
                Some(_) if !ballot.members.is_at_home() => Poll::Ready(()),
                Some(drivers) => drivers.poll_next_unpin(context).map(drop),
                None => Poll::Pending,
            });
            let sleep = async {
                match wake {
                    Some(wake) => clock::sleep_until(wake).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = drivers => {}
                () = changed => {}
                () = sleep => {}
            }
        }
    }

    /// From now on a task of the quorum's runtime runs the drivers.
    fn work(&mut self) {
        if let (Some(drivers), Some(ballot)) = (self.drivers.take(), &self.ballot) {
            let work = Work::new(ballot, drivers);
            self.work = Some(ballot.members.spawn(work.run()));
        }
    }

    /// The guard releases the ballot from now on.
    fn keep(mut self) -> (Arc<Ballot>, AbortHandle) {
        self.work();
        let ballot = self.ballot.take().expect("an open ballot");
        // The drivers learn when its `max_hold` ends.
        ballot.changed.notify_waiters();
        let work = self.work.take().expect("a task that was started");
        (ballot, work)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(ballot) = self.ballot.take() {
            if ballot.leave_to_parent() {
                return forget(self.drivers.take());
            }
            ballot.abandon(End::Left);
            if let Some(work) = self.work.take() {
                work.abort();
            }
        }
    }
}

/// What the caller gets of a ballot that ended without a hold.
fn ended(ballot: &Ballot, end: &mut End) -> Result<Option<u64>, Error> {
    let lock = ballot.lock_name();
    match end {
        End::Failed(error) => Err(error.take().unwrap_or(Error::Shutdown { lock })),
        End::Lost(LostReason::Shutdown) | End::Left => Err(Error::Shutdown { lock }),
        End::Lost(reason) => Err(Error::Lost { lock, reason: *reason }),
        End::Busy => Ok(None),
    }
}

impl<M: Access> fmt::Debug for QuorumAcquire<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumAcquire")
            .field("lock", &self.lock.name)
            .field("mode", &M::MODE)
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .finish_non_exhaustive()
    }
}
