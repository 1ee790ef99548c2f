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
use fairlock_support::{proxy, server, users};

mod acl;
mod cancellation;
#[cfg(feature = "cluster")]
mod cluster;
mod conformance;
mod demotion;
mod docs;
mod events;
mod evict;
mod examples;
mod fairness;
mod faults;
mod input;
mod lease;
mod locks;
mod lua;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(target_os = "linux")]
mod netns;
mod observe;
mod operator_scripts;
mod ops;
mod owners;
mod policy;
mod polled;
mod process;
mod python;
mod quarantine;
mod recipes;
mod replicas;
mod review;
mod runtime;
mod rw_lock;
mod scale;
mod script_model;
mod scripts;
mod seeds;
#[cfg(feature = "sentinel")]
mod sentinel;
mod silence;
/// The tests that take minutes: `make check` runs them, `make test` leaves them out by this module's name.
mod slow {
    mod servers;
}
mod spans;
mod status;
#[cfg(feature = "tls-rustls")]
mod tls;
mod upgrade;
