//! Puts known bugs in and reports which check catches each.
//!
//! A mutant is a change of the source that somebody could make, together with its story and the check that must notice
//! it. Those of the scripts are made in memory and put beside the model; those of the client are built in a copy of the
//! tree. A mutant that survives is a hole in the checks; one whose text is gone shows that the catalogue is stale.

mod bounded;
mod cli;
mod client;
mod found;
mod log;
mod lua;
mod page;
mod quorum;
mod simulated;
mod tree;
mod unnoticed;
mod votes;

use crate::lua_world::{Limits, Scripts};
use crate::{explore, model_check};
use log::Log;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use tree::{Outcome, Program, Restored, Tree};

/// A known bug.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    pub name: &'static str,
    /// From the root of the repository.
    pub file: &'static str,
    /// Each text, which occurs once in the file, and what takes its place.
    pub edits: &'static [(&'static str, &'static str)],
    /// Where the bug was.
    pub seen: &'static str,
    pub story: &'static str,
    /// What must catch it; CI runs it too.
    pub check: Check,
}

/// What can catch a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// `attack model-check`.
    Model,
    /// The part of it that takes each key and each field away.
    Losses,
    /// `attack explore --cast orphans --policy fifo --depth 20`.
    Orphans,
    /// The part of it with thousands of requests.
    Crowds,
    /// `attack simulate`.
    Simulate,
    /// A test of `tests/it`.
    It(&'static str),
    /// A test inside of the crate.
    Lib(&'static str),
    /// A model of `make loom`.
    Loom(&'static str),
    /// A test inside of `fairlock-attack`.
    Attack(&'static str),
    /// A test of `testing/tests`.
    Testing(&'static str),
    /// A test of `cli/tests`, which starts the command.
    Cli(&'static str),
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Model => write!(f, "model-check"),
            Self::Losses => write!(f, "model-check, losses"),
            Self::Orphans => write!(f, "explore, orphans"),
            Self::Crowds => write!(f, "model-check, crowds"),
            Self::Simulate => write!(f, "simulate"),
            Self::It(name) => write!(f, "it {name}"),
            Self::Lib(name) => write!(f, "lib {name}"),
            Self::Loom(name) => write!(f, "loom {name}"),
            Self::Attack(name) => write!(f, "attack {name}"),
            Self::Testing(name) => write!(f, "testing {name}"),
            Self::Cli(name) => write!(f, "cli {name}"),
        }
    }
}

impl Check {
    fn needs_no_build(&self) -> bool {
        matches!(self, Self::Model | Self::Losses | Self::Orphans | Self::Crowds)
    }
}

/// In so many calls model check catches each of its mutants, with the seed of CI: twice what the last one needs.
const STEPS: u64 = 100_000;
/// And in the losses of so many stories.
const LOSSES: u64 = 64;

/// All of them, under the titles that they have on the page.
const CATALOGUE: [(&str, &[Mutant]); 8] = [
    ("Bugs in the scripts", lua::ALL),
    (
        "Bugs in bounded locks, bounded queues, and grants that nobody heard",
        bounded::ALL,
    ),
    ("Bugs in votes, and in quarantines", votes::ALL),
    ("Bugs in the client", client::ALL),
    (
        "Bugs in least times, lock delays, several locks in one guard, and the search for deadlocks",
        simulated::ALL,
    ),
    ("Bugs in the client of several servers", quorum::ALL),
    ("Bugs that no check of that day would have noticed", unnoticed::ALL),
    ("Bugs in the command", cli::ALL),
];

pub fn all() -> impl Iterator<Item = &'static Mutant> {
    CATALOGUE.iter().flat_map(|(_, mutants)| *mutants)
}

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only these.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only those that model check tries: changes of scripts, made in memory.
    #[arg(long, conflicts_with = "client")]
    lua: bool,
    /// Only those that are built, nearly all of them changes of the client.
    #[arg(long)]
    client: bool,
    /// How many calls model check looks at for each.
    #[arg(long, default_value_t = STEPS)]
    steps: u64,
    /// Where model check and simulation begin; CI's is 1 too.
    #[arg(long, env = "FAIRLOCK_SEED", default_value_t = 1)]
    seed: u64,
    /// Writes the rows to this file too. If it is there, it is continued: a mutant that it has a verdict on is not tried
    /// again, caught or not. It speaks of one commit.
    #[arg(long)]
    log: Option<PathBuf>,
    /// Writes the catalogue, tests/attack/MUTANTS.md, and runs nothing.
    #[arg(long)]
    page: bool,
}

/// The repository that this was built from.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page_path() -> PathBuf {
    root().join("tests/attack/MUTANTS.md")
}

/// What became of a mutant.
enum Verdict {
    Caught {
        after: Duration,
        how: String,
    },
    Survived {
        after: Duration,
    },
    /// It could not be tried.
    Broken(String),
}

pub fn run(args: &Args) -> ExitCode {
    if args.page {
        return match std::fs::write(page_path(), page::text()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("{}: {error}", page_path().display());
                ExitCode::FAILURE
            }
        };
    }
    if let Some(unknown) = args.only.iter().find(|name| all().all(|mutant| mutant.name != **name)) {
        println!("no mutant is called {unknown}");
        return ExitCode::FAILURE;
    }
    let wanted = |mutant: &&Mutant| {
        let is_left_out = if mutant.check.needs_no_build() {
            args.client
        } else {
            args.lua
        };
        !is_left_out && (args.only.is_empty() || args.only.iter().any(|name| name == mutant.name))
    };
    match try_each(args, all().filter(wanted).collect()) {
        Ok(report) => report.end(),
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn try_each(args: &Args, mutants: Vec<&'static Mutant>) -> Result<Report, String> {
    let log = match &args.log {
        Some(path) => Some(Log::open(path, &root(), args.seed, args.steps)?),
        None => None,
    };
    let (report, mutants) = Report::new(mutants, log);
    let (lua, client): (Vec<&Mutant>, Vec<&Mutant>) =
        mutants.into_iter().partition(|mutant| mutant.check.needs_no_build());
    each_lua(&lua, args.seed, args.steps, &report)?;
    each_client(&client, args.seed, &report)?;
    Ok(report)
}

/// The table, a row at a time.
struct Report {
    all: usize,
    done: AtomicUsize,
    bad: Mutex<Vec<&'static str>>,
    log: Option<Log>,
    begun: Instant,
}

impl Report {
    /// And the mutants that are left to try.
    fn new(mutants: Vec<&'static Mutant>, log: Option<Log>) -> (Self, Vec<&'static Mutant>) {
        let all = mutants.len();
        let judged = |mutant: &Mutant| log.as_ref().and_then(|log| log.is_caught(mutant.name));
        let (before, left): (Vec<&Mutant>, Vec<&Mutant>) =
            mutants.into_iter().partition(|mutant| judged(mutant).is_some());
        if !before.is_empty() {
            println!("{:>7}  {} of {all} have their verdict in the log", "", before.len());
        }
        println!("{:>7}  {:38} {:8} {:>7}  by", "", "mutant", "", "after");
        let bad = before.iter().filter(|mutant| judged(mutant) == Some(false));
        let report = Self {
            all,
            done: AtomicUsize::new(before.len()),
            bad: Mutex::new(bad.map(|mutant| mutant.name).collect()),
            log,
            begun: Instant::now(),
        };
        (report, left)
    }

    fn row(&self, mutant: &'static Mutant, verdict: &Verdict) {
        let n = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let (word, after, how) = match verdict {
            Verdict::Caught { after, how } => ("caught", *after, format!("{}: {how}", mutant.check)),
            Verdict::Survived { after } => ("SURVIVED", *after, mutant.check.to_string()),
            Verdict::Broken(why) => ("BROKEN", Duration::ZERO, why.clone()),
        };
        if !matches!(verdict, Verdict::Caught { .. }) {
            self.bad.lock().expect("no panic while it is locked").push(mutant.name);
        }
        let how: String = how.lines().next().unwrap_or("").chars().take(150).collect();
        let place = format!("{n}/{}", self.all);
        let seconds = after.as_secs_f64();
        let row = format!("{place:>7}  {:38} {word:8} {seconds:>5.1} s  {how}", mutant.name);
        self.say(&row);
    }

    fn say(&self, row: &str) {
        println!("{row}");
        if let Some(Err(error)) = self.log.as_ref().map(|log| log.row(row)) {
            println!("{:>7}  the log has no such row: {error}", "");
        }
        // Who reads this through a pipe wants to see it too; a pipe that is closed does not matter.
        let _ = std::io::stdout().flush();
    }

    fn end(self) -> ExitCode {
        let bad = self.bad.lock().expect("no panic while it is locked");
        let (all, took) = (self.all, self.begun.elapsed());
        if bad.is_empty() {
            self.say(&format!("all of {all} caught, in {took:.0?}"));
            return ExitCode::SUCCESS;
        }
        self.say(&format!(
            "{} of {all} not caught, in {took:.0?}: {}",
            bad.len(),
            bad.join(", ")
        ));
        ExitCode::FAILURE
    }
}

/// The file's text with the mutant in it. `Err`: the catalogue is stale.
fn mutated(mutant: &Mutant) -> Result<String, String> {
    let path = root().join(mutant.file);
    let mut text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", mutant.file))?;
    for (from, to) in mutant.edits {
        match text.matches(from).count() {
            1 => text = text.replace(from, to),
            n => return Err(format!("{} has this {n} times, not once: {from}", mutant.file)),
        }
    }
    Ok(text)
}

// ---- scripts

/// `Err`: the checks fail without any mutant, so they would catch everything.
fn each_lua(mutants: &[&'static Mutant], seed: u64, steps: u64, report: &Report) -> Result<(), String> {
    if mutants.is_empty() {
        return Ok(());
    }
    println!("{:>7}  the scripts as they are, FAIRLOCK_SEED={seed}", "");
    let mut checks: Vec<Check> = mutants.iter().map(|mutant| mutant.check).collect();
    checks.sort_by_key(Check::to_string);
    checks.dedup();
    for check in checks {
        put_to_the_test(&Scripts::real(), check, seed, steps)
            .map_err(|why| format!("{check} fails without any mutant: {why}"))?;
    }
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(mutants.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    report.row(mutant, &try_lua(mutant, seed, steps));
                }
            });
        }
    });
    Ok(())
}

fn put_to_the_test(
    scripts: &Scripts,
    check: Check,
    seed: u64,
    steps: u64,
) -> Result<(), Box<model_check::Counterexample>> {
    match check {
        Check::Crowds => model_check::crowds(scripts),
        Check::Orphans => orphans(scripts, seed),
        Check::Losses => model_check::losses(scripts, seed, LOSSES).map(|_| ()),
        _ => model_check::catch(scripts, seed, steps).map(|_| ()),
    }
}

fn orphans(scripts: &Scripts, seed: u64) -> Result<(), Box<model_check::Counterexample>> {
    let (limits, depth) = (Limits::default(), explore::ORPHANS_DEPTH);
    let explored = explore::explore(scripts, explore::ORPHANS, "", limits, depth, |_| {});
    explored.map(|_| ()).map_err(|found| {
        Box::new(model_check::Counterexample {
            seed,
            found_after: found.trace.len() as u64,
            limits,
            trace: found.trace,
            difference: found.difference,
        })
    })
}

fn try_lua(mutant: &Mutant, seed: u64, steps: u64) -> Verdict {
    if let Err(stale) = mutated(mutant) {
        return Verdict::Broken(stale);
    }
    let mut scripts = Scripts::real();
    let name = mutant.file.trim_start_matches("lua/");
    for (from, to) in mutant.edits {
        scripts.replace(name, from, to);
    }
    let begun = Instant::now();
    let result = put_to_the_test(&scripts, mutant.check, seed, steps);
    let after = begun.elapsed();
    match result {
        Ok(()) => Verdict::Survived { after },
        Err(counterexample) => {
            let how = counterexample
                .difference
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ");
            // Nobody would make a mistake that the first call reports.
            if how.contains("Error compiling script") || how.contains("Script attempted to access nonexistent") {
                return Verdict::Broken(how);
            }
            Verdict::Caught {
                after,
                how: format!("step {}: {how}", counterexample.found_after),
            }
        }
    }
}

// ---- client

/// So many checks run side by side, while the next one is built: most of a run is waiting.
const AT_ONCE: usize = 8;

#[derive(Clone, Copy)]
struct Job {
    check: Check,
    /// `None`: of the client as it is.
    mutant: Option<&'static Mutant>,
}

fn each_client(mutants: &[&'static Mutant], seed: u64, report: &Report) -> Result<(), String> {
    if mutants.is_empty() {
        return Ok(());
    }
    let tree = Tree::new(&root())?;
    // A check that fails anyway would catch everything.
    println!("{:>7}  the client as it is, in {}", "", tree.path().display());
    let mut checks: Vec<Check> = mutants.iter().map(|mutant| mutant.check).collect();
    checks.sort_by_key(Check::to_string);
    checks.dedup();
    let as_it_is = checks.into_iter().map(|check| Job { check, mutant: None });
    let failed = Mutex::new(None);
    judge(&tree, as_it_is, seed, |job, verdict| {
        if let Verdict::Broken(how) | Verdict::Caught { how, .. } = verdict {
            let why = format!("{} fails without any mutant: {how}", job.check);
            failed.lock().expect("no panic while it is locked").get_or_insert(why);
        }
    });
    if let Some(why) = failed.into_inner().expect("no panic while it is locked") {
        return Err(why);
    }
    let with_mutants = mutants.iter().map(|&mutant| Job {
        check: mutant.check,
        mutant: Some(mutant),
    });
    judge(&tree, with_mutants, seed, |job, verdict| {
        report.row(job.mutant.expect("each has one"), &verdict);
    });
    Ok(())
}

/// Builds and runs the jobs. A check that waited in vain, or did not notice its mutant, runs once more after the builds,
/// because a busy machine may be the reason. The rest run alone: checks that a busy machine did not judge, or that waited in
/// vain twice; checks whose programs read the changed file, which stays changed meanwhile; checks that start the command, of
/// which there is one.
fn judge(tree: &Tree, jobs: impl Iterator<Item = Job>, seed: u64, each: impl Fn(Job, Verdict) + Sync) {
    let is_read_later = |job: &Job| job.mutant.is_some_and(|mutant| !mutant.file.ends_with(".rs"));
    let needs_the_command = |job: &Job| matches!(job.check, Check::Cli(_));
    let (alone, beside): (Vec<_>, Vec<_>) = jobs.partition(|job| is_read_later(job) || needs_the_command(job));
    let (alone, again) = (Mutex::new(alone), Mutex::new(Vec::new()));
    let decide = |job, outcome| match outcome {
        Ok(Outcome { is_unjudged: true, .. }) => alone.lock().expect("no panic while it is locked").push(job),
        outcome => each(job, verdict(outcome)),
    };
    let built = beside.into_iter().map(|job| (job, build(tree, job)));
    run_each(tree, built, seed, |job, program, outcome| match outcome {
        Ok(outcome) if outcome.waited_in_vain() || (job.mutant.is_some() && outcome.missed()) => {
            again.lock().expect("no panic while it is locked").push((job, program));
        }
        outcome => decide(job, outcome),
    });
    let again = again.into_inner().expect("no panic while it is locked").into_iter();
    run_each(tree, again, seed, |job, _, outcome| match outcome {
        Ok(outcome) if outcome.waited_in_vain() => alone.lock().expect("no panic while it is locked").push(job),
        outcome => decide(job, outcome),
    });
    for job in alone.into_inner().expect("no panic while it is locked") {
        let outcome = put(tree, job).and_then(|_changed| tree.run(&program(tree, job)?, job.check, seed));
        each(job, verdict(outcome));
    }
}

fn verdict(outcome: Result<Outcome, String>) -> Verdict {
    match outcome {
        Err(why) => Verdict::Broken(why),
        Ok(Outcome { is_unjudged: true, .. }) => {
            Verdict::Broken("this machine is too busy to judge: try it again with --only".to_owned())
        }
        Ok(Outcome { took, failure, .. }) => match failure {
            Some(how) => Verdict::Caught { after: took, how },
            None => Verdict::Survived { after: took },
        },
    }
}

/// Runs some programs side by side, while the iterator makes the next one.
fn run_each(
    tree: &Tree,
    programs: impl Iterator<Item = (Job, Result<Program, String>)>,
    seed: u64,
    done: impl Fn(Job, Result<Program, String>, Result<Outcome, String>) + Sync,
) {
    let (made, taken) = sync_channel::<(Job, Result<Program, String>)>(0);
    let taken = Mutex::new(taken);
    let runs = || loop {
        let next = taken.lock().expect("no panic while it is locked").recv();
        let Ok((job, program)) = next else { break };
        let runs = program.as_ref().map_err(Clone::clone);
        let outcome = runs.and_then(|program| tree.run(program, job.check, seed));
        done(job, program, outcome);
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(runs);
        }
        for next in programs {
            made.send(next).expect("they run until it is dropped");
        }
        drop(made);
    });
}

fn build(tree: &Tree, job: Job) -> Result<Program, String> {
    let _changed = put(tree, job)?;
    program(tree, job)
}

/// Of the tree as it is now.
fn program(tree: &Tree, job: Job) -> Result<Program, String> {
    match job.mutant {
        Some(_) => tree.build(job.check),
        None => tree.build_as_it_is(job.check),
    }
}

/// Changes the file of its mutant. It is as it was when the returned value is dropped.
fn put(tree: &Tree, job: Job) -> Result<Option<Restored<'_>>, String> {
    let put = job.mutant.map(|mutant| tree.put(mutant.file, &mutated(mutant)?));
    put.transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of a module of `tests/it`, from the root of the repository.
    fn of_it(module: &str) -> String {
        let file = format!("tests/it/{}.rs", module.replace("::", "/"));
        match root().join(&file).exists() {
            true => file,
            false => format!("tests/it/{}/mod.rs", module.replace("::", "/")),
        }
    }

    #[test]
    fn every_mutant_has_its_text_once_and_a_name_of_its_own() {
        let (mut names, mut stale) = (std::collections::BTreeSet::new(), Vec::new());
        for mutant in all() {
            assert!(names.insert(mutant.name), "two mutants are called {}", mutant.name);
            stale.extend(mutated(mutant).err().map(|why| format!("{}: {why}", mutant.name)));
        }
        assert!(stale.is_empty(), "{}", stale.join("\n"));
    }

    #[test]
    fn the_model_catches_every_mutant_of_the_scripts() {
        let mutants: Vec<_> = all().filter(|mutant| mutant.check.needs_no_build()).collect();
        let (report, _) = Report::new(mutants.clone(), None);
        let tried = each_lua(&mutants, crate::test_seed(), STEPS, &report);
        tried.unwrap_or_else(|error| panic!("without any mutant: {error}"));
        let bad = report.bad.into_inner().expect("no panic while it is locked");
        assert!(bad.is_empty(), "not caught: {bad:?}");
    }

    #[test]
    fn tests_that_must_catch_a_mutant_exist() {
        let of =
            |file: &str| std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let attack = |module: &str| {
            let module = module.trim_end_matches("::tests").replace("::", "/");
            let file = format!("tests/attack/src/{module}.rs");
            match root().join(&file).exists() {
                true => file,
                false => format!("tests/attack/src/{module}/mod.rs"),
            }
        };
        for mutant in all() {
            let (file, test) = match mutant.check {
                Check::It(name) => {
                    let (module, test) = name.rsplit_once("::").expect("module::test");
                    (of_it(module), test)
                }
                Check::Lib(name) => {
                    let (module, test) = name.split_once("::tests::").expect("module::tests::test");
                    let module = module.replace("::", "/");
                    let of_its_own = format!("src/{module}/tests.rs");
                    match test.rsplit_once("::") {
                        Some((inner, test)) => (format!("src/{module}/tests/{}.rs", inner.replace("::", "/")), test),
                        None if root().join(&of_its_own).exists() => (of_its_own, test),
                        None => (format!("src/{module}.rs"), test),
                    }
                }
                Check::Loom(test) => ("src/state/loom/mod.rs".to_owned(), test),
                Check::Attack(name) => {
                    let (module, test) = name.rsplit_once("::").expect("module::test");
                    (attack(module), test)
                }
                Check::Testing(name) => {
                    let (module, test) = name.split_once("::").expect("module::test");
                    (format!("testing/tests/it/{module}.rs"), test)
                }
                Check::Cli(name) => {
                    let (module, test) = name.rsplit_once("::").expect("module::test");
                    (format!("cli/tests/cli/{}.rs", module.replace("::", "/")), test)
                }
                Check::Model | Check::Losses | Check::Orphans | Check::Crowds | Check::Simulate => continue,
            };
            assert!(
                of(&file).contains(&format!("fn {test}(")),
                "{}: {file} has no test {test}",
                mutant.name
            );
        }
    }

    #[test]
    fn tests_that_hold_a_bug_found_here_exist() {
        for test in found::ALL.iter().flat_map(|bug| bug.held_by) {
            let (file, name) = match test.split_once(' ') {
                Some((file, name)) => (file.to_owned(), name),
                None => {
                    let (module, name) = test.rsplit_once("::").expect("module::test");
                    (of_it(module), name)
                }
            };
            let text = std::fs::read_to_string(root().join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let held = match file.ends_with(".json") {
                true => format!("\"scenario\": \"{name}\""),
                false => format!("fn {name}("),
            };
            assert!(text.contains(&held), "{file} has no {held}");
        }
    }

    #[test]
    fn the_page_is_made_from_the_catalogue() {
        let page = std::fs::read_to_string(page_path()).expect("tests/attack/MUTANTS.md");
        assert!(
            page == page::text(),
            "tests/attack/MUTANTS.md is not up to date: attack mutants --page"
        );
    }
}
