//! The real client in virtual time, under faults.

use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {}

pub fn run(_args: &Args) -> ExitCode {
    ExitCode::FAILURE
}
