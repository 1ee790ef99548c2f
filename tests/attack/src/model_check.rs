//! Random sequences of the real scripts beside the model.

use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {}

pub fn run(_args: &Args) -> ExitCode {
    ExitCode::FAILURE
}
