//! The command `fairlock`: runs commands under locks, and shows operators what the locks of a server do.
//!
//! The command is a thin layer over the library's public API. The command asks the server directly only for what the
//! library does not offer: what the server is (`server.rs`), and what doctor examines (`doctor.rs`, `rights.rs`).

mod args;
mod blockers;
#[cfg(unix)]
mod child;
mod circle;
#[cfg(unix)]
mod complaints;
mod doctor;
#[cfg(unix)]
mod elect;
mod evict;
mod json;
mod leader;
mod locks;
mod ls;
mod manual;
mod outcome;
mod rights;
#[cfg(unix)]
mod run;
mod server;
mod show;
#[cfg(unix)]
mod signals;
mod text;
mod top;
mod watch;

use args::{Cli, Command};
use clap::FromArgMatches;
use outcome::{Failure, Outcome, Status, complain, say};
use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(failed) = child::become_command() {
        return report(Err(failed));
    }
    let parsed = manual::command()
        .try_get_matches()
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

fn start(cli: Cli) -> Outcome {
    // One thread: a command is killed together with the thread that started it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Status::BROKEN, format!("cannot start: {error}")))?;
    let server = cli.server;
    let outcome = runtime.block_on(async {
        match cli.command {
            #[cfg(unix)]
            Command::Run(args) => run::run(&server, args).await,
            #[cfg(unix)]
            Command::Elect(args) => elect::run(&server, args).await,
            Command::Leader(args) => leader::run(&server, &args).await,
            Command::Ls(args) => ls::run(&server, &args).await,
            Command::Show(args) => show::run(&server, &args).await,
            Command::Watch(args) => watch::run(&server, &args).await,
            Command::Top(args) => top::run(&server, &args).await,
            Command::Blockers(args) => blockers::run(&server, &args).await,
            Command::Evict(args) => evict::run(&server, &args).await,
            Command::Doctor(args) => doctor::run(&server, &args).await,
            Command::Completions { shell } => manual::completions(shell),
            Command::Man { page } => manual::man(page.as_deref()),
        }
    });
    // A thread that reads keys may still sit in its read.
    runtime.shutdown_background();
    outcome
}
