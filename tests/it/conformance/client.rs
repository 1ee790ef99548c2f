//! This client sends what the suite composes and names.

use super::is_modern;
use super::scripts::{Scripts, library, read, suite};
use crate::lua::Lock;
use crate::server::{Server, connected, eventually};
use fairlock::{Client, Owner};
use serde::Deserialize;
use std::time::Duration;

#[tokio::test]
async fn the_client_sends_the_scripts_that_the_suite_composes() {
    let server = Server::start().await;
    let client = connected(Client::builder().lease(Duration::from_millis(300)), server.url()).await;
    let lock = client.rw_lock("a");
    let writing = lock.write().acquire_fair().await.unwrap();
    let reading = writing.downgrade().await.unwrap();
    lock.status().await.unwrap();
    lock.evict(&Owner::new()).await.unwrap();
    if is_modern(&server).await {
        let mut list = redis::cmd("FUNCTION");
        list.arg("LIST").arg("LIBRARYNAME").arg(library().0);
        let found: Vec<redis::Value> = list.query_async(&mut server.redis().await).await.unwrap();
        assert_eq!(found.len(), 1, "the client loads this library");
        assert!(server.calls("fcall").await > 0);
        return;
    }
    let scripts = Scripts::released(false);
    // Renewed, in time.
    let hash = |name: &str| redis::Script::new(&scripts.0[name].1).get_hash().to_owned();
    eventually("a renewal", async || exists(&server, &hash("renew")).await).await;
    drop(reading);
    // Only a client of several servers places.
    for name in scripts.0.keys().filter(|name| *name != "place") {
        eventually(name, async || exists(&server, &hash(name)).await).await;
    }
}

async fn exists(server: &Server, hash: &str) -> bool {
    let exists: Vec<bool> = redis::cmd("SCRIPT")
        .arg("EXISTS")
        .arg(hash)
        .query_async(&mut server.redis().await)
        .await
        .unwrap();
    exists[0]
}

#[tokio::test]
async fn the_client_refuses_a_lock_in_another_layout_and_says_so() {
    let server = Server::start().await;
    let raw = Lock::new(&server, "a").await;
    raw.run("HSET", &[&raw.keys[0], "seq", "2000000000000000", "policy", "w"])
        .await;
    let lock = connected(Client::builder(), server.url()).await.rw_lock("a");
    let error = lock.write().try_acquire().await.unwrap_err().to_string();
    assert!(
        error.contains("another version of fairlock") && error.contains("share a layout"),
        "{error}"
    );
}

#[derive(Deserialize)]
struct Names {
    prefix: String,
    name: String,
    state: String,
    queue: String,
    leases: String,
    events: String,
    channel: String,
    sharded_channel: String,
}

#[tokio::test]
async fn the_client_uses_the_keys_and_channels_that_the_suite_names() {
    let server = Server::start().await;
    for names in read::<Vec<Names>>(&suite().join("names.json")) {
        let client = connected(Client::builder().prefix(&*names.prefix), server.url()).await;
        let lock = client.rw_lock(&*names.name);
        let _events = lock.events().await.unwrap();
        let _held = lock.write().acquire_fair().await.unwrap();
        let waiting = tokio::spawn(lock.write().acquire_fair());
        let mut expected = vec![names.state.clone(), names.queue, names.leases];
        expected.push(format!("{}:listen", names.prefix));
        expected.sort();
        eventually(&names.name, async || server.keys().await == expected).await;
        let channels: Vec<String> = redis::cmd("PUBSUB")
            .arg("CHANNELS")
            .query_async(&mut server.redis().await)
            .await
            .unwrap();
        assert!(channels.contains(&names.events), "{channels:?}");
        let id = format!("{client:?}");
        let id = id.split("id: ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        assert!(channels.contains(&names.channel.replace("CLIENT", id)), "{channels:?}");
        assert_eq!(names.sharded_channel, format!("{}:c:CLIENT", names.state));
        waiting.abort();
        client.shutdown().await;
        Lock::new(&server, "a").await.run("FLUSHALL", &[]).await;
    }
}
