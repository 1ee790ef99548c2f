//! What is for votes alone: their tickets, and `place`. See *Numbers* and *A majority* in PROTOCOL.md.

use super::step::{Step, UNKNOWN};
use super::{BAND, Lock, Request, number, owner_of, writes};
use crate::record::What;

/// The tickets of votes are multiples of it.
const STEP: u64 = 16;

/// The ticket of a vote that goes by the clock is the next multiple of so many us.
const WINDOW: u64 = 1 << 14;

impl Lock {
    /// Which part of the queue is the request's, unless it waits to upgrade.
    fn band(&self, request: &str) -> i64 {
        match self.policy.flatten() {
            Some(b'w') if !writes(request) => BAND,
            Some(b'r') if writes(request) => BAND,
            _ => 0,
        }
    }

    /// Whether no other hold keeps this request's owner inside.
    fn is_alone(&self, request: &str) -> bool {
        let inside = self.owners.get(owner_of(request));
        inside.is_some_and(|inside| inside.reads + inside.writes == 1)
    }
}

impl Step<'_> {
    /// A new ticket that other servers draw too.
    pub(super) fn votes_ticket(&mut self) -> u64 {
        let next = |number: u64, multiple: u64| (number / multiple + 1) * multiple;
        self.lock.seq = next(self.now_us, WINDOW).max(next(self.lock.seq, STEP));
        self.lock.seq
    }

    /// Request, lease, ticket, token, counter.
    pub(super) fn place(&mut self, args: &[&str]) -> Vec<i64> {
        let &[request, lease_ms, ticket, given_up, least] = args else {
            panic!("not the arguments of place: {args:?}");
        };
        let read = |text: &str| (!text.is_empty()).then(|| number(text));
        let (ticket, given_up, least) = (read(ticket), read(given_up), read(least));
        if self.lock.requests.contains_key(request) {
            self.lease(request, number(lease_ms));
        }
        self.sweep();
        let mut stands = self.stands(request);
        if stands.is_some() {
            let seq = self.lock.seq.max(ticket.unwrap_or(0));
            self.lock.seq = seq.max(least.unwrap_or(0));
            self.lock.last_ms = self.lock.last_ms.max(least.unwrap_or(0) / 1000);
        }
        if let (Some(_), Some(ticket)) = (stands, ticket) {
            self.put_at(request, ticket, given_up);
            stands = self.stands(request);
        }
        vec![self.next_ms(), self.lock.first as i64, stands.unwrap_or(-1)]
    }

    /// As a renewal tells it; `None`: the server does not know the request.
    fn stands(&self, request: &str) -> Option<i64> {
        let Request { score, .. } = self.lock.requests.get(request)?;
        Some(match score {
            Some(_) => -(self.lock.seq as i64),
            None => self.lock.token as i64,
        })
    }

    fn put_at(&mut self, request: &str, ticket: u64, given_up: Option<u64>) {
        let place = ticket as i64 + self.lock.band(request);
        let Request { deadline_ms, score } = self.lock.requests[request];
        match score {
            Some(score) if score < 0 => return,
            Some(_) => {
                self.lock.end(request);
            }
            None => {
                let is_before = |(score, head): &(i64, super::Name)| (*score, &**head) < (place, request);
                let yields = given_up.is_some_and(|token| self.lock.since(request) <= token)
                    && self.lock.is_alone(request)
                    && self.lock.queue.first().is_some_and(is_before);
                if !yields || self.end(request) == UNKNOWN {
                    return;
                }
                self.note(What::Queued, request, 0);
            }
        }
        self.lock.put(request, deadline_ms, Some(place));
        if !self.done.unfinished {
            self.admit();
        }
    }
}
