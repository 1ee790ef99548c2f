//! The invariants of design.md, checked on a history in one pass.
//!
//! The checker replays what scripts say that they did, and knows from arguments and times what they had to do. It is no
//! second implementation: it never predicts a grant, it only says why one was wrong, or missing. Numbers of invariants
//! are those of design.md, and 6 also stands for the count of requests, 0 for a record that makes no sense.

macro_rules! ensure {
    ($holds:expr, $invariant:expr, $($what:tt)+) => {
        if !$holds {
            return $crate::checker::violation($invariant, format!($($what)+));
        }
    };
}

mod calls;
mod grants;
mod intervals;
mod state;
#[cfg(test)]
mod tests;

use crate::model::BOUNDED;
use crate::record::{Record, Script};
pub use intervals::{Interval, Mode, check_intervals};
use std::collections::{BTreeSet, HashMap, HashSet};
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
    /// Of a bounded lock: what its readers may weigh together, and what they do. 0: no bounded lock.
    limit: u64,
    used: u64,
    writer: Option<u32>,
    /// Waiting upgrades.
    upgrades: u32,
    /// The last token, and the one with which the phase began: a writer's hold, or the time in which readers are inside
    /// without a break.
    token: u64,
    first: u64,
    /// The record in which the last token was drawn.
    drawn_by: u64,
    /// The greatest token or ticket.
    seq: u64,
    /// The longest lease.
    cap: u64,
    /// Keys were taken away: what is left is not known, at least until all former deadlines have passed, ms. They move
    /// when a former request is heard of.
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
    /// The owner is named. Otherwise the request is its owner's first, which finds its owner inside only if that writes.
    named: bool,
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
}

/// The arguments, understood.
enum Call<'a> {
    Acquire {
        request: &'a str,
        lease: u64,
        only_now: bool,
        band_of: Option<bool>,
        /// Of a bounded lock.
        limit: Option<u64>,
        ticket: Option<u64>,
        /// The token of the read hold that an upgrade begins with.
        read_token: Option<u64>,
        /// It may not stand behind so many.
        most_before: Option<u64>,
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
                        "w" => Some(true),
                        "r" => Some(false),
                        _ => None,
                    },
                    limit: match arg(3)?.strip_prefix(char::from(BOUNDED)) {
                        Some(limit) => Some(limit.parse().ok()?),
                        None => None,
                    },
                    ticket: match arg(4)? {
                        "" | "q" => None,
                        // The token of the read hold that upgrades.
                        token if token.starts_with('u') => None,
                        ticket => Some(ticket.parse().ok()?),
                    },
                    read_token: match arg(4)?.strip_prefix('u') {
                        Some(token) => Some(token.parse().ok()?),
                        None => None,
                    },
                    most_before: arg(2)?.strip_prefix('m').and_then(|most| most.parse().ok()),
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
            // Nobody keeps a journal of votes.
            Script::Place => None,
        };
        let length = match record.script {
            // The last of five is how many stand before it.
            Script::Acquire => 4 + usize::from(record.reply.first() == Some(&1)),
            Script::Release => 1 + args.len(),
            Script::Renew => 2 + args.len() / 2,
            Script::Downgrade | Script::Evict => 2,
            Script::Place => 3,
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

    fn limit(&self) -> Option<u64> {
        match self.call {
            Call::Acquire { limit, .. } => limit,
            _ => None,
        }
    }

    /// Of those that it asks for, ms.
    fn longest_lease(&self) -> u64 {
        match self.call {
            Call::Acquire { lease, .. } | Call::Downgrade { lease, .. } => lease,
            Call::Renew => {
                let leases = self.record.args.iter().skip(1).step_by(2);
                leases.filter_map(|lease| lease.parse().ok()).max().unwrap_or(0)
            }
            Call::Release | Call::Evict { .. } => 0,
        }
    }

    /// There is more to do.
    fn is_unfinished(&self) -> bool {
        let reply = &self.record.reply;
        match self.record.script {
            Script::Acquire => reply[2] == 0,
            _ => reply[0] == 0,
        }
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
    if !names_owner(request) {
        return request.get(1..).unwrap_or("");
    }
    let mut colons = request.bytes().enumerate().filter(|(_, byte)| *byte == b':');
    colons.nth(1).map_or("", |(second, _)| &request[second + 1..])
}

/// Whether a request names its owner: a star begins a weight.
fn names_owner(request: &str) -> bool {
    let mut parts = request.splitn(3, ':');
    parts.nth(2).is_some_and(|third| !third.starts_with('*'))
}

/// The name of an owner without its weight, by which it can be evicted too.
fn unweighted(owner: &str) -> &str {
    owner.split(":*").next().unwrap_or(owner)
}

/// What an owner that reads takes of a bounded lock.
fn weight_of(owner: &str) -> u64 {
    let (_, last) = owner.rsplit_once(':').unwrap_or_default();
    last.strip_prefix('*')
        .and_then(|weight| weight.parse().ok())
        .unwrap_or(1)
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
