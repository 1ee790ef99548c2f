//! Doubts: a message may have been lost, or the server may have forgotten a hold. The watchdog renews what is in doubt.

use super::{Claim, Phase};
use tokio::time::Instant;

impl Claim {
    /// A message may have been lost. Returns whether that matters.
    pub(crate) fn doubt(&mut self, now: Instant) -> bool {
        let waits = self.is_waiting();
        // Another doubt about the hold may remain. Whether a request waits that has no reply yet, the reply tells.
        if waits || matches!(self.phase, Phase::Asked { .. }) {
            self.doubted = Some(now);
        }
        waits
    }

    /// The server may have forgotten its grant. Returns whether that matters.
    pub(crate) fn doubt_hold(&mut self, now: Instant) -> bool {
        let granted = matches!(self.phase, Phase::Granted { .. } | Phase::Held { .. });
        if granted {
            self.doubted = Some(now);
        } else if let Phase::Asked { .. } = self.phase {
            // The reply that tells the grant may lie in a future that nobody polls. If the call is sent later than now,
            // that costs a renewal: the claim knows when the call was made, and not when it left.
            self.forgotten = Some(now);
        }
        granted
    }

    /// Nothing proves its grant, and nobody asks. Returns whether the watchdog has to.
    pub(crate) fn doubt_unproven(&mut self, now: Instant) -> bool {
        let is_unproven = self.proven.is_none_or(|proven| proven <= now) && self.doubted.is_none();
        is_unproven && matches!(self.phase, Phase::Granted { .. }) && self.doubt_hold(now)
    }
}
