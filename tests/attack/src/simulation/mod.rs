//! The real client in virtual time: all of its code but for the sockets, many processes on one thread, against the model
//! of the scripts. Messages are lost, doubled, late and overtake each other, connections break or go silent, processes
//! are stopped at any await and killed, the server is frozen, restarted, set back and emptied.
//!
//! A run is a storm of faults under which users work, then a rest in which everybody must get what they wait for, and so
//! on. One seed gives one history.

mod circles;
#[cfg(test)]
mod dead;
mod dice;
mod hands;
mod looks;
mod plan;
mod process;
mod quorum;
mod run;
mod server;
mod service;
mod several;
mod users;
mod world;

use run::run;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use world::Fault;

#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// Stop after so many real seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Stop after so many grants.
    #[arg(long)]
    grants: Option<u64>,
    /// Stop after so many seeds.
    #[arg(long)]
    runs: Option<u64>,
    /// The first seed; the others follow it. Random unless given.
    #[arg(long, env = "FAIRLOCK_SEED")]
    seed: Option<u64>,
    /// Only the run of that seed, with a trace of what happened at its end.
    #[arg(long, requires = "seed")]
    only: bool,
    /// Threads; each run has one.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    jobs: u64,
    /// Users of a lock over so many servers, 3, 5, 7 or 9.
    #[arg(long, value_parser = ["3", "5", "7", "9"])]
    quorum: Option<String>,
    /// So many years of a small service at the rates of real life, and what its users saw. One seed, one thread.
    #[arg(long, conflicts_with_all = ["quorum", "only", "grants", "runs"])]
    years: Option<f64>,
}

impl Args {
    fn servers(&self) -> Option<u64> {
        self.quorum.as_ref().and_then(|servers| servers.parse().ok())
    }
}

/// What runs came to.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub runs: u64,
    pub simulated: Duration,
    pub calls: u64,
    pub grants: u64,
    pub faults: BTreeMap<Fault, u64>,
    pub outcomes: BTreeMap<&'static str, u64>,
    pub digest: u64,
}

impl Stats {
    fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.simulated += other.simulated;
        self.calls += other.calls;
        self.grants += other.grants;
        for (fault, n) in &other.faults {
            *self.faults.entry(*fault).or_default() += n;
        }
        for (outcome, n) in &other.outcomes {
            *self.outcomes.entry(outcome).or_default() += n;
        }
    }
}

/// A history in which something was wrong.
#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub what: String,
    /// The last calls and faults, if they were recorded.
    pub trace: Vec<String>,
}

/// So many seeds are CI's slice.
pub const SLICE_RUNS: u64 = 60;

fn one(seed: u64, servers: Option<u64>, traced: bool) -> Result<Stats, Failure> {
    match servers {
        Some(servers) => quorum::run(seed, servers, traced),
        None => run(seed, traced),
    }
}

/// Runs of one seed after the other on several threads, until one fails or `enough` says so.
/// With `servers`, runs of a quorum of so many.
pub fn runs(
    first: u64,
    jobs: u64,
    servers: Option<u64>,
    enough: impl Fn(&Stats) -> bool + Sync,
) -> Result<Stats, Failure> {
    let (next, stop) = (AtomicU64::new(first), AtomicBool::new(false));
    let total = Mutex::new(Stats::default());
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let result = std::panic::catch_unwind(|| one(seed, servers, false));
                    let result = result.unwrap_or_else(|_| {
                        Err(Failure {
                            seed,
                            what: "a panic".to_owned(),
                            trace: Vec::new(),
                        })
                    });
                    match result {
                        Ok(stats) => {
                            let mut total = total.lock().expect("no panic while it is locked");
                            total.add(&stats);
                            if enough(&total) {
                                stop.store(true, Ordering::Relaxed);
                            }
                        }
                        Err(failed) => {
                            stop.store(true, Ordering::Relaxed);
                            *failure.lock().expect("no panic while it is locked") = Some(failed);
                        }
                    }
                }
            });
        }
    });
    match failure.into_inner().expect("no panic while it is locked") {
        Some(failure) => Err(failure),
        None => Ok(total.into_inner().expect("no panic while it is locked")),
    }
}

fn report(stats: &Stats) {
    let hours = stats.simulated.as_secs_f64() / 3600.0;
    println!("runs {}, simulated hours {hours:.0}", stats.runs);
    println!("script calls {}, grants {}", stats.calls, stats.grants);
    println!("faults: {:?}", stats.faults);
    println!("users: {:#?}", stats.outcomes);
}

pub fn command(args: &Args) -> ExitCode {
    let seed = args.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0 >> 16);
    println!("FAIRLOCK_SEED={seed}");
    if let Some(years) = args.years {
        return match service::run(seed, years) {
            Ok(report) => {
                println!("{report}\n0 violations");
                ExitCode::SUCCESS
            }
            Err(wrong) => {
                println!("VIOLATION with seed {seed}: {wrong}");
                ExitCode::FAILURE
            }
        };
    }
    let result = if args.only {
        one(seed, args.servers(), true)
    } else {
        let begun = std::time::Instant::now();
        let shown = AtomicU64::new(0);
        let enough = |stats: &Stats| {
            let passed = begun.elapsed().as_secs();
            if shown.swap(passed, Ordering::Relaxed) != passed {
                let hours = stats.simulated.as_secs_f64() / 3600.0;
                print!(
                    "\r{passed} s: {} runs, {hours:.0} hours, {} grants ",
                    stats.runs, stats.grants
                );
                // A terminal that went away does not matter.
                let _ = std::io::stdout().flush();
            }
            passed >= args.seconds
                || args.grants.is_some_and(|grants| stats.grants >= grants)
                || args.runs.is_some_and(|runs| stats.runs >= runs)
        };
        let result = runs(seed, args.jobs, args.servers(), enough);
        println!();
        result
    };
    match result {
        Ok(stats) => {
            report(&stats);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("VIOLATION with seed {}: {}", failure.seed, failure.what);
            if !args.only {
                let quorum = args
                    .quorum
                    .as_ref()
                    .map_or_else(String::new, |servers| format!("--quorum {servers} "));
                println!("again: attack simulate {quorum}--only --seed {}", failure.seed);
            }
            for line in failure.trace.iter().rev().take(2000).rev() {
                println!("{line}");
            }
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_history() {
        let digest = |seed| run(seed, false).expect("nothing wrong").digest;
        let first = crate::test_seed();
        let digests: Vec<_> = (first..first + 6).map(digest).collect();
        let again: Vec<_> = (first..first + 6).map(digest).collect();
        assert_eq!(digests, again);
        assert_ne!(digests[0], digests[1], "another seed is another history");
    }

    #[test]
    fn nothing_is_wrong_in_simulated_storms() {
        match runs(crate::test_seed(), 2, None, |stats| stats.runs >= SLICE_RUNS) {
            Ok(stats) => {
                report(&stats);
                assert_eq!(stats.faults.len(), Fault::ALL.len(), "every kind of fault happened");
                assert!(stats.grants > 100_000);
            }
            Err(failure) => panic!("seed {}: {}", failure.seed, failure.what),
        }
    }
}
