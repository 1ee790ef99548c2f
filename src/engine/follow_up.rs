//! What a script leaves to do, because it stopped at its batch limit, or because leases of others end soon.

use super::session::Session;
use crate::protocol::key::Lock;
use crate::protocol::reply::Look;
use crate::state::FollowUp;
use crate::types::clock;
use crate::types::timers::{FOLLOW_UP_PATIENCE, GRACE};
use std::sync::Arc;

/// After a reply that says when to look again: if that is soon, there is more to do, or a script may have granted the lock to
/// clients that did not hear it, and nobody else may know. The watchdog looks then, so that the caller need not wait.
pub(crate) fn follow_up(session: &Session, lock: &Arc<Lock>, next: Look) {
    if let Some(next) = next.filter(|next| *next <= GRACE) {
        let now = clock::now();
        let (at, until) = (now + next, now + FOLLOW_UP_PATIENCE);
        session.shared.registry.follow_up(lock, FollowUp { at, until });
    }
}
