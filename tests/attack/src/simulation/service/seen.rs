//! What the users of a small service saw.

use super::{LEADER, LOCKS, NOTICED, YEAR};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// What the users of one lock saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub(super) grants: u64,
    /// Asks that waited longer than a moment; all of their waits, and the longest. Of the leader: times without one.
    pub(super) late: u64,
    pub(super) late_total: Duration,
    pub(super) longest: Duration,
    pub(super) refused: u64,
    pub(super) lost: BTreeMap<&'static str, u64>,
}

impl Seen {
    pub(super) fn waited(&mut self, wait: Duration) {
        self.longest = self.longest.max(wait);
        if wait > NOTICED {
            self.late += 1;
            self.late_total += wait;
        }
    }
}

/// What all users saw, and what it took.
#[derive(Debug, Default)]
pub struct Report {
    pub(super) years: f64,
    pub(super) incidents: u64,
    pub(super) simulated: Duration,
    pub(super) calls: u64,
    pub(super) longest_deaf: Duration,
    pub(super) locks: [Seen; 3],
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated.as_secs_f64() / 3600.0;
        writeln!(
            f,
            "{} years, {} incidents; {hours:.0} hours around them simulated, {} calls of scripts",
            self.years, self.incidents, self.calls
        )?;
        writeln!(f, "lock    grants  late by > 1 s  longest wait  refused  holds lost")?;
        for (name, seen) in LOCKS.iter().zip(&self.locks) {
            let lost: Vec<_> = seen.lost.iter().map(|(why, n)| format!("{n} {why}")).collect();
            let lost = if lost.is_empty() {
                "none".to_owned()
            } else {
                lost.join(", ")
            };
            let (late, longest) = (seen.late, format!("{:.1} s", seen.longest.as_secs_f64()));
            let (grants, refused) = (seen.grants, seen.refused);
            writeln!(
                f,
                "{name:<6} {grants:>7}  {late:>13}  {longest:>12}  {refused:>7}  {lost}"
            )?;
        }
        let whole = YEAR.mul_f64(self.years).as_secs_f64();
        let without = self.locks[0].late_total.as_secs_f64();
        writeln!(f, "a leader for {:.4} % of all time", 100.0 - 100.0 * without / whole)?;
        let blocked = self.locks[1].late_total + self.locks[2].late_total;
        writeln!(
            f,
            "users of job and shared waited {:.0} s in waits of more than 1 s",
            blocked.as_secs_f64()
        )?;
        write!(
            f,
            "a granted waiter was deaf for at most {:.2} s",
            self.longest_deaf.as_secs_f64()
        )
    }
}

/// What users share with the run.
pub(super) struct Ledger {
    pub(super) locks: Mutex<[Seen; 3]>,
    /// The process that leads, or since when none does.
    pub(super) leader: Mutex<Result<u64, Instant>>,
}

impl Ledger {
    pub(super) fn of(&self, lock: u64) -> impl std::ops::DerefMut<Target = Seen> + '_ {
        SeenOf(self.locks.lock().expect("no panic while it is locked"), lock as usize)
    }

    /// Its reign has ended, also by its death.
    pub(super) fn abdicates(&self, process: u64) {
        let mut leader = self.leader.lock().expect("no panic while it is locked");
        if *leader == Ok(process) {
            *leader = Err(Instant::now());
        }
    }

    pub(super) fn leads(&self, process: u64) {
        let former = std::mem::replace(
            &mut *self.leader.lock().expect("no panic while it is locked"),
            Ok(process),
        );
        if let Err(since) = former {
            self.of(LEADER).waited(since.elapsed());
        }
    }
}

struct SeenOf<'a>(MutexGuard<'a, [Seen; 3]>, usize);

impl std::ops::Deref for SeenOf<'_> {
    type Target = Seen;

    fn deref(&self) -> &Seen {
        &self.0[self.1]
    }
}

impl std::ops::DerefMut for SeenOf<'_> {
    fn deref_mut(&mut self) -> &mut Seen {
        &mut self.0[self.1]
    }
}
