//! Downgrade, evict and status by themselves: their contracts, and what a second sending does.

use crate::lua::{DOWNGRADE, EVICT, LEASE_MS, Lock, RENEW, STATUS};
use crate::server::Server;
use redis::Value;

async fn lock() -> (Server, Lock) {
    let server = Server::start().await;
    let lock = Lock::new(&server, "a").await;
    (server, lock)
}

/// The token, or -1.
async fn downgrade(lock: &Lock, from: &str, to: &str) -> i64 {
    let args = [from.to_owned(), to.to_owned(), LEASE_MS.to_string()];
    lock.call(DOWNGRADE, &args).await.expect("downgrade")[1]
}

/// How many requests were thrown out.
async fn evict(lock: &Lock, owner: &str) -> i64 {
    lock.call(EVICT, &[owner.to_owned()]).await.expect("evict")[1]
}

async fn status(lock: &Lock, first: u32, waiters: u32, holders: u32) -> Vec<Value> {
    let args = [first, waiters, holders].map(|number| number.to_string());
    let command = lock.command(STATUS, &args);
    command.query_async(&mut lock.redis.clone()).await.expect("status")
}

fn texts(value: &Value) -> Vec<String> {
    redis::from_redis_value(value.clone()).expect("texts")
}

#[tokio::test]
async fn a_downgrade_keeps_the_token_and_lets_in_the_readers_at_the_head() {
    let (_server, lock) = lock().await;
    let token = lock.acquire("w1:1").await.token();
    for request in ["r2:1", "r3:1", "w4:1", "r5:1"] {
        lock.acquire(request).await.ticket();
    }
    for sending in 1..=3 {
        let answered = downgrade(&lock, "w1:1", "r1:2:1:1").await;
        assert_eq!(answered, token as i64, "sending {sending}");
        let state = lock.state().await;
        assert_eq!(state.holding(), ["r1:2:1:1", "r2:1", "r3:1"]);
        assert_eq!(state.waiting(), ["w4:1", "r5:1"]);
        assert_eq!(state.field("mode"), Some("read"));
        assert_eq!(state.number("rcount"), 3);
    }
    assert_eq!(lock.release(&["r1:2:1:1", "r2:1", "r3:1"]).await.1, [2, 2, 2]);
    assert_eq!(lock.state().await.holding(), ["w4:1"]);
}

#[tokio::test]
async fn a_downgrade_of_one_of_two_writes_leaves_the_lock_written() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1:x", "w1:2:x", "r2:1"]).await;
    assert!(downgrade(&lock, "w1:1:x", "r1:3:x").await > 0);
    let state = lock.state().await;
    assert_eq!(
        (state.field("mode"), state.number("wcount"), state.number("rcount")),
        (Some("write"), 1, 1)
    );
    assert_eq!(state.waiting(), ["r2:1"]);
    assert_eq!(lock.release(&["w1:2:x"]).await.1, [2]);
    assert_eq!(lock.state().await.holding(), ["r1:3:x", "r2:1"]);
}

#[tokio::test]
async fn a_downgrade_of_what_is_not_held_changes_nothing_and_says_so() {
    let (_server, lock) = lock().await;
    assert_eq!(downgrade(&lock, "w1:1", "r1:2:1:1").await, -1);
    lock.acquire_all(&["w2:1", "w1:1"]).await;
    let before = lock.state().await;
    assert_eq!(downgrade(&lock, "w1:1", "r1:2:1:1").await, -1, "it waits");
    assert_eq!(downgrade(&lock, "w3:1", "r3:2:3:1").await, -1, "nobody knows it");
    let after = lock.state().await;
    assert_eq!((after.holding(), after.waiting()), (before.holding(), before.waiting()));
    assert_eq!(after.leases, before.leases);
}

#[tokio::test]
async fn an_eviction_takes_all_of_an_owner_once_and_lets_in_who_is_next() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1:x", "r1:2:x", "w2:1:x", "r3:1", "w4:1:y"])
        .await;
    assert_eq!(evict(&lock, "z").await, 0);
    assert_eq!(evict(&lock, "x").await, 3);
    for _ in 0..2 {
        let state = lock.state().await;
        assert_eq!((state.holding(), state.waiting()), (vec!["r3:1"], vec!["w4:1:y"]));
        assert_eq!(evict(&lock, "x").await, 0);
    }
    assert_eq!(evict(&lock, "y").await, 1, "who waits goes too");
    assert_eq!(evict(&lock, "3:1").await, 1, "and the owner of a single request");
    assert!(lock.state().await.leases.is_empty());
    assert_eq!(
        lock.call(RENEW, &["r3:1".to_owned(), "1000".to_owned()]).await.unwrap()[1],
        -1
    );
}

#[tokio::test]
async fn a_status_lists_holders_and_a_page_of_waiters_and_writes_nothing() {
    let (_server, lock) = lock().await;
    let free = status(&lock, 0, 10, 10).await;
    assert_eq!(texts(&Value::Array(free[1..6].to_vec())), ["", "", "0", "0", "0"]);
    assert_eq!((texts(&free[6]).len(), texts(&free[7]).len()), (0, 0));
    lock.acquire("w1:1:x").await;
    let sole = status(&lock, 0, 10, 10).await;
    assert_eq!(texts(&sole[6])[0], "w1:1:x", "a sole request is a holder");
    lock.acquire_all(&["r1:2:x", "w2:1", "r3:1", "w4:1"]).await;
    let before = lock.dump().await;
    let seen = status(&lock, 1, 1, 1).await;
    let again = status(&lock, 1, 1, 1).await;
    assert_eq!(lock.dump().await, before);
    assert_eq!(seen[1..], again[1..], "but for the time");
    let heads = texts(&Value::Array(seen[1..6].to_vec()));
    assert_eq!(
        heads,
        ["write", "", "1", "2", "3"],
        "mode, policy, write holds, holding, waiting"
    );
    assert_eq!(texts(&seen[6]).len(), 4, "one holder");
    assert_eq!(texts(&seen[7])[0], "r3:1");
    assert_eq!(texts(&seen[7]).len(), 3, "one waiter");
}
