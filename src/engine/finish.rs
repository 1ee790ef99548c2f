//! What a script leaves to do, because it stopped at its batch limit, or because leases of others end soon.

use super::session::Session;
use crate::protocol::key::Lock;
use crate::protocol::reply::Look;
use crate::state::FollowUp;
use crate::types::timers::{FINISH_PATIENCE, FOLLOW_UP_PATIENCE, GRACE};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A script stopped at its batch limit: has the rest done, for a bounded time. If that fails, the renewals of the
/// waiters do the rest.
pub(crate) async fn finish(session: &Session, lock: &Arc<Lock>, mut next: Look) {
    let begun = Instant::now();
    while next == Some(Duration::ZERO) && begun.elapsed() < FINISH_PATIENCE {
        match session.call(lock, session.shared.lease).renew(&[]).await {
            Ok((_, after)) => next = after,
            Err(error) => {
                tracing::debug!(lock = %lock.name, %error, "left the rest to renewals");
                return;
            }
        }
    }
    follow_up(session, lock, next);
}

/// After a reply that says when to look again: if that is soon, a script may have granted the lock to clients that did not
/// hear it, and nobody else may know. The watchdog looks then, so that the caller need not wait.
pub(crate) fn follow_up(session: &Session, lock: &Arc<Lock>, next: Look) {
    if let Some(next) = next.filter(|next| *next <= GRACE) {
        let now = Instant::now();
        let (at, until) = (now + next, now + FOLLOW_UP_PATIENCE);
        session.shared.registry.follow_up(lock, FollowUp { at, until });
    }
}
