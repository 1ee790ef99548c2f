//! What tries to break fairlock, and stays so that every later change meets it. `attack --help` lists the commands.

pub mod checker;
pub mod clients;
pub mod explore;
pub mod invariants;
pub mod journal;
pub mod judge;
pub mod lua_world;
pub mod model_check;
pub mod mutants;
pub mod outages;
#[cfg(test)]
mod parse;
pub mod scale;
pub mod simulation;
pub mod story;
pub mod torture;
#[cfg(test)]
mod wild;

pub use fairlock_testing::{model, record};

use std::process::ExitCode;

/// What keeps a command from judging anything.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs a command that works on real servers, prints its report, and turns it into the status of the process.
pub(crate) fn verdict<R: std::fmt::Display>(
    command: &str,
    work: impl Future<Output = Result<R, Failure>>,
    is_good: impl FnOnce(&R) -> bool,
) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    match runtime
        .map_err(Failure::from)
        .and_then(|runtime| runtime.block_on(work))
    {
        Ok(report) => {
            println!("{report}");
            if is_good(&report) {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("{command}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The seed of a test that CI runs: the same every time, so that a red run is a matter of the change under test. Other
/// histories are for the commands, and for whoever sets FAIRLOCK_SEED.
#[cfg(test)]
pub(crate) fn test_seed() -> u64 {
    let given = std::env::var("FAIRLOCK_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or(1);
    println!("FAIRLOCK_SEED={seed}");
    seed
}
