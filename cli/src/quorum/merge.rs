//! Pure: the status of a lock from what the servers of a quorum say.
//!
//! The servers answer one after the other, so a request may have moved in between: a hold that has just been handed over may
//! show at fewer servers than a majority.

use crate::locks::Found;
use fairlock::{FencingToken, Holder, Mode, Owner, Status};
use std::cmp::Reverse;
use std::time::Duration;

/// What a quorum adds to the status of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Votes {
    pub(crate) servers: usize,
    /// How many servers keep each of the status' holders.
    pub(crate) of_holders: Vec<usize>,
}

/// The status of a lock as a majority keeps it. `None`: no server has one.
///
/// A holder is who holds at a majority. Who holds at fewer servers races for the lock and waits at others, or has lost
/// servers.
pub(crate) fn merged(name: String, statuses: &[&Status], servers: usize) -> Option<Found> {
    let longest = statuses.iter().rev().max_by_key(|status| status.waiting)?;
    let holders = holders(statuses, servers / 2 + 1);
    let mut status = (*longest).clone();
    let unlisted = status.waiting.saturating_sub(status.waiters.len());
    for other in statuses {
        for waiter in &other.waiters {
            let is_known = status.waiters.iter().any(|known| known.owner == waiter.owner);
            if !is_known {
                status.waiters.push(waiter.clone());
            }
        }
    }
    // A holder may wait at a server that it has lost and asks again.
    let holds = |owner: Owner, mode| {
        holders
            .iter()
            .any(|(holder, _)| (holder.owner, holder.mode) == (owner, mode))
    };
    status.waiters.retain(|waiter| !holds(waiter.owner, waiter.mode));
    for (position, waiter) in status.waiters.iter_mut().enumerate() {
        waiter.position = position;
    }
    let writes = |(holder, _): &(Holder, usize)| holder.mode == Mode::Write;
    status.mode = match holders.iter().any(writes) {
        true => Some(Mode::Write),
        false => (!holders.is_empty()).then_some(Mode::Read),
    };
    status.waiting = status.waiters.len() + unlisted;
    status.holding = holders.len();
    let of_holders = holders.iter().map(|(_, votes)| *votes).collect();
    status.holders = holders.into_iter().map(|(holder, _)| holder).collect();
    let votes = Some(Votes { servers, of_holders });
    Some(Found { name, status, votes })
}

/// Who holds at a majority, and at how many servers. A lease that is over keeps a holder listed, and is no vote.
fn holders(statuses: &[&Status], majority: usize) -> Vec<(Holder, usize)> {
    let mut by_owner: Vec<Vec<Holder>> = Vec::new();
    for holder in statuses.iter().flat_map(|status| of_one_server(status)) {
        match by_owner.iter_mut().find(|known| is_same(&known[0], &holder)) {
            Some(known) => known.push(holder),
            None => by_owner.push(vec![holder]),
        }
    }
    by_owner.retain(|known| known.len() >= majority);
    let of_majority = |mut known: Vec<Holder>| {
        // The hold lasts as long as the votes of a majority do, and began with the last one of them.
        known.sort_by_key(|holder| (Reverse(holder.lease_left), holder.expired_for));
        let mut holder = known[majority - 1].clone();
        let mut held: Vec<Duration> = known.iter().map(|holder| holder.held_for).collect();
        held.sort_by_key(|held| Reverse(*held));
        holder.held_for = held[majority - 1];
        // The guard's token is the greatest of the majority that had answered when it was asked. Later votes may have
        // greater ones, and nobody can tell which they are: this is the least that it can have. A server that does not
        // answer now may have a small one.
        let mut tokens: Vec<FencingToken> = known.iter().map(|holder| holder.token).collect();
        tokens.sort_unstable();
        let silent = (2 * majority - 1).saturating_sub(statuses.len());
        holder.token = tokens[(majority - 1).saturating_sub(silent)];
        let votes = known.iter().filter(|holder| holder.expired_for.is_none()).count();
        (holder, votes)
    };
    by_owner.into_iter().map(of_majority).collect()
}

/// The holders of a server, each once: an owner that reentered has several requests there, and one vote. It holds as
/// long as the last of them.
fn of_one_server(status: &Status) -> Vec<Holder> {
    let mut once: Vec<Holder> = Vec::new();
    // The nil UUID stands for nobody: that server is in quarantine.
    for holder in status.holders.iter().filter(|holder| !holder.owner.uuid().is_nil()) {
        let Some(known) = once.iter_mut().find(|known| is_same(known, holder)) else {
            once.push(holder.clone());
            continue;
        };
        known.lease_left = known.lease_left.max(holder.lease_left);
        // `None`, a lease that lasts, is the least.
        known.expired_for = known.expired_for.min(holder.expired_for);
        known.held_for = known.held_for.max(holder.held_for);
        known.token = known.token.max(holder.token);
    }
    once
}

fn is_same(one: &Holder, other: &Holder) -> bool {
    (one.owner, one.mode) == (other.owner, other.mode)
}
