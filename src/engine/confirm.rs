//! Grants that count only when enough replicas have them. The client renews the request over a connection of its own
//! and then sends WAIT there: the renewal proves that this very server has the hold, and it is the write that WAIT is
//! about.

use super::attempt::Attempt;
use super::follow_up::follow_up;
use super::session::Session;
use crate::protocol::replication::Replication;
use crate::state::claim::EndedBy;
use crate::state::request::Request;
use crate::transport::backoff::Backoff;
use crate::types::clock;
use crate::types::error::{Error, LostReason, is_transient};
use crate::types::limits::call_limit;
use std::time::Duration;
use tokio::time::timeout;

/// A server is asked to wait for its replicas for so long at once, because one WAIT keeps all others of its connection
/// waiting.
const SLICE: Duration = Duration::from_secs(1);

/// Makes sure that enough replicas know of a hold, and withdraws the hold otherwise. `false`: the hold was lost before
/// its user had it, so the user asks again.
pub(crate) async fn counts(attempt: &mut Attempt, wish: Replication) -> Result<bool, Error> {
    let counts = confirmed(attempt.session(), attempt.request(), wish).await;
    if counts.is_err() {
        // The caller learns of it when the server has confirmed the release, or the lease is over. A least time keeps the
        // hold for longer, and no caller: nobody had it.
        let lease = attempt.request().claim().lease();
        let _ = timeout(lease + call_limit(lease), attempt.withdraw()).await;
    }
    counts
}

async fn confirmed(session: &Session, request: &Request, wish: Replication) -> Result<bool, Error> {
    let lease = request.claim().lease();
    let begun = clock::now();
    let mut backoff = Backoff::new();
    request.claim().begin_trial();
    while is_held(request) {
        let sent = clock::now();
        let asked = request.claim().lease_to_renew(sent).unwrap_or(lease);
        let call = session.call(&request.lock, lease);
        let slice = Replication {
            timeout: wish.timeout.min(SLICE),
            ..wish
        };
        let told = tokio::select! {
            told = call.confirm(&request.name, asked, slice) => told,
            () = request.lost(clock::now, clock::sleep_until) => break,
        };
        match told {
            Ok((standing, next, reached)) => {
                follow_up(session, &request.lock, next);
                request.on_renewal(sent, clock::now(), asked, standing);
                if wish.is_met(reached) && request.claim().end_trial(clock::now()) {
                    return Ok(true);
                }
                if is_held(request) && clock::since(begun) >= wish.timeout {
                    return Err(Error::NotReplicated {
                        lock: request.lock.name.to_string(),
                        wanted: wish.replicas,
                        reached: reached.replicas,
                        timeout: wish.timeout,
                    });
                }
            }
            Err(error) if is_transient(&error) && clock::since(begun) < wish.timeout => backoff.pause().await,
            Err(error) => return Err(Error::of_server(&request.lock.name, error)),
        }
    }
    match request.claim().ended() {
        // Whoever was evicted does not come back by itself.
        Some(EndedBy::Lost(reason @ LostReason::Evicted)) => Err(Error::Lost {
            lock: request.lock.name.to_string(),
            reason: *reason,
        }),
        _ => Ok(false),
    }
}

fn is_held(request: &Request) -> bool {
    request.claim().held_until(clock::now()).is_some()
}
