//! Where the threads of a client meet: its registry, and how they tell each other what changed. No I/O, and time comes
//! in as an argument: loom goes through all interleavings.

use crate::claim::End;
use crate::error::{LostReason, runtime_ended};
use crate::key::Lock;
use crate::registry::{Registry, Request};
use crate::sync::{AtomicBool, Mutex, MutexGuard, Notify};
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use tokio::sync::mpsc::{self, error::SendError};
use tokio::time::Instant;

pub(crate) struct Requests {
    registry: Mutex<Registry>,
    /// The schedule begins earlier than the keeper thinks.
    wake: Notify,
    closed: AtomicBool,
    /// The client's tasks are gone.
    ended: AtomicBool,
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self {
            registry: Mutex::default(),
            wake: Notify::new(),
            closed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        // No code that can panic runs while it is locked.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, request: Arc<Request>, now: Instant) {
        let earlier = self.registry().insert(request, now);
        self.wake_if(earlier);
    }

    /// Looks at a lock then, or earlier.
    pub(crate) fn look_at(&self, lock: &Lock, at: Instant) {
        let earlier = self.registry().look_at(lock, at);
        self.wake_if(earlier);
    }

    /// Somebody's lease ends then: looks whether that lets one of ours in. Only for who waits.
    pub(crate) fn look_again(&self, lock: &Lock, at: Instant) {
        let earlier = self.registry().look_at_if_waiting(lock, at);
        self.wake_if(earlier);
    }

    /// Everything that waits is renewed now: messages may have been missed.
    pub(crate) fn resync(&self, now: Instant) {
        self.registry().resync(now);
        self.wake_if(true);
    }

    /// What these locks' servers granted is renewed now: they may have forgotten it.
    pub(crate) fn recheck(&self, now: Instant, concerns: impl Fn(&str) -> bool) {
        self.registry().recheck(now, concerns);
        self.wake_if(true);
    }

    /// The same as `resync` for some locks.
    #[cfg(feature = "cluster")]
    pub(crate) fn resync_locks<'a>(&self, states: impl IntoIterator<Item = &'a Arc<str>>, now: Instant) {
        let mut registry = self.registry();
        for state in states {
            registry.resync_lock(state, now);
        }
        drop(registry);
        self.wake_if(true);
    }

    fn wake_if(&self, earlier: bool) {
        if earlier {
            self.wake.notify_one();
        }
    }

    /// The keeper's pause: until the schedule says so, or has changed.
    pub(crate) async fn something_due<S: Future<Output = ()>>(&self, sleep_until: impl FnOnce(Instant) -> S) {
        let armed = self.registry().arm();
        let Some(at) = armed else {
            return self.wake.notified().await;
        };
        tokio::select! {
            biased;
            () = self.wake.notified() => {}
            () = sleep_until(at) => {}
        }
    }

    /// A message grants a request, or says with token 0 that it was evicted. Says whether there is such a request.
    pub(crate) fn heard(&self, now: Instant, number: u64, name: &str, token: u64) -> bool {
        let request = self.registry().get(number).cloned();
        let request = request.filter(|request| request.name == name);
        if let Some(request) = &request {
            request.heard(now, token);
        }
        request.is_some()
    }

    /// Waits until a request that was dropped has been released.
    pub(crate) async fn out_of(&self, former: &Request) {
        loop {
            // Made before the look, as in Request::next().
            let released = former.changed.notified();
            let known = self.registry().get(former.number).is_some();
            if !known {
                return;
            }
            released.await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Ends all requests, and says which. One that is registered later finds it closed.
    pub(crate) fn close(&self) -> Vec<Arc<Request>> {
        self.closed.store(true, Ordering::SeqCst);
        let requests: Vec<_> = self.registry().all().cloned().collect();
        for request in &requests {
            request.change(|claim| claim.end(End::Lost(LostReason::Shutdown)));
            request.changed.notify_waiters();
        }
        requests
    }

    /// Whether the client's tasks are gone: nobody renews, releases or hears anything any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// The client's tasks are gone. Ends all waits, and wakes everybody. Holds last as long as they are proven. A request
    /// that is registered later finds the mark with its first call. Says whether there was any request.
    pub(crate) fn end(&self) -> bool {
        self.ended.store(true, Ordering::SeqCst);
        let requests: Vec<_> = self.registry().all().cloned().collect();
        for request in &requests {
            request.change(|claim| claim.fail_unless_held(runtime_ended()));
            request.changed.notify_waiters();
        }
        !requests.is_empty()
    }

    /// Lets go of a request whose user did, in the background. Works outside of a runtime too.
    pub(crate) fn abandon(&self, request: Arc<Request>, releases: &mpsc::UnboundedSender<Arc<Request>>) {
        request.change(|claim| claim.end(End::Released));
        // It fails only after a shutdown, which released everything, and after the end of the client's runtime.
        if let Err(SendError(request)) = releases.send(request) {
            self.registry().remove(&request);
        }
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests {
    use super::*;
    use crate::claim::Claim;
    use crate::rw_lock::Policy;
    use std::time::Duration;

    #[test]
    fn what_is_let_go_of_after_a_shutdown_is_forgotten() {
        let (requests, (releases, released)) = (Requests::new(), mpsc::unbounded_channel());
        drop(released);
        let lock = Arc::new(Lock::new("p", "a".into()));
        let claim = Claim::new(Duration::from_secs(9), Duration::MAX, Instant::now());
        let request = Arc::new(Request::new(1, "wa:1".to_owned(), lock, Policy::Fifo, claim));
        requests.insert(Arc::clone(&request), Instant::now());
        requests.abandon(request, &releases);
        assert!(requests.registry().get(1).is_none());
    }
}
