//! One script on the model: what it does to the lock, and what it answers.

use super::{BAND, Choices, Draw, Lock, Name, Request, client_of, named_owner, number, owner_of, writes};
use crate::record::{Note, What};

/// The arguments of acquire.
pub(super) struct Ask<'a> {
    pub(super) request: &'a str,
    pub(super) lease_ms: u64,
    pub(super) only_now: bool,
    pub(super) policy: Option<u8>,
    pub(super) ticket: Option<u64>,
}

impl<'a> Ask<'a> {
    pub(super) fn read(args: &[&'a str]) -> Self {
        let &[request, lease_ms, when, policy, ticket] = args else {
            panic!("not the arguments of acquire: {args:?}");
        };
        Self {
            request,
            lease_ms: number(lease_ms),
            only_now: when == "try",
            policy: policy.bytes().next(),
            ticket: (!ticket.is_empty()).then(|| number(ticket)),
        }
    }

    /// Which part of the queue is the request's, under its policy.
    pub(super) fn band(&self, upgrade: bool) -> i64 {
        match (upgrade, self.policy) {
            (true, _) => -BAND,
            (false, Some(b'w')) if !writes(self.request) => BAND,
            (false, Some(b'r')) if writes(self.request) => BAND,
            (false, _) => 0,
        }
    }
}

pub const GRANTED: i64 = 2;

pub const QUEUED: i64 = 1;

pub(super) const BUSY: i64 = 0;

pub(super) const CONFLICT: i64 = -1;

pub(super) const OWNER_WAITS: i64 = -2;

pub(super) const OTHER_POLICY: i64 = -3;

/// How a request ended, as release says it: so, or by the token that it was told.
pub(super) const WAITED: i64 = 1;

pub(super) const UNKNOWN: i64 = 0;

/// One call of one script.
pub(super) struct Step<'a> {
    pub(super) lock: &'a mut Lock,
    pub(super) now_us: u64,
    pub(super) choices: &'a mut dyn Choices,
    pub(super) notes: Vec<Note>,
    /// What each client is going to be told: `request token request token...`
    pub(super) told: Vec<(String, String)>,
    pub(super) unfinished: bool,
}

impl Step<'_> {
    pub(super) fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    pub(super) fn note(&mut self, what: What, request: &str, token: u64) {
        let request = request.to_owned();
        self.notes.push(Note { what, request, token });
    }

    pub(super) fn tell(&mut self, request: &str, token: u64) {
        let client = client_of(request);
        let words = format!("{request} {token}");
        match self.told.iter_mut().find(|(told, _)| told == client) {
            Some((_, told)) => {
                told.push(' ');
                told.push_str(&words);
            }
            None => self.told.push((client.to_owned(), words)),
        }
    }

    /// A new ticket or token, greater than all before it and than `than`.
    pub(super) fn number(&mut self, of: Draw<'_>, than: u64) -> u64 {
        self.lock.seq = self.choices.number(of, self.lock.seq.max(than), self.now_us);
        self.lock.seq
    }

    /// A lease that begins now.
    pub(super) fn lease(&mut self, request: &str, lease_ms: u64) {
        let deadline_ms = self.now_ms() + lease_ms;
        self.lock.longest_lease_ms = self.lock.longest_lease_ms.max(lease_ms);
        self.lock.last_ms = self.lock.last_ms.max(deadline_ms);
        if let Some(known) = self.lock.requests.get_mut(request) {
            known.deadline_ms = deadline_ms;
        }
    }

    /// A request that fits enters. Its owner gets a new token if it was outside, and if it becomes the writer; that one is
    /// greater than the ticket with which the request came.
    pub(super) fn grant(&mut self, request: &str, ticket: u64) -> u64 {
        let owner = owner_of(request);
        let token = match self.lock.owners.get(owner) {
            Some(inside) if inside.writes > 0 || !writes(request) => inside.token,
            _ => self.number(Draw::Token { request }, ticket),
        };
        self.lock.enter(request, token);
        self.note(What::Granted, request, token);
        token
    }

    /// A request ends, and with the last hold of its owner the upgrade that waits for that hold. Returns how.
    pub(super) fn end(&mut self, request: &str) -> i64 {
        if !self.lock.requests.contains_key(request) {
            return UNKNOWN;
        }
        let told = self.lock.told(request);
        if self.lock.end(request).is_some() {
            return WAITED;
        }
        let owner = owner_of(request);
        let upgrade = self
            .lock
            .queue
            .first()
            .filter(|(score, head)| *score < 0 && owner_of(head) == owner);
        if let Some((_, upgrade)) = upgrade.cloned().filter(|_| !self.lock.owners.contains_key(owner)) {
            self.lock.end(&upgrade);
            self.tell(&upgrade, 1);
            self.note(What::Left, &upgrade, 0);
        }
        told as i64
    }

    /// Removes who is past the deadline, and lets in whom the holders let in, from the head of the queue on.
    /// `must`: the dead have to go also if nobody waits.
    pub(super) fn sweep(&mut self, must: bool) {
        let must = must || !self.lock.queue.is_empty();
        let now_ms = self.now_ms();
        let requests = self.lock.requests.iter();
        let mut past: Vec<(u64, Name)> = requests
            .filter(|(_, request)| request.deadline_ms <= now_ms)
            .map(|(name, request)| (request.deadline_ms, Name::clone(name)))
            .collect();
        past.sort();
        for (_, request) in past {
            if !self.lock.requests.contains_key(&request) {
                continue;
            }
            if self.choices.expires(&request) {
                self.end(&request);
                self.note(What::Expired, &request, 0);
            } else {
                self.unfinished |= must;
            }
        }
        while let Some(head) = self.lock.next_in().cloned() {
            let dead = self.lock.requests[&head].deadline_ms <= now_ms;
            if dead || !self.choices.admits(&head) {
                self.unfinished |= dead || !self.lock.is_tied();
                break;
            }
            if let Some(request) = self.lock.requests.get_mut(&head) {
                request.score = None;
            }
            self.lock.queue.pop_first();
            let token = self.grant(&head, 0);
            self.tell(&head, token);
        }
    }

    /// After so many ms somebody ought to look; 0: now; -1: no need to.
    pub(super) fn next_ms(&self) -> i64 {
        match self.lock.nearest_deadline_ms() {
            _ if self.unfinished => 0,
            Some(deadline) => deadline.saturating_sub(self.now_ms()).max(1) as i64,
            None => -1,
        }
    }

    pub(super) fn answer(&self, status: i64, value: u64) -> Vec<i64> {
        vec![status, value as i64, self.next_ms(), self.lock.seq as i64]
    }

    pub(super) fn standing(&self, request: &str) -> Option<Vec<i64>> {
        let Request { score, .. } = self.lock.requests.get(request)?;
        Some(match score {
            Some(score) => self.answer(QUEUED, score.rem_euclid(BAND).unsigned_abs()),
            None => self.answer(GRANTED, self.lock.owners[owner_of(request)].token),
        })
    }

    pub(super) fn acquire(&mut self, ask: &Ask) -> Vec<i64> {
        let &Ask { request, lease_ms, .. } = ask;
        let owner = owner_of(request);
        let known = self.lock.requests.contains_key(request);
        if known {
            self.lease(request, lease_ms);
        }
        self.sweep(true);
        if let Some(answer) = self.standing(request) {
            return answer;
        }
        if *self.lock.policy.get_or_insert(ask.policy) != ask.policy {
            let stored = self.lock.policy.flatten().map_or(0, u64::from);
            return self.answer(OTHER_POLICY, stored);
        }

        let inside = self.lock.owners.get(owner).copied().unwrap_or_default();
        let is_inside = inside.reads + inside.writes > 0;
        let upgrade = inside.reads > 0 && inside.writes == 0 && writes(request);
        let band = ask.band(upgrade);
        let first = self.lock.queue.first().is_none_or(|(head, _)| {
            band < head.div_euclid(BAND) * BAND || ask.ticket.is_some_and(|ticket| ticket as i64 + band < *head)
        });
        if self.lock.fits(request, owner) && (is_inside || first) {
            self.lock.put(request, self.now_ms() + lease_ms, None);
            self.lease(request, lease_ms);
            let token = self.grant(request, ask.ticket.unwrap_or(0));
            return self.answer(GRANTED, token);
        }
        let mut waiting = self.lock.queue.iter().map(|(_, waiting)| waiting);
        let named = named_owner(request);
        if let Some(other) = waiting.find(|other| named.is_some() && named_owner(other) == named) {
            // Its client is told which one it is: it may have forgotten it.
            let own = client_of(other) == client_of(request);
            let which = other.split(':').nth(1).filter(|_| own).map_or(0, number);
            return self.answer(OWNER_WAITS, which);
        }
        if upgrade && self.lock.queue.first().is_some_and(|(score, _)| *score < 0) {
            return self.answer(CONFLICT, 0);
        }
        if ask.only_now {
            return self.answer(BUSY, 0);
        }
        let ticket = match ask.ticket {
            None => self.number(Draw::Ticket { request }, 0),
            // New tickets are behind every place.
            Some(ticket) => {
                self.lock.seq = self.lock.seq.max(ticket);
                ticket
            }
        };
        self.lock.put(request, 0, Some(ticket as i64 + band));
        self.lease(request, lease_ms);
        self.note(What::Queued, request, 0);
        self.answer(QUEUED, ticket)
    }

    pub(super) fn release(&mut self, requests: &[&str]) -> Vec<i64> {
        // Whom somebody waits for must go now.
        let must = !self.lock.queue.is_empty();
        let mut reply = vec![-1];
        for request in requests {
            let ended = self.end(request);
            match ended {
                UNKNOWN => {}
                WAITED => self.note(What::Left, request, 0),
                _ => self.note(What::Released, request, 0),
            }
            reply.push(ended);
        }
        self.sweep(must);
        reply[0] = self.next_ms();
        reply
    }

    pub(super) fn renew(&mut self, pairs: &[&str]) -> Vec<i64> {
        let requests: Vec<&str> = pairs.iter().step_by(2).copied().collect();
        // First its own leases, then the others': late but not yet taken over is not lost.
        for pair in pairs.chunks_exact(2) {
            if self.lock.requests.contains_key(pair[0]) {
                self.lease(pair[0], number(pair[1]));
            }
        }
        self.pull_back();
        self.sweep(false);
        let mut reply = vec![self.next_ms()];
        reply.extend(requests.iter().map(|request| match self.lock.requests.get(*request) {
            None => -1,
            Some(Request { score: Some(_), .. }) => -(self.lock.seq as i64),
            Some(_) => self.lock.told(request) as i64,
        }));
        reply
    }

    /// A clock that was stepped back has left deadlines too far ahead.
    pub(super) fn pull_back(&mut self) {
        let latest = self.now_ms() + self.lock.longest_lease_ms;
        for (name, request) in &mut self.lock.requests {
            if request.deadline_ms > latest {
                if self.choices.pulls_back(name) {
                    request.deadline_ms = latest;
                } else {
                    self.unfinished = true;
                }
            }
        }
    }

    pub(super) fn downgrade(&mut self, from: &str, to: &str, lease_ms: u64) -> Vec<i64> {
        if !self.lock.requests.contains_key(to) && writes(from) && self.lock.holds(from) {
            self.lock.put(to, 0, None);
            self.grant(to, 0);
            self.end(from);
            self.note(What::Released, from, 0);
        }
        if self.lock.requests.contains_key(to) {
            self.lease(to, lease_ms);
        }
        self.sweep(false);
        let inside = self.lock.holds(to).then(|| self.lock.owners[owner_of(to)]);
        vec![self.next_ms(), inside.map_or(-1, |inside| inside.token as i64)]
    }

    pub(super) fn evict(&mut self, owner: &str) -> Vec<i64> {
        let theirs = self.lock.requests.keys().filter(|request| owner_of(request) == owner);
        // Writers first: an upgrade would end with its read hold.
        let evicted: Vec<Name> = theirs.rev().cloned().collect();
        for request in &evicted {
            self.end(request);
            self.tell(request, 0);
            self.note(What::Evicted, request, 0);
        }
        self.sweep(false);
        vec![self.next_ms(), evicted.len() as i64]
    }
}
