//! A slot whose move has carried some of a lock's keys and not the others, and stays so.

use crate::observe::{LONG, keys};
use crate::server::{Server, eventually, soon};
use fairlock::{Client, Error, LostReason, WriteGuard};
use fairlock_support::cluster::{Cluster, ask};
use fairlock_support::scripts::{ACQUIRE, RENEW, Script};
use redis::{RedisError, Value};
use tokio::task::JoinHandle;

/// A lock that is held and waited for, all of whose keys are on the first node.
struct Busy {
    name: String,
    slot: String,
    guard: WriteGuard,
    waiter: JoinHandle<Result<WriteGuard, Error>>,
}

impl Busy {
    async fn on(cluster: &Cluster, clients: &[Client; 2], name: String) -> Self {
        let guard = clients[0].rw_lock(&*name).write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(clients[1].rw_lock(&*name).write().acquire_fair());
        cluster.nodes[0].until_queued(&name, 1).await;
        let slot = cluster.slot(&name).await.to_string();
        Self {
            name,
            slot,
            guard,
            waiter,
        }
    }

    async fn begin(&self, cluster: &Cluster) {
        begin(cluster, &self.slot).await;
    }

    async fn carry(&self, cluster: &Cluster, which: usize) {
        carry(cluster, &self.name, which).await;
    }

    /// Whoever calls is refused by both nodes, and does not wait for it without end.
    async fn is_refused(&self, stranger: &Client) {
        let refused = soon("an answer", stranger.rw_lock(&*self.name).write().try_acquire()).await;
        let told = matches!(&refused, Err(Error::Unavailable { .. } | Error::Server { .. }));
        assert!(told, "{refused:?}");
        assert!(self.guard.is_held() && !self.waiter.is_finished());
    }
}

async fn set_slot(node: &Server, slot: &str, how: &[&str]) {
    ask::<Value>(node, &[&["CLUSTER", "SETSLOT", slot], how].concat()).await;
}

async fn begin(cluster: &Cluster, slot: &str) {
    set_slot(&cluster.nodes[1], slot, &["IMPORTING", &cluster.ids[0]]).await;
    set_slot(&cluster.nodes[0], slot, &["MIGRATING", &cluster.ids[1]]).await;
}

/// Moves those of the lock's three keys whose bits are set.
async fn carry(cluster: &Cluster, lock: &str, which: usize) {
    let keys = keys(lock);
    let chosen = keys.iter().enumerate().filter(|(bit, _)| which >> bit & 1 == 1);
    let port = cluster.nodes[1].port().to_string();
    let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
    command.extend(chosen.map(|(_, key)| key.as_str()));
    ask::<Value>(&cluster.nodes[0], &command).await;
}

/// A script as a client of a cluster calls it.
async fn run(node: &Server, lock: &str, script: &Script, args: &[&str]) -> Result<Vec<i64>, RedisError> {
    let mut eval = redis::cmd("EVAL");
    eval.arg(script.flagged()).arg(3).arg(&keys(lock)).arg("s").arg(args);
    match eval.query_async(&mut node.redis().await).await? {
        Value::Array(reply) => redis::from_redis_value(Value::Array(reply)).map_err(Into::into),
        number => Ok(vec![redis::from_redis_value(number)?]),
    }
}

/// While a slot migrates, the node refuses a command whose key is not there, in the middle of a script. All keys are there when
/// these calls come, and they remove the last waiter, whose lease is over.
#[tokio::test]
async fn a_call_that_removes_the_last_waiter_while_the_slot_migrates_loses_no_hold() {
    let cluster = Cluster::of(3, 0).await;
    let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
    let renewal: (&Script, &[&str]) = (&RENEW, &["w1:1", "60000"]);
    let newcomer: (&Script, &[&str]) = (&ACQUIRE, &["w3:1", "60000"]);
    for (lock, (script, args)) in cluster.locks_on(0, 2).await.iter().zip([renewal, newcomer]) {
        run(from, lock, &ACQUIRE, &["w1:1", "60000"]).await.unwrap();
        run(from, lock, &ACQUIRE, &["w2:1", "100"]).await.unwrap();
        let slot = cluster.slot(lock).await.to_string();
        begin(&cluster, &slot).await;
        tokio::time::sleep(crate::observe::ms(150)).await;
        match run(from, lock, script, args).await {
            Ok(renewed) => assert!(renewed[2] > 1, "{renewed:?}"),
            // It would be the only one in the queue.
            Err(error) => assert_eq!(error.code(), Some("TRYAGAIN"), "{error}"),
        }
        carry(&cluster, lock, 7).await;
        end(&cluster, &slot).await;
        let queued = run(to, lock, &ACQUIRE, &["w3:1", "60000"]).await.unwrap();
        assert_eq!((queued[0], queued[4]), (1, 0), "it waits for w1:1: {queued:?}");
        let renewed = run(to, lock, &RENEW, &["w1:1", "60000"]).await.unwrap();
        assert!(renewed[2] > 1, "{renewed:?}");
    }
}

/// The slot is the second node's.
async fn end(cluster: &Cluster, slot: &str) {
    for node in [1, 0, 2] {
        let done = ["CLUSTER", "SETSLOT", slot, "NODE", &cluster.ids[1]];
        ask::<Value>(&cluster.nodes[node], &done).await;
    }
}

#[tokio::test]
async fn a_move_that_stopped_after_some_of_a_locks_keys_loses_nothing_and_its_end_brings_the_lock_back() {
    let cluster = Cluster::of(3, 0).await;
    let clients = [cluster.client(LONG).await, cluster.client(LONG).await];
    let stranger = cluster.client(LONG).await;
    let mut names = cluster.locks_on(0, 6).await;
    for which in 1..7 {
        let busy = Busy::on(&cluster, &clients, names.remove(0)).await;
        busy.begin(&cluster).await;
        busy.carry(&cluster, which).await;
        busy.is_refused(&stranger).await;
        busy.carry(&cluster, 7 & !which).await;
        end(&cluster, &busy.slot).await;
        let token = busy.guard.fencing_token();
        soon("the release", busy.guard.release()).await.unwrap();
        let next = soon("the grant", busy.waiter).await.unwrap().unwrap();
        assert!(next.fencing_token() > token, "keys {which:03b}");
        next.release().await.unwrap();
    }
}

/// The move is given up, and what it had carried is gone: the loss of those keys, as docs/failures.md has it.
#[tokio::test]
async fn a_move_that_is_given_up_after_some_of_a_locks_keys_costs_the_hold_and_hangs_nobody() {
    let cluster = Cluster::of(3, 0).await;
    let clients = [cluster.client(LONG).await, cluster.client(LONG).await];
    let mut names = cluster.locks_on(0, 6).await;
    for which in 1..7 {
        let busy = Busy::on(&cluster, &clients, names.remove(0)).await;
        busy.begin(&cluster).await;
        busy.carry(&cluster, which).await;
        for node in [0, 1] {
            set_slot(&cluster.nodes[node], &busy.slot, &["STABLE"]).await;
        }
        // Its next renewal is minutes away; a lost connection makes both renew at once.
        eventually("both are told", async || {
            ask::<Value>(&cluster.nodes[0], &["CLIENT", "KILL", "TYPE", "normal"]).await;
            ask::<Value>(&cluster.nodes[0], &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
            tokio::time::sleep(crate::observe::ms(50)).await;
            !busy.guard.is_held()
        })
        .await;
        assert_eq!(soon("the loss", busy.guard.lost()).await, LostReason::UnknownToServer);
        let next = soon("the grant", busy.waiter).await.unwrap().unwrap();
        let token = next.fencing_token();
        // Without the state its counter is lost, and the clock is ahead of what it was.
        assert!(token > busy.guard.fencing_token(), "keys {which:03b}");
        next.release().await.unwrap();
    }
}

/// Subscriptions stay with the former node until the end of the move, so nobody is deaf whom the next one does not count.
#[tokio::test]
async fn a_release_in_the_middle_of_a_move_cuts_no_lease_and_nobody_enters_past_the_queue() {
    let cluster = Cluster::of(3, 0).await;
    let clients = [cluster.client(LONG).await, cluster.client(LONG).await];
    let stranger = cluster.client(LONG).await;
    let name = cluster.locks_on(0, 1).await.remove(0);
    let busy = Busy::on(&cluster, &clients, name).await;
    let behind = tokio::spawn(stranger.rw_lock(&*busy.name).write().acquire_fair());
    cluster.nodes[0].until_queued(&busy.name, 2).await;
    busy.begin(&cluster).await;
    busy.carry(&cluster, 7).await;
    let token = busy.guard.fencing_token();
    soon("the release", busy.guard.release()).await.unwrap();
    let mut leases = redis::pipe();
    leases.cmd("ASKING").ignore();
    leases
        .cmd("ZRANGE")
        .arg(&keys(&busy.name)[2])
        .arg(0)
        .arg(-1)
        .arg("WITHSCORES");
    leases.cmd("TIME");
    let mut next = cluster.nodes[1].redis().await;
    let told: (Vec<(String, u64)>, (u64, u64)) = leases.query_async(&mut next).await.unwrap();
    let (leases, (seconds, _)) = told;
    let half = LONG.as_millis() as u64 / 2;
    assert_eq!(leases.len(), 2);
    assert!(
        leases.iter().all(|(_, until)| *until > seconds * 1000 + half),
        "{leases:?}"
    );
    end(&cluster, &busy.slot).await;
    let first = soon("the grant", busy.waiter).await.unwrap().unwrap();
    assert!(first.fencing_token() > token && !behind.is_finished());
    first.release().await.unwrap();
    let second = soon("the next grant", behind).await.unwrap().unwrap();
    second.release().await.unwrap();
}
