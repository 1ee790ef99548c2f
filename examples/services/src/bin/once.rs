//! A job that runs at every tick of a clock, on one of several replicas and never on two.
//!
//! A lock alone says who may run now. It does not say that nobody has run: a replica whose clock is a little late finds
//! the lock free again and would run the same tick once more. So the job's store remembers the last tick that was
//! done, and is asked under the lock. With `try_acquire` nobody queues: whoever finds the lock taken has nothing to do.
//!
//! Run it with `cargo run -p fairlock-services --bin once`.

#[path = "../../../common/mod.rs"]
mod common;

use fairlock::Client;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::sleep;

const REPLICAS: u32 = 5;
const TICKS: u64 = 10;
const WORK: Duration = Duration::from_millis(20);
const LAST: &str = "services:once:last";

/// What the job did, seen from everywhere.
#[derive(Default)]
struct Runs {
    now: AtomicUsize,
    all: AtomicUsize,
}

/// How a tick went on one replica.
#[derive(PartialEq)]
enum Tick {
    Ran,
    /// Another replica is at it.
    Busy,
    /// Another replica has done it.
    Done,
}

async fn tick(
    client: &Client,
    redis: &mut MultiplexedConnection,
    number: u64,
    runs: &Runs,
) -> Result<Tick, Box<dyn std::error::Error + Send + Sync>> {
    let Some(guard) = client.rw_lock("services:once").write().try_acquire().await? else {
        return Ok(Tick::Busy);
    };
    let last: Option<u64> = redis.get(LAST).await?;
    if last >= Some(number) {
        guard.release().await?;
        return Ok(Tick::Done);
    }
    // If the lock is lost on the way the job is dropped.
    let job = async {
        assert_eq!(runs.now.fetch_add(1, Ordering::SeqCst), 0, "two replicas run at once");
        sleep(WORK).await;
        runs.all.fetch_add(1, Ordering::SeqCst);
        runs.now.fetch_sub(1, Ordering::SeqCst);
        redis.set::<_, _, ()>(LAST, number).await
    };
    guard.while_held(job).await??;
    // The job has run. A release that fails does not undo that.
    if let Err(error) = guard.release().await {
        println!("{error}");
    }
    Ok(Tick::Ran)
}

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    server.redis().await?.del::<_, ()>(LAST).await?;
    let (runs, clock) = (Arc::new(Runs::default()), Arc::new(Barrier::new(REPLICAS as usize)));
    let mut replicas = JoinSet::new();
    for replica in 0..REPLICAS {
        let client = Client::builder()
            .label(format!("replica-{replica}"))
            .connect(server.url())
            .await?;
        let mut redis = server.redis().await?;
        let (runs, clock) = (Arc::clone(&runs), Arc::clone(&clock));
        replicas.spawn(async move {
            let mut seen = [0; 3];
            for number in 1..=TICKS {
                clock.wait().await;
                // No two clocks agree.
                sleep(WORK * ((replica + number as u32) % REPLICAS) / 2).await;
                let went = tick(&client, &mut redis, number, &runs).await?;
                seen[if went == Tick::Ran {
                    0
                } else if went == Tick::Busy {
                    1
                } else {
                    2
                }] += 1;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((replica, seen))
        });
    }
    let mut ran = 0;
    while let Some(replica) = replicas.join_next().await {
        let (replica, [here, busy, done]) = replica??;
        ran += here;
        println!(
            "replica {replica}: ran {here} of {TICKS} ticks, {busy} were run elsewhere just then, {done} had been done"
        );
    }
    assert_eq!(ran, TICKS);
    assert_eq!(runs.all.load(Ordering::SeqCst) as u64, TICKS);
    println!("{TICKS} ticks on {REPLICAS} replicas: {ran} runs, never two at once");
    Ok(())
}
