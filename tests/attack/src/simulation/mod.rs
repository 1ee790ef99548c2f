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
mod server;
mod several;
mod users;
mod world;

use circles::Circles;
use dice::Dice;
use fairlock::testing::Network;
use fairlock::{Client, Error, Owner, RwLock};
use hands::{Hands, PROMPT};
use plan::Plan;
use process::{Process, pausable};
use server::{Called, Server};
use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use users::{User, owner};
use world::{Fault, Net, Phase, Weather, World};

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
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Users of a lock over so many servers, 3, 5, 7 or 9.
    #[arg(long, value_parser = ["3", "5", "7", "9"])]
    quorum: Option<String>,
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

struct Run {
    plan: Plan,
    world: Arc<World>,
    hands: Arc<Hands>,
    dice: Dice,
    processes: Vec<(Arc<Process>, Vec<tokio::task::JoinHandle<()>>)>,
    begun: u64,
}

impl Run {
    fn process(&mut self) {
        self.begun += 1;
        let process = Process::new(self.begun);
        let mut users = Vec::new();
        let owners = if self.plan.shared_owners { 7 } else { self.begun * 100 };
        let owners: Arc<Vec<Owner>> = Arc::new((owners..owners + 3).map(|n| owner(n << 32)).collect());
        let net: Arc<dyn Network> = Arc::new(Net {
            world: Arc::clone(&self.world),
            process: Arc::clone(&process),
        });
        let lease = self.plan.habits.leases[0];
        let (world, hands) = (Arc::clone(&self.world), Arc::clone(&self.hands));
        let (habits, calm, n) = (self.plan.habits, self.plan.calm(), self.plan.users);
        let mut dice = self.dice.fork();
        let begun = self.begun;
        let (process_, world_) = (Arc::clone(&process), Arc::clone(&world));
        // The first task connects, and becomes all users.
        let begin = async move {
            let client = loop {
                match Client::builder()
                    .lease(lease)
                    .lock_delay(habits.lock_delay)
                    .deadlock_timeout(habits.deadlock_timeout)
                    .connect(Arc::clone(&net))
                    .await
                {
                    Ok(client) => break client,
                    Err(_) => sleep(Duration::from_millis(100)).await,
                }
            };
            let users = (0..n).map(|number| User {
                world: Arc::clone(&world_),
                hands: Arc::clone(&hands),
                process: Arc::clone(&process_),
                client: client.clone(),
                owners: Arc::clone(&owners),
                own: owner(begun << 8 | number),
                habits,
                dice: dice.fork(),
                calm,
            });
            futures::future::join_all(users.map(User::run)).await;
        };
        let task = tokio::spawn(pausable(Arc::clone(&process), begin));
        process.keep(task.abort_handle());
        users.push(task);
        self.processes.push((process, users));
    }

    async fn storm(&mut self) -> Result<(), String> {
        self.world.begin(Phase::Busy);
        self.world.core().weather = self.plan.weather;
        // Until the first fault: a rest has settled everything.
        self.world.core().fine_since = (self.plan.weather == Weather::default()).then(Instant::now);
        let end = Instant::now() + self.plan.storm;
        let calls = self.world.core().server.calls + self.plan.storm_calls();
        while Instant::now() < end && self.world.core().server.calls < calls {
            if self.plan.faults.is_empty() {
                sleep(Duration::from_secs(1)).await;
            } else {
                sleep(self.dice.span(self.plan.every * 2)).await;
                let fault = *self.dice.pick(&self.plan.faults);
                let n = self.dice.index(self.processes.len());
                let process = Arc::clone(&self.processes[n].0);
                if self.world.inflict(fault, &process, self.plan.longest_lease()) {
                    self.processes.swap_remove(n);
                    self.hands.killed(process.id);
                    self.process();
                }
            }
            self.look()?;
        }
        Ok(())
    }

    /// Faults end; everybody must get what they wait for, and nothing is left.
    async fn rest(&mut self) -> Result<(), String> {
        let processes: Vec<_> = self.processes.iter().map(|(process, _)| Arc::clone(process)).collect();
        self.world.clear_up(&processes);
        self.world.begin(Phase::Rest);
        // The longest that one may wait for another: holds and the leases of the dead, one after the other for each user.
        let habits = &self.plan.habits;
        let users = u32::try_from(self.plan.users * self.plan.processes).unwrap_or(u32::MAX);
        let longest = (habits.hold * 20 * 4 + habits.pause * 20 + habits.at_least + self.plan.longest_search()) * users
            + self.plan.longest_kept() * 3;
        // Connections that were silent are noticed and made again, and what was frozen has caught up.
        let settled = Instant::now() + self.plan.longest_lease() * 2 + Duration::from_secs(15);
        let end = settled + longest + Duration::from_secs(60);
        while self.hands.busy() > 0 {
            if Instant::now() > settled {
                self.world.core().fine_since.get_or_insert(settled);
            }
            if Instant::now() > end {
                let locks = self.world.core().server.busy();
                return Err(format!("{} users do not come to an end: {locks:#?}", self.hands.busy()));
            }
            sleep(Duration::from_millis(250)).await;
            self.look()?;
        }
        if self.plan.calm() && self.plan.keeps_nothing() {
            sleep(PROMPT).await;
            self.nothing_is_left()?;
        }
        sleep_until(settled).await;
        self.look()?;
        // Holds for a least time or in a lock delay.
        sleep(self.plan.longest_kept()).await;
        self.nothing_is_left()
    }

    /// Everybody has left everything.
    fn nothing_is_left(&self) -> Result<(), String> {
        let mut core = self.world.core();
        let now_us = core.now_us();
        match core.server.lasting(now_us).as_slice() {
            // Leases of the dead end late by a clock that was set back.
            left if !left.is_empty() && !core.server.backward => {
                Err(format!("nobody wants it, and it stays: {left:#?}"))
            }
            _ => Ok(()),
        }
    }

    fn look(&mut self) -> Result<(), String> {
        for (process, tasks) in &mut self.processes {
            if tasks.iter().any(tokio::task::JoinHandle::is_finished) {
                return Err(format!("a task of process {} panicked", process.id));
            }
        }
        let calm = self.plan.calm();
        let patience = if calm {
            Duration::ZERO
        } else {
            self.plan.longest_lease()
        };
        self.hands.look(&self.world, patience);
        let mut core = self.world.core();
        if let Some(circles) = core.server.circles.as_ref().filter(|_| calm) {
            let bound = self.plan.found_within();
            let standing = circles
                .standing(bound)
                .map(|edges| format!("a circle stands for {bound:?}: {edges:?}"));
            core.violation = core.violation.take().or(standing);
        }
        match core.violation.take() {
            Some(violation) => Err(violation),
            None => Ok(()),
        }
    }

    async fn all(&mut self) -> Result<(), String> {
        let (hands, delay) = (Arc::clone(&self.hands), self.plan.habits.lock_delay);
        if !delay.is_zero() {
            tokio::spawn(async move { hands.watch(delay).await });
        }
        for _ in 0..self.plan.processes {
            self.process();
        }
        for _ in 0..self.plan.storms {
            self.storm().await?;
            self.rest().await?;
        }
        self.ending().await
    }

    /// Everybody dies. One lease later a stranger enters every lock at once, and leaves nothing behind.
    async fn ending(&mut self) -> Result<(), String> {
        for (process, _) in self.processes.drain(..) {
            self.world.inflict(Fault::Kill, &process, Duration::ZERO);
        }
        let longest = self.plan.longest_kept();
        sleep(longest + Duration::from_secs(1)).await;
        let net: Arc<dyn Network> = Arc::new(Net {
            world: Arc::clone(&self.world),
            process: Process::new(0),
        });
        let client = Client::builder()
            .lease(self.plan.longest_lease())
            .deadlock_timeout(Duration::MAX)
            .connect(net)
            .await;
        let client = client.map_err(|error| format!("a stranger cannot connect: {error}"))?;
        // A clock that was set back lets the dead live for one lease more.
        let patience = longest * 2;
        for number in 0..self.plan.habits.locks {
            let habits = &self.plan.habits;
            let lock = habits.lock(&client, number, habits.most_permits());
            let entered = tokio::time::timeout(patience, lock.write().acquire_fair()).await;
            let guard = match entered {
                Ok(entered) => entered.map_err(|error| format!("a stranger cannot enter: {error}"))?,
                Err(_) => {
                    return Err(format!(
                        "the dead keep lock {number}: {:#?}",
                        self.world.core().server.busy()
                    ));
                }
            };
            guard
                .release()
                .await
                .map_err(|error| format!("a stranger cannot leave: {error}"))?;
            let probed = tokio::time::timeout(patience, probe(&lock)).await;
            match probed {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(format!("a probe of lock {number}: {error}")),
                Err(_) => return Err(format!("a probe of lock {number} waits for ever")),
            }
        }
        self.look()?;
        match self.world.core().server.busy().as_slice() {
            [] => Ok(()),
            left => Err(format!("something is left: {left:#?}")),
        }
    }
}

/// A fresh upgrade, a named owner, a try: of a lock that nobody uses all must enter.
async fn probe(lock: &RwLock) -> Result<(), Error> {
    let reading = lock.read().acquire_fair().await?;
    reading.upgrade().await?.release().await?;
    reading.release().await?;
    lock.with_owner(&owner(7))
        .write()
        .acquire_fair()
        .await?
        .release()
        .await?;
    match lock.write().try_acquire().await? {
        Some(guard) => guard.release().await,
        None => Err(Error::OwnerWaiting {
            lock: "busy, though nobody uses it".to_owned(),
        }),
    }
}

/// One history.
pub fn run(seed: u64, hashes: &Arc<HashMap<String, Called>>, traced: bool) -> Result<Stats, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    fairlock::testing::seed(seed);
    let mut dice = Dice::new(seed);
    let plan = Plan::new(&mut dice);
    runtime.block_on(async {
        let begun = Instant::now();
        let at_most = *dice.pick(&[1, 2, usize::MAX, usize::MAX]);
        let mut server = Server::new(Arc::clone(hashes), at_most, true, traced);
        server.circles = (plan.habits.tangles > 0).then(Circles::default);
        let world = World::new(server, dice.fork());
        let task = tokio::spawn(Arc::clone(&world).run());
        let mut run = Run {
            plan,
            world,
            hands: Arc::default(),
            dice,
            processes: Vec::new(),
            begun: 0,
        };
        let result = run.all().await;
        let result = result.and_then(|()| {
            if task.is_finished() {
                Err("the world ended".to_owned())
            } else {
                Ok(())
            }
        });
        let mut core = run.world.core();
        match result {
            Ok(()) => Ok(Stats {
                runs: 1,
                simulated: begun.elapsed(),
                calls: core.server.calls,
                grants: core.server.grants,
                faults: core.faults.clone(),
                outcomes: run.hands.outcomes(),
                digest: core.server.digest,
            }),
            Err(what) => Err(Failure {
                seed,
                what,
                trace: core.server.trace.as_mut().map(server::Trace::take).unwrap_or_default(),
            }),
        }
    })
}

fn one(seed: u64, hashes: &Arc<HashMap<String, Called>>, servers: Option<u64>, traced: bool) -> Result<Stats, Failure> {
    match servers {
        Some(servers) => quorum::run(seed, servers, hashes, traced),
        None => run(seed, hashes, traced),
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
    let hashes = Arc::new(server::hashes());
    let (next, stop) = (AtomicU64::new(first), AtomicBool::new(false));
    let total = Mutex::new(Stats::default());
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let result = std::panic::catch_unwind(|| one(seed, &hashes, servers, false));
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
    let result = if args.only {
        one(seed, &Arc::new(server::hashes()), args.servers(), true)
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
        let hashes = Arc::new(server::hashes());
        let digest = |seed| run(seed, &hashes, false).expect("nothing wrong").digest;
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
