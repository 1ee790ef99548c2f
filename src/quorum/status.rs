//! The status of a lock at all servers of a quorum.

use crate::status::{Holder, Status};
use crate::types::client_info::ClientInfo;
use crate::types::error::Error;
use crate::types::mode::Mode;
use crate::types::owner::Owner;

/// The status of a lock at the servers of a quorum: see [`QuorumLock::status`](crate::QuorumLock::status).
///
/// The servers answer one after the other, so a request may have moved in between: a hold that has just been handed over
/// may show at fewer servers than a majority.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QuorumStatus {
    /// The owners that hold the lock at a server at least, those at most servers first. An owner with less than a
    /// majority does not hold the lock: it races for it, or has lost a server. Holds whose lease is over do not count.
    pub holders: Vec<QuorumHolder>,
    /// The greatest number of waiters at a server.
    pub waiting: usize,
    /// What each server says, in the order in which the quorum names them.
    pub servers: Vec<QuorumServer>,
}

/// What one server of a quorum says of a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QuorumServer {
    /// The server's address, without its password.
    pub address: String,
    /// The lock's status there, or why there is none.
    pub status: Result<Status, Error>,
}

/// An owner that holds a lock at some servers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QuorumHolder {
    /// The owner. A request without a named owner that had to ask a server again shows there as another owner, and its vote
    /// there counts for that one. Name the owners of holds that are to outlast the restart of a server.
    pub owner: Owner,
    /// The client that made the request.
    pub client: ClientInfo,
    /// The mode of the hold.
    pub mode: Mode,
    /// At how many servers the owner holds the lock in that mode.
    pub votes: usize,
    /// Whether these are a majority.
    pub is_majority: bool,
}

impl QuorumStatus {
    pub(super) fn of(servers: Vec<QuorumServer>) -> Self {
        let majority = servers.len() / 2 + 1;
        let mut holders: Vec<QuorumHolder> = Vec::new();
        let answers = || servers.iter().filter_map(|server| server.status.as_ref().ok());
        for status in answers() {
            let mut seen = Vec::new();
            // The nil UUID stands for nobody: the server is in quarantine.
            let counts = |holder: &&Holder| !holder.owner.is_nobody() && holder.expired_for.is_none();
            for holder in status.holders.iter().filter(counts) {
                let key = (holder.owner, holder.mode);
                if seen.contains(&key) {
                    continue;
                }
                seen.push(key);
                match holders.iter_mut().find(|known| (known.owner, known.mode) == key) {
                    Some(known) => known.votes += 1,
                    None => holders.push(QuorumHolder {
                        owner: holder.owner,
                        client: holder.client.clone(),
                        mode: holder.mode,
                        votes: 1,
                        is_majority: false,
                    }),
                }
            }
        }
        for holder in &mut holders {
            holder.is_majority = holder.votes >= majority;
        }
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.votes));
        Self {
            holders,
            waiting: answers().map(|status| status.waiting).max().unwrap_or_default(),
            servers,
        }
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests {
    use super::*;
    use crate::protocol::name::RequestName;
    use crate::protocol::snapshot::{RawState, Snapshot, SnapshotHolder};
    use crate::types::mode::Policy;
    use crate::types::owner::ClientId;
    use std::collections::HashMap;

    /// One server's status, with writers whose leases end so many ms after the reading, or so many before it.
    fn with_writers(requests: &[&str], ends_in_ms: i64) -> QuorumServer {
        const NOW_MS: u64 = 1_000_000;
        let holder = |request: &&str| SnapshotHolder {
            request: (*request).to_owned(),
            deadline_ms: NOW_MS.saturating_add_signed(ends_in_ms),
            read_holds: 0,
            token: 1,
        };
        let snapshot = Snapshot {
            now_us: NOW_MS * 1000,
            mode: Some(Mode::Write),
            policy: Policy::Fifo,
            write_holds: 1,
            holding: requests.len(),
            waiting: 0,
            holders: requests.iter().map(holder).collect(),
            waiters: Vec::new(),
            raw: RawState::default(),
            ahead: None,
            ticket_us: None,
        };
        QuorumServer {
            address: "a server".to_owned(),
            status: Ok(Status::of(&snapshot, 0, &HashMap::new())),
        }
    }

    #[test]
    fn a_hold_whose_lease_is_over_is_no_vote() {
        let request = RequestName::write(Mode::Write, ClientId::new(), 7, None);
        for (ends_in, votes) in [([1, 1, 0], 2), ([1, 0, -5000], 1), ([-1, 0, -1], 0)] {
            let status = QuorumStatus::of(ends_in.map(|ms| with_writers(&[request.as_str()], ms)).into());
            let seen: Vec<_> = status
                .holders
                .iter()
                .map(|holder| (holder.votes, holder.is_majority))
                .collect();
            let expected = if votes > 0 { vec![(votes, votes >= 2)] } else { vec![] };
            assert_eq!(seen, expected, "{ends_in:?}");
        }
    }

    #[test]
    fn an_owner_that_holds_twice_at_a_server_has_one_vote_there() {
        let owner = Owner::new().name();
        let [outer, inner] =
            [7, 8].map(|number| RequestName::write(Mode::Write, ClientId::new(), number, Some(&owner)));
        let servers: [&[&str]; 3] = [&[&outer, &inner], &[], &[]];
        let status = QuorumStatus::of(servers.map(|holders| with_writers(holders, 1)).into());
        let seen = status.holders.iter().map(|holder| (holder.votes, holder.is_majority));
        assert_eq!(seen.collect::<Vec<_>>(), [(1, false)]);
    }

    /// The servers are in quarantine.
    #[test]
    fn nobody_holds_no_lock() {
        let nobody = format!("w0:0:{}", "0".repeat(32));
        let status = QuorumStatus::of([1, 1, 1].map(|ms| with_writers(&[nobody.as_str()], ms)).into());
        assert_eq!(status.holders, []);
    }
}
