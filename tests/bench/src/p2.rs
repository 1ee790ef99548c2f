//! p2: cycles of free locks per second, with many tasks on one client / the same of two plain EVALSHA per cycle.

use crate::bare::Bare;
use crate::env::Env;
use crate::least_client::LeastClient;
use crate::peers::{Kind, Locks, Mutex};
use crate::raw::{Functions, Raw};
use crate::report::{Goal, Report, median};
use redis::Script;
use redis::aio::MultiplexedConnection;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Enough to keep a server busy; each has a lock of its own.
const TASKS: usize = 64;

/// What somebody would write who needs a lease, a token and no queue.
const ACQUIRE: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lock = redis.call('HMGET', KEYS[1], 'owner', 'until', 'token')
local owner, deadline, token = lock[1], lock[2], lock[3]
if owner and owner ~= ARGV[1] and tonumber(deadline) > now then
  return 0
end
if owner ~= ARGV[1] then
  token = tonumber(token or 0) + 1
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'until', now + tonumber(ARGV[2]), 'token', token)
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) * 2 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2] * 4)
end
return token";

const RELEASE: &str = "
local lock = redis.call('HMGET', KEYS[1], 'owner', 'until')
local owner, deadline = lock[1], lock[2]
if not owner then
  return 0
end
if owner ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HDEL', KEYS[1], 'owner', 'until')
if tonumber(deadline) < now then
  return 1
end
return 2";

#[derive(Clone)]
enum Side {
    Plain(MultiplexedConnection, Arc<[Script; 2]>),
    Bare(Bare),
    Raw(Raw),
    LeastClient(Raw),
    Locks(Locks),
}

pub async fn run(env: &Env, report: &mut Report) {
    let scripts = Arc::new([Script::new(ACQUIRE), Script::new(RELEASE)]);
    let mut sides = vec![("floor", Side::Plain(env.connection().await, scripts))];
    for kind in Kind::ALL {
        let locks = Locks::connect(kind, &env.server.url()).await;
        sides.push((kind.name(), Side::Locks(locks)));
    }
    let bare = sides.len();
    sides.push(("bare", Side::Bare(Bare::new(env.connection().await))));
    for functions in Functions::ALL {
        let raw = Raw::new(env.connection().await, functions).await;
        sides.push((functions.key(), Side::Raw(raw)));
    }
    let least_client = sides.len();
    let raw = Raw::new(env.connection().await, Functions::Shared).await;
    sides.push(("least-client", Side::LeastClient(raw)));
    let slices = env.times(15);
    let mut rates = vec![Vec::new(); sides.len()];
    for _ in env.rounds("p2 uncontended throughput") {
        let mut of_slices = vec![Vec::new(); sides.len()];
        for _ in 0..slices {
            for (rates, (name, side)) in of_slices.iter_mut().zip(&sides) {
                rates.push(per_second(name, side, Duration::from_millis(30)).await);
            }
        }
        for (rates, of_slices) in rates.iter_mut().zip(of_slices) {
            rates.push(median(&of_slices));
        }
    }
    let of_floor = |side: usize| -> Vec<f64> { rates[side].iter().zip(&rates[0]).map(|(a, b)| a / b).collect() };
    let title = "uncontended cycles per second, 64 tasks on 64 locks / two plain 15-line EVALSHA";
    report.row("p2", title, Goal::AtLeast(0.9), &of_floor(1));
    report.beside("p2_floor", "per second", &rates[0]);
    for (side, (name, _)) in sides.iter().enumerate().take(bare).skip(2) {
        report.beside(&format!("p2_peer_{name}"), "of the floor's rate", &of_floor(side));
    }
    for (functions, side) in Functions::ALL.into_iter().zip(bare + 1..) {
        let what = format!("of the floor's rate: {}", functions.what());
        report.beside(&format!("p2_{}", functions.key()), &what, &of_floor(side));
    }
    report.beside(
        "p2_least_client",
        "of the floor's rate: the functions that share the state, by the least client",
        &of_floor(least_client),
    );
    report.beside(
        "p2_bare",
        "of the floor's rate: the commands of our scripts alone",
        &of_floor(bare),
    );
    let of_bare: Vec<f64> = rates[1].iter().zip(&rates[bare]).map(|(a, b)| a / b).collect();
    report.beside("p2_of_bare", "ours, of the rate of the commands alone", &of_bare);
}

async fn per_second(name: &str, side: &Side, time: Duration) -> f64 {
    let begun = Instant::now();
    let task = |task: usize| {
        let key = format!("p2-{name}-{task}");
        let side = side.clone();
        tokio::spawn(async move {
            match side {
                Side::Plain(redis, scripts) => plain(redis, &scripts, &key, begun, time).await,
                Side::Bare(bare) => {
                    let mut bare = bare.of(&key).await;
                    let mut cycles = 0;
                    while begun.elapsed() < time {
                        bare.cycle().await;
                        cycles += 1;
                    }
                    cycles
                }
                Side::Raw(raw) => {
                    let mut raw = raw.of(&key).await;
                    let mut cycles = 0;
                    while begun.elapsed() < time {
                        raw.cycle().await;
                        cycles += 1;
                    }
                    cycles
                }
                Side::LeastClient(raw) => {
                    let mut client = LeastClient::new(raw.of(&key).await);
                    let mut cycles = 0;
                    while begun.elapsed() < time {
                        client.cycle().await;
                        cycles += 1;
                    }
                    cycles
                }
                Side::Locks(locks) => locked(&locks.mutex(&key), begun, time).await,
            }
        })
    };
    let running: Vec<_> = (0..TASKS).map(task).collect();
    let mut cycles = 0;
    for task in running {
        cycles += task.await.expect("cycles");
    }
    cycles as f64 / begun.elapsed().as_secs_f64()
}

async fn locked(lock: &Mutex, begun: Instant, time: Duration) -> usize {
    let mut cycles = 0;
    while begun.elapsed() < time {
        lock.acquire().await.release().await;
        cycles += 1;
    }
    cycles
}

async fn plain(
    mut redis: MultiplexedConnection,
    [acquire, release]: &[Script; 2],
    key: &str,
    begun: Instant,
    time: Duration,
) -> usize {
    let mut cycles = 0;
    while begun.elapsed() < time {
        let owner = format!("{key}:{cycles}");
        let mut call = acquire.prepare_invoke();
        let token: i64 = call
            .key(key)
            .arg(&owner)
            .arg(10_000)
            .invoke_async(&mut redis)
            .await
            .expect("a reply");
        assert!(token > 0, "nobody else wants {key}");
        let mut call = release.prepare_invoke();
        let released: i64 = call
            .key(key)
            .arg(&owner)
            .invoke_async(&mut redis)
            .await
            .expect("a reply");
        assert_eq!(released, 2);
        cycles += 1;
    }
    cycles
}
