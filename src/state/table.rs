//! The table: every request of a client, and when to renew which lock. It does no I/O, and time is an argument.

use super::claim::Claim;
use super::request::Request;
use crate::protocol::key::Lock;
use crate::protocol::name::RequestName;
use crate::protocol::waits::named_owner;
#[cfg(feature = "cluster")]
use redis::RedisError;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// So many locks are kept when their last request has gone, until they are due. To take one up again costs less than to
/// forget it and to schedule it anew: a lock that is used again and again would do that in every cycle.
const MOST_KEPT: usize = 64;

/// Room for so many requests stays with a lock that is kept.
const ROOM_KEPT: usize = 16;

#[derive(Debug)]
struct LockEntry {
    lock: Arc<Lock>,
    /// `scan_at`, or an end that comes before it.
    due: Instant,
    /// When all requests are looked through.
    scan_at: Instant,
    /// When the server need not keep a hold any more that nothing renews, and its number. Each end by itself, because tens of
    /// thousands of permits may end one after the other.
    ends: BTreeSet<(Instant, u64)>,
    /// The requests by number, hence in the order in which they were made. If the server forgot them, they ask again in
    /// this order.
    requests: VecDeque<(u64, Arc<Request>)>,
    /// See [`MOST_KEPT`].
    is_kept: bool,
    /// The requests of each named owner.
    owners: BTreeMap<String, Vec<u64>>,
    follow_up: Option<FollowUp>,
}

/// A lease of others ends soon: somebody has to look, even if no request of this client waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FollowUp {
    pub(crate) at: Instant,
    /// There is no further look after this one's reply, if that comes later.
    pub(crate) until: Instant,
}

/// A lock that is due.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) lock: Arc<Lock>,
    pub(crate) renew: Vec<Arc<Request>>,
    /// A call looks for expired leases, whether or not there is something to renew: somebody waits, or a lease of others
    /// ends.
    pub(crate) looks: bool,
    /// Holds that time has ended: nobody has been told yet.
    pub(crate) lost: Vec<Arc<Request>>,
    /// Holds that the server may still know and that nobody keeps: release them, so that others need not wait for the
    /// lease.
    pub(crate) release: Vec<Arc<Request>>,
    pub(crate) follow_up: Option<FollowUp>,
}

impl Due {
    fn is_empty(&self) -> bool {
        !self.looks && self.renew.is_empty() && self.lost.is_empty() && self.release.is_empty()
    }
}

/// Requests of named owners: see [`Table::of_named_owners`].
#[derive(Debug, Default)]
pub(crate) struct NamedOwners {
    pub(crate) waiting: Vec<Arc<Request>>,
    /// Or about to be held: nobody has released them, and they are not lost.
    pub(crate) held: Vec<Arc<Request>>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    // Ordered, so that the same history gives the same order of calls: see tests/attack. In boxes, because a node of
    // the map has room for eleven, and a client often uses one lock.
    locks: BTreeMap<Arc<str>, Box<LockEntry>>,
    /// How many of them are kept: see [`MOST_KEPT`].
    kept: usize,
    schedule: BTreeSet<(Instant, Arc<str>)>,
    /// When the watchdog wakes. `None`: it sleeps until something wakes it.
    armed: Option<Instant>,
}

impl Table {
    /// Returns whether the schedule now starts earlier.
    pub(super) fn insert(&mut self, request: Arc<Request>, now: Instant) -> bool {
        let due = now + request.claim().lease() / 3;
        let lock = Arc::clone(&request.lock);
        let entry = self.entry(&lock, due);
        if let Some(owner) = request.owner() {
            entry.owners.entry(owner.to_owned()).or_default().push(request.number);
        }
        // Two threads may register in another order than they got their numbers.
        let at = entry.requests.partition_point(|(number, _)| *number < request.number);
        entry.requests.insert(at, (request.number, request));
        due <= entry.scan_at && self.schedule_check(&lock, due)
    }

    fn entry(&mut self, lock: &Arc<Lock>, due: Instant) -> &mut LockEntry {
        let entry = self.locks.entry(Arc::clone(&lock.state)).or_insert_with(|| {
            self.schedule.insert((due, Arc::clone(&lock.state)));
            Box::new(LockEntry {
                lock: Arc::clone(lock),
                due,
                scan_at: due,
                ends: BTreeSet::new(),
                requests: VecDeque::new(),
                is_kept: false,
                owners: BTreeMap::new(),
                follow_up: None,
            })
        });
        if take(&mut entry.is_kept) {
            self.kept -= 1;
        }
        entry
    }

    /// Checks a lock then, whether or not this client has requests there.
    pub(super) fn follow_up(&mut self, lock: &Arc<Lock>, next: FollowUp) -> bool {
        let entry = self.entry(lock, next.at);
        let planned = entry.follow_up.unwrap_or(next);
        entry.follow_up = Some(FollowUp {
            at: planned.at.min(next.at),
            until: planned.until.max(next.until),
        });
        self.schedule_check(lock, next.at)
    }

    /// The server does not have the request any more: wakes the tasks that wait for that.
    pub(super) fn remove(&mut self, request: &Request) {
        request.changed.notify_waiters();
        let state = &request.lock.state;
        let Some(entry) = self.locks.get_mut(state) else { return };
        let Some(at) = entry.position(request.number) else {
            return;
        };
        entry.requests.remove(at);
        if let Some(owner) = request.owner()
            && let Some(numbers) = entry.owners.get_mut(owner)
        {
            numbers.retain(|number| *number != request.number);
            if numbers.is_empty() {
                entry.owners.remove(owner);
            }
        }
        if entry.is_idle() {
            if self.kept < MOST_KEPT {
                entry.is_kept = true;
                entry.requests.shrink_to(ROOM_KEPT);
                self.kept += 1;
                if !take(&mut entry.ends).is_empty() {
                    self.reschedule(state);
                }
            } else {
                self.forget(state);
            }
        }
    }

    fn forget_idle(&mut self, state: &Arc<str>) {
        if self.locks.get(state).is_some_and(|entry| entry.is_idle()) {
            self.forget(state);
        }
    }

    fn forget(&mut self, state: &Arc<str>) {
        if let Some((state, entry)) = self.locks.remove_entry(state) {
            self.kept -= usize::from(entry.is_kept);
            self.schedule.remove(&(entry.due, state));
        }
    }

    /// The request of that number for the lock whose state is there.
    pub(super) fn get(&self, state: &str, number: u64) -> Option<&Arc<Request>> {
        self.locks.get(state)?.get(number)
    }

    /// The requests for a lock that a message names, in its order. It may name a thousand, so the lock is looked up once.
    pub(super) fn named<'a>(
        &self,
        state: &str,
        names: impl Iterator<Item = Option<RequestName<'a>>>,
    ) -> Vec<Option<Arc<Request>>> {
        let entry = self.locks.get(state);
        let find = |name: RequestName<'a>| entry?.get(name.number).filter(|request| request.is_named(&name));
        names.map(|name| find(name?).cloned()).collect()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Request>> {
        self.locks.values().flat_map(|entry| entry.all())
    }

    /// Returns another request of the same owner and lock whose claim is like that.
    pub(super) fn other_of_owner(&self, of: &Request, is: impl Fn(&Claim) -> bool) -> Option<Arc<Request>> {
        let entry = self.locks.get(&of.lock.state)?;
        let numbers = entry
            .owners
            .get(of.owner()?)?
            .iter()
            .filter(|number| **number != of.number);
        let mut requests = numbers.filter_map(|number| entry.get(*number));
        requests.find(|request| is(&request.claim())).cloned()
    }

    /// The requests of named owners that wait; and if there are any, those that their users have.
    pub(super) fn of_named_owners(&self) -> NamedOwners {
        let those = |are: fn(&Claim) -> bool| -> Vec<Arc<Request>> {
            // By the index of owners: a client may have a hundred thousand holds without one.
            let entries = self.locks.values();
            let owned = entries.flat_map(|entry| {
                let numbers = entry.owners.values().flatten();
                numbers.filter_map(|number| entry.get(*number))
            });
            let named = owned.filter(|request| named_owner(&request.name).is_some());
            named.filter(|request| are(&request.claim())).cloned().collect()
        };
        let waiting = those(Claim::is_waiting);
        let held = match waiting.is_empty() {
            true => Vec::new(),
            false => those(|claim| !claim.is_waiting() && claim.ended().is_none()),
        };
        NamedOwners { waiting, held }
    }

    /// When to call `take_due` next. The methods that make this time earlier return that.
    pub(super) fn arm(&mut self) -> Option<Instant> {
        self.armed = self.schedule.first().map(|(due, _)| *due);
        self.armed
    }

    /// Checks a lock at `at` if that is earlier than planned. Returns whether the schedule now starts earlier.
    pub(super) fn schedule_check(&mut self, lock: &Lock, at: Instant) -> bool {
        self.scan_at(&lock.state, at);
        self.is_earlier()
    }

    /// Nothing renews the request, and the server keeps it until then. Returns whether the schedule now starts earlier.
    pub(super) fn schedule_end(&mut self, request: &Request, at: Instant) -> bool {
        if let Some(entry) = self.locks.get_mut(&request.lock.state) {
            entry.ends.insert((at, request.number));
        }
        self.reschedule(&request.lock.state);
        self.is_earlier()
    }

    fn is_earlier(&mut self) -> bool {
        match (self.schedule.first(), self.armed) {
            (Some(&(first, _)), armed) if armed.is_none_or(|armed| first < armed) => {
                self.armed = Some(first);
                true
            }
            _ => false,
        }
    }

    /// The same, but only for waiters, because a holder need not know when others' leases end.
    pub(super) fn schedule_check_if_waiting(&mut self, lock: &Lock, at: Instant) -> bool {
        let Some(entry) = self.locks.get(&lock.state) else {
            return false;
        };
        let sooner = at < entry.scan_at && entry.all().any(|r| r.claim().is_waiting());
        sooner && self.schedule_check(lock, at)
    }

    /// Makes every waiter due now, because messages may have been lost.
    pub(super) fn resync(&mut self, now: Instant) {
        let mut waiting = Vec::new();
        for entry in self.locks.values() {
            let mut any = false;
            for request in entry.all() {
                any |= request.claim().doubt(now);
            }
            waiting.extend(any.then(|| Arc::clone(&entry.lock.state)));
        }
        for state in waiting {
            self.scan_at(&state, now);
        }
    }

    /// Makes the grants of these locks due now, because their servers may have forgotten them.
    pub(super) fn recheck(&mut self, now: Instant, concerns: impl Fn(&str) -> bool) {
        let mut held = Vec::new();
        for entry in self.locks.values().filter(|entry| concerns(&entry.lock.state)) {
            let mut any = false;
            for request in entry.all() {
                any |= request.claim().doubt_hold(now);
            }
            held.extend(any.then(|| Arc::clone(&entry.lock.state)));
        }
        for state in held {
            self.scan_at(&state, now);
        }
    }

    /// The same as `resync` for one lock.
    #[cfg(feature = "cluster")]
    pub(super) fn resync_lock(&mut self, state: &Arc<str>, now: Instant) {
        let Some(entry) = self.locks.get(state) else { return };
        let mut any = false;
        for request in entry.all() {
            any |= request.claim().doubt(now);
        }
        if any {
            self.scan_at(state, now);
        }
    }

    /// Ends all waits for a lock.
    #[cfg(feature = "cluster")]
    pub(super) fn refuse(&self, state: &Arc<str>, error: &RedisError) {
        let entry = self.locks.get(state);
        let requests = entry.into_iter().flat_map(|entry| entry.all());
        requests.for_each(|request| request.refuse(error));
    }

    /// Whether a message about the lock may be news.
    #[cfg(feature = "cluster")]
    pub(super) fn is_awaited(&self, state: &Arc<str>) -> bool {
        let entry = self.locks.get(state);
        entry.is_some_and(|entry| entry.all().any(|request| request.needs_messages()))
    }

    /// Looks through the requests of a lock at `at` if that is earlier than planned.
    fn scan_at(&mut self, state: &Arc<str>, at: Instant) {
        if let Some(entry) = self.locks.get_mut(state).filter(|entry| at < entry.scan_at) {
            entry.scan_at = at;
            self.reschedule(state);
        }
    }

    fn reschedule(&mut self, state: &Arc<str>) {
        let Some(entry) = self.locks.get_mut(state) else { return };
        let first = entry.ends.first().map(|(end, _)| *end);
        let due = first.map_or(entry.scan_at, |end| end.min(entry.scan_at));
        if due != entry.due {
            self.schedule.remove(&(entry.due, Arc::clone(state)));
            entry.due = due;
            self.schedule.insert((due, Arc::clone(state)));
        }
    }

    /// Takes the locks that are due, with what to do for them, and schedules them again.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Due> {
        let mut taken = Vec::new();
        while let Some((due, state)) = self.schedule.first().cloned() {
            if due > now {
                break;
            }
            let Some(entry) = self.locks.get_mut(&state) else {
                self.schedule.pop_first();
                continue;
            };
            taken.extend(entry.take(now));
            self.reschedule(&state);
            self.forget_idle(&state);
        }
        taken
    }
}

impl LockEntry {
    fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.follow_up.is_none()
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.requests.binary_search_by_key(&number, |(number, _)| *number).ok()
    }

    fn get(&self, number: u64) -> Option<&Arc<Request>> {
        self.position(number).map(|at| &self.requests[at].1)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Request>> {
        self.requests.iter().map(|(_, request)| request)
    }

    /// What to do now, if anything.
    fn take(&mut self, now: Instant) -> Option<Due> {
        let mut due = Due {
            lock: Arc::clone(&self.lock),
            renew: Vec::new(),
            looks: false,
            lost: Vec::new(),
            release: Vec::new(),
            follow_up: self.follow_up.take_if(|next| next.at <= now),
        };
        due.looks = due.follow_up.is_some();
        self.take_ends(now, &mut due);
        if due.looks || self.scan_at <= now {
            self.scan(now, &mut due);
        }
        (!due.is_empty()).then_some(due)
    }

    /// The ends that have come, without a look at the other requests.
    fn take_ends(&mut self, now: Instant, due: &mut Due) {
        while let Some((_, number)) = self.ends.first().copied().filter(|(at, _)| *at <= now) {
            self.ends.pop_first();
            let Some(request) = self.get(number) else { continue };
            let mut claim = request.claim();
            // What is over is kept for no longer than it was to be then.
            if claim.release_at(now).is_some() {
                claim.let_go();
                due.release.push(Arc::clone(request));
            }
        }
    }

    fn scan(&mut self, now: Instant, due: &mut Due) {
        // A lock without requests to renew is looked through again after an hour at most.
        let mut next = now + Duration::from_secs(3600);
        next = self.follow_up.map_or(next, |planned| planned.at.min(next));
        for (number, request) in &self.requests {
            let mut claim = request.claim();
            due.looks |= claim.is_waiting();
            if claim.lease_to_renew(now).is_none() {
                if claim.report_loss() {
                    due.lost.push(Arc::clone(request));
                }
                match claim.release_at(now) {
                    Some(at) if at <= now => {
                        claim.let_go();
                        due.release.push(Arc::clone(request));
                    }
                    Some(at) => _ = self.ends.insert((at, *number)),
                    None if claim.ended().is_none() => next = next.min(now + claim.lease() / 3),
                    None => {}
                }
                continue;
            }
            // One call renews all that will be due before long, so that a lock has one rhythm.
            let soon = claim.due().is_none_or(|due| due <= now + claim.lease() / 6);
            if soon {
                due.renew.push(Arc::clone(request));
            }
            let at = claim.due().filter(|_| !soon).unwrap_or(now + claim.lease() / 3);
            next = next.min(at);
            if let Some(end) = claim.held_until(now) {
                next = next.min(end.max(now + Duration::from_millis(1)));
            }
        }
        self.scan_at = next;
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests;
