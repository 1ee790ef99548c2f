//! A replica that lags takes over, and its clock is not the master's.

use super::demotion::info;
use crate::observe::{View, client, ms, until_free};
use crate::proxy::Proxy;
use crate::server::{Server, connected, eventually, program, soon};
use fairlock::{Client, Error, FencingToken, LostReason, RwLock, WriteGuard};
use fairlock_support::clock::FakeClock;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Longer than any test waits, but for the clock that is ahead by more.
const LEASE: Duration = Duration::from_secs(300);
const FAR_MS: i64 = 400_000;

async fn ask(server: &Server, command: &[&str]) {
    let mut cmd = redis::cmd(command[0]);
    let done = cmd.arg(&command[1..]).exec_async(&mut server.redis().await).await;
    done.unwrap_or_else(|error| panic!("{command:?}: {error}"));
}

/// A master, a replica with a clock of its own, and users behind a name that leads to the master.
struct Pair {
    master: Server,
    replica: Server,
    name: Proxy,
    _clock: FakeClock,
}

impl Pair {
    /// `None`: no clock can be stepped on this machine.
    async fn with_skew(skew_ms: i64) -> Option<Self> {
        let master = Server::start().await;
        let Some(clock) = FakeClock::find(master.dir().join("clock")) else {
            println!("skipped: no libfaketime; `make clock` gets it");
            return None;
        };
        clock.step(skew_ms).unwrap();
        let port = master.port().to_string();
        let args = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"];
        let replica = Server::start_program(&clock.command(&program()), &args).await;
        eventually("the replica is in step", async || {
            info(&replica, "replication").await.contains("master_link_status:up")
        })
        .await;
        let name = Proxy::to(master.port()).await;
        Some(Self {
            master,
            replica,
            name,
            _clock: clock,
        })
    }

    /// Everything so far reaches the replica, and nothing that comes later does.
    async fn replicates_no_more(&self) {
        ask(&self.master, &["SET", "mark", "1"]).await;
        eventually("the replica has it", async || {
            let exists = redis::cmd("EXISTS")
                .arg("mark")
                .query_async(&mut self.replica.redis().await)
                .await;
            exists.unwrap_or(false)
        })
        .await;
        ask(
            &self.replica,
            &["CONFIG", "SET", "masteruser", "nobody", "masterauth", "wrong"],
        )
        .await;
        ask(&self.master, &["CLIENT", "KILL", "TYPE", "replica"]).await;
        eventually("nobody replicates", async || {
            info(&self.master, "replication").await.contains("connected_slaves:0")
        })
        .await;
    }

    async fn fails_over(&mut self) {
        self.master.kill();
        ask(&self.replica, &["REPLICAOF", "NO", "ONE"]).await;
        self.name.leads_to(self.replica.port());
    }

    async fn now_ms(&self) -> i64 {
        View::of(&self.replica, "none").await.now_ms
    }
}

async fn write(lock: &RwLock) -> WriteGuard {
    soon("the lock", lock.write().acquire_fair()).await.unwrap()
}

/// What users have when the master dies. The replica knows of `kept`, and not of `missed`.
struct Users {
    kept: WriteGuard,
    waits_for_kept: JoinHandle<Result<WriteGuard, Error>>,
    missed: WriteGuard,
    lock: RwLock,
}

impl Users {
    async fn of(pair: &Pair) -> Self {
        let (holder, waiter) = (
            client(pair.name.url(), LEASE).await,
            client(pair.name.url(), LEASE).await,
        );
        let kept = write(&holder.rw_lock("kept")).await;
        let waits_for_kept = tokio::spawn(waiter.rw_lock("kept").write().acquire_fair());
        pair.master.until_queued("kept", 1).await;
        // So that its counter is there, and behind.
        write(&holder.rw_lock("missed")).await.release().await.unwrap();
        pair.replicates_no_more().await;
        let missed = write(&holder.rw_lock("missed")).await;
        Self {
            kept,
            waits_for_kept,
            missed,
            lock: waiter.rw_lock("missed"),
        }
    }

    /// The holder is told, a late acquire enters, and both locks are handed on and end free.
    async fn go_on(self, pair: &Pair) -> [FencingToken; 2] {
        assert_eq!(soon("the loss", self.missed.lost()).await, LostReason::UnknownToServer);
        let late = write(&self.lock).await;
        let tokens = [self.missed.fencing_token(), late.fencing_token()];
        late.release().await.unwrap();
        let before = self.kept.fencing_token();
        // Where its lease is over on the new clock, the waiter may be inside; then the holder must know.
        let was_lost = self.kept.release().await.is_err();
        let next = soon("the waiter's turn", self.waits_for_kept).await.unwrap().unwrap();
        assert!(next.is_held() && (next.fencing_token() > before || !was_lost));
        next.release().await.unwrap();
        for lock in ["kept", "missed"] {
            until_free(&pair.replica, lock).await;
        }
        tokens
    }
}

/// The clock is ahead: a little, and by more than a lease, so that the replica ends each lease that it knows.
#[tokio::test]
async fn a_lagging_replica_whose_clock_is_ahead_takes_over_and_every_later_token_is_greater() {
    for skew_ms in [20_000, FAR_MS] {
        let Some(mut pair) = Pair::with_skew(skew_ms).await else {
            return;
        };
        let users = Users::of(&pair).await;
        pair.fails_over().await;
        let [missed, late] = users.go_on(&pair).await;
        assert!(late > missed, "{skew_ms} ms: {late} after {missed}");
    }
}

/// The clock is behind: what the replica knows goes on, and holds survive. What it missed may get a lesser token than its
/// lost holder has: docs/failover.md says so.
#[tokio::test]
async fn a_lagging_replica_whose_clock_is_behind_keeps_what_it_knows_and_may_repeat_tokens_that_it_missed() {
    let Some(mut pair) = Pair::with_skew(-FAR_MS).await else {
        return;
    };
    let users = Users::of(&pair).await;
    let kept = users.kept.fencing_token();
    pair.fails_over().await;
    eventually("the hold is renewed there", async || {
        let leases = View::of(&pair.replica, "kept").await.leases;
        let now_ms = pair.now_ms().await;
        leases
            .iter()
            .any(|(_, deadline)| (now_ms..=now_ms + 300_000).contains(deadline))
    })
    .await;
    assert!(users.kept.is_held());
    let [missed, late] = users.go_on(&pair).await;
    assert!(late < missed, "the page says too little: {late} after {missed}");
    let next = write(&client(pair.name.url(), LEASE).await.rw_lock("kept")).await;
    assert!(next.fencing_token() > kept, "a lock that it knows counts on");
}

/// With a quarantine of more than the clock is behind, every later token is greater, also where the replica missed grants.
#[tokio::test]
async fn a_quarantine_longer_than_a_clock_is_behind_keeps_tokens_growing() {
    let Some(mut pair) = Pair::with_skew(-1_500).await else {
        return;
    };
    let quarantine = ms(3_000);
    let careful = async || -> Client {
        let builder = Client::builder().lease(ms(2_500)).quarantine(quarantine);
        connected(builder, pair.name.url()).await
    };
    let (holder, later) = (careful().await, careful().await);
    write(&holder.rw_lock("missed")).await.release().await.unwrap();
    pair.replicates_no_more().await;
    let missed = write(&holder.rw_lock("missed")).await;
    pair.fails_over().await;
    let late = write(&later.rw_lock("missed")).await;
    assert!(!missed.is_held(), "two are inside");
    let (missed, late) = (missed.fencing_token(), late.fencing_token());
    assert!(late > missed, "{late} after {missed}");
}
