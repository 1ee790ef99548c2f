//! What `status` tells of a lock.

use super::{BAND, Lock, Name, RETENTION, Request, owner_of, writes};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    pub mode: String,
    pub policy: String,
    /// Write holds of the writing owner.
    pub writes: u64,
    /// Deadline, read holds of its owner, the phase's token.
    pub holders: BTreeMap<String, (u64, u64, u64)>,
    /// Request, score, deadline.
    pub waiters: Vec<(String, i64, u64)>,
    pub packed: Packed,
}

/// The numbers of the packed state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Packed {
    pub seq: u64,
    pub token: u64,
    pub first: u64,
    pub near_ms: u64,
    pub keep_ms: u64,
    pub cap_ms: u64,
    pub reads: u64,
    pub writes: u64,
    pub waiting: u64,
    pub sole: bool,
    pub more: bool,
    pub up: bool,
    pub holder: String,
    /// Of a bounded lock; 0 of any other.
    pub limit: u64,
    pub used: u64,
}

impl Lock {
    /// What `status` would show.
    pub fn view(&self) -> View {
        let mode = match (&self.writer, self.readers) {
            (Some(_), _) => "write",
            (None, 0) => "",
            (None, _) => "read",
        };
        let holder = |(name, request): (&Name, &Request)| {
            let owner = self.owners.get(owner_of(name)).copied().unwrap_or_default();
            (name.to_string(), (request.deadline_ms, owner.reads, self.token))
        };
        let holds = |request: &(&Name, &Request)| request.1.score.is_none();
        View {
            mode: mode.to_owned(),
            policy: self
                .policy
                .flatten()
                .map(|code| char::from(code).to_string())
                .unwrap_or_default(),
            writes: self.owners.values().map(|owner| owner.writes).sum(),
            holders: self.requests.iter().filter(holds).map(holder).collect(),
            waiters: self
                .queue
                .iter()
                .map(|(score, name)| (name.to_string(), *score, self.requests[name].deadline_ms))
                .collect(),
            packed: self.packed(),
        }
    }

    /// What a server's packed state could be.
    fn packed(&self) -> Packed {
        let holding = self.requests.iter().filter(|(_, request)| request.score.is_none());
        let sole = holding.clone().next().filter(|_| self.requests.len() == 1);
        let by_writer = || holding.clone().find(|(name, _)| writes(name));
        Packed {
            seq: self.seq,
            token: self.token,
            first: self.first,
            near_ms: self.near_ms,
            keep_ms: self.last_ms + 2 * RETENTION,
            cap_ms: self.longest_lease_ms,
            reads: self.readers,
            writes: self.owners.values().map(|owner| owner.writes).sum(),
            waiting: self.queue.len() as u64,
            sole: sole.is_some(),
            up: self.queue.first().is_some_and(|(score, _)| *score < 0),
            holder: sole
                .or_else(by_writer)
                .map(|(name, _)| name.to_string())
                .unwrap_or_default(),
            more: false,
            limit: self.limit,
            used: if self.is_bounded() { self.used } else { 0 },
        }
    }

    /// A lock that looks so: what is known of one that was damaged.
    pub fn from_view(view: &View, policy: Option<Option<u8>>, longest_lease_ms: u64) -> Self {
        let mut lock = Self {
            policy,
            limit: view.packed.limit,
            seq: view.packed.seq,
            token: view.packed.token,
            first: view.packed.first,
            near_ms: view.packed.near_ms,
            longest_lease_ms,
            ..Self::default()
        };
        for (request, (deadline_ms, ..)) in &view.holders {
            lock.put(request, *deadline_ms, None);
            lock.enter(request);
        }
        for (request, score, deadline_ms) in &view.waiters {
            lock.put(request, *deadline_ms, Some(*score));
        }
        lock
    }

    /// What `status` tells of one request: if it waits, how many waiters stand before it, and its score.
    pub fn place(&self, request: &str) -> Option<(u64, i64)> {
        let rank = self.queue.iter().position(|(_, name)| **name == *request)?;
        let (score, _) = self.queue.iter().nth(rank)?;
        Some((rank as u64, *score))
    }

    /// The tickets of those who wait.
    pub fn tickets(&self) -> impl Iterator<Item = i64> {
        self.queue.iter().map(|(score, _)| score.rem_euclid(BAND))
    }

    /// In the order of their places.
    pub fn queue(&self) -> impl Iterator<Item = (&str, i64)> {
        self.queue.iter().map(|(score, request)| (&**request, *score))
    }
}
