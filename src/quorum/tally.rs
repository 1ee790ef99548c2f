//! The tally: the votes of one request, what they add up to, and what a server should be asked next. It does no I/O, and
//! time is an argument.
//!
//! A vote is a request at one server: a claim, as any other client's. The tally does not hand a granted claim out before a
//! majority is granted; then it hands all of them out in one step. From then on each vote is a hold that the watchdog
//! renews, and the quorum's hold lasts while a majority of them does.

use super::rules;
use crate::protocol::reply::Standing;
use crate::state::claim::{EndedBy, Outcome};
use crate::state::request::Request;
use crate::types::error::{Error, LostReason};
use crate::types::limits::call_limit;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use vote::{Refusal, Vote};

/// After this time, or a third of the lease, a waiter that was granted a vote places it again: a request before it may have
/// come to that server since. After that time a holder places itself where it lacks a vote: a hand-over costs no place.
const PLACED_AGAIN: Duration = Duration::from_secs(1);

pub(super) enum Phase {
    Asks,
    Holds {
        /// The greatest token of the votes with which the hold began, or that of another hold of its owner if that is greater.
        token: u64,
        since: Instant,
        /// The end of its `max_hold`, once the user has the guard.
        until: Option<Instant>,
    },
    Over(End),
}

impl Phase {
    /// Why the hold was lost.
    pub(super) fn lost(&self) -> Option<LostReason> {
        match self {
            Self::Over(End::Lost(reason)) => Some(*reason),
            _ => None,
        }
    }
}

/// How a request of a quorum ended.
pub(super) enum End {
    /// The user released the hold or gave the request up.
    Left,
    /// A try, and no majority could be had at once.
    Busy,
    Lost(LostReason),
    /// The caller takes the error once.
    Failed(Option<Error>),
}

/// What to do next about one vote.
pub(super) enum Step {
    /// The request is over or will not be used: ask again, under a new name.
    AskAgain,
    /// Tell the server the ticket, and the token of the grant that the vote gives up for it.
    Place(Arc<Request>, u64, Option<u64>),
    /// Look again then, or when something changes.
    Wait(Option<Instant>),
    Leave,
}

pub(super) struct Tally {
    pub(super) votes: Vec<Vote>,
    pub(super) phase: Phase,
    /// Where the request stands at all servers, once a majority has answered.
    pub(super) ticket: Option<u64>,
    lease: Duration,
    max_hold: Duration,
    reason: LostReason,
    /// Since when the request has the answers of a majority and asks for votes.
    asks_since: Option<Instant>,
    /// The waiter has left its places, because no majority is in reach. The servers that have answered since.
    recess: Option<BTreeSet<usize>>,
    /// Since when so many servers deny their vote that no majority is left.
    denied_since: Option<Instant>,
    /// Since when a server refuses the request for the sake of another one, and no majority keeps this one.
    conflict_since: Option<Instant>,
}

impl Tally {
    pub(super) fn new(servers: usize, lease: Duration, max_hold: Duration) -> Self {
        Self {
            votes: (0..servers).map(|_| Vote::default()).collect(),
            phase: Phase::Asks,
            ticket: None,
            lease,
            max_hold,
            reason: LostReason::LeaseExpired,
            asks_since: None,
            recess: None,
            denied_since: None,
            conflict_since: None,
        }
    }

    pub(super) fn majority(&self) -> usize {
        rules::majority(self.votes.len())
    }

    /// Whether this is the first time that the server is asked.
    pub(super) fn is_first(&mut self, at: usize) -> bool {
        !std::mem::replace(&mut self.votes[at].asked, true)
    }

    /// Where the request shall stand at every server.
    fn place(&self) -> Option<u64> {
        match self.phase {
            Phase::Holds { .. } => rules::place_of_holder().or(self.ticket),
            _ => self.ticket,
        }
    }

    /// The old ticket with which a vote asks again.
    pub(super) fn old_ticket(&self, at: usize) -> Option<u64> {
        self.place().or(self.votes[at].number)
    }

    /// The rest of the `max_hold`.
    pub(super) fn limit_left(&self, now: Instant) -> Duration {
        match self.phase {
            Phase::Holds { until: Some(until), .. } => until.saturating_duration_since(now),
            // The user does not have the guard yet.
            _ => Duration::MAX,
        }
    }

    /// The user gets the guard now: its `max_hold` begins.
    pub(super) fn limit(&mut self, now: Instant) {
        if let Phase::Holds { until, .. } = &mut self.phase {
            *until = now.checked_add(self.max_hold);
        }
        for request in self.votes.iter().filter_map(|vote| vote.request.as_ref()) {
            request.claim().limit(now, self.max_hold);
        }
    }

    /// A server is going to be asked for a request.
    pub(super) fn on_ask(&mut self, at: usize, request: &Arc<Request>) {
        self.votes[at].asks = Some(Arc::clone(request));
    }

    /// A server answered an acquire that named `ticket` as its old ticket, if any, and was sent after `asked`. Returns whether
    /// that makes the answers those of a majority.
    pub(super) fn on_answer(
        &mut self,
        at: usize,
        request: Arc<Request>,
        ticket: Option<u64>,
        asked: Instant,
        now: Instant,
    ) -> bool {
        let (standing, place) = (request.claim().standing(), self.place());
        let vote = &mut self.votes[at];
        if let Some((number, waits)) = standing {
            vote.number = vote.number.or(Some(number));
            vote.waited |= waits;
            // With an old ticket it stands there. Otherwise the server may have drawn the same one.
            let stands_at = if waits { Some(number) } else { ticket };
            vote.settled = (stands_at.is_some() && stands_at == place).then_some(now);
        }
        vote.request = Some(request);
        vote.asks = None;
        vote.asked_at = Some(asked);
        (vote.placing, vote.is_void, vote.renounced) = (false, false, 0);
        (vote.token, vote.refused) = (None, None);
        if self.asks_since.is_none() && self.is_answered() {
            self.asks_since = Some(now);
            return true;
        }
        false
    }

    pub(super) fn on_busy(&mut self, at: usize) {
        self.votes[at].asks = None;
        self.votes[at].busy = true;
    }

    /// `lasts`: a later call will not be answered otherwise.
    pub(super) fn on_refusal(&mut self, at: usize, error: Error, asked: Instant, lasts: bool) {
        self.votes[at].refused = Some(Refusal { error, asked, lasts });
    }

    /// A server did not answer. Nobody knows whether it would still refuse.
    pub(super) fn on_silence(&mut self, at: usize) {
        self.votes[at].refused = None;
    }

    /// Nobody knows what became of a place that gives a grant up.
    pub(super) fn is_void(&mut self, at: usize) {
        self.votes[at].is_void = true;
    }

    /// The place was not executed.
    pub(super) fn on_unplaced(&mut self, at: usize) {
        self.votes[at].placing = false;
    }

    /// The server answered a place at that ticket. The claim knows already.
    pub(super) fn on_place(&mut self, at: usize, ticket: u64, given_up: Option<u64>, standing: Standing, now: Instant) {
        // A place may be answered after the hold has begun, which has another one.
        let settled = (self.place() == Some(ticket)).then_some(now);
        let vote = &mut self.votes[at];
        vote.placing = false;
        match standing {
            Standing::Waits { seq } => {
                vote.renounced = vote.renounced.max(seq);
                vote.settled = settled;
            }
            Standing::Holds { .. } if given_up.is_some() => vote.settled = settled,
            Standing::Holds { .. } | Standing::Unknown => {}
        }
    }

    /// Whether the hold counts, or counted, a vote of that server.
    pub(super) fn keeps(&self, at: usize) -> bool {
        matches!(self.phase, Phase::Holds { .. }) && self.votes[at].token.is_some()
    }

    /// Takes the name of a vote that asks again or ends.
    pub(super) fn take(&mut self, at: usize) -> Option<Arc<Request>> {
        let vote = &mut self.votes[at];
        (vote.settled, vote.token) = (None, None);
        vote.request.take()
    }

    /// The requests that servers were asked for and have not answered yet.
    pub(super) fn asked(&self) -> Vec<(usize, Arc<Request>)> {
        let votes = self.votes.iter().enumerate();
        votes.filter_map(|(at, vote)| Some((at, vote.asks.clone()?))).collect()
    }

    /// Counts. `trusted`: since when each server forgets no hold that may last, if it is connected. A hold begins with
    /// votes that were asked for after that. Returns whether the phase has changed.
    pub(super) fn weigh(&mut self, clock: impl Fn() -> Instant, trusted: impl Fn(usize) -> Option<Instant>) -> bool {
        let now = clock();
        let holds = matches!(self.phase, Phase::Holds { .. });
        let counts = |(at, vote): (usize, &Vote)| {
            let token = vote.granted(now)?;
            let from = trusted(at)?;
            rules::is_trusted(from <= now, vote.is_older_than(from), holds).then_some((at, token))
        };
        let granted: Vec<_> = self.votes.iter().enumerate().filter_map(counts).collect();
        match self.phase {
            // In a recess all votes are on their way out.
            Phase::Asks if granted.len() >= self.majority() && self.recess.is_none() => {
                let token = rules::token(granted.iter().map(|(_, token)| *token));
                self.hand_out(&granted, now);
                self.phase = Phase::Holds {
                    token,
                    since: now,
                    until: None,
                };
                self.votes.iter_mut().for_each(|vote| vote.settled = None);
                true
            }
            Phase::Asks if self.recess_at().is_some_and(|at| at <= now) => {
                self.recess = Some(BTreeSet::new());
                self.conflict_since = None;
                true
            }
            Phase::Asks => self.gives_up(now),
            Phase::Holds { .. } => {
                // A vote that was granted after the proof of the majority had ended saves no hold, because others may have
                // been inside. So the clock is read after the look at the votes, and the vote is gained last.
                let is_lost = self.held_until(clock()).is_none();
                if is_lost {
                    self.phase = Phase::Over(End::Lost(self.reason));
                } else {
                    self.hand_out(&granted, now);
                }
                is_lost
            }
            Phase::Over(_) => false,
        }
    }

    /// When a waiter leaves its places: when no majority has been proven for a while. Otherwise it might keep the votes of a
    /// minority from others for ever.
    fn recess_at(&self) -> Option<Instant> {
        let asked = self.asks_since? + self.lease;
        if self.recess.is_some() || !matches!(self.phase, Phase::Asks) {
            return None;
        }
        let proven = |vote: &Vote| vote.request.as_ref()?.claim().proven_until();
        let mut proven: Vec<_> = self.votes.iter().filter_map(proven).collect();
        proven.sort_unstable_by(|a, b| b.cmp(a));
        let last = proven
            .get(self.majority() - 1)
            .map_or(asked, |proven| asked.max(*proven));
        Some(last + call_limit(self.lease) * 2)
    }

    pub(super) fn is_in_recess(&self) -> bool {
        self.recess.is_some() && !matches!(self.phase, Phase::Over(_))
    }

    /// A server answers again. Returns whether this one still waits for others to do so.
    pub(super) fn on_knock(&mut self, at: usize, now: Instant) -> bool {
        let majority = self.majority();
        let Some(answered) = &mut self.recess else { return false };
        answered.insert(at);
        if answered.len() >= majority {
            self.recess = None;
            self.asks_since = Some(now);
        }
        self.recess.is_some()
    }

    fn hand_out(&mut self, granted: &[(usize, u64)], now: Instant) {
        let left = self.limit_left(now);
        for (at, _) in granted {
            let vote = &mut self.votes[*at];
            let Some(request) = &vote.request else { continue };
            let mut claim = request.claim();
            if let Some(Outcome::HandOut(grant)) = claim.poll_outcome(now) {
                claim.limit(now, left);
                vote.token = Some(grant.token);
            }
        }
    }

    /// Whether no majority can be had any more. What servers refused at different times does not add up: once so many have
    /// refused, each of them has to refuse a later call too.
    fn gives_up(&mut self, now: Instant) -> bool {
        if !self.is_in_conflict() {
            self.conflict_since = None;
        } else {
            let due = *self.conflict_since.get_or_insert(now) + self.lease;
            if let Some(conflict) = self.votes.iter_mut().find_map(|vote| vote.take_conflict(due)) {
                self.phase = Phase::Over(End::Failed(Some(conflict)));
                return true;
            }
        }
        let without = |vote: &&Vote| vote.busy || vote.refused.is_some() || vote.is_evicted();
        let spare = self.votes.len() - self.majority();
        if self.votes.iter().filter(without).count() <= spare {
            self.denied_since = None;
            return false;
        }
        let since = *self.denied_since.get_or_insert(now);
        let mut refusals = self.votes.iter().filter_map(|vote| vote.refused.as_ref());
        if refusals.any(|refusal| !refusal.lasts && refusal.asked < since) {
            return false;
        }
        if self.votes.iter().any(Vote::is_evicted) {
            self.phase = Phase::Over(End::Lost(LostReason::Evicted));
            return true;
        }
        // Only a majority can say that the lock is busy.
        let refused = self.votes.iter().filter(|vote| vote.refused.is_some()).count();
        let heard = self.votes.iter().filter(|vote| vote.is_heard()).count();
        if refused <= spare && heard < self.majority() {
            return false;
        }
        let refusals = self.votes.iter_mut().filter_map(|vote| vote.refused.take());
        let errors: Vec<_> = refusals.map(|refusal| refusal.error).collect();
        // A minority that refuses cannot deny what the others say.
        self.phase = Phase::Over(match errors.len() <= spare {
            true => End::Busy,
            false => End::Failed(rules::failure(errors, spare)),
        });
        true
    }

    /// Of two requests that upgrade, or that have one owner, a server takes one. Each may stand where the other is refused, and
    /// neither at a majority, because a server is away. Then one has to leave.
    fn is_in_conflict(&self) -> bool {
        let stands = |vote: &&Vote| vote.request.is_some();
        self.recess.is_none()
            && self.votes.iter().any(Vote::is_in_conflict)
            && self.votes.iter().filter(stands).count() < self.majority()
    }

    /// The ticket that the answers of a majority make, if the request has to wait: the greatest of their numbers.
    pub(super) fn ticket_to_take(&self) -> Option<u64> {
        let numbers: Vec<_> = self.votes.iter().filter_map(|vote| vote.number).collect();
        let waits = self.votes.iter().any(|vote| vote.waited);
        let is_due = matches!(self.phase, Phase::Asks) && self.ticket.is_none();
        (is_due && waits && numbers.len() >= self.majority()).then(|| rules::place(&numbers))?
    }

    pub(super) fn take_ticket(&mut self, ticket: u64, now: Instant) {
        self.ticket = Some(ticket);
        self.asks_since = Some(now);
        for vote in self.votes.iter_mut().filter(|vote| vote.number == Some(ticket)) {
            vote.settled = Some(now);
        }
    }

    /// Until when the hold is certain: the proof that as many votes as a majority has outlast.
    pub(super) fn held_until(&mut self, now: Instant) -> Option<Instant> {
        let Phase::Holds { until, .. } = self.phase else {
            return None;
        };
        let mut proven: Vec<_> = self.votes.iter().filter_map(|vote| vote.held_until(now)).collect();
        let reason = |vote: &Vote| match vote.request.as_ref()?.claim().ended() {
            Some(EndedBy::Lost(reason)) => Some(*reason),
            _ => None,
        };
        self.reason = self.votes.iter().find_map(reason).unwrap_or(self.reason);
        if until.is_some_and(|until| until <= now) {
            self.reason = LostReason::MaxHold;
            return None;
        }
        proven.sort_unstable_by(|a, b| b.cmp(a));
        let proven = proven.get(self.majority() - 1).copied()?;
        Some(until.map_or(proven, |until| until.min(proven)))
    }

    /// What to do next about one vote.
    pub(super) fn step(&mut self, at: usize, now: Instant, trusted: Option<Instant>) -> Step {
        let held_until = match self.phase {
            Phase::Over(_) => return Step::Leave,
            Phase::Holds { .. } => self.held_until(now),
            Phase::Asks => None,
        };
        let vote = &self.votes[at];
        // First, because an evicted vote does not come back after a recess either.
        if vote.is_evicted() {
            return Step::Wait(held_until.or(self.recess_at()));
        }
        let is_used = !vote.is_void && self.recess.is_none();
        let Some(request) = vote.request.as_ref().filter(|_| is_used) else {
            return Step::AskAgain;
        };
        if let Some(end) = request.claim().ended() {
            if let EndedBy::Lost(reason) = end {
                self.reason = *reason;
            }
            return Step::AskAgain;
        }
        let is_old = |from: Instant| matches!(self.phase, Phase::Asks) && vote.is_older_than(from);
        if trusted.is_some_and(|from| from <= now && is_old(from)) {
            return Step::AskAgain;
        }
        let offered = request.claim().offered();
        // The server went back to an earlier state, and tells a grant that the vote gave up.
        if offered.is_some_and(|(token, _)| token <= vote.renounced) {
            return Step::AskAgain;
        }
        let place = self.next_place(vote, offered.map(|(_, since)| since), now);
        if let Some((ticket, _)) = place.filter(|(_, due)| *due <= now) {
            let (request, given_up) = (Arc::clone(request), offered.map(|(token, _)| token));
            // In the same step as the decision, so that nobody counts the grant meanwhile.
            self.votes[at].placing = given_up.is_some();
            return Step::Place(request, ticket, given_up);
        }
        let trusted = trusted.filter(|from| *from > now && (offered.is_some() || is_old(*from)));
        let due = place.map(|(_, due)| due);
        Step::Wait([held_until, due, trusted, self.recess_at()].into_iter().flatten().min())
    }

    /// Where and when the vote is placed next. `offered`: since when it is granted and not handed out.
    fn next_place(&self, vote: &Vote, offered: Option<Instant>, now: Instant) -> Option<(u64, Instant)> {
        let (ticket, pause) = (self.place()?, PLACED_AGAIN.min(self.lease / 3));
        let due = match (&self.phase, vote.settled, offered) {
            (Phase::Asks, None, _) => now,
            // A later grant was to the head of the queue: nobody was before the place then.
            (Phase::Asks, Some(settled), Some(since)) => settled.max(since) + pause,
            // A waiter has the vote. It gives the vote to those before it.
            (Phase::Holds { since, .. }, None, None) if vote.token.is_none() => *since + pause,
            _ => return None,
        };
        Some((ticket, due))
    }

    /// Whether a majority has answered.
    pub(super) fn is_answered(&self) -> bool {
        self.votes.iter().filter(|vote| vote.is_answered()).count() >= self.majority()
    }

    /// How many votes hold.
    pub(super) fn held(&self, now: Instant) -> usize {
        self.votes.iter().filter(|vote| vote.held_until(now).is_some()).count()
    }
}

#[cfg(feature = "__testing")]
pub(crate) mod seam;
#[cfg(test)]
mod tests;
mod vote;
