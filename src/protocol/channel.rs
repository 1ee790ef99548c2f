//! The channels on which scripts publish grants: one per client, or in a cluster one per lock and client.

use super::key;
use redis::Cmd;

/// How grants are published.
#[derive(Debug)]
pub(crate) enum Channel {
    /// Each client has one channel, whose name begins with this.
    OfClient(String),
    /// Each lock and client has one, sharded, in the lock's slot.
    #[cfg(feature = "cluster")]
    InSlot,
}

impl Channel {
    /// On a single server.
    pub(crate) fn of_clients(prefix: &str) -> Self {
        Self::OfClient(key::channel_base(prefix))
    }

    /// `listened`: some client has announced that it listens to the lock's events. A cluster's node knows that itself.
    pub(super) fn add_to(&self, cmd: &mut Cmd, state: &str, listened: bool) {
        match self {
            Self::OfClient(base) => cmd.arg("PUBLISH").arg(base).arg(if listened { "1" } else { "" }),
            #[cfg(feature = "cluster")]
            Self::InSlot => cmd.arg("SPUBLISH").arg(key::channel_base(state)).arg("?"),
        };
        #[cfg(not(feature = "cluster"))]
        let _ = state;
    }
}
