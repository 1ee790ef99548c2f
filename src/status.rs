//! A look inside a lock: who holds it and who waits, at one moment.

use crate::protocol::introduction::ClientInfo;
use crate::protocol::name::RequestName;
use crate::protocol::snapshot::Snapshot;
use crate::types::mode::{Mode, Policy};
use crate::types::owner::Owner;
use crate::types::token::FencingToken;
use std::collections::HashMap;
use std::time::Duration;

/// A lock at one moment, by one script: see [`RwLock::status`](crate::RwLock::status).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Whether readers or a writer are inside. `None`: it is free. See also [`is_expired`](Self::is_expired).
    pub mode: Option<Mode>,
    /// Who enters first when several wait.
    pub policy: Policy,
    /// Requests that hold the lock: at most 1,000 of them.
    pub holders: Vec<Holder>,
    /// How many requests hold it, listed or not.
    pub holding: usize,
    /// Requests that wait, in the order in which they enter: at most 1,000 of them.
    pub waiters: Vec<Waiter>,
    /// How many requests wait, listed or not.
    pub waiting: usize,
}

impl Status {
    pub(crate) fn of(snapshot: &Snapshot, first: usize, clients: &HashMap<String, ClientInfo>) -> Self {
        let now_ms = snapshot.now_us / 1000;
        let left = |deadline_ms: u64| Duration::from_millis(deadline_ms.saturating_sub(now_ms));
        // As the scripts compare: a lease is over at its deadline.
        let expired = |deadline_ms: u64| now_ms.checked_sub(deadline_ms).map(Duration::from_millis);
        let since = |us: u64| Duration::from_micros(snapshot.now_us.saturating_sub(us));
        let client = |id: &str| clients.get(id).cloned().unwrap_or_else(|| ClientInfo::read(id, None));
        let holders = snapshot.holders.iter().filter_map(|holder| {
            let name = RequestName::read(&holder.request)?;
            Some(Holder {
                owner: name.owner()?,
                client: client(name.client),
                mode: name.mode,
                holds: match name.mode {
                    Mode::Read => holder.read_holds,
                    Mode::Write => snapshot.write_holds,
                },
                token: FencingToken::new(holder.token),
                lease_left: left(holder.deadline_ms),
                expired_for: expired(holder.deadline_ms),
                held_for: since(holder.token),
            })
        });
        let waiters = snapshot.waiters.iter().zip(first..).filter_map(|(waiter, position)| {
            let name = RequestName::read(&waiter.request)?;
            Some(Waiter {
                owner: name.owner()?,
                client: client(name.client),
                mode: name.mode,
                upgrade: waiter.upgrade,
                position,
                lease_left: left(waiter.deadline_ms),
                expired_for: expired(waiter.deadline_ms),
                waited: since(waiter.ticket_us),
            })
        });
        Self {
            mode: snapshot.mode,
            policy: snapshot.policy,
            holders: holders.collect(),
            holding: snapshot.holding,
            waiters: waiters.collect(),
            waiting: snapshot.waiting,
        }
    }

    /// Whether somebody holds the lock, but only by leases that are over. The next request of anybody enters.
    pub fn is_expired(&self) -> bool {
        // Listed or not: the holders are listed in the order of their deadlines.
        self.holding > 0
            && self.holding
                == self
                    .holders
                    .iter()
                    .filter(|holder| holder.expired_for.is_some())
                    .count()
    }
}

/// A request that holds the lock. An owner that reentered has several.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Who holds it.
    pub owner: Owner,
    /// Where its request came from.
    pub client: ClientInfo,
    /// How it was acquired: an owner may hold both a write and reads.
    pub mode: Mode,
    /// How often its owner holds the lock in that mode.
    pub holds: u64,
    /// Its owner's token.
    pub token: FencingToken,
    /// How long the hold lasts without a renewal; zero: anyone's next step ends it.
    pub lease_left: Duration,
    /// How long ago its lease ended, by the server's clock. `None`: the lease lasts. The hold stays listed until the next
    /// request, release or renewal of anybody ends it.
    pub expired_for: Option<Duration>,
    /// How long ago its owner got its token. A microsecond or more off after the server's clock was stepped.
    pub held_for: Duration,
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// Who waits.
    pub owner: Owner,
    /// Where its request came from.
    pub client: ClientInfo,
    /// What it waits for.
    pub mode: Mode,
    /// It reads already and waits to write.
    pub upgrade: bool,
    /// Its place in the queue, from 0.
    pub position: usize,
    /// How long it keeps its place without a renewal.
    pub lease_left: Duration,
    /// How long ago its lease ended, as in [`Holder::expired_for`]. Its place is lost to whoever comes next.
    pub expired_for: Option<Duration>,
    /// How long it has waited.
    pub waited: Duration,
}
