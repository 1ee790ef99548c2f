//! The releaser: one task that releases what was dropped. It batches by lock and tries until the leases must be over,
//! because nobody else can tell the server.

use super::follow_up::follow_up;
use super::seal::seal_chunk;
use super::session::Session;
use crate::protocol::script::CHUNK;
use crate::state::request::Request;
use crate::transport::backoff::Backoff;
use crate::types::clock;
use crate::types::error::timed_out;
use futures::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::StreamExt;

/// Releases what was dropped, until the last handle of the client is gone.
pub(crate) async fn release_dropped(session: &Session, mut dropped: mpsc::UnboundedReceiver<Arc<Request>>) {
    let mut calls = FuturesUnordered::new();
    let mut requests = Vec::new();
    let mut open = true;
    while open || !calls.is_empty() {
        tokio::select! {
            biased;
            count = dropped.recv_many(&mut requests, 1024), if open => {
                open = count > 0;
                calls.push(release_all(session, std::mem::take(&mut requests)));
            }
            Some(()) = calls.next(), if !calls.is_empty() => {}
        }
    }
}

/// Releases requests that are over, by lock, and forgets them. Holds whose least time is not over are sealed instead.
async fn release_all(session: &Session, requests: Vec<Arc<Request>>) {
    let now = clock::now();
    let mut by_lock: BTreeMap<(bool, Arc<str>), Vec<Arc<Request>>> = BTreeMap::new();
    for request in requests {
        let is_kept = request.claim().kept_for(now).is_some();
        let state = Arc::clone(&request.lock.state);
        by_lock.entry((is_kept, state)).or_default().push(request);
    }
    let mut calls = FuturesUnordered::new();
    for (&(is_kept, _), requests) in &by_lock {
        // No async closure: the oldest Rust takes it for a borrow of this loop's variables.
        calls.extend(requests.chunks(CHUNK).map(move |chunk| async move {
            match is_kept {
                true => seal_chunk(session, chunk).await,
                false => release_chunk(session, chunk).await,
            }
        }));
    }
    while calls.next().await.is_some() {}
}

/// Releases some requests of one lock. Tries until their leases must be over.
async fn release_chunk(session: &Session, requests: &[Arc<Request>]) {
    let Some(first) = requests.first() else { return };
    let names: Vec<_> = requests.iter().map(|request| request.name.as_str()).collect();
    let now = clock::now();
    let gone_by = requests.iter().map(|request| request.claim().gone_by(now)).max();
    let gone_by = gone_by.unwrap_or(now);
    let shortest = requests
        .iter()
        .map(|request| request.claim().lease())
        .min()
        .unwrap_or_default();
    let mut backoff = Backoff::new();
    loop {
        let released = {
            let slots = session.route.background(&first.lock.state);
            // The semaphore is never closed. The slot is not kept over a pause: a refused lock holds up no other lock. Calls
            // in line have their slots for as long as the server is away, and their leases may be longer than these.
            let slot = timeout(
                gone_by.saturating_duration_since(clock::now()),
                slots.releasing.acquire(),
            );
            match slot.await {
                // A new one each time: who listens to events may have come meanwhile. As for a guard's release, it keeps its
                // place in line.
                Ok(_slot) => {
                    let call = session.call(&first.lock, shortest).patient_until(gone_by);
                    call.release(&names).await
                }
                Err(_) => Err(timed_out()),
            }
        };
        match released {
            Ok((_, next)) => {
                follow_up(session, &first.lock, next);
                break;
            }
            Err(error) if clock::now() < gone_by && session.repeats(&error) => {
                tracing::debug!(lock = %first.lock.name, requests = names.len(), %error, "release failed, retrying");
            }
            Err(error) => {
                tracing::warn!(lock = %first.lock.name, requests = names.len(), %error, "left to their leases");
                break;
            }
        }
        backoff.pause().await;
    }
    for request in requests {
        session.shared.registry.remove(request);
    }
}
