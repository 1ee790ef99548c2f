//! A service in a cluster.

use super::{LEASE, breaks, login, refused, rules, without_one};
use crate::lua::Lock;
use crate::server::{Server, eventually, soon};
use fairlock::{Client, Error};
use futures::future::join_all;
use redis::Value;

/// A cluster of one node.
#[cfg(feature = "cluster")]
async fn cluster() -> Server {
    let args = [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        "0",
        "--acllog-max-len",
        "10000",
    ];
    let server = Server::start_with(&args).await;
    let raw = Lock::new(&server, "a").await;
    raw.run("CLUSTER", &["ADDSLOTSRANGE", "0", "16383"]).await;
    eventually("the cluster is up", async || {
        let info: String = redis::from_redis_value(raw.run("CLUSTER", &["INFO"]).await).unwrap();
        info.contains("cluster_state:ok")
    })
    .await;
    server
}

#[cfg(feature = "cluster")]
async fn serve_in_a_cluster(server: &Server, url: &str, user: &str) -> Result<(), Error> {
    let nodes = [url];
    let client = Client::builder().lease(LEASE).label(user).connect(nodes).await?;
    let lock = client.rw_lock(user);
    let writing = lock.write().acquire_fair().await?;
    let waiting = tokio::spawn(lock.read().acquire_fair());
    server.until_queued(user, 1).await;
    lock.status().await?;
    let raw = Lock::new(server, user).await;
    let channels = async || raw.run("PUBSUB", &["SHARDCHANNELS", &format!("*{{{user}}}*")]).await;
    let quiet = async |channels: Value| matches!(channels, Value::Array(list) if list.is_empty());
    eventually("it listens", async || {
        !quiet(channels().await).await || !refused(server, user).await.is_empty()
    })
    .await;
    writing.release().await?;
    waiting.await.expect("no panic")?.release().await?;
    eventually("it does not listen", async || {
        quiet(channels().await).await || !refused(server, user).await.is_empty()
    })
    .await;
    client.shutdown().await;
    Ok(())
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn a_service_in_a_cluster_needs_the_rules_for_it() {
    let server = cluster().await;
    let (_, page) = include_str!("../../../SECURITY.md")
        .split_once("In a **cluster**")
        .expect("rules");
    let (_, rules_of) = page.split_once("ACL SETUSER service").expect("a block");
    let (more, _) = rules_of.split_once("```").expect("a block");
    let more: Vec<_> = more.split_whitespace().map(str::to_owned).collect();
    let all = [rules("service"), more.clone()].concat();
    let url = login(&server, "service", &all).await;
    let served = serve_in_a_cluster(&server, &url, "service");
    soon("a service", served).await.expect("all rights");
    assert_eq!(refused(&server, "service").await, [""; 0]);

    let reduced = without_one(&all);
    let broken = join_all(reduced.iter().enumerate().map(async |(n, (right, rules))| {
        // Slots do not move here.
        if !more.contains(right) || right == "+asking" {
            return true;
        }
        let user = format!("service-{n}");
        let url = login(&server, &user, rules).await;
        breaks(&server, &user, serve_in_a_cluster(&server, &url, &user)).await
    }));
    for ((right, _), broken) in reduced.iter().zip(broken.await) {
        assert!(broken, "nothing needs {right}");
    }
}
