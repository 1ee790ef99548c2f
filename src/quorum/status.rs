//! The status of a lock at all servers of a quorum.

use crate::status::Status;
use crate::types::client_info::ClientInfo;
use crate::types::error::Error;
use crate::types::mode::Mode;
use crate::types::owner::Owner;

/// The status of a lock at the servers of a quorum: see [`QuorumLock::status`](crate::QuorumLock::status).
///
/// The servers answer one after the other, so a request may have moved in between: a hold that has just been handed over
/// may show at fewer servers than a majority.
#[derive(Debug)]
#[non_exhaustive]
pub struct QuorumStatus {
    /// The owners that hold the lock at a server at least, those at most servers first. An owner with less than a
    /// majority does not hold the lock: it races for it, or has lost a server.
    pub holders: Vec<QuorumHolder>,
    /// The greatest number of waiters at a server.
    pub waiting: usize,
    /// What each server says, by its address, in the order in which the quorum names them.
    pub servers: Vec<(String, Result<Status, Error>)>,
}

/// An owner that holds a lock at some servers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuorumHolder {
    /// The owner. A request without a named owner that had to ask a server again shows there as another owner.
    pub owner: Owner,
    /// The client that made the request.
    pub client: ClientInfo,
    /// The mode of the hold.
    pub mode: Mode,
    /// At how many servers the owner holds the lock in that mode.
    pub votes: usize,
    /// Whether these are a majority.
    pub holds: bool,
}

impl QuorumStatus {
    pub(super) fn of(servers: Vec<(String, Result<Status, Error>)>) -> Self {
        let majority = servers.len() / 2 + 1;
        let mut holders: Vec<QuorumHolder> = Vec::new();
        let answers = || servers.iter().filter_map(|(_, status)| status.as_ref().ok());
        for status in answers() {
            let mut seen = Vec::new();
            // The nil UUID stands for nobody: the server is in quarantine.
            for holder in status.holders.iter().filter(|holder| !holder.owner.is_nobody()) {
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
                        holds: false,
                    }),
                }
            }
        }
        for holder in &mut holders {
            holder.holds = holder.votes >= majority;
        }
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.votes));
        Self {
            holders,
            waiting: answers().map(|status| status.waiting).max().unwrap_or_default(),
            servers,
        }
    }
}
