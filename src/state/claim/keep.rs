//! How long the server keeps a request beyond what its user needs: the least time of a hold, and the delay after a loss.
//!
//! While a hold may not end, each of its calls asks the server to keep it until then. So it lasts even if this process
//! ends at any moment. The claim itself believes in its own lease only.

use super::{Claim, EndedBy, Phase};
use crate::protocol::order::AskedLease;
use crate::types::error::LostReason;
use crate::types::limits::call_limit;
use std::time::Duration;
use tokio::time::Instant;

impl Claim {
    /// The server keeps a hold at least so long, and a request so much longer than the client believes.
    pub(crate) fn keeping(self, at_least: Duration, lock_delay: Duration) -> Self {
        Self {
            at_least,
            lock_delay,
            ..self
        }
    }

    /// The lease that a call asks for by which the request is to be granted.
    pub(crate) fn lease_to_acquire(&self, now: Instant) -> AskedLease {
        self.asked(self.lease_to_ask(now))
    }

    /// What a call asks for that is sent now.
    pub(crate) fn asked(&self, span: Duration) -> AskedLease {
        AskedLease {
            span,
            only_later: !self.at_least.is_zero() && matches!(self.phase, Phase::Asked { .. } | Phase::Waiting { .. }),
        }
    }

    /// The lease that the request's first call asks for.
    pub(crate) fn lease_to_ask(&self, now: Instant) -> Duration {
        self.extended(self.lease, now)
    }

    /// The lease by which the server keeps a hold that its user has left. `None`: release it.
    pub(crate) fn lease_to_seal(&self, now: Instant) -> Option<Duration> {
        self.kept_for(now).map(with_margin)
    }

    /// A lease with what the server is to keep the request for beyond it. While a hold may not end, every call asks for
    /// that, so that the server keeps the hold even if this process ends.
    pub(super) fn extended(&self, lease: Duration, now: Instant) -> Duration {
        let kept = match (self.kept_until, &self.phase) {
            (Some(until), _) => until.saturating_duration_since(now),
            // The grant's call takes its time before the user has the guard.
            (None, Phase::Granted { .. } | Phase::Held { .. }) if !self.at_least.is_zero() => {
                self.at_least + self.lease / 2
            }
            _ => Duration::ZERO,
        };
        (lease + with_margin(self.lock_delay)).max(with_margin(kept))
    }

    /// When the server must have let go of it, if no call gets through before.
    pub(crate) fn gone_by(&self, now: Instant) -> Instant {
        let lease = self.lease_to_ask(now);
        let kept_until = self.kept_at_most.map_or(now + lease, |until| until.max(now + lease));
        kept_until + call_limit(lease)
    }

    /// For how long the server is still to keep a hold, whatever becomes of its user.
    pub(crate) fn kept_for(&self, now: Instant) -> Option<Duration> {
        if let Phase::Over(EndedBy::Lost(LostReason::UnknownToServer | LostReason::Evicted)) = self.phase {
            return None;
        }
        let left = self.kept_until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// The user has the guard: from now on the hold lasts for its least time, and for its `max_hold` at most.
    pub(crate) fn keep(&mut self, now: Instant) {
        self.limit(now, self.max_hold);
        if !self.at_least.is_zero() {
            self.kept_until = self.kept_until.max(Some(now + self.at_least));
        }
    }

    /// A call sent at that time had the server keep the hold for so long.
    pub(crate) fn is_kept(&mut self, sent: Instant, asked: Duration) {
        self.asked_until = self.asked_until.max(Some(sent + without_margin(asked)));
    }

    /// The hold takes the place of another one, whose least time goes on.
    pub(crate) fn keep_on(&mut self, kept_until: Option<Instant>) {
        self.kept_until = kept_until;
    }

    /// Its user gets the hold only if enough replicas have it.
    pub(crate) fn begin_trial(&mut self) {
        self.on_trial = true;
    }

    /// They have it. Whether it still holds: from now on it is its user's.
    pub(crate) fn end_trial(&mut self, now: Instant) -> bool {
        let holds = self.held_until(now).is_some();
        self.on_trial &= !holds;
        holds
    }

    pub(crate) fn kept_until(&self) -> Option<Instant> {
        self.kept_until
    }

    /// The user has left the hold, and nothing renews it any more. Returns when to release it.
    pub(crate) fn seal(&mut self, now: Instant) -> Instant {
        self.phase = Phase::Over(EndedBy::Sealed);
        self.kept_until.unwrap_or(now)
    }

    /// Whether the server would end the hold before its least time is over, if this process ended now.
    pub(super) fn is_kept_too_short(&self, now: Instant) -> bool {
        let least = (!self.at_least.is_zero()).then(|| now + self.at_least);
        let until = self.kept_until.or(least);
        until.is_some_and(|until| until > now && self.asked_until < Some(until))
    }

    /// Time has ended the hold. What its user began before that may go on for the lock delay.
    pub(super) fn lapse(&mut self, at: Option<Instant>, reason: LostReason) {
        self.phase = Phase::Over(EndedBy::Lost(reason));
        if !self.on_trial && !self.lock_delay.is_zero() {
            self.kept_until = self.kept_until.max(at.map(|at| at + self.lock_delay));
        }
    }

    /// Its user does not need it any more. What time has ended before is lost all the same, so that others wait for its lock
    /// delay.
    pub(crate) fn leave(&mut self, now: Instant) {
        self.expire(now);
        self.end(EndedBy::Released);
        self.in_hand = None;
    }

    /// The same by a shutdown.
    pub(crate) fn shut_down(&mut self, now: Instant) {
        self.expire(now);
        self.end(EndedBy::Lost(LostReason::Shutdown));
    }

    /// Its user releases or converts the hold, by a future of its own.
    pub(crate) fn take_in_hand(&mut self, now: Instant) {
        let is_hold = matches!(self.phase, Phase::Held { .. });
        self.end(EndedBy::Released);
        self.in_hand = is_hold.then(|| now + call_limit(self.lease));
    }

    pub(crate) fn in_hand(&self) -> Option<Instant> {
        self.in_hand
    }

    /// When the watchdog has it released, because nobody else does: a lost hold at once or after its delay, a sealed one
    /// at its end.
    pub(crate) fn release_at(&self, now: Instant) -> Option<Instant> {
        let is_left = matches!(self.phase, Phase::Over(EndedBy::Lost(_) | EndedBy::Sealed));
        (is_left && !self.let_go).then(|| now + self.kept_for(now).unwrap_or_default())
    }

    /// Whether its user released it and the server may not know yet. For a lost hold this is false, because nobody
    /// releases that soon.
    pub(crate) fn is_leaving(&self, now: Instant) -> bool {
        let left = matches!(
            self.phase,
            Phase::Over(EndedBy::Released | EndedBy::Failed(_) | EndedBy::Deadlocked(_))
        );
        left && self.kept_for(now).is_none()
    }

    /// Whether nobody needs it any more, and the server need not keep it: it is lost, or its user asks by another name. The
    /// server may know it all the same, if it went back to an earlier state.
    pub(crate) fn is_done_with(&self, now: Instant) -> bool {
        let is_done = matches!(self.phase, Phase::Over(EndedBy::Lost(_) | EndedBy::Displaced { .. }));
        is_done && self.kept_for(now).is_none()
    }

    /// The watchdog hands it to the releaser.
    pub(crate) fn let_go(&mut self) {
        self.let_go = true;
        if let Phase::Over(EndedBy::Sealed) = self.phase {
            self.phase = Phase::Over(EndedBy::Released);
        }
    }

    pub(crate) fn lock_delay(&self) -> Duration {
        self.lock_delay
    }
}

/// The span that lasts at least so long on a clock of another rate.
pub(super) fn with_margin(span: Duration) -> Duration {
    if span.is_zero() {
        return span;
    }
    // The last millisecond is for what rounding takes away.
    span + (span / 49).max(Duration::from_millis(2)) + Duration::from_millis(1)
}

/// How long such a span lasts at least.
pub(super) fn without_margin(span: Duration) -> Duration {
    span.saturating_sub((span / 50).max(Duration::from_millis(2)))
}
