//! `attack`: the commands that try to break fairlock, each in a module of its own.

use clap::{Parser, Subcommand};
use fairlock_attack::{explore, model_check, mutants, outages, scale, simulation, torture};
use std::process::ExitCode;

#[derive(Parser, Debug)]
#[command(name = "attack", about = "Tries to break fairlock")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Random sequences of the real scripts beside the model.
    ModelCheck(model_check::Args),
    /// Every sequence of a few steps of three owners, on the real scripts beside the model.
    Explore(explore::Args),
    /// The real client in virtual time, under faults.
    Simulate(simulation::Args),
    /// Real faults on real servers.
    Torture(torture::Args),
    #[command(hide = true)]
    TortureWorker(torture::worker::Args),
    /// Silences of a network against holds lost, as a table.
    Outages(outages::Args),
    /// What many waiters, locks, processes and clients cost, as counts of commands and bytes.
    Scale(scale::Args),
    #[command(hide = true)]
    ScaleWorker(scale::worker::Args),
    /// Puts known bugs in and reports which check catches each.
    Mutants(mutants::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::ModelCheck(args) => model_check::run(&args),
        Command::Explore(args) => explore::run(&args),
        Command::Simulate(args) => simulation::command(&args),
        Command::Torture(args) => torture::run(&args),
        Command::TortureWorker(args) => torture::worker::run(&args),
        Command::Outages(args) => outages::run(&args),
        Command::Scale(args) => scale::run(&args),
        Command::ScaleWorker(args) => scale::worker::run(&args),
        Command::Mutants(args) => mutants::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_would_judge_nothing_is_refused() {
        for line in [
            "attack simulate --jobs 0",
            "attack model-check --threads 0",
            "attack model-check --steps 0",
            "attack model-check --seconds 0",
            "attack model-check --losses 0",
            "attack explore --depth 0",
        ] {
            let refused = Cli::try_parse_from(line.split(' ')).expect_err(line);
            assert_eq!(refused.kind(), clap::error::ErrorKind::ValueValidation, "{line}");
            let least = line.strip_suffix('0').expect("it ends with 0").to_owned() + "1";
            Cli::try_parse_from(least.split(' ')).expect("1 is enough");
        }
    }
}
