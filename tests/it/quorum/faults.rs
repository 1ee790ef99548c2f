//! A minority that is killed, stopped, emptied or restarted loses no hold, lets nobody else in, and holds up no waiter.

use super::races::connected;
use super::{Fleet, LEASE, PREFIX, entered, key, lost_because, write};
use crate::proxy::Proxy;
use crate::server::{connected as client_of, eventually, soon};
use fairlock::{Client, Error, LostReason, Policy, Quorum};
use fairlock_support::packed::run_out;
use fairlock_support::scripts::ACQUIRE;
use futures::future::join_all;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The holder keeps the lock, and two waiters enter one after the other.
async fn goes_on(fleet: &Fleet, a: &Quorum, b: &Quorum, c: &Quorum, fail: impl AsyncFnOnce(&Fleet)) {
    let holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    let second = write(&b.rw_lock("x"));
    fleet.until(fleet.all(), "x", 1, 1).await;
    fail(fleet).await;
    let third = write(&c.rw_lock("x"));
    fleet.until([1, 2], "x", 1, 2).await;
    assert!(holder.is_held() && !second.is_finished() && !third.is_finished());
    soon("a release", holder.release()).await.unwrap();
    let second = entered("the second", second).await;
    assert!(second.is_held() && !third.is_finished());
    soon("a release", second.release()).await.unwrap();
    let third = entered("the third", third).await;
    assert!(third.votes() >= 2);
    soon("a release", third.release()).await.unwrap();
}

#[tokio::test]
async fn a_killed_server_costs_no_hold_and_no_place() {
    let mut fleet = Fleet::start(3).await;
    let [a, b, c] = fleet.quorums().await;
    let holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    let second = write(&b.rw_lock("x"));
    fleet.until(fleet.all(), "x", 1, 1).await;
    fleet.0[0].kill();
    let third = write(&c.rw_lock("x"));
    fleet.until([1, 2], "x", 1, 2).await;
    assert!(holder.is_held() && !second.is_finished());
    soon("a release", holder.release()).await.unwrap();
    let second = entered("the second", second).await;
    assert!(!third.is_finished());
    drop(second);
    let third = entered("the third", third).await;
    assert_eq!(third.votes(), 2);
}

/// A hold may have begun with the vote of the server that dies, while another contender has the vote that would make up for it.
#[tokio::test]
async fn a_server_that_is_killed_among_contenders_fails_no_release() {
    let mut fleet = Fleet::start(3).await;
    let quorums: [Quorum; 4] = fleet.quorums().await;
    // As many as there may be, and are.
    let (most, grants) = (Arc::new(AtomicUsize::new(usize::MAX)), Arc::new(AtomicUsize::new(0)));
    let contenders = (0..8).map(|i| {
        let lock = quorums[i % 4].rw_lock("x");
        let (most, grants) = (Arc::clone(&most), Arc::clone(&grants));
        tokio::spawn(async move {
            while grants.load(SeqCst) < most.load(SeqCst) {
                let guard = lock.write().acquire_fair().await.unwrap();
                grants.fetch_add(1, SeqCst);
                guard.release().await.unwrap();
            }
        })
    });
    let contenders: Vec<_> = contenders.collect();
    eventually("contention", async || grants.load(SeqCst) >= 40).await;
    fleet.0[0].kill();
    most.store(grants.load(SeqCst) + 100, SeqCst);
    for contender in contenders {
        soon("the end of a contender", contender).await.unwrap();
    }
}

/// The hold begins before the third server has answered. Then one of the two that granted it dies.
#[tokio::test]
async fn a_release_before_the_last_answer_survives_the_loss_of_a_vote() {
    let mut fleet = Fleet::start(3).await;
    let ways = join_all(fleet.0.iter().map(|server| Proxy::to(server.port()))).await;
    let urls: Vec<_> = ways.iter().map(Proxy::url).collect();
    let a = soon("a client", connected(&urls)).await;
    eventually("all servers", async || a.reached() == 3).await;
    ways[2].stall(true);
    let guard = a.rw_lock("x").write().acquire_fair().await.unwrap();
    fleet.0[0].kill();
    // The release has begun when the third server is asked.
    let both = async { tokio::join!(guard.release(), async { ways[2].stall(false) }) };
    let (released, ()) = soon("the release", both).await;
    released.unwrap();
    fleet.until([1, 2], "x", 0, 0).await;
}

#[tokio::test]
async fn a_stopped_server_costs_no_hold_and_no_place() {
    let fleet = Fleet::start(3).await;
    let [a, b, c] = fleet.quorums().await;
    goes_on(&fleet, &a, &b, &c, async |fleet| fleet.0[0].freeze()).await;
    fleet.0[0].thaw();
}

#[tokio::test]
async fn a_server_that_is_emptied_costs_no_hold_and_no_place() {
    let fleet = Fleet::start(3).await;
    let [a, b, c] = fleet.quorums().await;
    goes_on(&fleet, &a, &b, &c, async |fleet| {
        let mut redis = fleet.0[0].redis().await;
        redis::cmd("FLUSHALL").exec_async(&mut redis).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_holder_regains_a_vote_that_its_server_forgot_and_survives_the_loss_of_another() {
    let mut fleet = Fleet::start(3).await;
    let [a, b] = fleet.quorums().await;
    let holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    fleet.until(fleet.all(), "x", 1, 0).await;
    let waiter = write(&b.rw_lock("x"));
    fleet.until(fleet.all(), "x", 1, 1).await;
    // Restarted without its data, and for longer than the longest lease.
    fleet.0[0].kill();
    fleet.0[0].start_again().await;
    fleet.let_vote_again(0, "x").await;
    // The third server knows the client of the holder.
    let client = fleet
        .state(2, "x")
        .await
        .holder
        .split(':')
        .next()
        .unwrap_or_default()
        .to_owned();
    eventually("it votes again", async || {
        fleet.state(0, "x").await.holder.starts_with(&client)
    })
    .await;
    eventually("the holder knows", async || holder.votes() == 3).await;
    fleet.0[1].kill();
    eventually("the loss is seen", async || {
        holder.is_held() && fleet.state(0, "x").await.holds() == 1
    })
    .await;
    assert!(!waiter.is_finished());
    soon("a release", holder.release()).await.unwrap();
    let _ = entered("the waiter", waiter).await;
}

/// A hold that began with two votes of three would not survive the loss of one of them.
#[tokio::test]
async fn a_waiter_gives_the_vote_that_a_holder_lacks_to_the_holder() {
    let mut fleet = Fleet::start(3).await;
    let ways = join_all(fleet.0.iter().map(|server| Proxy::to(server.port()))).await;
    let urls: Vec<_> = ways.iter().map(Proxy::url).collect();
    let (a, b) = (soon("a client", connected(&urls)).await, fleet.quorum().await);
    ways[2].stall(true);
    let holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    let waiter = write(&b.rw_lock("x"));
    fleet.until([2], "x", 1, 0).await;
    fleet.until([0, 1], "x", 1, 1).await;
    ways[2].stall(false);
    eventually("the vote of the third server", async || holder.votes() == 3).await;
    // Without its data.
    fleet.0[0].kill();
    fleet.0[0].start_again().await;
    eventually("the loss is seen", async || holder.votes() == 2).await;
    assert!(holder.is_held());
    assert!(!waiter.is_finished());
    soon("a release", holder.release()).await.unwrap();
    assert!(entered("the waiter", waiter).await.is_held());
}

/// The server says "busy" in its quarantine, and that must not end the hold's interest in it.
#[tokio::test]
async fn a_hold_of_a_try_regains_a_vote_too() {
    let mut fleet = Fleet::start(3).await;
    let quorum = fleet.quorum().await;
    let tried = quorum.rw_lock("x").write().try_acquire().await.unwrap();
    let holder = tried.expect("a free lock");
    fleet.until(fleet.all(), "x", 1, 0).await;
    fleet.0[0].kill();
    fleet.0[0].start_again().await;
    eventually("it is asked again", async || {
        fleet.state(0, "x").await.holder.starts_with("w0:0:")
    })
    .await;
    fleet.let_vote_again(0, "x").await;
    let kept = fleet.state(2, "x").await.holder;
    let client = kept.split(':').next().unwrap_or_default();
    eventually("it votes again", async || {
        fleet.state(0, "x").await.holder.starts_with(client)
    })
    .await;
    eventually("the holder knows", async || holder.votes() == 3).await;
    fleet.0[1].kill();
    soon("a release", holder.release()).await.unwrap();
}

/// A hold with a vote to spare outlives the loss of a server.
#[tokio::test]
async fn a_try_that_one_server_refuses_gets_that_vote_later() {
    let fleet = Fleet::start(3).await;
    let quorum = fleet.quorum().await;
    let other = client_of(Client::builder().prefix(PREFIX).lease(LEASE), fleet.0[2].url()).await;
    let held = other.rw_lock("x").write().acquire_fair().await.unwrap();
    let tried = quorum.rw_lock("x").write().try_acquire().await.unwrap();
    let holder = tried.expect("two of three");
    held.release().await.unwrap();
    eventually("all votes", async || holder.votes() == 3).await;
    drop(holder);
    fleet.until(fleet.all(), "x", 0, 0).await;
}

/// While the process of A sleeps, one of its two votes expires, B enters and leaves, and the third server hands over to A. That
/// message is the first thing that A reads when it wakes. By this policy B, which writes, keeps the vote of the third server from
/// A, which reads.
#[tokio::test]
async fn a_hold_that_another_one_interrupted_while_its_process_slept_is_lost() {
    const SECOND: Duration = Duration::from_secs(1);
    let fleet = Fleet::start(3).await;
    let ways = join_all(fleet.0.iter().map(|server| Proxy::to(server.port()))).await;
    let urls: Vec<_> = ways.iter().map(Proxy::url).collect();
    let (is_there, there) = tokio::sync::oneshot::channel();
    let (go, gone) = tokio::sync::oneshot::channel();
    let (has_it, entered_at) = tokio::sync::oneshot::channel();
    let (wake, sleeps) = std::sync::mpsc::channel();
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async move {
            let a = connected(&urls).await;
            is_there.send(()).unwrap();
            gone.await.unwrap();
            let lock = a.rw_lock("x").policy(Policy::WriterFirst);
            let request = lock.read().lease(6 * SECOND);
            let guard = request.acquire_fair().await.unwrap();
            has_it.send(Instant::now()).unwrap();
            // It has renewed three times, of which the second server got one.
            tokio::time::sleep(7 * SECOND).await;
            let before = guard.is_held();
            sleeps.recv().unwrap();
            tokio::time::sleep(SECOND / 10).await;
            tell.send((before, guard.is_held())).unwrap();
        });
    });
    there.await.unwrap();
    let b = fleet.quorum().await;
    ways[2].stall(true);
    go.send(()).unwrap();
    let entered_at = entered_at.await.unwrap();
    let waiter = write(&b.rw_lock("x").policy(Policy::WriterFirst));
    fleet.until([2], "x", 1, 0).await;
    fleet.until([0, 1], "x", 1, 1).await;
    ways[2].stall(false);
    fleet.until([2], "x", 1, 1).await;
    tokio::time::sleep_until((entered_at + SECOND * 5 / 2).into()).await;
    ways[1].stall(true);
    soon("a release", entered("B", waiter).await.release()).await.unwrap();
    wake.send(()).unwrap();
    let (before, after) = soon("A wakes", told).await.unwrap();
    assert!(
        !after,
        "B was inside, and A believes that it held all the time; before: {before}"
    );
}

/// A late copy of the acquire of a request for "x".
async fn enters_late(fleet: &Fleet, at: usize, request: &str) {
    let mut copy = redis::cmd("EVAL");
    copy.arg(ACQUIRE.text)
        .arg(3)
        .arg(key("x"))
        .arg(format!("{}:q", key("x")));
    copy.arg(format!("{}:l", key("x")))
        .arg("")
        .arg(request)
        .arg(LEASE.as_millis() as u64);
    copy.exec_async(&mut fleet.0[at].redis().await).await.unwrap();
    assert_eq!(fleet.state(at, "x").await.holder, request);
}

/// What the servers release then is no hold that this client was told of.
#[tokio::test]
async fn a_release_finds_out_that_a_majority_lost_the_hold_and_executed_late_copies_of_its_acquire() {
    let fleet = Fleet::start(3).await;
    let holder = fleet.quorum().await.rw_lock("x").write().acquire_fair().await.unwrap();
    fleet.until(fleet.all(), "x", 1, 0).await;
    for at in [0, 1] {
        let request = fleet.state(at, "x").await.holder;
        let mut lose = redis::cmd("DEL");
        lose.arg(key("x"));
        lose.exec_async(&mut fleet.0[at].redis().await).await.unwrap();
        enters_late(&fleet, at, &request).await;
    }
    let released = soon("the release", holder.release()).await;
    assert_eq!(lost_because(&released), Some(LostReason::UnknownToServer));
}

/// The reply to the first release is lost. Before the second one comes, a late copy of the acquire enters again.
#[tokio::test]
async fn a_release_between_two_copies_of_the_acquire_is_told_as_a_release() {
    let fleet = Fleet::start(3).await;
    let ways = join_all(fleet.0.iter().map(|server| Proxy::to(server.port()))).await;
    let urls: Vec<_> = ways.iter().map(Proxy::url).collect();
    let a = soon("a client", connected(&urls)).await;
    ways[2].stall(true);
    let holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    assert_eq!(holder.votes(), 2);
    let request = fleet.state(0, "x").await.holder;
    ways[0].refuse(true);
    ways[0].lose_replies(1);
    let release = tokio::spawn(holder.release());
    eventually("the server has executed it", async || {
        ways[0].replies_to_lose() == 0 && fleet.state(0, "x").await.holds() == 0
    })
    .await;
    enters_late(&fleet, 0, &request).await;
    ways[0].refuse(false);
    soon("the release", release).await.unwrap().unwrap();
    assert_eq!(fleet.state(0, "x").await.holds(), 0);
}

/// The server lost the holder, so it must not let another one in while the holder may still believe.
#[tokio::test]
async fn a_server_that_restarts_empty_votes_only_after_the_longest_lease() {
    let mut fleet = Fleet::start(3).await;
    let ways = join_all(fleet.0.iter().map(|server| Proxy::to(server.port()))).await;
    let urls: Vec<_> = ways.iter().map(Proxy::url).collect();
    let a = soon("a client", connected(&urls)).await;
    // The holder has two votes, and does not hear that one of the two servers has restarted.
    ways[2].stall(true);
    let holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    assert_eq!(holder.votes(), 2);
    ways[1].stall(true);
    fleet.0[1].kill();
    fleet.0[1].start_again().await;
    let b = fleet.quorum_by(Fleet::builder()).await;
    let waiter = write(&b.rw_lock("x"));
    fleet.until([1], "x", 1, 1).await;
    fleet.until([2], "x", 1, 0).await;
    assert_eq!(
        fleet.state(1, "x").await.holder,
        "w0:0:00000000000000000000000000000000"
    );
    assert!(holder.is_held() && !waiter.is_finished());
}

#[tokio::test]
async fn a_hold_without_a_majority_is_lost_within_its_lease() {
    let mut fleet = Fleet::start(3).await;
    let a = fleet.quorum().await;
    let lease = Duration::from_millis(500);
    let holder = a.rw_lock("x").write().lease(lease).acquire_fair().await.unwrap();
    fleet.0[0].kill();
    fleet.0[1].kill();
    let lost = holder.while_held(std::future::pending::<()>());
    let lost = soon("it is lost", lost).await;
    assert_eq!(lost_because(&lost), Some(LostReason::LeaseExpired));
    assert!(!holder.is_held());
    assert!(matches!(holder.release().await, Err(fairlock::Error::Lost { .. })));
}

#[tokio::test]
async fn a_bounded_hold_ends_at_all_servers() {
    let fleet = Fleet::start(3).await;
    let [a, b] = fleet.quorums().await;
    let bounded = a.rw_lock("x").write().max_hold(Duration::from_millis(50));
    let holder = bounded.acquire_fair().await.unwrap();
    let next = soon("the next one", b.rw_lock("x").write().acquire_fair())
        .await
        .unwrap();
    assert!(!holder.is_held() && next.is_held());
    assert_eq!(holder.lost().await, LostReason::MaxHold);
}

#[tokio::test]
async fn a_dead_holder_costs_the_others_its_lease() {
    let fleet = Fleet::start(3).await;
    let [a, b] = fleet.quorums().await;
    let holder = a.rw_lock("x").write().lease(LEASE / 2).acquire_fair().await.unwrap();
    let waiter = write(&b.rw_lock("x"));
    fleet.until(fleet.all(), "x", 1, 1).await;
    for at in fleet.all() {
        let state = fleet.state(at, "x").await;
        run_out(&mut fleet.0[at].redis().await, &key("x"), &[state.holder.as_str()]).await;
    }
    // Any call at the servers sees that.
    assert!(b.rw_lock("x").read().try_acquire().await.unwrap().is_none());
    let entered = entered("the waiter", waiter).await;
    assert!(entered.is_held());
    drop(holder);
}

/// A waiter that reaches only a minority must not keep a vote from others for ever.
#[tokio::test]
async fn a_waiter_without_a_majority_holds_nobody_up() {
    let fleet = Fleet::start(3).await;
    let [a, b] = fleet.quorums().await;
    let holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    let request = b.rw_lock("x").write().lease(Duration::from_secs(1));
    let waiter = tokio::spawn(async move { request.acquire_fair().await.expect("a grant") });
    fleet.until(fleet.all(), "x", 1, 1).await;
    fleet.0[1].freeze();
    fleet.0[2].freeze();
    fleet.until([0], "x", 1, 0).await;
    assert!(!waiter.is_finished());
    fleet.0[1].thaw();
    fleet.0[2].thaw();
    // It comes back by itself.
    fleet.until(fleet.all(), "x", 1, 1).await;
    soon("a release", holder.release()).await.unwrap();
    let _ = entered("the waiter", waiter).await;
}

/// One server refuses while two are away, and two refuse while one is away.
#[tokio::test]
async fn a_status_tells_why_a_majority_is_missing() {
    for refusing in [vec![0], vec![1, 2]] {
        let mut fleet = Fleet::start(3).await;
        let lock = fleet.quorum().await.rw_lock("x");
        for at in fleet.all() {
            if !refusing.contains(&at) {
                fleet.0[at].kill();
                continue;
            }
            let mut set = redis::cmd("SET");
            set.arg(key("x")).arg("no hash");
            set.exec_async(&mut fleet.0[at].redis().await).await.unwrap();
        }
        // A refusal that comes late counts as silence.
        eventually("the reason", async || {
            let error = soon("the status", lock.status()).await.expect_err("no majority");
            println!("{refusing:?} refuse: {error}");
            matches!(error, Error::Unavailable { .. }) == (refusing.len() < 2)
        })
        .await;
    }
}
