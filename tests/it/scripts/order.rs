//! Who enters when, under each policy.

use super::lock;
use crate::lua::{Ask, Got, ask, owner_of, writes};

#[tokio::test]
async fn readers_and_writers_enter_in_the_order_in_which_they_asked() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w0:1", "r1:1", "r2:1", "w3:1", "w4:1", "r5:1"])
        .await;
    let turns: [(&[&str], &[&str]); 5] = [
        (&["w0:1"], &["r1:1", "r2:1"]),
        (&["r2:1"], &["r1:1"]),
        (&["r1:1"], &["w3:1"]),
        (&["w3:1"], &["w4:1"]),
        (&["w4:1"], &["r5:1"]),
    ];
    let mut last = 0;
    for (leaving, inside) in turns {
        lock.release(leaving).await;
        let state = lock.state().await;
        assert_eq!(state.holding(), inside);
        if inside.len() == 2 || writes(inside[0]) {
            for request in inside {
                let token = state.number(&format!("t:{}", owner_of(request)));
                assert!(token > last, "{request}: {token} after {last}");
                last = token;
            }
        }
    }
}

#[tokio::test]
async fn a_reader_never_passes_a_waiting_writer() {
    let (_server, lock) = lock().await;
    lock.acquire("r1:1").await;
    lock.acquire("w2:1").await.ticket();
    lock.acquire("r3:1").await.ticket();
    assert_eq!(lock.attempt("r4:1").await, Got::Busy);
}

#[tokio::test]
async fn a_try_that_is_refused_leaves_nothing_behind() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["r1:1", "w2:1"]).await;
    let before = lock.dump().await;
    for request in ["r3:1", "w3:2", "r3:3:x", "w3:4:x"] {
        assert_eq!(lock.attempt(request).await, Got::Busy);
        assert!(lock.renew_for(&[], 0).await.1.is_empty());
    }
    assert_eq!(lock.dump().await, before);
}

#[tokio::test]
async fn readers_behind_a_writer_that_cancels_enter_at_once() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["r1:1", "w2:1", "r3:1", "r4:1", "w5:1", "r6:1"])
        .await;
    assert_eq!(lock.release(&["w2:1"]).await.1, [1]);
    assert_eq!(lock.state().await.holding(), ["r1:1", "r3:1", "r4:1"]);
    lock.release(&["w5:1"]).await;
    assert_eq!(lock.state().await.holding(), ["r1:1", "r3:1", "r4:1", "r6:1"]);
}

async fn order_under(policy: &str) -> Vec<String> {
    let (_server, lock) = lock().await;
    for request in ["w0:1", "r1:1", "w2:1", "r3:1", "w4:1", "r5:1"] {
        lock.ask(Ask { policy, ..ask(request) }).await;
    }
    lock.state().await.queue
}

#[tokio::test]
async fn a_policy_puts_one_mode_first_and_keeps_the_order_within_each() {
    assert_eq!(order_under("").await, ["r1:1", "w2:1", "r3:1", "w4:1", "r5:1"]);
    assert_eq!(order_under("w").await, ["w2:1", "w4:1", "r1:1", "r3:1", "r5:1"]);
    assert_eq!(order_under("r").await, ["r1:1", "r3:1", "r5:1", "w2:1", "w4:1"]);
}

#[tokio::test]
async fn under_reader_first_a_reader_passes_a_waiting_writer_but_not_a_writer_inside() {
    let (_server, lock) = lock().await;
    let asks = |request| Ask {
        policy: "r",
        ..ask(request)
    };
    lock.ask(asks("r1:1")).await;
    lock.ask(asks("w2:1")).await.0.ticket();
    lock.ask(asks("r3:1")).await.0.token();
    lock.release(&["r1:1", "r3:1"]).await;
    assert_eq!(lock.state().await.holding(), ["w2:1"]);
    lock.ask(asks("r4:1")).await.0.ticket();
}

#[tokio::test]
async fn another_policy_than_the_stored_one_is_refused_and_named() {
    for (stored, other, code) in [("", "w", 0), ("w", "", b'w'), ("r", "w", b'r')] {
        let (_server, lock) = lock().await;
        lock.ask(Ask {
            policy: stored,
            ..ask("w1:1")
        })
        .await;
        for held in [true, false] {
            let (got, ..) = lock
                .ask(Ask {
                    policy: other,
                    ..ask("r2:1")
                })
                .await;
            assert_eq!(got, Got::OtherPolicy(code), "{stored:?} {other:?}");
            if held {
                lock.release(&["w1:1"]).await;
            }
        }
        lock.ask(Ask {
            policy: stored,
            ..ask("w1:2")
        })
        .await
        .0
        .token();
    }
}
