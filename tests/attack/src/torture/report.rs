//! What one run came to: a line while it runs, a table at the end.

use super::faults::Fault;
use super::register::{Outcome, REGISTERS};
use super::wire::Line;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::io::{IsTerminal, Write as _};
use std::time::Duration;

/// What the workers have said.
#[derive(Default)]
pub struct Totals {
    /// By workload: grants, and the longest wait.
    pub grants: BTreeMap<String, (u64, u64)>,
    /// Grants by the worker's number.
    by_worker: BTreeMap<usize, u64>,
    /// By register: writes that were confirmed, and refused.
    pub writes: HashMap<String, (u64, u64)>,
    /// Errors that users must expect.
    pub failures: BTreeMap<String, u64>,
    pub drained: usize,
    pub probed: usize,
    pub longest_probe_us: u64,
}

impl Totals {
    /// Takes note of a worker's line; gives back what is for the judge.
    pub fn add(&mut self, worker: usize, line: Line) -> Option<Line> {
        match line {
            Line::Grants {
                workload,
                grants,
                longest_us,
            } => {
                let (sum, longest) = self.grants.entry(workload).or_default();
                *sum += grants;
                *longest = longest_us.max(*longest);
                *self.by_worker.entry(worker).or_default() += grants;
            }
            Line::Writes {
                register,
                confirmed,
                refused,
            } => {
                let (sum, sum_refused) = self.writes.entry(register).or_default();
                *sum += confirmed;
                *sum_refused += refused;
            }
            Line::Failed { what, times } => *self.failures.entry(what).or_default() += times,
            Line::Drained => self.drained += 1,
            Line::Probed { longest_us } => {
                self.probed += 1;
                self.longest_probe_us = longest_us.max(self.longest_probe_us);
            }
            Line::Held(_) | Line::Wrong(_) => return Some(line),
        }
        None
    }

    /// Who never got in: some of these workloads, and of the first so many workers. At the end each worker tries until
    /// it has been in, so this is wrong in the shortest run too.
    pub fn left_out<'a>(
        &self,
        workloads: impl Iterator<Item = &'a str>,
        workers: usize,
    ) -> impl Iterator<Item = String> {
        let workloads = workloads
            .filter(|workload| !self.grants.contains_key(*workload))
            .map(|workload| format!("{workload}: nobody ever got in"));
        let workers = (0..workers)
            .filter(|worker| !self.by_worker.contains_key(worker))
            .map(|worker| format!("worker {worker} never got in"));
        workloads.chain(workers)
    }

    pub fn grants(&self) -> u64 {
        self.grants.values().map(|(grants, _)| grants).sum()
    }
}

/// One line that is written over and over on a terminal; elsewhere a new one now and then.
pub struct Progress {
    terminal: bool,
    ticks: u64,
    shown: usize,
}

impl Progress {
    pub fn new() -> Self {
        Self {
            terminal: std::io::stdout().is_terminal(),
            ticks: 0,
            shown: 0,
        }
    }

    pub fn show(&mut self, text: &str) {
        self.ticks += 1;
        let mut out = std::io::stdout().lock();
        // Nobody to show it to is no reason to stop.
        let _ = if self.terminal {
            write!(out, "\r\x1b[K{text}").and_then(|()| out.flush())
        } else if self.ticks % 10 == 1 {
            writeln!(out, "{text}")
        } else {
            Ok(())
        };
    }

    /// Those that have not been told yet; says whether there were any.
    pub fn violations(&mut self, all: &[String]) -> bool {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        for text in all.iter().skip(self.shown) {
            println!("{clear}VIOLATION {text}");
        }
        std::mem::replace(&mut self.shown, all.len()) < all.len()
    }

    pub fn end(&self) {
        if self.terminal {
            println!();
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

/// Everything that is known at the end.
pub struct Report {
    pub seed: u64,
    pub took: Duration,
    pub totals: Totals,
    pub faults: BTreeMap<Fault, u64>,
    pub registers: Option<[Outcome; 2]>,
    /// What was looked at.
    pub judged: String,
    pub violations: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18}{:>12}  longest wait", "workload", "grants")?;
        for (workload, (grants, longest_us)) in &self.totals.grants {
            writeln!(
                f,
                "{workload:<18}{grants:>12}  {:.1?}",
                Duration::from_micros(*longest_us)
            )?;
        }
        let longest_probe = Duration::from_micros(self.totals.longest_probe_us);
        writeln!(
            f,
            "{:<18}{:>12}  {longest_probe:.1?}",
            "when all was quiet", self.totals.probed
        )?;
        let mut faults = String::new();
        for (fault, count) in &self.faults {
            write!(
                faults,
                "{}{} {count}",
                if faults.is_empty() { "" } else { ", " },
                fault.name()
            )?;
        }
        let none = if faults.is_empty() { "none" } else { "" };
        writeln!(f, "faults             {faults}{none}")?;
        if let Some(registers) = &self.registers {
            for (register, outcome) in REGISTERS.iter().zip(registers) {
                let (confirmed, refused) = self.totals.writes.get(*register).copied().unwrap_or_default();
                let Outcome { value, writes } = outcome;
                writeln!(
                    f,
                    "register {register:<10}{writes:>11} writes ({confirmed} reported, {refused} refused), value {value}: {} lost",
                    outcome.lost()
                )?;
            }
        }
        writeln!(f, "{}", self.judged)?;
        let (seed, took, violations) = (self.seed, self.took, self.violations);
        write!(f, "{violations} violations in {took:.0?}; seed {seed}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_or_a_worker_that_never_got_in_is_found() {
        let mut totals = Totals::default();
        totals.add(
            1,
            Line::Grants {
                workload: "hot".to_owned(),
                grants: 3,
                longest_us: 4,
            },
        );
        let left_out: Vec<_> = totals.left_out(["hot", "several"].into_iter(), 2).collect();
        assert_eq!(left_out, ["several: nobody ever got in", "worker 0 never got in"]);
    }
}
