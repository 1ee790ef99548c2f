//! A lock over several servers that know nothing of each other: it is held while a majority of them keeps it.
//!
//! Each server keeps the lock as for a single client of it; its grant is a *vote*. `members.rs` has the servers, `ballot.rs`
//! one request at all of them, `tally.rs` what its votes add up to, `rules.rs` the rules of that, `owners.rs` the tokens of an
//! owner's holds. Two majorities share a server, and that server's holds exclude each other. So two conflicting holds never
//! last at the same time, if each counted vote is a hold at its server: its lease is proven, the request did not give it up,
//! and the server has not forgotten an earlier hold that may last.
//! PROTOCOL.md, *A majority*, has the rules; the guide [`quorum`](crate::guide::quorum) has what is promised and what not.

mod acquire;
mod ballot;
mod builder;
mod guard;
mod lock;
mod members;
mod owners;
pub(crate) mod rules;
mod status;
pub(crate) mod tally;

pub use acquire::QuorumAcquire;
pub use builder::{Quorum, QuorumBuilder};
pub use guard::{QuorumGuard, QuorumReadGuard, QuorumWriteGuard};
pub use lock::QuorumLock;
pub use status::{QuorumHolder, QuorumServer, QuorumStatus};
