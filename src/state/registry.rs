//! The registry: the requests of a client, and how its threads wake each other.
//!
//! The registry is a table behind one mutex and a wake-up for the watchdog. It does no I/O and time is an argument, so
//! loom runs all interleavings (`state/loom`).

use super::claim::Claim;
use super::request::Request;
use super::sync::{AtomicBool, Mutex, MutexGuard, Notify};
use super::table::{Due, FollowUp, NamedOwners, Table};
use crate::protocol::key::Lock;
use crate::protocol::name::RequestName;
use crate::types::error::runtime_ended;
use redis::RedisError;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use tokio::time::Instant;

pub(crate) struct Registry {
    table: Mutex<Table>,
    /// The schedule starts earlier than the watchdog knows.
    wake: Notify,
    closed: AtomicBool,
    /// The client's tasks are gone.
    ended: AtomicBool,
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            table: Mutex::default(),
            wake: Notify::new(),
            closed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No code that can panic runs while it is locked.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, request: Arc<Request>, now: Instant) {
        let earlier = self.table().insert(request, now);
        self.wake_if(earlier);
    }

    /// The server does not have the request any more: wakes the tasks that wait for that.
    pub(crate) fn remove(&self, request: &Request) {
        self.table().remove(request);
    }

    pub(crate) fn knows(&self, state: &str, number: u64) -> bool {
        self.table().get(state, number).is_some()
    }

    /// Whether nobody needs a request any more, and the server need not keep it.
    pub(crate) fn is_done_with(&self, state: &str, number: u64, now: Instant) -> bool {
        let table = self.table();
        table
            .get(state, number)
            .is_some_and(|request| request.claim().is_done_with(now))
    }

    /// Returns another request of the same owner and lock whose claim is like that.
    pub(crate) fn other_of_owner(&self, of: &Request, is: impl Fn(&Claim) -> bool) -> Option<Arc<Request>> {
        self.table().other_of_owner(of, is)
    }

    /// The requests of named owners that wait, and those that their users have.
    pub(crate) fn of_named_owners(&self) -> NamedOwners {
        self.table().of_named_owners()
    }

    /// Takes the locks that are due, with what to do for them, and schedules them again.
    pub(crate) fn take_due(&self, now: Instant) -> Vec<Due> {
        self.table().take_due(now)
    }

    /// Checks a lock then, or earlier.
    pub(crate) fn schedule_check(&self, lock: &Lock, at: Instant) {
        let earlier = self.table().schedule_check(lock, at);
        self.wake_if(earlier);
    }

    /// Checks a lock then, even if this client has no request there.
    pub(crate) fn follow_up(&self, lock: &Arc<Lock>, next: FollowUp) {
        let earlier = self.table().follow_up(lock, next);
        self.wake_if(earlier);
    }

    /// Plans the end of a hold that nothing renews.
    pub(crate) fn schedule_end(&self, request: &Request, at: Instant) {
        let earlier = self.table().schedule_end(request, at);
        self.wake_if(earlier);
    }

    /// A lease of another request ends then: checks whether one of ours enters. Only for a lock with waiters.
    pub(crate) fn schedule_check_if_waiting(&self, lock: &Lock, at: Instant) {
        let earlier = self.table().schedule_check_if_waiting(lock, at);
        self.wake_if(earlier);
    }

    /// Makes every waiter due now, because messages may have been lost.
    pub(crate) fn resync(&self, now: Instant) {
        self.table().resync(now);
        self.wake_if(true);
    }

    /// Makes the grants of these locks due now, because their servers may have forgotten them.
    pub(crate) fn recheck(&self, now: Instant, concerns: impl Fn(&str) -> bool) {
        self.table().recheck(now, concerns);
        self.wake_if(true);
    }

    /// The same as `resync` for some locks.
    #[cfg(feature = "cluster")]
    pub(crate) fn resync_locks<'a>(&self, states: impl IntoIterator<Item = &'a Arc<str>>, now: Instant) {
        let mut table = self.table();
        for state in states {
            table.resync_lock(state, now);
        }
        drop(table);
        self.wake_if(true);
    }

    /// Ends all waits for a lock.
    #[cfg(feature = "cluster")]
    pub(crate) fn refuse(&self, state: &Arc<str>, error: &RedisError) {
        self.table().refuse(state, error);
    }

    /// Whether a message about the lock may be news.
    #[cfg(feature = "cluster")]
    pub(crate) fn is_awaited(&self, state: &Arc<str>) -> bool {
        self.table().is_awaited(state)
    }

    fn wake_if(&self, earlier: bool) {
        if earlier {
            self.wake.notify_one();
        }
    }

    /// The watchdog's pause: until the next lock is due, or the schedule has changed.
    pub(crate) async fn something_due<S: Future<Output = ()>>(&self, sleep_until: impl FnOnce(Instant) -> S) {
        let armed = self.table().arm();
        let Some(at) = armed else {
            return self.wake.notified().await;
        };
        tokio::select! {
            biased;
            () = self.wake.notified() => {}
            () = sleep_until(at) => {}
        }
    }

    /// The requests for a lock that a message names, in its order.
    pub(crate) fn named<'a>(
        &self,
        state: &str,
        names: impl Iterator<Item = Option<RequestName<'a>>>,
    ) -> Vec<Option<Arc<Request>>> {
        self.table().named(state, names)
    }

    /// Waits until a dropped request has been released, or nobody is left to release it.
    pub(crate) async fn out_of(&self, former: &Request) {
        loop {
            // Created before the check, as in Request::outcome().
            let released = former.changed.notified();
            if !self.knows(&former.lock.state, former.number) || self.has_ended() {
                return;
            }
            released.await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Ends all requests, and returns them. A request that registers later finds the registry closed.
    pub(crate) fn close(&self, now: Instant) -> Vec<Arc<Request>> {
        self.closed.store(true, Ordering::SeqCst);
        let requests: Vec<_> = self.table().all().cloned().collect();
        for request in &requests {
            request.change(|claim| claim.shut_down(now));
            request.changed.notify_waiters();
        }
        requests
    }

    /// Whether the client's tasks are gone, so that nothing renews, releases or receives any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Makes a call of the client, unless its tasks are gone. If they go meanwhile, the error says that, and not how the
    /// connection ended.
    pub(crate) async fn unless_ended<T>(
        &self,
        call: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        if self.has_ended() {
            return Err(runtime_ended());
        }
        let reply = call.await;
        reply.map_err(|error| if self.has_ended() { runtime_ended() } else { error })
    }

    /// The client's tasks are gone: ends all waits and wakes all tasks. Holds last as long as their proofs. A request
    /// that registers later finds the mark with its first call. Returns whether anybody waited or held.
    pub(crate) fn end(&self) -> bool {
        self.ended.store(true, Ordering::SeqCst);
        let requests: Vec<_> = self.table().all().cloned().collect();
        let is_used = requests.iter().any(|request| request.claim().ended().is_none());
        for request in &requests {
            request.change(|claim| claim.fail_unless_held(runtime_ended()));
            request.changed.notify_waiters();
        }
        is_used
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests {
    use super::*;
    use crate::protocol::reply::Answer;
    use crate::state::claim::Claim;
    use crate::state::claim::EndedBy;
    use crate::types::mode::Admission;
    use futures::FutureExt;
    use std::pin::pin;
    use std::time::Duration;

    #[test]
    fn nobody_waits_for_a_release_that_nobody_is_left_to_send() {
        let (registry, now) = (Registry::new(), Instant::now());
        let lock = Arc::new(Lock::new("p", "a".into()));
        let claim = Claim::new(Duration::from_secs(9), Duration::MAX, now);
        let request = Arc::new(Request::new(1, "w0a:1".to_owned(), lock, Admission::FIFO, claim));
        registry.insert(Arc::clone(&request), now);
        let mut out = pin!(registry.out_of(&request));
        assert_eq!(out.as_mut().now_or_never(), None, "the releaser has it");
        registry.end();
        assert_eq!(out.now_or_never(), Some(()), "the releaser is gone");
    }

    #[test]
    fn what_a_named_owner_has_and_not_what_it_has_left_is_known_beside_its_wait() {
        let (registry, now) = (Registry::new(), Instant::now());
        let lease = Duration::from_secs(9);
        let request = |number: u64, name: &str, lock: &str| {
            let lock = Arc::new(Lock::new("p", lock.into()));
            let claim = Claim::new(lease, Duration::MAX, now);
            let request = Arc::new(Request::new(number, name.to_owned(), lock, Admission::FIFO, claim));
            registry.insert(Arc::clone(&request), now);
            request
        };
        let (held, waiting) = (request(1, "w0a:1:me", "a"), request(2, "w0a:2:me", "b"));
        let anonymous = request(3, "w0a:3", "b");
        let queued = Answer::Queued {
            ticket: 7,
            seq: 7,
            ahead: 0,
        };
        for request in [&waiting, &anonymous] {
            request.claim().on_reply(now, queued);
        }
        held.claim().on_reply(now, Answer::Granted { token: 5 });
        let known = || -> [Vec<u64>; 2] {
            let named = registry.of_named_owners();
            [named.waiting, named.held].map(|requests| requests.iter().map(|request| request.number).collect())
        };
        assert_eq!(known(), [vec![2], vec![1]], "it holds, and waits");
        held.claim().end(EndedBy::Released);
        assert_eq!(
            known(),
            [vec![2], vec![]],
            "it has left, though the server may still know its hold"
        );
    }
}
