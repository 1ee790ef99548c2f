//! What a `run` that waits tells with `--verbose`: how many are ahead and who holds the lock, whenever one of these changes.

use crate::complaints::Complaints;
use crate::locks::Found;
use crate::ls::held_by;
use crate::text::{safe, span};
use fairlock::{Access, Acquire, Error, Guard, Owner, Place};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// A look costs the server as much as `fairlock show`.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Waits for the lock for at most `limit`, and tells how the wait goes.
pub(crate) async fn wait<M: Access>(
    request: Acquire<M>,
    limit: Duration,
    name: &str,
    complaints: &Complaints,
) -> Result<Option<Guard<M>>, Error> {
    let begun = Instant::now();
    let mut queued = request.enqueue_for(limit).await?;
    let mut known: Option<(usize, Vec<Owner>)> = None;
    let mut next = begun;
    let guard = loop {
        tokio::select! {
            biased;
            guard = &mut queued => break guard?,
            () = sleep_until(next) => {}
        }
        let place = queued.place();
        let place = tokio::select! {
            biased;
            guard = &mut queued => break guard?,
            place = place => place,
        };
        next = Instant::now() + BETWEEN_LOOKS;
        // The wait itself tells what is wrong with the server, if that lasts.
        let Ok(Some(place)) = place else { continue };
        let now = (place.ahead, owners(&place));
        if known.as_ref() != Some(&now) {
            complaints.add(told(name, place));
            known = Some(now);
        }
    };
    if let Some(guard) = &guard {
        let (after, token) = (span(begun.elapsed()), guard.fencing_token());
        complaints.add(format!("{}: entered after {after}, with token {token}", safe(name)));
    }
    Ok(guard)
}

/// Each renewal changes the order in which a status lists them.
fn owners(place: &Place) -> Vec<Owner> {
    let mut owners: Vec<_> = place.status.holders.iter().map(|holder| holder.owner).collect();
    owners.sort_unstable();
    owners
}

fn told(name: &str, place: Place) -> String {
    let (ahead, waiting) = (place.ahead, place.status.waiting);
    let found = Found {
        name: name.to_owned(),
        status: place.status,
        votes: None,
    };
    let holders = match found.status.holders.is_empty() {
        true => "nobody holds it".to_owned(),
        false => format!("held by {}", held_by(&found)),
    };
    format!("{}: position {ahead} of {waiting} in the queue, {holders}", safe(name))
}
