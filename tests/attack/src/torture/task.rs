//! One task of a worker: what it asks for, how long it waited, what it held and when.

use super::clock::now_us;
use super::wire::{Held, Line};
use super::workload::Workload;
use fairlock::{Access, Acquire, Client, Error, FencingToken, Guard, Mode, Owner};
use fairlock_support::random::Rng;
use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// Some rounds only try, or have a limit of milliseconds, which a busy machine does not meet.
const ROUNDS: usize = 200;

/// Gathers what the tasks report, and writes it now and then.
#[derive(Default)]
pub struct Reporter {
    gathered: Mutex<Gathered>,
    /// The workloads that this process has ever got in by.
    been_in: Mutex<HashSet<&'static str>>,
}

#[derive(Default)]
struct Gathered {
    lines: String,
    grants: HashMap<&'static str, (u64, u64)>,
    writes: HashMap<&'static str, (u64, u64)>,
    failures: HashMap<&'static str, u64>,
}

impl Reporter {
    fn gathered(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn line(&self, line: &Line) {
        use std::fmt::Write as _;
        // Writing to a string does not fail.
        let _ = writeln!(self.gathered().lines, "{line}");
    }

    pub fn wrong(&self, text: impl Into<String>) {
        self.line(&Line::Wrong(text.into()));
    }

    pub fn granted(&self, workload: &'static str, waited_us: u64) {
        let mut gathered = self.gathered();
        let (grants, longest) = gathered.grants.entry(workload).or_default();
        *grants += 1;
        *longest = waited_us.max(*longest);
        drop(gathered);
        self.lock_been_in().insert(workload);
    }

    fn lock_been_in(&self) -> MutexGuard<'_, HashSet<&'static str>> {
        self.been_in.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All is quiet: a workload that this process never got in by must get in now.
    pub async fn must_get_in(&self, workload: &'static str, mut round: impl AsyncFnMut()) {
        for _ in 0..ROUNDS {
            if self.lock_been_in().contains(workload) {
                return;
            }
            round().await;
        }
        if !self.lock_been_in().contains(workload) {
            self.wrong(format!(
                "{workload}: it never got in, and not in {ROUNDS} rounds with nobody disturbing"
            ));
        }
    }

    pub fn wrote(&self, register: &'static str, confirmed: bool) {
        let mut gathered = self.gathered();
        let (writes, refused) = gathered.writes.entry(register).or_default();
        *if confirmed { writes } else { refused } += 1;
    }

    /// An error that a user must expect.
    pub fn failed(&self, what: &'static str) {
        *self.gathered().failures.entry(what).or_default() += 1;
    }

    /// Writes to standard output. Fails when nobody reads there any more.
    pub fn flush(&self) -> std::io::Result<()> {
        let Gathered {
            lines,
            grants,
            writes,
            failures,
        } = std::mem::take(&mut *self.gathered());
        let mut out = std::io::stdout().lock();
        // First, so that whoever reads that all is done has read these.
        for (workload, (grants, longest_us)) in grants {
            let workload = workload.to_owned();
            writeln!(
                out,
                "{}",
                Line::Grants {
                    workload,
                    grants,
                    longest_us
                }
            )?;
        }
        for (register, (confirmed, refused)) in writes {
            let register = register.to_owned();
            writeln!(
                out,
                "{}",
                Line::Writes {
                    register,
                    confirmed,
                    refused
                }
            )?;
        }
        for (what, times) in failures {
            let what = what.to_owned();
            writeln!(out, "{}", Line::Failed { what, times })?;
        }
        out.write_all(lines.as_bytes())?;
        out.flush()
    }
}

/// One task of one workload.
pub struct Task {
    pub workload: Workload,
    /// Among the tasks of its workload in this process.
    pub number: usize,
    pub client: Client,
    pub random: Rng,
    pub reporter: Arc<Reporter>,
    pub stopped: watch::Receiver<bool>,
}

impl Task {
    pub fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Waits in the queue, and counts.
    pub async fn enter<M: Access>(&self, acquire: Acquire<M>) -> Result<Guard<M>, Error> {
        let asked = now_us();
        let guard = acquire.acquire_fair().await?;
        self.reporter.granted(self.workload.name(), now_us() - asked);
        Ok(guard)
    }

    /// Any other way to a guard, perhaps. Counted like an acquisition if there was one.
    pub async fn entered<T>(&self, way: impl Future<Output = Result<Option<T>, Error>>) -> Result<Option<T>, Error> {
        let asked = now_us();
        let got = way.await?;
        if got.is_some() {
            self.reporter.granted(self.workload.name(), now_us() - asked);
        }
        Ok(got)
    }

    /// From now on somebody is inside and says so.
    pub fn hold<M: Access>(&self, lock: &str, guard: &Guard<M>) -> Hold {
        let mut hold = self.hold_part(lock, M::MODE, guard.owner(), guard.fencing_token());
        hold.look(guard);
        hold
    }

    /// The same for a lock of several.
    pub fn hold_part(&self, lock: &str, mode: Mode, owner: Owner, token: FencingToken) -> Hold {
        Hold::of(&self.reporter, lock, mode, owner.uuid().as_u128(), token.get())
    }

    pub async fn pause(&mut self, most_ms: u64) {
        let us = self.random.u64(..most_ms * 1000 + 1);
        if us > 0 {
            sleep(Duration::from_micros(us)).await;
        }
    }

    /// Errors that a user must expect while everything around it breaks. Any other is reported.
    pub fn failed(&self, error: &Error) {
        let expected = match error {
            Error::Lost { .. } | Error::Unavailable { .. } => true,
            Error::UpgradeConflict { .. } => matches!(self.workload, Workload::Upgrade | Workload::Owners),
            Error::OwnerWaiting { .. } => self.workload == Workload::Owners,
            // Its memory is exhausted.
            Error::Server { source, .. } => source.to_string().contains("OOM"),
            _ => false,
        };
        if !expected {
            self.reporter
                .wrong(format!("{}: {error} ({error:?})", self.workload.name()));
        }
    }
}

/// A hold on its way to a line. Ends where it was last seen held: between that look and the next one the guard may have
/// been lost at any time, so that nothing is known about it.
pub struct Hold {
    reporter: Arc<Reporter>,
    held: Held,
}

/// A guard of any kind, as far as its holder looks at it.
pub trait Inside {
    fn is_inside(&self) -> bool;
}

impl<M> Inside for Guard<M> {
    fn is_inside(&self) -> bool {
        self.is_held()
    }
}

impl Hold {
    /// It begins now. With token 0 nobody knows its token.
    pub fn new<M: Access>(reporter: &Arc<Reporter>, lock: &str, owner: u128, token: u64) -> Self {
        Self::of(reporter, lock, M::MODE, owner, token)
    }

    fn of(reporter: &Arc<Reporter>, lock: &str, mode: Mode, owner: u128, token: u64) -> Self {
        let from_us = now_us();
        Self {
            reporter: Arc::clone(reporter),
            held: Held {
                mode: if mode == Mode::Write { 'w' } else { 'r' },
                lock: lock.to_owned(),
                owner,
                token,
                from_us,
                until_us: from_us,
            },
        }
    }

    /// Its token is known, if the guard is held now.
    pub fn knows(&mut self, guard: &impl Inside, token: u64) {
        if self.look(guard) {
            self.held.token = token;
        }
    }

    /// Looks once more. The time is taken before the look, so that what the guard says is true of it.
    pub fn look(&mut self, guard: &impl Inside) -> bool {
        self.look_by(|| guard.is_inside())
    }

    pub fn look_by(&mut self, is_held: impl FnOnce() -> bool) -> bool {
        let now = now_us();
        let held = is_held();
        if held {
            self.held.until_us = now;
        }
        held
    }

    /// It is a hold on so many permits.
    pub fn of_permits(&mut self, permits: u32) {
        self.held.mode = char::from_digit(permits, 10).unwrap_or('r');
    }

    /// Others see it until then, although its user has left it.
    pub fn lasts_until(&mut self, until_us: u64) {
        self.held.until_us = self.held.until_us.max(until_us);
    }

    /// Stays inside for a while, or until the hold is lost; says whether it is still held.
    pub async fn stay(&mut self, guard: &impl Inside, time: Duration) -> bool {
        let end = now_us() + time.as_micros() as u64;
        while self.look(guard) && now_us() < end {
            sleep(Duration::from_micros((end - now_us().min(end)).min(10_000))).await;
        }
        self.look(guard)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.held.until_us > self.held.from_us {
            self.reporter.line(&Line::Held(self.held.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_workload_that_never_gets_in_is_told_of_and_another_is_left_alone() {
        let (reporter, mut rounds) = (Reporter::default(), 0);
        reporter.granted("hot", 1);
        reporter.must_get_in("hot", async || rounds += 1).await;
        assert_eq!(rounds, 0);
        let mut late = 0;
        let getting_in = async || {
            late += 1;
            if late == ROUNDS {
                reporter.granted("late", 1);
            }
        };
        reporter.must_get_in("late", getting_in).await;
        assert_eq!(reporter.gathered().lines, "");
        reporter.must_get_in("several", async || rounds += 1).await;
        assert_eq!(rounds, ROUNDS);
        assert!(reporter.gathered().lines.starts_with("e several: it never got in"));
    }
}
