//! The seam for an explorer, which takes two claims for one if they differ in nothing that decides.

use super::{Claim, EndedBy, Phase};
use std::hash::{Hash, Hasher};

impl Claim {
    /// All but what is told to people: how a grant came, and when the last message did.
    pub(crate) fn hash_into(&self, hasher: &mut impl Hasher) {
        std::mem::discriminant(&self.phase).hash(hasher);
        match &self.phase {
            Phase::Asked { heard } => heard.hash(hasher),
            Phase::Waiting { ticket, seq } => (ticket, seq).hash(hasher),
            Phase::Granted { ticket, token, since } => (ticket, token, since).hash(hasher),
            Phase::Held { token, since, until } => (token, since, until).hash(hasher),
            Phase::Over(end) => {
                std::mem::discriminant(end).hash(hasher);
                if let EndedBy::Displaced { ticket } = end {
                    ticket.hash(hasher);
                }
            }
        }
        (self.lease, self.max_hold, self.at_least, self.lock_delay).hash(hasher);
        (self.kept_until, self.asked_until, self.proven, self.deaf_until).hash(hasher);
        (self.renewed, self.doubted, self.forgotten, self.is_vote, self.on_trial).hash(hasher);
    }
}
