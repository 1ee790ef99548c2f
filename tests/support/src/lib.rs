//! What the tests, the attacks, the benchmark and some examples of fairlock share. Everything here panics when the machine
//! refuses what a test needs, because a test has nobody to report to.
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "what tests share panics and prints as the test itself"
)]

#[cfg(target_os = "linux")]
pub mod cable;
pub mod clock;
pub mod cluster;
pub mod lateness;
#[cfg(target_os = "linux")]
pub mod limits;
pub mod packed;
pub mod process;
pub mod proxy;
pub mod random;
pub mod resp;
pub mod scripts;
pub mod server;
#[cfg(feature = "tls")]
pub mod tls;
pub mod users;
