//! What fairlock costs beside the least that Redis can do, as ratios measured in one run: `cargo bench --bench ratios`.
//!
//! Both sides of a ratio take turns, so that a machine that speeds up or slows down does so for both. Each line gives
//! the median of the rounds' ratios and their spread.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

#[path = "../tests/it/server.rs"]
#[allow(dead_code, unreachable_pub, clippy::panic, reason = "the harness of the tests")]
mod server;

use fairlock::{Client, RwLock};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, Script, Value};
use server::Server;
use std::io::Write;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

const ROUNDS: usize = 15;

#[tokio::main]
async fn main() {
    let server = Server::start().await;
    println!("ratios: median of {ROUNDS} rounds (least to greatest); loopback, everything on this machine");
    uncontended(&server).await;
    hand_over(&server).await;
    for script in [PerScript::Queue, PerScript::Release, PerScript::Renew] {
        queue_length(&server, script).await;
    }
}

/// Acquire and release of a free lock / `SET NX PX` and a token-checked DEL.
async fn uncontended(server: &Server) {
    const CYCLES: u32 = 1000;
    let client = Client::connect(server.url()).await.unwrap();
    let lock = client.rw_lock("uncontended");
    let mut redis = server.redis().await;
    let delete = Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end",
    );
    let mut ratios = Vec::new();
    let mut floors = Vec::new();
    for _ in progress("uncontended") {
        let begun = Instant::now();
        for _ in 0..CYCLES {
            let mut set = redis::cmd("SET");
            set.arg("plain").arg("token").arg("NX").arg("PX").arg(10_000);
            let _: Value = set.query_async(&mut redis).await.unwrap();
            let _: i64 = delete.key("plain").arg("token").invoke_async(&mut redis).await.unwrap();
        }
        let floor = begun.elapsed() / CYCLES;
        let begun = Instant::now();
        for _ in 0..CYCLES {
            lock.write().acquire_fair().await.unwrap().release().await.unwrap();
        }
        ratios.push(ratio(begun.elapsed() / CYCLES, floor));
        floors.push(floor);
    }
    report("acquire + release / SET NX PX + checked DEL", ratios, floors);
}

/// From the call of release in one client until the guard is in hand in another / one EVALSHA that publishes until the
/// push arrives elsewhere.
async fn hand_over(server: &Server) {
    const TIMES: usize = 300;
    let (a, b) = (
        Client::connect(server.url()).await.unwrap(),
        Client::connect(server.url()).await.unwrap(),
    );
    let (a, b) = (a.rw_lock("hand-over"), b.rw_lock("hand-over"));
    let (mut ratios, mut floors) = (Vec::new(), Vec::new());
    let (mut push, mut redis) = (Push::new(server).await, server.redis().await);
    for _ in progress("hand-over") {
        let mut floor = Vec::new();
        for _ in 0..TIMES {
            floor.push(push.once(&mut redis).await);
        }
        let mut ours = Vec::new();
        for _ in 0..TIMES {
            ours.push(hand_over_once(server, &mut redis, &a, &b).await);
        }
        let floor = median(&mut floor);
        ratios.push(ratio(median(&mut ours), floor));
        floors.push(floor);
    }
    report(
        "hand-over p50 / EVALSHA that publishes until the push p50",
        ratios,
        floors,
    );
}

async fn hand_over_once(server: &Server, redis: &mut MultiplexedConnection, a: &RwLock, b: &RwLock) -> Duration {
    let guard = a.write().acquire_fair().await.unwrap();
    let next = tokio::spawn({
        let acquire = b.write().acquire_fair();
        async move {
            let guard = acquire.await.unwrap();
            (Instant::now(), guard)
        }
    });
    let queue = "fairlock:{hand-over}:queue";
    let begun = Instant::now();
    while redis::cmd("ZCARD").arg(queue).query_async::<i64>(redis).await.unwrap() == 0 {
        assert!(begun.elapsed() < server::PATIENCE, "nobody queued at {}", server.url());
    }
    let released = Instant::now();
    guard.release().await.unwrap();
    let (entered, guard) = next.await.unwrap();
    guard.release().await.unwrap();
    entered - released
}

struct Push {
    arrived: mpsc::UnboundedReceiver<Instant>,
    script: Script,
    _connection: MultiplexedConnection,
}

impl Push {
    async fn new(server: &Server) -> Self {
        let (sender, arrived) = mpsc::unbounded_channel();
        let info = redis::Client::open(server.url()).unwrap().get_connection_info().clone();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = redis::Client::open(info.set_redis_settings(settings)).unwrap();
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: redis::PushInfo| match push.kind {
            redis::PushKind::Message => sender.send(Instant::now()),
            _ => Ok(()),
        });
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .unwrap();
        connection.subscribe("floor").await.unwrap();
        let script = Script::new("redis.call('SET', KEYS[1], ARGV[1]) return redis.call('PUBLISH', 'floor', ARGV[1])");
        Self {
            arrived,
            script,
            _connection: connection,
        }
    }

    async fn once(&mut self, redis: &mut MultiplexedConnection) -> Duration {
        let begun = Instant::now();
        let mut call = self.script.prepare_invoke();
        let call = call.key("floor").arg("1760400000123456");
        let (heard, arrived) = tokio::join!(call.invoke_async::<i64>(redis), self.arrived.recv());
        assert_eq!(heard.unwrap(), 1);
        arrived.unwrap() - begun
    }
}

#[derive(Clone, Copy, Debug)]
enum PerScript {
    Queue,
    Release,
    Renew,
}

/// Server time of a script with 10,000 waiters / with 10, from the server's own count.
async fn queue_length(server: &Server, what: PerScript) {
    const CALLS: usize = 1000;
    let mut lua = Lua::new(server).await;
    let (mut ratios, mut floors) = (Vec::new(), Vec::new());
    for (key, waiters) in [("short", 10), ("long", 10_000)] {
        let key = format!("{key}-{what:?}");
        for n in 0..=waiters {
            lua.acquire(&key, &format!("w{:015x}:{n}", 7)).await;
        }
    }
    for round in progress(&format!("{what:?}")) {
        let mut times = [0.0; 2];
        for (time, key) in times.iter_mut().zip(["short", "long"]) {
            let key = format!("{key}-{what:?}");
            *time = lua.timed(&key, what, 1_000_000 + round * CALLS, CALLS).await;
        }
        ratios.push(times[1] / times[0]);
        floors.push(Duration::from_secs_f64(times[0] / 1e6));
    }
    report(
        &format!("server time of {what:?} with 10,000 waiters / with 10"),
        ratios,
        floors,
    );
}

/// The scripts called directly, in the name of a client that does not exist.
struct Lua {
    redis: MultiplexedConnection,
    acquire: Script,
    release: Script,
    renew: Script,
}

impl Lua {
    async fn new(server: &Server) -> Self {
        let script = |head: &str, body: &str| Script::new(&[head, include_str!("../lua/lock.lua"), body].concat());
        Self {
            redis: server.redis().await,
            acquire: script(
                include_str!("../lua/acquire_head.lua"),
                include_str!("../lua/acquire.lua"),
            ),
            release: script(
                include_str!("../lua/release_head.lua"),
                include_str!("../lua/release.lua"),
            ),
            renew: script("", include_str!("../lua/renew.lua")),
        }
    }

    async fn call(&mut self, script: &Script, lock: &str, args: &[&str]) -> Vec<i64> {
        let mut call = script.prepare_invoke();
        let state = format!("fairlock:{{{lock}}}");
        call.key(&state)
            .key(format!("{state}:queue"))
            .key(format!("{state}:leases"));
        call.arg("PUBLISH").arg("fairlock:c:").arg("").arg(args);
        call.invoke_async(&mut self.redis).await.unwrap()
    }

    async fn acquire(&mut self, lock: &str, request: &str) {
        let script = self.acquire.clone();
        self.call(&script, lock, &[request, "600000", "queue", "", ""]).await;
    }

    /// Mean microseconds of a call. `Queue`: a newcomer at the tail. `Release`: the holder leaves, the head enters.
    async fn timed(&mut self, lock: &str, what: PerScript, first: usize, calls: usize) -> f64 {
        let (release, renew) = (self.release.clone(), self.renew.clone());
        let mut spent = 0.0;
        for n in first..first + calls {
            let name = format!("w{:015x}:{n}", 7);
            match what {
                PerScript::Queue => {
                    let before = self.spent().await;
                    self.acquire(lock, &name).await;
                    spent += self.spent().await - before;
                    self.call(&release, lock, &[&name]).await;
                }
                PerScript::Release => {
                    self.acquire(lock, &name).await;
                    let writer: String = redis::cmd("HGET")
                        .arg(format!("fairlock:{{{lock}}}"))
                        .arg("writer")
                        .query_async(&mut self.redis)
                        .await
                        .unwrap();
                    let before = self.spent().await;
                    self.call(&release, lock, &[&format!("w{writer}")]).await;
                    spent += self.spent().await - before;
                }
                PerScript::Renew => {
                    let waiter = format!("w{:015x}:5", 7);
                    let before = self.spent().await;
                    self.call(&renew, lock, &[&waiter, "600000"]).await;
                    spent += self.spent().await - before;
                }
            }
        }
        spent / calls as f64
    }

    /// Microseconds that the server has spent in scripts.
    async fn spent(&mut self) -> f64 {
        let text: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut self.redis)
            .await
            .unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let usec = line.and_then(|line| line.split("usec=").nth(1)?.split(',').next()?.parse().ok());
        usec.unwrap_or(0.0)
    }
}

fn ratio(ours: Duration, floor: Duration) -> f64 {
    ours.as_secs_f64() / floor.as_secs_f64()
}

fn median<T: Ord + Copy>(values: &mut [T]) -> T {
    values.sort();
    values[values.len() / 2]
}

fn progress(what: &str) -> impl Iterator<Item = usize> + use<> {
    let what = what.to_owned();
    (0..ROUNDS).inspect(move |round| {
        eprint!("\r{what}: round {}/{ROUNDS}    ", round + 1);
        std::io::stderr().flush().unwrap();
    })
}

fn report(what: &str, mut ratios: Vec<f64>, mut floors: Vec<Duration>) {
    ratios.sort_by(f64::total_cmp);
    let (least, greatest) = (ratios[0], ratios[ratios.len() - 1]);
    let (middle, floor) = (ratios[ratios.len() / 2], median(&mut floors));
    eprint!("\r{:40}\r", "");
    println!("{what}: {middle:.2} ({least:.2} to {greatest:.2}); below the line {floor:.1?}");
}
