//! A master with a replica, and three sentinels that watch them, as processes of the test. Each test prints what it saw:
//! `cargo test --features sentinel --test it -- sentinel --nocapture`.

use crate::lateness::{in_time, promise};
use crate::observe::{LONG, ms};
use crate::server::{PATIENCE, Server, eventually, soon};
use fairlock::{Client, Error, FencingToken, WriteGuard};
use futures::future::join_all;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{RedisConnectionInfo, Value};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const NAME: &str = "mine";

struct Watched {
    /// At first the first one is the master.
    servers: [Server; 2],
    sentinels: Vec<Server>,
}

async fn ask<T: redis::FromRedisValue>(node: &Server, command: &[&str]) -> T {
    let mut cmd = redis::cmd(command[0]);
    cmd.arg(&command[1..]);
    let reply = cmd.query_async(&mut node.redis().await).await;
    reply.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Has a sentinel make the other server the master. On a busy machine the sentinels may have begun that themselves.
async fn switch(sentinel: &Server) {
    let mut cmd = redis::cmd("SENTINEL");
    let reply: Result<(), _> = cmd
        .arg("FAILOVER")
        .arg(NAME)
        .query_async(&mut sentinel.redis().await)
        .await;
    if let Err(error) = reply {
        assert_eq!(error.code(), Some("INPROG"), "{error}");
    }
}

impl Watched {
    async fn start() -> Self {
        let master = Server::start().await;
        let port = master.port().to_string();
        let replica = Server::start_with(&["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]).await;
        // A sentinel that was late by two seconds looks at nothing for 30 s ("tilt"). It promotes no replica that lost its
        // master more than ten times this before the sentinel did, so with less it might never promote ours.
        let config = format!(
            "sentinel monitor {NAME} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {NAME} 3500\n\
             sentinel failover-timeout {NAME} 10000\n"
        );
        let sentinels = (0..3).map(async |i| {
            let file = replica.dir().join(format!("sentinel-{i}.conf"));
            std::fs::write(&file, &config).unwrap();
            let program = [
                "redis-server".to_owned(),
                file.display().to_string(),
                "--sentinel".to_owned(),
            ];
            Server::start_program(&program, &[]).await
        });
        let sentinels = join_all(sentinels).await;
        for sentinel in &sentinels {
            eventually("the sentinels see everybody", async || {
                let master: Vec<String> = ask(sentinel, &["SENTINEL", "MASTER", NAME]).await;
                let field = |name: &str| master.iter().skip_while(|field| *field != name).nth(1).cloned();
                field("num-slaves").as_deref() == Some("1")
                    && field("num-other-sentinels").as_deref() == Some("2")
                    && field("flags").as_deref() == Some("master")
            })
            .await;
        }
        let watched = Self {
            servers: [master, replica],
            sentinels,
        };
        eventually("the replica is in step", async || {
            let info: String = ask(&watched.servers[1], &["INFO", "replication"]).await;
            info.contains("master_link_status:up")
        })
        .await;
        watched
    }

    fn library(&self, kind: SentinelServerType, name: &str) -> SentinelClient {
        let sentinels: Vec<_> = self.sentinels.iter().map(Server::url).collect();
        SentinelClient::build(sentinels, String::from(name), None, kind).unwrap()
    }

    async fn client(&self, lease: Duration) -> Client {
        let begun = Instant::now();
        loop {
            let builder = Client::builder().lease(lease).label("ours");
            match builder.connect(self.library(SentinelServerType::Master, NAME)).await {
                Ok(client) => return client,
                Err(error) if begun.elapsed() < PATIENCE => println!("once more: {error}"),
                Err(error) => panic!("there is a master, but: {error}"),
            }
        }
    }

    /// Waits until a sentinel names the other server, and that has changed its mind about itself.
    async fn until_switched(&self) {
        let port = self.servers[1].port().to_string();
        for sentinel in &self.sentinels[..1] {
            eventually("another master", async || {
                let address: Vec<String> = ask(sentinel, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).await;
                address.get(1) == Some(&port)
            })
            .await;
        }
    }
}

/// Why there is no other master, only the sentinels know.
impl Drop for Watched {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for node in self.servers.iter().chain(&self.sentinels) {
            let log = std::fs::read_to_string(node.dir().join("log")).unwrap_or_default();
            println!("the log of port {}:\n{log}", node.port());
        }
    }
}

/// A lock that one client holds and another waits for.
struct Parked {
    watched: Watched,
    guard: WriteGuard,
    waiter: JoinHandle<Result<WriteGuard, Error>>,
    _clients: [Client; 2],
}

impl Parked {
    async fn new() -> Self {
        let watched = Watched::start().await;
        let clients = [watched.client(LONG).await, watched.client(LONG).await];
        let guard = clients[0].rw_lock("a").write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(clients[1].rw_lock("a").write().acquire_fair());
        for server in &watched.servers {
            server.until_queued("a", 1).await;
        }
        Self {
            watched,
            guard,
            waiter,
            _clients: clients,
        }
    }

    /// The guard is released, and the waiter enters: not by its renewals, those are minutes away.
    async fn handed_over(self, what: &str, begun: Instant) -> Watched {
        let (token, released) = (self.guard.fencing_token(), Instant::now());
        soon("the release", self.guard.release()).await.unwrap();
        let confirmed = Instant::now();
        let guard = soon("the grant", self.waiter).await.unwrap().unwrap();
        println!(
            "{what}: {:?} until there was another master, then release {:?}, grant after it {:?}",
            released - begun,
            confirmed - released,
            confirmed.elapsed(),
        );
        promise(guard.fencing_token() > token, "tokens grow");
        self.watched
    }
}

#[tokio::test]
async fn a_waiter_follows_the_master_when_it_is_killed() {
    let mut parked = Parked::new().await;
    let begun = Instant::now();
    parked.watched.servers[0].kill();
    parked.watched.until_switched().await;
    parked.handed_over("master killed", begun).await;
}

#[tokio::test]
async fn a_waiter_follows_the_master_when_it_hangs() {
    let parked = Parked::new().await;
    let begun = Instant::now();
    parked.watched.servers[0].freeze();
    parked.watched.until_switched().await;
    parked.handed_over("master hung", begun).await;
}

#[tokio::test]
async fn a_planned_switch_under_load_leaves_nobody_with_the_former_master() {
    let is_met = AtomicBool::new(false);
    for _ in 0..5 {
        in_time(async || is_met.store(planned_switch().await, Ordering::Relaxed)).await;
        if is_met.load(Ordering::Relaxed) {
            return;
        }
    }
    panic!("the sentinels were late each time");
}

/// Returns whether the clients gave the former master up before the sentinels made it a replica. A sentinel that was late is
/// in tilt and tells clients of the new master too late for that.
async fn planned_switch() -> bool {
    let watched = Watched::start().await;
    let clients = [watched.client(ms(4000)).await, watched.client(ms(4000)).await];
    let (over, tokens) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<_>>>::default());
    let users: Vec<_> = (0..6)
        .map(|i| {
            let lock = clients[i % 2].rw_lock("a");
            let (over, tokens) = (Arc::clone(&over), Arc::clone(&tokens));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let guard = lock.write().acquire_fair().await.unwrap();
                    tokens.lock().unwrap().push((Instant::now(), guard.fencing_token()));
                    tokio::time::sleep(ms(1)).await;
                    // What the new master does not know is lost, and said to be.
                    match guard.release().await {
                        Ok(()) | Err(Error::Lost { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    let entered = || tokens.lock().unwrap().len();
    eventually("they are at it", async || entered() > 50).await;
    let begun = Instant::now();
    switch(&watched.sentinels[0]).await;
    watched.until_switched().await;
    let switched = Instant::now();
    eventually("the connections to the former master are given up", async || {
        let clients: String = ask(&watched.servers[0], &["CLIENT", "LIST"]).await;
        !clients.contains("name=ours")
    })
    .await;
    let given_up = Instant::now();
    // The sentinels leave it that for some ten seconds. It would go on to grant.
    let role: Vec<Value> = ask(&watched.servers[0], &["ROLE"]).await;
    let is_met = role[0] == Value::BulkString(b"master".to_vec());
    let before = entered();
    eventually("they are at it again", async || entered() > before + 50).await;
    over.store(true, Ordering::Relaxed);
    for user in users {
        soon("its last turn", user).await.unwrap();
    }
    let tokens = tokens.lock().unwrap();
    let pause = tokens.windows(2).map(|pair| pair[1].0 - pair[0].0).max();
    println!(
        "planned switch: known to a sentinel after {:?}, connections given up {:?} after that, longest pause {pause:?}, {} grants",
        switched - begun,
        given_up - switched,
        tokens.len()
    );
    let tokens: Vec<FencingToken> = tokens.iter().map(|(_, token)| *token).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "one after the other");
    is_met
}

/// What a switch is made of.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed,
    Frozen,
    Planned,
}

impl Fault {
    async fn strike(self, watched: &mut Watched) {
        match self {
            Self::Killed => watched.servers[0].kill(),
            Self::Frozen => watched.servers[0].freeze(),
            Self::Planned => {
                switch(&watched.sentinels[0]).await;
            }
        }
    }
}

/// Newcomers ask all through a switch, each for a lock of its own. Two requests wait, one of them with a lease so short
/// that it is renewed during the switch. Nobody may be refused. A try and a status may say `Unavailable`, nothing else.
async fn newcomers_all_through(fault: Fault) {
    let mut parked = Parked::new().await;
    let client = parked.watched.client(LONG).await;
    let lock = client.rw_lock("b");
    let held = lock.write().acquire_fair().await.unwrap();
    let renewed = tokio::spawn(lock.write().lease(ms(1000)).acquire_fair());
    for server in &parked.watched.servers {
        server.until_queued("b", 1).await;
    }
    let (over, begun) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let asking = tokio::spawn({
        let over = Arc::clone(&over);
        async move {
            let (mut newcomers, mut looks) = (Vec::new(), Vec::new());
            // A planned switch is quick.
            while !over.load(Ordering::Relaxed) || newcomers.len() < 60 {
                let lock = client.rw_lock(format!("newcomer {}", newcomers.len()));
                newcomers.push(tokio::spawn(lock.write().acquire_fair()));
                looks.push(tokio::spawn(async move {
                    let (tried, seen) = (lock.read().try_acquire().await.err(), lock.status().await.err());
                    tried.into_iter().chain(seen).collect::<Vec<_>>()
                }));
                tokio::time::sleep(ms(20)).await;
            }
            (newcomers, looks)
        }
    });
    fault.strike(&mut parked.watched).await;
    parked.watched.until_switched().await;
    over.store(true, Ordering::Relaxed);
    let (newcomers, looks) = soon("those who ask", asking).await.unwrap();
    let number = newcomers.len();
    let newcomers = soon("the newcomers", join_all(newcomers)).await;
    let mut refused: Vec<_> = newcomers
        .into_iter()
        .filter_map(|newcomer| newcomer.unwrap().err())
        .collect();
    let mut told = BTreeMap::<String, usize>::new();
    let looks = soon("the looks", join_all(looks)).await;
    for error in looks.into_iter().flat_map(Result::unwrap) {
        let Error::Unavailable { source, .. } = error else {
            refused.push(error);
            continue;
        };
        *told.entry(source.to_string()).or_default() += 1;
    }
    println!("{fault:?}: {number} newcomers; tries and looks were told: {told:#?}");
    assert!(refused.is_empty(), "{} refused: {refused:#?}", refused.len());
    soon("the release", held.release()).await.unwrap();
    drop(soon("its turn", renewed).await.unwrap().unwrap());
    parked.handed_over("newcomers all through", begun).await;
}

#[tokio::test]
async fn nobody_is_refused_while_a_killed_master_is_replaced() {
    newcomers_all_through(Fault::Killed).await;
}

#[tokio::test]
async fn nobody_is_refused_while_a_hung_master_is_replaced() {
    newcomers_all_through(Fault::Frozen).await;
}

#[tokio::test]
async fn nobody_is_refused_while_a_master_is_replaced_as_planned() {
    newcomers_all_through(Fault::Planned).await;
}

#[tokio::test]
async fn a_switch_is_learned_though_the_sentinel_to_listen_to_is_away() {
    let mut watched = Watched::start().await;
    watched.sentinels[0].kill();
    let client = watched.client(LONG).await;
    let second = &watched.sentinels[1];
    eventually("it listens to the second", async || {
        let clients: String = ask(second, &["CLIENT", "LIST", "TYPE", "PUBSUB"]).await;
        !clients.trim().is_empty()
    })
    .await;
    // The library takes its connection to the second for one to the first, and names that from now on.
    let ended: usize = ask(second, &["CLIENT", "KILL", "TYPE", "PUBSUB"]).await;
    assert_eq!(ended, 1);
    switch(second).await;
    eventually("the connections to the former master are given up", async || {
        let clients: String = ask(&watched.servers[0], &["CLIENT", "LIST"]).await;
        !clients.contains("name=ours")
    })
    .await;
    // The sentinels leave it that for some ten seconds, and then end its connections.
    let role: Vec<Value> = ask(&watched.servers[0], &["ROLE"]).await;
    assert_eq!(role[0], Value::BulkString(b"master".to_vec()));
    let guard = soon("a guard", client.rw_lock("a").write().acquire_fair()).await;
    guard.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn replicas_unknown_masters_and_wrong_passwords_are_refused_at_connect() {
    let watched = Watched::start().await;
    for library in [
        watched.library(SentinelServerType::Replica, NAME),
        watched.library(SentinelServerType::Master, "nobody's"),
    ] {
        let error = Client::connect(library).await.unwrap_err();
        assert!(matches!(error, Error::Connect { .. }), "{error:?}");
        assert!(error.to_string().contains("check the master's name"), "{error}");
    }
    let redis = RedisConnectionInfo::default().set_password("wrong");
    let nodes = SentinelNodeConnectionInfo::default().set_redis_connection_info(redis);
    let urls: Vec<_> = watched.sentinels.iter().map(Server::url).collect();
    let library = SentinelClient::build(urls, String::from(NAME), Some(nodes), SentinelServerType::Master);
    let error = Client::connect(library.unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("check user and password"), "{error}");
}
