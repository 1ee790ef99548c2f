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
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An owner waits for a lock that another owner holds.
#[derive(Clone, Copy)]
pub(crate) struct Edge<'a> {
    lock: &'a Found,
    waiter: &'a Waiter,
    holder: &'a Holder,
}

/// Which owner waits for which locks. A lease that is over makes nobody wait, and holds nobody up.
pub(crate) struct Waits<'a> {
    of: BTreeMap<Owner, Vec<(&'a Found, &'a Waiter)>>,
    /// Who holds a lock.
    holders: BTreeSet<Owner>,
}

impl<'a> Waits<'a> {
    pub(crate) fn of(found: &'a [Found]) -> Self {
        let mut waits: BTreeMap<Owner, Vec<(&Found, &Waiter)>> = BTreeMap::new();
        for lock in found {
            let waiters = lock.status.waiters.iter();
            for waiter in waiters.filter(|waiter| waiter.expired_for.is_none()) {
                let of_owner = waits.entry(waiter.owner).or_default();
                // An owner waits once for a lock.
                if of_owner.last().is_none_or(|(last, _)| !std::ptr::eq(*last, lock)) {
                    of_owner.push((lock, waiter));
                }
            }
        }
        let holders = found.iter().flat_map(|lock| &lock.status.holders);
        let holders = holders.map(|holder| holder.owner).collect();
        Self { of: waits, holders }
    }

    /// The waits of an owner, each with one of its holders.
    fn edges(&self, owner: Owner) -> impl Iterator<Item = Edge<'a>> {
        let waits = self.of.get(&owner).into_iter().flatten();
        waits.flat_map(move |&(lock, waiter)| {
            let holders = lock.status.holders.iter();
            let holders = holders.filter(move |holder| holder.owner != owner && holder.expired_for.is_none());
            holders.map(move |holder| Edge { lock, waiter, holder })
        })
    }

    /// Owners that hold and wait, without those that wait for none of the others, again and again. All owners of circles
    /// are left then, and of a chain that ends nobody is.
    pub(crate) fn may_be_in_circles(&self) -> BTreeSet<Owner> {
        let mut left: BTreeSet<Owner> = self
            .of
            .keys()
            .copied()
            .filter(|owner| self.holders.contains(owner))
            .collect();
        // For each owner, how many of its edges lead to those that are left, and whose edges lead to it.
        let mut ahead: BTreeMap<Owner, usize> = BTreeMap::new();
        let mut behind: BTreeMap<Owner, Vec<Owner>> = BTreeMap::new();
        for owner in &left {
            for next in self.edges(*owner).map(|edge| edge.holder.owner) {
                if left.contains(&next) {
                    *ahead.entry(*owner).or_default() += 1;
                    behind.entry(next).or_default().push(*owner);
                }
            }
        }
        let mut gone: Vec<Owner> = left
            .iter()
            .copied()
            .filter(|owner| !ahead.contains_key(owner))
            .collect();
        while let Some(owner) = gone.pop() {
            left.remove(&owner);
            for before in behind.remove(&owner).unwrap_or_default() {
                let edges = ahead.entry(before).or_default();
                *edges -= 1;
                if *edges == 0 {
                    gone.push(before);
                }
            }
        }
        // Nobody waits for the others.
        left.retain(|owner| behind.contains_key(owner));
        left
    }

    /// The shortest circle that leads back to an owner.
    pub(crate) fn circle(&self, owner: Owner) -> Option<Vec<Edge<'a>>> {
        let mut reached_by: BTreeMap<Owner, Edge<'a>> = BTreeMap::new();
        let mut open = VecDeque::from([owner]);
        while let Some(at) = open.pop_front() {
            for edge in self.edges(at) {
                let next = edge.holder.owner;
                if reached_by.contains_key(&next) {
                    continue;
                }
                reached_by.insert(next, edge);
                if next == owner {
                    return Some(way_back(&reached_by, owner));
                }
                open.push_back(next);
            }
        }
        None
    }
}

/// The edges of a circle through an owner, from that owner on.
fn way_back<'a>(reached_by: &BTreeMap<Owner, Edge<'a>>, owner: Owner) -> Vec<Edge<'a>> {
    let mut circle = Vec::new();
    let mut at = owner;
    while let Some(edge) = reached_by.get(&at) {
        circle.push(*edge);
        at = edge.waiter.owner;
        if at == owner {
            break;
        }
    }
    circle.reverse();
    circle
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
