//! PROTOCOL.md in Rust: commands out, values in. Only this folder knows keys, arguments and replies. It does no I/O and
//! knows no tokio, so every function here can be tested with plain values.

pub(crate) mod channel;
pub(crate) mod event;
pub(crate) mod functions;
pub(crate) mod hello;
pub(crate) mod introduction;
pub(crate) mod key;
pub(crate) mod lookup;
pub(crate) mod message;
pub(crate) mod name;
pub(crate) mod order;
pub(crate) mod quarantine;
pub(crate) mod replication;
pub(crate) mod reply;
pub(crate) mod script;
pub(crate) mod server_time;
pub(crate) mod snapshot;
pub(crate) mod waits;
