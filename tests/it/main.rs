//! Tests against real servers, which they start themselves.
#![allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "nobody imports a test; what its parts share panics and prints like the test itself"
)]

// The harness: the crate tests/support, under the names that the tests use.
use fairlock_support::{lateness, proxy, server, users};

mod acl;
#[cfg(feature = "cluster")]
mod cluster;
mod conformance;
mod deadlock;
mod docs;
mod election;
mod events;
mod failover;
mod faults;
mod floors;
mod functions;
mod input;
mod lease;
mod lock;
mod lua;
mod modes;
mod network;
mod observability;
mod observe;
mod owners;
mod process;
mod queue;
mod quorum;
mod recipes;
mod runtime;
mod scripts;
mod semaphore;
mod several;
/// The tests that take minutes: `make check` runs them, `make test` leaves them out by this module's name.
mod slow {
    mod hostile;
    mod servers;
    mod stops;
}
