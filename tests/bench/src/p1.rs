//! p1: acquire and release of a free lock / `SET NX PX` and a token-checked DEL by EVALSHA.

use crate::bare::Bare;
use crate::cores::Cores;
use crate::env::{Env, connect};
use crate::least_client::LeastClient;
use crate::lua::{Account, Lua};
use crate::peers::{Kind, Locks};
use crate::raw::{Functions, Raw};
use crate::report::{Goal, Report, median};
use fairlock::RwLock;
use redis::aio::MultiplexedConnection;
use redis::{Script, Value};
use std::time::Instant;

/// Cycles of one side before the next has its turn.
const SLICE: u32 = 25;

pub async fn run(env: &Env, report: &mut Report) {
    let client = connect(&env.server.url()).await;
    let lock = client.rw_lock("p1");
    let mut plain = Plain::new(env.connection().await, "p1-plain");
    let mut bare = Bare::new(env.connection().await).of("p1").await;
    let mut raws = Vec::new();
    for functions in Functions::ALL {
        let raw = Raw::new(env.connection().await, functions).await.of("p1").await;
        raws.push((functions, raw, Vec::new()));
    }
    let raw = Raw::new(env.connection().await, Functions::Shared).await;
    let mut least_client = LeastClient::new(raw.of("p1-least-client").await);
    let url = env.server.url();
    let (mut quiet, mut asking) = (Lua::new(&url).await, Lua::new(&url).await.asking());
    let mut asks = Vec::new();
    let mut peers = Vec::new();
    for kind in Kind::PEERS {
        let locks = Locks::connect(kind, &env.server.url()).await;
        let lock = locks.mutex(&format!("p1-{}", kind.name()));
        // Some connect only now.
        lock.acquire().await.release().await;
        peers.push((kind, lock, Vec::new()));
    }
    let slices = env.times(40);
    let (mut ratios, mut floors) = (Vec::new(), Vec::new());
    let (mut server, mut floor_server) = (Vec::new(), Vec::new());
    let (mut bare_ratios, mut of_bare) = (Vec::new(), Vec::new());
    let mut least_client_ratios = Vec::new();
    let mut shared_cores = Vec::new();
    for _ in env.rounds("p1 uncontended latency") {
        let (mut ours, mut floor, mut least) = (Vec::new(), Vec::new(), Vec::new());
        let mut with_least_client = Vec::new();
        let mut without_client = [const { Vec::new() }; Functions::ALL.len()];
        let mut theirs = [const { Vec::new() }; Kind::PEERS.len()];
        for _ in 0..slices {
            floor.push(timed(async || plain.cycle().await).await);
            ours.push(timed(async || cycle(&lock).await).await);
            least.push(timed(async || bare.cycle().await).await);
            with_least_client.push(timed(async || least_client.cycle().await).await);
            for (times, (_, raw, _)) in without_client.iter_mut().zip(&mut raws) {
                times.push(timed(async || raw.cycle().await).await);
            }
            for (times, (_, lock, _)) in theirs.iter_mut().zip(&peers) {
                times.push(timed(async || lock.acquire().await.release().await).await);
            }
        }
        let floor = median(&floor);
        ratios.push(median(&ours) / floor);
        bare_ratios.push(median(&least) / floor);
        least_client_ratios.push(median(&with_least_client) / floor);
        of_bare.push(median(&ours) / median(&least));
        floors.push(floor);
        for (times, (_, _, ratios)) in without_client.iter().zip(&mut raws) {
            ratios.push(median(times) / floor);
        }
        for (times, (_, _, ratios)) in theirs.iter().zip(&mut peers) {
            ratios.push(median(times) / floor);
        }
        env.place(Cores::One);
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..slices {
            floor.push(timed(async || plain.cycle().await).await);
            ours.push(timed(async || cycle(&lock).await).await);
        }
        shared_cores.push(median(&ours) / median(&floor));
        env.place(Cores::Apart);
        let before = served(env).await;
        timed(async || plain.cycle().await).await;
        let between = served(env).await;
        timed(async || cycle(&lock).await).await;
        let after = served(env).await;
        floor_server.push((between - before) / f64::from(SLICE));
        server.push((after - between) / f64::from(SLICE));
        let (mut without, mut with) = (0.0, 0.0);
        for _ in 0..slices {
            let before = served(env).await;
            timed(async || scripts(&mut quiet).await).await;
            let between = served(env).await;
            timed(async || scripts(&mut asking).await).await;
            without += between - before;
            with += served(env).await - between;
        }
        asks.push(with / without);
    }
    let title = "uncontended acquire + release / SET NX PX + checked DEL";
    report.row("p1", title, Goal::AtMost(1.30), &ratios);
    report.beside("p1_floor", "us", &floors);
    report.beside(
        "p1_one_core",
        "the same with the server on the core of its clients, so that no call waits for a core to wake",
        &shared_cores,
    );
    report.beside(
        "p1_bare",
        "of the floor's time: the commands of our scripts alone",
        &bare_ratios,
    );
    report.beside("p1_of_bare", "ours, of the time of the commands alone", &of_bare);
    for (functions, _, ratios) in &raws {
        let what = format!("of the floor's time: {}", functions.what());
        report.beside(&format!("p1_{}", functions.key()), &what, ratios);
    }
    report.beside(
        "p1_least_client",
        "of the floor's time: the functions that share the state, by the least client",
        &least_client_ratios,
    );
    report.beside("p1_server", "us of the server's time, of ours", &server);
    report.beside(
        "p1_floor_server",
        "us of the server's time, of the floor's",
        &floor_server,
    );
    report.beside(
        "p1_asking",
        "of the server's time, when scripts ask it who listens, as in a cluster",
        &asks,
    );
    for (kind, _, ratios) in &peers {
        let key = format!("p1_peer_{}", kind.name());
        report.beside(&key, "of the floor's time", ratios);
    }
}

async fn cycle(lock: &RwLock) {
    let guard = lock.write().acquire_fair().await.expect("granted");
    guard.release().await.expect("released");
}

/// The same without the client.
async fn scripts(lua: &mut Lua) {
    let (acquire, release) = (
        lua.acquire(Account::Measured, "p1-scripts", "w0:1", "queue"),
        lua.release(Account::Measured, "p1-scripts", "w0:1"),
    );
    lua.send([acquire, release]).await;
}

/// Microseconds of a cycle, from a slice of them.
async fn timed(mut cycle: impl AsyncFnMut()) -> f64 {
    let begun = Instant::now();
    for _ in 0..SLICE {
        cycle().await;
    }
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(SLICE)
}

/// Microseconds that the server has spent in what the two sides send.
async fn served(env: &Env) -> f64 {
    env.spent("fcall").await + env.spent("evalsha").await + env.spent("set").await
}

/// The least that a lock with a lease needs.
pub struct Plain {
    redis: MultiplexedConnection,
    key: &'static str,
    delete: Script,
    n: u64,
}

impl Plain {
    pub fn new(redis: MultiplexedConnection, key: &'static str) -> Self {
        let delete = Script::new(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end",
        );
        Self {
            redis,
            key,
            delete,
            n: 0,
        }
    }

    pub async fn cycle(&mut self) {
        self.n += 1;
        let token = format!("{:032x}", self.n);
        let mut set = redis::cmd("SET");
        set.arg(self.key).arg(&token).arg("NX").arg("PX").arg(10_000);
        let set: Value = set.query_async(&mut self.redis).await.expect("a reply");
        assert_eq!(set, Value::Okay, "nobody else has the key");
        let mut call = self.delete.prepare_invoke();
        let call = call.key(self.key).arg(&token);
        let deleted: i64 = call.invoke_async(&mut self.redis).await.expect("a reply");
        assert_eq!(deleted, 1);
    }
}
