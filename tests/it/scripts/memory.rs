//! A server whose memory is exhausted refuses a script that has no flag at its first write that takes memory. Before Redis 7
//! every script comes without flags; later servers execute a text without flags in the same way.

use super::lock;
use crate::lua::{LEASE_MS, Lock};
use crate::server::{Server, soon};
use fairlock_support::scripts;
use futures::StreamExt;

/// Evicts the owner of the only request while memory is exhausted. Returns the first message that the client 1 hears.
async fn first_message(server: &Server, lock: &Lock, owner: &str) -> String {
    let client = redis::Client::open(server.url()).unwrap();
    let mut pubsub = client.get_async_pubsub().await.unwrap();
    pubsub.subscribe("fairlock:c:1").await.unwrap();
    lock.run("CONFIG", &["SET", "maxmemory", "1"]).await;
    let args = [owner.to_owned()];
    let refused = lock.call(scripts::EVICT.text, "", &args).await.expect_err("no memory");
    assert!(refused.to_string().contains("OOM"), "{refused}");
    lock.run("CONFIG", &["SET", "maxmemory", "0"]).await;
    lock.run("PUBLISH", &["fairlock:c:1", "the end"]).await;
    let message = soon("a message", pubsub.on_message().next()).await.expect("a message");
    message.get_payload().unwrap()
}

#[tokio::test]
async fn an_eviction_that_fails_for_want_of_memory_tells_nobody_of_itself() {
    for request in ["w1:1", "r1:1", "w1:1:x", "r1:1:x"] {
        let (server, lock) = lock().await;
        let token = lock.acquire(request).await.token();
        let owner = if request.ends_with('x') { "x" } else { "1:1" };
        assert_eq!(first_message(&server, &lock, owner).await, "the end", "{request}");
        // The eviction did nothing.
        assert_eq!(
            lock.renew_for(&[request], LEASE_MS).await.1,
            [token as i64],
            "{request}"
        );
        let evicted = lock.call(scripts::EVICT.text, "", &[owner.to_owned()]).await.unwrap();
        assert_eq!(evicted, [-1, 1], "{request}");
    }
}
