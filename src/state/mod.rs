//! What this process knows: its requests, what the server's replies and messages prove about them, and who listens to
//! events.
//!
//! Nothing here does I/O or reads a clock: connections call in, and time is an argument. Loom and the simulation run
//! exactly this code.

pub(crate) mod claim;
#[cfg(all(test, fairlock_loom))]
mod loom;
pub(crate) mod registry;
pub(crate) mod request;
pub(crate) mod shared;
pub(crate) mod subscribers;
mod sync;
mod table;
pub(crate) mod waits;

pub(crate) use table::{Due, FollowUp, NamedOwners};
