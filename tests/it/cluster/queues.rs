//! Locks on all nodes, handed over by sharded messages, each with a queue of its own.

use super::Parked;
use crate::lateness::in_time;
use crate::observe::{LONG, ms};
use crate::server::{eventually, soon};
use crate::users::passes;
use fairlock::{Client, Error};
use fairlock_support::cluster::{Cluster, ask};
use futures::future::join_all;
use redis::Value;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

#[tokio::test]
async fn a_lock_is_handed_over_by_sharded_messages_only() {
    let parked = Parked::new().await;
    let (cluster, _, _clients) = parked.handed_over("no fault", Instant::now()).await;
    assert_eq!(cluster.calls("publish").await, 0);
    assert!(cluster.calls("spublish").await > 0);
    // Nobody waits: nobody listens.
    eventually("the channel is let go", async || cluster.channels().await == 0).await;
    eventually("and the connections that listened", async || {
        let clients: String = ask(&cluster.nodes[0], &["CLIENT", "LIST", "TYPE", "PUBSUB"]).await;
        clients.trim().is_empty()
    })
    .await;
}

#[tokio::test]
async fn who_begins_to_wait_while_thousands_of_channels_are_let_go_is_heard_meanwhile() {
    let cluster = Cluster::of(1, 0).await;
    let (holder, waiter) = (cluster.client(LONG).await, cluster.client(LONG).await);
    let names: Vec<_> = (0..3000).map(|i| format!("many {i}")).collect();
    let hold = |name: &String| holder.rw_lock(name.as_str()).write().acquire_fair();
    let _held = join_all(names.iter().map(hold)).await;
    let fresh = holder.rw_lock("fresh").write().acquire_fair().await.unwrap();
    let wait = |name: &String| tokio::spawn(waiter.rw_lock(name.as_str()).write().acquire_fair());
    let waiters: Vec<_> = names.iter().map(wait).collect();
    eventually("all wait and listen", async || {
        cluster.calls("ssubscribe").await == 3000
    })
    .await;
    waiters.iter().for_each(JoinHandle::abort);
    eventually("channels are let go", async || cluster.calls("sunsubscribe").await > 0).await;
    let last = tokio::spawn(waiter.rw_lock("fresh").write().acquire_fair());
    eventually("the last is heard", async || cluster.calls("ssubscribe").await > 3000).await;
    let gone = cluster.calls("sunsubscribe").await;
    println!("{gone} channels had been let go");
    tokio::time::sleep(ms(100)).await;
    let more = cluster.calls("sunsubscribe").await;
    assert!(more > gone, "it waited for the end of it");
    fresh.release().await.unwrap();
    passes("the grant", last).await;
}

#[tokio::test]
async fn locks_lie_on_all_nodes_and_each_keeps_the_order_of_its_queue() {
    let cluster = Cluster::start().await;
    let clients = [cluster.client(LONG).await, cluster.client(LONG).await];
    let locks = (0..12).map(async |i| {
        let name = format!("spread {i}");
        let node = cluster
            .owner(cluster.slot(&name).await, &cluster.nodes[0])
            .await
            .unwrap();
        let held = clients[0].rw_lock(&*name).write().acquire_fair().await.unwrap();
        let entered = Arc::new(Mutex::new(Vec::new()));
        let mut waiters = Vec::new();
        for n in 0..6 {
            let (lock, entered) = (clients[n % 2].rw_lock(&*name), Arc::clone(&entered));
            waiters.push(tokio::spawn(async move {
                let guard = lock.write().acquire_fair().await.unwrap();
                entered.lock().unwrap().push(n);
                guard.release().await.unwrap();
            }));
            cluster.nodes[node].until_queued(&name, n + 1).await;
        }
        held.release().await.unwrap();
        for waiter in waiters {
            soon("everybody enters", waiter).await.unwrap();
        }
        assert_eq!(*entered.lock().unwrap(), [0, 1, 2, 3, 4, 5], "{name}");
        node
    });
    let mut nodes = join_all(locks).await;
    nodes.sort_unstable();
    nodes.dedup();
    assert_eq!(nodes, [0, 1, 2], "every master has some");
}

#[tokio::test]
async fn a_grant_that_comes_before_the_waiter_listens_is_learned_at_once() {
    let cluster = Cluster::of(3, 0).await;
    let clients = [cluster.client(LONG).await, cluster.client(LONG).await];
    let begun = Instant::now();
    // Each lock is new to both clients: who comes second is granted it while it begins to listen.
    let pairs = (0..200).map(|i| {
        let locks = [0, 1].map(|n| clients[n].rw_lock(format!("fresh {i}")));
        async move {
            let both = locks.iter().map(|lock| async {
                let guard = lock.write().acquire_fair().await.unwrap();
                guard.release().await.unwrap();
            });
            join_all(both).await;
        }
    });
    soon("all of them", join_all(pairs)).await;
    println!("200 locks by two clients each, in {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_node_that_hangs_costs_the_locks_of_others_nothing() {
    in_time(async || {
        let cluster = Cluster::of(3, 0).await;
        let client = cluster.client(Duration::from_secs(3)).await;
        let (hung, fine, other) = (
            cluster.lock_on(0).await,
            cluster.lock_on(1).await,
            cluster.lock_on(2).await,
        );
        let mut lost = Vec::new();
        // More than may be under way at once.
        for i in 0.. {
            let name = format!("{hung} {i}");
            if cluster.owner(cluster.slot(&name).await, &cluster.nodes[0]).await == Some(0) {
                lost.push(client.rw_lock(name).write().acquire_fair().await.unwrap());
            }
            if lost.len() == 150 {
                break;
            }
        }
        let guard = client.rw_lock(&*fine).write().acquire_fair().await.unwrap();
        cluster.nodes[0].freeze();
        for guard in &lost {
            soon("what the node has is lost", guard.lost()).await;
        }
        drop(lost);
        // With as many releases waiting for the node, others are made at once, and renewals too.
        let other = client.rw_lock(&*other);
        for _ in 0..20 {
            // No lease ends in this test, so that only a release lets the next one in.
            drop(other.write().lease(LONG).acquire_fair().await.unwrap());
            let next = other.write().lease(LONG).acquire_fair();
            drop(soon("a release in the background", next).await.unwrap());
            tokio::time::sleep(ms(200)).await;
        }
        assert!(guard.is_held());
        soon("the release", guard.release()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_grant_waits_for_the_replicas_of_its_node() {
    let cluster = Cluster::start().await;
    let builder = Client::builder().lease(LONG).wait_for_replicas(1, LONG);
    let client = soon("a client", builder.connect(cluster.urls())).await.unwrap();
    let guards = (0..3).map(async |node| {
        let lock = client.rw_lock(cluster.lock_on(node).await);
        lock.write().acquire_fair().await.unwrap()
    });
    for guard in soon("the guards", join_all(guards)).await {
        guard.release().await.unwrap();
    }
    let more = client
        .rw_lock("a")
        .write()
        .wait_for_replicas(2, ms(20))
        .acquire_fair()
        .await;
    assert!(
        matches!(
            more,
            Err(Error::NotReplicated {
                wanted: 2,
                reached: 1,
                ..
            })
        ),
        "{more:?}"
    );
    let careful = Client::builder().quarantine(LONG).connect(cluster.urls()).await;
    assert!(matches!(careful, Err(Error::Unsupported { .. })), "{careful:?}");
}

#[tokio::test]
async fn status_knows_the_clients() {
    let cluster = Cluster::of(3, 0).await;
    let clients = [cluster.client(LONG).await, cluster.client(LONG).await];
    let _held = clients[0].rw_lock("a").write().acquire_fair().await.unwrap();
    let _waiter = tokio::spawn(clients[1].rw_lock("a").read().acquire_fair());
    eventually("both are known", async || {
        let status = clients[0].rw_lock("a").status().await.unwrap();
        let holders = status.holders.iter().map(|holder| &holder.client);
        let known = holders.chain(status.waiters.iter().map(|waiter| &waiter.client));
        known
            .filter(|client| client.process == Some(std::process::id()))
            .count()
            == 2
    })
    .await;
}

/// A master that reaches no other one takes connections, and refuses channels where it is told to.
#[tokio::test]
async fn a_waiters_channel_that_is_refused_for_a_while_is_asked_for_after_growing_pauses() {
    let mut cluster = Cluster::of(3, 0).await;
    let refuse = ["CONFIG", "SET", "cluster-allow-pubsubshard-when-down", "no"];
    ask::<Value>(&cluster.nodes[0], &refuse).await;
    let name = cluster.lock_on(0).await;
    let client = cluster.client(LONG).await;
    let _held = client.rw_lock(&*name).write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(client.rw_lock(&*name).write().acquire_fair());
    cluster.nodes[0].until_queued(&name, 1).await;
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    eventually("the cluster is down", async || {
        cluster.info(&cluster.nodes[0]).await.contains("cluster_state:fail")
    })
    .await;
    let begun = Instant::now();
    ask::<Value>(&cluster.nodes[0], &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    eventually("ten refusals", async || {
        let stats: String = ask(&cluster.nodes[0], &["INFO", "commandstats"]).await;
        let refused = stats.lines().find_map(|line| {
            let (_, counts) = line
                .split_once("cmdstat_ssubscribe:")?
                .1
                .split_once("rejected_calls=")?;
            counts.split(',').next()?.parse::<u32>().ok()
        });
        refused.is_some_and(|refused| refused >= 10)
    })
    .await;
    // Nine pauses, each at least half of 10 ms, 20 ms and so on up to a second. A busy machine takes longer.
    assert!(begun.elapsed() >= Duration::from_millis(1635), "{:?}", begun.elapsed());
    waiter.abort();
}
