//! What a client knows of the cluster: seeds, the table of slots, and what is no cluster.

use crate::lateness::in_time;
use crate::observe::{LONG, ms};
use crate::server::{Server, eventually, free_port, soon};
use crate::users::passes;
use fairlock::{Client, Error};
use fairlock_support::cluster::{Cluster, ask, connected};
use redis::Value;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

#[tokio::test]
async fn what_is_no_cluster_is_refused() {
    let server = Server::start().await;
    let error = Client::connect([server.url()]).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("is not a cluster"), "{error}");
    let nobody = [format!("redis://127.0.0.1:{}", free_port())];
    let error = Client::connect(nobody).await.unwrap_err();
    assert!(error.to_string().contains("is up and reachable"), "{error}");
}

#[tokio::test]
async fn a_node_that_is_named_as_a_server_of_its_own_is_refused() {
    let cluster = Cluster::of(1, 0).await;
    for builder in [Client::builder(), Client::builder().quarantine(LONG)] {
        let error = builder.connect(cluster.nodes[0].url()).await.unwrap_err();
        assert!(matches!(error, Error::Connect { .. }), "{error:?}");
        assert!(error.to_string().contains("connect by a list of nodes"), "{error}");
    }
    assert!(cluster.nodes[0].keys().await.is_empty());
}

#[tokio::test]
async fn a_seed_that_was_removed_from_the_cluster_has_no_say() {
    let cluster = Cluster::of(3, 1).await;
    let (removed, id) = (&cluster.nodes[3], &cluster.ids[3]);
    let library = || [removed.url(), cluster.nodes[0].url()];
    let client = Client::builder().lease(ms(10_000)).connect(library()).await.unwrap();
    let (name, held) = (cluster.lock_on(0).await, cluster.lock_on(1).await);
    let guard = client.rw_lock(&*held).write().acquire_fair().await.unwrap();
    // As `redis-cli --cluster del-node` does it.
    for node in &cluster.nodes[..3] {
        ask::<Value>(node, &["CLUSTER", "FORGET", id]).await;
    }
    // A soft reset keeps the epoch, and whoever has seen the highest is believed. This is to be the one, whatever the moves
    // below make of the others'.
    ask::<Value>(removed, &["CLUSTER", "RESET", "HARD"]).await;
    ask::<Value>(removed, &["CLUSTER", "SET-CONFIG-EPOCH", "1000"]).await;
    let slot = cluster.slot(&name).await;
    // Each move has the client read the table.
    for (from, to) in [(0, 1), (1, 2)] {
        cluster.migrate(slot, from, to).await;
        let moved = soon("the moved lock", client.rw_lock(&*name).write().acquire_fair()).await;
        moved.unwrap().release().await.unwrap();
    }
    assert!(guard.is_held());
    soon("the release", guard.release()).await.unwrap();
    let both = Client::builder().lease(ms(10_000)).connect(library()).await;
    let fresh = both.unwrap().rw_lock(&*name).write().acquire_fair();
    soon("the lock of a new client", fresh)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let alone = [removed.url()];
    let error = Client::connect(alone).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("belongs to no cluster"), "{error}");
}

#[tokio::test]
async fn callers_of_a_slot_that_nobody_owns_do_not_have_the_table_read_all_the_time() {
    let cluster = Cluster::of(3, 0).await;
    let client = cluster.client(Duration::from_secs(10)).await;
    let name = cluster.lock_on(0).await;
    cluster.disown(cluster.slot(&name).await).await;
    let callers: Vec<_> = (0..50)
        .map(|_| {
            let lock = client.rw_lock(&*name);
            // It fails when its patience ends.
            tokio::spawn(async move { while lock.write().acquire_fair().await.is_err() {} })
        })
        .collect();
    let reads = async || cluster.calls("cluster|info").await;
    let before = reads().await;
    eventually("it is read less and less often", async || reads().await > before + 20).await;
    let (before, begun) = (reads().await, Instant::now());
    eventually("it is still read", async || reads().await >= before + 36).await;
    // A busy machine reads less often, never more often.
    let each = (reads().await - before) as f64 / 3.0 / begun.elapsed().as_secs_f64();
    println!("the table was read {each:.1} times a second");
    assert!(each < 7.0, "{each} times a second");
    for caller in callers {
        caller.abort();
    }
}

#[tokio::test]
async fn a_lock_that_nobody_waits_for_any_more_ends_the_search_for_its_owner() {
    let cluster = Cluster::of(3, 0).await;
    let clients = [cluster.client(LONG).await, cluster.client(LONG).await];
    let name = cluster.lock_on(0).await;
    let guard = clients[0].rw_lock(&*name).write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(clients[1].rw_lock(&*name).write().acquire_fair());
    eventually("it listens", async || cluster.channels().await == 1).await;
    guard.release().await.unwrap();
    let guard = soon("the grant", waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
    let reads = async || cluster.calls("cluster|info").await;
    let before = reads().await;
    // The channel is kept for a moment, in which its slot becomes nobody's.
    cluster.disown(cluster.slot(&name).await).await;
    eventually("an owner is looked for", async || reads().await > before + 9).await;
    eventually("and no longer", async || {
        let before = reads().await;
        // Longer than the longest pause, after a minute of trouble.
        tokio::time::sleep(ms(3000)).await;
        reads().await == before
    })
    .await;
}

#[tokio::test]
async fn who_may_not_subscribe_to_a_locks_grants_is_told_and_others_are_heard() {
    let cluster = Cluster::of(1, 0).await;
    let node = &cluster.nodes[0];
    let rules = [
        "ACL",
        "SETUSER",
        "guest",
        "on",
        ">guest",
        "+@all",
        "~*",
        "&fairlock:{fine*",
    ];
    ask::<Value>(node, &rules).await;
    let url = node.url().replace("redis://", "redis://guest:guest@");
    let guest = Client::builder().lease(LONG).connect([url]);
    let (holder, guest) = (cluster.client(LONG).await, guest.await.unwrap());
    let [fine, hidden] = ["fine", "hidden"].map(|name| holder.rw_lock(name).write().acquire_fair());
    let (fine, hidden) = (fine.await.unwrap(), hidden.await.unwrap());
    let waiter = tokio::spawn(guest.rw_lock("fine").write().acquire_fair());
    eventually("it listens", async || cluster.channels().await == 1).await;
    let listening: String = ask(node, &["CLIENT", "LIST", "TYPE", "PUBSUB"]).await;
    for _ in 0..2 {
        let refused = soon("the refusal", guest.rw_lock("hidden").write().acquire_fair()).await;
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Server { .. }), "{error:?}");
        assert!(error.to_string().contains("channels"), "{error}");
    }
    let id = |clients: &str| clients.split(' ').next().map(str::to_owned);
    let still: String = ask(node, &["CLIENT", "LIST", "TYPE", "PUBSUB"]).await;
    assert_eq!(id(&still), id(&listening), "over the same connection");
    fine.release().await.unwrap();
    passes("the grant", waiter).await;
    hidden.release().await.unwrap();
}

/// A server that knows HELLO, and calls itself Redis 6.2.
async fn old_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                // `*n`, then `$length` and a word, n times.
                while stream.read_line(&mut line).await.is_ok_and(|n| n > 0) {
                    let words: usize = line.trim().trim_start_matches('*').parse().unwrap();
                    let mut command = Vec::new();
                    for _ in 0..2 * words {
                        line.clear();
                        stream.read_line(&mut line).await.unwrap();
                        command.push(line.trim().to_ascii_uppercase());
                    }
                    line.clear();
                    let reply = match command[1].as_str() {
                        "HELLO" => "*4\r\n$7\r\nversion\r\n$6\r\n6.2.14\r\n$4\r\nmode\r\n$7\r\ncluster\r\n",
                        _ => "+OK\r\n",
                    };
                    stream.write_all(reply.as_bytes()).await.unwrap();
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn a_cluster_without_sharded_channels_is_refused() {
    let old = [format!("redis://127.0.0.1:{}", old_server().await)];
    let error = Client::connect(old).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("a cluster needs Redis 7"), "{error}");
}

/// The client has heard of the other nodes from it.
#[tokio::test]
async fn a_client_of_one_seed_follows_the_cluster_when_that_node_dies() {
    let mut cluster = Cluster::start().await;
    let seed = [cluster.nodes[0].url()];
    let client = connected(Client::builder().lease(LONG), &seed).await;
    let name = cluster.lock_on(0).await;
    let slot = cluster.slot(&name).await;
    let lock = client.rw_lock(&*name);
    lock.write().acquire_fair().await.unwrap().release().await.unwrap();
    cluster.nodes[0].kill();
    eventually("a replica has taken over", async || {
        cluster.owner(slot, &cluster.nodes[3]).await == Some(3)
    })
    .await;
    let guard = soon("the lock", lock.write().acquire_fair()).await.unwrap();
    guard.release().await.unwrap();
}

/// In a partition the minority keeps an old table.
#[tokio::test]
async fn of_two_tables_the_one_of_the_later_epoch_is_followed() {
    in_time(async || {
        let [old, new] = [Cluster::of(1, 0).await, Cluster::of(1, 0).await];
        let later = &new.nodes[0];
        for command in [
            &["CLUSTER", "RESET", "HARD"][..],
            &["CLUSTER", "SET-CONFIG-EPOCH", "1000"],
            &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"],
        ] {
            ask::<Value>(later, command).await;
        }
        eventually("it is up", async || new.info(later).await.contains("cluster_state:ok")).await;
        for (name, seeds) in [
            ("a", [old.nodes[0].url(), later.url()]),
            ("b", [later.url(), old.nodes[0].url()]),
        ] {
            let client = connected(Client::builder().lease(LONG), &seeds).await;
            let guard = client.rw_lock(name).write().acquire_fair().await.unwrap();
            let keys = later.keys().await;
            assert!(keys.iter().any(|key| key.contains(&format!("{{{name}}}"))), "{keys:?}");
            drop(guard);
        }
    })
    .await;
}
