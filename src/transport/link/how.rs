//! How a call goes over a link, and how many of a client's background calls do at a time.

use std::time::Duration;
use tokio::sync::Semaphore;

/// A renewal, which does not stand in line behind a burst of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Users,
    Background,
}

/// The bound of background calls in flight on a connection. More would only queue there, while their time limits run.
const CALLS_AT_ONCE: usize = 64;

/// The slots for a client's background calls on one link.
pub(crate) struct BackgroundSlots {
    pub(crate) renewing: Semaphore,
    pub(crate) releasing: Semaphore,
}

impl Default for BackgroundSlots {
    fn default() -> Self {
        Self {
            renewing: Semaphore::new(CALLS_AT_ONCE),
            releasing: Semaphore::new(CALLS_AT_ONCE),
        }
    }
}

/// The options of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) lane: Lane,
    /// How long the connection may be silent before the reply.
    pub(crate) limit: Duration,
    /// How long to wait for a connection, or in line.
    pub(crate) patience: Duration,
    pub(crate) sending: Sending,
}

impl How {
    /// Waits for a connection no longer than for the reply.
    pub(crate) fn plainly(lane: Lane, limit: Duration) -> Self {
        Self {
            lane,
            limit,
            patience: limit,
            sending: Sending::Plainly,
        }
    }
}

/// The way in which the link sends a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    Plainly,
    /// To a node that takes over a slot and does not own it yet (ASKING).
    #[cfg(feature = "cluster")]
    Asking,
}

impl Sending {
    pub(super) fn asks(self) -> bool {
        self != Self::Plainly
    }
}
