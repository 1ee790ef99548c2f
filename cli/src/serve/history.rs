//! Pure: the waits that have ended lately, how long each one took, and how it ended.
//!
//! Events tell when a wait begins and ends. Some events are missing: those before `serve` listened, those of a lost
//! connection, and all events of a cluster and of a quorum. So each look at all locks counts too. A look finds waits that
//! no event has told of, and ends those that are gone.

use crate::clients::Known;
use crate::locks::Findings;
use fairlock::{ClientInfo, Event, EventKind, Mode, Owner, Status};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant, SystemTime};

/// How many waits that have ended are kept.
pub(crate) const KEPT: usize = 1000;
/// How many waits are followed at a time. Further ones are not.
const FOLLOWED: usize = 20_000;

/// An owner waits at most once for a lock in a mode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    lock: String,
    owner: Owner,
    mode: Mode,
}

/// A wait that lasts.
#[derive(Debug)]
struct Open {
    client: String,
    /// By the server's clock, if an event told it.
    queued_at: Option<SystemTime>,
    since: Instant,
}

/// A wait that has ended.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) lock: String,
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    pub(crate) client: String,
    pub(crate) waited: Duration,
    /// The kind of the event that ended the wait; or `gone` if only a look told that it is over.
    pub(crate) ended: &'static str,
    pub(crate) at: SystemTime,
    seen: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    open: HashMap<Place, Open>,
    /// The latest last.
    ended: VecDeque<Wait>,
    pub(crate) clients: Known,
}

impl History {
    /// The waits that have ended, the latest first.
    pub(crate) fn ended(&self) -> impl Iterator<Item = &Wait> {
        self.ended.iter().rev()
    }

    /// The client of that number, as far as it is known.
    pub(crate) fn client(&self, id: &str) -> ClientInfo {
        self.clients.get(id).cloned().unwrap_or_else(|| {
            let mut client = ClientInfo::default();
            id.clone_into(&mut client.id);
            client
        })
    }

    pub(crate) fn event(&mut self, event: &Event, now: Instant) {
        let place = Place {
            lock: event.lock.clone(),
            owner: event.owner,
            mode: event.mode,
        };
        let ended = match event.kind {
            EventKind::Queued => {
                if self.open.len() < FOLLOWED {
                    let open = Open {
                        client: event.client_id.clone(),
                        queued_at: Some(event.at),
                        since: now,
                    };
                    self.open.insert(place, open);
                }
                return;
            }
            EventKind::Granted => "granted",
            EventKind::Left => "left",
            EventKind::Expired => "expired",
            EventKind::Evicted => "evicted",
            _ => return,
        };
        // A request that entered at once, or a holder, has no wait.
        if let Some(open) = self.open.remove(&place) {
            let by_server = open.queued_at.and_then(|at| event.at.duration_since(at).ok());
            self.end(place, &open, by_server, ended, event.at, now);
        }
    }

    /// A look at all locks, which began and ended at these moments.
    pub(crate) fn looked(&mut self, findings: &Findings, began: Instant, now: Instant, at: SystemTime) {
        let since_look = self.ended.iter().rev().take_while(|wait| wait.seen >= began);
        let just_ended: HashSet<Place> = since_look.map(Wait::place).collect();
        let mut waiting = HashSet::new();
        for lock in &findings.found {
            self.clients.learn(&lock.status);
            for waiter in lock.status.waiters.iter().filter(|waiter| waiter.expired_for.is_none()) {
                let place = Place {
                    lock: lock.name.clone(),
                    owner: waiter.owner,
                    mode: waiter.mode,
                };
                let is_full = self.open.len() >= FOLLOWED;
                if let Entry::Vacant(vacant) = self.open.entry(place.clone())
                    && !is_full
                    // The look is older than the event that ended this wait.
                    && !just_ended.contains(&place)
                {
                    vacant.insert(Open {
                        client: waiter.client.id.clone(),
                        queued_at: None,
                        since: now.checked_sub(waiter.waited).unwrap_or(now),
                    });
                }
                waiting.insert(place);
            }
        }
        self.end_gone(findings, &waiting, began, now, at);
    }

    /// Ends the waits that a look did not find any more, and whose end no event told.
    fn end_gone(
        &mut self,
        findings: &Findings,
        waiting: &HashSet<Place>,
        began: Instant,
        now: Instant,
        at: SystemTime,
    ) {
        let locks = findings.found.iter();
        let locks: HashMap<&str, &Status> = locks.map(|lock| (lock.name.as_str(), &lock.status)).collect();
        let is_over = |place: &Place, open: &Open| {
            let is_listed = match locks.get(place.lock.as_str()) {
                Some(status) => status.waiters.len() >= status.waiting,
                None => findings.has_read(&place.lock),
            };
            is_listed && open.since < began && !waiting.contains(place)
        };
        let over: Vec<Place> = self
            .open
            .iter()
            .filter(|(place, open)| is_over(place, open))
            .map(|(place, _)| place.clone())
            .collect();
        for place in over {
            let holds = locks.get(place.lock.as_str()).is_some_and(|status| {
                let mut holders = status.holders.iter();
                holders.any(|holder| (holder.owner, holder.mode) == (place.owner, place.mode))
            });
            if let Some(open) = self.open.remove(&place) {
                let ended = if holds { "granted" } else { "gone" };
                self.end(place, &open, None, ended, at, now);
            }
        }
    }

    fn end(
        &mut self,
        place: Place,
        open: &Open,
        by_server: Option<Duration>,
        ended: &'static str,
        at: SystemTime,
        now: Instant,
    ) {
        if self.ended.len() == KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(Wait {
            lock: place.lock,
            owner: place.owner,
            mode: place.mode,
            client: open.client.clone(),
            waited: by_server.unwrap_or_else(|| now.saturating_duration_since(open.since)),
            ended,
            at,
            seen: now,
        });
    }
}

impl Wait {
    fn place(&self) -> Place {
        Place {
            lock: self.lock.clone(),
            owner: self.owner,
            mode: self.mode,
        }
    }

    pub(crate) fn described(&self, client: &ClientInfo) -> serde_json::Value {
        serde_json::json!({
            "at": humantime::format_rfc3339_micros(self.at).to_string(),
            "lock": self.lock,
            "mode": self.mode.as_str(),
            "owner": self.owner.to_string(),
            "client": crate::json::client(client),
            "ended": self.ended,
            "waited_ms": crate::json::ms(self.waited),
        })
    }
}
