//! Deadlocks, as an operator sees them: circles of owners that wait for each other, across all locks.
//!
//! All statuses together have every wait, so no note is needed, and waits of clients that do not search for deadlocks
//! count too. Each status is of a moment of its own. So a circle is called a deadlock only if a second reading of its
//! locks, in the same order, shows the same waits and the same holds: then all of them existed between the two.

use crate::json;
use crate::locks::{Found, Unread};
use crate::outcome::Failure;
use crate::text::{origin_in_short, safe};
use fairlock::{Client, Error, Holder, Owner, Status, Waiter};
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};

/// An owner waits for a lock that another owner holds.
#[derive(Clone, Copy)]
pub(crate) struct Edge<'a> {
    lock: &'a Found,
    waiter: &'a Waiter,
    holder: &'a Holder,
}

/// The waits of an owner, each with one of its holders. A lease that is over holds nobody up.
fn edges(found: &[Found], owner: Owner) -> impl Iterator<Item = Edge<'_>> {
    found.iter().flat_map(move |lock| {
        let mut waiters = lock.status.waiters.iter();
        let waiter = waiters.find(|waiter| waiter.owner == owner && waiter.expired_for.is_none());
        let holders = lock.status.holders.iter();
        let holders = holders.filter(move |holder| holder.owner != owner && holder.expired_for.is_none());
        holders.filter_map(move |holder| {
            Some(Edge {
                lock,
                waiter: waiter?,
                holder,
            })
        })
    })
}

/// The shortest circle that leads back to an owner.
pub(crate) fn circle(found: &[Found], owner: Owner) -> Option<Vec<Edge<'_>>> {
    let mut seen = BTreeSet::new();
    let mut open: VecDeque<Vec<Edge<'_>>> = edges(found, owner).map(|edge| vec![edge]).collect();
    while let Some(path) = open.pop_front() {
        let next = path.last()?.holder.owner;
        if next == owner {
            return Some(path);
        }
        if seen.insert(next) {
            open.extend(edges(found, next).map(|edge| [&path[..], &[edge]].concat()));
        }
    }
    None
}

/// What the second reading of a circle showed.
pub(crate) enum Reading {
    /// The same waits and the same holds.
    Deadlock,
    Changed,
    /// This lock could not be read, so nobody knows.
    Unread(Unread),
}

/// Reads the locks of a circle again, in the same order.
pub(crate) async fn read_again(client: &Client, circle: &[Edge<'_>]) -> Result<Reading, Failure> {
    for edge in circle {
        match later(client, &edge.lock.name).await {
            Ok(later) if edge.is_in(&later.status) => {}
            Ok(_) => return Ok(Reading::Changed),
            Err(error @ (Error::Server { .. } | Error::Unavailable { .. })) => {
                return Ok(Reading::Unread(Unread {
                    name: edge.lock.name.clone(),
                    why: error.to_string(),
                }));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Reading::Deadlock)
}

async fn later(client: &Client, name: &str) -> Result<Found, Error> {
    let mut later = Found {
        name: name.to_owned(),
        status: client.rw_lock(name).status().await?,
        votes: None,
    };
    crate::locks::complete(client, &mut later).await?;
    Ok(later)
}

impl Edge<'_> {
    pub(crate) fn owner(&self) -> Owner {
        self.waiter.owner
    }

    /// An owner waits once for a lock, so a wait that has not become shorter is the same one.
    fn is_in(&self, later: &Status) -> bool {
        let (waiter, holder) = (self.waiter, self.holder);
        let same_wait = |other: &Waiter| other.owner == waiter.owner && other.waited >= waiter.waited;
        let same_hold = |other: &Holder| {
            (other.owner, other.mode, &other.client.id) == (holder.owner, holder.mode, &holder.client.id)
        };
        later.waiters.iter().any(same_wait) && later.holders.iter().any(same_hold)
    }
}

pub(crate) fn described(circle: &[Edge<'_>]) -> Value {
    let edges = circle.iter().map(|edge| {
        json!({
            "owner": edge.waiter.owner.to_string(),
            "client": json::client(&edge.waiter.client),
            "waits_for": edge.lock.name,
            "held_by": edge.holder.owner.to_string(),
        })
    });
    edges.collect()
}

/// Tells the deadlock, a line for each owner.
pub(crate) fn told(circle: &[Edge<'_>]) -> String {
    let mut text = "This is a deadlock: these owners wait for each other for ever.\n".to_owned();
    for edge in circle {
        let (owner, client, lock) = (
            edge.waiter.owner,
            origin_in_short(&edge.waiter.client),
            safe(&edge.lock.name),
        );
        text += &format!(
            "  {owner} ({client}) waits for {lock}, which {} holds\n",
            edge.holder.owner
        );
    }
    text + "Evict one of them from a lock that it holds, or end its process. Only a hold that its user has left for its least\n\
            time (hold_at_least) would end by itself, with its lease.\n"
}
