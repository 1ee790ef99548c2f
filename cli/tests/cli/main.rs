//! The command `fairlock`, run as the process that it is, on real servers that the tests start.
#![cfg(unix)]
#![allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "nobody imports a test; what its parts share panics and prints like the test itself"
)]

mod blockers;
mod command;
#[cfg(all(feature = "cluster", feature = "sentinel"))]
mod deployment;
mod doctor;
mod elect;
mod evict;
mod json;
mod ls;
mod manual;
mod quorum;
mod quorum_doctor;
mod quorum_run;
mod refusal;
mod replica;
mod rights;
mod run;
mod scene;
mod secrets;
mod serve;
mod show;
mod slow;
#[cfg(feature = "tls-rustls")]
mod tls;
mod top;
#[cfg(all(feature = "cluster", feature = "sentinel", feature = "tls-rustls"))]
mod urls;
mod wait;
mod watch;
