//! The servers of a quorum, and what its clients share: one name, the longest lease, the tickets in use.

use super::owners::Owners;
use super::rules;
use crate::engine::session::{Handle, Settings};
use crate::engine::tasks;
use crate::observe::{QuorumServers, Unreached};
use crate::state::shared::Identity;
use crate::transport::backoff::Backoff;
use crate::transport::quarantine::Seat;
use crate::transport::route::Target;
use crate::types::error::is_transient;
use redis::RedisError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// One server, and the client of that server once it was reached.
pub(super) struct Member {
    pub(super) address: String,
    target: Target,
    handle: OnceLock<Arc<Handle>>,
    connected: Notify,
}

pub(super) struct Members {
    pub(super) name: String,
    pub(super) servers: Vec<Member>,
    pub(super) prefix: String,
    pub(super) lease: Duration,
    pub(super) longest_lease: Duration,
    label: Option<String>,
    pub(super) identity: Identity,
    /// The run ids of the servers.
    taken: Arc<Mutex<BTreeMap<usize, String>>>,
    /// The tickets of this client's waiting requests, by lock: no two requests have the same.
    tickets: Mutex<BTreeSet<(Arc<str>, u64)>>,
    pub(super) owners: Arc<Owners>,
    /// The runtime of the client's tasks.
    runtime: tokio::runtime::Handle,
    closed: AtomicBool,
    closing: Notify,
    _counted: QuorumServers,
}

/// What the builder knows.
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) prefix: String,
    pub(super) lease: Duration,
    pub(super) longest_lease: Duration,
    pub(super) label: Option<String>,
}

impl Members {
    pub(super) fn new(plan: Plan, targets: Vec<Target>) -> Arc<Self> {
        let member = |target: Target| Member {
            address: target.address(),
            target,
            handle: OnceLock::new(),
            connected: Notify::new(),
        };
        Arc::new(Self {
            name: plan.name,
            _counted: QuorumServers::begin(targets.len()),
            servers: targets.into_iter().map(member).collect(),
            prefix: plan.prefix,
            lease: plan.lease,
            longest_lease: plan.longest_lease,
            label: plan.label,
            identity: Identity::new(),
            taken: Arc::default(),
            tickets: Mutex::default(),
            owners: Arc::default(),
            runtime: tokio::runtime::Handle::current(),
            closed: AtomicBool::new(false),
            closing: Notify::new(),
        })
    }

    pub(super) fn majority(&self) -> usize {
        rules::majority(self.servers.len())
    }

    /// Connects to one server. What all clients must agree on is kept there and compared.
    pub(super) async fn connect(&self, at: usize) -> Result<(), RedisError> {
        let longest_ms = self.longest_lease.as_millis();
        let settings = Settings {
            identity: self.identity.clone(),
            lease: self.lease,
            prefix: self.prefix.clone(),
            label: self.label.clone(),
            replication: None,
            deadlock_timeout: None,
            lock_delay: Duration::ZERO,
            quarantine: Some(self.longest_lease),
            seat: Some(Seat {
                number: at,
                stamp: format!("{} of {} {longest_ms}", self.name, self.servers.len()).into(),
                taken: Arc::clone(&self.taken),
            }),
        };
        let member = &self.servers[at];
        let handle = Box::pin(tasks::connect(&member.target, settings)).await?;
        if self.is_closed() {
            return Ok(());
        }
        // The first one stays, and a second one ends with its handle.
        let _ = member.handle.set(handle);
        member.connected.notify_waiters();
        // A shutdown since the look above has seen the handle, or is seen here.
        fence(Ordering::SeqCst);
        if self.is_closed()
            && let Some(handle) = member.handle()
        {
            Box::pin(handle.session.shut_down(true)).await;
        }
        Ok(())
    }

    /// Goes on connecting to a server that was away, for as long as the quorum is used.
    pub(super) async fn connect_later(members: Weak<Self>, at: usize, unreached: Unreached) {
        let mut backoff = Backoff::new();
        loop {
            backoff.pause().await;
            let Some(members) = members.upgrade().filter(|members| !members.is_closed()) else {
                return;
            };
            match members.connect(at).await {
                Ok(()) => return unreached.end(),
                Err(error) if is_transient(&error) => {
                    tracing::debug!(server = members.servers[at].address, %error, "away")
                }
                Err(error) => tracing::warn!(server = members.servers[at].address, %error, "the server does not vote"),
            }
        }
    }

    /// A ticket of its own: the number, or the next one that no other request of this client has.
    pub(super) fn take_ticket(&self, lock: &Arc<str>, number: u64) -> u64 {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ticket = number;
        while !tickets.insert((Arc::clone(lock), ticket)) {
            ticket += 1;
        }
        ticket
    }

    pub(super) fn return_ticket(&self, lock: &Arc<str>, ticket: u64) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.remove(&(Arc::clone(lock), ticket));
    }

    /// Runs one of the client's own tasks. The caller need not be in the client's runtime.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let _inside = self.runtime.enter();
        self.servers[0].target.spawn(task)
    }

    /// Whether the caller is in the client's runtime. A timer of another one panics once that has ended, so what may move to
    /// the client's tasks must not make one.
    pub(super) fn is_at_home(&self) -> bool {
        tokio::runtime::Handle::try_current().is_ok_and(|here| here.id() == self.runtime.id())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // See `connect`.
        fence(Ordering::SeqCst);
        self.closing.notify_waiters();
    }

    /// Waits until the quorum is shut down.
    pub(super) async fn closing(&self) {
        // Created before the check, so that no shutdown is missed.
        let closing = self.closing.notified();
        if !self.is_closed() {
            closing.await;
        }
    }
}

impl Member {
    pub(super) fn handle(&self) -> Option<&Arc<Handle>> {
        self.handle.get()
    }

    /// Waits until the server was reached for the first time.
    pub(super) async fn connected(&self) -> &Arc<Handle> {
        loop {
            // Created before the check, so that no connection is missed.
            let connected = self.connected.notified();
            if let Some(handle) = self.handle() {
                return handle;
            }
            connected.await;
        }
    }

    /// From when on what the server grants counts. `None`: there is no connection, so nobody knows.
    pub(super) fn trusted_from(&self, now: Instant) -> Option<Instant> {
        self.handle()?.session.route.trusted_from(now)
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests {
    use super::*;
    use crate::protocol::key::Lock;
    use crate::quorum::ballot::{Ballot, Wish, Work};
    use crate::quorum::guard::QuorumGuard;
    use crate::quorum::tally::{End, Phase};
    use crate::types::clock;
    use crate::types::mode::{Admission, Mode, When, Write};

    fn members_of(identity: Identity) -> Arc<Members> {
        let lease = Duration::from_secs(10);
        let plan = Plan {
            name: "test".to_owned(),
            prefix: "p".to_owned(),
            lease,
            longest_lease: lease,
            label: None,
        };
        let mut members = Members::new(plan, vec![]);
        Arc::get_mut(&mut members).expect("nobody has it yet").identity = identity;
        members
    }

    fn ballot(members: &Arc<Members>) -> Arc<Ballot> {
        let wish = Wish {
            lock: Arc::new(Lock::new("p", "a".into())),
            mode: Mode::Write,
            admission: Admission::FIFO,
            owner: None,
            lease: members.lease,
            max_hold: Duration::MAX,
            when: When::InTurn,
        };
        Ballot::new(Arc::clone(members), wish)
    }

    #[tokio::test]
    async fn in_a_child_of_fork_nothing_that_another_thread_may_have_had_is_touched() {
        let members = members_of(Identity::of_a_parent());
        let ballot = ballot(&members);
        let working = tokio::spawn(std::future::pending::<()>());
        drop(QuorumGuard::<Write>::new(
            Arc::clone(&ballot),
            working.abort_handle(),
            1,
        ));
        drop(Work::new(&ballot, ballot.drivers()));
        tokio::task::yield_now().await;
        assert!(!working.is_finished() && !ballot.is_unattended());
        assert!(matches!(ballot.tally().phase, Phase::Asks));
        assert_eq!(Arc::strong_count(&ballot), 3, "neither copy is ever dropped");
    }

    #[tokio::test]
    async fn a_ballot_that_is_over_has_no_ticket() {
        let members = members_of(Identity::new());
        let ballot = ballot(&members);
        let state = Arc::clone(&ballot.wish.lock.state);
        let ticket = members.take_ticket(&state, 5);
        ballot.tally().take_ticket(ticket, clock::now());
        assert_eq!(members.take_ticket(&state, 5), 6, "another one has 5");
        members.return_ticket(&state, 6);
        ballot.close(End::Left);
        assert!(members.tickets.lock().unwrap().is_empty());
    }
}
