//! p1: acquire and release of a free lock / `SET NX PX` and a token-checked DEL by EVALSHA.

use crate::env::{Env, connect};
use crate::peers::{Kind, Locks};
use crate::report::{Goal, Report};
use redis::aio::MultiplexedConnection;
use redis::{Script, Value};
use std::time::Instant;

/// Cycles of one side before the next has its turn.
const SLICE: u32 = 25;

pub async fn run(env: &Env, report: &mut Report) {
    let client = connect(&env.server.url()).await;
    let lock = client.rw_lock("p1");
    let mut plain = Plain::new(env.connection().await, "p1-plain");
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
    for _ in env.rounds("p1 uncontended latency") {
        let (mut ours, mut floor, mut theirs) = (0.0, 0.0, [0.0; Kind::PEERS.len()]);
        for _ in 0..slices {
            let begun = Instant::now();
            for _ in 0..SLICE {
                plain.cycle().await;
            }
            floor += begun.elapsed().as_secs_f64();
            let begun = Instant::now();
            for _ in 0..SLICE {
                let guard = lock.write().acquire_fair().await.expect("granted");
                guard.release().await.expect("released");
            }
            ours += begun.elapsed().as_secs_f64();
            for (time, (_, lock, _)) in theirs.iter_mut().zip(&peers) {
                let begun = Instant::now();
                for _ in 0..SLICE {
                    lock.acquire().await.release().await;
                }
                *time += begun.elapsed().as_secs_f64();
            }
        }
        ratios.push(ours / floor);
        floors.push(floor * 1e6 / f64::from(SLICE) / slices as f64);
        for (time, (_, _, ratios)) in theirs.iter().zip(&mut peers) {
            ratios.push(time / floor);
        }
    }
    let title = "uncontended acquire + release / SET NX PX + checked DEL";
    report.row("p1", title, Goal::AtMost(1.10), &ratios);
    report.beside("p1_floor", "us", &floors);
    for (kind, _, ratios) in &peers {
        let key = format!("p1_peer_{}", kind.name());
        report.beside(&key, "of the floor's time", ratios);
    }
}

/// The least that a lock with a lease needs.
struct Plain {
    redis: MultiplexedConnection,
    key: &'static str,
    delete: Script,
    n: u64,
}

impl Plain {
    fn new(redis: MultiplexedConnection, key: &'static str) -> Self {
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

    async fn cycle(&mut self) {
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
