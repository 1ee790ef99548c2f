//! The status of a lock: who holds it and who waits, at one moment.

use crate::engine::session::Session;
use crate::protocol::key::Lock;
use crate::protocol::name::RequestName;
use crate::protocol::order::{AskForStatus, FIRST_PLACE};
use crate::protocol::snapshot::{RawState, Snapshot};
use crate::types::client_info::ClientInfo;
use crate::types::error::Error;
use crate::types::mode::{Mode, Policy};
use crate::types::owner::Owner;
use crate::types::token::FencingToken;
use std::collections::HashMap;
use std::time::Duration;

/// Reads the status with the waiters from a position on, and how many stand before a request, if that waits.
pub(crate) async fn read(
    session: &Session,
    lock: &Lock,
    first: usize,
    place_of: Option<&str>,
) -> Result<(Status, Option<usize>), Error> {
    const PAGE: usize = 1000;
    let call = session.call(lock, session.shared.lease);
    let ask = AskForStatus {
        // Nobody waits behind that, and Lua has exact numbers only so far.
        first: first.min(u32::MAX as usize),
        waiters: PAGE,
        holders: PAGE,
        place_of,
    };
    let snapshot = call.status(&ask).await;
    let snapshot = snapshot.map_err(|error| Error::of_server(&lock.name, error))?;
    let requests = snapshot.holders.iter().map(|holder| &holder.request);
    let requests = requests.chain(snapshot.waiters.iter().map(|waiter| &waiter.request));
    let clients = requests.filter_map(|request| Some(RequestName::read(request)?.client));
    let clients = session.introductions(clients).await;
    Ok((Status::of(&snapshot, first, &clients), snapshot.ahead))
}

/// The status of a lock at one moment, read by one script: see [`RwLock::status`](crate::RwLock::status).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Status {
    /// Whether readers or a writer hold the lock. `None`: the lock is free. See also [`is_expired`](Self::is_expired).
    pub mode: Option<Mode>,
    /// Which waiters enter first.
    pub policy: Policy,
    /// The permits that readers share, of a semaphore or a lock with [`max_readers`](crate::RwLock::max_readers). `None`:
    /// the lock has no bound.
    pub limit: Option<u32>,
    /// The permits that the readers have. This may be more than the limit after the limit fell.
    pub used: u32,
    /// The holders: at most 1,000 of them.
    pub holders: Vec<Holder>,
    /// The number of holders, listed or not.
    pub holding: usize,
    /// The waiters, in the order in which they enter: at most 1,000 of them.
    pub waiters: Vec<Waiter>,
    /// The number of waiters, listed or not.
    pub waiting: usize,
    /// The numbers of the state as they lie in the server, for diagnosis.
    pub raw: RawState,
}

impl Status {
    pub(crate) fn of(snapshot: &Snapshot, first: usize, clients: &HashMap<String, ClientInfo>) -> Self {
        let now_ms = snapshot.now_us / 1000;
        let left = |deadline_ms: u64| Duration::from_millis(deadline_ms.saturating_sub(now_ms));
        // The scripts compare in the same way: a lease is over at its deadline.
        let expired = |deadline_ms: u64| now_ms.checked_sub(deadline_ms).map(Duration::from_millis);
        let since = |us: u64| Duration::from_micros(snapshot.now_us.saturating_sub(us));
        let client = |id: &str| clients.get(id).cloned().unwrap_or_else(|| ClientInfo::read(id, None));
        let holders = snapshot.holders.iter().filter_map(|holder| {
            let name = RequestName::read(&holder.request)?;
            Some(Holder {
                owner: name.owner()?,
                client: client(name.client),
                mode: name.mode,
                permits: name.weight,
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
                permits: name.weight,
                upgrade: waiter.upgrade,
                position,
                lease_left: left(waiter.deadline_ms),
                expired_for: expired(waiter.deadline_ms),
                waited: match waiter.ticket_us {
                    // A holder of a quorum, which lacks the vote of this server, has no time of its own there.
                    FIRST_PLACE => Duration::ZERO,
                    ticket_us => since(ticket_us),
                },
            })
        });
        Self {
            mode: snapshot.mode,
            policy: snapshot.policy,
            limit: u32::try_from(snapshot.raw.limit).ok().filter(|limit| *limit > 0),
            used: u32::try_from(snapshot.raw.used).unwrap_or(u32::MAX),
            holders: holders.collect(),
            holding: snapshot.holding,
            waiters: waiters.collect(),
            waiting: snapshot.waiting,
            raw: snapshot.raw.clone(),
        }
    }

    /// Whether the lock is held, but only by leases that are over. The next request enters. A lock with more holders than
    /// are listed counts as held.
    pub fn is_expired(&self) -> bool {
        self.holding > 0
            && self.holding
                == self
                    .holders
                    .iter()
                    .filter(|holder| holder.expired_for.is_some())
                    .count()
    }
}

/// A holder of the lock. An owner that reentered has several.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Holder {
    /// The owner of the hold.
    pub owner: Owner,
    /// The client that made the request.
    pub client: ClientInfo,
    /// The mode of the hold: an owner may have a write hold and read holds.
    pub mode: Mode,
    /// The permits of a semaphore that the request asked for; otherwise 1. An owner's read holds take permits once.
    pub permits: u32,
    /// How often the owner holds the lock in that mode.
    pub holds: u64,
    /// The token of the time in which the lock has been held without a break, or a later one of it. The fencing token of
    /// the hold's own guard may be less.
    pub token: FencingToken,
    /// How long the hold lasts without a renewal. Zero: the next call of anybody ends it.
    pub lease_left: Duration,
    /// How long ago the lease ended, by the server's clock. `None`: the lease lasts. The hold stays listed until the
    /// next request, release or renewal of anybody ends it.
    pub expired_for: Option<Duration>,
    /// How long ago the server gave out that token. Readers or permits inside together share a token, so for each of them
    /// it is the time since the last one came out of the queue, or since the first one entered. The value is off by a
    /// microsecond or more after the server's clock was stepped.
    pub held_for: Duration,
}

/// A waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Waiter {
    /// The owner of the waiter.
    pub owner: Owner,
    /// The client that made the request.
    pub client: ClientInfo,
    /// The mode that it waits for.
    pub mode: Mode,
    /// The permits of a semaphore that it waits for; otherwise 1.
    pub permits: u32,
    /// Whether it is an upgrade: its owner reads and waits to write.
    pub upgrade: bool,
    /// The position in the queue, from 0.
    pub position: usize,
    /// How long the waiter keeps its place without a renewal.
    pub lease_left: Duration,
    /// How long ago its lease ended, as in [`Holder::expired_for`]. The next call of anybody ends its place.
    pub expired_for: Option<Duration>,
    /// How long it has waited so far.
    pub waited: Duration,
}
