//! A claim: what this client knows of one request, and what that proves. It does no I/O, and time is an argument.
//!
//! A claim has a phase that only moves forward (asked, waiting, granted, held, over). So replies and messages may come
//! in any order.

use crate::protocol::reply::{Answer, Standing};
use crate::types::deadlock::Blocked;
use crate::types::error::LostReason;
use crate::types::mode::{Grant, GrantVia};
use keep::with_margin;
use redis::RedisError;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Clone, Debug)]
enum Phase {
    /// No reply yet; perhaps a message.
    Asked {
        heard: Option<u64>,
    },
    /// `seq` is the lock's counter when a reply last said that the request waits.
    Waiting {
        ticket: u64,
        seq: u64,
    },
    /// Granted, and not yet handed out to the caller. The server executes calls sent after `since` after the grant.
    Granted {
        ticket: Option<u64>,
        token: u64,
        since: Instant,
    },
    Held {
        token: u64,
        since: Instant,
        until: Option<Instant>,
    },
    Over(EndedBy),
}

/// How a request ended.
#[derive(Clone, Debug)]
pub(crate) enum EndedBy {
    /// The user released the hold.
    Released,
    /// The request lost its place before its user had the guard. It may ask again, with its ticket.
    Displaced {
        ticket: Option<u64>,
    },
    Lost(LostReason),
    /// The youngest of owners that wait for each other.
    Deadlocked(Arc<[Blocked]>),
    Failed(RedisError),
    /// The user has left the hold, and the server keeps it for a while.
    Sealed,
}

/// What the caller that waits for the guard has to do.
#[derive(Debug)]
pub(crate) enum Outcome {
    HandOut(Grant),
    /// Granted, but the proof has ended: renew first.
    Renew,
    Ended(EndedBy),
}

#[derive(Clone, Debug)]
pub(crate) struct Claim {
    phase: Phase,
    lease: Duration,
    max_hold: Duration,
    /// How long the server keeps a hold at least, whatever becomes of its user.
    at_least: Duration,
    /// How much longer than the client believes the server keeps the request.
    lock_delay: Duration,
    /// Until when the server is to keep the hold, whatever becomes of its user: its least time, or the delay after a
    /// loss. `None`: the user does not have the hold yet, or nothing of the kind was asked for.
    kept_until: Option<Instant>,
    /// Its user does not have the hold, because its replicas are waited for: so nothing goes on after a loss.
    on_trial: bool,
    /// Until when the last answered call asked the server to keep the request: `proven`, or later.
    asked_until: Option<Instant>,
    /// Until when a renewal may have asked the server to keep the request, answered or not.
    kept_at_most: Option<Instant>,
    /// The server keeps the request at least until then, as a waiter or as a holder.
    proven: Option<Instant>,
    /// The server may have cut the lease of a waiter until then, because the client was deaf: a call that was sent earlier
    /// proves only that the request holds.
    deaf_until: Option<Instant>,
    /// When the client sent the last answered call about the request.
    renewed: Instant,
    /// Before then a message may have been lost, or the server may have forgotten the hold: renew soon.
    doubted: Option<Instant>,
    /// Before then the server may have forgotten a grant of which this side did not know yet.
    forgotten: Option<Instant>,
    /// The watchdog knows that it is lost.
    reported: bool,
    /// The watchdog has handed it to the releaser.
    let_go: bool,
    /// A future of its user releases or converts the hold, and not the releaser. Until then others of its owner wait for
    /// that.
    in_hand: Option<Instant>,
    /// A vote of a quorum may be granted again within one phase: the newer token counts then.
    pub(crate) is_vote: bool,
    via: GrantVia,
    heard: Option<Instant>,
}

impl Claim {
    pub(crate) fn new(lease: Duration, max_hold: Duration, now: Instant) -> Self {
        Self {
            phase: Phase::Asked { heard: None },
            lease,
            max_hold,
            at_least: Duration::ZERO,
            lock_delay: Duration::ZERO,
            kept_until: None,
            on_trial: false,
            asked_until: None,
            kept_at_most: None,
            proven: None,
            deaf_until: None,
            renewed: now,
            doubted: None,
            forgotten: None,
            reported: false,
            let_go: false,
            in_hand: None,
            is_vote: false,
            via: GrantVia::Reply,
            heard: None,
        }
    }

    /// Clocks may run at different rates, and the server counts whole milliseconds.
    fn margin(&self) -> Duration {
        (self.lease / 50).max(Duration::from_millis(2))
    }

    /// A call sent at that time, which asked for that lease, was answered: the server gave the lease later than that.
    ///
    /// A claim never believes in more than its own lease, because a late copy of another call may cut a longer one.
    fn prove(&mut self, sent: Instant, asked: Duration, holds: bool) {
        let lease = asked.saturating_sub(with_margin(self.lock_delay)).min(self.lease);
        let proven = sent + lease.saturating_sub(self.margin());
        if holds || Some(sent) >= self.deaf_until {
            self.proven = self.proven.max(Some(proven));
            self.is_kept(sent, asked);
        }
        self.renewed = self.renewed.max(sent);
        self.doubted = self.doubted.filter(|doubted| sent < *doubted);
    }

    /// A message came over a subscription that was confirmed then. The server may have cut the lease of a deaf waiter, so
    /// the proofs of earlier calls do not count for what the message grants.
    pub(crate) fn listens_since(&mut self, confirmed: Instant) {
        // A grant that is not handed out may be over, and then the message is of a later one.
        if self.is_waiting() || matches!(self.phase, Phase::Asked { .. } | Phase::Granted { .. }) {
            self.deaf_until = Some(confirmed);
            self.proven = self.proven.filter(|_| self.renewed >= confirmed);
        }
    }

    pub(crate) fn on_reply(&mut self, sent: Instant, answer: Answer) {
        if matches!(self.phase, Phase::Over(_)) {
            return;
        }
        let asked = self.lease + with_margin(self.lock_delay);
        self.prove(sent, asked, matches!(answer, Answer::Granted { .. }));
        // The grant is later than that.
        let since = sent;
        match (&self.phase, answer) {
            (phase @ (Phase::Asked { .. } | Phase::Waiting { .. }), Answer::Granted { token }) => {
                if let Phase::Asked { .. } = phase {
                    // It missed no message, because it never waited.
                    self.doubted = self.forgotten.filter(|forgotten| sent < *forgotten);
                }
                self.via = GrantVia::Reply;
                self.phase = Phase::Granted {
                    ticket: self.ticket(),
                    token,
                    since,
                };
            }
            // A message with an older token is of a former life under the same name: see PROTOCOL.md.
            (&Phase::Asked { heard: Some(token) }, Answer::Queued { ticket, seq, .. }) if token > seq => {
                self.via = GrantVia::Message;
                self.phase = Phase::Granted {
                    ticket: Some(ticket),
                    token,
                    since,
                };
            }
            // Its end overtook the reply. If that was the end of a former life, the client asks again all the same.
            (Phase::Asked { heard: Some(1) }, Answer::Queued { ticket, .. }) => {
                self.end(EndedBy::Displaced { ticket: Some(ticket) });
            }
            (Phase::Asked { .. }, Answer::Queued { ticket, seq, .. }) => self.phase = Phase::Waiting { ticket, seq },
            (_, Answer::Queued { seq, .. }) => self.on_waiting(sent, seq),
            _ => {}
        }
    }

    /// A call sent at that time found the request waiting, and the lock's counter at `seq`.
    fn on_waiting(&mut self, sent: Instant, seq: u64) {
        // A grant up to that number was over by then: its lease had ended, and a late copy of the acquire queued the
        // request again. A grant that was known before is over too: the server went back to an earlier state.
        let is_over = |token: u64, since: Instant| token <= seq || sent > since;
        match self.phase {
            Phase::Waiting { ticket, seq: former } => {
                let seq = former.max(seq);
                self.phase = Phase::Waiting { ticket, seq };
            }
            Phase::Granted { ticket, token, since } if is_over(token, since) => {
                // It never waited before, so it has no ticket. Its token will do, because it is as old as the request.
                let ticket = ticket.unwrap_or(token);
                let seq = seq.max(token);
                self.phase = Phase::Waiting { ticket, seq };
            }
            Phase::Held { token, since, .. } if is_over(token, since) => {
                self.phase = Phase::Over(EndedBy::Lost(LostReason::UnknownToServer));
            }
            _ => {}
        }
    }

    /// A message grants the request, or ends it. Returns whether that changes anything.
    ///
    /// Token 0 means that it was evicted. Token 1 means that it was an upgrade and ended with the last read hold of its
    /// owner.
    pub(crate) fn on_grant(&mut self, now: Instant, token: u64) -> bool {
        if token == 0 {
            return self.end(EndedBy::Lost(LostReason::Evicted));
        }
        // Before the reply that says that it waits, this message is kept as a grant is.
        if token == 1 && !matches!(self.phase, Phase::Asked { .. }) {
            return self.is_waiting() && self.end(EndedBy::Displaced { ticket: self.ticket() });
        }
        if self.is_waiting() || matches!(self.phase, Phase::Asked { .. }) {
            self.heard = Some(now);
        }
        match self.phase {
            Phase::Asked { heard } => {
                let heard = heard.max(Some(token));
                self.phase = Phase::Asked { heard };
                false
            }
            Phase::Waiting { ticket, seq } if token > seq => {
                self.phase = Phase::Granted {
                    ticket: Some(ticket),
                    token,
                    since: now,
                };
                self.via = GrantVia::Message;
                true
            }
            // That grant was over, and the message overtook the reply that says so.
            Phase::Granted {
                ticket, token: older, ..
            } if token > older => {
                self.heard = Some(now);
                let since = now;
                self.phase = Phase::Granted { ticket, token, since };
                true
            }
            _ => false,
        }
    }

    /// The lease to ask for in a renewal: less than its own if `max_hold` ends earlier. `None`: do not renew.
    pub(crate) fn lease_to_renew(&mut self, now: Instant) -> Option<Duration> {
        self.expire(now);
        let lease = match self.phase {
            Phase::Waiting { .. } | Phase::Granted { .. } => Some(self.lease),
            Phase::Held { until, .. } => {
                let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
                Some(self.lease.min(left.saturating_add(self.margin())))
            }
            Phase::Asked { .. } | Phase::Over(_) => None,
        };
        let asked = self.extended(lease?, now);
        self.kept_at_most = self.kept_at_most.max(Some(now + asked));
        Some(asked)
    }

    /// A renewal for `lease`, sent at `sent`, was answered. Returns whether the waiting task should check the claim.
    pub(crate) fn on_renewal(&mut self, sent: Instant, now: Instant, lease: Duration, standing: Standing) -> bool {
        self.expire(now);
        match (&self.phase, standing) {
            (Phase::Over(_) | Phase::Asked { .. }, _) => return false,
            (_, Standing::Waits { seq }) => self.on_waiting(sent, seq),
            // That grant was over, and the server granted once more.
            (&Phase::Granted { ticket, token, since }, Standing::Holds { token: newer, first })
                if first > token || self.is_vote && newer > token =>
            {
                let token = newer;
                self.phase = Phase::Granted { ticket, token, since };
            }
            // The hold was interrupted: others may have been inside in between.
            (&Phase::Held { token, .. }, Standing::Holds { first, .. }) if first > token => {
                self.phase = Phase::Over(EndedBy::Lost(LostReason::UnknownToServer));
                return true;
            }
            (Phase::Held { .. }, Standing::Unknown) => {
                self.phase = Phase::Over(EndedBy::Lost(LostReason::UnknownToServer));
                return true;
            }
            (_, Standing::Unknown) => {
                let ticket = self.standing().map(|(number, _)| number);
                self.phase = Phase::Over(EndedBy::Displaced { ticket });
                return true;
            }
            _ => {}
        }
        // A call that overtook this one got another reply, so this grant is over.
        let outdated = |token: u64, seq: u64| token <= seq && sent < self.renewed;
        if let (&Phase::Waiting { ticket, seq }, Standing::Holds { token, .. }) = (&self.phase, standing)
            && !outdated(token, seq)
        {
            self.via = GrantVia::Renewal;
            self.phase = Phase::Granted {
                ticket: Some(ticket),
                token,
                since: now,
            };
        }
        self.prove(sent, lease, matches!(standing, Standing::Holds { .. }));
        matches!(self.phase, Phase::Granted { .. } | Phase::Over(_))
    }

    /// The next step of the caller that waits for the guard. `None`: wait.
    pub(crate) fn poll_outcome(&mut self, now: Instant) -> Option<Outcome> {
        Some(match &self.phase {
            Phase::Asked { .. } | Phase::Waiting { .. } | Phase::Held { .. } => return None,
            Phase::Granted { .. } if self.proven.is_none_or(|proven| proven <= now) => Outcome::Renew,
            Phase::Granted { .. } if self.is_kept_too_short(now) => Outcome::Renew,
            &Phase::Granted { ticket, token, since } => {
                // Its `max_hold` begins when the user has the guard: replicas may have to confirm the hold first.
                let until = None;
                self.phase = Phase::Held { token, since, until };
                let (via, heard) = (self.via, self.heard);
                Outcome::HandOut(Grant {
                    token,
                    place: ticket.unwrap_or(token),
                    at: now,
                    via,
                    heard,
                })
            }
            Phase::Over(end) => Outcome::Ended(end.clone()),
        })
    }

    /// The token of a grant that is certain and not handed out.
    pub(crate) fn granted(&self, now: Instant) -> Option<u64> {
        let is_certain = self.proven.is_some_and(|proven| proven > now) && self.doubted.is_none();
        match self.phase {
            Phase::Granted { token, .. } if is_certain => Some(token),
            _ => None,
        }
    }

    /// Until when the server certainly keeps the request.
    pub(crate) fn proven_until(&self) -> Option<Instant> {
        self.proven
    }

    /// The token of a grant that is not handed out, certain or not, and since when the client knows of the grant.
    pub(crate) fn offered(&self) -> Option<(u64, Instant)> {
        match self.phase {
            Phase::Granted { token, since, .. } => Some((token, since)),
            _ => None,
        }
    }

    /// The number by which the request stands in the order of its server, and whether it had to wait.
    pub(crate) fn standing(&self) -> Option<(u64, bool)> {
        match self.phase {
            Phase::Waiting { ticket, .. } => Some((ticket, true)),
            Phase::Granted { ticket, token, .. } => Some((ticket.unwrap_or(token), ticket.is_some())),
            _ => None,
        }
    }

    /// Until when the hold is certain. `None`: the request does not hold.
    pub(crate) fn held_until(&mut self, now: Instant) -> Option<Instant> {
        self.expire(now);
        match self.phase {
            Phase::Held { until, .. } => self.proven.min(until.or(self.proven)),
            _ => None,
        }
    }

    /// A hold ends after this time from now.
    pub(crate) fn limit(&mut self, now: Instant, max_hold: Duration) {
        if let Phase::Held { until, .. } = &mut self.phase {
            *until = now.checked_add(max_hold);
        }
    }

    /// The rest of its `max_hold`. `None`: the request does not hold.
    pub(crate) fn limit_left(&mut self, now: Instant) -> Option<Duration> {
        self.expire(now);
        match self.phase {
            Phase::Held { until, .. } => {
                Some(until.map_or(Duration::MAX, |until| until.saturating_duration_since(now)))
            }
            _ => None,
        }
    }

    /// Ends a hold whose proof has ended. It is lost for ever, because its user may know of the loss.
    fn expire(&mut self, now: Instant) {
        if let Phase::Held { until, .. } = self.phase {
            if until.is_some_and(|until| until <= now) {
                self.lapse(until, LostReason::MaxHold);
            } else if self.proven.is_none_or(|proven| proven <= now) {
                self.lapse(self.proven, LostReason::LeaseExpired);
            }
        }
    }

    /// When the watchdog should check it next.
    pub(crate) fn due(&self) -> Option<Instant> {
        let renewal = match self.doubted {
            Some(_) => self.renewed,
            None => self.renewed + self.lease / 3,
        };
        match self.phase {
            Phase::Asked { .. } | Phase::Over(_) => None,
            Phase::Held { until, .. } => Some(until.map_or(renewal, |until| until.min(renewal))),
            _ => Some(renewal),
        }
    }

    /// Ends it, and returns whether it was not over already.
    pub(crate) fn end(&mut self, end: EndedBy) -> bool {
        if matches!(self.phase, Phase::Over(_)) {
            return false;
        }
        self.phase = Phase::Over(end);
        true
    }

    /// Ends it with an error, unless its user has the guard.
    pub(crate) fn fail_unless_held(&mut self, error: RedisError) {
        if !matches!(self.phase, Phase::Held { .. }) {
            self.end(EndedBy::Failed(error));
        }
    }

    pub(crate) fn ended(&self) -> Option<&EndedBy> {
        match &self.phase {
            Phase::Over(end) => Some(end),
            _ => None,
        }
    }

    /// Whether it is lost and the watchdog does not know yet.
    pub(crate) fn report_loss(&mut self) -> bool {
        let lost = matches!(self.phase, Phase::Over(EndedBy::Lost(_)));
        lost && !std::mem::replace(&mut self.reported, true)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
    }

    /// The ticket, if it waits.
    pub(crate) fn waiting_ticket(&self) -> Option<u64> {
        self.ticket().filter(|_| self.is_waiting())
    }

    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    fn ticket(&self) -> Option<u64> {
        match self.phase {
            Phase::Waiting { ticket, .. } => Some(ticket),
            Phase::Granted { ticket, .. } => ticket,
            _ => None,
        }
    }
}

mod doubt;
mod keep;
#[cfg(feature = "__testing")]
mod seam;
#[cfg(test)]
mod tests;
