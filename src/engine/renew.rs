//! The watchdog: one task that renews what is due, in one call per lock, and looks for expired leases of others where
//! this client waits. The registry tells what is due; this task only sends and hands the replies back.

use super::session::Session;
use crate::observe;
use crate::protocol::key::Lock;
use crate::protocol::script::CHUNK;
use crate::state::request::Request;
use crate::state::{Due, FollowUp};
use crate::types::clock;
use crate::types::error::is_transient;
use crate::types::timers::{FOLLOW_UP_PATIENCE, GRACE, RETRY_PAUSE, UNDER_WAY_PAUSE};
use futures::stream::FuturesUnordered;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;
use tokio_stream::StreamExt;

/// Renews whatever is due, for ever.
pub(crate) async fn renew_due(session: &Session) {
    let registry = &session.shared.registry;
    let mut calls = FuturesUnordered::new();
    let mut under_way = UnderWay::default();
    loop {
        tokio::select! {
            biased;
            // First: with many locks whose calls are under way something is always due, and their replies end that.
            Some(lock) = calls.next() => {
                under_way.end(&lock);
                continue;
            }
            () = registry.something_due(clock::watch_until) => {}
        }
        let begun = clock::now();
        let mut later = Vec::new();
        for due in registry.take_due(begun) {
            let Due {
                lock,
                renew,
                looks,
                lost,
                release,
                follow_up,
            } = due;
            for request in lost {
                // Time alone ended the hold, so nobody has been told yet.
                request.change(|_| {});
                request.changed.notify_waiters();
            }
            for request in release {
                // Without a releaser the request ends with its lease.
                let _ = session.shared.release(request);
            }
            // Without a request to renew one call only looks for expired leases.
            let chunks = match (renew.is_empty(), looks) {
                (true, false) => continue,
                (true, true) => vec![Vec::new()],
                (false, _) => renew.chunks(CHUNK).map(<[_]>::to_vec).collect(),
            };
            if under_way.begin(&lock.state, chunks.len()) {
                let call = |chunk| renew_chunk(session, Arc::clone(&lock), chunk, follow_up);
                calls.extend(chunks.into_iter().map(call));
            } else {
                later.push((lock, follow_up));
            }
        }
        let at = clock::now() + pause_after(clock::now() - begun);
        for (lock, follow_up) in later {
            match follow_up {
                Some(FollowUp { until, .. }) => registry.follow_up(&lock, FollowUp { at, until }),
                None => registry.schedule_check(&lock, at),
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Until the next look at calls that are under way. With many locks a look at all takes longer than the least pause: most
/// of the time belongs to others.
fn pause_after(look: Duration) -> Duration {
    UNDER_WAY_PAUSE.max(look * 4)
}

/// How many calls of each lock have no reply yet. While the server is away this keeps calls from piling up. A time
/// limit ends every call, so no lock is left out for longer.
#[derive(Default)]
struct UnderWay(HashMap<Arc<str>, usize>);

impl UnderWay {
    /// Tells whether the calls may begin: not while earlier ones are in flight.
    fn begin(&mut self, lock: &Arc<str>, calls: usize) -> bool {
        match self.0.entry(Arc::clone(lock)) {
            Entry::Vacant(slot) => {
                slot.insert(calls);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    fn end(&mut self, lock: &Arc<str>) {
        if let Some(calls) = self.0.get_mut(lock) {
            *calls -= 1;
            if *calls == 0 {
                self.0.remove(lock);
            }
        }
    }
}

/// Returns the lock's key, so that the caller knows whose call has ended.
async fn renew_chunk(
    session: &Session,
    lock: Arc<Lock>,
    due: Vec<Arc<Request>>,
    follow_up: Option<FollowUp>,
) -> Arc<str> {
    // The semaphore is never closed.
    let slots = session.route.background(&lock.state);
    let _slot = slots.renewing.acquire().await;
    // By now their users may have left some of them. A renewal would make longer what is sealed.
    let sent = clock::now();
    let to_renew = |request: Arc<Request>| {
        let mut claim = request.claim();
        let asked = claim.lease_to_renew(sent).map(|lease| claim.asked(lease))?;
        drop(claim);
        Some((request, asked))
    };
    let requests: Vec<_> = due.into_iter().filter_map(to_renew).collect();
    let lease = requests
        .iter()
        .map(|(request, asked)| request.claim().lease().min(asked.span))
        .min()
        .unwrap_or(session.shared.lease);
    let names: Vec<_> = requests
        .iter()
        .map(|(request, asked)| (request.name.as_str(), *asked))
        .collect();
    let reply = session.call(&lock, lease).renew(&names).await;
    let now = clock::now();
    observe::renewal(reply.is_ok());
    let mut until = follow_up.map(|planned| planned.until);
    let look_after = match reply {
        Ok((standings, next)) => {
            tracing::trace!(lock = %lock.name, requests = requests.len(), "renewed");
            for ((request, asked), standing) in requests.iter().zip(&standings) {
                request.on_renewal(sent, now, asked.span, *standing);
            }
            // The server may keep what is lost here: the watchdog releases it.
            if requests.iter().any(|(request, _)| request.claim().ended().is_some()) {
                session.shared.registry.schedule_check(&lock, now);
            }
            // Whatever the call renewed: it may have taken the place of a look for those who wait.
            if let Some(next) = next {
                session.shared.registry.schedule_check_if_waiting(&lock, now + next);
            }
            // The script stopped at its batch limit.
            if next == Some(Duration::ZERO) {
                until = until.or(Some(now + FOLLOW_UP_PATIENCE));
            }
            // The script may have granted the lock to the next one that did not hear it.
            next.filter(|next| *next <= GRACE)
        }
        Err(error) => {
            tracing::warn!(lock = %lock.name, requests = requests.len(), %error, "renewal failed");
            if !is_transient(&error) {
                requests.iter().for_each(|(request, _)| request.refuse(&error));
            }
            // While a proof lasts, it is to last. A server that refuses may go on for long, and then there is no hurry.
            let is_urgent = match requests.is_empty() {
                true => is_transient(&error),
                false => requests
                    .iter()
                    .any(|(request, _)| request.claim().proven_until() > Some(now)),
            };
            let pause = if is_urgent { RETRY_PAUSE } else { GRACE };
            session.shared.registry.schedule_check(&lock, now + pause);
            Some(pause)
        }
    };
    if let (Some(until), Some(pause)) = (until, look_after)
        && now < until
    {
        let at = now + pause;
        session.shared.registry.follow_up(&lock, FollowUp { at, until });
    }
    Arc::clone(&lock.state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_of_the_time_belongs_to_others_however_long_a_look_at_all_locks_takes() {
        for look in [Duration::ZERO, UNDER_WAY_PAUSE, UNDER_WAY_PAUSE * 100] {
            assert!(pause_after(look) >= look * 4 && pause_after(look) >= UNDER_WAY_PAUSE);
        }
    }
}
