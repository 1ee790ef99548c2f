//! What status says, and that it writes nothing.

use crate::lua::{Lock, STATUS};
use crate::server::Server;
use redis::Value;

async fn lock() -> (Server, Lock) {
    let server = Server::start().await;
    let lock = Lock::new(&server, "a").await;
    (server, lock)
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

/// Each client with a waiter of a named owner looks for deadlocks by a status.
#[tokio::test]
async fn a_status_of_a_writer_does_not_walk_through_the_queue() {
    let (_server, lock) = lock().await;
    let walks = async || {
        let mut redis = lock.redis.clone();
        let stats = redis::cmd("INFO")
            .arg("commandstats")
            .query_async::<String>(&mut redis)
            .await;
        stats.expect("INFO").contains("cmdstat_zdiff")
    };
    lock.acquire_all(&["w1:1:x", "w2:1", "r3:1"]).await;
    let seen = status(&lock, 0, 10, 10).await;
    assert_eq!(texts(&seen[6])[0], "w1:1:x");
    assert!(!walks().await);
    lock.release(&["w1:1:x"]).await;
    lock.release(&["w2:1"]).await;
    lock.acquire("w4:1").await;
    let seen = status(&lock, 0, 10, 10).await;
    assert_eq!(texts(&seen[6])[0], "r3:1");
    assert!(walks().await, "readers are found no other way");
}
