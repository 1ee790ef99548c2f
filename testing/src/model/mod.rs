//! A reference model of one lock: what each script answers, whom it tells, and who holds and waits afterwards.
//!
//! The model is made from `PROTOCOL.md`. It knows what clients asked for and when; it knows no key, no field and no
//! batch. [`Lock`] is what somebody could write down who saw every call: requests, deadlines, places, the policy, and the
//! tokens of the phase: the last one, and the one with which the phase began.
//!
//! The protocol leaves choices to a server: which of the dead a call removes, how many a call lets in before it says "call
//! again". [`Choices`] makes them. The simulated server makes its own ([`AtMost`]); the judge (`judge.rs`) reads them off a
//! real server's answer and says whether they are allowed.

mod names;
mod place;
mod step;
mod view;

use crate::record::{Note, Script};
pub use names::{client_of, named_owner, owner_of, weight_of, writes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use step::{Ask, Step, Told};
pub use step::{BUSY, GRANTED, NOBODY, QUEUED};
pub use view::{Packed, View};

/// A request or an owner.
pub type Name = Arc<str>;

/// A score is a ticket and its band: they are 2^52 apart.
pub const BAND: i64 = 1 << 52;

/// The keys outlive the last deadline by this long at least, and by twice as long at most; ms.
pub const RETENTION: u64 = 30_000;

/// So much is left at most of a lease once nobody heard of its grant; ms.
pub const GRACE: u64 = 1_000;

/// The policy of a bounded lock.
pub const BOUNDED: u8 = b'n';

/// What a server may decide.
pub trait Choices {
    /// Whether this call removes a request that is past its deadline. They come in the order of their deadlines.
    fn expires(&mut self, request: &str) -> bool;
    /// Whether this call lets in the head of the queue, which the holders let in.
    fn admits(&mut self, request: &str) -> bool;
    /// Whether this renewal pulls back a deadline that lies farther ahead than the longest lease. They come in the order of
    /// their deadlines.
    fn pulls_back(&mut self, request: &str) -> bool;
    /// Whether anybody hears what is published to this client. That is no choice, but the world's.
    fn listens(&self, client: &str) -> bool;
    /// Whether a grant that nobody heard costs the lease: not on a server that was a replica, whose clients may hear the
    /// one that replicates it.
    fn cuts(&self) -> bool {
        true
    }
    /// At how many waiters this call looks, whether they listen.
    fn most_looked_at(&self) -> usize;
}

/// See [`Choices::most_looked_at`].
pub const MOST_LOOKED_AT: usize = 200;

/// So many deadlines the scripts pull back in one call.
pub const PULLED_BACK: usize = 200;

/// A server that does so much in one call, and counts as the scripts do.
#[derive(Clone, Copy, Debug)]
pub struct AtMost {
    left: usize,
    pulls_left: usize,
}

impl AtMost {
    pub fn new(at_most: usize) -> Self {
        Self {
            left: at_most,
            pulls_left: PULLED_BACK,
        }
    }

    fn one_less(&mut self) -> bool {
        let more = self.left > 0;
        self.left = self.left.saturating_sub(1);
        more
    }
}

impl Choices for AtMost {
    fn expires(&mut self, _: &str) -> bool {
        self.one_less()
    }
    fn admits(&mut self, _: &str) -> bool {
        self.one_less()
    }
    /// Who judges a journal knows this batch of the real scripts.
    fn pulls_back(&mut self, _: &str) -> bool {
        let more = self.pulls_left > 0;
        self.pulls_left = self.pulls_left.saturating_sub(1);
        more
    }
    fn listens(&self, _: &str) -> bool {
        true
    }
    fn most_looked_at(&self) -> usize {
        MOST_LOOKED_AT
    }
}

/// What one call of a script came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub reply: Vec<i64>,
    /// The reply is one number: see `bare`.
    pub bare: bool,
    /// In the order in which it happened. Of those evicted in one call none is before the other.
    pub notes: Vec<Note>,
    /// Client and payload, at most one message for each client; between clients there is no order.
    pub messages: Vec<(String, String)>,
    /// The choices left something undone that this call ought to do: the reply must say "call again".
    pub unfinished: bool,
    /// What was left undone is noted: any script goes on, not only a renewal.
    pub noted: bool,
    /// Somebody was granted the lock, and nobody hears it.
    pub unheard: bool,
    /// The requests whose leases this call shortened for that.
    pub cut: Vec<Name>,
}

/// What a reply of one number does not tell.
pub const NOT_TOLD: i64 = i64::MIN;

/// Whether a server puts this reply into one number: a grant, a try that finds the lock busy, or a release of one request,
/// after which nothing is left to do and no lease was `cut`. The number is then the reply's second.
pub fn is_bare(script: Script, reply: &[i64], cut: bool) -> bool {
    match script {
        Script::Acquire => (reply[0] == GRANTED || reply[0] == BUSY) && reply[2] != 0 && !cut,
        Script::Release => reply.len() == 2 && reply[0] != 0 && !cut,
        _ => false,
    }
}

impl Outcome {
    /// The reply with what its client is told.
    pub fn told(&self) -> Vec<i64> {
        let told = |(at, number): (usize, &i64)| match (self.bare, self.reply.len(), at) {
            (false, ..) | (true, 2, 1) | (true, 4, 0 | 1) => *number,
            _ => NOT_TOLD,
        };
        self.reply.iter().enumerate().map(told).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    deadline_ms: u64,
    /// Of a request that waits.
    score: Option<i64>,
}

/// An owner that is inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Inside {
    pub reads: u64,
    pub writes: u64,
}

/// One lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lock {
    requests: BTreeMap<Name, Request>,
    /// Those that wait, by place.
    queue: BTreeSet<(i64, Name)>,
    /// Those who hold.
    pub owners: BTreeMap<Name, Inside>,
    writer: Option<Name>,
    /// Read holds of all owners.
    readers: u64,
    /// Of a bounded lock: how much its readers may weigh together, and how much they do.
    pub limit: u64,
    pub used: u64,
    /// `None`: nobody uses the lock, or has for a minute.
    pub policy: Option<Option<u8>>,
    /// The last token that was given out, and the one with which the phase began. A phase is a writer's hold, or the time
    /// in which readers are inside without a break.
    pub token: u64,
    pub first: u64,
    /// What the server takes for a time before which no lease ends, ms; 0: nobody has one.
    pub near_ms: u64,
    /// No number that was given out or told is greater.
    pub seq: u64,
    pub longest_lease_ms: u64,
    /// The latest deadline that ever was, ms.
    pub last_ms: u64,
    /// The keys may expire so much later than that: of a lock that was damaged.
    pub excess_ms: u64,
}

impl Lock {
    /// One call of a script. `args`: see [`Record`](crate::record::Record); of acquire the rest of a quarantine may follow.
    pub fn call(
        &mut self,
        key: &str,
        script: Script,
        args: &[&str],
        now_us: u64,
        choices: &mut dyn Choices,
    ) -> Outcome {
        let mut outcome = self.step(key, own(script, args), now_us, choices, |step| match script {
            Script::Acquire => step.acquire(&Ask::read(args)),
            Script::Release => step.release(args),
            Script::Renew => step.renew(args),
            Script::Downgrade => step.downgrade(args[0], args[1], number(args[2])),
            Script::Evict => step.evict(args[0]),
            Script::Place => step.place(args),
        });
        outcome.bare = is_bare(script, &outcome.reply, !outcome.cut.is_empty());
        outcome
    }

    /// `own`: the requests of the call itself.
    fn step<'a>(
        &'a mut self,
        key: &str,
        own: Vec<&'a str>,
        now_us: u64,
        choices: &'a mut dyn Choices,
        script: impl FnOnce(&mut Step<'a>) -> Vec<i64>,
    ) -> Outcome {
        let mut step = Step {
            lock: self,
            now_us,
            choices,
            notes: Vec::new(),
            told: Vec::new(),
            granted: Vec::new(),
            own,
            done: Outcome::default(),
        };
        let reply = script(&mut step);
        step.lock.near_ms = step.lock.nearest_deadline_ms().unwrap_or(0);
        let message = |told: Told| (told.client, format!("{}\n{key}", told.words));
        Outcome {
            reply,
            messages: step.told.into_iter().map(message).collect(),
            notes: step.notes,
            ..step.done
        }
    }

    /// Requests that hold or wait.
    pub fn alive(&self) -> impl Iterator<Item = &str> {
        self.requests.keys().map(|request| &**request)
    }

    pub fn holds(&self, request: &str) -> bool {
        self.requests
            .get(request)
            .is_some_and(|request| request.score.is_none())
    }

    pub fn waits(&self, request: &str) -> bool {
        self.requests
            .get(request)
            .is_some_and(|request| request.score.is_some())
    }

    /// The deadline of a request that waits or holds, ms.
    pub fn deadline_ms(&self, request: &str) -> Option<u64> {
        self.requests.get(request).map(|request| request.deadline_ms)
    }

    /// Nobody holds or waits.
    pub fn is_quiet(&self) -> bool {
        self.requests.is_empty()
    }

    /// The latest deadline of those who hold or wait, ms.
    pub fn latest_deadline_ms(&self) -> Option<u64> {
        self.requests.values().map(|request| request.deadline_ms).max()
    }

    /// Ends the leases of those who hold, and returns how many they were: for tests of users' programs.
    pub fn end_leases_of_holders(&mut self, now_ms: u64) -> usize {
        let holders = self.requests.values_mut().filter(|request| request.score.is_none());
        holders.map(|request| request.deadline_ms = now_ms).count()
    }

    /// When a server may forget the lock, ms.
    pub fn forgotten_at_ms(&self) -> u64 {
        self.last_ms + RETENTION
    }

    pub fn writer(&self) -> Option<&str> {
        self.writer.as_deref()
    }

    pub fn nearest_deadline_ms(&self) -> Option<u64> {
        self.requests.values().map(|request| request.deadline_ms).min()
    }

    /// What the request finds inside of its owner's. A request that does not name its owner is the first of its owner: it
    /// finds only an owner that writes.
    pub fn found(&self, request: &str) -> Inside {
        let inside = self.owners.get(owner_of(request)).copied().unwrap_or_default();
        if named_owner(request).is_none() && inside.writes == 0 {
            return Inside::default();
        }
        inside
    }

    /// Those who hold let this request in; the queue is not asked.
    pub fn fits(&self, request: &str) -> bool {
        match &self.writer {
            Some(writer) => **writer == *owner_of(request),
            None if writes(request) => self.readers == self.found(request).reads,
            None => !self.is_bounded() || self.readers == 0 || self.has_room(owner_of(request)),
        }
    }

    /// Whether an owner may read beside others in a bounded lock. Its further holds take nothing.
    fn has_room(&self, owner: &str) -> bool {
        let reads = self.owners.get(owner).is_some_and(|inside| inside.reads > 0);
        reads || self.used + weight_of(owner) <= self.limit
    }

    pub fn is_bounded(&self) -> bool {
        self.policy == Some(Some(BOUNDED))
    }

    /// The head of the queue, if it may enter: nobody is let in from the queue while somebody writes.
    pub fn next_in(&self) -> Option<&Name> {
        let (_, head) = self.queue.first()?;
        (self.writer.is_none() && self.fits(head)).then_some(head)
    }

    fn put(&mut self, request: &str, deadline_ms: u64, score: Option<i64>) {
        let name = Name::from(request);
        if let Some(score) = score {
            self.queue.insert((score, Name::clone(&name)));
        }
        self.requests.insert(name, Request { deadline_ms, score });
        self.last_ms = self.last_ms.max(deadline_ms);
    }

    fn enter(&mut self, request: &str) {
        let owner = owner_of(request);
        let inside = self.owners.entry(Name::from(owner)).or_default();
        if writes(request) {
            inside.writes += 1;
            self.writer = Some(Name::from(owner));
        } else {
            // Further holds of an owner count nothing.
            if inside.reads == 0 {
                self.used += weight_of(owner);
            }
            inside.reads += 1;
            self.readers += 1;
        }
    }

    /// What a request that holds is compared with: a greater token than its own says that it was interrupted.
    fn since(&self, request: &str) -> u64 {
        if writes(request) { self.token } else { self.first }
    }

    /// A request ends. Returns its place, if it waited.
    fn end(&mut self, request: &str) -> Option<i64> {
        let (name, Request { score, .. }) = self.requests.remove_entry(request)?;
        if let Some(score) = score {
            self.queue.remove(&(score, name));
            return Some(score);
        }
        let owner = owner_of(request);
        let Some(inside) = self.owners.get_mut(owner) else {
            unreachable!("{request} holds, and its owner is not inside");
        };
        if writes(request) {
            inside.writes -= 1;
            if inside.writes == 0 {
                self.writer = None;
            }
        } else {
            inside.reads -= 1;
            self.readers -= 1;
            if inside.reads == 0 {
                self.used -= weight_of(owner);
            }
        }
        if inside.reads + inside.writes == 0 {
            self.owners.remove(owner);
        }
        None
    }
}

/// The requests of a call that it renews or asks for: their client hears of them by the reply.
fn own<'a>(script: Script, args: &[&'a str]) -> Vec<&'a str> {
    match script {
        Script::Acquire | Script::Place => args[..1].to_vec(),
        Script::Renew => args.iter().step_by(2).copied().collect(),
        Script::Downgrade => args[..2].to_vec(),
        Script::Release | Script::Evict => Vec::new(),
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text:?}"))
}
