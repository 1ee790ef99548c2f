//! What a client does: calls of scripts, a request's way to its grant, renewals, releases, and the tasks that run them.

pub(crate) mod attempt;
pub(crate) mod call;
pub(crate) mod confirm;
mod deadlock;
pub(crate) mod follow_up;
pub(crate) mod progress;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod runtime;
pub(crate) mod seal;
pub(crate) mod session;
pub(crate) mod tasks;
