//! Connections: how the client makes, keeps and closes them, where a call goes, and how grants and events come in.
//!
//! A call goes down by `route`, then `link`, then `wire`. A push comes up from a connection's own task, by a
//! `subscription`, into `state::Shared`.

pub(crate) mod backend;
pub(crate) mod backoff;
#[cfg(feature = "cluster")]
pub(crate) mod cluster;
pub(crate) mod host;
pub(crate) mod link;
pub(crate) mod listener;
pub(crate) mod pulse;
pub(crate) mod quarantine;
pub(crate) mod route;
#[cfg(feature = "sentinel")]
pub(crate) mod sentinel;
pub(crate) mod server;
#[cfg(feature = "__testing")]
pub(crate) mod simulated;
pub(crate) mod subscription;
pub(crate) mod wire;
