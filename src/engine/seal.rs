//! Holds that outlast their users: a hold with a least time that its user has left, or a lost hold in its lock delay.
//!
//! The server keeps such a hold in any case, because every call of its user asked for that. *Sealing* asks for the exact
//! rest instead: then the hold ends in time though this process may have ended. Nothing renews a sealed hold. At its end
//! the watchdog has it released.

use super::follow_up::follow_up;
use super::session::Session;
use crate::state::request::Request;
use crate::transport::backoff::Backoff;
use crate::types::clock;
use std::sync::Arc;

/// Seals some holds of one lock. Tries for as long as the server is to keep one of them.
pub(super) async fn seal_chunk(session: &Session, requests: &[Arc<Request>]) {
    let Some(first) = requests.first() else { return };
    let mut backoff = Backoff::new();
    loop {
        let sealed = {
            let slots = session.route.background(&first.lock.state);
            // The semaphore is never closed. The slot is not kept over a pause.
            let _slot = slots.releasing.acquire().await;
            let now = clock::now();
            let rest = |request: &Arc<Request>| request.claim().lease_to_seal(now);
            let rests: Vec<_> = requests
                .iter()
                .filter_map(|request| Some((request.name.as_str(), rest(request)?.into())))
                .collect();
            if rests.is_empty() {
                break;
            }
            let lease = first.claim().lease();
            session.call(&first.lock, lease).renew(&rests).await
        };
        match sealed {
            // Nothing renews the hold from here on.
            Ok((_, next)) => {
                follow_up(session, &first.lock, next);
                break;
            }
            Err(error) if session.repeats(&error) => {
                tracing::debug!(lock = %first.lock.name, requests = requests.len(), %error, "not sealed, trying again");
            }
            Err(error) => {
                tracing::warn!(lock = %first.lock.name, requests = requests.len(), %error, "left to their leases");
                break;
            }
        }
        backoff.pause().await;
    }
    for request in requests {
        leave(session, request);
    }
}

/// A hold is sealed: it waits for its end. After a shutdown nobody waits with it.
pub(crate) fn leave(session: &Session, request: &Request) {
    let registry = &session.shared.registry;
    if session.is_closed() {
        return registry.remove(request);
    }
    let end = request.claim().seal(clock::now());
    registry.schedule_end(request, end);
}
