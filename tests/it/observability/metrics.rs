//! What a recorder of metrics is told: each test has one of its own, on its thread.

use crate::observe::{LONG, client, ms, until_free};
use crate::proxy::Proxy;
use crate::server::{Server, eventually, soon};
use fairlock::{Client, Error, LostReason, Owner};
use metrics::LocalRecorderGuard;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// All that was recorded. A snapshot takes what is new: the sums are kept here.
pub struct Recorded {
    new: Snapshotter,
    /// By name and values of labels: a counter's or a gauge's value, a histogram's number of entries.
    sums: RefCell<BTreeMap<String, f64>>,
    /// To every metric that was used, its description.
    described: RefCell<BTreeMap<String, Option<String>>>,
    /// The counters and gauges that a client begins with.
    begun: RefCell<BTreeSet<String>>,
    _here: LocalRecorderGuard<'static>,
}

impl Recorded {
    pub fn here() -> Self {
        let recorder: &'static _ = Box::leak(Box::new(DebuggingRecorder::new()));
        Self {
            new: recorder.snapshotter(),
            sums: RefCell::default(),
            described: RefCell::default(),
            begun: RefCell::default(),
            _here: metrics::set_default_local_recorder(recorder),
        }
    }

    fn add_up(&self) {
        let (mut sums, begun) = (self.sums.borrow_mut(), self.begun.borrow());
        for (key, _, description, value) in self.new.snapshot().into_vec() {
            let key = key.key();
            let labels: Vec<_> = key.labels().map(metrics::Label::value).collect();
            let description = description.map(|text| text.to_string());
            self.described.borrow_mut().insert(key.name().to_owned(), description);
            let value = match value {
                DebugValue::Counter(n) => n as f64,
                DebugValue::Gauge(n) => n.into_inner(),
                DebugValue::Histogram(entries) => entries.len() as f64,
            };
            let name = format!("{} {}", key.name(), labels.join(" "));
            assert!(
                begun.is_empty() || key.name().ends_with("_seconds") || begun.contains(&name),
                "{name} does not begin at zero"
            );
            *sums.entry(name).or_default() += value;
        }
    }

    /// All names, labels and descriptions.
    pub fn texts(&self) -> Vec<String> {
        self.add_up();
        let described = self.described.borrow();
        let described = described.iter().map(|text| format!("{text:?}"));
        described.chain(self.sums.borrow().keys().cloned()).collect()
    }

    /// A client has been connected.
    fn begin(&self) {
        self.add_up();
        let sums = self.sums.borrow();
        assert!(sums.len() > 40 && sums.values().all(|sum| *sum == 0.0), "{sums:#?}");
        self.begun.borrow_mut().extend(sums.keys().cloned());
    }

    /// `fairlock_` and the values of the labels are added, as in `held write`.
    fn get(&self, what: &str) -> f64 {
        self.add_up();
        *self.sums.borrow().get(&format!("fairlock_{what}")).unwrap_or(&0.0)
    }

    pub fn is(&self, expected: &[(&str, u32)]) {
        for (what, value) in expected {
            let sum = self.get(what);
            assert_eq!(
                sum,
                f64::from(*value),
                "{what}, of all that was recorded: {:#?}",
                self.sums.borrow()
            );
        }
    }

    pub async fn until(&self, what: &str, value: u32) {
        eventually(&format!("{what} is {value}"), async || {
            self.get(what) == f64::from(value)
        })
        .await;
    }

    /// Nobody holds, nobody waits.
    fn is_at_rest(&self) {
        self.is(&[
            ("waiting read", 0),
            ("waiting write", 0),
            ("held read", 0),
            ("held write", 0),
        ]);
    }
}

async fn setting() -> (Recorded, Server, Client) {
    let recorded = Recorded::here();
    let server = Server::start().await;
    let client = client(server.url(), LONG).await;
    recorded.begin();
    (recorded, server, client)
}

#[tokio::test]
async fn permits_are_a_mode_and_a_full_queue_is_an_outcome_of_their_own() {
    let (recorded, _server, client) = setting().await;
    let semaphore = client.semaphore("a", 4);
    let held = semaphore.permits(3).acquire_fair().await.unwrap();
    recorded.is(&[
        ("held permits", 1),
        ("acquisitions_total permits granted", 1),
        ("held read", 0),
    ]);
    let refused = semaphore.permits(2).max_queue(0).acquire_fair().await;
    assert!(matches!(refused, Err(Error::QueueFull { .. })));
    recorded.is(&[("acquisitions_total permits queue_full", 1), ("waiting permits", 0)]);
    held.release().await.unwrap();
    recorded.is(&[("held permits", 0), ("hold_seconds permits released", 1)]);
}

#[tokio::test]
async fn a_hold_counts_from_its_guard_to_its_release() {
    let (recorded, _server, client) = setting().await;
    let lock = client.rw_lock("a");
    let a = lock.read().acquire_fair().await.unwrap();
    let b = lock.read().acquire_fair().await.unwrap();
    recorded.is(&[
        ("held read", 2),
        ("waiting read", 0),
        ("acquisitions_total read granted", 2),
        ("wait_seconds read granted", 2),
        ("grants_total read reply", 2),
        ("hold_seconds read released", 0),
    ]);
    a.release().await.unwrap();
    recorded.is(&[("held read", 1), ("hold_seconds read released", 1)]);
    drop(b);
    recorded.is(&[("hold_seconds read dropped", 1)]);
    recorded.is_at_rest();
}

#[tokio::test]
async fn busy_timeout_and_cancellation_are_outcomes() {
    let (recorded, server, client) = setting().await;
    let lock = client.rw_lock("a");
    let held = lock.read().acquire_fair().await.unwrap();
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    recorded.is(&[("acquisitions_total write busy", 1), ("wait_seconds write busy", 1)]);
    assert!(lock.write().try_acquire_for(ms(20)).await.unwrap().is_none());
    recorded.is(&[
        ("acquisitions_total write timeout", 1),
        ("wait_seconds write timeout", 1),
    ]);

    let waiter = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 1).await;
    recorded.is(&[("waiting write", 1), ("acquisitions_total write cancelled", 0)]);
    waiter.abort();
    assert!(waiter.await.unwrap_err().is_cancelled());
    recorded.is(&[("acquisitions_total write cancelled", 1), ("held write", 0)]);
    held.release().await.unwrap();
    recorded.is_at_rest();
}

#[tokio::test]
async fn a_future_that_was_never_polled_is_no_acquisition() {
    let (recorded, _server, client) = setting().await;
    drop(client.rw_lock("a").write().acquire_fair());
    recorded.is(&[("acquisitions_total write cancelled", 0)]);
    recorded.is_at_rest();
}

#[tokio::test]
async fn a_hand_over_is_told_by_a_message() {
    let (recorded, server, client) = setting().await;
    let lock = client.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 1).await;
    recorded.is(&[("waiting write", 1), ("held write", 1)]);
    held.release().await.unwrap();
    let next = soon("the hand-over", waiter).await.unwrap().unwrap();
    recorded.is(&[
        ("grants_total write reply", 1),
        ("grants_total write message", 1),
        ("handover_seconds write", 1),
        ("held write", 1),
        ("waiting write", 0),
    ]);
    next.release().await.unwrap();
    recorded.is_at_rest();
}

#[tokio::test]
async fn a_grant_whose_message_is_lost_is_learned_from_a_renewal() {
    let recorded = Recorded::here();
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let lock = client(proxy.url(), Duration::from_secs(3)).await.rw_lock("a");
    let near = client(server.url(), LONG).await.rw_lock("a");
    let held = near.write().acquire_fair().await.unwrap();
    proxy.drop_messages(true);
    let waiter = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 1).await;
    held.release().await.unwrap();
    let next = soon("the hand-over", waiter).await.unwrap().unwrap();
    recorded.is(&[("grants_total write renewal", 1), ("handover_seconds write", 0)]);
    assert!(recorded.get("renewals_total ok") > 0.0);
    next.release().await.unwrap();
    recorded.is_at_rest();
}

#[tokio::test]
async fn an_upgrade_whose_read_hold_the_server_forgot_is_lost_and_not_evicted() {
    let (recorded, server, client) = setting().await;
    let reading = client.rw_lock("a").read().acquire_fair().await.unwrap();
    let forget = redis::cmd("FLUSHALL");
    forget.exec_async(&mut server.redis().await).await.unwrap();
    let upgraded = reading.upgrade().await;
    assert!(matches!(upgraded, Err(Error::Lost { .. })), "{upgraded:?}");
    recorded.is(&[
        ("acquisitions_total write lost", 1),
        ("acquisitions_total write evicted", 0),
    ]);
}

#[tokio::test]
async fn an_eviction_ends_a_hold_while_its_guard_still_exists_and_once() {
    let (recorded, server, client) = setting().await;
    let lock = client.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    let me = Owner::new();
    let waiter = tokio::spawn(lock.with_owner(&me).write().acquire_fair());
    server.until_queued("a", 1).await;
    lock.evict(&me).await.unwrap();
    assert!(matches!(waiter.await.unwrap(), Err(Error::Lost { .. })));
    recorded.is(&[("acquisitions_total write evicted", 1), ("lost_total write evicted", 0)]);

    lock.evict(&held.owner()).await.unwrap();
    // By the message alone: nobody looks at the guard.
    recorded.until("lost_total write evicted", 1).await;
    recorded.is(&[("hold_seconds write lost", 1)]);
    recorded.is_at_rest();
    assert_eq!(held.lost().await, LostReason::Evicted);
    drop(held);
    recorded.is(&[
        ("lost_total write evicted", 1),
        ("hold_seconds write lost", 1),
        ("hold_seconds write dropped", 0),
    ]);
    recorded.is_at_rest();
}

#[tokio::test]
async fn holds_that_end_by_themselves_are_lost_by_their_reason() {
    let (recorded, server, client) = setting().await;
    let (a, b) = (client.rw_lock("a"), client.rw_lock("b"));
    let limited = a.write().max_hold(ms(50)).acquire_fair().await.unwrap();
    // Nobody looks at the guard.
    recorded.until("lost_total write max_hold", 1).await;
    recorded.is_at_rest();

    let forgotten = b.read().lease(ms(600)).acquire_fair().await.unwrap();
    let mut redis = server.redis().await;
    redis::cmd("FLUSHALL").query_async::<()>(&mut redis).await.unwrap();
    recorded.until("lost_total read unknown_to_server", 1).await;
    recorded.is_at_rest();
    drop((limited, forgotten));
    recorded.is(&[("hold_seconds write lost", 1), ("hold_seconds read lost", 1)]);
    recorded.is_at_rest();
}

#[tokio::test]
async fn a_release_that_comes_too_late_is_a_loss() {
    let (recorded, server, client) = setting().await;
    let held = client.rw_lock("a").write().acquire_fair().await.unwrap();
    let mut redis = server.redis().await;
    redis::cmd("FLUSHALL").query_async::<()>(&mut redis).await.unwrap();
    held.release().await.unwrap_err();
    recorded.is(&[
        ("lost_total write unknown_to_server", 1),
        ("hold_seconds write lost", 1),
        ("hold_seconds write released", 0),
    ]);
    recorded.is_at_rest();
}

#[tokio::test]
async fn a_release_that_is_dropped_before_its_answer_is_a_drop() {
    let recorded = Recorded::here();
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let lock = client(proxy.url(), LONG).await.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    proxy.hold_replies(true);
    let release = tokio::time::timeout(ms(20), held.release()).await;
    release.expect_err("no reply comes");
    recorded.is(&[("hold_seconds write dropped", 1), ("hold_seconds write released", 0)]);
    recorded.is_at_rest();
    proxy.hold_replies(false);
    until_free(&server, "a").await;
}

#[tokio::test]
async fn an_upgrade_is_a_hold_of_its_own_and_a_downgrade_ends_one() {
    let (recorded, server, client) = setting().await;
    let lock = client.rw_lock("a");
    let reading = lock.read().acquire_fair().await.unwrap();
    let writing = reading.upgrade().await.unwrap();
    recorded.is(&[
        ("held read", 1),
        ("held write", 1),
        ("acquisitions_total write granted", 1),
    ]);
    let downgraded = writing.downgrade().await.unwrap();
    recorded.is(&[
        ("held read", 2),
        ("held write", 0),
        ("hold_seconds write downgraded", 1),
    ]);
    downgraded.release().await.unwrap();

    let other = lock.read().acquire_fair().await.unwrap();
    let first = tokio::spawn(async move { reading.upgrade().await.map(drop) });
    server.until_queued("a", 1).await;
    other.upgrade().await.unwrap_err();
    recorded.is(&[("acquisitions_total write conflict", 1)]);
    other.release().await.unwrap();
    soon("the first one", first).await.unwrap().unwrap();
    recorded.is_at_rest();
}

#[tokio::test]
async fn a_shutdown_ends_what_is_held_and_what_waits() {
    let (recorded, server, client) = setting().await;
    let lock = client.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(lock.read().acquire_fair());
    server.until_queued("a", 1).await;
    client.shutdown().await;
    assert!(matches!(waiter.await.unwrap(), Err(Error::Shutdown { .. })));
    recorded.is(&[
        ("lost_total write shutdown", 1),
        ("acquisitions_total read shutdown", 1),
        ("lost_total read shutdown", 0),
    ]);
    recorded.is_at_rest();
    drop(held);
    recorded.is_at_rest();
}

#[tokio::test]
async fn both_connections_are_counted_as_lost_and_as_made_again() {
    let (recorded, mut server, client) = setting().await;
    let held = client.rw_lock("a").write().acquire_fair().await.unwrap();
    server.kill();
    // Nobody calls anything: the next renewal is far. A call finds that the command connection is lost.
    let asking = tokio::spawn(client.rw_lock("b").write().acquire_fair());
    recorded.until("disconnected command", 1).await;
    recorded.until("disconnected subscription", 1).await;
    recorded.is(&[("reconnects_total command", 0), ("reconnects_total subscription", 0)]);
    server.start_again().await;
    recorded.until("reconnects_total command", 1).await;
    recorded.until("reconnects_total subscription", 1).await;
    recorded.is(&[("disconnected command", 0), ("disconnected subscription", 0)]);
    let other = soon("an answer", asking).await.unwrap().unwrap();
    drop((held, other));
    recorded.is_at_rest();
}

#[tokio::test]
async fn a_client_that_goes_during_an_outage_leaves_no_connection_behind() {
    let (recorded, mut server, client) = setting().await;
    server.kill();
    recorded.until("disconnected subscription", 1).await;
    drop(client);
    recorded.until("disconnected subscription", 0).await;
    recorded.is(&[("reconnects_total subscription", 0)]);
}

#[tokio::test]
async fn a_server_out_of_reach_is_an_outcome_and_a_failed_renewal() {
    let recorded = Recorded::here();
    let mut server = Server::start().await;
    let lock = client(server.url(), ms(600)).await.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    server.kill();
    let unavailable = soon("an error", lock.read().acquire_fair()).await;
    assert!(matches!(unavailable, Err(Error::Unavailable { .. })));
    recorded.is(&[("acquisitions_total read unavailable", 1)]);
    recorded.until("lost_total write lease_expired", 1).await;
    eventually("a renewal failed", async || recorded.get("renewals_total failed") > 0.0).await;
    drop(held);
    recorded.is_at_rest();
}

#[tokio::test]
async fn all_that_is_recorded_is_described() {
    let (recorded, server, client) = setting().await;
    let lock = client.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 1).await;
    held.release().await.unwrap();
    drop(soon("the hand-over", waiter).await.unwrap().unwrap());
    recorded.add_up();
    let described = recorded.described.borrow();
    let used: Vec<_> = described.keys().map(String::as_str).collect();
    assert_eq!(
        used,
        [
            "fairlock_acquisitions_total",
            "fairlock_disconnected",
            "fairlock_grants_total",
            "fairlock_handover_seconds",
            "fairlock_held",
            "fairlock_hold_seconds",
            "fairlock_lost_total",
            "fairlock_quorum_servers",
            "fairlock_reconnects_total",
            "fairlock_renewals_total",
            "fairlock_requeued_total",
            "fairlock_unreached",
            "fairlock_votes_lost_total",
            "fairlock_wait_seconds",
            "fairlock_waiting",
        ]
    );
    assert!(described.values().all(Option::is_some), "{described:#?}");
}
