//! What the checker knows of one lock: requests, owners and leases, as they come and go.

use super::{CLAMPED, Lock, Owner, Request, Standing, names_owner, owner_of, weight_of, writes};

impl Lock {
    pub(super) fn id(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    pub(super) fn request(&self, name: &str) -> Option<&Request> {
        self.id(name).map(|id| &self.requests[id as usize])
    }

    pub(super) fn standing(&self, name: &str) -> Standing {
        match self.request(name) {
            None => Standing::Unknown,
            Some(request) if request.waits.is_some() => Standing::Waits,
            Some(_) => Standing::Holds,
        }
    }

    /// What a request that holds is compared with: it was interrupted if that is greater than its own token.
    pub(super) fn since(&self, id: u32) -> u64 {
        if self.requests[id as usize].writes {
            self.token
        } else {
            self.first
        }
    }

    pub(super) fn lease(&mut self, id: u32, now: u64, lease: u64) {
        let request = &mut self.requests[id as usize];
        self.deadlines.remove(&(request.deadline, id));
        request.deadline = now + lease;
        self.deadlines.insert((request.deadline, id));
        self.cap = self.cap.max(lease);
    }

    /// The same for a request that is there: with a plus sign the lease ends no earlier.
    pub(super) fn renew(&mut self, id: u32, now: u64, lease: u64, word: &str) {
        let before = self.requests[id as usize].deadline;
        self.lease(id, now, lease);
        if word.starts_with('+') && before > now + lease {
            self.lease(id, before, 0);
        }
    }

    /// A clock that was put back has left deadlines too far ahead; the scripts pull them in.
    pub(super) fn clamp(&mut self, latest: u64) {
        if self.deadlines.last().is_none_or(|(last, _)| *last <= latest) {
            return;
        }
        let mut far: Vec<_> = self.deadlines.range((latest + 1, 0)..).copied().collect();
        // A sorted set has those of one score in the order of their names.
        far.sort_by_key(|(deadline, id)| (*deadline, self.name(*id)));
        for (deadline, id) in far.into_iter().take(CLAMPED) {
            self.deadlines.remove(&(deadline, id));
            self.deadlines.insert((latest, id));
            self.requests[id as usize].deadline = latest;
        }
    }

    /// A request that neither holds nor waits yet.
    pub(super) fn insert(&mut self, name: &str) -> u32 {
        let owner = match self.owner_names.get(owner_of(name)) {
            Some(owner) => *owner,
            None => {
                let owner = self.unused_owners.pop().unwrap_or_else(|| {
                    self.owners.push(Owner::default());
                    self.owners.len() as u32 - 1
                });
                self.owner_names.insert(owner_of(name).into(), owner);
                owner
            }
        };
        let request = Request {
            owner,
            named: names_owner(name),
            writes: writes(name),
            waits: None,
            upgrade: false,
            deadline: 0,
            named_by: 0,
            resends: 0,
            hold: usize::MAX,
        };
        let id = match self.unused.pop() {
            Some(id) => {
                self.requests[id as usize] = request;
                id
            }
            None => {
                self.requests.push(request);
                self.requests.len() as u32 - 1
            }
        };
        self.names.insert(name.into(), id);
        id
    }

    pub(super) fn leave_queue(&mut self, id: u32) {
        let request = &mut self.requests[id as usize];
        if let Some(score) = request.waits.take() {
            self.queue.remove(&(score, id));
            self.owners[request.owner as usize].waiting -= 1;
            self.upgrades -= u32::from(std::mem::take(&mut request.upgrade));
        }
    }

    pub(super) fn remove(&mut self, id: u32, name: &str) {
        let Request {
            owner: of,
            writes,
            waits,
            deadline,
            ..
        } = self.requests[id as usize];
        if waits.is_some() {
            self.leave_queue(id);
        } else if writes {
            let owner = &mut self.owners[of as usize];
            owner.writes -= 1;
            if owner.writes == 0 && self.writer == Some(of) {
                self.writer = None;
            }
        } else {
            self.owners[of as usize].reads -= 1;
            self.readers -= 1;
            if self.owners[of as usize].reads == 0 {
                self.used -= weight_of(owner_of(name));
            }
        }
        self.deadlines.remove(&(deadline, id));
        self.names.remove(name);
        self.unused.push(id);
        let owner = &mut self.owners[of as usize];
        if owner.reads + owner.writes == 0 && owner.waiting == 0 {
            *owner = Owner::default();
            self.owner_names.remove(owner_of(name));
            self.unused_owners.push(of);
        }
    }

    /// Nobody holds or waits any more. Tokens go on.
    /// Nothing is left at the server, not even the longest lease, beyond which renewals pull deadlines back.
    pub(super) fn lose(&mut self) {
        self.forget();
        self.cap = 0;
    }

    pub(super) fn forget(&mut self) {
        *self = Self {
            seq: self.seq,
            token: self.token,
            first: self.first,
            cap: self.cap,
            limit: self.limit,
            told: std::mem::take(&mut self.told),
            ..Self::default()
        };
    }

    /// For messages only.
    pub(super) fn name(&self, id: u32) -> &str {
        self.names
            .iter()
            .find(|(_, of)| **of == id)
            .map_or("?", |(name, _)| name)
    }

    pub(super) fn owner_name(&self, id: u32) -> &str {
        let mut names = self.owner_names.iter();
        names.find(|(_, of)| **of == id).map_or("?", |(name, _)| name)
    }
}
