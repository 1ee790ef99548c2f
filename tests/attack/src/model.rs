//! What each script must answer, what it must leave behind, and whom it must tell: a reference model.
//!
//! One [`Lock`] is the state of one lock; [`Lock::call`] is one call of one script, at a time that the caller gives. The
//! fields of the hash are kept one by one although some follow from others: so the model says also what happens when a
//! key or a field is lost.

use crate::record::{Note, Script, What};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A request or an owner.
type Name = Arc<str>;

/// Tickets lie within one band, and bands follow each other: 2^52.
pub const BAND: i64 = 1 << 52;

/// The keys outlive the last deadline by this long at least, and by twice as long at most; ms.
pub const RETENTION: u64 = 30_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    Read,
    Write,
}

/// How much one call may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Limits {
    /// Requests that leave the queue.
    pub grants: usize,
    /// Requests that are found past their deadline, or whose deadline is too far ahead.
    pub expiries: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            grants: 1024,
            expiries: 200,
        }
    }
}

/// What one call of a script came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub reply: Vec<i64>,
    /// In the order in which it happened. The evicted come in the order of their names; the script has none.
    pub notes: Vec<Note>,
    /// Client and payload, at most one message for each client; between clients there is no order.
    pub messages: Vec<(String, String)>,
}

/// A sorted set: requests by score, and those with equal scores by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ranking {
    scores: BTreeMap<Name, i64>,
    order: BTreeSet<(i64, Name)>,
    expires_at_ms: Option<u64>,
}

impl Ranking {
    fn put(&mut self, request: &str, score: i64) {
        let name = match self.scores.get_key_value(request) {
            Some((_, &old)) if old == score => return,
            Some((name, &old)) => {
                let name = Arc::clone(name);
                self.order.remove(&(old, Arc::clone(&name)));
                name
            }
            None => Name::from(request),
        };
        self.scores.insert(Arc::clone(&name), score);
        self.order.insert((score, name));
    }

    fn remove(&mut self, request: &str) -> bool {
        let Some((name, score)) = self.scores.remove_entry(request) else {
            return false;
        };
        self.order.remove(&(score, name));
        if self.scores.is_empty() {
            self.expires_at_ms = None;
        }
        true
    }

    pub fn score(&self, request: &str) -> Option<i64> {
        self.scores.get(request).copied()
    }

    pub fn contains(&self, request: &str) -> bool {
        self.scores.contains_key(request)
    }

    fn first(&self) -> Option<&(i64, Name)> {
        self.order.first()
    }

    pub(crate) fn change_scores(&mut self, change: impl Fn(i64) -> i64) {
        for score in self.scores.values_mut() {
            *score = change(*score);
        }
        self.order = self
            .scores
            .iter()
            .map(|(request, score)| (*score, Arc::clone(request)))
            .collect();
    }

    /// In order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, i64)> {
        self.order.iter().map(|(score, request)| (&**request, *score))
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub fn expires_at_ms(&self) -> Option<u64> {
        self.expires_at_ms
    }
}

/// An owner that is inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder {
    /// Its read holds.
    pub reads: u64,
    pub token: Option<u64>,
    /// With which it came in, if it has upgraded since.
    pub first: Option<u64>,
}

/// One lock: its hash, its queue and its leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lock {
    limits: Limits,
    pub mode: Option<Mode>,
    /// Read holds of all owners.
    pub readers: u64,
    pub writer: Option<Name>,
    /// Its write holds.
    pub writes: u64,
    pub holders: BTreeMap<Name, Holder>,
    /// The last ticket or token.
    pub seq: Option<u64>,
    /// The waiting request of each owner that was named.
    pub waits: BTreeMap<Name, Name>,
    pub policy: Option<u8>,
    /// Granting stopped at its limit.
    pub more: bool,
    /// When the keys expire, ms.
    pub keep: Option<u64>,
    /// The longest lease, ms.
    pub cap: Option<u64>,
    /// The only request and its deadline, kept here instead of in `leases`.
    pub sole: Option<(Name, u64)>,
    state_expires_at_ms: Option<u64>,
    /// Waiting; by place.
    pub queue: Ranking,
    /// Waiting or holding, but for the sole one; by deadline, ms.
    pub leases: Ranking,
}

pub fn writes(request: &str) -> bool {
    request.starts_with('w')
}

/// The owner that the user named, if any: what follows the second colon.
pub fn named_owner(request: &str) -> Option<&str> {
    let (_, rest) = request.split_once(':')?;
    Some(rest.split_once(':')?.1)
}

pub fn owner_of(request: &str) -> &str {
    named_owner(request).unwrap_or_else(|| request.get(1..).unwrap_or_default())
}

pub fn client_of(request: &str) -> &str {
    let name = request.get(1..).unwrap_or_default();
    name.split_once(':').map_or(name, |(client, _)| client)
}

/// What an operator's accident takes away.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Loss {
    State,
    Queue,
    Leases,
    /// A field of the hash.
    Field(String),
}

impl Lock {
    pub fn with_limits(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// One call of a script. `args` are ARGV[4] and those after it.
    pub fn call(&mut self, key: &str, script: Script, args: &[&str], now_us: u64) -> Outcome {
        self.expire(now_us / 1000);
        let mut step = Step {
            lock: self,
            now_us,
            notes: Vec::new(),
            told: Vec::new(),
        };
        let reply = match script {
            Script::Acquire => step.acquire(&Ask::read(args)),
            Script::Release => step.release(args),
            Script::Renew => step.renew(args),
            Script::Downgrade => step.downgrade(args[0], args[1], number(args[2])),
            Script::Evict => step.evict(args[0]),
        };
        let Step { notes, told, .. } = step;
        self.set_expiry();
        let message = |(client, grants): (String, String)| (client, format!("{grants}\n{key}"));
        Outcome {
            reply,
            notes,
            messages: told.into_iter().map(message).collect(),
        }
    }

    /// What the server does by itself: removes keys that are past their expiry. Every call begins with it.
    pub fn expire(&mut self, now_ms: u64) {
        let past = |at: Option<u64>| at.is_some_and(|at| now_ms > at);
        if past(self.state_expires_at_ms) {
            self.lose(&Loss::State);
        }
        if past(self.queue.expires_at_ms) {
            self.lose(&Loss::Queue);
        }
        if past(self.leases.expires_at_ms) {
            self.lose(&Loss::Leases);
        }
    }

    /// Whatever is there after a call expires when the hash says.
    pub(crate) fn set_expiry(&mut self) {
        if let Some(keep) = self.keep {
            self.state_expires_at_ms = Some(keep);
            self.queue.expires_at_ms = (!self.queue.is_empty()).then_some(keep);
            self.leases.expires_at_ms = (!self.leases.is_empty()).then_some(keep);
        } else if !self.has_state() {
            self.state_expires_at_ms = None;
        }
    }

    fn has_state(&self) -> bool {
        self.seq.is_some()
            || self.mode.is_some()
            || self.readers > 0
            || self.writer.is_some()
            || self.writes > 0
            || self.policy.is_some()
            || self.more
            || self.keep.is_some()
            || self.cap.is_some()
            || self.sole.is_some()
            || !self.holders.is_empty()
            || !self.waits.is_empty()
    }

    /// None of its keys exists.
    pub fn is_empty(&self) -> bool {
        !self.has_state() && self.queue.is_empty() && self.leases.is_empty()
    }

    /// When the last of its keys expires. `None` if there is none, or one that never does.
    pub fn expires_at_ms(&self) -> Option<u64> {
        let state = self.has_state().then_some(self.state_expires_at_ms);
        let queue = (!self.queue.is_empty()).then_some(self.queue.expires_at_ms);
        let leases = (!self.leases.is_empty()).then_some(self.leases.expires_at_ms);
        [state, queue, leases]
            .into_iter()
            .flatten()
            .try_fold(0, |latest: u64, at| Some(latest.max(at?)))
            .filter(|at| *at > 0)
    }

    /// Each key's own expiry: hash, queue, leases.
    pub fn expiries_ms(&self) -> [Option<u64>; 3] {
        [
            self.state_expires_at_ms,
            self.queue.expires_at_ms,
            self.leases.expires_at_ms,
        ]
    }

    pub fn holds(&self, request: &str) -> bool {
        self.sole.as_ref().is_some_and(|(sole, _)| **sole == *request)
            || self.leases.contains(request) && !self.queue.contains(request)
    }

    /// The deadline of a request that waits or holds, ms.
    pub fn deadline_ms(&self, request: &str) -> Option<u64> {
        match &self.sole {
            Some((sole, deadline)) if **sole == *request => Some(*deadline),
            _ => self.leases.score(request).map(i64::unsigned_abs),
        }
    }

    pub fn lose(&mut self, what: &Loss) {
        match what {
            Loss::State => {
                let Self {
                    limits, queue, leases, ..
                } = std::mem::take(self);
                *self = Self {
                    limits,
                    queue,
                    leases,
                    ..Self::default()
                };
            }
            Loss::Queue => self.queue = Ranking::default(),
            Loss::Leases => self.leases = Ranking::default(),
            Loss::Field(field) => self.lose_field(field),
        }
    }

    fn lose_field(&mut self, field: &str) {
        match field.split_once(':') {
            Some(("r", owner)) => self.change_holder(owner, |holder| holder.reads = 0),
            Some(("t", owner)) => self.change_holder(owner, |holder| holder.token = None),
            Some(("f", owner)) => self.change_holder(owner, |holder| holder.first = None),
            Some(("q", owner)) => drop(self.waits.remove(owner)),
            _ => match field {
                "mode" => self.mode = None,
                "rcount" => self.readers = 0,
                "writer" => self.writer = None,
                "wcount" => self.writes = 0,
                "seq" => self.seq = None,
                "policy" => self.policy = None,
                "more" => self.more = false,
                "keep" => self.keep = None,
                "cap" => self.cap = None,
                "sole" => self.sole = None,
                other => panic!("the hash has no field {other}"),
            },
        }
        if !self.has_state() {
            self.state_expires_at_ms = None;
        }
    }

    /// The hash as it lies in Redis.
    pub fn fields(&self) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        let mut put = |field: &str, value: Option<String>| {
            if let Some(value) = value {
                fields.insert(field.to_owned(), value);
            }
        };
        let positive = |n: u64| (n > 0).then(|| n.to_string());
        let mode = self.mode.map(|mode| match mode {
            Mode::Read => "read".to_owned(),
            Mode::Write => "write".to_owned(),
        });
        put("mode", mode);
        put("rcount", positive(self.readers));
        put("writer", self.writer.as_deref().map(str::to_owned));
        put("wcount", positive(self.writes));
        put("seq", self.seq.map(|seq| seq.to_string()));
        put("policy", self.policy.map(|code| char::from(code).to_string()));
        put("more", self.more.then(|| "1".to_owned()));
        put("keep", self.keep.map(|keep| keep.to_string()));
        put("cap", self.cap.map(|cap| cap.to_string()));
        let sole = self.sole.as_ref();
        put("sole", sole.map(|(request, deadline)| format!("{request} {deadline}")));
        for (owner, holder) in &self.holders {
            put(&format!("r:{owner}"), positive(holder.reads));
            put(&format!("t:{owner}"), holder.token.map(|token| token.to_string()));
            put(&format!("f:{owner}"), holder.first.map(|token| token.to_string()));
        }
        for (owner, request) in &self.waits {
            put(&format!("q:{owner}"), Some(request.to_string()));
        }
        fields
    }

    fn holder(&self, owner: &str) -> Holder {
        self.holders.get(owner).copied().unwrap_or_default()
    }

    fn change_holder(&mut self, owner: &str, change: impl FnOnce(&mut Holder)) {
        let mut holder = self.holder(owner);
        change(&mut holder);
        if holder == Holder::default() {
            self.holders.remove(owner);
        } else if let Some(known) = self.holders.get_mut(owner) {
            *known = holder;
        } else {
            self.holders.insert(Name::from(owner), holder);
        }
    }

    fn is_writer(&self, owner: &str) -> bool {
        self.writer.as_deref() == Some(owner)
    }

    fn is_sole(&self, request: &str) -> bool {
        self.sole.as_ref().is_some_and(|(sole, _)| **sole == *request)
    }

    /// The sole lease goes to where the others are.
    pub fn spread(&mut self) {
        if let Some((request, deadline)) = self.sole.take() {
            self.leases.put(&request, deadline as i64);
            self.set_expiry();
        }
    }

    /// Those who hold let this request in; the queue is not asked.
    pub fn fits(&self, request: &str, owner: &str) -> bool {
        match &self.writer {
            Some(writer) => **writer == *owner,
            None => self.readers == 0 || !writes(request) || self.readers == self.holder(owner).reads,
        }
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text:?}"))
}

/// The arguments of acquire.
struct Ask<'a> {
    request: &'a str,
    lease_ms: u64,
    only_now: bool,
    policy: Option<u8>,
    ticket: Option<i64>,
}

impl<'a> Ask<'a> {
    fn read(args: &[&'a str]) -> Self {
        let &[request, lease_ms, when, policy, ticket] = args else {
            panic!("not the arguments of acquire: {args:?}");
        };
        Self {
            request,
            lease_ms: number(lease_ms),
            only_now: when == "try",
            policy: policy.bytes().next(),
            ticket: (!ticket.is_empty()).then(|| number(ticket) as i64),
        }
    }

    /// Which part of the queue is the request's, under its policy.
    fn band(&self, upgrade: bool) -> i64 {
        match (upgrade, self.policy) {
            (true, _) => -BAND,
            (false, Some(b'w')) if !writes(self.request) => BAND,
            (false, Some(b'r')) if writes(self.request) => BAND,
            (false, _) => 0,
        }
    }
}

const GRANTED: i64 = 2;
const QUEUED: i64 = 1;
const BUSY: i64 = 0;
const CONFLICT: i64 = -1;
const OWNER_WAITS: i64 = -2;
const OTHER_POLICY: i64 = -3;

/// How a request ended that its owner gave back: these, or the token that it was told.
const WAITED: i64 = 1;
const UNKNOWN: i64 = 0;

/// One call of one script.
struct Step<'a> {
    lock: &'a mut Lock,
    now_us: u64,
    notes: Vec<Note>,
    /// What each client is going to be told: `request token request token...`
    told: Vec<(String, String)>,
}

impl Step<'_> {
    fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    fn note(&mut self, what: What, request: &str, token: u64) {
        self.notes.push(Note {
            what,
            request: request.to_owned(),
            token,
        });
    }

    fn tell(&mut self, request: &str, token: u64) {
        let client = client_of(request);
        let told = match self.told.iter().position(|(told, _)| told == client) {
            Some(at) => &mut self.told[at].1,
            None => {
                self.told.push((client.to_owned(), String::new()));
                &mut self.told.last_mut().expect("just put there").1
            }
        };
        if !told.is_empty() {
            told.push(' ');
        }
        told.push_str(request);
        told.push(' ');
        told.push_str(&token.to_string());
    }

    /// Grows while the state lives, by the counter, and when it was lost, by the clock.
    fn next_seq(&mut self) -> u64 {
        let next = (self.lock.seq.unwrap_or(0) + 1).max(self.now_us);
        self.lock.seq = Some(next);
        next
    }

    /// The deadline of a lease that begins now.
    fn deadline(&mut self, lease_ms: u64) -> u64 {
        let at = self.now_ms() + lease_ms;
        if lease_ms > self.lock.cap.unwrap_or(0) {
            self.lock.cap = Some(lease_ms);
        }
        if at + RETENTION > self.lock.keep.unwrap_or(0) {
            self.lock.keep = Some(at + 2 * RETENTION);
        }
        at
    }

    fn lease(&mut self, request: &str, lease_ms: u64) {
        let deadline = self.deadline(lease_ms);
        self.lock.leases.put(request, deadline as i64);
    }

    /// The request fits. Returns the owner's token: a new one if it was outside, and if it becomes a writer.
    fn grant(&mut self, request: &str, owner: &str) -> u64 {
        let known = self.holder(owner).token;
        if writes(request) && !self.lock.is_writer(owner) && self.lock.readers > 0 {
            self.change_holder(owner, |holder| holder.first = holder.first.or(known));
        }
        let token = if writes(request) {
            self.lock.writes += 1;
            if self.lock.is_writer(owner) {
                known
            } else {
                self.lock.mode = Some(Mode::Write);
                self.lock.writer = Some(Name::from(owner));
                Some(self.next_seq())
            }
        } else {
            self.lock.mode = self.lock.mode.or(Some(Mode::Read));
            self.lock.readers += 1;
            Some(known.unwrap_or_else(|| self.next_seq()))
        };
        self.change_holder(owner, |holder| {
            holder.reads += u64::from(!writes(request));
            holder.token = token;
        });
        // A writer whose token was lost goes on without one.
        let token = token.unwrap_or(0);
        self.note(What::Granted, request, token);
        token
    }

    /// A request leaves the queue, to enter or for good.
    fn leave_queue(&mut self, request: &str) {
        if let Some(owner) = named_owner(request) {
            self.lock.waits.remove(owner);
        }
    }

    fn holder(&self, owner: &str) -> Holder {
        self.lock.holder(owner)
    }

    fn change_holder(&mut self, owner: &str, change: impl FnOnce(&mut Holder)) {
        self.lock.change_holder(owner, change);
    }

    /// The token that a request which holds is told. `None`: its owner is not counted among those who hold.
    fn told(&self, request: &str) -> Option<u64> {
        let owner = owner_of(request);
        let holder = self.holder(owner);
        if writes(request) {
            holder.token.filter(|_| self.lock.is_writer(owner))
        } else {
            holder.first.or(holder.token).filter(|_| holder.reads > 0)
        }
    }

    /// An upgrade ends with its owner's last read hold.
    fn end_upgrade(&mut self, owner: &str) {
        let head = self.lock.queue.first().filter(|(place, _)| *place < 0);
        let Some((_, request)) = head.filter(|(_, request)| owner_of(request) == owner).cloned() else {
            return;
        };
        self.lock.queue.remove(&request);
        self.lock.leases.remove(&request);
        self.leave_queue(&request);
        self.tell(&request, 1);
        self.note(What::Left, &request, 0);
    }

    /// Whether the fields agree on who holds.
    fn is_sound(&self) -> bool {
        let mode = if self.lock.writes > 0 {
            Some(Mode::Write)
        } else {
            (self.lock.readers > 0).then_some(Mode::Read)
        };
        self.lock.mode == mode && self.lock.writer.is_some() == (mode == Some(Mode::Write))
    }

    /// Whether so many requests hold as are counted.
    fn is_complete(&self) -> bool {
        let holding = self.lock.leases.len() as i64 - self.lock.queue.len() as i64;
        holding == (self.lock.readers + self.lock.writes) as i64
    }

    /// A hold ends.
    fn count_down(&mut self, request: &str, owner: &str) -> i64 {
        let told = self.told(request).map_or(UNKNOWN, |token| token as i64);
        if writes(request) {
            if !self.lock.is_writer(owner) {
                return UNKNOWN;
            }
            self.lock.writes = self.lock.writes.saturating_sub(1);
            if self.lock.writes > 0 {
                return told;
            }
            self.lock.writer = None;
            self.lock.mode = (self.lock.readers > 0).then_some(Mode::Read);
        } else {
            if self.holder(owner).reads == 0 {
                return UNKNOWN;
            }
            self.change_holder(owner, |holder| holder.reads -= 1);
            self.lock.readers = self.lock.readers.saturating_sub(1);
            if self.lock.readers == 0 && self.lock.writer.is_none() {
                self.lock.mode = None;
            }
        }
        if !self.lock.is_writer(owner) && self.holder(owner).reads == 0 {
            self.change_holder(owner, |holder| (holder.token, holder.first) = (None, None));
            self.end_upgrade(owner);
        }
        told
    }

    /// A request without a lease ends, waiting or holding.
    fn end(&mut self, request: &str) -> i64 {
        let owner = owner_of(request);
        if !self.lock.queue.remove(request) {
            // The queue was lost.
            if self.lock.waits.get(owner).is_some_and(|waits| **waits == *request) {
                self.leave_queue(request);
            }
            return self.count_down(request, owner);
        }
        self.leave_queue(request);
        WAITED
    }

    /// Grants to the head of the queue for as long as it fits.
    ///
    /// In pages: one request, or as many as may enter if that is a reader, and then more and more. A page matters only
    /// for the dead behind a writer that enters: they go with it if they are of its page.
    fn admit(&mut self) {
        let mut left = self.lock.limits.grants;
        let mut size = 1;
        let mut blocked = self.lock.writer.is_some();
        while left > 0 && !blocked {
            if size == 1 && self.lock.queue.first().is_some_and(|(_, head)| !writes(head)) {
                size = left;
            }
            let page = self.lock.queue.len().min(size);
            let mut taken = 0;
            while taken < page {
                let Some((_, request)) = self.lock.queue.first().cloned() else {
                    break;
                };
                let owner = owner_of(&request);
                let dead = self.lock.leases.score(&request).unwrap_or(0) <= self.now_ms() as i64;
                if !dead && (self.lock.writer.is_some() || !self.lock.fits(&request, owner)) {
                    blocked = true;
                    break;
                }
                self.lock.queue.remove(&request);
                self.leave_queue(&request);
                if dead {
                    self.lock.leases.remove(&request);
                    self.note(What::Expired, &request, 0);
                } else {
                    let token = self.grant(&request, owner);
                    self.tell(&request, token);
                }
                taken += 1;
            }
            blocked = blocked || self.lock.writer.is_some();
            if page < size {
                break;
            }
            left -= taken;
            size = left.min(size * 16);
        }
        self.lock.more = left == 0 && !blocked;
    }

    /// Expires who is past the deadline, then admits if anything may have become free. Returns the ms to the nearest
    /// deadline, 0 if there is more to do, -1 if there is none.
    fn sweep(&mut self, mut freed: bool) -> i64 {
        if !self.is_sound() || self.lock.seq.is_none() && !self.lock.queue.is_empty() {
            self.start_over();
            return -1;
        }
        let now_ms = self.now_ms() as i64;
        let mut budget = self.lock.limits.expiries;
        let nearest = loop {
            match self.lock.leases.first() {
                Some((deadline, _)) if *deadline > now_ms => break Some(*deadline),
                None => break None,
                Some(_) if budget == 0 => {
                    if freed || self.lock.more {
                        self.admit();
                    }
                    return 0;
                }
                Some((_, request)) => {
                    let request = Arc::clone(request);
                    budget -= 1;
                    self.lock.leases.remove(&request);
                    self.end(&request);
                    self.note(What::Expired, &request, 0);
                    freed = true;
                }
            }
        };
        if freed || self.lock.more {
            self.admit();
        }
        match nearest {
            _ if self.lock.more => 0,
            Some(deadline) => deadline - now_ms,
            None => -1,
        }
    }

    /// What is held does not agree with who holds: nobody holds or waits any more.
    fn start_over(&mut self) {
        let Lock {
            limits,
            seq,
            keep,
            cap,
            policy,
            ..
        } = std::mem::take(self.lock);
        *self.lock = Lock {
            limits,
            seq,
            keep,
            cap,
            policy,
            ..Lock::default()
        };
        self.told.clear();
        self.note(What::Reset, "-", 0);
    }

    fn acquire(&mut self, ask: &Ask) -> Vec<i64> {
        let Ask {
            request,
            lease_ms,
            only_now,
            ..
        } = *ask;
        let owner = owner_of(request);
        let mut next_ms = -1;
        let mut head = None;
        if self.lock.mode.is_some() || self.lock.more || !self.is_sound() {
            self.lock.spread();
            let known = self.lock.leases.contains(request);
            if known {
                self.lease(request, lease_ms);
            }
            next_ms = self.sweep(false);
            if next_ms < 0 && self.lock.mode.is_some() {
                self.start_over();
            }
            if known {
                if let Some(place) = self.lock.queue.score(request) {
                    return self.answer(QUEUED, place.rem_euclid(BAND), next_ms);
                }
                if let Some(token) = self.told(request) {
                    if self.is_complete() {
                        let token = self.holder(owner).token.unwrap_or(token);
                        return self.answer(GRANTED, token as i64, next_ms);
                    }
                    self.start_over();
                    next_ms = -1;
                }
                self.lock.leases.remove(request);
            }
            head = self.lock.queue.first().map(|(place, _)| *place);
        }
        if self.lock.seq.is_none() {
            self.lock.policy = ask.policy.or(self.lock.policy);
        } else if self.lock.policy != ask.policy {
            return self.answer(OTHER_POLICY, self.lock.policy.map_or(0, i64::from), next_ms);
        }

        let inside = self.lock.is_writer(owner) || self.holder(owner).reads > 0;
        let upgrade = inside && !self.lock.is_writer(owner) && writes(request);
        let band = ask.band(upgrade);
        let would_be_first = head.is_none_or(|head| {
            band < head.div_euclid(BAND) * BAND || ask.ticket.is_some_and(|ticket| ticket + band < head)
        });
        if self.lock.fits(request, owner) && (inside || would_be_first) {
            self.lock.seq = self.lock.seq.max(ask.ticket.map(|ticket| ticket as u64));
            let sole = self.lock.mode.is_none() && next_ms < 0;
            let token = self.grant(request, owner);
            if sole {
                let deadline = self.deadline(lease_ms);
                self.lock.sole = Some((Name::from(request), deadline));
            } else {
                self.lease(request, lease_ms);
            }
            return self.answer(GRANTED, token as i64, next_ms);
        }
        let waits = named_owner(request).and_then(|owner| self.lock.waits.get(owner));
        if let Some(waits) = waits.filter(|waits| self.lock.queue.contains(waits)) {
            let own = client_of(waits) == client_of(request);
            let number = waits.split(':').nth(1).filter(|_| own).map_or(0, number);
            return self.answer(OWNER_WAITS, number as i64, next_ms);
        }
        if upgrade && head.is_some_and(|place| place < 0) {
            return self.answer(CONFLICT, 0, next_ms);
        }
        if only_now {
            return self.answer(BUSY, 0, next_ms);
        }

        let ticket = match ask.ticket {
            None => self.next_seq() as i64,
            Some(ticket) => {
                self.lock.seq = self.lock.seq.max(Some(ticket as u64));
                ticket
            }
        };
        self.lock.queue.put(request, ticket + band);
        if let Some(owner) = named_owner(request) {
            self.lock.waits.insert(Name::from(owner), Name::from(request));
        }
        self.lease(request, lease_ms);
        self.note(What::Queued, request, 0);
        let own = lease_ms as i64;
        self.answer(QUEUED, ticket, if next_ms < 0 { own } else { next_ms.min(own) })
    }

    fn answer(&self, status: i64, value: i64, next_ms: i64) -> Vec<i64> {
        vec![status, value, next_ms, self.lock.seq.unwrap_or(0) as i64]
    }

    fn release(&mut self, requests: &[&str]) -> Vec<i64> {
        if let &[request] = requests
            && self.lock.is_sole(request)
        {
            self.lock.sole = None;
            let ended = self.count_down(request, owner_of(request));
            self.note(What::Released, request, 0);
            return vec![-1, ended];
        }
        let somebody_waited = !self.lock.queue.is_empty();
        self.lock.spread();
        let mut reply = vec![-1];
        for request in requests {
            let ended = if self.lock.leases.remove(request) {
                self.end(request)
            } else {
                UNKNOWN
            };
            match ended {
                UNKNOWN => {}
                WAITED => self.note(What::Left, request, 0),
                _ => self.note(What::Released, request, 0),
            }
            reply.push(ended);
        }
        if somebody_waited {
            reply[0] = self.sweep(true);
        }
        reply
    }

    fn renew(&mut self, pairs: &[&str]) -> Vec<i64> {
        if let &[request, lease_ms] = pairs
            && self.lock.is_sole(request)
            && self.is_sound()
            && self.lock.readers + self.lock.writes == 1
        {
            let deadline = self.deadline(number(lease_ms));
            self.lock.sole = Some((Name::from(request), deadline));
            return vec![-1, self.told(request).map_or(-1, |token| token as i64)];
        }
        self.lock.spread();
        let requests = pairs.chunks_exact(2);
        let mut known: Vec<bool> = requests
            .clone()
            .map(|pair| self.lock.leases.contains(pair[0]))
            .collect();
        for (pair, _) in requests.clone().zip(&known).filter(|(_, known)| **known) {
            self.lease(pair[0], number(pair[1]));
        }
        let more_far = self.pull_back();
        let mut next_ms = self.sweep(!self.lock.queue.is_empty() && self.lock.writer.is_none());
        if more_far {
            next_ms = 0;
        }
        if !self.is_complete() {
            self.start_over();
            known.fill(false);
            next_ms = -1;
        }
        let standing = |(pair, known): (&[&str], bool)| match known {
            false => -1,
            true if self.lock.queue.contains(pair[0]) => -(self.lock.seq.unwrap_or(0) as i64),
            true => self.told(pair[0]).map_or(-1, |token| token as i64),
        };
        let standings = requests.zip(known).map(standing);
        std::iter::once(next_ms).chain(standings).collect()
    }

    /// A clock that was stepped back has left deadlines too far ahead.
    /// Says whether there may be more.
    fn pull_back(&mut self) -> bool {
        let Some(cap) = self.lock.cap else { return false };
        let latest = (self.now_ms() + cap) as i64;
        let above = self.lock.leases.order.range((latest + 1, Name::default())..);
        let far: Vec<Name> = above
            .take(self.lock.limits.expiries)
            .map(|(_, request)| Arc::clone(request))
            .collect();
        for request in &far {
            self.lock.leases.put(request, latest);
        }
        if !far.is_empty() {
            self.deadline(cap);
        }
        far.len() == self.lock.limits.expiries
    }

    fn downgrade(&mut self, from: &str, to: &str, lease_ms: u64) -> Vec<i64> {
        let owner = owner_of(from);
        self.lock.spread();
        let mut known = self.lock.leases.contains(to);
        let waits = self.lock.queue.contains(from);
        if !known && self.lock.is_writer(owner) && !waits && self.lock.leases.remove(from) {
            self.grant(to, owner);
            self.count_down(from, owner);
            self.note(What::Released, from, 0);
            known = true;
        }
        if known {
            self.lease(to, lease_ms);
        }
        let next_ms = self.sweep(known);
        let token = self.holder(owner).token.filter(|_| known);
        vec![next_ms, token.map_or(-1, |token| token as i64)]
    }

    fn evict(&mut self, owner: &str) -> Vec<i64> {
        self.lock.spread();
        let theirs = self
            .lock
            .leases
            .scores
            .keys()
            .filter(|request| owner_of(request) == owner);
        let evicted: Vec<Name> = theirs.cloned().collect();
        for request in evicted.iter().rev() {
            self.lock.leases.remove(request);
            self.end(request);
            self.tell(request, 0);
            self.note(What::Evicted, request, 0);
        }
        let next_ms = self.sweep(!evicted.is_empty());
        vec![next_ms, evicted.len() as i64]
    }
}
