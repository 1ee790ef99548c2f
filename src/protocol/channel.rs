//! The channels on which scripts publish grants.

use super::key;
use redis::Cmd;

/// How grants are published.
#[derive(Debug)]
pub(crate) enum Channel {
    /// On one channel per client, which begins with this.
    OfClient(String),
    /// On a sharded one per lock and client.
    #[cfg(feature = "cluster")]
    InSlot,
}

impl Channel {
    /// On a single server.
    pub(crate) fn of_clients(prefix: &str) -> Self {
        Self::OfClient(key::channel_base(prefix))
    }

    /// `listened`: somebody has announced that he listens to the lock's events. In a cluster its node knows that itself.
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
