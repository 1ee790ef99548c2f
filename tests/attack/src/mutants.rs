//! Puts known bugs in and reports which check catches each.

use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {}

pub fn run(_args: &Args) -> ExitCode {
    ExitCode::FAILURE
}
