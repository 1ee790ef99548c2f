//! A job that runs once a night on twenty replicas whose clocks differ. Each replica tries at midnight by its own clock.
//! The job is short: when the late replicas try, it has long ended, and its process too. The least time of its hold keeps
//! the lock busy for all of them.
//!
//! Run it with `cargo run --example nightly`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::sleep;

const REPLICAS: u64 = 20;
/// The clocks differ by at most this.
const SKEW: Duration = Duration::from_secs(1);
/// Much more than the skew, and less than the time between two runs.
const WINDOW: Duration = Duration::from_secs(60);

/// A replica: a client of its own, which ends after its try. Returns whether it ran the job.
async fn midnight(url: &str, lock: &str, runs: &AtomicUsize) -> Result<bool, Error> {
    let client = Client::connect(url).await?;
    let job = client.rw_lock(lock).write().hold_at_least(WINDOW);
    let Some(guard) = job.try_acquire().await? else {
        return Ok(false);
    };
    guard.while_held(async { runs.fetch_add(1, Ordering::Relaxed) }).await?;
    // The server keeps the hold: neither this release nor the end of the process lets another replica in. The job has run,
    // whatever becomes of the release.
    if let Err(error) = guard.release().await {
        println!("{error}");
    }
    client.shutdown().await;
    Ok(true)
}

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    // A lock of this run, because the one of an earlier run may still be held.
    let lock: Arc<str> = format!("example:nightly:{}", std::process::id()).into();
    let runs = Arc::new(AtomicUsize::new(0));

    let mut replicas = Vec::new();
    for n in 0..REPLICAS {
        let (url, lock, runs) = (server.url().to_owned(), Arc::clone(&lock), Arc::clone(&runs));
        // Clocks that differ: midnight comes at twenty moments.
        let late = SKEW * (n * 7 % REPLICAS) as u32 / REPLICAS as u32;
        replicas.push(tokio::spawn(async move {
            sleep(late).await;
            midnight(&url, &lock, &runs).await
        }));
    }
    let mut ran = 0;
    for replica in replicas {
        ran += usize::from(replica.await??);
    }
    assert_eq!(ran, 1);
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    println!("{REPLICAS} replicas tried within the window, and the job ran once");
    Ok(())
}
