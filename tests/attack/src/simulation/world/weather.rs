//! How bad the network is, and what else goes wrong.

use std::time::Duration;

/// What goes wrong by itself, in thousandths of what is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// Messages that are lost, delivered twice, or late by up to a second.
    pub lost: u64,
    pub doubled: u64,
    pub late: u64,
    /// Requests and replies that take up to `spell` instead of a millisecond.
    pub slow: u64,
    pub spell: Duration,
}

/// What a fault is; the report counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Cut,
    HalfOpen,
    Freeze,
    Kill,
    ServerFreeze,
    Restart,
    Rollback,
    DataLoss,
    ScriptFlush,
    ErrorReplies,
    ClockBack,
    Partition,
    /// A key of one lock is deleted.
    KeyLoss,
}

impl Fault {
    pub const ALL: [Self; 13] = [
        Self::Cut,
        Self::HalfOpen,
        Self::Freeze,
        Self::Kill,
        Self::ServerFreeze,
        Self::Restart,
        Self::Rollback,
        Self::DataLoss,
        Self::ScriptFlush,
        Self::ErrorReplies,
        Self::ClockBack,
        Self::Partition,
        Self::KeyLoss,
    ];
}
