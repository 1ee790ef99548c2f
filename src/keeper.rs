//! The background work of a client: one task renews what is due, one releases what was dropped.

use crate::claim::Standing;
use crate::client::{Inner, call_limit};
use crate::error::is_transient;
use crate::key::Lock;
use crate::link::Backoff;
use crate::observe;
use crate::registry::{Due, Request};
use crate::script::CHUNK;
use futures::stream::FuturesUnordered;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_stream::StreamExt;

/// Calls of one client's background that may be under way at once on a connection. More would only queue in it, where
/// their time limits run.
pub(crate) const CALLS_AT_ONCE: usize = 64;

/// When to try again a renewal that failed: soon, since the lease runs on. A call to a server that does not answer takes
/// its time anyway.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// When to look again at a lock whose earlier calls are under way.
const UNDER_WAY_PAUSE: Duration = Duration::from_millis(20);

/// How long a caller does what scripts have left to be done: it is for some ten thousand requests a second.
const FINISH_PATIENCE: Duration = Duration::from_secs(3);

/// Renews whatever is due, for ever.
pub(crate) async fn renew_due(inner: &Inner, releases: &mpsc::WeakUnboundedSender<Arc<Request>>) {
    let mut calls = FuturesUnordered::new();
    let mut under_way = UnderWay::default();
    loop {
        tokio::select! {
            biased;
            () = inner.requests.something_due(sleep_until) => {}
            Some(lock) = calls.next() => {
                under_way.end(&lock);
                continue;
            }
        }
        let due = inner.registry().take_due(Instant::now());
        for Due { lock, renew, lost } in due {
            for request in lost {
                // Time alone ended it: nobody has said so yet.
                request.change(|_| {});
                request.changed.notify_waiters();
                if let Some(releases) = releases.upgrade() {
                    let _ = releases.send(request);
                }
            }
            // Nothing to renew: one call that only looks.
            let chunks = if renew.is_empty() {
                vec![Vec::new()]
            } else {
                renew.chunks(CHUNK).map(<[_]>::to_vec).collect()
            };
            if under_way.begin(&lock.state, chunks.len()) {
                let call = |chunk| renew_chunk(inner, Arc::clone(&lock), chunk);
                calls.extend(chunks.into_iter().map(call));
            } else {
                inner.registry().look_at(&lock, Instant::now() + UNDER_WAY_PAUSE);
            }
        }
    }
}

/// How many calls of each lock are not answered yet. While the server is away this keeps them from piling up; since a
/// time limit ends every call, no lock is left out for longer than that.
#[derive(Default)]
struct UnderWay(HashMap<Arc<str>, usize>);

impl UnderWay {
    /// Says whether the calls may begin: not while earlier ones are under way.
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
async fn renew_chunk(inner: &Inner, lock: Arc<Lock>, requests: Vec<(Arc<Request>, Duration)>) -> Arc<str> {
    // It is never closed.
    let turns = inner.route.turns(&lock.state);
    let _permit = turns.renewing.acquire().await;
    let lease = requests.iter().map(|(_, lease)| *lease).min().unwrap_or(inner.lease);
    let names: Vec<_> = requests
        .iter()
        .map(|(request, lease)| (request.name.as_str(), *lease))
        .collect();
    let sent = Instant::now();
    let reply = inner.call(&lock, lease).renew(&names).await;
    let now = Instant::now();
    observe::renewal(reply.is_ok());
    match reply {
        Ok((standings, next)) => {
            tracing::trace!(lock = %lock.name, requests = requests.len(), "renewed");
            for ((request, lease), standing) in requests.iter().zip(&standings) {
                settle(request, sent, now, *lease, *standing);
            }
            let waits = requests.is_empty()
                || standings
                    .iter()
                    .any(|standing| matches!(standing, Standing::Waits { .. }));
            if let Some(next) = next.filter(|_| waits) {
                inner.requests.look_again(&lock, now + next);
            }
        }
        Err(error) => {
            tracing::warn!(lock = %lock.name, requests = requests.len(), %error, "renewal failed");
            if !is_transient(&error) {
                requests.iter().for_each(|(request, _)| request.refuse(&error));
            }
            inner.requests.look_at(&lock, now + RETRY_PAUSE);
        }
    }
    Arc::clone(&lock.state)
}

/// Takes note of what a renewal said about a request.
pub(crate) fn settle(request: &Request, sent: Instant, now: Instant, lease: Duration, standing: Standing) {
    request.change(|claim| {
        if claim.renewed(sent, now, lease, standing) {
            request.changed.notify_waiters();
        }
    });
}

/// Releases what was dropped, until nobody can drop anything any more.
pub(crate) async fn release_dropped(inner: &Inner, mut dropped: mpsc::UnboundedReceiver<Arc<Request>>) {
    let mut calls = FuturesUnordered::new();
    let mut requests = Vec::new();
    let mut open = true;
    while open || !calls.is_empty() {
        tokio::select! {
            biased;
            count = dropped.recv_many(&mut requests, 1024), if open => {
                open = count > 0;
                calls.push(release_all(inner, std::mem::take(&mut requests)));
            }
            Some(()) = calls.next(), if !calls.is_empty() => {}
        }
    }
}

/// Releases requests that are over, by lock, and forgets them.
async fn release_all(inner: &Inner, requests: Vec<Arc<Request>>) {
    let mut by_lock: BTreeMap<Arc<str>, Vec<Arc<Request>>> = BTreeMap::new();
    for request in requests {
        by_lock
            .entry(Arc::clone(&request.lock.state))
            .or_default()
            .push(request);
    }
    let mut calls = FuturesUnordered::new();
    for requests in by_lock.values() {
        calls.extend(requests.chunks(CHUNK).map(|chunk| release_chunk(inner, chunk)));
    }
    while calls.next().await.is_some() {}
}

/// Some requests of one lock. Tries until their leases must have ended.
async fn release_chunk(inner: &Inner, requests: &[Arc<Request>]) {
    let Some(first) = requests.first() else { return };
    let names: Vec<_> = requests.iter().map(|request| request.name.as_str()).collect();
    let longest = requests
        .iter()
        .map(|request| request.claim().lease())
        .max()
        .unwrap_or_default();
    let shortest = requests
        .iter()
        .map(|request| request.claim().lease())
        .min()
        .unwrap_or_default();
    let call = inner.call(&first.lock, shortest);
    let gone_by = Instant::now() + longest + call_limit(longest);
    let mut backoff = Backoff::new();
    loop {
        let released = {
            let turns = inner.route.turns(&first.lock.state);
            // It is never closed. Not kept over a pause: what one lock's server refuses holds up no other lock.
            let _turn = turns.releasing.acquire().await;
            call.release(&names).await
        };
        match released {
            Ok((_, next)) => {
                finish(inner, &first.lock, next).await;
                break;
            }
            Err(error) if Instant::now() < gone_by && !inner.requests.has_ended() => {
                tracing::debug!(lock = %first.lock.name, requests = names.len(), %error, "release failed, retrying");
            }
            Err(error) => {
                tracing::warn!(lock = %first.lock.name, requests = names.len(), %error, "left to their leases");
                break;
            }
        }
        backoff.pause().await;
    }
    let mut registry = inner.registry();
    for request in requests {
        registry.remove(request);
    }
}

/// A script stopped at its batch limit: has the rest done, unless there is no end to it. Should that fail, the renewals of
/// those who wait do it.
pub(crate) async fn finish(inner: &Inner, lock: &Lock, mut next: Option<Duration>) {
    let begun = Instant::now();
    while next == Some(Duration::ZERO) && begun.elapsed() < FINISH_PATIENCE {
        match inner.call(lock, inner.lease).renew(&[]).await {
            Ok((_, after)) => next = after,
            Err(error) => {
                tracing::debug!(lock = %lock.name, %error, "left the rest to renewals");
                return;
            }
        }
    }
}
