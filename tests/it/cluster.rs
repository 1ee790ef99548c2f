//! A cluster: three masters and three replicas, as processes of the test. Each test prints what it saw; run it with
//! `cargo test --features cluster --test it -- cluster --nocapture`.

use crate::observe::{LONG, ms};
use crate::server::{Server, eventually, free_port, in_time, soon};
use fairlock::{Client, Error, EventKind, Events, FencingToken, LostReason, Owner, WriteGuard};
use fairlock_support::cluster::{Cluster, ask};
use fairlock_support::random;
use futures::future::join_all;
use redis::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;

/// A lock on the first master that one client holds and another waits for.
struct Parked {
    cluster: Cluster,
    name: String,
    slot: u16,
    guard: WriteGuard,
    waiter: JoinHandle<Result<WriteGuard, Error>>,
    clients: [Client; 2],
}

impl Parked {
    async fn new() -> Self {
        let cluster = Cluster::start().await;
        let name = cluster.lock_on(0).await;
        let slot = cluster.slot(&name).await;
        let clients = [cluster.client(LONG).await, cluster.client(LONG).await];
        let guard = clients[0].rw_lock(&*name).write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(clients[1].rw_lock(&*name).write().acquire_fair());
        eventually("it waits and listens", async || {
            cluster.nodes[0].queued(&name).await == 1 && cluster.channels().await == 1
        })
        .await;
        Self {
            cluster,
            name,
            slot,
            guard,
            waiter,
            clients,
        }
    }

    /// Waits until another node has the lock, as that node sees it.
    async fn until_moved_to(&self, node: usize) {
        eventually("the slot has moved", async || {
            self.cluster.owner(self.slot, &self.cluster.nodes[node]).await == Some(node)
        })
        .await;
    }

    /// The guard is released, and the waiter enters. Nothing but a message or what follows a lost connection can tell
    /// it: its next renewal is minutes away.
    async fn handed_over(self, what: &str, begun: Instant) -> (Cluster, String, [Client; 2]) {
        let (token, released) = (self.guard.fencing_token(), Instant::now());
        soon("the release", self.guard.release()).await.unwrap();
        let confirmed = Instant::now();
        let guard = soon("the grant", self.waiter).await.unwrap().unwrap();
        println!(
            "{what}: {:?} until the slot was served again, then release {:?}, grant after it {:?}",
            released - begun,
            confirmed - released,
            confirmed.elapsed(),
        );
        assert!(guard.fencing_token() > token);
        guard.release().await.unwrap();
        (self.cluster, self.name, self.clients)
    }
}

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
    soon("the grant", last).await.unwrap().unwrap().release().await.unwrap();
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
async fn a_waiter_follows_its_slot_to_another_node() {
    let parked = Parked::new().await;
    let begun = Instant::now();
    parked.cluster.migrate(parked.slot, 0, 1).await;
    let (cluster, name, _) = parked.handed_over("slot migrated", begun).await;
    assert!(cluster.nodes[0].keys().await.iter().all(|key| !key.contains(&name)));
}

#[tokio::test]
async fn a_waiter_follows_its_slot_in_a_planned_failover() {
    let parked = Parked::new().await;
    let begun = Instant::now();
    ask::<Value>(&parked.cluster.nodes[3], &["CLUSTER", "FAILOVER"]).await;
    parked.until_moved_to(3).await;
    parked.handed_over("planned failover", begun).await;
}

#[tokio::test]
async fn a_waiter_follows_its_slot_when_its_master_hangs() {
    let parked = Parked::new().await;
    let begun = Instant::now();
    parked.cluster.nodes[0].freeze();
    parked.until_moved_to(3).await;
    parked.handed_over("master hung", begun).await;
}

#[tokio::test]
async fn a_waiter_follows_its_slot_when_its_master_is_killed() {
    let mut parked = Parked::new().await;
    let begun = Instant::now();
    parked.cluster.nodes[0].kill();
    parked.until_moved_to(3).await;
    parked.handed_over("master killed", begun).await;
}

#[tokio::test]
async fn a_queue_that_was_replicated_keeps_its_order_over_a_failover() {
    let mut cluster = Cluster::start().await;
    let name = cluster.lock_on(0).await;
    let slot = cluster.slot(&name).await;
    let clients = [cluster.client(LONG).await, cluster.client(LONG).await];
    let held = clients[0].rw_lock(&*name).write().acquire_fair().await.unwrap();
    let entered = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for n in 0..8 {
        let (lock, entered) = (clients[n % 2].rw_lock(&*name), Arc::clone(&entered));
        waiters.push(tokio::spawn(async move {
            let guard = lock.write().acquire_fair().await.unwrap();
            entered.lock().unwrap().push((n, guard.fencing_token()));
            guard.release().await.unwrap();
        }));
        cluster.nodes[0].until_queued(&name, n + 1).await;
    }
    let mut master = cluster.nodes[0].redis().await;
    let mut mark = redis::cmd("SET");
    mark.arg(format!("fairlock:{{{name}}}:mark")).arg(1);
    let _: () = mark.query_async(&mut master).await.unwrap();
    let reached: usize = redis::cmd("WAIT").arg(1).arg(0).query_async(&mut master).await.unwrap();
    assert_eq!(reached, 1);
    cluster.nodes[0].kill();
    eventually("the slot has moved", async || {
        cluster.owner(slot, &cluster.nodes[3]).await == Some(3)
    })
    .await;
    let token = held.fencing_token();
    soon("the release", held.release()).await.unwrap();
    for waiter in waiters {
        soon("everybody enters", waiter).await.unwrap();
    }
    let (order, tokens): (Vec<_>, Vec<_>) = entered.lock().unwrap().iter().copied().unzip();
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(tokens[0] > token && tokens.is_sorted_by(|a, b| a < b));
}

#[tokio::test]
async fn who_only_holds_hears_at_once_that_its_node_began_anew() {
    let mut cluster = Cluster::of(3, 0).await;
    let names = [
        cluster.lock_on(0).await,
        cluster.lock_on(1).await,
        cluster.lock_on(2).await,
    ];
    let client = cluster.client(LONG).await;
    let mut guards = Vec::new();
    for name in &names {
        guards.push(client.rw_lock(&**name).write().acquire_fair().await.unwrap());
    }
    // Nobody waits or calls, and the next renewal is minutes away: the connection's end is all that is told. Two nodes,
    // since one of the three is called every half minute: it has the client's introduction.
    for (node, guard) in cluster.nodes.iter_mut().zip(&guards).take(2) {
        node.kill();
        node.start_again().await;
        let begun = Instant::now();
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::UnknownToServer);
        println!(
            "node without its data: heard {:?} after it was there again",
            begun.elapsed()
        );
    }
    assert!(guards[2].is_held());
}

#[tokio::test]
async fn what_a_failover_to_a_replica_that_lagged_loses_is_told_to_its_holders() {
    let mut cluster = Cluster::start().await;
    let client = cluster.client(LONG).await;
    let names = cluster.locks_on(0, 100).await;
    let slot = cluster.slot(&names[0]).await;
    let (replicated, missed) = names.split_at(50);
    let hold = |name: &String| client.rw_lock(name.as_str()).write().acquire_fair();
    let mut kept = Vec::new();
    for name in replicated {
        kept.push(hold(name).await.unwrap());
    }
    let mut master = cluster.nodes[0].redis().await;
    let mut mark = redis::cmd("SET");
    mark.arg(format!("fairlock:{{{}}}:mark", names[0])).arg(1);
    let _: () = mark.query_async(&mut master).await.unwrap();
    let reached: usize = redis::cmd("WAIT").arg(1).arg(0).query_async(&mut master).await.unwrap();
    assert_eq!(reached, 1);
    // It cannot replicate any more.
    ask::<Value>(
        &cluster.nodes[3],
        &["CONFIG", "SET", "masteruser", "nobody", "masterauth", "wrong"],
    )
    .await;
    ask::<Value>(&cluster.nodes[0], &["CLIENT", "KILL", "TYPE", "replica"]).await;
    eventually("nobody replicates", async || {
        let info: String = ask(&cluster.nodes[0], &["INFO", "replication"]).await;
        info.contains("connected_slaves:0")
    })
    .await;
    let mut lost = Vec::new();
    for name in missed {
        lost.push(hold(name).await.unwrap());
    }
    cluster.nodes[0].kill();
    eventually("the slots have moved", async || {
        cluster.owner(slot, &cluster.nodes[3]).await == Some(3)
    })
    .await;
    let begun = Instant::now();
    for guard in &lost {
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::UnknownToServer);
    }
    println!(
        "failover to a replica that lagged: of 100 holds {} lost; the last was told {:?} after the slot was served again",
        lost.len(),
        begun.elapsed()
    );
    for guard in kept {
        assert!(guard.is_held());
        soon("the release", guard.release()).await.unwrap();
    }
    for (name, former) in missed.iter().zip(&lost) {
        let guard = soon("a new grant", hold(name)).await.unwrap();
        assert!(guard.fencing_token() > former.fencing_token());
    }
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

/// Users of a few locks, each of which notes the tokens it got.
struct Load {
    over: Arc<AtomicBool>,
    users: Vec<JoinHandle<usize>>,
    tokens: Arc<Mutex<Vec<Vec<FencingToken>>>>,
}

impl Load {
    fn on(clients: &[Client], names: &[String]) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let tokens = Arc::new(Mutex::new(vec![Vec::new(); names.len()]));
        let mut users = Vec::new();
        for (client, user) in clients.iter().zip(0..) {
            for (at, name) in names.iter().enumerate() {
                let (lock, over, tokens) = (client.rw_lock(&**name), Arc::clone(&over), Arc::clone(&tokens));
                users.push(tokio::spawn(async move {
                    let mut entered = 0;
                    while !over.load(Ordering::Relaxed) {
                        let guard = match lock.write().acquire_fair().await {
                            Ok(guard) => guard,
                            Err(error) => panic!("user {user} of lock {at}: {error}"),
                        };
                        tokens.lock().unwrap()[at].push(guard.fencing_token());
                        tokio::time::sleep(ms(1)).await;
                        entered += 1;
                        if let Err(error) = guard.release().await {
                            panic!("user {user} of lock {at} cannot release: {error}");
                        }
                    }
                    entered
                }));
            }
        }
        Self { over, users, tokens }
    }

    async fn end(self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        let mut entered = 0;
        for user in self.users {
            entered += soon("its last turn", user).await.unwrap();
        }
        for tokens in &*self.tokens.lock().unwrap() {
            assert!(tokens.is_sorted_by(|a, b| a < b), "one after the other");
        }
        entered
    }
}

#[tokio::test]
async fn nothing_is_lost_while_slots_move_under_load() {
    let (cluster, mut random) = (Cluster::start().await, random::seeded());
    let clients = [cluster.client(ms(10_000)).await, cluster.client(ms(10_000)).await];
    let names: Vec<_> = (0..4).map(|i| format!("moving {i}")).collect();
    let load = Load::on(&clients, &names);
    let (begun, mut moves) = (Instant::now(), 0);
    while moves < 30 {
        let slot = cluster.slot(&names[random.usize(..4)]).await;
        let from = cluster.owner(slot, &cluster.nodes[0]).await.unwrap();
        let to = (from + 1 + random.usize(..2)) % 3;
        cluster.migrate(slot, from, to).await;
        moves += 1;
    }
    // The moves are over, the users go on: nobody may be stuck behind one of them.
    let entered = || load.tokens.lock().unwrap().iter().map(Vec::len).collect::<Vec<_>>();
    let before = entered();
    eventually("each lock is granted after the moves", async || {
        entered().iter().zip(&before).all(|(now, before)| now > before)
    })
    .await;
    let entered = load.end().await;
    println!("{moves} moves, {entered} grants in {:?}", begun.elapsed());
}

#[tokio::test]
async fn what_is_no_cluster_is_refused() {
    let server = Server::start().await;
    let error = Client::connect([server.url()]).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("it is not a cluster"), "{error}");
    let nobody = [format!("redis://127.0.0.1:{}", free_port())];
    let error = Client::connect(nobody).await.unwrap_err();
    assert!(error.to_string().contains("is up and reachable"), "{error}");
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
    assert!(error.to_string().contains("without a cluster"), "{error}");
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
    soon("the grant", waiter)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
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
async fn a_cluster_without_sharded_channels_is_refused() {
    let old = [format!("redis://127.0.0.1:{}", old_server().await)];
    let error = Client::connect(old).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("a cluster needs Redis 7"), "{error}");
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

async fn next(events: &mut Events) -> Result<(EventKind, Owner), Error> {
    let item = soon("an event", events.next()).await.expect("a stream without end");
    item.map(|event| (event.kind, event.owner))
}

#[tokio::test]
async fn events_of_a_lock_come_from_its_node_and_follow_its_slot() {
    let cluster = Cluster::of(3, 0).await;
    let name = cluster.lock_on(0).await;
    let (user, reader) = (cluster.client(LONG).await, cluster.client(LONG).await);
    let (lock, owner) = (user.rw_lock(&*name), Owner::new());
    let pass = async || {
        let guard = lock.with_owner(&owner).write().acquire_fair().await.unwrap();
        guard.release().await.unwrap();
    };
    pass().await;
    assert_eq!(cluster.calls("spublish").await, 0, "nobody listens");
    let mut events = soon("the stream", reader.rw_lock(&*name).events()).await.unwrap();
    let mut other = soon("the stream", reader.rw_lock("other").events()).await.unwrap();
    // Who uses the lock need not be told.
    pass().await;
    assert_eq!(next(&mut events).await.unwrap(), (EventKind::Granted, owner));
    assert_eq!(next(&mut events).await.unwrap(), (EventKind::Released, owner));
    let slot = cluster.slot(&name).await;
    cluster.migrate(slot, 0, 1).await;
    let missed = next(&mut events).await.unwrap_err();
    assert!(matches!(missed, Error::EventsMissed { .. }), "{missed:?}");
    pass().await;
    assert_eq!(next(&mut events).await.unwrap(), (EventKind::Granted, owner));
    assert_eq!(next(&mut events).await.unwrap(), (EventKind::Released, owner));
    let quiet = tokio::time::timeout(ms(100), other.next()).await;
    assert!(quiet.is_err(), "another lock's: {quiet:?}");
    drop((events, other));
    eventually("nobody listens any more", async || cluster.channels().await == 0).await;
    let published = cluster.calls("spublish").await;
    pass().await;
    assert_eq!(cluster.calls("spublish").await, published);
    let all = reader.events().await.err().unwrap();
    assert!(matches!(all, Error::Unsupported { .. }), "{all:?}");
}

#[tokio::test]
async fn a_stream_of_events_that_is_dropped_and_opened_again_at_once_is_subscribed() {
    let cluster = Cluster::of(3, 0).await;
    let client = cluster.client(LONG).await;
    let (name, other) = (cluster.lock_on(0).await, cluster.lock_on(1).await);
    let (lock, other) = (client.rw_lock(&*name), client.rw_lock(&*other));
    let mut events = lock.events().await.unwrap();
    // Another node's listener finds that nobody reads the first, whose own looks once a second.
    for _ in 0..4 {
        drop(events);
        let _others = other.events().await.unwrap();
        events = lock.events().await.unwrap();
    }
    let owner = Owner::new();
    let guard = lock.with_owner(&owner).write().acquire_fair().await.unwrap();
    assert_eq!(next(&mut events).await.unwrap(), (EventKind::Granted, owner));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn events_that_another_node_brings_before_the_former_one_is_given_up_have_a_gap_too() {
    let cluster = Cluster::of(3, 0).await;
    let client = cluster.client(LONG).await;
    let name = cluster.lock_on(0).await;
    let slot = cluster.slot(&name).await;
    let lock = client.rw_lock(&*name);
    let mut events = lock.events().await.unwrap();
    let text = slot.to_string();
    cluster.nodes[0].freeze();
    let [former, new] = [&cluster.ids[0], &cluster.ids[1]];
    // As the target of a migration it raises the epoch.
    ask::<Value>(&cluster.nodes[1], &["CLUSTER", "SETSLOT", &text, "IMPORTING", former]).await;
    for node in &cluster.nodes[1..] {
        ask::<Value>(node, &["CLUSTER", "SETSLOT", &text, "NODE", new]).await;
    }
    // The listener's next ping, at most a second away, goes unanswered for another; half a second after a call has
    // begun the table is read. So it is while the listener waits.
    tokio::time::sleep(ms(500)).await;
    let guard = soon("the lock, at its new node", lock.write().acquire_fair()).await;
    loop {
        match soon("a gap", events.next()).await.expect("a stream without end") {
            Err(Error::EventsMissed { .. }) => break,
            other => println!("before it: {other:?}"),
        }
    }
    guard.unwrap().release().await.unwrap();
}
