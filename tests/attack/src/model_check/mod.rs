//! Random stories of the real scripts, each call judged by the model.
//!
//! Two checks: [`check`] plays stories at random, a quarter of them with a loss, and [`losses`] takes each thing that is
//! there (a key, a field) away before each call of short stories. How far a search goes is a number of calls: the same
//! seed and number give the same verdict on every machine.

mod bench;

use crate::judge::judge;
use crate::lua_world::{BEGIN_US, Hearing, Limits, Scripts, Step, Want, World};
use crate::model::Lock;
use crate::record::Script;
use crate::story::{Case, Counts, case, short_case};
use bench::{Bench, LANES};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::VecDeque;
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Calls of scripts.
    #[arg(long, default_value_t = u64::MAX, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// Repeats a run; so does FAIRLOCK_SEED.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Ends after this time, whatever the number of steps.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Takes each key and each field away before each call of so many short stories, and does nothing else.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub losses: Option<u64>,
    /// Nothing is lost.
    #[arg(long)]
    pub intact: bool,
    /// So many at once, each with a server of its own; their seeds follow each other.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub threads: u64,
}

pub fn run(args: &Args) -> ExitCode {
    let seed = args.seed.unwrap_or_else(random_seed);
    println!("seed {seed}");
    let limit = Duration::from_secs(args.seconds);
    let scripts = Scripts::real();
    let each = |thread: u64| {
        if let Err(counterexample) = crowds(&scripts) {
            println!("{counterexample}");
            return false;
        }
        let searched = match args.losses {
            Some(stories) => losses(&scripts, seed + thread, stories),
            None => search(&scripts, seed + thread, args.steps, limit, true, args.intact),
        };
        match searched {
            Ok(stats) => {
                println!("seed {}: {stats}", seed + thread);
                true
            }
            Err(counterexample) => {
                println!("{counterexample}");
                false
            }
        }
    };
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads)
            .map(|thread| scope.spawn(move || each(thread)))
            .collect();
        threads.into_iter().all(|thread| thread.join().unwrap_or(false))
    });
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What `make test` plays: so many calls, and so many stories with every loss.
pub const SLICE_STEPS: u64 = 150_000;

pub const SLICE_LOSSES: u64 = 8;

fn random_seed() -> u64 {
    std::env::var("FAIRLOCK_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0 >> 32)
}

/// What was tried without finding a difference.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub cases: u64,
    pub counts: Counts,
    pub elapsed: Duration,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            steps,
            granted,
            unfinished,
            resets,
            late,
            recovered,
            given_up,
            quarantines,
            ..
        } = self.counts;
        let rate = steps as f64 / self.elapsed.as_secs_f64().max(1e-9);
        write!(
            f,
            "{steps} calls in {} stories are right ({rate:.0}/s): {granted} grants seen, {unfinished} left something for \
             the next, {resets} started over, {late} were late copies, {recovered} locks recovered from a loss, {given_up} votes were given up, {quarantines} \
             quarantines began",
            self.cases
        )
    }
}

/// The shortest sequence found whose last call differs from what it should do.
#[derive(Clone, Debug)]
pub struct Counterexample {
    pub seed: u64,
    /// Steps taken until the difference was found, before shrinking.
    pub found_after: u64,
    pub limits: Limits,
    pub trace: Vec<String>,
    pub difference: String,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "a difference after {} steps (FAIRLOCK_SEED={})",
            self.found_after, self.seed
        )?;
        writeln!(f, "limits: {:?}", self.limits)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        write!(f, "{}", self.difference)
    }
}

/// Judges so many calls.
pub fn check(scripts: &Scripts, seed: u64, steps: u64) -> Result<Stats, Box<Counterexample>> {
    search(scripts, seed, steps, Duration::MAX, true, false)
}

/// Looks for a difference in so many calls, and not for the shortest way to it.
pub fn catch(scripts: &Scripts, seed: u64, steps: u64) -> Result<Stats, Box<Counterexample>> {
    search(scripts, seed, steps, Duration::MAX, false, false)
}

fn runner(seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// `limit` is for whoever waits for a long run.
fn search(
    scripts: &Scripts,
    seed: u64,
    steps: u64,
    limit: Duration,
    shrink: bool,
    intact: bool,
) -> Result<Stats, Box<Counterexample>> {
    let begun = Instant::now();
    let mut stats = Stats::default();
    let mut bench = Bench::start(scripts, seed)?;
    let mut runner = runner(seed);
    let stories = case(intact);
    while stats.counts.steps < steps && begun.elapsed() < limit {
        let mut trees: Vec<_> = (0..LANES)
            .map(|_| stories.new_tree(&mut runner).expect("a story"))
            .collect();
        let cases: Vec<Case> = trees.iter().map(ValueTree::current).collect();
        let before = stats.counts.steps;
        for (lane, played) in bench.play(&cases).into_iter().enumerate() {
            match played {
                Ok(counts) => stats.add(counts),
                Err(failure) => {
                    let found_after = before + failure.trace.len() as u64;
                    let failure = if shrink {
                        bench.shrink(&mut trees[lane], failure)
                    } else {
                        failure
                    };
                    return Err(Box::new(failure.explain(seed, found_after)));
                }
            }
        }
    }
    stats.elapsed = begun.elapsed();
    Ok(stats)
}

/// Of so many short stories: takes each key and each field away before each call.
pub fn losses(scripts: &Scripts, seed: u64, stories: u64) -> Result<Stats, Box<Counterexample>> {
    let begun = Instant::now();
    let mut stats = Stats::default();
    let mut bench = Bench::start(scripts, seed)?;
    let mut runner = runner(seed);
    let short = short_case();
    for _ in 0..stories {
        let story = short.new_tree(&mut runner).expect("a story").current();
        let with = |at: usize, which: usize| Case {
            loss: Some((at, which)),
            ..story.clone()
        };
        // The first run says what else there is to lose there.
        let mut todo: VecDeque<Case> = (0..=story.ops.len()).map(|at| with(at, 0)).collect();
        while !todo.is_empty() {
            let cases: Vec<Case> = todo.drain(..todo.len().min(LANES)).collect();
            for (case, played) in cases.iter().zip(bench.play(&cases)) {
                let counts = played.map_err(|failure| {
                    let found_after = stats.counts.steps;
                    Box::new(bench.shorten(failure).explain(seed, found_after))
                })?;
                stats.add(counts);
                if let Some((at, 0)) = case.loss {
                    todo.extend((1..counts.losable).map(|which| with(at, which)));
                }
            }
        }
    }
    stats.elapsed = begun.elapsed();
    Ok(stats)
}

impl Stats {
    fn add(&mut self, counts: Counts) {
        self.cases += 1;
        let all = &mut self.counts;
        all.steps += counts.steps;
        all.granted += counts.granted;
        all.unfinished += counts.unfinished;
        all.resets += counts.resets;
        all.late += counts.late;
        all.recovered += counts.recovered;
        all.given_up += counts.given_up;
        all.quarantines += counts.quarantines;
    }
}

fn shown(step: &Step) -> String {
    let at = step.now_us.cast_signed() - BEGIN_US.cast_signed();
    let listened = if step.listened { " (listened)" } else { "" };
    let deaf = match &step.hearing {
        Hearing { refused: true, .. } => " (nothing published)".to_owned(),
        Hearing { promoted: true, .. } => " (was a replica)".to_owned(),
        Hearing { deaf, .. } if deaf.is_empty() => String::new(),
        Hearing { deaf, .. } => format!(" (deaf: {})", deaf.join(" ")),
    };
    format!("{at} us: {} {:?}{listened}{deaf}", step.script.name(), step.args)
}

/// More requests than one call may grant or expire, under the real limits.
pub fn crowds(scripts: &Scripts) -> Result<(), Box<Counterexample>> {
    let mut world = World::start();
    let mut trace = Vec::new();
    let failed = |trace: &[String], difference: String| {
        Box::new(Counterexample {
            seed: 0,
            found_after: trace.len() as u64,
            limits: Limits::default(),
            trace: trace.last().cloned().into_iter().collect(),
            difference,
        })
    };
    let loaded = world.load(scripts).map_err(|error| failed(&[], error))?;
    let mut lock = Lock::default();
    let key = "fairlock:{crowd}";
    for (step, status) in crowd() {
        world.step(&loaded, key, None, &step, Want { status, keys: false });
        trace.push(format!("{} {:?}", step.script.name(), step.args));
        let seen = world.send().and_then(|_| world.seen(key, step.script));
        let judged = seen.and_then(|seen| judge(&lock, key, &step, &seen));
        (lock, _) = judged.map_err(|difference| failed(&trace, difference))?;
    }
    Ok(())
}

fn crowd() -> Vec<(Step, bool)> {
    let (mut steps, mut now_us) = (Vec::new(), BEGIN_US);
    let mut call = |script, args: &[&str], forward_us: u64, keys_after| {
        now_us += forward_us;
        let step = Step {
            listened: keys_after,
            ..Step::new(script, args, now_us)
        };
        steps.push((step, keys_after));
    };
    // 2,600 readers and a writer behind one writer; a batch of readers is 1,024.
    call(Script::Acquire, &["w1:1", "9000", "queue", "", ""], 1, true);
    for n in 0..2_600 {
        // Every third lives shorter.
        let (request, lease) = (format!("r{:x}:{n}", n % 7), if n % 3 == 0 { "3000" } else { "8000" });
        call(Script::Acquire, &[&request, lease, "queue", "", ""], 1, n % 1_000 == 0);
    }
    call(Script::Acquire, &["w1:2", "9000", "queue", "", ""], 1, true);
    // Owners whose requests are anywhere in a list that takes several pages.
    for n in (100..2_500_u32).step_by(200) {
        call(Script::Evict, &[&format!("{:x}:{n}", n % 7)], 1, false);
    }
    call(Script::Release, &["w1:1"], 1, true);
    for _ in 0..4 {
        call(Script::Renew, &[], 1, true);
    }
    // 867 deadlines, 200 a call.
    call(Script::Renew, &["r5:5", "8000"], 3_100_000, true);
    for _ in 0..6 {
        call(Script::Renew, &[], 1, true);
    }
    // The others', and then the writer's turn.
    call(Script::Acquire, &["r1:9999", "9000", "queue", "", ""], 5_500_000, true);
    for _ in 0..10 {
        call(Script::Renew, &["w1:2", "9000"], 1, true);
    }
    // A name that begins another's, which is alone by then.
    call(Script::Release, &["r5:5", "w1:2", "r1:9999"], 1, true);
    call(Script::Acquire, &["r1:99991", "9000", "queue", "", ""], 1, true);
    call(Script::Renew, &["r1:9999", "9000"], 1, true);
    call(Script::Release, &["r1:9999"], 1, true);
    // A writer, 250 waiters of a dead client, and a waiter that lives.
    call(Script::Release, &["r1:99991"], 1, true);
    call(Script::Acquire, &["w1:20000", "9000", "queue", "", ""], 1, true);
    for n in 0..250 {
        call(
            Script::Acquire,
            &[&format!("wd:{n}"), "9000", "queue", "", ""],
            1,
            n % 100 == 0,
        );
    }
    call(Script::Acquire, &["w1:20001", "9000", "queue", "", ""], 1, true);
    call(Script::Release, &["w1:20000"], 1, true);
    for _ in 0..4 {
        call(Script::Renew, &[], 1_000_000, true);
        call(Script::Renew, &[], 1, true);
    }
    call(Script::Release, &["w1:20001"], 1, true);
    for (step, _) in &mut steps {
        step.hearing.deaf = vec!["d".to_owned()];
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn or_panic<T>(result: Result<T, Box<Counterexample>>) -> T {
        result.unwrap_or_else(|counterexample| panic!("{counterexample}"))
    }

    #[test]
    fn the_scripts_do_what_the_model_does() {
        let seed = crate::test_seed();
        let stats = or_panic(check(&Scripts::real(), seed, SLICE_STEPS));
        println!("seed {seed}: {stats}");
        // Whatever is judged must also occur.
        let Counts {
            steps,
            granted,
            resets,
            unfinished,
            late,
            recovered,
            given_up,
            quarantines,
            ..
        } = stats.counts;
        assert!(granted * 40 > steps && late * 20 > steps, "{stats}");
        assert!(resets > 0 && unfinished > 0 && recovered > 0, "{stats}");
        assert!(given_up * 4_000 > steps && quarantines * 4_000 > steps, "{stats}");
    }

    #[test]
    fn a_lock_recovers_from_the_loss_of_any_key_and_any_field() {
        let seed = crate::test_seed();
        let stats = or_panic(losses(&Scripts::real(), seed, SLICE_LOSSES));
        println!("seed {seed}: {stats}");
        assert!(stats.counts.recovered * 2 > stats.cases, "{stats}");
    }

    #[test]
    fn the_scripts_do_what_the_model_does_with_thousands_of_requests() {
        or_panic(crowds(&Scripts::real()));
    }
}
