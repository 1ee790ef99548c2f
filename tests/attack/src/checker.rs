//! The invariants of design.md, checked on a history in one pass.
//!
//! The checker replays what scripts say that they did, and knows from arguments and times what they had to do. It is no
//! second implementation: it never predicts a grant, it only says why one was wrong, or missing. Numbers of invariants
//! are those of design.md, and 6 also stands for the count of requests, 0 for a record that makes no sense.

use crate::record::{Note, Record, Script, What};
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

/// Between two bands of a queue's scores; see design.md.
const BAND: i64 = 1 << 52;
/// Deadlines that one renewal pulls back after the clock was.
const CLAMPED: usize = 200;
/// A waiter asks again only if it got no answer: so often never.
const MOST_RESENDS: u32 = 100;

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: u8,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}", self.invariant, self.what)
    }
}

impl std::error::Error for Violation {}

fn violation<T>(invariant: u8, what: impl Into<String>) -> Result<T, Violation> {
    Err(Violation {
        invariant,
        what: what.into(),
    })
}

macro_rules! ensure {
    ($holds:expr, $invariant:expr, $($what:tt)+) => {
        if !$holds {
            return violation($invariant, format!($($what)+));
        }
    };
}

/// Checks the records of any number of locks.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    locks: Map<Lock>,
    totals: Totals,
    went_back: bool,
}

#[derive(Clone, Debug, Default)]
struct Totals {
    records: u64,
    grants: u64,
    /// Kept only if asked for: it grows.
    holds: Option<Vec<Hold>>,
}

/// A hold as the server saw it.
#[derive(Clone, Debug)]
struct Hold {
    lock: Box<str>,
    request: Box<str>,
    token: u64,
    from_us: u64,
    until_us: u64,
}

impl Checker {
    pub fn new() -> Self {
        Self::default()
    }

    /// One that remembers all holds, for [`check_users`](Self::check_users).
    pub fn with_holds() -> Self {
        let mut checker = Self::default();
        checker.totals.holds = Some(Vec::new());
        checker
    }

    /// The next record of its lock. After a violation the checker is of no further use.
    pub fn check(&mut self, record: &Record) -> Result<(), Violation> {
        if !self.locks.contains_key(record.lock.as_str()) {
            let lock = Lock {
                went_back: self.went_back,
                ..Lock::default()
            };
            self.locks.insert(record.lock.as_str().into(), lock);
        }
        self.totals.records += 1;
        let lock = self.locks.get_mut(record.lock.as_str()).expect("just made");
        lock.check(record, &mut self.totals).map_err(|mut violation| {
            violation.what += &format!("\n  in {record}");
            violation
        })
    }

    /// The server lost all its data about a lock, or about all: nobody holds or waits. Tokens must grow all the same.
    pub fn state_lost(&mut self, lock: Option<&str>) {
        match lock {
            Some(lock) => {
                if let Some(lock) = self.locks.get_mut(lock) {
                    lock.lose();
                }
            }
            None => self.locks.values_mut().for_each(Lock::lose),
        }
    }

    /// The server went back to an earlier state, which this checker was cloned at, or to nothing. Clients have been told of
    /// a later one.
    pub fn went_back(&mut self) {
        self.went_back = true;
        self.locks.values_mut().for_each(|lock| lock.went_back = true);
    }

    /// Some of a lock's keys were taken away. Nothing is checked until the scripts find that out and begin anew, or all
    /// former leases have ended and somebody finds the lock free.
    pub fn damaged(&mut self, lock: &str) {
        if let Some(lock) = self.locks.get_mut(lock) {
            let until = lock.deadlines.last().map_or(0, |(deadline, _)| *deadline);
            let mut former = std::mem::take(&mut lock.former);
            former.extend(std::mem::take(&mut lock.names).into_keys());
            let until = lock.doubt.map_or(until, |doubt| doubt.max(until));
            lock.forget();
            (lock.doubt, lock.former) = (Some(until), former);
        }
    }

    /// Everything is quiet, and whatever a dead client left has been expired: nobody holds or waits.
    pub fn finish(&self) -> Result<(), Violation> {
        for (key, lock) in self.locks.iter().filter(|(_, lock)| lock.doubt.is_none()) {
            for (name, id) in &lock.names {
                let waits = lock.requests[*id as usize].waits.is_some();
                let (invariant, does) = if waits { (5, "waits") } else { (6, "holds") };
                ensure!(false, invariant, "{name} still {does} {key}");
            }
        }
        Ok(())
    }

    pub fn grants(&self) -> u64 {
        self.totals.grants
    }

    pub fn records(&self) -> u64 {
        self.totals.records
    }

    /// [`check_intervals`], and that each interval lies within a hold of its token on the server.
    pub fn check_users(&self, intervals: &[Interval]) -> Result<(), Violation> {
        check_intervals(intervals)?;
        let holds = self.totals.holds.as_deref().expect("made by with_holds");
        let mut of: HashMap<(&str, &str, Mode, u64), Vec<&Hold>> = HashMap::new();
        for hold in holds {
            let (mode, owner) = (Mode::of(&hold.request), owner_of(&hold.request));
            of.entry((&hold.lock, owner, mode, hold.token)).or_default().push(hold);
        }
        for interval in intervals.iter().filter(|interval| interval.from_us < interval.until_us) {
            let key = (&*interval.lock, &*interval.owner, interval.mode, interval.token);
            let holds = of.get(&key).map_or(&[][..], Vec::as_slice);
            let within = |hold: &&Hold| hold.from_us <= interval.from_us && interval.until_us <= hold.until_us;
            ensure!(
                holds.iter().any(within),
                1,
                "{interval:?} is not within what the server gave: {holds:?}"
            );
        }
        Ok(())
    }
}

/// A request is of one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Read,
    Write,
}

impl Mode {
    /// Of a request.
    pub fn of(request: &str) -> Self {
        if writes(request) { Self::Write } else { Self::Read }
    }
}

/// A user with a guard in hand, until the release was called or the guard said that it was lost; the server's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    pub lock: String,
    /// As in the names of requests.
    pub owner: String,
    pub mode: Mode,
    pub token: u64,
    pub from_us: u64,
    pub until_us: u64,
}

/// The greatest value, and the greatest of another owner.
#[derive(Clone, Default)]
struct Top<'a>([Option<(u64, &'a Interval)>; 2]);

impl<'a> Top<'a> {
    fn add(&mut self, value: u64, of: &'a Interval) {
        let [first, second] = &mut self.0;
        match first {
            Some((best, holder)) if holder.owner == of.owner => {
                if value > *best {
                    (*best, *holder) = (value, of);
                }
            }
            Some((best, _)) if value <= *best => {
                if second.is_none_or(|(best, _)| value > best) {
                    *second = Some((value, of));
                }
            }
            _ => {
                // What was first stands behind, and was another owner's.
                *second = *first;
                *first = Some((value, of));
            }
        }
    }

    fn of_others(&self, owner: &str) -> Option<(u64, &'a Interval)> {
        self.0.iter().flatten().find(|(_, of)| of.owner != owner).copied()
    }
}

/// Invariants 1 and 2 at the users: conflicting intervals do not overlap, and a later one has the greater token.
pub fn check_intervals(intervals: &[Interval]) -> Result<(), Violation> {
    let mut sorted: Vec<&Interval> = intervals.iter().filter(|one| one.from_us < one.until_us).collect();
    sorted.sort_by(|a, b| (&a.lock, a.from_us).cmp(&(&b.lock, b.from_us)));
    for of_lock in sorted.chunk_by(|a, b| a.lock == b.lock) {
        // By mode: how long they last, and what tokens those had that are over.
        let (mut ends, mut tokens) = ([Top::default(), Top::default()], [Top::default(), Top::default()]);
        let mut lasting = BinaryHeap::new();
        for (index, interval) in of_lock.iter().enumerate() {
            while let Some(&(std::cmp::Reverse(until_us), ended)) = lasting.peek()
                && until_us <= interval.from_us
            {
                lasting.pop();
                let ended: &Interval = of_lock[ended];
                tokens[ended.mode as usize].add(ended.token, ended);
            }
            let conflicting = match interval.mode {
                Mode::Read => &[Mode::Write][..],
                Mode::Write => &[Mode::Read, Mode::Write],
            };
            for mode in conflicting {
                if let Some((until_us, other)) = ends[*mode as usize].of_others(&interval.owner) {
                    ensure!(until_us <= interval.from_us, 1, "{interval:?} overlaps {other:?}");
                }
                if let Some((token, other)) = tokens[*mode as usize].of_others(&interval.owner) {
                    ensure!(token < interval.token, 2, "{interval:?} came after {other:?}");
                }
            }
            ends[interval.mode as usize].add(interval.until_us, interval);
            lasting.push((std::cmp::Reverse(interval.until_us), index));
        }
    }
    Ok(())
}

// ---- one lock

#[derive(Clone, Debug, Default)]
struct Lock {
    names: Map<u32>,
    requests: Vec<Request>,
    unused: Vec<u32>,
    owner_names: Map<u32>,
    owners: Vec<Owner>,
    unused_owners: Vec<u32>,
    queue: BTreeSet<(i64, u32)>,
    deadlines: BTreeSet<(u64, u32)>,
    readers: u64,
    writer: Option<u32>,
    /// Waiting upgrades.
    upgrades: u32,
    /// The greatest token or ticket.
    seq: u64,
    /// The longest lease.
    cap: u64,
    /// Keys were taken away: what is left is not known, at least until all former deadlines have passed, ms.
    doubt: Option<u64>,
    /// Requests from before that.
    former: HashSet<Box<str>>,
    /// Holds of which their clients were told, also while there is doubt: token, and whether another one was granted since
    /// that excludes it.
    told: Map<(u64, bool)>,
    /// The server went back to an earlier state: clients may know more than it does.
    went_back: bool,
}

#[derive(Clone, Debug)]
struct Request {
    owner: u32,
    writes: bool,
    /// Its score while it waits.
    waits: Option<i64>,
    upgrade: bool,
    deadline: u64,
    /// The last record that named it in its arguments.
    named_by: u64,
    resends: u32,
    hold: usize,
}

#[derive(Clone, Debug, Default)]
struct Owner {
    reads: u64,
    writes: u64,
    waiting: u32,
    token: u64,
    /// With which it came in, if it has upgraded since.
    first: u64,
}

/// The arguments, understood.
enum Call<'a> {
    Acquire {
        request: &'a str,
        lease: u64,
        only_now: bool,
        band_of: Option<bool>,
        ticket: Option<u64>,
    },
    Release,
    Renew,
    Downgrade {
        from: &'a str,
        to: &'a str,
        lease: u64,
    },
    Evict {
        owner: &'a str,
    },
}

/// One record on its way.
struct Step<'a> {
    record: &'a Record,
    call: Call<'a>,
    number: u64,
    now: u64,
    lenient: bool,
}

impl<'a> Step<'a> {
    fn new(record: &'a Record, number: u64) -> Result<Self, Violation> {
        let args = &record.args;
        let arg = |at: usize| args.get(at).map(String::as_str);
        let call = match record.script {
            Script::Acquire => (|| {
                Some(Call::Acquire {
                    request: arg(0)?,
                    lease: arg(1)?.parse().ok()?,
                    only_now: arg(2)? == "try",
                    band_of: match arg(3)? {
                        "" => None,
                        policy => Some(policy == "w"),
                    },
                    ticket: match arg(4)? {
                        "" => None,
                        ticket => Some(ticket.parse().ok()?),
                    },
                })
            })(),
            Script::Release => Some(Call::Release),
            Script::Renew => args.len().is_multiple_of(2).then_some(Call::Renew),
            Script::Downgrade => (|| {
                Some(Call::Downgrade {
                    from: arg(0)?,
                    to: arg(1)?,
                    lease: arg(2)?.parse().ok()?,
                })
            })(),
            Script::Evict => arg(0).map(|owner| Call::Evict { owner }),
        };
        let length = match record.script {
            Script::Acquire => 4,
            Script::Release => 1 + args.len(),
            Script::Renew => 1 + args.len() / 2,
            Script::Downgrade | Script::Evict => 2,
        };
        match call {
            Some(call) if record.reply.len() == length => Ok(Self {
                record,
                call,
                number,
                now: record.at_us / 1000,
                lenient: false,
            }),
            _ => violation(0, "arguments or a reply that no such script has"),
        }
    }

    /// When to look again: 0, there is more to do.
    fn next_ms(&self) -> i64 {
        self.record.reply[if self.record.script == Script::Acquire { 2 } else { 0 }]
    }
}

impl Lock {
    fn check(&mut self, record: &Record, totals: &mut Totals) -> Result<(), Violation> {
        let mut step = Step::new(record, totals.records)?;
        if !self.former.is_empty() {
            self.doubts(&step);
        }
        step.lenient = self.doubt.is_some();
        self.knows(&step)?;
        let waited = !self.queue.is_empty();
        let before = self.begin(&step)?;
        for note in &record.notes {
            self.apply(&step, note, totals)?;
        }
        if step.lenient {
            return Ok(());
        }
        self.compare(&step, &before)?;
        if step.next_ms() == 0 {
            return Ok(());
        }
        if let Some((_, head)) = self.queue.first()
            && self.requests[*head as usize].deadline > step.now
        {
            // An owner may write by another request than the one that it waits with: that one comes in when it leaves.
            ensure!(
                self.writer.is_some() || !self.fits(*head),
                4,
                "{} could enter and was left waiting",
                self.name(*head)
            );
        }
        if waited && let Some((deadline, late)) = self.deadlines.first() {
            ensure!(
                *deadline > step.now,
                5,
                "the lease of {} ended at {deadline} and others wait",
                self.name(*late)
            );
        }
        Ok(())
    }

    /// Whoever was interrupted is told so by its next renewal, and by its release, also after keys were lost.
    fn knows(&mut self, step: &Step<'_>) -> Result<(), Violation> {
        let record = step.record;
        let each = match record.script {
            Script::Renew => 2,
            Script::Release => 1,
            _ => usize::MAX,
        };
        let asked = record.args.iter().step_by(each).filter(|_| each < usize::MAX);
        for (request, answer) in asked.zip(record.reply.iter().skip(1)) {
            let request = request.as_str();
            let Some((token, interrupted)) = self.told.get(request).copied() else {
                continue;
            };
            let well = (2..=token.cast_signed()).contains(answer);
            ensure!(
                !(interrupted && well),
                8,
                "the hold of {request} with {token} was interrupted, and it is told {answer}"
            );
            if !well || record.script == Script::Release {
                self.told.remove(request);
            }
        }
        for note in &record.notes {
            let (name, owner) = (note.request.as_str(), owner_of(&note.request));
            match note.what {
                What::Granted => {
                    for (other, (_, interrupted)) in &mut self.told {
                        *interrupted |= owner_of(other) != owner && (writes(other) || writes(name));
                    }
                    self.told.insert(name.into(), (note.token, false));
                }
                What::Reset => self.told.values_mut().for_each(|(_, interrupted)| *interrupted = true),
                // A known request that ends is compared without this.
                What::Expired if step.lenient => {}
                What::Queued => {}
                _ => drop(self.told.remove(name)),
            }
        }
        Ok(())
    }

    /// Whether a script that found keys missing can still bring up what was before.
    fn doubts(&mut self, step: &Step<'_>) {
        let (record, reply) = (step.record, &step.record.reply);
        let lives = |request: &str| self.former.contains(request);
        let noted = |note: &Note| note.what != What::Expired && lives(&note.request);
        let known = match record.script {
            Script::Release => (record.args.iter().zip(&reply[1..])).any(|(name, answer)| *answer != 0 && lives(name)),
            Script::Renew => (record.args.iter().step_by(2).zip(&reply[1..])).any(|(name, n)| *n != -1 && lives(name)),
            Script::Acquire | Script::Downgrade | Script::Evict => record.args.first().is_some_and(|name| lives(name)),
        };
        // Or a hold without a lease: that ends in a reset.
        let reset = record.notes.iter().any(|note| note.what == What::Reset);
        let found_free = record.script == Script::Acquire && reply[0] == 2 && reply[2] == -1 && !reset;
        if known || record.notes.iter().any(noted) {
            self.doubt = Some(u64::MAX);
        } else if found_free && self.doubt.is_some_and(|until| until < step.now) {
            let former = std::mem::take(&mut self.former);
            self.forget();
            self.former = former;
        }
    }

    /// What the arguments do by themselves: they renew. Returns what was known of the requests.
    fn begin(&mut self, step: &Step<'_>) -> Result<Before, Violation> {
        let mut before = Before::default();
        let args = &step.record.args;
        match step.call {
            Call::Acquire { request, lease, .. } => {
                before.first = self.standing(request);
                if let Some(id) = self.id(request) {
                    self.lease(id, step.now, lease);
                    let known = &mut self.requests[id as usize];
                    known.resends += u32::from(known.waits.is_some());
                    ensure!(
                        known.resends <= MOST_RESENDS,
                        10,
                        "{request} waits and asks again and again"
                    );
                }
            }
            Call::Release => {
                for (request, answer) in args.iter().zip(&step.record.reply[1..]) {
                    let standing = match self.id(request) {
                        // Named twice in one call, it is over the second time.
                        Some(id) if self.requests[id as usize].named_by == step.number => 0,
                        Some(id) => {
                            self.requests[id as usize].named_by = step.number;
                            if self.requests[id as usize].waits.is_some() {
                                1
                            } else {
                                self.told(id).cast_signed()
                            }
                        }
                        None => 0,
                    };
                    // An upgrade may end in the same call with its read hold.
                    let ended = *answer == 0 && self.request(request).is_some_and(|request| request.upgrade);
                    ensure!(
                        step.lenient || standing == *answer || ended,
                        8,
                        "{request} was {standing} and is answered {answer}"
                    );
                }
            }
            Call::Renew => {
                for (at, pair) in args.chunks_exact(2).enumerate() {
                    let Ok(lease) = pair[1].parse() else {
                        return violation(0, "a lease that is no number");
                    };
                    if let Some(id) = self.id(&pair[0]) {
                        self.requests[id as usize].named_by = step.number;
                        self.lease(id, step.now, lease);
                    } else {
                        let answer = step.record.reply[1 + at];
                        ensure!(
                            step.lenient || answer == -1,
                            8,
                            "{} is unknown and is answered {answer}",
                            pair[0]
                        );
                    }
                }
                self.clamp(step.now + self.cap);
            }
            Call::Downgrade { from, to, lease } => {
                before.first = self.standing(from);
                before.second = self.standing(to);
                // `from` may wait: an acquire that the network kept may come after the hold has been released.
                ensure!(
                    step.lenient || self.went_back || before.second != Standing::Waits,
                    10,
                    "{to} waits, and only downgrades make it"
                );
                if let Some(id) = self.id(to) {
                    self.lease(id, step.now, lease);
                }
            }
            Call::Evict { .. } => {}
        }
        Ok(before)
    }

    fn apply(&mut self, step: &Step<'_>, note: &Note, totals: &mut Totals) -> Result<(), Violation> {
        let request = note.request.as_str();
        if note.what == What::Reset {
            ensure!(step.lenient, 6, "everybody was thrown out, and nothing was amiss");
            self.forget();
            // What this script does from here on is not looked at.
            return Ok(());
        }
        match note.what {
            What::Granted => {
                totals.grants += 1;
                self.granted(step, request, note.token)?;
                if let Some(holds) = &mut totals.holds
                    && let Some(id) = self.id(request)
                {
                    self.requests[id as usize].hold = holds.len();
                    holds.push(Hold {
                        lock: step.record.lock.as_str().into(),
                        request: request.into(),
                        token: note.token,
                        from_us: step.record.at_us,
                        until_us: u64::MAX,
                    });
                }
                Ok(())
            }
            What::Queued => self.queued(step, request),
            ended => {
                let Some(id) = self.id(request) else {
                    let invariant = if matches!(ended, What::Released | What::Left) {
                        8
                    } else {
                        6
                    };
                    ensure!(
                        step.lenient || self.former.contains(request),
                        invariant,
                        "{request} {}, and was neither holding nor waiting",
                        ended.name()
                    );
                    return Ok(());
                };
                if !step.lenient {
                    self.may_end(step, ended, request, id)?;
                }
                if self.requests[id as usize].waits.is_none()
                    && let Some(holds) = &mut totals.holds
                    && let Some(hold) = holds.get_mut(self.requests[id as usize].hold)
                {
                    hold.until_us = step.record.at_us;
                }
                self.remove(id, request);
                Ok(())
            }
        }
    }

    /// Whether a known request may end so in this call.
    fn may_end(&self, step: &Step<'_>, ended: What, name: &str, id: u32) -> Result<(), Violation> {
        let request = &self.requests[id as usize];
        let waits = request.waits.is_some();
        let named = step.record.script == Script::Release && request.named_by == step.number;
        match ended {
            // The upgrade's end is noted before that of the last read hold.
            What::Left if request.upgrade && self.owners[request.owner as usize].reads <= 1 => {}
            What::Left => ensure!(named && waits, 8, "{name} left: asked {named}, waits {waits}"),
            What::Released => match step.call {
                Call::Downgrade { from, to, .. } => {
                    ensure!(from == name && !waits, 8, "{name} released by a downgrade of {from}");
                    ensure!(self.standing(to) == Standing::Holds, 9, "{from} went before {to} came");
                }
                _ => ensure!(named && !waits, 8, "{name} released: asked {named}, waits {waits}"),
            },
            What::Expired => ensure!(
                request.deadline <= step.now,
                if waits { 5 } else { 1 },
                "{name} expired {} ms before its deadline",
                request.deadline - step.now
            ),
            What::Evicted => ensure!(
                matches!(step.call, Call::Evict { owner } if owner == owner_of(name)),
                6,
                "{name} evicted, and nobody asked for it"
            ),
            What::Granted | What::Queued | What::Reset => {}
        }
        Ok(())
    }

    fn granted(&mut self, step: &Step<'_>, name: &str, token: u64) -> Result<(), Violation> {
        let id = match (self.id(name), &step.call) {
            (Some(id), _) => {
                let request = &self.requests[id as usize];
                if let Some(score) = request.waits {
                    if !step.lenient {
                        ensure!(request.deadline > step.now, 5, "{name} was granted after its deadline");
                        self.pass(step, name, request.owner, score)?;
                    }
                    self.leave_queue(id);
                    id
                } else {
                    ensure!(step.lenient, 7, "{name} holds and is granted again");
                    return Ok(());
                }
            }
            (None, Call::Acquire { request, lease, .. }) if *request == name => {
                let id = self.insert(name);
                self.lease(id, step.now, *lease);
                let owner = self.requests[id as usize].owner;
                if !self.inside(owner) && !step.lenient {
                    let (band, ticket) = self.place(step, id);
                    let score = ticket.map_or((band + 1) * BAND, |ticket| ticket as i64 + band * BAND);
                    self.pass(step, name, owner, score)?;
                }
                id
            }
            (None, Call::Downgrade { from, to, lease }) if *to == name => {
                ensure!(
                    step.lenient || owner_of(from) == owner_of(to),
                    9,
                    "{to} takes the place of another owner's {from}"
                );
                let id = self.insert(name);
                self.lease(id, step.now, *lease);
                id
            }
            (None, _) => {
                ensure!(step.lenient, 6, "{name} was granted and did not ask");
                self.insert(name)
            }
        };
        let (owner, wants_write) = (self.requests[id as usize].owner, self.requests[id as usize].writes);
        let inside = self.inside(owner);
        let writes_already = self.writer == Some(owner);
        if !step.lenient {
            if let Some(writer) = self.writer
                && writer != owner
            {
                return violation(
                    1,
                    format!("{name} entered beside the writer {}", self.owner_name(writer)),
                );
            }
            let others = self.readers - self.owners[owner as usize].reads;
            ensure!(
                !wants_write || others == 0,
                1,
                "{name} entered beside {others} read holds"
            );
            let known = self.owners[owner as usize].token;
            if writes_already || inside && !wants_write {
                ensure!(token == known, 2, "{name} reenters with {token} instead of {known}");
            } else {
                ensure!(token > self.seq, 2, "{name} got {token} after {}", self.seq);
            }
        }
        self.seq = self.seq.max(token);
        let holder = &mut self.owners[owner as usize];
        if wants_write && !writes_already && inside && holder.first == 0 {
            holder.first = holder.token;
        }
        holder.token = token;
        if wants_write {
            holder.writes += 1;
            self.writer = Some(owner);
        } else {
            holder.reads += 1;
            self.readers += 1;
        }
        Ok(())
    }

    fn queued(&mut self, step: &Step<'_>, name: &str) -> Result<(), Violation> {
        let Call::Acquire {
            request,
            only_now,
            lease,
            ..
        } = step.call
        else {
            return violation(6, format!("{name} queued and did not ask"));
        };
        ensure!(request == name, 6, "{name} queued and did not ask");
        ensure!(!only_now, 10, "{name} tries and queues");
        if let Some(id) = self.id(name) {
            ensure!(step.lenient, 7, "{name} queued twice");
            self.remove(id, name);
        }
        let id = self.insert(name);
        let owner = self.requests[id as usize].owner;
        let upgrade = self.is_upgrade(id);
        if !step.lenient {
            ensure!(
                !upgrade || self.upgrades == 0,
                9,
                "{name} is the second to wait for an upgrade"
            );
            // An owner that nobody named has one request, and perhaps its upgrade. What is executed long after it was given
            // up, and a server that went back in time, may put the one beside the other.
            let named = !owner_of(name).contains(':');
            ensure!(
                !named || self.owners[owner as usize].waiting == 0,
                5,
                "{name} waits beside another request of its owner"
            );
        }
        let (band, old) = self.place(step, id);
        let ticket = step.record.reply[1].unsigned_abs();
        match old {
            Some(old) => ensure!(ticket == old, 3, "{name} has {old} and got {ticket}"),
            None => {
                ensure!(
                    step.lenient || ticket > self.seq,
                    3,
                    "{name} got the ticket {ticket} after {}",
                    self.seq
                );
                self.seq = self.seq.max(ticket);
            }
        }
        let score = ticket as i64 + band * BAND;
        let request = &mut self.requests[id as usize];
        (request.waits, request.upgrade) = (Some(score), upgrade);
        self.upgrades += u32::from(upgrade);
        self.owners[owner as usize].waiting += 1;
        self.queue.insert((score, id));
        self.lease(id, step.now, lease);
        Ok(())
    }

    /// What was answered is what is.
    fn compare(&self, step: &Step<'_>, before: &Before) -> Result<(), Violation> {
        let reply = &step.record.reply;
        match step.call {
            Call::Acquire { request, only_now, .. } => {
                let now = self.standing(request);
                let known = before.first != Standing::Unknown;
                let (right, otherwise) = match reply[0] {
                    2 => (now == Standing::Holds, 1),
                    1 => (now == Standing::Waits, 5),
                    _ => (now == Standing::Unknown, 5),
                };
                let invariant = if known { 7 } else { otherwise };
                ensure!(right, invariant, "{request} {now:?} and is answered {}", reply[0]);
                match reply[0] {
                    2 => {
                        let token = self.token(request);
                        ensure!(reply[1] as u64 == token, 2, "{request} holds with {token}");
                    }
                    1 => {
                        let score = self.request(request).and_then(|request| request.waits);
                        let ticket = score.map_or(0, |score| score.rem_euclid(BAND));
                        ensure!(reply[1] == ticket, 7, "{request} waits with {ticket}");
                        // A message with a token up to this one is taken for one of a former life.
                        let latest = self.seq;
                        ensure!(reply[3] as u64 >= latest, 2, "seq was {latest} before {request} queued");
                    }
                    0 => {
                        ensure!(only_now, 5, "{request} may wait and is told busy");
                        ensure!(
                            !self.could_enter(step, request),
                            4,
                            "{request} could enter and is told busy"
                        );
                    }
                    -1 => {
                        let owner = self.owner_names.get(owner_of(request));
                        let reads = owner.is_some_and(|owner| self.owners[*owner as usize].reads > 0);
                        ensure!(
                            reads && writes(request) && self.upgrades > 0,
                            9,
                            "{request} is refused, and nobody else upgrades"
                        );
                    }
                    -2 => {
                        let owner = self.owner_names.get(owner_of(request));
                        let waits = owner.is_some_and(|owner| self.owners[*owner as usize].waiting > 0);
                        ensure!(waits, 5, "{request} is refused, and its owner does not wait");
                    }
                    _ => {}
                }
            }
            Call::Release => {
                for request in &step.record.args {
                    ensure!(
                        self.id(request).is_none(),
                        8,
                        "{request} is still there after its release"
                    );
                }
            }
            Call::Renew => {
                for (at, pair) in step.record.args.chunks_exact(2).enumerate() {
                    let (name, answer) = (&pair[0], reply[1 + at]);
                    let Some(request) = self.request(name).filter(|known| known.named_by == step.number) else {
                        continue;
                    };
                    if request.waits.is_some() {
                        ensure!(answer <= 0 && answer != -1, 8, "{name} waits and is answered {answer}");
                        let latest = self.seq;
                        ensure!(
                            -answer as u64 >= latest,
                            2,
                            "seq was {latest} before {name} was told to wait"
                        );
                    } else {
                        ensure!(answer > 0, 8, "{name} holds and is answered {answer}");
                        let token = self.id(name).map_or(0, |id| self.told(id));
                        ensure!(answer as u64 == token, 2, "{name} holds with {token}, not {answer}");
                    }
                }
            }
            Call::Downgrade { from, to, .. } => {
                let held = before.second == Standing::Holds || before.first == Standing::Holds && writes(from);
                if held {
                    ensure!(self.standing(to) == Standing::Holds, 9, "{from} held and {to} does not");
                    let token = self.token(to);
                    ensure!(reply[1] as u64 == token, 2, "{to} holds with {token}");
                    ensure!(
                        before.second == Standing::Holds || self.id(from).is_none(),
                        9,
                        "{from} holds beside {to}"
                    );
                } else {
                    ensure!(reply[1] == -1, 8, "{from} is unknown and is answered {}", reply[1]);
                    ensure!(self.id(to).is_none(), 8, "{to} entered for {from}, which is unknown");
                }
            }
            Call::Evict { owner } => {
                let evicted = step
                    .record
                    .notes
                    .iter()
                    .filter(|note| note.what == What::Evicted)
                    .count();
                ensure!(reply[1] == evicted as i64, 6, "{evicted} evicted");
                ensure!(!self.owner_names.contains_key(owner), 6, "{owner} is still there");
            }
        }
        Ok(())
    }

    /// Nobody who conflicts and is still alive stands before this score.
    fn pass(&self, step: &Step<'_>, name: &str, owner: u32, score: i64) -> Result<(), Violation> {
        for (_, id) in self.queue.iter().take_while(|(ahead, _)| *ahead < score) {
            let ahead = &self.requests[*id as usize];
            if (ahead.writes || writes(name)) && ahead.owner != owner && ahead.deadline > step.now {
                let invariant = if ahead.upgrade { 9 } else { 3 };
                return violation(invariant, format!("{name} passed {}", self.name(*id)));
            }
        }
        Ok(())
    }

    /// Whether a request that was told "busy" could have entered.
    fn could_enter(&self, step: &Step<'_>, name: &str) -> bool {
        let Call::Acquire { band_of, ticket, .. } = step.call else {
            return false;
        };
        let owner = self.owner_names.get(owner_of(name)).copied();
        let reads = owner.map_or(0, |owner| self.owners[owner as usize].reads);
        let fits = match self.writer {
            Some(writer) => Some(writer) == owner,
            None => !writes(name) || self.readers == reads,
        };
        let inside = owner.is_some_and(|owner| self.inside(owner));
        let band = i64::from(band_of.is_some_and(|writers| writers != writes(name)));
        let score = ticket.map_or((band + 1) * BAND, |ticket| ticket as i64 + band * BAND);
        fits && (inside || self.queue.first().is_none_or(|(head, _)| score < *head))
    }

    /// Band and old ticket of the request that asks.
    fn place(&self, step: &Step<'_>, id: u32) -> (i64, Option<u64>) {
        let Call::Acquire { band_of, ticket, .. } = step.call else {
            return (0, None);
        };
        let writes = self.requests[id as usize].writes;
        let band = if self.is_upgrade(id) {
            -1
        } else {
            i64::from(band_of.is_some_and(|writers| writers != writes))
        };
        (band, ticket)
    }

    fn is_upgrade(&self, id: u32) -> bool {
        let request = &self.requests[id as usize];
        let owner = &self.owners[request.owner as usize];
        request.writes && owner.reads > 0 && owner.writes == 0
    }

    fn inside(&self, owner: u32) -> bool {
        let owner = &self.owners[owner as usize];
        owner.reads + owner.writes > 0
    }

    /// Whether those who hold let it in.
    fn fits(&self, id: u32) -> bool {
        let request = &self.requests[id as usize];
        match self.writer {
            Some(writer) => writer == request.owner,
            None => !request.writes || self.readers == self.owners[request.owner as usize].reads,
        }
    }

    fn id(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    fn request(&self, name: &str) -> Option<&Request> {
        self.id(name).map(|id| &self.requests[id as usize])
    }

    fn standing(&self, name: &str) -> Standing {
        match self.request(name) {
            None => Standing::Unknown,
            Some(request) if request.waits.is_some() => Standing::Waits,
            Some(_) => Standing::Holds,
        }
    }

    fn token(&self, name: &str) -> u64 {
        self.request(name)
            .map_or(0, |request| self.owners[request.owner as usize].token)
    }

    /// The token that a request which holds is told.
    fn told(&self, id: u32) -> u64 {
        let request = &self.requests[id as usize];
        let owner = &self.owners[request.owner as usize];
        if request.writes || owner.first == 0 {
            owner.token
        } else {
            owner.first
        }
    }

    fn lease(&mut self, id: u32, now: u64, lease: u64) {
        let request = &mut self.requests[id as usize];
        self.deadlines.remove(&(request.deadline, id));
        request.deadline = now + lease;
        self.deadlines.insert((request.deadline, id));
        self.cap = self.cap.max(lease);
    }

    /// A clock that was put back has left deadlines too far ahead; the scripts pull them in.
    fn clamp(&mut self, latest: u64) {
        if self.deadlines.last().is_none_or(|(last, _)| *last <= latest) {
            return;
        }
        let mut far: Vec<_> = self.deadlines.range((latest + 1, 0)..).copied().collect();
        // A sorted set has those of one score in the order of their names.
        far.sort_by_key(|(deadline, id)| (*deadline, self.name(*id)));
        for (deadline, id) in far.into_iter().take(CLAMPED) {
            self.deadlines.remove(&(deadline, id));
            self.deadlines.insert((latest, id));
            self.requests[id as usize].deadline = latest;
        }
    }

    /// A request that neither holds nor waits yet.
    fn insert(&mut self, name: &str) -> u32 {
        let owner = match self.owner_names.get(owner_of(name)) {
            Some(owner) => *owner,
            None => {
                let owner = self.unused_owners.pop().unwrap_or_else(|| {
                    self.owners.push(Owner::default());
                    self.owners.len() as u32 - 1
                });
                self.owner_names.insert(owner_of(name).into(), owner);
                owner
            }
        };
        let request = Request {
            owner,
            writes: writes(name),
            waits: None,
            upgrade: false,
            deadline: 0,
            named_by: 0,
            resends: 0,
            hold: usize::MAX,
        };
        let id = match self.unused.pop() {
            Some(id) => {
                self.requests[id as usize] = request;
                id
            }
            None => {
                self.requests.push(request);
                self.requests.len() as u32 - 1
            }
        };
        self.names.insert(name.into(), id);
        id
    }

    fn leave_queue(&mut self, id: u32) {
        let request = &mut self.requests[id as usize];
        if let Some(score) = request.waits.take() {
            self.queue.remove(&(score, id));
            self.owners[request.owner as usize].waiting -= 1;
            self.upgrades -= u32::from(std::mem::take(&mut request.upgrade));
        }
    }

    fn remove(&mut self, id: u32, name: &str) {
        let Request {
            owner: of,
            writes,
            waits,
            deadline,
            ..
        } = self.requests[id as usize];
        if waits.is_some() {
            self.leave_queue(id);
        } else if writes {
            let owner = &mut self.owners[of as usize];
            owner.writes -= 1;
            if owner.writes == 0 && self.writer == Some(of) {
                self.writer = None;
            }
        } else {
            self.owners[of as usize].reads -= 1;
            self.readers -= 1;
        }
        self.deadlines.remove(&(deadline, id));
        self.names.remove(name);
        self.unused.push(id);
        let owner = &mut self.owners[of as usize];
        if owner.reads + owner.writes == 0 {
            owner.first = 0;
        }
        if owner.reads + owner.writes == 0 && owner.waiting == 0 {
            *owner = Owner::default();
            self.owner_names.remove(owner_of(name));
            self.unused_owners.push(of);
        }
    }

    /// Nobody holds or waits any more. Tokens go on.
    /// Nothing is left at the server, not even the longest lease, beyond which renewals pull deadlines back.
    fn lose(&mut self) {
        self.forget();
        self.cap = 0;
    }

    fn forget(&mut self) {
        *self = Self {
            seq: self.seq,
            cap: self.cap,
            told: std::mem::take(&mut self.told),
            ..Self::default()
        };
    }

    /// For messages only.
    fn name(&self, id: u32) -> &str {
        self.names
            .iter()
            .find(|(_, of)| **of == id)
            .map_or("?", |(name, _)| name)
    }

    fn owner_name(&self, id: u32) -> &str {
        let mut names = self.owner_names.iter();
        names.find(|(_, of)| **of == id).map_or("?", |(name, _)| name)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    #[default]
    Unknown,
    Waits,
    Holds,
}

/// What was known of the requests that a call is about.
#[derive(Clone, Default)]
struct Before {
    first: Standing,
    second: Standing,
}

fn writes(request: &str) -> bool {
    request.starts_with('w')
}

/// The owner of a request: the one that was named, or its own.
pub fn owner_of(request: &str) -> &str {
    let mut colons = request.bytes().enumerate().filter(|(_, byte)| *byte == b':');
    match colons.nth(1) {
        Some((second, _)) => &request[second + 1..],
        None => request.get(1..).unwrap_or(""),
    }
}

type Map<V> = HashMap<Box<str>, V, BuildHasherDefault<Quick>>;

/// Requests are hashed several times a record, and nobody attacks this table.
#[derive(Clone, Default)]
struct Quick(u64);

impl Hasher for Quick {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// A line is `ms script arguments => reply | notes`. Arguments of acquire after its request: `lease=100`, `try`,
    /// `policy=`, `ticket=`. Notes are divided by commas. In the reply of release, 2 stands for the token of the request's
    /// grant. Further lines: `lost`, `damaged`, `finish`.
    fn verdict(history: &str) -> Result<(), Violation> {
        let mut checker = Checker::new();
        let mut tokens = HashMap::new();
        let mut told = |mut record: Record| {
            if record.script == Script::Release {
                for (request, answer) in record.args.iter().zip(&mut record.reply[1..]) {
                    if let (2, Some(token)) = (*answer, tokens.get(request)) {
                        *answer = *token;
                    }
                }
            }
            for note in record.notes.iter().filter(|note| note.what == What::Granted) {
                tokens.insert(note.request.clone(), note.token.cast_signed());
            }
            record
        };
        for line in history.lines().map(str::trim).filter(|line| !line.is_empty()) {
            match line {
                "lost" => checker.state_lost(None),
                "damaged" => checker.damaged("a"),
                "finish" => checker.finish()?,
                line => checker.check(&told(record(line)))?,
            }
        }
        Ok(())
    }

    fn record(line: &str) -> Record {
        let (call, outcome) = line.split_once("=>").expect("a reply");
        let (reply, notes) = outcome.split_once('|').unwrap_or((outcome, ""));
        let mut words = call.split_whitespace();
        let ms: u64 = words.next().and_then(|ms| ms.parse().ok()).expect("a time");
        let script = words.next().and_then(Script::of_name).expect("a script");
        let mut args: Vec<String> = words.map(str::to_owned).collect();
        if script == Script::Acquire {
            let option = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name)).unwrap_or_default();
            let lease = if option("lease=").is_empty() {
                "100"
            } else {
                option("lease=")
            };
            let when = if args.iter().any(|arg| arg == "try") {
                "try"
            } else {
                "queue"
            };
            args = [args[0].as_str(), lease, when, option("policy="), option("ticket=")]
                .map(str::to_owned)
                .to_vec();
        }
        let note = |text: &str| {
            let words: Vec<_> = text.split_whitespace().collect();
            Note {
                what: What::of_name(words[0]).expect("a kind"),
                request: words[1].to_owned(),
                token: words.get(2).map_or(0, |token| token.parse().expect("a token")),
            }
        };
        Record {
            lock: "a".to_owned(),
            at_us: ms * 1000,
            script,
            args,
            reply: reply.split_whitespace().map(|n| n.parse().expect("a number")).collect(),
            notes: notes
                .split(',')
                .filter(|text| !text.trim().is_empty())
                .map(note)
                .collect(),
        }
    }

    fn good(history: &str) {
        if let Err(violation) = verdict(history) {
            panic!("{violation}");
        }
    }

    fn bad(invariant: u8, history: &str) {
        match verdict(history) {
            Ok(()) => panic!("passed, but violates {invariant}: {history}"),
            Err(violation) => assert_eq!(violation.invariant, invariant, "{violation}"),
        }
    }

    #[test]
    fn taking_turns() {
        good(
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w1:1 => 2 5 99 5
             1 acquire r2:1 => 1 6 99 6 | queued r2:1
             2 acquire r2:1 => 1 6 99 6
             3 acquire w3:1 => 1 7 98 7 | queued w3:1
             4 acquire r4:1 => 1 8 98 8 | queued r4:1
             5 acquire r5:1 try => 0 0 98 8
             6 renew r2:1 100 r9:9 100 w1:1 100 => 97 -8 -1 5
             7 release w1:1 r9:9 w1:1 => 97 2 0 0 | released w1:1, granted r2:1 9
             8 release w3:1 => 90 1 | left w3:1, granted r4:1 10
             9 renew r2:1 100 r4:1 100 => 100 9 10
             10 release r2:1 r4:1 => -1 2 2 | released r2:1, released r4:1
             11 release r2:1 => -1 0
             finish",
        );
    }

    #[test]
    fn owners_reenter_upgrade_and_downgrade() {
        good(
            "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
             0 acquire w2:1 => 1 6 100 6 | queued w2:1
             1 acquire r1:2:o => 2 5 99 6 | granted r1:2:o 5
             2 acquire w1:3:o => 2 7 98 7 | granted w1:3:o 7
             3 acquire w1:4:o => 2 7 97 7 | granted w1:4:o 7
             4 release w1:4:o => 96 2 | released w1:4:o
             5 downgrade w1:3:o r1:5:o 100 => 95 7 | granted r1:5:o 7, released w1:3:o
             5 downgrade w1:3:o r1:5:o 100 => 95 7
             6 release r1:1:o r1:2:o r1:5:o => 94 2 2 5 | released r1:1:o, released r1:2:o, released r1:5:o, granted w2:1 8
             7 acquire w2:2:2:1 try => 2 8 94 8 | granted w2:2:2:1 8
             8 release w2:1 w2:2:2:1 => -1 2 2 | released w2:1, released w2:2:2:1
             finish",
        );
        good(
            "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
             0 acquire r2:1:p => 2 6 100 6 | granted r2:1:p 6
             1 acquire w3:1 => 1 7 99 7 | queued w3:1
             1 acquire w1:2:o => 1 8 99 8 | queued w1:2:o
             1 acquire w1:3:o => -2 0 99 8
             1 acquire w2:2:p => -1 0 99 8
             2 acquire r2:3:p => 2 6 98 8 | granted r2:3:p 6
             3 release r2:1:p r2:3:p => 97 2 2 | released r2:1:p, released r2:3:p, granted w1:2:o 9
             4 downgrade w1:2:o r1:9:o 100 => 96 9 | granted r1:9:o 9, released w1:2:o
             5 downgrade w1:2:x r1:10:x 100 => 95 -1
             6 evict o => 90 2 | evicted r1:1:o, evicted r1:9:o, granted w3:1 10
             6 evict o => 90 0
             7 release w3:1 => -1 2 | released w3:1",
        );
    }

    #[test]
    fn policies_and_old_tickets() {
        good(
            "0 acquire w1:1 policy=w => 2 5 -1 5 | granted w1:1 5
             1 acquire r2:1 policy=w => 1 6 99 6 | queued r2:1
             2 acquire w3:1 policy=w => 1 7 98 7 | queued w3:1
             3 acquire w4:1 => -3 119 97 7
             4 release w1:1 => 96 2 | released w1:1, granted w3:1 8
             5 release w3:1 => 96 2 | released w3:1, granted r2:1 9
             6 acquire r5:1 policy=w => 2 10 90 10 | granted r5:1 10",
        );
        good(
            "0 acquire r1:1 policy=r => 2 50 -1 50 | granted r1:1 50
             1 acquire w2:1 policy=r => 1 60 99 60 | queued w2:1
             2 acquire r3:1 policy=r => 2 61 98 61 | granted r3:1 61",
        );
        good(
            "0 acquire w1:1 => 2 50 -1 50 | granted w1:1 50
             1 acquire w2:1 => 1 60 99 60 | queued w2:1
             2 acquire w3:1 ticket=55 => 1 55 99 60 | queued w3:1
             3 release w1:1 => 99 2 | released w1:1, granted w3:1 61",
        );
        good(
            "0 acquire r1:1 => 2 50 -1 50 | granted r1:1 50
             1 acquire w2:1 => 1 60 99 60 | queued w2:1
             2 acquire r3:1 ticket=55 => 2 61 99 61 | granted r3:1 61",
        );
    }

    #[test]
    fn more_than_one_call_can_do() {
        good(
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire r2:1 => 1 6 99 6 | queued r2:1
             1 acquire r2:2 => 1 7 99 7 | queued r2:2
             2 release w1:1 => 0 2 | released w1:1, granted r2:1 8
             3 renew => 98 | granted r2:2 9",
        );
        good(
            "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
             0 acquire r1:2 => 2 6 100 6 | granted r1:2 6
             50 acquire w2:1 => 1 7 50 7 | queued w2:1
             120 renew w2:1 100 => 0 -7 | expired r1:1
             120 renew => 30 | expired r1:2, granted w2:1 8",
        );
    }

    #[test]
    fn expiry_and_renewal_after_the_deadline() {
        good(
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             150 renew w1:1 100 => -1 5
             200 acquire w2:1 => 1 6 50 6 | queued w2:1
             200 acquire w3:1 lease=10 => 1 7 10 7 | queued w3:1
             260 renew w2:1 100 => 100 8 | expired w3:1, expired w1:1, granted w2:1 8",
        );
        bad(
            8,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             150 renew w1:1 100 => -1 -1",
        );
    }

    #[test]
    fn a_clock_that_is_put_back_leaves_deadlines_that_a_renewal_pulls_in() {
        good(
            "5000 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1000 acquire w2:1 => 1 6 100 6 | queued w2:1
             1010 renew w2:1 100 => 100 -6
             1110 renew w2:1 100 => 100 7 | expired w1:1, granted w2:1 7",
        );
        bad(
            1,
            "5000 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1000 acquire w2:1 => 1 6 100 6 | queued w2:1
             1110 acquire w2:1 => 2 7 100 7 | expired w1:1, granted w2:1 7",
        );
    }

    #[test]
    fn lost_and_damaged_state() {
        good(
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             lost
             1 acquire w2:1 => 2 6 -1 6 | granted w2:1 6
             2 renew w1:1 100 => 90 -1
             3 release w2:1 => -1 2 | released w2:1
             finish",
        );
        bad(
            2,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             lost
             1 acquire w2:1 => 2 5 -1 5 | granted w2:1 5",
        );
        // The hash is gone: the next one enters, until somebody renews.
        good(
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             0 acquire w3:1 => 1 6 100 6 | queued w3:1
             damaged
             1 acquire r2:1 => 2 7 -1 7 | granted r2:1 7
             2 acquire r2:2 => 1 8 99 8 | queued r2:2
             3 renew w1:1 100 => -1 -1 | reset -
             4 acquire w1:2 => 2 9 -1 9 | granted w1:2 9
             5 acquire w3:2 ticket=6 => 1 6 99 9 | queued w3:2",
        );
        bad(
            1,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             damaged
             3 renew w1:1 100 => -1 -1 | reset -
             4 acquire w1:2 => 2 9 -1 9 | granted w1:2 9
             5 acquire w3:2 => 2 10 99 10 | granted w3:2 10",
        );
        // Who was interrupted is told so, by a renewal and by a release.
        bad(
            8,
            "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
             damaged
             1 acquire w2:1 => 2 7 -1 7 | granted w2:1 7
             3 renew r1:1 100 => 90 5",
        );
        bad(
            8,
            "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
             damaged
             1 acquire w2:1 => 2 7 -1 7 | granted w2:1 7
             3 release r1:1 => -1 5",
        );
        // A hold whose lease is gone: that shows only when somebody asks.
        good(
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             damaged
             101 acquire w2:1 => 2 9 -1 9 | reset -, granted w2:1 9",
        );
        // What is left of the former life is expired at some time.
        good(
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             0 acquire w3:1 => 1 6 100 6 | queued w3:1
             damaged
             101 acquire w2:1 => 2 9 -1 9 | granted w2:1 9
             102 acquire w4:1 => 1 10 99 10 | expired w3:1, queued w4:1",
        );
        // Nothing is heard of the former life: after its leases all is certain again.
        bad(
            1,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             damaged
             101 acquire w1:2 => 2 9 -1 9 | granted w1:2 9
             105 acquire w3:2 => 2 10 99 10 | granted w3:2 10",
        );
    }

    #[test]
    fn invariant_1_exclusion() {
        bad(
            1,
            "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
             1 acquire w2:1 => 2 6 99 6 | granted w2:1 6",
        );
        bad(
            1,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire r2:1 => 2 6 99 6 | granted r2:1 6",
        );
        bad(
            1,
            "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
             0 acquire r2:1:p => 2 6 -1 6 | granted r2:1:p 6
             1 acquire w1:2:o => 2 7 99 7 | granted w1:2:o 7",
        );
        bad(
            1,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 => 2 6 99 6",
        );
        // A holder that is thrown out before its time.
        bad(
            1,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             50 acquire w2:1 => 2 6 99 6 | expired w1:1, granted w2:1 6",
        );
    }

    #[test]
    fn invariant_2_tokens() {
        bad(
            2,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 release w1:1 => -1 2 | released w1:1
             2 acquire w2:1 => 2 5 -1 5 | granted w2:1 5",
        );
        bad(
            2,
            "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
             1 acquire w1:2:o => 2 5 99 5 | granted w1:2:o 5",
        );
        bad(
            2,
            "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
             1 acquire r1:2:o => 2 6 99 6 | granted r1:2:o 6",
        );
        // Below a ticket that was given out: its message would be taken for an old one.
        bad(
            2,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 => 1 8 99 8 | queued w2:1
             2 release w1:1 => 90 2 | released w1:1, granted w2:1 7",
        );
        bad(
            2,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 renew w1:1 100 => -1 6",
        );
        bad(
            2,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 acquire w1:1:o => 2 6 -1 6",
        );
        bad(
            2,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 acquire w2:1 => 1 6 99 5 | queued w2:1",
        );
        bad(
            2,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 downgrade w1:1:o r1:2:o 100 => 99 6 | granted r1:2:o 5, released w1:1:o",
        );
    }

    #[test]
    fn invariant_3_order() {
        bad(
            3,
            "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
             1 acquire w2:1 => 1 6 99 6 | queued w2:1
             2 acquire r3:1 => 2 7 98 7 | granted r3:1 7",
        );
        bad(
            3,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 => 1 6 99 6 | queued w2:1
             1 acquire w3:1 => 1 7 99 7 | queued w3:1
             2 release w1:1 => 98 2 | released w1:1, granted w3:1 8",
        );
        bad(
            3,
            "0 acquire w1:1 policy=w => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 policy=w => 1 6 99 6 | queued w2:1
             1 acquire r3:1 policy=w => 1 7 99 7 | queued r3:1
             2 release w1:1 => 98 2 | released w1:1, granted r3:1 8",
        );
        bad(
            3,
            "0 acquire r1:1 => 2 50 -1 50 | granted r1:1 50
             1 acquire w2:1 => 1 60 99 60 | queued w2:1
             2 acquire r3:1 ticket=65 => 2 66 98 66 | granted r3:1 66",
        );
        bad(
            3,
            "0 acquire r1:1 => 2 50 -1 50 | granted r1:1 50
             1 acquire w2:1 => 1 40 99 60 | queued w2:1",
        );
        bad(
            3,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 acquire w2:1 => 1 6 99 6 | queued w2:1
             2 acquire w3:1 ticket=55 => 1 56 99 60 | queued w3:1",
        );
    }

    #[test]
    fn invariant_4_nobody_is_left_who_could_enter() {
        bad(
            4,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 => 1 6 99 6 | queued w2:1
             2 release w1:1 => 98 2 | released w1:1",
        );
        bad(
            4,
            "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
             1 acquire w2:1 => 1 6 99 6 | queued w2:1
             2 acquire r3:1 => 1 7 98 7 | queued r3:1
             3 release w2:1 => 97 1 | left w2:1",
        );
        bad(
            4,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire r2:1 => 1 6 99 6 | queued r2:1
             2 acquire r3:1 => 1 7 98 7 | queued r3:1
             3 downgrade w1:1 r1:2:1:1 100 => 97 5 | granted r1:2:1:1 5, released w1:1, granted r2:1 8",
        );
        bad(4, "0 acquire w1:1 try => 0 0 -1 0");
    }

    #[test]
    fn invariant_5_everybody_hears() {
        bad(
            5,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 => 1 6 99 6 | queued w2:1
             2 release w1:1 => 0 2 | released w1:1
             finish",
        );
        // A waiter that renewed.
        bad(
            5,
            "0 acquire w1:1 lease=500 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 => 1 6 100 6 | queued w2:1
             90 renew w2:1 100 => 100 -6
             110 renew w1:1 500 => 400 5 | expired w2:1",
        );
        // A dead holder that nobody notices.
        bad(
            5,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 lease=500 => 1 6 99 6 | queued w2:1
             110 renew w2:1 500 => 300 -6",
        );
        // A grant to the dead.
        bad(
            5,
            "0 acquire w1:1 lease=500 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 => 1 6 99 6 | queued w2:1
             200 release w1:1 => 90 2 | released w1:1, granted w2:1 7",
        );
        bad(
            5,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 => 0 0 99 5",
        );
        bad(
            5,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1:o => -2 0 99 5",
        );
        bad(
            5,
            "0 acquire w1:1 lease=500 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 => 1 6 99 6 | queued w2:1
             200 release w1:1 => 0 2 | released w1:1, granted w2:1 7",
        );
        bad(
            5,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 acquire w2:1:p => 1 6 99 6 | queued w2:1:p
             1 acquire w2:2:p => 1 7 99 7 | queued w2:2:p",
        );
    }

    #[test]
    fn invariant_6_every_request_is_counted() {
        bad(6, "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5\nfinish");
        bad(6, "0 renew => -1 | expired w1:1");
        bad(6, "0 renew => -1 | granted w1:1 7");
        bad(
            6,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 => 1 6 99 6 | queued w2:1
             2 release w1:1 => 98 2 | released w1:1, granted w2:1 7, granted w3:1 8",
        );
        bad(
            6,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 renew w1:1 100 => -1 -1 | reset -",
        );
        bad(
            6,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 evict p => -1 1 | evicted w1:1:o",
        );
        bad(
            6,
            "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
             0 acquire r1:2:o => 2 5 100 5 | granted r1:2:o 5
             1 evict o => 99 1 | evicted r1:1:o",
        );
        bad(
            6,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 acquire w2:1 => 1 6 99 6 | queued w3:1",
        );
        bad(
            6,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 evict o => -1 2 | evicted w1:1:o",
        );
    }

    #[test]
    fn invariant_7_sent_twice_is_sent_once() {
        bad(
            7,
            "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
             1 acquire r1:1 => 2 5 99 5 | granted r1:1 5",
        );
        bad(
            7,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w1:1 => 1 6 99 6 | queued w1:1",
        );
        bad(
            7,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 => 1 6 99 6 | queued w2:1
             2 acquire w2:1 => 1 7 99 7",
        );
        bad(
            7,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 => 1 6 99 6 | queued w2:1
             2 acquire w2:1 => -1 0 99 6",
        );
        bad(
            7,
            "0 acquire r1:1 => 2 5 -1 5 | granted r1:1 5
             0 acquire r1:1 try => 0 0 -1 5",
        );
    }

    #[test]
    fn invariant_8_the_unknown_changes_nothing() {
        bad(8, "0 release w1:1 => -1 2");
        bad(8, "0 release w1:1 => -1 0 | released w1:1");
        bad(8, "0 renew w1:1 100 => -1 0");
        bad(8, "0 downgrade w1:1 r1:2:1:1 100 => -1 7");
        bad(
            8,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 release w1:1 => -1 0",
        );
        bad(
            8,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 release w1:1 => -1 2",
        );
        bad(
            8,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 release w1:1 w1:1 => -1 2 2 | released w1:1",
        );
        bad(
            8,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 release w2:1 => -1 0 | released w1:1",
        );
        bad(
            8,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 renew w1:1 100 => -1 -1",
        );
        bad(
            8,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 => 1 6 99 6 | queued w2:1
             2 renew w2:1 100 => 98 7",
        );
        bad(
            8,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 release w1:1:o => -1 2 | left w1:1:o",
        );
        bad(
            8,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 acquire w2:1 => 1 6 99 6 | queued w2:1
             2 release w9:9 => 98 0 | left w2:1",
        );
        bad(
            8,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 acquire w1:2:o => 2 5 99 5 | granted w1:2:o 5
             2 downgrade w1:1:o r1:3:o 100 => 98 5 | granted r1:3:o 5, released w1:2:o",
        );
        bad(8, "0 downgrade w1:1:o r1:2:o 100 => -1 -1 | granted r1:2:o 5");
    }

    #[test]
    fn invariant_9_upgrades_and_downgrades() {
        let readers = "0 acquire r1:1:o => 2 5 -1 5 | granted r1:1:o 5
             0 acquire r2:1:p => 2 6 100 6 | granted r2:1:p 6
             1 acquire w1:2:o => 1 8 99 8 | queued w1:2:o\n";
        for rest in [
            "2 acquire w2:2:p => 1 9 98 9 | queued w2:2:p",
            "2 acquire r3:1 => 2 9 98 9 | granted r3:1 9",
            "2 acquire w4:1 => 1 9 98 9 | queued w4:1
             3 release r1:1:o => 98 2 | released r1:1:o
             3 release r2:1:p => 98 2 | released r2:1:p, granted w4:1 10",
        ] {
            bad(9, &format!("{readers}{rest}"));
        }
        bad(
            9,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 acquire r2:1 => 1 6 99 6 | queued r2:1
             2 downgrade w1:1:o r1:2:o 100 => 98 7 | released w1:1:o, granted r1:2:o 7, granted r2:1 8",
        );
        bad(
            9,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             2 downgrade w1:1:o r1:2:o 100 => 98 5 | granted r1:2:o 5",
        );
        bad(
            9,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 acquire w2:1 => -1 0 99 5",
        );
        bad(
            9,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 downgrade w1:1:o r1:2:o 100 => 99 5",
        );
        bad(
            9,
            "0 acquire w1:1:o => 2 5 -1 5 | granted w1:1:o 5
             1 downgrade w1:1:o r1:2:p 100 => 99 6 | granted r1:2:p 6, released w1:1:o",
        );
    }

    #[test]
    fn invariant_10_who_waits_only_renews() {
        bad(
            10,
            "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 try => 1 6 99 6 | queued w2:1",
        );
        let waits = "0 acquire w1:1 => 2 5 -1 5 | granted w1:1 5
             1 acquire w2:1 => 1 6 99 6 | queued w2:1\n";
        bad(10, &(waits.to_owned() + &"2 acquire w2:1 => 1 6 98 6\n".repeat(101)));
        let asks = "2 acquire r3:2:2:1 => 1 7 98 7 | queued r3:2:2:1";
        bad(10, &format!("{waits} {asks}\n 3 downgrade w2:1 r3:2:2:1 100 => 97 -1"));
        good(&format!("{waits} 2 downgrade w2:1 r2:2:2:1 100 => 98 -1"));
        bad(8, &format!("{waits} 2 downgrade w2:1 r2:2:2:1 100 => 98 6"));
    }

    #[test]
    fn records_that_make_no_sense() {
        bad(0, "0 acquire w1:1 => 2 5 -1");
        bad(0, "0 release w1:1 => -1");
        bad(0, "0 renew w1:1 => -1 0");
        bad(0, "0 renew w1:1 soon => -1 0");
    }

    fn interval(owner: &str, mode: Mode, token: u64, from_us: u64, until_us: u64) -> Interval {
        Interval {
            lock: "a".to_owned(),
            owner: owner.to_owned(),
            mode,
            token,
            from_us,
            until_us,
        }
    }

    #[test]
    fn users_intervals() {
        use Mode::{Read, Write};
        let all = [
            interval("o", Write, 1, 0, 10),
            interval("o", Read, 1, 5, 15),
            interval("o", Write, 1, 7, 8),
            interval("p", Read, 3, 15, 30),
            interval("q", Read, 2, 16, 20),
            interval("p", Write, 4, 22, 29),
            interval("r", Write, 5, 30, 40),
            interval("s", Read, 9, 40, 40),
        ];
        assert_eq!(check_intervals(&all), Ok(()));
        for (one, invariant) in [
            (interval("x", Write, 2, 9, 12), 1),
            (interval("x", Read, 2, 9, 12), 1),
            (interval("x", Write, 2, 14, 15), 1),
            (interval("x", Write, 6, 39, 50), 1),
            (interval("x", Write, 3, 29, 30), 1),
            (interval("x", Write, 4, 45, 50), 2),
            (interval("x", Read, 4, 45, 50), 2),
            (interval("x", Write, 6, 42, 43), 0),
            (interval("r", Write, 5, 32, 50), 0),
        ] {
            let mut all = all.to_vec();
            all.push(one.clone());
            let found = check_intervals(&all).err().map_or(0, |violation| violation.invariant);
            assert_eq!(found, invariant, "{one:?}");
            all.last_mut().expect("one").lock = "b".to_owned();
            assert_eq!(check_intervals(&all), Ok(()), "of another lock");
        }
    }

    #[test]
    fn users_stay_within_what_the_server_gave() {
        use Mode::{Read, Write};
        let mut checker = Checker::with_holds();
        for line in [
            "10 acquire w1:1 => 2 5 -1 5 | granted w1:1 5",
            "20 acquire r2:1 => 1 6 90 6 | queued r2:1",
            "30 release w1:1 => 90 5 | released w1:1, granted r2:1 7",
            "40 release r2:1 => -1 7 | released r2:1",
        ] {
            checker.check(&record(line)).expect("a good history");
        }
        let writer = |from, until| interval("1:1", Write, 5, from, until);
        assert_eq!(
            checker.check_users(&[writer(10_000, 30_000), writer(30_000, 30_000)]),
            Ok(())
        );
        let reader = interval("2:1", Read, 7, 30_000, 40_000);
        assert_eq!(checker.check_users(std::slice::from_ref(&reader)), Ok(()));
        for wrong in [
            writer(9_999, 30_000),
            writer(10_000, 30_001),
            interval("1:1", Read, 5, 10_000, 30_000),
            interval("1:2", Write, 5, 10_000, 30_000),
            interval("1:1", Write, 7, 10_000, 30_000),
        ] {
            let found = checker.check_users(std::slice::from_ref(&wrong)).expect_err("outside");
            assert_eq!(found.invariant, 1, "{wrong:?}");
        }
    }

    /// A history of 64 waiters in turns, for speed.
    #[test]
    fn it_keeps_up() {
        let mut records = Vec::new();
        let mut token = 1000;
        let line = |line: String| record(&line);
        records.push(line("0 acquire w0:0 => 2 1000 -1 1000 | granted w0:0 1000".to_owned()));
        for n in 1..64 {
            token += 1;
            records.push(line(format!("0 acquire w{n}:0 => 1 {token} 1 {token} | queued w{n}:0")));
        }
        let begun = records.len();
        let mut held = 1000;
        for turn in 0..2000 {
            let (here, next) = (turn % 64, (turn + 1) % 64);
            let (round, next_round) = (turn / 64, (turn + 1) / 64);
            token += 1;
            let (from, to) = (format!("w{here}:{round}"), format!("w{next}:{next_round}"));
            records.push(line(format!(
                "1 release {from} => 1 {held} | released {from}, granted {to} {token}"
            )));
            held = token;
            token += 1;
            let again = format!("w{here}:{}", round + 1);
            records.push(line(format!(
                "1 acquire {again} => 1 {token} 1 {token} | queued {again}"
            )));
        }
        let mut checker = Checker::new();
        for record in &records[..begun] {
            checker.check(record).expect("a good history");
        }
        let clock = Instant::now();
        for record in &records[begun..] {
            checker.check(record).expect("a good history");
        }
        let rate = (records.len() - begun) as f64 / clock.elapsed().as_secs_f64();
        println!("{rate:.0} records a second");
        assert!(rate > 50_000.0, "{rate:.0} records a second");
        let lock = &checker.locks["a"];
        assert!(
            lock.requests.len() <= 65 && lock.owners.len() <= 65,
            "what is over is not forgotten"
        );
    }
}
