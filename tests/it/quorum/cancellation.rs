//! What a dropped future or guard leaves behind: nothing, at any server.

use super::{Fleet, LEASE, PREFIX, connected_to_a_majority, key, write};
use crate::server::{Server, connected, eventually, soon};
use fairlock::{Client, Error};
use fairlock_support::scripts::ACQUIRE;
use futures::future::{FutureExt, join_all};
use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;
use tokio::runtime::Builder;

/// Without a majority a waiter gives its votes back after little more than this. A late reply does not cost it its place.
const SHORT: Duration = Duration::from_secs(5);

/// Polls a request behind one holder until it has taken its ticket and a task goes on for it.
async fn waits_in_a_task<F>(fleet: &Fleet, servers: Range<usize>, request: &mut F)
where
    F: Future<Output: Debug> + Unpin,
{
    tokio::select! {
        ended = &mut *request => panic!("it waits no more: {ended:?}"),
        () = fleet.until(servers, "x", 1, 1) => {}
    }
    for _ in 0..20 {
        if let Some(ended) = (&mut *request).now_or_never() {
            panic!("it waits no more: {ended:?}");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_dropped_request_of_a_quorum_leaves_no_vote_anywhere() {
    let fleet = Fleet::start(3).await;
    let [a, b] = fleet.quorums().await;
    // Dropped after its first poll, after a few more, and when it waits.
    for polls in [1, 2, 3, 5, 8, 20] {
        let mut request = Box::pin(b.rw_lock("x").write().acquire_fair());
        for _ in 0..polls {
            if (&mut request).now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(request);
        fleet.until(fleet.all(), "x", 0, 0).await;
    }
    let holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    let waiter = write(&b.rw_lock("x"));
    fleet.until(fleet.all(), "x", 1, 1).await;
    waiter.abort();
    fleet.until(fleet.all(), "x", 1, 0).await;
    drop(holder);
    fleet.until(fleet.all(), "x", 0, 0).await;
}

/// Requests that are dropped at any moment of a race. A failure names the seed.
#[tokio::test]
async fn requests_dropped_in_a_race_leave_no_vote_anywhere() {
    let fleet = Fleet::start(3).await;
    let quorums: [fairlock::Quorum; 3] = fleet.quorums().await;
    let user = async |at: usize| {
        let lock = quorums[at].rw_lock("x");
        for round in 0..30 {
            let patience = Duration::from_micros(((round * 7 + at * 13) % 40 * 150) as u64);
            let request = lock.write().acquire_fair();
            if let Ok(guard) = tokio::time::timeout(patience, request).await {
                let guard = guard.expect("a grant");
                if round % 2 == 0 {
                    let _ = tokio::time::timeout(patience, guard.release()).await;
                }
            }
        }
    };
    soon("all leave", join_all((0..3).map(user))).await;
    fleet.until(fleet.all(), "x", 0, 0).await;
    let guard = soon("a free lock", quorums[0].rw_lock("x").write().acquire_fair()).await;
    guard.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_shutdown_ends_the_holds_and_waits_of_a_quorum() {
    let fleet = Fleet::start(3).await;
    let [a, b] = fleet.quorums().await;
    let holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    let waiting = b.rw_lock("x").write();
    let waiter = tokio::spawn(waiting.acquire_fair());
    fleet.until(fleet.all(), "x", 1, 1).await;
    b.shutdown().await;
    let waited = soon("the waiter ends", waiter).await.unwrap();
    assert!(matches!(waited, Err(fairlock::Error::Shutdown { .. })), "{waited:?}");
    fleet.until(fleet.all(), "x", 1, 0).await;
    a.shutdown().await;
    assert!(!holder.is_held());
    assert_eq!(soon("it is lost", holder.lost()).await, fairlock::LostReason::Shutdown);
    fleet.until(fleet.all(), "x", 0, 0).await;
    let later = a.rw_lock("x").write().acquire_fair().await;
    assert!(matches!(later, Err(fairlock::Error::Shutdown { .. })), "{later:?}");
}

#[tokio::test]
async fn a_shutdown_ends_a_release_that_reaches_no_majority() {
    let fleet = Fleet::start(3).await;
    let quorum = fleet.quorum().await;
    let guard = quorum.rw_lock("x").write().acquire_fair().await.unwrap();
    fleet.until(fleet.all(), "x", 1, 0).await;
    fleet.0[..2].iter().for_each(Server::freeze);
    let releasing = tokio::spawn(guard.release());
    // There is one thread: it has asked.
    tokio::task::yield_now().await;
    soon("the shutdown", quorum.shutdown()).await;
    let ended = soon("an end of the release", releasing).await.unwrap();
    assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
}

/// It has left its places, so no request of it is at any server.
#[tokio::test]
async fn a_shutdown_ends_a_waiter_that_reaches_no_majority() {
    let mut fleet = Fleet::start(3).await;
    let [a, b] = fleet.quorums().await;
    let _holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    let waiting = b.rw_lock("x").write().lease(Duration::from_secs(1));
    let waiter = tokio::spawn(waiting.acquire_fair());
    fleet.until(fleet.all(), "x", 1, 1).await;
    fleet.0[1].kill();
    fleet.0[2].kill();
    fleet.until([0], "x", 1, 0).await;
    soon("the shutdown", b.shutdown()).await;
    let waited = soon("the waiter ends", waiter).await.unwrap();
    assert!(matches!(waited, Err(Error::Shutdown { .. })), "{waited:?}");
}

/// Its tasks went on for it, and nobody polls it when its quorum ends.
async fn a_shutdown_ends_all_tasks(mut fleet: Fleet, reached: usize) {
    for server in &mut fleet.0[reached..] {
        server.kill();
    }
    let holders = fleet.quorum_by(Fleet::builder()).await;
    let _holder = holders.rw_lock("x").write().acquire_fair().await.unwrap();
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let connecting = runtime.spawn(connected_to_a_majority(Fleet::builder(), fleet.urls()));
    let quorum = soon("a client", connecting).await.unwrap();
    let mut request = Box::pin(quorum.rw_lock("x").write().lease(SHORT).acquire_fair());
    waits_in_a_task(&fleet, 0..reached, &mut request).await;
    for server in &mut fleet.0[1..reached] {
        server.kill();
    }
    fleet.until([0], "x", 1, 0).await;
    soon("the shutdown", quorum.shutdown()).await;
    eventually("its tasks end", async || runtime.metrics().num_alive_tasks() == 0).await;
    drop(request);
    runtime.shutdown_background();
}

#[tokio::test]
async fn a_shutdown_ends_the_tasks_of_a_waiter_that_nobody_polls() {
    a_shutdown_ends_all_tasks(Fleet::start(3).await, 3).await;
}

#[tokio::test]
async fn a_shutdown_ends_the_tasks_of_a_waiter_that_never_reached_a_server() {
    a_shutdown_ends_all_tasks(Fleet::start(3).await, 2).await;
}

/// One server grants, another one is busy, and the third one was never reached.
#[tokio::test]
async fn a_try_ends_while_a_server_was_never_reached() {
    let mut fleet = Fleet::start(3).await;
    fleet.0[2].kill();
    let quorum = fleet.quorum_by(Fleet::builder()).await;
    let other = connected(Client::builder().prefix(PREFIX).lease(LEASE), fleet.0[1].url()).await;
    let held = other.rw_lock("x").write().acquire_fair().await.unwrap();
    let tried = soon("the try", quorum.rw_lock("x").write().try_acquire()).await;
    assert!(tried.unwrap().is_none());
    fleet.until([0], "x", 0, 0).await;
    drop(held);
}

/// The user looked at something else when the lock was granted.
#[tokio::test]
async fn a_bounded_hold_begins_when_its_user_gets_the_guard() {
    let fleet = Fleet::start(3).await;
    let [a, b] = fleet.quorums().await;
    let holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    let bound = Duration::from_secs(3);
    let mut request = Box::pin(b.rw_lock("x").write().max_hold(bound).acquire_fair());
    waits_in_a_task(&fleet, fleet.all(), &mut request).await;
    holder.release().await.unwrap();
    fleet.until(fleet.all(), "x", 1, 0).await;
    tokio::time::sleep(bound + Duration::from_millis(200)).await;
    let guard = soon("the guard", request).await.expect("its time begins now");
    assert!(guard.is_held());
    assert_eq!(soon("its end", guard.lost()).await, fairlock::LostReason::MaxHold);
    drop(guard);
    fleet.until(fleet.all(), "x", 0, 0).await;
}

/// The others need not wait until the user looks at the future that failed.
#[tokio::test]
async fn a_waiter_that_fails_gives_its_votes_back_though_nobody_polls_it() {
    let fleet = Fleet::start(3).await;
    let quorum = fleet.quorum().await;
    let mut holds = Vec::new();
    for at in [1, 2] {
        let other = connected(Client::builder().prefix(PREFIX).lease(LEASE), fleet.0[at].url()).await;
        holds.push(other.rw_lock("x").write().acquire_fair().await.unwrap());
    }
    let mut request = Box::pin(quorum.rw_lock("x").write().acquire_fair());
    // It has the vote of the first server, and waits for the others'. A task goes on then.
    for _ in 0..50 {
        assert!((&mut request).now_or_never().is_none(), "two writers");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    fleet.until([0], "x", 1, 0).await;
    fleet.until([1, 2], "x", 1, 1).await;
    for at in [1, 2] {
        // The lock is lost there, and another request asks first, with a policy that refuses the waiter.
        let [state, queue, leases] = ["", ":q", ":l"].map(|end| format!("{}{end}", key("x")));
        let mut change = redis::pipe();
        change.atomic().cmd("DEL").arg(&state).arg(&queue).arg(&leases);
        change
            .cmd("EVAL")
            .arg(ACQUIRE.text)
            .arg(3)
            .arg(state)
            .arg(queue)
            .arg(leases);
        change.arg("w").arg("w00000000000000aa:1").arg(LEASE.as_millis() as u64);
        let mut redis = fleet.0[at].redis().await;
        change.exec_async(&mut redis).await.unwrap();
        // Its client looks at once then.
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("pubsub");
        kill.exec_async(&mut redis).await.unwrap();
    }
    fleet.until([0], "x", 0, 0).await;
    let failed = soon("the end", request).await;
    assert!(matches!(failed, Err(Error::PolicyMismatch { .. })), "{failed:?}");
}
