//! Leases that run out, and a clock that is stepped back.

use super::{lock, names};
use crate::lua::{Ask, Got, LEASE_MS, Lock, PLACE, ask};
use crate::server::eventually;

#[tokio::test]
async fn the_dead_at_the_head_are_skipped_however_many_they_are() {
    for (mode, dead) in [('w', 3), ('w', 199), ('w', 700), ('r', 700), ('r', 2500)] {
        let (_server, lock) = lock().await;
        lock.acquire("w1:1").await;
        let waiters = names(mode, "2", 0..dead);
        lock.fill(&waiters).await;
        lock.acquire("r3:1").await.ticket();
        for some in waiters.chunks(500) {
            lock.die(&some.iter().map(String::as_str).collect::<Vec<_>>()).await;
        }
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
async fn the_hash_outlives_a_counter_that_is_ahead_of_the_clock() {
    let (server, lock) = lock().await;
    // The audit knows leases, and no counter.
    let lock = Lock { audited: false, ..lock };
    let token = lock.acquire("w1:1").await.token();
    // Further than the lease.
    let ahead = token + 2 * LEASE_MS * 1000;
    let args = ["w1:1", &LEASE_MS.to_string(), "", "", &ahead.to_string()].map(str::to_owned);
    lock.call(PLACE, "", &args).await.unwrap();
    lock.release(&["w1:1"]).await;
    let ttl: i64 = redis::cmd("PTTL")
        .arg("fairlock:{a}")
        .query_async(&mut server.redis().await)
        .await
        .unwrap();
    let (s, us): (u64, u64) = redis::cmd("TIME").query_async(&mut server.redis().await).await.unwrap();
    let expires_ms = s * 1000 + us / 1000 + u64::try_from(ttl).unwrap();
    assert!(expires_ms >= ahead / 1000, "{} ms early", ahead / 1000 - expires_ms);
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
    assert_eq!(lock.state().await.packed.cap, LEASE_MS);
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

/// All clients would be told a deadline that was renewed long ago, and would look at that moment.
#[tokio::test]
async fn a_renewal_of_the_nearest_deadline_tells_the_next_one() {
    let (_server, lock) = lock().await;
    for (request, lease_ms) in [("w1:1", 900_000), ("w2:1", 300_000), ("w3:1", 600_000)] {
        lock.ask(Ask {
            lease_ms,
            ..ask(request)
        })
        .await;
    }
    let (next_ms, _) = lock.renew_for(&["w2:1"], 1_200_000).await;
    assert!((300_001..=600_000).contains(&next_ms), "{next_ms}");
    let (next_ms, _) = lock.renew_for(&["w1:1", "w3:1"], 1_500_000).await;
    assert!((900_001..=1_200_000).contains(&next_ms), "{next_ms}");
}
