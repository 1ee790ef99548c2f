//! Orphans: requests whose client has gone on without them.

use super::{downgraded, lock};
use crate::lua::{Ask, Got, Lock, ask};
use crate::server::Server;

/// The owner `x` writes by `w3:3:x`, while its `w3:1:x` waits behind `w2:1`.
async fn overtaken() -> (Server, Lock) {
    let (server, lock) = lock().await;
    let asks = |request| Ask {
        policy: "r",
        ..ask(request)
    };
    for request in ["r1:1", "w2:1", "w3:1:x", "r3:2:x"] {
        lock.ask(asks(request)).await;
    }
    lock.release(&["r1:1"]).await;
    // The only reader is let past both who wait, one of which is its own.
    lock.ask(asks("w3:3:x")).await.0.token();
    (server, lock)
}

#[tokio::test]
async fn a_request_that_its_owner_overtook_leaves_the_queue_and_not_the_lock() {
    let (_server, lock) = overtaken().await;
    assert_eq!(lock.release(&["w3:1:x"]).await.1, [1]);
    let state = lock.state().await;
    assert_eq!(state.field("writer"), Some("x"), "it writes on: {state:?}");
    assert_eq!(lock.release(&["w3:3:x"]).await.1, [2]);
}

#[tokio::test]
async fn an_orphan_of_a_downgraded_writer_ends_without_its_reader() {
    let (_server, lock) = lock().await;
    lock.acquire("w1:1").await;
    downgraded(&lock, "w1:1", "r1:2:1:1").await;
    lock.acquire("r2:1").await.token();
    lock.acquire("r3:1").await.token();
    // Sent long ago, and executed now.
    lock.acquire("w1:1").await.ticket();
    // A call begins with reading what its first request's owner holds: here that is another.
    assert_eq!(lock.release(&["r3:1", "w1:1", "r1:2:1:1"]).await.1, [2, 1, 2]);
    let state = lock.state().await;
    assert_eq!((state.holding(), state.field("rcount")), (vec!["r2:1"], Some("1")));
}

#[tokio::test]
async fn an_orphan_that_ends_in_the_call_of_its_owner_leaves_it_its_token() {
    let (_server, mut lock) = lock().await;
    let asks = |request| Ask {
        policy: "w",
        ..ask(request)
    };
    lock.ask(asks("w1:1")).await;
    // The reader's was sent long ago, and is executed now.
    for request in ["r3:1", "w3:3:3:1"] {
        lock.ask(asks(request)).await.0.ticket();
    }
    // It could enter beside its own writer, which the audit takes for a head that was left out.
    lock.audited = false;
    lock.release(&["w1:1"]).await;
    let token = lock.state().await.number("t:3:1");
    lock.die(&["r3:1"]).await;
    assert_eq!(lock.ask(asks("w3:3:3:1")).await.0, Got::Granted(token));
    assert_eq!(lock.state().await.field("wcount"), Some("1"));
}

#[tokio::test]
async fn an_orphan_that_upgrades_ends_with_the_read_hold_of_its_owner() {
    let (_server, lock) = lock().await;
    lock.acquire("w1:1").await.token();
    downgraded(&lock, "w1:1", "r1:2:1:1").await;
    lock.acquire("r2:1").await.token();
    // Sent long ago, and executed now: its owner reads, so it is an upgrade.
    lock.acquire("w1:1").await.ticket();
    assert_eq!(lock.release(&["r1:2:1:1"]).await.1, [2]);
    assert_eq!(lock.release(&["r2:1"]).await.1, [2]);
    assert!(lock.state().await.leases.is_empty());
    lock.acquire("r3:1").await.token();
    lock.acquire("r4:1").await.token();
    lock.acquire("w3:2:3:1").await.ticket();
}

#[tokio::test]
async fn an_orphan_that_waits_is_released_and_not_its_owners_other_hold() {
    let (_server, mut lock) = lock().await;
    let asks = |request| Ask {
        policy: "w",
        ..ask(request)
    };
    lock.ask(asks("w2:1")).await;
    // The reader's was sent long ago, and is executed now.
    for request in ["r1:7", "w1:8:1:7", "w4:1"] {
        lock.ask(asks(request)).await.0.ticket();
    }
    assert_eq!(lock.release(&["w2:1"]).await.1, [2]);
    assert_eq!(lock.state().await.holding(), ["w1:8:1:7"]);
    downgraded(&lock, "w1:8:1:7", "r1:9:1:7").await;
    assert_eq!(lock.release(&["r1:7"]).await.1, [1]);
    let state = lock.state().await;
    assert_eq!((state.holding(), state.waiting()), (vec!["r1:9:1:7"], vec!["w4:1"]));
    // The same when its lease ends.
    lock.ask(asks("r1:7")).await.0.token();
    lock.die(&["r1:7"]).await;
    lock.audited = false;
    lock.renew(&[]).await;
    assert!(lock.state().await.holding().contains(&"r1:9:1:7"));
}

#[tokio::test]
async fn a_downgrade_of_a_request_that_waits_leaves_what_its_owner_holds() {
    let (_server, lock) = overtaken().await;
    assert_eq!(downgraded(&lock, "w3:1:x", "r3:4:x").await[1], -1);
    assert_eq!(lock.state().await.field("writer"), Some("x"));
    assert_eq!(lock.release(&["w3:1:x", "w3:3:x"]).await.1, [1, 2]);
}

#[tokio::test]
async fn an_orphan_that_is_let_in_beside_its_owners_other_hold_is_counted_with_it() {
    let (_server, lock) = lock().await;
    let asks = |request| Ask {
        policy: "w",
        ..ask(request)
    };
    lock.ask(asks("w0:1")).await;
    // Sent long ago, and executed now.
    for request in ["r1:7", "w1:8:1:7", "w5:1"] {
        lock.ask(asks(request)).await.0.ticket();
    }
    lock.release(&["w0:1"]).await;
    downgraded(&lock, "w1:8:1:7", "r1:9:1:7").await;
    // The script that lets the orphan in is about somebody else.
    lock.release(&["w5:1"]).await;
    let state = lock.state().await;
    assert_eq!(state.holding(), ["r1:7", "r1:9:1:7"]);
    assert_eq!(state.field("r:1:7"), Some("2"));
    assert_eq!(lock.release(&["r1:7", "r1:9:1:7"]).await.1, [2, 2]);
}

/// Two readers, one of which waits to write, and a writer of a named owner; then the queue is lost.
async fn without_its_queue() -> (Server, Lock) {
    let (server, mut lock) = lock().await;
    lock.acquire_all(&["r1:1:a", "r2:1:b", "w1:2:a", "w3:1:c"]).await;
    lock.audited = false;
    lock.run("DEL", &[&lock.keys[1]]).await;
    (server, lock)
}

#[tokio::test]
async fn when_the_queue_is_lost_nobody_is_told_that_he_waits_there() {
    let (_server, lock) = without_its_queue().await;
    lock.acquire("w3:2:c").await.ticket();
    lock.acquire("w2:2:b").await.ticket();
    let (_server, lock) = without_its_queue().await;
    assert_eq!(lock.release(&["w1:2:a", "w3:1:c"]).await.1, [0, 0]);
    let fields = lock.state().await.hash;
    assert!(!fields.keys().any(|field| field.starts_with("q:")), "{fields:?}");
    lock.acquire("w2:2:b").await.ticket();
    lock.acquire("w3:2:c").await.ticket();
}

#[tokio::test]
async fn an_upgrade_that_is_sent_again_after_the_queue_was_lost_does_not_hold_beside_readers() {
    let (_server, lock) = without_its_queue().await;
    lock.acquire("w1:2:a").await.ticket();
    // One whose owner does what it asks for, by another request.
    let (_server, mut lock) = overtaken().await;
    lock.audited = false;
    let token = lock.state().await.number("t:x");
    lock.run("DEL", &[&lock.keys[1]]).await;
    let again = Ask {
        policy: "r",
        ..ask("w3:1:x")
    };
    assert!(lock.ask(again).await.0.token() > token, "everybody else has lost");
    assert_eq!(lock.state().await.holding(), ["w3:1:x"]);
}
