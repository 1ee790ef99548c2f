//! How scripts publish grants: to one channel per client, or in a cluster to one per lock and client. The scripts derive
//! the channels' names from the key of the lock's state.

/// How grants are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Each client has one channel.
    OfClient,
    /// Each lock and client has one, sharded, in the lock's slot.
    #[cfg(feature = "cluster")]
    InSlot,
}
