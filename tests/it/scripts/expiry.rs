//! Leases that run out, and a clock that is stepped back.

use super::{downgraded, lock, names};
use crate::lua::{Ask, Got, LEASE_MS, PAST, ask};
use crate::server::eventually;

#[tokio::test]
async fn a_dead_holder_makes_way_for_a_newcomer() {
    let (_server, lock) = lock().await;
    for (dead, next) in [("w1:1", "w2:1"), ("r1:2", "w2:2"), ("w1:3:me", "r2:3")] {
        let token = lock.acquire(dead).await.token();
        lock.die(&[dead]).await;
        assert!(lock.attempt(next).await.token() > token);
        assert_eq!(lock.renew(&[dead]).await.1, [-1]);
        assert_eq!(lock.release(&[dead]).await.1, [0]);
        assert_eq!(lock.state().await.holding(), [next]);
        lock.release(&[next]).await;
    }
}

#[tokio::test]
async fn a_dead_holder_makes_way_for_who_waits_when_anybody_renews() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "r2:1", "w3:1"]).await;
    lock.die(&["w1:1"]).await;
    let (_, standings) = lock.renew(&["w3:1", "r2:1"]).await;
    assert_eq!(standings[0], 0);
    assert_eq!(standings[1], lock.state().await.number("t:2:1") as i64);
}

#[tokio::test]
async fn the_dead_at_the_head_are_skipped_however_many_they_are() {
    for (mode, dead) in [('w', 3), ('w', 199), ('w', 700), ('r', 700), ('r', 2500)] {
        let (_server, lock) = lock().await;
        lock.acquire("w1:1").await;
        let waiters = names(mode, "2", 0..dead);
        lock.fill(&waiters).await;
        lock.acquire("r3:1").await.ticket();
        let (leases, mut die) = (lock.keys[2].clone(), redis::pipe());
        for request in &waiters {
            die.cmd("ZADD").arg(&leases).arg("XX").arg(PAST).arg(request).ignore();
        }
        die.exec_async(&mut lock.redis.clone()).await.unwrap();
        let (mut next_ms, _) = lock.release(&["w1:1"]).await;
        let mut calls = 1;
        while next_ms == 0 {
            let holding = lock.state().await.holding().join(" ");
            assert!(["", "r3:1"].contains(&holding.as_str()), "the dead got in: {holding}");
            next_ms = lock.renew(&[]).await.0;
            calls += 1;
        }
        assert!(calls <= 2 + dead / 200, "{calls} calls for {dead}");
        assert_eq!(calls > 1, dead > 200, "at most 200 expire in one call");
        let state = lock.state().await;
        assert_eq!((state.holding(), state.waiting().len()), (vec!["r3:1"], 0));
    }
}

#[tokio::test]
async fn a_newcomer_does_not_pass_who_waits_behind_more_dead_than_one_call_can_skip() {
    let (_server, lock) = lock().await;
    lock.acquire("w1:1").await;
    let dead = names('w', "2", 0..2500);
    lock.fill(&dead).await;
    lock.acquire("w3:1").await.ticket();
    let (leases, mut die) = (lock.keys[2].clone(), redis::pipe());
    for request in &dead {
        die.cmd("ZADD").arg(&leases).arg("XX").arg(PAST).arg(request).ignore();
    }
    die.exec_async(&mut lock.redis.clone()).await.unwrap();
    let (mut next_ms, _) = lock.release(&["w1:1"]).await;
    assert_eq!(
        (next_ms, lock.state().await.holding().len()),
        (0, 0),
        "nobody is in, and somebody waits"
    );
    lock.acquire("w4:1").await.ticket();
    while next_ms == 0 {
        next_ms = lock.renew(&[]).await.0;
    }
    let state = lock.state().await;
    assert_eq!((state.holding(), state.waiting()), (vec!["w3:1"], vec!["w4:1"]));
}

#[tokio::test]
async fn a_release_grants_to_nobody_who_is_dead_and_leaves_no_trace_of_him() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "w2:1:x", "r3:1", "r4:1", "w5:1"]).await;
    lock.die(&["w2:1:x", "r4:1"]).await;
    lock.release(&["w1:1"]).await;
    let state = lock.state().await;
    assert_eq!((state.holding(), state.waiting()), (vec!["r3:1"], vec!["w5:1"]));
    assert_eq!(state.leases.len(), 2);
}

#[tokio::test]
async fn the_last_one_to_leave_does_not_wait_for_the_dead_behind_it() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "r2:1", "w3:1:x"]).await;
    lock.die(&["r2:1", "w3:1:x"]).await;
    lock.release(&["w1:1"]).await;
    let state = lock.state().await;
    assert!(
        state.holding().is_empty() && state.leases.is_empty() && state.queue.is_empty(),
        "{state:?}"
    );
}

#[tokio::test]
async fn what_comes_late_still_counts_if_nobody_took_over() {
    let (_server, lock) = lock().await;
    let token = lock.acquire("w1:1").await.token() as i64;
    lock.die(&["w1:1"]).await;
    assert_eq!(lock.renew(&["w1:1"]).await.1, [token], "a sole holder");
    lock.acquire("w2:1").await;
    lock.die(&["w1:1"]).await;
    assert_eq!(lock.renew(&["w1:1"]).await.1, [token], "before one that waits");
    lock.die(&["w1:1"]).await;
    assert_eq!(lock.acquire("w1:1").await, Got::Granted(token as u64), "asking again");
    lock.die(&["w2:1"]).await;
    assert_eq!(lock.renew(&["w2:1"]).await.1, [0], "a waiter");
    lock.die(&["w1:1"]).await;
    assert_eq!(lock.release(&["w1:1"]).await.1, [2], "a release");
    assert_eq!(lock.state().await.holding(), ["w2:1"]);
}

#[tokio::test]
async fn a_dead_reader_goes_within_its_own_lease_though_another_renews() {
    let (_server, lock) = lock().await;
    lock.ask(Ask {
        lease_ms: 300,
        ..ask("r1:1")
    })
    .await;
    lock.acquire_all(&["r2:1", "w3:1"]).await;
    eventually("the dead reader gone", async || {
        lock.renew(&["r2:1", "w3:1"]).await;
        lock.state().await.holding() == ["r2:1"]
    })
    .await;
    lock.release(&["r2:1"]).await;
    assert_eq!(lock.state().await.holding(), ["w3:1"]);
}

#[tokio::test]
async fn a_short_lease_never_shortens_a_long_one() {
    let (_server, lock) = lock().await;
    lock.ask(Ask {
        lease_ms: LEASE_MS,
        ..ask("r1:1")
    })
    .await;
    let (got, next_ms, _) = lock
        .ask(Ask {
            lease_ms: 200,
            ..ask("w2:1")
        })
        .await;
    got.ticket();
    assert!(next_ms <= 200, "{next_ms}");
    eventually("the short one gone", async || {
        let (next_ms, _) = lock.renew(&[]).await;
        lock.state().await.waiting().is_empty() && next_ms > 1000
    })
    .await;
    assert_eq!(lock.state().await.holding(), ["r1:1"]);
    assert_eq!(
        lock.ask(Ask {
            lease_ms: 200,
            only_now: true,
            ..ask("w2:2")
        })
        .await
        .0,
        Got::Busy
    );
    assert_eq!(lock.state().await.number("cap"), LEASE_MS);
}

#[tokio::test]
async fn the_keys_outlive_a_lease_that_came_after_shorter_ones() {
    let (_server, lock) = lock().await;
    lock.ask(Ask {
        lease_ms: 200,
        ..ask("r1:1")
    })
    .await;
    lock.ask(Ask {
        lease_ms: 200,
        ..ask("w2:1")
    })
    .await;
    lock.renew_for(&["w2:1"], 300_000).await;
    let ttl = lock.state().await.ttl;
    assert!(ttl.iter().all(|ttl| *ttl > 300_000), "{ttl:?}");
}

#[tokio::test]
async fn a_pulled_back_clock_leaves_no_deadline_farther_than_the_longest_lease() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "w2:1", "w3:1"]).await;
    let hours_ahead = lock.state().await.now_ms + 7_200_000;
    lock.set_deadline("w1:1", hours_ahead).await;
    lock.set_deadline("w2:1", hours_ahead).await;
    let (next_ms, _) = lock.renew_for(&["w3:1"], LEASE_MS).await;
    assert!(next_ms <= LEASE_MS as i64);
    let state = lock.state().await;
    for request in ["w1:1", "w2:1", "w3:1"] {
        assert!(
            state.deadline(request) <= Some(state.now_ms + LEASE_MS),
            "{request}: {state:?}"
        );
    }
}

#[tokio::test]
async fn a_pulled_back_clock_keeps_no_crowd_alive_for_longer_than_a_lease() {
    let (_server, lock) = lock().await;
    let dead: Vec<_> = (1..450).map(|n| format!("w1:{n}")).collect();
    lock.fill(&dead).await;
    lock.acquire("w2:1").await.ticket();
    let hours_ahead = lock.state().await.now_ms + 7_200_000;
    for request in &dead {
        lock.set_deadline(request, hours_ahead).await;
    }
    let (mut next_ms, _) = lock.renew(&["w2:1"]).await;
    let mut calls = 1;
    while next_ms == 0 {
        (next_ms, _) = lock.renew(&[]).await;
        calls += 1;
    }
    assert_eq!(calls, 3, "200 a call, and it says when there is more");
    let state = lock.state().await;
    let last = dead.iter().filter_map(|request| state.deadline(request)).max();
    assert!(last <= Some(state.now_ms + LEASE_MS), "{last:?}");
}

#[tokio::test]
async fn a_pulled_back_clock_is_noticed_too_when_the_dead_holder_was_alone() {
    let (_server, lock) = lock().await;
    lock.acquire("w1:1").await;
    let hours_ahead = lock.state().await.now_ms + 7_200_000;
    lock.set_deadline("w1:1", hours_ahead).await;
    lock.acquire("w2:1").await.ticket();
    lock.renew(&["w2:1"]).await;
    assert!(lock.state().await.deadline("w1:1") < Some(hours_ahead - 3_600_000));
}

#[tokio::test]
async fn a_downgrade_of_the_only_request_left_leaves_leases_that_expire() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "r2:1"]).await;
    lock.release(&["r2:1"]).await;
    downgraded(&lock, "w1:1", "r1:2:1:1").await;
    let ttl = lock.state().await.ttl;
    assert!(ttl[2] > 0, "{ttl:?}");
}

#[tokio::test]
async fn a_newcomer_behind_nobody_but_the_dead_leaves_leases_that_expire() {
    let (_server, lock) = lock().await;
    lock.acquire("w1:1").await;
    // One call expires 200, and then drops the rest from the head.
    let dead = names('w', "2", 0..250);
    lock.fill(&dead).await;
    let mut die = redis::pipe();
    for request in dead.iter().map(String::as_str).chain(["w1:1"]) {
        die.cmd("ZADD")
            .arg(&lock.keys[2])
            .arg("XX")
            .arg(PAST)
            .arg(request)
            .ignore();
    }
    die.exec_async(&mut lock.redis.clone()).await.unwrap();
    lock.attempt("w3:1").await.token();
    let ttl = lock.state().await.ttl;
    assert!(ttl[2] > 0, "{ttl:?}");
}
