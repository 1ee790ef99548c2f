//! One script on the model: what it does to the lock, and what it answers.

use super::{
    BAND, BOUNDED, Choices, GRACE, Lock, Name, Outcome, Request, client_of, named_owner, number, owner_of, writes,
};
use crate::record::{Note, What};
use std::collections::BTreeSet;

/// The arguments of acquire.
pub(super) struct Ask<'a> {
    pub(super) request: &'a str,
    pub(super) lease: &'a str,
    pub(super) only_now: bool,
    /// The request queues only behind fewer waiters.
    pub(super) most_waiters: Option<u64>,
    pub(super) policy: Option<u8>,
    /// Of a bounded lock.
    pub(super) limit: Option<u64>,
    pub(super) ticket: Option<u64>,
    /// A new ticket is to be one that other servers draw too.
    pub(super) is_vote: bool,
    /// The token of the read hold that upgrades.
    pub(super) read_token: Option<u64>,
    /// The server may have forgotten a hold for so many ms.
    pub(super) quarantine_ms: Option<u64>,
}

impl<'a> Ask<'a> {
    pub(super) fn read(args: &[&'a str]) -> Self {
        let &[request, lease, when, policy, ticket, ref rest @ ..] = args else {
            panic!("not the arguments of acquire: {args:?}");
        };
        Self {
            request,
            lease,
            only_now: when == "try",
            most_waiters: when.strip_prefix('m').map(number),
            policy: policy.bytes().next(),
            limit: policy.strip_prefix(char::from(BOUNDED)).map(number),
            ticket: (!ticket.is_empty() && !ticket.starts_with(['u', 'q'])).then(|| number(ticket)),
            is_vote: ticket == "q",
            read_token: ticket.strip_prefix('u').map(number),
            quarantine_ms: rest.first().copied().map(number),
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

/// Who holds a lock in a quarantine.
pub const NOBODY: &str = "w0:0:00000000000000000000000000000000";

pub const GRANTED: i64 = 2;

pub const QUEUED: i64 = 1;

pub const BUSY: i64 = 0;

pub(super) const CONFLICT: i64 = -1;

pub(super) const OWNER_WAITS: i64 = -2;

pub(super) const OTHER_POLICY: i64 = -3;

pub(super) const READ_IS_OVER: i64 = -4;

pub(super) const QUEUE_IS_FULL: i64 = -5;

/// How a request ended, as release says it: so, or by the token that it was told.
pub(super) const WAITED: i64 = 1;

pub(super) const UNKNOWN: i64 = 0;

/// One call of one script.
pub(super) struct Step<'a> {
    pub(super) lock: &'a mut Lock,
    pub(super) now_us: u64,
    pub(super) choices: &'a mut dyn Choices,
    pub(super) notes: Vec<Note>,
    pub(super) told: Vec<Told>,
    /// Those who entered from the queue, which are told so.
    pub(super) granted: Vec<Name>,
    /// Requests of the call itself.
    pub(super) own: Vec<&'a str>,
    /// What is not in the other fields.
    pub(super) done: Outcome,
}

/// What a client is going to be told: `token request [request...] [token request...]`, each token for the requests behind
/// it.
pub(super) struct Told {
    pub(super) client: String,
    pub(super) words: String,
    last: u64,
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
        match self.told.iter_mut().find(|told| told.client == client) {
            Some(told) if told.last == token => told.words.push_str(&format!(" {request}")),
            Some(told) => {
                told.words.push_str(&format!(" {token} {request}"));
                told.last = token;
            }
            None => self.told.push(Told {
                client: client.to_owned(),
                words: format!("{token} {request}"),
                last: token,
            }),
        }
    }

    /// A new ticket or token, greater than all before it and than `than`.
    pub(super) fn number(&mut self, than: u64) -> u64 {
        self.lock.seq = self.now_us.max(self.lock.seq.max(than) + 1);
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

    /// The lease that a call asks for, for a request that is there. With a plus sign the deadline comes no earlier than
    /// it did `before` the call.
    fn renewed(&mut self, request: &str, asked: &str, before: u64) {
        self.lease(request, number(asked));
        if let (true, Some(known)) = (asked.starts_with('+'), self.lock.requests.get_mut(request)) {
            known.deadline_ms = known.deadline_ms.max(before);
        }
    }

    /// A request that fits enters. A phase begins with a new token if nobody holds; a reader that becomes the writer gets
    /// a new one too, and its phase goes on. Everybody else shares the last token. A new token is greater than the ticket
    /// with which the request came.
    pub(super) fn grant(&mut self, request: &str, ticket: u64) -> u64 {
        let begins = self.lock.owners.is_empty();
        if begins || writes(request) && self.lock.writer.is_none() {
            self.lock.token = self.number(ticket);
        }
        if begins {
            self.lock.first = self.lock.token;
        }
        self.lock.seq = self.lock.seq.max(ticket);
        self.lock.enter(request);
        self.note(What::Granted, request, self.lock.token);
        self.lock.token
    }

    /// A request ends, and with the last hold of its owner the upgrade that waits for that hold. Returns how.
    pub(super) fn end(&mut self, request: &str) -> i64 {
        if !self.lock.requests.contains_key(request) {
            return UNKNOWN;
        }
        let told = self.lock.since(request);
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

    fn leaves_undone(&mut self) {
        (self.done.unfinished, self.done.noted) = (true, true);
    }

    /// Removes who is past the deadline, the earliest first. Once all of them are gone, lets in whom the holders let in, from
    /// the head of the queue on.
    pub(super) fn sweep(&mut self) {
        let now_ms = self.now_ms();
        let requests = self.lock.requests.iter();
        let mut past: Vec<(u64, Name)> = requests
            .filter(|(_, request)| request.deadline_ms <= now_ms)
            .map(|(name, request)| (request.deadline_ms, Name::clone(name)))
            .collect();
        past.sort();
        for (_, request) in past {
            // An upgrade ends with its read hold.
            if !self.lock.requests.contains_key(&request) {
                continue;
            }
            if !self.choices.expires(&request) {
                return self.leaves_undone();
            }
            self.end(&request);
            self.note(What::Expired, &request, 0);
        }
        self.admit();
    }

    /// Lets in whom the holders let in, from the head of the queue on.
    pub(super) fn admit(&mut self) {
        let mut beside_readers = self.lock.readers > 0;
        while let Some(head) = self.lock.next_in().cloned() {
            if !self.choices.admits(&head) {
                return self.leaves_undone();
            }
            if let Some(request) = self.lock.requests.get_mut(&head) {
                request.score = None;
            }
            self.lock.queue.pop_first();
            // While it waited it was told of greater numbers than the token that those inside share.
            if !writes(&head) && std::mem::take(&mut beside_readers) {
                self.lock.token = self.number(0);
            }
            let token = self.grant(&head, 0);
            self.tell(&head, token);
            self.granted.push(head);
        }
    }

    /// Nobody believes a grant that nobody heard. What is left of its lease is a moment, in which a client that was deaf may
    /// come back. So it is with those at the head of the queue whose clients are as deaf.
    fn mistrust(&mut self) {
        let granted = std::mem::take(&mut self.granted);
        let clients = granted.iter().map(|request| client_of(request));
        let deaf: BTreeSet<&str> = clients.filter(|client| !self.choices.listens(client)).collect();
        if deaf.is_empty() || !self.choices.cuts() {
            return;
        }
        self.done.unheard = true;
        let unheard = granted
            .iter()
            .filter(|request| deaf.contains(client_of(request)))
            .cloned();
        let waiters = self.lock.queue.iter().map(|(_, request)| request);
        let waiters = waiters.take(self.choices.most_looked_at());
        // The client of the call's own requests hears of them by the reply, which promises the whole lease.
        let others = waiters.filter(|request| !self.own.contains(&&***request));
        let dead = others.take_while(|request| {
            let client = client_of(request);
            deaf.contains(client) || !self.choices.listens(client)
        });
        let unheard = unheard.filter(|request| !self.own.contains(&&**request));
        let latest = self.now_ms() + GRACE;
        for request in unheard.chain(dead.cloned()).collect::<Vec<_>>() {
            if let Some(known) = self
                .lock
                .requests
                .get_mut(&request)
                .filter(|known| known.deadline_ms > latest)
            {
                known.deadline_ms = latest;
                self.done.cut.push(request);
            }
        }
    }

    /// After so many ms somebody ought to look; 0: now; -1: no need to.
    pub(super) fn next_ms(&mut self) -> i64 {
        self.mistrust();
        match self.lock.nearest_deadline_ms() {
            _ if self.done.unfinished => 0,
            Some(deadline) => deadline.saturating_sub(self.now_ms()).max(1) as i64,
            None => -1,
        }
    }

    pub(super) fn answer(&mut self, status: i64, value: u64) -> Vec<i64> {
        vec![status, value as i64, self.next_ms(), self.lock.seq as i64]
    }

    pub(super) fn standing(&mut self, request: &str) -> Option<Vec<i64>> {
        self.lock.requests.get(request)?;
        Some(match self.lock.place(request) {
            Some((ahead, score)) => {
                let mut answer = self.answer(QUEUED, score.rem_euclid(BAND).unsigned_abs());
                answer.push(ahead as i64);
                answer
            }
            None => self.answer(GRANTED, self.lock.token),
        })
    }

    pub(super) fn acquire(&mut self, ask: &Ask) -> Vec<i64> {
        let &Ask { request, lease, .. } = ask;
        let lease_ms = number(lease);
        if let Some(known) = self.lock.requests.get(request) {
            self.renewed(request, lease, known.deadline_ms);
        }
        self.sweep();
        if let Some(answer) = self.standing(request) {
            return answer;
        }
        if self.lock.policy.is_some_and(|stored| stored != ask.policy) {
            let stored = self.lock.policy.flatten().map_or(0, u64::from);
            return self.answer(OTHER_POLICY, stored);
        }
        // Who asks last sets the limit, also if the request is refused.
        if let Some(limit) = ask.limit.filter(|_| self.lock.policy.is_some()) {
            let grows = limit > std::mem::replace(&mut self.lock.limit, limit);
            if grows && !self.done.unfinished {
                self.admit();
            }
        }

        let rest_ms = ask.quarantine_ms.filter(|_| self.lock.owners.is_empty());
        // Others may have written since.
        let is_over = ask.read_token.is_some_and(|token| {
            let reads = self.lock.found(request).reads;
            reads == 0 || self.lock.first > token
        });
        // Nothing is stored of a lock that nobody has used.
        if is_over && rest_ms.is_none() {
            return self.answer(READ_IS_OVER, 0);
        }
        self.lock.policy = Some(ask.policy);
        self.lock.limit = ask.limit.unwrap_or(0);
        if let Some(rest_ms) = rest_ms {
            self.lock.put(NOBODY, self.now_ms() + rest_ms, None);
            self.lease(NOBODY, rest_ms);
            self.grant(NOBODY, 0);
        }
        if is_over {
            return self.answer(READ_IS_OVER, 0);
        }
        let inside = self.lock.found(request);
        let is_inside = inside.reads + inside.writes > 0;
        let upgrade = inside.reads > 0 && inside.writes == 0 && writes(request);
        let band = ask.band(upgrade);
        // A new ticket is behind every place of its own band. Equal scores are in the order of the names.
        let first = self.lock.queue.first().is_none_or(|(score, head)| match ask.ticket {
            None => band < score.div_euclid(BAND) * BAND,
            Some(ticket) => (ticket as i64 + band, request) < (*score, &**head),
        });
        if self.lock.fits(request) && (is_inside || first) {
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
        let last = band + ask.ticket.map_or(BAND - 1, |ticket| ticket as i64);
        let ahead = self.lock.queue.iter().filter(|(score, _)| *score <= last).count() as u64;
        if ask.most_waiters.is_some_and(|most| ahead >= most) {
            return self.answer(QUEUE_IS_FULL, ahead);
        }
        let ticket = match ask.ticket {
            None if ask.is_vote => self.votes_ticket(),
            None => self.number(0),
            // New tickets are behind every place.
            Some(ticket) => {
                self.lock.seq = self.lock.seq.max(ticket);
                ticket
            }
        };
        self.lock.put(request, 0, Some(ticket as i64 + band));
        self.lease(request, lease_ms);
        self.note(What::Queued, request, 0);
        self.standing(request).expect("it was queued")
    }

    pub(super) fn release(&mut self, requests: &[&str]) -> Vec<i64> {
        let waited = !self.lock.queue.is_empty();
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
        if waited {
            self.sweep();
            reply[0] = self.next_ms();
        }
        reply
    }

    pub(super) fn renew(&mut self, pairs: &[&str]) -> Vec<i64> {
        let requests: Vec<&str> = pairs.iter().step_by(2).copied().collect();
        // First its own leases, then the others': late but not yet taken over is not lost.
        let deadline = |request: &&str| self.lock.requests.get(*request).map(|known| known.deadline_ms);
        let before: Vec<_> = requests.iter().map(deadline).collect();
        for (pair, before) in pairs.chunks_exact(2).zip(before) {
            if let Some(before) = before {
                self.renewed(pair[0], pair[1], before);
            }
        }
        self.pull_back();
        self.sweep();
        let mut reply = vec![self.next_ms(), self.lock.first as i64];
        reply.extend(requests.iter().map(|request| match self.lock.requests.get(*request) {
            None => -1,
            Some(Request { score: Some(_), .. }) => -(self.lock.seq as i64),
            Some(_) => self.lock.token as i64,
        }));
        reply
    }

    /// A clock that was stepped back has left deadlines too far ahead.
    pub(super) fn pull_back(&mut self) {
        let latest = self.now_ms() + self.lock.longest_lease_ms;
        let far = self
            .lock
            .requests
            .iter_mut()
            .filter(|(_, request)| request.deadline_ms > latest);
        let mut far: Vec<_> = far.collect();
        far.sort_by(|(one, a), (other, b)| (a.deadline_ms, one).cmp(&(b.deadline_ms, other)));
        for (name, request) in far {
            if self.choices.pulls_back(name) {
                request.deadline_ms = latest;
            } else {
                self.done.unfinished = true;
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
        self.sweep();
        // As a release would tell the read request.
        vec![
            self.next_ms(),
            if self.lock.holds(to) {
                self.lock.first as i64
            } else {
                -1
            },
        ]
    }

    pub(super) fn evict(&mut self, owner: &str) -> Vec<i64> {
        // Whatever the weight in the owner's name.
        let evicts = |of: &str| of == owner || of.rsplit_once(":*").is_some_and(|(unweighted, _)| unweighted == owner);
        let theirs = self.lock.requests.keys().filter(|request| evicts(owner_of(request)));
        // Writers first: an upgrade would end with its read hold.
        let evicted: Vec<Name> = theirs.rev().cloned().collect();
        for request in &evicted {
            self.end(request);
            self.tell(request, 0);
            self.note(What::Evicted, request, 0);
        }
        self.sweep();
        vec![self.next_ms(), evicted.len() as i64]
    }
}
