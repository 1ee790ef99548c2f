//! What the models share: one client's requests, its threads, and time that passes only on demand.

use super::notify::Notify;
use crate::protocol::key::Lock;
use crate::protocol::name::RequestName;
use crate::protocol::reply::{Answer, Standing};
use crate::state::claim::{Claim, EndedBy, Outcome};
use crate::state::request::{Heard, Request};
use crate::state::shared::{Identity, Shared};
use crate::types::mode::{Admission, Grant};
use ::loom::future::block_on;
use ::loom::thread::{self, JoinHandle};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::iter::once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

pub(super) const LEASE: Duration = Duration::from_secs(9);
pub(super) const QUEUED: Answer = Answer::Queued {
    ticket: 7,
    seq: 10,
    ahead: 0,
};
pub(super) const TOKEN: u64 = 11;
pub(super) const HOLDS: Standing = Standing::Holds {
    token: TOKEN,
    first: TOKEN,
};

/// Runs a model in all interleavings; each returns how it ended. Each of these endings must occur, and no other one,
/// because a model without the race proves nothing.
pub(super) fn explore(expected: &[&str], model: impl Fn(&World) -> String + Send + Sync + 'static) {
    let runs = Arc::new(AtomicUsize::new(0));
    let endings = Arc::new(Mutex::new(BTreeSet::new()));
    let begun = std::time::Instant::now();
    let mut builder = ::loom::model::Builder::new();
    // Each further one multiplies the executions by about seven; two find every mutant tried so far.
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.check({
        let (runs, endings) = (Arc::clone(&runs), Arc::clone(&endings));
        move || {
            runs.fetch_add(1, Ordering::Relaxed);
            let ending = model(&World::new());
            endings.lock().unwrap().insert(ending);
        }
    });
    let runs = runs.load(Ordering::Relaxed);
    println!("{runs} executions, {:?}", begun.elapsed());
    let endings = endings.lock().unwrap();
    let seen: Vec<_> = endings.iter().map(String::as_str).collect();
    assert_eq!(seen, expected);
}

/// One client, as its threads see it.
#[derive(Clone)]
pub(super) struct World {
    pub(super) shared: Arc<Shared>,
    /// When all this happens.
    pub(super) t: Instant,
    /// Keeps the channel open, as a client's handles do.
    _releases: mpsc::UnboundedSender<Arc<Request>>,
    released: Arc<Mutex<mpsc::UnboundedReceiver<Arc<Request>>>>,
}

impl World {
    pub(super) fn new() -> Self {
        let (releases, released) = mpsc::unbounded_channel();
        Self {
            shared: Arc::new(Shared::new(Identity::new(), "p".to_owned(), LEASE, &releases)),
            t: Instant::now(),
            _releases: releases,
            released: Arc::new(Mutex::new(released)),
        }
    }

    pub(super) fn run<T: 'static>(&self, thread: impl FnOnce(Self) -> T + 'static) -> JoinHandle<T> {
        let world = self.clone();
        thread::spawn(move || thread(world))
    }

    /// Not registered yet.
    pub(super) fn request(&self, number: u64, lock: &str, lease: Duration) -> Arc<Request> {
        let lock = Arc::new(Lock::new("p", lock.into()));
        let claim = Claim::new(lease, Duration::MAX, self.t);
        let name = format!("w{:015x}:{number}:owner", 1);
        Arc::new(Request::new(number, name, lock, Admission::FIFO, claim))
    }

    pub(super) fn asked(&self) -> Arc<Request> {
        let request = self.request(1, "a", LEASE);
        self.shared.registry.insert(Arc::clone(&request), self.t);
        request
    }

    pub(super) fn waiting(&self) -> Arc<Request> {
        let request = self.asked();
        request.claim().on_reply(self.t, QUEUED);
        request
    }

    /// Of a server that has answered already: the watchdog has nothing to do for a request without an answer.
    pub(super) fn insert_waiting(&self, number: u64, lock: &str, lease: Duration) {
        let request = self.request(number, lock, lease);
        request.claim().on_reply(self.t, QUEUED);
        self.shared.registry.insert(request, self.t);
    }

    pub(super) fn held(&self) -> Arc<Request> {
        let request = self.asked();
        request.claim().on_reply(self.t, Answer::Granted { token: TOKEN });
        let next = request.claim().poll_outcome(self.t);
        assert!(matches!(next, Some(Outcome::HandOut(Grant { token: TOKEN, .. }))));
        request
    }

    pub(super) fn hear(&self, request: &Request, token: u64) -> bool {
        let heard = Heard {
            at: self.t,
            since: None,
        };
        let name = RequestName::read(&request.name);
        let named = self.shared.registry.named(&request.lock.state, once(name));
        named
            .iter()
            .flatten()
            .for_each(|request| request.on_grant(heard, token));
        named[0].is_some()
    }

    pub(super) fn settle(&self, request: &Request, standing: Standing) {
        request.on_renewal(self.t, self.t, LEASE, standing);
    }

    /// Does what the waiting caller does. `None`: handed out.
    pub(super) fn wait(&self, request: &Request) -> Option<EndedBy> {
        match block_on(request.outcome(|| self.t)) {
            Outcome::HandOut(Grant { token, .. }) => {
                assert_eq!(token, TOKEN);
                None
            }
            Outcome::Ended(end) => Some(end),
            Outcome::Renew => panic!("it was proven at that time"),
        }
    }

    pub(super) fn releases(&self) -> usize {
        let mut released = self.released.lock().unwrap();
        std::iter::from_fn(|| released.try_recv().ok()).count()
    }
}

pub(super) fn ended(request: &Request) -> String {
    show(request.claim().ended())
}

pub(super) fn show(end: Option<impl Debug>) -> String {
    end.map_or("held".to_owned(), |end| format!("{end:?}"))
}

pub(super) fn is_held(request: &Request, now: Instant) -> bool {
    request.claim().held_until(now).is_some()
}

/// Time that passes only on demand.
pub(super) struct Clock {
    now: ::loom::sync::Mutex<Instant>,
    moved: Notify,
}

impl Clock {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            now: ::loom::sync::Mutex::new(now),
            moved: Notify::new(),
        }
    }

    pub(super) fn now(&self) -> Instant {
        *self.now.lock().unwrap()
    }

    pub(super) fn set(&self, now: Instant) {
        *self.now.lock().unwrap() = now;
        self.moved.notify_waiters();
    }

    pub(super) async fn sleep_until(&self, at: Instant) {
        loop {
            let moved = self.moved.notified();
            if self.now() >= at {
                return;
            }
            moved.await;
        }
    }
}
