//! A slot that moves: to another node, by a fail-over, under load.

use super::Parked;
use crate::observe::{LONG, View, keys, ms};
use crate::server::{eventually, soon};
use fairlock::{Client, Error, FencingToken, LostReason};
use fairlock_support::cluster::{Cluster, ask};
use fairlock_support::random;
use redis::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::task::JoinHandle;

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
async fn a_release_that_was_only_redirected_does_not_hide_that_the_next_node_knows_nothing() {
    let cluster = Cluster::of(3, 0).await;
    let [name, another] = cluster.locks_on(0, 2).await.try_into().expect("two");
    let slot = cluster.slot(&name).await;
    let client = cluster.client(LONG).await;
    let guard = client.rw_lock(&*name).write().acquire_fair().await.unwrap();
    // A node to which the client has yet to connect: it has its introduction on one of the three.
    let unused = async {
        loop {
            for n in [1, 2] {
                if cluster.nodes[n].connections().await == 0 {
                    return n;
                }
            }
        }
    };
    let next = soon("a node that the client does not need", unused).await;
    for key in keys(&name) {
        ask::<Value>(&cluster.nodes[0], &["DEL", &key]).await;
    }
    cluster.migrate(slot, 0, next).await;
    cluster.nodes[next].freeze();
    let releasing = tokio::spawn(guard.release());
    // In that time the first call has been redirected, and was given up without having been sent to the next node.
    let begun = View::of(&cluster.nodes[0], &another).await.now_ms;
    eventually("a call is over", async || {
        View::of(&cluster.nodes[0], &another).await.now_ms > begun + 3000
    })
    .await;
    cluster.nodes[next].thaw();
    let released = soon("the release", releasing).await.unwrap();
    assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
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
