//! One request: its name, its claim, and the record of its hold.

use super::claim::{Claim, EndedBy, Outcome};
use super::sync::{Mutex, MutexGuard, Notify};
use crate::observe::{Hold, HoldEnd};
use crate::protocol::key::Lock;
use crate::protocol::name::RequestName;
use crate::protocol::reply::Standing;
use crate::types::mode::{Admission, Mode};
use redis::RedisError;
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A message that came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    pub(crate) at: Instant,
    /// When its subscription was confirmed. `None`: the client has never been deaf.
    pub(crate) since: Option<Instant>,
}

impl Heard {
    /// `confirmed`: since when the client knows that it is subscribed. Before it knows, the message itself tells so.
    pub(crate) fn over(confirmed: Option<Instant>, at: Instant) -> Self {
        let since = Some(confirmed.unwrap_or(at));
        Self { at, since }
    }
}

/// One call of acquire: its name in Redis, and its claim behind a mutex.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) number: u64,
    pub(crate) name: String,
    mode: Option<Mode>,
    pub(crate) lock: Arc<Lock>,
    pub(crate) admission: Admission,
    /// Where the name has the owner, if the user named one.
    owner: Option<Range<usize>>,
    /// The permits that it takes.
    pub(crate) weight: u32,
    claim: Mutex<Claim>,
    /// The record that notes the end of the hold. The code that ends the hold takes it, in the same step.
    hold: std::sync::Mutex<Option<Box<Hold>>>,
    /// Wakes the tasks that wait for a change of the claim.
    pub(crate) changed: Notify,
}

impl Request {
    pub(crate) fn new(number: u64, name: String, lock: Arc<Lock>, admission: Admission, claim: Claim) -> Self {
        // Read once, because each cycle of a lock asks for the owner several times.
        let parts = RequestName::read(&name);
        Self {
            number,
            mode: parts.map(|parts| parts.mode),
            owner: parts.and_then(|parts| parts.named_owner_at()),
            weight: parts.map_or(1, |parts| parts.weight),
            name,
            lock,
            admission,
            claim: Mutex::new(claim),
            hold: std::sync::Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Whether the name, one of this client's, is that of this request. Compared by its parts: the text lies elsewhere in
    /// memory, and to fetch that costs a crowd as much as all else here.
    pub(crate) fn is_named(&self, name: &RequestName<'_>) -> bool {
        let parts = (name.number, Some(name.mode), name.weight);
        parts == (self.number, self.mode, self.weight) && name.named_owner == self.owner()
    }

    pub(crate) fn claim(&self) -> MutexGuard<'_, Claim> {
        // Every change of a claim is a single assignment, so a panic cannot leave half a change.
        self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the claim. If its hold is over then, its record learns of that after the claim is unlocked.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Claim) -> T) -> T {
        let mut claim = self.claim();
        let result = change(&mut claim);
        let ended = claim.ended().and_then(|by| Some((self.take_hold()?, hold_end(by))));
        drop(claim);
        if let Some((hold, end)) = ended {
            hold.end(end);
        }
        result
    }

    /// Sets the record that notes the hold's end, and changes the claim.
    pub(crate) fn observe<T>(&self, hold: Box<Hold>, change: impl FnOnce(&mut Claim) -> T) -> T {
        *self.hold.lock().unwrap_or_else(PoisonError::into_inner) = Some(hold);
        self.change(change)
    }

    /// The user releases or converts the hold: from now on nothing renews it. The caller tells the record how that
    /// ended.
    pub(crate) fn end_hold(&self, now: Instant) -> Option<Box<Hold>> {
        let mut claim = self.claim();
        claim.take_in_hand(now);
        self.take_hold()
    }

    fn take_hold(&self) -> Option<Box<Hold>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes in the reply to a renewal that was sent at that time.
    pub(crate) fn on_renewal(&self, sent: Instant, now: Instant, lease: Duration, standing: Standing) {
        self.change(|claim| {
            if claim.on_renewal(sent, now, lease, standing) {
                self.changed.notify_waiters();
            }
        });
    }

    /// Whether it waits, or has a grant that nobody has taken: that may be over, and another one may follow.
    #[cfg(feature = "cluster")]
    pub(crate) fn needs_messages(&self) -> bool {
        let claim = self.claim();
        claim.is_waiting() || claim.offered().is_some()
    }

    /// The owner's name, if the user named one.
    pub(crate) fn owner(&self) -> Option<&str> {
        self.owner.clone().map(|at| &self.name[at])
    }

    /// Takes in a message that grants the request, or evicts it by token 0.
    pub(crate) fn on_grant(&self, heard: Heard, token: u64) {
        self.change(|claim| {
            if let Some(since) = heard.since {
                claim.listens_since(since);
            }
            if claim.on_grant(heard.at, token) {
                self.changed.notify_waiters();
            }
        });
    }

    /// The server refuses the request, so its wait ends. A hold lasts as long as its proof.
    pub(crate) fn refuse(&self, error: &RedisError) {
        let mut claim = self.claim();
        if claim.is_waiting() && claim.end(EndedBy::Failed(error.clone())) {
            self.changed.notify_waiters();
        }
    }

    /// Waits for the next step of the caller that waits for the guard.
    pub(crate) async fn outcome(&self, now: impl Fn() -> Instant) -> Outcome {
        loop {
            // Created before the check of the claim, so that no later change is missed.
            let changed = self.changed.notified();
            let outcome = self.claim().poll_outcome(now());
            match outcome {
                Some(outcome) => return outcome,
                None => changed.await,
            }
        }
    }

    /// Waits until the hold is no longer certain.
    pub(crate) async fn lost<S: Future<Output = ()>>(
        &self,
        now: impl Fn() -> Instant,
        sleep_until: impl Fn(Instant) -> S,
    ) {
        loop {
            // Created before the check, as in outcome().
            let changed = self.changed.notified();
            let held_until = self.change(|claim| claim.held_until(now()));
            let Some(held_until) = held_until else { return };
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(held_until) => {}
            }
        }
    }
}

/// The end of a hold if nothing else is known: its guard was dropped, or a release was not confirmed.
fn hold_end(by: &EndedBy) -> HoldEnd {
    match by {
        EndedBy::Lost(reason) => HoldEnd::Lost(*reason),
        EndedBy::Released
        | EndedBy::Sealed
        | EndedBy::Displaced { .. }
        | EndedBy::Deadlocked(_)
        | EndedBy::Failed(_) => HoldEnd::Dropped,
    }
}

#[cfg(all(test, feature = "cluster", not(fairlock_loom)))]
mod tests;
