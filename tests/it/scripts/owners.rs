//! Owners that nest, upgrade, wait and are evicted.

use super::{lock, pubsub};
use crate::lua::{ACQUIRE, Ask, EVICT, Got, Lock, ask, writes};
use crate::server::soon;
use futures::StreamExt;

#[tokio::test]
async fn an_owner_may_nest_any_modes_and_leave_in_any_order() {
    let (_server, lock) = lock().await;
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for modes in ["rrr", "rrw", "rwr", "rww", "wrr", "wrw", "wwr", "www"] {
        for order in orders {
            let requests: Vec<_> = modes
                .chars()
                .enumerate()
                .map(|(n, mode)| format!("{mode}1:{n}:me"))
                .collect();
            let mut last = 0;
            for (n, request) in requests.iter().enumerate() {
                // A second one waits from the beginning: reentry passes it.
                if n == 1 {
                    lock.acquire("w2:1").await.ticket();
                }
                let token = lock.acquire(request).await.token();
                let upgrades = n > 0 && writes(request) && requests[..n].iter().all(|r| !writes(r));
                assert!(
                    n == 0 || (token == last) != upgrades && token >= last,
                    "{modes}: {token} after {last}"
                );
                last = token;
            }
            for (left, n) in order.into_iter().enumerate() {
                assert_eq!(lock.state().await.waiting(), ["w2:1"], "{modes} {order:?} {left}");
                assert_eq!(lock.release(&[&requests[n]]).await.1, [2]);
            }
            assert_eq!(lock.state().await.holding(), ["w2:1"]);
            lock.release(&["w2:1"]).await;
        }
    }
}

#[tokio::test]
async fn a_writer_that_leaves_while_its_owner_still_reads_lets_the_readers_at_the_head_in() {
    let (_server, lock) = lock().await;
    let token = lock.acquire("w1:1:me").await.token();
    assert_eq!(lock.acquire("r1:2:me").await.token(), token);
    lock.acquire_all(&["r2:1", "r3:1", "w4:1", "r5:1"]).await;
    lock.release(&["w1:1:me"]).await;
    let state = lock.state().await;
    assert_eq!(state.field("mode"), Some("read"));
    assert_eq!(state.holding(), ["r1:2:me", "r2:1", "r3:1"]);
    assert_eq!(state.number("t:me"), token);
}

#[tokio::test]
async fn the_only_reader_upgrades_in_place_past_those_who_wait_and_gets_a_new_token() {
    let (_server, lock) = lock().await;
    let reading = lock.acquire("r1:1:me").await.token();
    lock.acquire("w2:1").await.ticket();
    let writing = lock.attempt("w1:2:me").await.token();
    assert!(writing > reading);
    lock.release(&["r1:1:me"]).await;
    assert_eq!(lock.state().await.holding(), ["w1:2:me"]);
    lock.release(&["w1:2:me"]).await;
    assert_eq!(lock.state().await.holding(), ["w2:1"]);
}

#[tokio::test]
async fn an_upgrade_waits_at_the_very_front_until_the_other_readers_left() {
    for policy in ["", "w", "r"] {
        let (_server, lock) = lock().await;
        let asks = |request| Ask { policy, ..ask(request) };
        for request in ["r1:1:me", "r2:1", "w3:1", "w1:2:me", "r4:1"] {
            lock.ask(asks(request)).await;
        }
        let state = lock.state().await;
        assert_eq!(state.waiting()[0], "w1:2:me", "{policy:?}");
        assert!(state.waiting().contains(&"r4:1"), "newcomers wait: {policy:?}");
        let now = Ask {
            only_now: true,
            ..asks("r5:1")
        };
        assert_eq!(lock.ask(now).await.0, Got::Busy, "{policy:?}");
        lock.release(&["r2:1"]).await;
        assert_eq!(lock.state().await.holding(), ["r1:1:me", "w1:2:me"], "{policy:?}");
    }
}

#[tokio::test]
async fn of_two_upgraders_the_second_gets_a_conflict_until_the_first_gave_up() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["r1:1:a", "r2:1:b", "w1:2:a"]).await;
    assert_eq!(lock.acquire("w2:2:b").await, Got::Conflict);
    assert_eq!(lock.attempt("w2:2:b").await, Got::Conflict);
    assert_eq!(lock.state().await.waiting(), ["w1:2:a"]);
    lock.release(&["w1:2:a"]).await;
    lock.acquire("w2:3:b").await.ticket();
    assert_eq!(lock.acquire("w1:3:a").await, Got::Conflict);
    lock.die(&["w2:3:b"]).await;
    lock.acquire("w1:4:a").await.ticket();
}

#[tokio::test]
async fn an_owner_that_waits_is_refused_a_second_place_of_either_mode() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "w2:1:me"]).await;
    for request in ["w2:2:me", "r2:3:me", "w9:9:me"] {
        assert_eq!(lock.acquire(request).await, Got::OwnerWaits);
        assert_eq!(lock.attempt(request).await, Got::OwnerWaits);
    }
    lock.release(&["w2:1:me"]).await;
    lock.acquire("r2:4:me").await.ticket();
    lock.release(&["w1:1"]).await;
    assert_eq!(
        lock.acquire("r2:5:me").await.token(),
        lock.state().await.number("t:me"),
        "inside, it reenters"
    );
}

#[tokio::test]
async fn owners_are_evicted_by_their_very_name() {
    let (_server, lock) = lock().await;
    for owner in ["a[b", "a[bc]", "back\\slash", "*", "?", "[^a]"] {
        let request = format!("r1:1:{owner}");
        lock.acquire_all(&["r2:1:ab", "r2:2:b", "r2:3", &request]).await;
        let owner = [owner.to_owned()];
        assert_eq!(lock.call(EVICT, &owner).await.unwrap()[1], 1, "{owner:?}");
        assert_eq!(lock.call(EVICT, &owner).await.unwrap()[1], 0, "{owner:?}");
        assert_eq!(lock.state().await.holding(), ["r2:1:ab", "r2:2:b", "r2:3"]);
    }
}

#[tokio::test]
async fn an_owner_that_waits_is_told_by_which_request_if_it_is_of_the_same_client() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "w2:17:me"]).await;
    for (request, number) in [("r2:18:me", 17), ("r3:1:me", 0), ("w2f:1:me", 0)] {
        let reply = lock.call(ACQUIRE, &Lock::args_of(&ask(request))).await.unwrap();
        assert_eq!(reply[..2], [-2, number], "{request}");
    }
}

#[tokio::test]
async fn an_upgrade_ends_with_the_last_read_hold_of_its_owner_and_is_told_so() {
    for ends in ["released", "expired", "evicted", "both released"] {
        let (server, lock) = lock().await;
        let mut listening = pubsub(&server, "fairlock:c:1").await;
        lock.acquire_all(&["r1:1:a", "r1:2:a", "r2:1", "w1:3:a", "r4:1"]).await;
        lock.release(&["r1:1:a"]).await;
        assert_eq!(lock.state().await.waiting(), ["w1:3:a", "r4:1"], "it reads on");
        match ends {
            "released" => assert_eq!(lock.release(&["r1:2:a"]).await.1, [2]),
            "both released" => assert_eq!(lock.release(&["r1:2:a", "w1:3:a"]).await.1, [2, 0]),
            "evicted" => assert_eq!(lock.call(EVICT, &["a".to_owned()]).await.unwrap()[1], 2),
            _ => {
                lock.die(&["r1:2:a"]).await;
                lock.renew(&[]).await;
            }
        }
        let state = lock.state().await;
        // It holds up nobody, and the next upgrade is not in conflict with it.
        assert_eq!(
            (state.holding(), state.waiting()),
            (vec!["r2:1", "r4:1"], vec![]),
            "{ends}"
        );
        assert_eq!(lock.renew(&["w1:3:a"]).await.1, [-1]);
        lock.acquire("w2:2:2:1").await.ticket();
        let message: String = soon("a message", listening.next())
            .await
            .expect("a message")
            .get_payload()
            .unwrap();
        let told = if ends == "evicted" { "w1:3:a 0" } else { "w1:3:a 1" };
        assert!(message.contains(told), "{ends}: {message}");
    }
}
