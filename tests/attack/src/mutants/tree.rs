//! A copy of the repository, in which mutants of the client are built. It stays between runs, so that only what a
//! mutant touches is built again.

use super::Check;
use crate::simulation::SLICE_RUNS;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File};
use std::mem::{Discriminant, discriminant};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// As `make test` does: without them some of the code and some of the tests are not there.
const FEATURES: [&str; 2] = ["--features", "blocking,cluster,metrics,sentinel,serde,tls-rustls"];

/// A run that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The same for the slice of the simulation.
const SIMULATION_PATIENCE: Duration = Duration::from_secs(600);

pub struct Tree {
    original: PathBuf,
    path: PathBuf,
    builds: PathBuf,
    programs: AtomicUsize,
    /// What was built without any mutant: one program has many checks.
    as_it_is: Mutex<HashMap<Discriminant<Check>, PathBuf>>,
}

/// What was built, under a name of its own beside its original: the next one may be built while this one runs.
pub struct Program(PathBuf);

impl Program {
    fn keep(built: &Path, number: usize) -> Result<Self, String> {
        let mut name = built.file_name().unwrap_or_default().to_owned();
        name.push(format!("-{number}"));
        let kept = Self(built.with_file_name(name));
        // Of a run that was killed.
        let _ = fs::remove_file(&kept.0);
        fs::hard_link(built, &kept.0).map_err(|error| format!("{}: {error}", kept.0.display()))?;
        Ok(kept)
    }

    fn output(&self) -> PathBuf {
        self.0.with_extension("txt")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        for file in [&self.0, &self.output()] {
            let _ = fs::remove_file(file);
        }
    }
}

pub struct Outcome {
    pub took: Duration,
    /// What the check has to say, if it failed.
    pub failure: Option<String>,
    /// It passed, because this machine was too busy to judge.
    pub is_unjudged: bool,
}

impl Outcome {
    /// It passed: so late, perhaps, that what it makes happen at the same time did not.
    pub fn missed(&self) -> bool {
        self.failure.is_none() && !self.is_unjudged
    }

    /// It failed because something did not come in time.
    pub fn waited_in_vain(&self) -> bool {
        let late = ["not within", HANGS];
        self.failure
            .as_ref()
            .is_some_and(|how| late.iter().any(|words| how.contains(words)))
    }
}

/// What is said of a run that does not end.
const HANGS: &str = "it hangs";

/// Puts the original back.
pub struct Restored<'a> {
    tree: &'a Tree,
    file: &'static str,
}

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        // The next run begins with a copy of everything that differs.
        let _ = copy_file(&self.tree.original.join(self.file), &self.tree.path.join(self.file));
    }
}

impl Tree {
    pub fn new(original: &Path) -> Result<Self, String> {
        let original = original.canonicalize().map_err(|error| error.to_string())?;
        let builds = original.join("target/mutants");
        let path = builds.join("tree");
        copy(&original, &path, true).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self {
            original,
            path,
            builds,
            programs: AtomicUsize::new(0),
            as_it_is: Mutex::default(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn put(&self, file: &'static str, text: &str) -> Result<Restored<'_>, String> {
        let restored = Restored { tree: self, file };
        fs::write(self.path.join(file), text).map_err(|error| format!("{file}: {error}"))?;
        Ok(restored)
    }

    /// The program that runs a check.
    pub fn build(&self, check: Check) -> Result<Program, String> {
        self.keep(&self.built(check)?)
    }

    /// The same without any mutant, built once for all the checks that it has.
    pub fn build_as_it_is(&self, check: Check) -> Result<Program, String> {
        let mut programs = self.as_it_is.lock().expect("no panic while it is locked");
        let program = match programs.entry(discriminant(&check)) {
            Entry::Occupied(built) => built.into_mut(),
            Entry::Vacant(none) => none.insert(self.built(check)?),
        };
        self.keep(program)
    }

    fn keep(&self, built: &Path) -> Result<Program, String> {
        Program::keep(built, self.programs.fetch_add(1, Ordering::Relaxed))
    }

    fn built(&self, check: Check) -> Result<PathBuf, String> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let mut command = Command::new(cargo);
        command.current_dir(&self.path).env("CARGO_PROFILE_DEV_DEBUG", "0");
        command.env("CARGO_TARGET_DIR", self.builds.join("target"));
        command.env("FAIRLOCK_IMPATIENT", "1");
        match check {
            Check::Simulate => command.args([
                "build",
                "--profile",
                "slice",
                "-p",
                "fairlock-attack",
                "--bin",
                "attack",
            ]),
            Check::It(_) => command.args(["test", "--no-run", "--test", "it"]).args(FEATURES),
            Check::Lib(_) => command.args(["test", "--no-run", "--lib"]).args(FEATURES),
            // As CI does: some of these take long if they are not optimized.
            Check::Attack(_) => command.args([
                "test",
                "--no-run",
                "--profile",
                "slice",
                "-p",
                "fairlock-attack",
                "--lib",
            ]),
            Check::Testing(_) => command.args([
                "test",
                "--no-run",
                "--profile",
                "slice",
                "-p",
                "fairlock-testing",
                "--test",
                "it",
            ]),
            Check::Cli(_) => command.args(["test", "--no-run", "-p", "fairlock-cli", "--test", "cli"]),
            Check::Loom(_) => {
                command.env("RUSTC_WORKSPACE_WRAPPER", self.original.join(".ci/loom"));
                command.args(["test", "--no-run", "--lib"]).args(FEATURES)
            }
            Check::Model | Check::Losses | Check::Orphans | Check::Crowds => {
                return Err(format!("{check} needs no build"));
            }
        };
        let output = command
            .args(["--quiet", "--message-format", "json-render-diagnostics"])
            .output()
            .map_err(|error| format!("cargo: {error}"))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let first = errors.lines().find(|line| line.starts_with("error"));
            return Err(format!("it does not compile: {}", first.unwrap_or(&errors)));
        }
        let messages = String::from_utf8_lossy(&output.stdout);
        let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
        // A test of the command needs the command too, which is built beside it.
        let is_test = check != Check::Simulate;
        let mut programs = messages.filter_map(|message: serde_json::Value| {
            let program = message.get("executable")?.as_str()?;
            (message["profile"]["test"] == is_test).then(|| PathBuf::from(program))
        });
        programs
            .next_back()
            .ok_or_else(|| format!("cargo names no program for {check}"))
    }

    /// Does what CI does: of the simulation the same runs, if `seed` is CI's, whatever time they take.
    pub fn run(&self, program: &Program, check: Check, seed: u64) -> Result<Outcome, String> {
        let mut command = Command::new(&program.0);
        let patience = match check {
            Check::Simulate => {
                let (runs, seconds) = (SLICE_RUNS.to_string(), u64::MAX.to_string());
                command.args(["simulate", "--runs", &runs, "--seconds", &seconds]);
                command.args(["--seed", &seed.to_string()]);
                SIMULATION_PATIENCE
            }
            Check::It(test) | Check::Lib(test) | Check::Attack(test) | Check::Testing(test) | Check::Cli(test) => {
                // The names of others may begin with this one.
                command.args(["--exact", test]);
                PATIENCE
            }
            Check::Loom(test) => {
                command.env("LOOM_MAX_PREEMPTIONS", "2").arg(test);
                PATIENCE
            }
            Check::Model | Check::Losses | Check::Orphans | Check::Crowds => PATIENCE,
        };
        command.current_dir(&self.path).env("CARGO_MANIFEST_DIR", &self.path);
        let begun = Instant::now();
        let ended = wait(&mut command, &program.output(), patience)?;
        let took = begun.elapsed();
        let is_unjudged = matches!(&ended, Some((true, output)) if output.contains(": not judged, "));
        let failure = match ended {
            Some((true, output)) if !ran_something(check, &output) => {
                return Err(format!("{check} is not there: {}", last_line(&output)));
            }
            Some((true, _)) => None,
            Some((false, output)) => Some(telling(&output)),
            None => Some(format!("{HANGS}: no end after {patience:?}")),
        };
        Ok(Outcome {
            took,
            failure,
            is_unjudged,
        })
    }
}

/// Whether it ended well, and what it said. `None`: it did not end.
fn wait(command: &mut Command, said: &Path, patience: Duration) -> Result<Option<(bool, String)>, String> {
    let io = |error: std::io::Error| error.to_string();
    let output = File::create(said).map_err(io)?;
    // A group of its own: what it started ends with it.
    command.stdin(Stdio::null()).process_group(0);
    command.stderr(output.try_clone().map_err(io)?).stdout(output);
    let mut child = command.spawn().map_err(io)?;
    let end = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait().map_err(io)? {
            let text = fs::read(said).map_err(io)?;
            return Ok(Some((status.success(), String::from_utf8_lossy(&text).into_owned())));
        }
        if Instant::now() > end {
            let group = Pid::from_child(&child);
            kill_process_group(group, Signal::KILL).map_err(|error| error.to_string())?;
            child.wait().map_err(io)?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A filter that matches no test proves nothing.
fn ran_something(check: Check, output: &str) -> bool {
    check == Check::Simulate || !output.contains("running 0 tests")
}

fn last_line(output: &str) -> &str {
    output.trim_end().lines().last().unwrap_or("")
}

/// The line of a failed run that says what was wrong.
fn telling(output: &str) -> String {
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        if line.contains("VIOLATION") {
            return line.trim_start().to_owned();
        }
        // What a panic says stands in the line after.
        if line.contains("panicked at") {
            return lines.next().unwrap_or(line).to_owned();
        }
    }
    last_line(output).to_owned()
}

/// Makes the copy the same as the original, touching only what differs.
fn copy(from: &Path, to: &Path, top: bool) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    let mut names = std::collections::BTreeSet::new();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if top && (name == "target" || name.to_string_lossy().starts_with('.')) {
            continue;
        }
        let (source, copied) = (entry.path(), to.join(&name));
        // A link to a folder is copied as the folder.
        if source.is_dir() {
            copy(&source, &copied, false)?;
        } else {
            copy_file(&source, &copied)?;
        }
        names.insert(name);
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if names.contains(&entry.file_name()) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> std::io::Result<()> {
    let text = fs::read(from)?;
    // The time of change stays as it is where nothing changed: cargo goes by it.
    if fs::read(to).is_ok_and(|copied| copied == text) {
        return Ok(());
    }
    fs::write(to, text)
}
