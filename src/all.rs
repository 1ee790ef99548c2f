//! Several locks in one guard.
//!
//! The client acquires the locks one after the other, in the order of their names' bytes. All who acquire in one order
//! never wait in a circle, so they cannot deadlock. A single script for all locks would need them in one slot of a
//! cluster, and would deadlock with code that acquires one lock inside another.

use crate::acquire::{Acquire, Leaver};
use crate::engine::runtime;
use crate::engine::session::Handle;
use crate::guard::Guard;
use crate::rw_lock::RwLock;
use crate::semaphore::Semaphore;
use crate::types::clock;
use crate::types::error::{Error, LostReason};
use crate::types::limits::{call_limit, check_max_hold};
use crate::types::mode::{Access, When};
use crate::types::owner::Owner;
use crate::types::token::FencingToken;
use futures::future::{BoxFuture, FutureExt as _, join, join_all};
use futures::stream::FuturesUnordered;
use std::fmt;
use std::future::{Future, IntoFuture, pending};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;

/// A hold on one of the locks, to read or to write, or some permits.
type Hold = Guard<()>;

/// What is asked of one of the locks.
#[derive(Clone, Copy, Debug)]
enum Share {
    Read,
    Permits(u32),
    Write,
}

impl Share {
    /// Of two shares of one lock the stronger one counts.
    fn strength(self) -> u32 {
        match self {
            Self::Read => 0,
            Self::Permits(permits) => permits,
            Self::Write => u32::MAX,
        }
    }
}

/// A request for one of the locks, checked and not yet sent.
type Ask = Box<dyn FnOnce(When) -> BoxFuture<'static, Result<Option<Hold>, Error>> + Send>;

/// A request for several locks that the client has not sent yet: see [`Client::all`](crate::Client::all).
///
/// One owner acquires all locks: the one of [`with_owner`](Self::with_owner), else that of the handles, else that of the
/// [`scope`](Owner::scope), else a new one. So a function that gets `lock.with_owner(&all.owner())` reenters. A lock
/// that is named twice is acquired once: to write if one of the two was to write, else with the most permits. No locks at
/// all are a guard of nothing.
#[must_use = "nothing is asked of the server until one of the acquire methods is awaited"]
pub struct AcquireAll {
    handle: Arc<Handle>,
    locks: Vec<(RwLock, Share)>,
    owner: Option<Owner>,
    lease: Duration,
    max_hold: Option<Duration>,
    lock_delay: Duration,
    max_queue: Option<usize>,
}

impl AcquireAll {
    pub(crate) fn new(handle: Arc<Handle>) -> Self {
        Self {
            lease: handle.shared().lease,
            lock_delay: handle.session.lock_delay,
            handle,
            locks: Vec::new(),
            owner: None,
            max_hold: None,
            max_queue: None,
        }
    }

    /// Adds a lock to write.
    pub fn write(mut self, lock: &RwLock) -> Self {
        self.locks.push((lock.clone(), Share::Write));
        self
    }

    /// Adds a lock to read.
    pub fn read(mut self, lock: &RwLock) -> Self {
        self.locks.push((lock.clone(), Share::Read));
        self
    }

    /// Adds so many permits of a semaphore, at least 1 and at most the limit. They belong to no owner, so nobody reenters
    /// them.
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client) -> Result<(), fairlock::Error> {
    /// let (gpus, data) = (client.semaphore("gpu", 4), client.rw_lock("data:7"));
    /// let all = client.all().permits(&gpus, 2).write(&data).acquire_fair().await?;
    /// println!("with token {:?}", all.fencing_token(&data)); // that of the permits: fencing_token(gpus.rw_lock())
    /// all.release().await
    /// # }
    /// ```
    pub fn permits(mut self, semaphore: &Semaphore, permits: u32) -> Self {
        self.locks.push((semaphore.rw_lock().clone(), Share::Permits(permits)));
        self
    }

    /// Sets the owner of all holds, which reenters what it holds already: see [`Owner`].
    ///
    /// An owner that holds a lock and then acquires others with smaller names does not acquire in order. Two such owners
    /// can deadlock, as with single locks.
    pub fn with_owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(*owner);
        self
    }

    /// Sets the lease of each request: see [`Acquire::lease`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Bounds the hold, as [`Acquire::max_hold`] does. The time counts from when the caller gets the guard of all.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Has the servers wait for this time before others enter a lock of a set that was lost: see [`Acquire::lock_delay`].
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
        self
    }

    /// Refuses to queue for any of the locks behind so many waiters or more: see [`Acquire::max_queue`].
    pub fn max_queue(mut self, waiters: usize) -> Self {
        self.max_queue = Some(waiters);
        self
    }

    /// Waits for each lock in turn: first come, first served.
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client) -> Result<(), fairlock::Error> {
    /// let (from, to) = (client.rw_lock("account:7"), client.rw_lock("account:3"));
    /// let rates = client.rw_lock("rates");
    /// let all = client.all().write(&from).write(&to).read(&rates).acquire_fair().await?;
    /// // ... only we are here, whatever order others name these locks in ...
    /// all.release().await
    /// # }
    /// ```
    ///
    /// # Fairness
    /// That of [`Acquire::acquire_fair`] for each lock. The request enters the queue of a lock when it holds the locks
    /// before it. So a wait for several locks is the sum of their waits, and those who come later may meanwhile enter
    /// the locks that it has not reached.
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases in the background what it holds, and leaves the queue.
    ///
    /// # Errors
    /// Those of [`Acquire::acquire_fair`] for each lock. [`Error::Lost`], at once, if one of the locks is lost while the
    /// request waits for the next. [`Error::NotTogether`], before the client sends anything, if the handles are of
    /// several clients or owners, or name a lock with two policies or bounds. After an error the client releases
    /// everything in the background.
    pub async fn acquire_fair(self) -> Result<AllGuard, Error> {
        match self.acquire(When::InTurn).await? {
            Some(guard) => Ok(guard),
            // Only a try gets "busy".
            None => unreachable!("a queued request was answered \"busy\""),
        }
    }

    /// Tries each lock in turn, and returns `None` if one of them is busy. By then the client has released the others,
    /// so another try does not meet them. It waits for the confirmations as long as for two calls, then they come in the
    /// background.
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client, from: fairlock::RwLock, to: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// match client.all().write(&from).write(&to).try_acquire().await? {
    ///     Some(all) => all.release().await?,
    ///     None => println!("somebody else is at one of them"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Fairness
    /// That of [`Acquire::try_acquire`](crate::Acquire::try_acquire).
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases in the background what it holds.
    ///
    /// # Errors
    /// Those of [`acquire_fair`](Self::acquire_fair).
    pub async fn try_acquire(self) -> Result<Option<AllGuard>, Error> {
        self.acquire(When::Now).await
    }

    /// Waits for all locks together for at most this time, and returns `None` if they were not granted in time. By then
    /// the client has released what it held and has left the queue in which it waited. It waits for the confirmations until
    /// two calls' limits after the time, then they come in the background. When the time is over, the client tries each
    /// lock that is left without waiting. [`Duration::MAX`] waits without limit.
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client, from: fairlock::RwLock, to: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// use std::time::Duration;
    /// let asking = client.all().write(&from).write(&to);
    /// let Some(all) = asking.try_acquire_for(Duration::from_secs(5)).await? else {
    ///     return Ok(()); // not within five seconds
    /// };
    /// all.release().await
    /// # }
    /// ```
    ///
    /// # Fairness and cancel safety
    /// Those of [`acquire_fair`](Self::acquire_fair).
    ///
    /// # Errors
    /// Those of [`acquire_fair`](Self::acquire_fair). [`Error::Unavailable`] if the server does not reply at all.
    pub async fn try_acquire_for(self, limit: Duration) -> Result<Option<AllGuard>, Error> {
        self.acquire(When::Within(limit)).await
    }

    async fn acquire(self, when: When) -> Result<Option<AllGuard>, Error> {
        runtime::check_timers()?;
        let (begun, lease, max_hold) = (clock::now(), self.lease, self.max_hold);
        let (handle, leaver) = (Arc::clone(&self.handle), Leaver::default());
        let (owner, asks) = self.plan(&leaver)?;
        let mut all = AllGuard {
            owner,
            holds: Vec::with_capacity(asks.len()),
        };
        // Kept from lock to lock: new ones for each lock would take quadratic time.
        let mut losses: FuturesUnordered<BoxFuture<'static, usize>> = FuturesUnordered::new();
        for ask in asks {
            let asking = ask(left_of(when, clock::since(begun)));
            let next = tokio::select! {
                biased;
                // The request that waits is dropped, and so is all that is held.
                Some(at) = losses.next() => return Err(all.holds[at].loss()),
                next = asking => next?,
            };
            let Some(hold) = next else {
                all.give_back(&leaver, &handle, lease).await;
                return Ok(None);
            };
            let (request, at) = (Arc::clone(hold.request()), all.holds.len());
            losses.push(Box::pin(async move {
                request.lost(clock::now, clock::sleep_until).await;
                at
            }));
            all.holds.push(hold);
        }
        if let Some(max_hold) = max_hold {
            // All end at one moment, so that whoever is told of the first loss may rely on the others.
            let now = clock::now();
            all.holds.iter().for_each(|hold| hold.limit(now, max_hold));
        }
        Ok(Some(all))
    }

    /// Everything that can be refused is refused here, before the client sends anything.
    fn plan(mut self, leaver: &Leaver) -> Result<(Owner, Vec<Ask>), Error> {
        let owner = self.common_owner()?.or_else(Owner::current).unwrap_or_else(Owner::new);
        // The stronger one first, so that the weaker of two is dropped.
        self.locks.sort_by(|(one, share), (other, other_share)| {
            let by_share = other_share.strength().cmp(&share.strength());
            one.name().cmp(other.name()).then(by_share)
        });
        let mut asks: Vec<(&RwLock, Ask)> = Vec::with_capacity(self.locks.len());
        for (lock, share) in &self.locks {
            if let Some(max_hold) = self.max_hold {
                check_max_hold(lock.name(), max_hold)?;
            }
            let owned = lock.with_owner(&owner);
            let ask = match *share {
                Share::Read => self.ask(owned.read(), leaver)?,
                Share::Permits(permits) => self.ask(owned.permits(permits), leaver)?,
                Share::Write => self.ask(owned.write(), leaver)?,
            };
            match asks.last().filter(|(earlier, _)| earlier.name() == lock.name()) {
                Some((earlier, _)) if !earlier.is_admitted_as(lock) => {
                    return Err(not_together(lock, "it is named with two policies or bounds"));
                }
                Some(_) => {}
                None => asks.push((lock, ask)),
            }
        }
        Ok((owner, asks.into_iter().map(|(_, ask)| ask).collect()))
    }

    /// A request for one of the locks, with what is set for all.
    fn ask<M: Access>(&self, acquire: Acquire<M>, leaver: &Leaver) -> Result<Ask, Error> {
        let mut acquire = acquire.telling(leaver).lease(self.lease).lock_delay(self.lock_delay);
        if let Some(waiters) = self.max_queue {
            acquire = acquire.max_queue(waiters);
        }
        acquire.check()?;
        Ok(Box::new(move |when| {
            async move { Ok(acquire.acquire(when).await?.map(Guard::of_any_mode)) }.boxed()
        }))
    }

    fn common_owner(&self) -> Result<Option<Owner>, Error> {
        let mut common = self.owner;
        for (lock, _) in &self.locks {
            let refused = |why| not_together(lock, why);
            if !lock.is_of(&self.handle) {
                return Err(refused("its handle is of another client"));
            }
            match (lock.owner(), common) {
                (Some(owner), Some(common)) if owner != common => {
                    return Err(refused("its handle is of another owner"));
                }
                (owner, _) => common = common.or(owner),
            }
        }
        Ok(common)
    }
}

fn not_together(lock: &RwLock, why: &'static str) -> Error {
    let lock = lock.name().to_owned();
    Error::NotTogether { lock, why }
}

/// How long the request for one lock may wait. One limit is for all locks.
fn left_of(when: When, waited: Duration) -> When {
    match when {
        When::Within(limit) => match limit.saturating_sub(waited) {
            Duration::ZERO => When::Now,
            left => When::Within(left),
        },
        when => when,
    }
}

impl IntoFuture for AcquireAll {
    type Output = Result<AllGuard, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        self.acquire_fair().boxed()
    }
}

impl fmt::Debug for AcquireAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let locks = self.locks.iter().map(|(lock, share)| (lock.name(), share));
        f.debug_struct("AcquireAll")
            .field("locks", &locks.collect::<Vec<_>>())
            .field("owner", &self.owner)
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .finish_non_exhaustive()
    }
}

/// Holds on several locks, of one owner. The guard is lost as soon as one of the holds is: see [`Guard`].
///
/// After a loss the client keeps the other holds until you release or drop the guard, because the work may still be under
/// way. A drop releases all of them in the background.
#[must_use = "the locks are released as soon as their guard is dropped"]
pub struct AllGuard {
    owner: Owner,
    /// In the order of their names.
    holds: Vec<Hold>,
}

impl AllGuard {
    /// Returns the fencing token of one of the locks, or `None` if the guard does not hold a lock of that name. The tokens
    /// of several locks do not compare: send each to its own resource.
    #[must_use]
    pub fn fencing_token(&self, lock: &RwLock) -> Option<FencingToken> {
        let at = self.holds.binary_search_by(|hold| hold.name().cmp(lock.name()));
        at.ok().map(|at| self.holds[at].fencing_token())
    }

    /// Returns the owner of all holds but permits, which have none. Requests of this owner reenter.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Whether all locks are certainly still held, without I/O: see [`Guard::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.holds.iter().all(Guard::is_held)
    }

    /// Resolves when one of the holds is lost, and returns the reason.
    ///
    /// # Cancel safety
    /// You may drop the future and call again at any time.
    pub async fn lost(&self) -> LostReason {
        self.first_loss().await.1
    }

    async fn first_loss(&self) -> (&Hold, LostReason) {
        let losses = self.holds.iter().map(async |hold| (hold, hold.lost().await));
        match losses.collect::<FuturesUnordered<_>>().next().await {
            Some(loss) => loss,
            None => pending().await,
        }
    }

    /// Resolves when another owner waits for one of the locks, at once if one waits already: see [`Guard::contended`].
    ///
    /// # Cancel safety
    /// You may drop the future and call again. A call that follows a dropped one reads each status once more.
    ///
    /// # Errors
    /// Those of [`Guard::contended`], of the first lock that has one.
    pub async fn contended(&self) -> Result<(), Error> {
        let waits = self.holds.iter().map(Guard::contended);
        match waits.collect::<FuturesUnordered<_>>().next().await {
            Some(contended) => contended,
            None => pending().await,
        }
    }

    /// Runs a job while all locks are held. If one of them is lost first, `while_held` drops the job at its next await. What
    /// the job did before stays done, so make its writes one transaction, with the token of each lock.
    ///
    /// ```no_run
    /// # async fn example(all: fairlock::AllGuard) -> Result<(), fairlock::Error> {
    /// let moved = all.while_held(async { /* ... */ 3 }).await?;
    /// all.release().await
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If you drop the future, the job is dropped and the locks stay held.
    ///
    /// # Errors
    /// [`Error::Lost`] with the name of the lock that was lost before the job was done.
    pub async fn while_held<F: Future>(&self, job: F) -> Result<F::Output, Error> {
        tokio::select! {
            biased;
            (lost, reason) = self.first_loss() => Err(lost.lost_because(reason)),
            done = job => Ok(done),
        }
    }

    /// Releases all locks and waits for the server's confirmations. The client sends the releases at once, backwards.
    ///
    /// # Cancel safety
    /// If you drop the future at any point, the client releases the locks all the same, in the background.
    ///
    /// # Errors
    /// Those of [`Guard::release`], after all releases are done: the first [`Error::Lost`] in the order of the names, or
    /// else the first other error.
    pub async fn release(self) -> Result<(), Error> {
        let releases = join_all(self.holds.into_iter().rev().map(Guard::release)).await;
        let mut errors: Vec<_> = releases.into_iter().rev().filter_map(Result::err).collect();
        let loss = errors.iter().position(|error| matches!(error, Error::Lost { .. }));
        match errors.is_empty() {
            true => Ok(()),
            false => Err(errors.swap_remove(loss.unwrap_or(0))),
        }
    }

    /// Releases all, because one of the locks was busy, and waits until the request that waited for it has left: as long as
    /// for two calls after the time limit, because the caller may try again at once.
    async fn give_back(self, leaver: &Leaver, handle: &Handle, lease: Duration) {
        let given = join_all(self.holds.into_iter().rev().map(Guard::give_back));
        let out = async {
            if let Some((request, _)) = leaver.get() {
                handle.shared().registry.out_of(request).await;
            }
        };
        let now = clock::now();
        let until = leaver.get().map_or(now, |(_, over)| *over) + call_limit(lease) * 2;
        // What is not confirmed by then is released in the background.
        let _ = timeout(until.saturating_duration_since(now), join(given, out)).await;
    }
}

impl fmt::Debug for AllGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let locks = self.holds.iter().map(|hold| (hold.name(), hold.fencing_token()));
        f.debug_struct("AllGuard")
            .field("locks", &locks.collect::<Vec<_>>())
            .field("owner", &self.owner)
            .field("is_held", &self.is_held())
            .finish()
    }
}

#[cfg(test)]
mod tests;
