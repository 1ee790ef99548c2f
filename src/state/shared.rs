//! `Shared`: what all parts of one client share. It has the client's name, its requests, and the listeners to events.
//! It owns no connection.
//!
//! A connection's callback owns an `Arc<Shared>` and calls it with every message. Releases go by a channel to the
//! releaser. The client's last handle owns the sender: when that handle goes, the channel closes.

use super::claim::{Claim, EndedBy};
use super::registry::Registry;
use super::request::{Heard, Request};
use super::subscribers::EventSubscribers;
use super::sync::Notify;
use crate::protocol::key::{Lock, is_state};
use crate::protocol::message::read_message;
use crate::protocol::name::RequestName;
use crate::types::mode::Admission;
use crate::types::owner::ClientId;
use crate::types::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Who a client is: its name, the counter of its requests, and its process. The servers of a quorum know one client.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) id: ClientId,
    numbers: Arc<AtomicU64>,
    /// A child of fork() has a copy of everything, and its requests are its parent's.
    process: u32,
}

impl Identity {
    pub(crate) fn new() -> Self {
        Self {
            id: ClientId::new(),
            numbers: Arc::new(AtomicU64::new(1)),
            process: process::id(),
        }
    }

    /// That of another process.
    #[cfg(test)]
    pub(crate) fn of_a_parent() -> Self {
        Self {
            process: 0,
            ..Self::new()
        }
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether this is the copy in a child of fork(), where nothing runs for the client. At the fork another thread may
    /// have had any mutex, and nobody unlocks that in the child.
    pub(crate) fn is_a_childs_copy(&self) -> bool {
        process::id() != self.process
    }
}

pub(crate) struct Shared {
    pub(crate) id: ClientId,
    pub(crate) prefix: String,
    /// The lease of requests that do not set their own.
    pub(crate) lease: Duration,
    pub(crate) registry: Registry,
    pub(crate) subscribers: EventSubscribers,
    /// A named owner waits: wakes the search for deadlocks.
    pub(crate) owner_waits: Notify,
    identity: Identity,
    releases: mpsc::WeakUnboundedSender<Arc<Request>>,
}

impl Shared {
    pub(crate) fn new(
        identity: Identity,
        prefix: String,
        lease: Duration,
        releases: &mpsc::UnboundedSender<Arc<Request>>,
    ) -> Self {
        Self {
            id: identity.id,
            prefix,
            lease,
            registry: Registry::new(),
            subscribers: EventSubscribers::default(),
            owner_waits: Notify::new(),
            identity,
            releases: releases.downgrade(),
        }
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.identity.next_number()
    }

    /// Whether this client has given that number to a request.
    fn has_given(&self, number: u64) -> bool {
        (1..self.identity.numbers.load(Ordering::Relaxed)).contains(&number)
    }

    /// Whether this client has made a request of that number, and has none for that lock: an *orphan*, if the server still
    /// knows it.
    pub(crate) fn has_forgotten(&self, state: &str, number: u64) -> bool {
        self.has_given(number) && !self.registry.knows(state, number)
    }

    /// The same, or nobody needs the request. One that its user has left may be kept for its least time.
    pub(crate) fn has_done_with(&self, state: &str, number: u64, now: Instant) -> bool {
        self.has_forgotten(state, number) || self.registry.is_done_with(state, number, now)
    }

    /// Releases a request in the background, because its user does not need it any more. Works outside of a runtime
    /// too. In a child of fork() it does nothing to the server, where the request is the parent's.
    pub(crate) fn abandon(&self, request: Arc<Request>, now: Instant) {
        // First, before any mutex.
        if self.is_a_childs_copy() {
            return;
        }
        request.change(|claim| claim.leave(now));
        // The releaser is gone after a shutdown, which released everything, and after the end of the client's runtime.
        if let Err(request) = self.release(request) {
            self.registry.remove(&request);
        }
    }

    pub(crate) fn is_a_childs_copy(&self) -> bool {
        self.identity.is_a_childs_copy()
    }

    /// Hands a request to the releaser, and returns the request if the releaser is gone.
    pub(crate) fn release(&self, request: Arc<Request>) -> Result<(), Arc<Request>> {
        match self.releases.upgrade() {
            Some(releases) => releases.send(request).map_err(|unsent| unsent.0),
            None => Err(request),
        }
    }

    /// Takes in a message on the client's channel: grants, and ends of requests.
    pub(crate) fn on_message(&self, heard: Heard, payload: &[u8]) {
        let Some((grants, key)) = read_message(payload) else {
            tracing::warn!(
                bytes = payload.len(),
                "a message that is not fairlock's came on the client's channel"
            );
            return;
        };
        let client = self.id.digits();
        let own = |name| RequestName::read(name).filter(|parts| parts.client.as_bytes() == client);
        let requests = self.registry.named(key, grants.iter().map(|(name, _)| own(name)));
        for ((name, token), request) in grants.into_iter().zip(requests) {
            if let Some(request) = request {
                request.on_grant(heard, token);
                continue;
            }
            match own(name) {
                Some(own) if self.has_forgotten(key, own.number) && is_state(&self.prefix, key) => {
                    self.pass_on(heard.at, name, own.number, key);
                }
                // If it is another client's request, this client must not release it.
                _ => tracing::warn!(request = name, key, "a message names what is no request of this client"),
            }
        }
    }

    /// A grant to an orphan: the server executed an acquire after the client had closed its connection. Nobody will use
    /// the grant.
    fn pass_on(&self, now: Instant, name: &str, number: u64, key: &str) {
        tracing::debug!(request = name, key, "passing on a grant that nobody waits for");
        let mut claim = Claim::new(self.lease, Duration::MAX, now);
        claim.end(EndedBy::Released);
        let lock = Arc::new(Lock::of_key(key.to_owned(), key.into()));
        let orphan = Request::new(number, name.to_owned(), lock, Admission::FIFO, claim);
        // Without a releaser the orphan ends with its lease.
        let _ = self.release(Arc::new(orphan));
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests {
    use super::*;
    use crate::protocol::reply::Answer;
    use crate::state::claim::Outcome;
    use crate::types::error::LostReason;
    use crate::types::mode::Mode;

    #[test]
    fn what_is_abandoned_after_a_shutdown_is_forgotten() {
        let (releases, released) = mpsc::unbounded_channel();
        let shared = Shared::new(Identity::new(), "p".to_owned(), Duration::from_secs(9), &releases);
        drop(released);
        let lock = Arc::new(Lock::new("p", "a".into()));
        let claim = Claim::new(Duration::from_secs(9), Duration::MAX, Instant::now());
        let request = Arc::new(Request::new(1, "wa:1".to_owned(), lock, Admission::FIFO, claim));
        let state = Arc::clone(&request.lock.state);
        shared.registry.insert(Arc::clone(&request), Instant::now());
        assert!(shared.registry.knows(&state, 1));
        let now = Instant::now();
        assert!(!shared.has_done_with(&state, 1, now), "it asks");
        request.claim().end(EndedBy::Lost(LostReason::UnknownToServer));
        assert!(
            shared.has_done_with(&state, 1, now),
            "an owner's next request need not wait for it"
        );
        shared.abandon(request, Instant::now());
        assert!(!shared.registry.knows(&state, 1));
    }

    /// The server went back to a state in which that one waits, while its release had no reply.
    #[test]
    fn an_owner_is_not_refused_for_a_request_that_it_asks_for_by_another_name() {
        let (releases, _released) = mpsc::unbounded_channel();
        let shared = Shared::new(Identity::new(), "p".to_owned(), Duration::from_secs(9), &releases);
        let (lock, now) = (Arc::new(Lock::new("p", "a".into())), Instant::now());
        let claim = Claim::new(Duration::from_secs(9), Duration::MAX, now);
        let number = shared.next_number();
        let request = Arc::new(Request::new(number, "wa:1:o".to_owned(), lock, Admission::FIFO, claim));
        let state = Arc::clone(&request.lock.state);
        shared.registry.insert(Arc::clone(&request), now);
        request.claim().end(EndedBy::Displaced { ticket: Some(7) });
        shared.abandon(request, now);
        assert!(shared.registry.knows(&state, number), "it is being released");
        assert!(shared.has_done_with(&state, number, now));
    }

    #[test]
    fn in_a_child_of_fork_nothing_that_another_thread_may_have_had_is_touched() {
        let (releases, _released) = mpsc::unbounded_channel();
        let shared = Shared::new(
            Identity::of_a_parent(),
            "p".to_owned(),
            Duration::from_secs(9),
            &releases,
        );
        let lock = Arc::new(Lock::new("p", "a".into()));
        let claim = Claim::new(Duration::from_secs(9), Duration::MAX, Instant::now());
        let request = Arc::new(Request::new(1, "wa:1".to_owned(), lock, Admission::FIFO, claim));
        shared.registry.insert(Arc::clone(&request), Instant::now());
        shared.abandon(Arc::clone(&request), Instant::now());
        assert!(shared.registry.knows(&request.lock.state, 1) && request.claim().ended().is_none());
    }

    #[test]
    fn a_message_over_a_new_subscription_proves_nothing_that_was_asked_for_before_it() {
        let (releases, _released) = mpsc::unbounded_channel();
        let shared = Shared::new(Identity::new(), "p".to_owned(), Duration::from_secs(9), &releases);
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        for (heard, is_proven) in [
            (Heard::over(Some(later), later), false),
            (Heard { at: later, since: None }, true),
        ] {
            let lock = Arc::new(Lock::new("p", "a".into()));
            let claim = Claim::new(Duration::from_secs(9), Duration::MAX, now);
            let number = shared.next_number();
            let name = RequestName::write(Mode::Write, shared.id, number, None);
            let request = Arc::new(Request::new(number, name.clone(), lock, Admission::FIFO, claim));
            shared.registry.insert(Arc::clone(&request), now);
            let queued = Answer::Queued {
                ticket: 7,
                seq: 7,
                ahead: 0,
            };
            request.claim().on_reply(now, queued);
            let message = format!("9 {name}\n{}", request.lock.state);
            shared.on_message(heard, message.as_bytes());
            let outcome = request.claim().poll_outcome(later);
            assert_eq!(matches!(outcome, Some(Outcome::HandOut(_))), is_proven, "{outcome:?}");
            assert_eq!(matches!(outcome, Some(Outcome::Renew)), !is_proven, "{outcome:?}");
        }
    }
}
