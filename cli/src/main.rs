//! The command `fairlock`: runs commands under locks, and shows operators what the locks of a server do.
//!
//! The command is a thin layer over the library's public API. The command asks the server directly only for what the
//! library does not offer: what the server is (`server.rs`), and what doctor examines (`doctor.rs`, `rights.rs`).

mod args;
mod blockers;
#[cfg(unix)]
mod child;
mod circle;
mod clients;
#[cfg(unix)]
mod complaints;
mod doctor;
#[cfg(unix)]
mod elect;
mod evict;
#[cfg(test)]
mod fuzz;
mod json;
mod leader;
mod locks;
mod ls;
mod manual;
#[cfg(unix)]
mod nested;
mod outcome;
#[cfg(unix)]
mod progress;
mod quorum;
mod rights;
#[cfg(unix)]
mod run;
mod serve;
mod server;
mod show;
#[cfg(unix)]
mod signals;
mod text;
mod top;
mod url;
mod watch;

use args::{Cli, Command};
use clap::FromArgMatches;
use outcome::{Failure, Outcome, Status, complain, say};
use quorum::Target;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(failed) = child::become_command() {
        return report(Err(failed));
    }
    let parsed = manual::command()
        .try_get_matches_from(arguments())
        .and_then(|matches| Cli::from_arg_matches(&matches));
    report(match parsed {
        Ok(cli) => start(cli),
        Err(error) if error.use_stderr() => {
            let _ = error.print();
            Ok(Status::USAGE)
        }
        Err(help) => say(&help.render().to_string()).map(|()| Status::OK),
    })
}

/// The arguments, with `help run` as `run --help`. A subcommand of that name would need a man page, as all others have.
fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|first| first == "help") {
        arguments.remove(1);
        // Whatever follows would be a command that `run` runs.
        arguments.truncate(2);
        arguments.push("--help".into());
    }
    arguments
}

fn report(outcome: Outcome) -> ExitCode {
    ExitCode::from(match outcome {
        Ok(status) => status.0,
        Err(failure) => {
            if !failure.message.is_empty() {
                complain(&failure.message);
            }
            failure.status.0
        }
    })
}

/// The second `--` of `run -- -name -- COMMAND`: clap takes it for the name of the program.
#[cfg(unix)]
fn without_dashes(command: &mut Vec<OsString>) {
    if command.len() > 1 && command[0] == "--" {
        command.remove(0);
    }
}

fn start(cli: Cli) -> Outcome {
    // One thread: a command is killed together with the thread that started it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Status::BROKEN, format!("cannot start: {error}")))?;
    let target = || Target::of(&cli.server);
    let outcome = runtime.block_on(async {
        match cli.command {
            #[cfg(unix)]
            Command::Run(mut args) => {
                without_dashes(&mut args.command);
                run::run(&target()?, args).await
            }
            #[cfg(unix)]
            Command::Elect(mut args) => {
                without_dashes(&mut args.command);
                elect::run(target()?.one(NO_ELECTION, None)?, args).await
            }
            Command::Leader(args) => leader::run(target()?.one(NO_ELECTION, None)?, &args).await,
            Command::Ls(args) => ls::run(&target()?, &args).await,
            Command::Show(args) => show::run(&target()?, &args).await,
            Command::Watch(args) => watch::run(target()?.one(NO_EVENTS, Some("watch"))?, &args).await,
            Command::Top(args) => top::run(&target()?, &args).await,
            Command::Blockers(args) => {
                let command = format!("blockers {}", text::operand(&args.subject));
                blockers::run(target()?.one(NO_CHAIN, Some(&command))?, &args).await
            }
            Command::Serve(args) => serve::run(&target()?, &args).await,
            Command::Evict(args) => evict::run(&target()?, &args).await,
            Command::Doctor(args) => doctor::run(&target()?, &args).await,
            Command::Completions { shell } => manual::completions(shell),
            Command::Man { page } => manual::man(page.as_deref()),
        }
    });
    // A thread that reads keys may still sit in its read.
    runtime.shutdown_background();
    outcome
}

// What does not exist where several servers are a quorum, and why.
const NO_ELECTION: &str = "a quorum has no elections";
const NO_EVENTS: &str = "each server of a quorum has events of its own";
const NO_CHAIN: &str = "blockers follows the locks of one server";
