//! What this client knows of one request, and what that proves. Pure: no I/O, and time comes in as an argument.
//!
//! Knowledge only moves forward (asked, waiting, granted, held, over), so replies and messages may come in any order.

use crate::error::LostReason;
use redis::RedisError;
use std::time::Duration;
use tokio::time::Instant;

/// What the server said about a request that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted {
        token: u64,
    },
    /// `seq` is the lock's counter at that moment: later grants have greater tokens.
    Queued {
        ticket: u64,
        seq: u64,
    },
}

/// How a request stands, as a renewal reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Holds { token: u64 },
    Waits,
    Unknown,
}

#[derive(Debug)]
enum Phase {
    /// No reply yet; perhaps a message.
    Asked {
        heard: Option<u64>,
    },
    /// `asked`: when the call was sent that was answered so.
    Waiting {
        ticket: u64,
        seq: u64,
        asked: Instant,
    },
    /// Granted, but not yet in its user's hands. `since`: a call sent later was executed later.
    Granted {
        ticket: Option<u64>,
        token: u64,
        since: Instant,
    },
    Held {
        since: Instant,
        until: Option<Instant>,
    },
    Over(End),
}

/// How a request ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// Its user let go of it.
    Released,
    /// It lost its place before its user had the guard; it may ask again, with its ticket.
    Displaced {
        ticket: Option<u64>,
    },
    Lost(LostReason),
    Failed(RedisError),
}

/// What the one who waits for the guard has to do.
#[derive(Debug)]
pub(crate) enum Next {
    HandOut {
        token: u64,
    },
    /// Granted, but the proof is too old: ask the server first.
    Renew,
    Ended(End),
}

#[derive(Debug)]
pub(crate) struct Claim {
    phase: Phase,
    lease: Duration,
    max_hold: Duration,
    /// The server keeps the request at least until then, whatever it is doing.
    proven: Option<Instant>,
    /// When the last call that was answered about it had been sent.
    renewed: Instant,
    /// A message may have been missed before then: ask soon.
    doubted: Option<Instant>,
    /// The keeper has been told that it is lost.
    reported: bool,
}

impl Claim {
    pub(crate) fn new(lease: Duration, max_hold: Duration, now: Instant) -> Self {
        Self {
            phase: Phase::Asked { heard: None },
            lease,
            max_hold,
            proven: None,
            renewed: now,
            doubted: None,
            reported: false,
        }
    }

    /// Clocks may run at rates that differ, and the server counts whole milliseconds.
    fn margin(&self) -> Duration {
        (self.lease / 50).max(Duration::from_millis(2))
    }

    /// A call sent then has been answered: the server gave it the lease after that.
    fn prove(&mut self, sent: Instant, lease: Duration) {
        let proven = sent + lease.saturating_sub(self.margin());
        self.proven = self.proven.max(Some(proven));
        self.renewed = self.renewed.max(sent);
        self.doubted = self.doubted.filter(|doubted| sent < *doubted);
    }

    /// A message may have been missed. Says whether that matters.
    pub(crate) fn doubt(&mut self, now: Instant) -> bool {
        let waits = self.is_waiting();
        self.doubted = waits.then_some(now);
        waits
    }

    pub(crate) fn answered(&mut self, sent: Instant, answer: Answer) {
        if matches!(self.phase, Phase::Over(_)) {
            return;
        }
        self.prove(sent, self.lease);
        // It was granted after that.
        let since = sent;
        self.phase = match (&self.phase, answer) {
            (Phase::Asked { .. }, Answer::Granted { token }) => Phase::Granted {
                ticket: None,
                token,
                since,
            },
            (&Phase::Waiting { ticket, .. }, Answer::Granted { token }) => Phase::Granted {
                ticket: Some(ticket),
                token,
                since,
            },
            // A message with an older token is of a former life under the same name: see design.md.
            (&Phase::Asked { heard: Some(token) }, Answer::Queued { ticket, seq }) if token > seq => Phase::Granted {
                ticket: Some(ticket),
                token,
                since,
            },
            (Phase::Asked { .. }, Answer::Queued { ticket, seq }) => Phase::Waiting {
                ticket,
                seq,
                asked: sent,
            },
            _ => return,
        };
    }

    /// A message says that it was granted. Says whether that changes anything.
    ///
    /// Token 0 says that it was evicted.
    pub(crate) fn heard(&mut self, now: Instant, token: u64) -> bool {
        if token == 0 {
            return self.end(End::Lost(LostReason::Evicted));
        }
        match self.phase {
            Phase::Asked { heard } => {
                self.phase = Phase::Asked {
                    heard: heard.max(Some(token)),
                };
                false
            }
            Phase::Waiting { ticket, seq, asked } if token > seq => {
                // Tokens follow the server's clock. This one seems to be of before a call that was told "waiting": then the
                // grant is over, and an acquire that the network had kept has put the request into the queue again. Ask.
                let renewed_after = self.renewed.saturating_duration_since(asked).as_micros() as u64;
                if token < seq.saturating_add(renewed_after) {
                    self.proven = None;
                }
                self.phase = Phase::Granted {
                    ticket: Some(ticket),
                    token,
                    since: now,
                };
                true
            }
            _ => false,
        }
    }

    /// The lease to ask for in a renewal: less than its own when `max_hold` ends before. `None`: not to be renewed.
    pub(crate) fn renewal(&mut self, now: Instant) -> Option<Duration> {
        self.lapse(now);
        match self.phase {
            Phase::Waiting { .. } | Phase::Granted { .. } => Some(self.lease),
            Phase::Held { until, .. } => {
                let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
                Some(self.lease.min(left.saturating_add(self.margin())))
            }
            Phase::Asked { .. } | Phase::Over(_) => None,
        }
    }

    /// A renewal for `lease`, sent at `sent`, was answered. Says whether whoever watches should look.
    pub(crate) fn renewed(&mut self, sent: Instant, now: Instant, lease: Duration, standing: Standing) -> bool {
        self.lapse(now);
        match (&self.phase, standing) {
            (Phase::Over(_) | Phase::Asked { .. }, _) => return false,
            // It had been granted, and waits again: the server went back to an earlier state. An older call proves nothing.
            (&Phase::Held { since, .. }, Standing::Waits) if sent > since => {
                self.phase = Phase::Over(End::Lost(LostReason::UnknownToServer));
                return true;
            }
            (&Phase::Granted { since, ticket, token }, Standing::Waits) if sent > since => {
                // No ticket: it never waited here before. Its token will do, it is as old as the request.
                let ticket = ticket.unwrap_or(token);
                self.phase = Phase::Waiting {
                    ticket,
                    seq: token,
                    asked: sent,
                };
            }
            // It was granted once more since the message.
            (&Phase::Granted { ticket, token, since }, Standing::Holds { token: newer }) if newer > token => {
                let token = newer;
                self.phase = Phase::Granted { ticket, token, since };
            }
            (Phase::Held { .. }, Standing::Unknown) => {
                self.phase = Phase::Over(End::Lost(LostReason::UnknownToServer));
                return true;
            }
            (_, Standing::Unknown) => {
                self.phase = Phase::Over(End::Displaced { ticket: self.ticket() });
                return true;
            }
            _ => {}
        }
        self.prove(sent, lease);
        if let (&Phase::Waiting { ticket, .. }, Standing::Holds { token }) = (&self.phase, standing) {
            self.phase = Phase::Granted {
                ticket: Some(ticket),
                token,
                since: now,
            };
        }
        matches!(self.phase, Phase::Granted { .. })
    }

    /// The step of the one who waits for the guard. `None`: to wait.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Next> {
        Some(match &self.phase {
            Phase::Asked { .. } | Phase::Waiting { .. } | Phase::Held { .. } => return None,
            Phase::Granted { .. } if self.proven.is_none_or(|proven| proven <= now) => Next::Renew,
            &Phase::Granted { token, since, .. } => {
                self.phase = Phase::Held {
                    since,
                    until: now.checked_add(self.max_hold),
                };
                Next::HandOut { token }
            }
            Phase::Over(end) => Next::Ended(end.clone()),
        })
    }

    /// Until when a hold is certain. `None`: it is not held.
    pub(crate) fn held_until(&mut self, now: Instant) -> Option<Instant> {
        self.lapse(now);
        match self.phase {
            Phase::Held { until, .. } => self.proven.min(until.or(self.proven)),
            _ => None,
        }
    }

    /// What is left of its `max_hold`.
    pub(crate) fn limit_left(&self, now: Instant) -> Duration {
        match self.phase {
            Phase::Held { until: Some(until), .. } => until.saturating_duration_since(now),
            _ => Duration::MAX,
        }
    }

    /// Its user let go of it and the server may not know yet. Not so a hold that was lost: nobody releases that soon.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Over(End::Released | End::Failed(_)))
    }

    /// A hold whose proof has run out is lost, for ever: its user may have been told.
    fn lapse(&mut self, now: Instant) {
        if let Phase::Held { until, .. } = self.phase {
            if until.is_some_and(|until| until <= now) {
                self.phase = Phase::Over(End::Lost(LostReason::MaxHold));
            } else if self.proven.is_none_or(|proven| proven <= now) {
                self.phase = Phase::Over(End::Lost(LostReason::LeaseExpired));
            }
        }
    }

    /// When the keeper should look at it next.
    pub(crate) fn due(&self) -> Option<Instant> {
        let renewal = self.renewed + self.lease / 3;
        match self.phase {
            Phase::Asked { .. } | Phase::Over(_) => None,
            Phase::Held { until, .. } => Some(until.map_or(renewal, |until| until.min(renewal))),
            _ if self.doubted.is_some() => Some(self.renewed),
            _ => Some(renewal),
        }
    }

    /// Ends it, unless it is over already; says whether it was not.
    pub(crate) fn end(&mut self, end: End) -> bool {
        if matches!(self.phase, Phase::Over(_)) {
            return false;
        }
        self.phase = Phase::Over(end);
        true
    }

    pub(crate) fn ended(&self) -> Option<&End> {
        match &self.phase {
            Phase::Over(end) => Some(end),
            _ => None,
        }
    }

    /// Whether it is lost and the keeper has not been told yet.
    pub(crate) fn report_loss(&mut self) -> bool {
        let lost = matches!(self.phase, Phase::Over(End::Lost(_)));
        lost && !std::mem::replace(&mut self.reported, true)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
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

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(1000);
    const QUEUED: Answer = Answer::Queued { ticket: 7, seq: 10 };

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn claim() -> (Claim, Instant) {
        let now = Instant::now();
        (Claim::new(LEASE, Duration::MAX, now), now)
    }

    fn handed_out(claim: &mut Claim, now: Instant) -> Option<u64> {
        match claim.next(now) {
            Some(Next::HandOut { token }) => Some(token),
            _ => None,
        }
    }

    #[test]
    fn a_lease_counts_from_the_sending_less_a_margin() {
        let (mut claim, t) = claim();
        claim.answered(t, Answer::Granted { token: 1 });
        assert_eq!(handed_out(&mut claim, t + ms(900)), Some(1));
        assert_eq!(claim.held_until(t + ms(979)), Some(t + ms(980)));
        assert_eq!(claim.held_until(t + ms(980)), None);
    }

    #[test]
    fn a_lapsed_hold_stays_lost_though_a_late_renewal_succeeds() {
        let (mut claim, t) = claim();
        claim.answered(t, Answer::Granted { token: 1 });
        assert!(handed_out(&mut claim, t).is_some());
        assert!(!claim.renewed(t + ms(900), t + ms(990), LEASE, Standing::Holds { token: 1 }));
        assert_eq!(claim.held_until(t + ms(990)), None);
    }

    #[test]
    fn a_message_of_before_a_renewal_that_was_told_waiting_is_believed_only_when_the_server_says_so() {
        let (mut claim, t) = claim();
        claim.answered(t, QUEUED);
        claim.renewed(t + ms(300), t + ms(301), LEASE, Standing::Waits);
        // Granted 100 ms after it had queued.
        assert!(claim.heard(t + ms(400), 100_010));
        assert!(matches!(claim.next(t + ms(400)), Some(Next::Renew)));
        claim.renewed(t + ms(401), t + ms(402), LEASE, Standing::Waits);
        assert!(claim.next(t + ms(402)).is_none());
        assert!(!claim.heard(t + ms(403), 100_010));
        // And one of afterwards.
        assert!(claim.heard(t + ms(500), 450_010));
        assert_eq!(handed_out(&mut claim, t + ms(500)), Some(450_010));
    }

    #[test]
    fn a_grant_that_was_repeated_has_its_last_token() {
        let (mut claim, t) = claim();
        claim.answered(t, QUEUED);
        claim.renewed(t + ms(300), t + ms(301), LEASE, Standing::Waits);
        assert!(claim.heard(t + ms(400), 100_010));
        assert!(claim.renewed(t + ms(401), t + ms(402), LEASE, Standing::Holds { token: 350_010 }));
        assert_eq!(handed_out(&mut claim, t + ms(402)), Some(350_010));
    }

    #[test]
    fn a_grant_is_not_handed_out_when_its_proof_has_run_out() {
        let (mut claim, t) = claim();
        claim.answered(t, QUEUED);
        assert!(claim.heard(t + ms(500), 11));
        assert!(matches!(claim.next(t + ms(980)), Some(Next::Renew)));
        assert!(claim.renewed(t + ms(985), t + ms(986), LEASE, Standing::Holds { token: 11 }));
        assert_eq!(handed_out(&mut claim, t + ms(987)), Some(11));
    }

    #[test]
    fn a_message_alone_proves_nothing_about_time() {
        let (mut claim, t) = claim();
        assert!(!claim.heard(t, 11));
        assert!(claim.next(t).is_none());
        claim.answered(t, QUEUED);
        assert_eq!(handed_out(&mut claim, t), Some(11));
    }

    #[test]
    fn a_message_of_a_former_life_is_ignored_before_and_after_the_reply() {
        let (mut claim, t) = claim();
        claim.heard(t, 9);
        claim.answered(t, QUEUED);
        assert!(claim.next(t).is_none());
        assert!(!claim.heard(t, 10));
        assert!(claim.next(t).is_none());
        assert!(claim.heard(t, 11));
    }

    #[test]
    fn a_late_queued_reply_does_not_take_a_grant_back() {
        let (mut claim, t) = claim();
        claim.answered(t, Answer::Granted { token: 3 });
        claim.answered(t, QUEUED);
        assert_eq!(handed_out(&mut claim, t), Some(3));
    }

    #[test]
    fn a_waiter_that_the_server_forgot_asks_again_with_its_ticket() {
        let (mut claim, t) = claim();
        claim.answered(t, QUEUED);
        assert!(claim.renewed(t, t, LEASE, Standing::Unknown));
        assert!(matches!(
            claim.next(t),
            Some(Next::Ended(End::Displaced { ticket: Some(7) }))
        ));
    }

    #[test]
    fn a_holder_that_the_server_forgot_has_lost() {
        let (mut claim, t) = claim();
        claim.answered(t, Answer::Granted { token: 1 });
        assert!(handed_out(&mut claim, t).is_some());
        assert!(claim.renewed(t, t, LEASE, Standing::Unknown));
        assert!(matches!(claim.ended(), Some(End::Lost(LostReason::UnknownToServer))));
    }

    #[test]
    fn a_hold_that_waits_again_after_the_server_went_back_is_lost() {
        let (mut claim, t) = claim();
        claim.answered(t, QUEUED);
        assert!(claim.heard(t + ms(10), 11));
        assert!(handed_out(&mut claim, t + ms(11)).is_some());
        claim.renewed(t + ms(9), t + ms(12), LEASE, Standing::Waits);
        assert!(
            claim.held_until(t + ms(12)).is_some(),
            "that call was executed before the grant"
        );
        assert!(claim.renewed(t + ms(13), t + ms(14), LEASE, Standing::Waits));
        assert!(matches!(claim.ended(), Some(End::Lost(LostReason::UnknownToServer))));
        assert!(claim.report_loss(), "its place in the queue is given up");
    }

    #[test]
    fn a_grant_that_waits_again_after_the_server_went_back_is_not_handed_out() {
        let (mut claim, t) = claim();
        claim.answered(t, QUEUED);
        assert!(claim.heard(t + ms(10), 11));
        assert!(!claim.renewed(t + ms(11), t + ms(12), LEASE, Standing::Waits));
        assert!(claim.next(t + ms(12)).is_none());
        assert!(!claim.heard(t + ms(13), 11), "the message of the former grant");
        assert!(claim.heard(t + ms(13), 12));
    }

    #[test]
    fn max_hold_cuts_renewals_and_ends_the_hold() {
        let t = Instant::now();
        let mut claim = Claim::new(LEASE, ms(2500), t);
        claim.answered(t, Answer::Granted { token: 1 });
        assert!(handed_out(&mut claim, t).is_some());
        for sent in [600, 1200, 1800] {
            let lease = claim.renewal(t + ms(sent)).expect("held");
            claim.renewed(t + ms(sent), t + ms(sent), lease, Standing::Holds { token: 1 });
        }
        assert_eq!(
            claim.renewal(t + ms(2000)),
            Some(ms(520)),
            "what is left, and the margin"
        );
        assert!(claim.held_until(t + ms(2499)).is_some());
        assert_eq!(claim.held_until(t + ms(2500)), None);
        assert!(matches!(claim.ended(), Some(End::Lost(LostReason::MaxHold))));
    }

    #[test]
    fn a_doubted_wait_is_due_until_a_later_call_is_answered() {
        let (mut claim, t) = claim();
        claim.answered(t, QUEUED);
        assert!(claim.doubt(t + ms(10)));
        claim.renewed(t + ms(5), t + ms(12), LEASE, Standing::Waits);
        assert!(
            claim.due() <= Some(t + ms(10)),
            "that call may have been executed before"
        );
        claim.renewed(t + ms(11), t + ms(13), LEASE, Standing::Waits);
        assert!(claim.due() > Some(t + ms(300)));
    }

    #[test]
    fn nothing_happens_to_a_claim_that_is_over() {
        let (mut claim, t) = claim();
        assert!(claim.end(End::Released));
        claim.answered(t, Answer::Granted { token: 1 });
        assert!(!claim.heard(t, 5));
        assert!(!claim.renewed(t, t, LEASE, Standing::Holds { token: 1 }));
        assert!(!claim.end(End::Lost(LostReason::Shutdown)));
        assert!(matches!(claim.next(t), Some(Next::Ended(End::Released))));
        assert_eq!(claim.renewal(t), None);
    }
}
