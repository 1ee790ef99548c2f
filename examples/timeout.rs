//! Try-lock and time limit: "not now" is an answer (`None`) and not an error.
//!
//! Run it with `cargo run --example timeout`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::Client;
use std::time::{Duration, Instant};

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let lock = Client::connect(server.url()).await?.rw_lock("example:timeout");
    let guard = lock.write().acquire_fair().await?;

    // A try-lock takes one round trip.
    let none = lock.write().try_acquire().await?;
    assert!(none.is_none());
    println!("try_acquire: somebody is inside, so there is no guard");

    // With a time limit the request queues like all others, and leaves the queue when the time ends.
    let (limit, begun) = (Duration::from_millis(200), Instant::now());
    let none = lock.write().try_acquire_for(limit).await?;
    assert!(none.is_none() && begun.elapsed() >= limit);
    println!("try_acquire_for: its turn did not come within {limit:?}");
    server.until_queued("example:timeout", 0).await?;
    println!("it left the queue");

    // Here the grant comes in time.
    let waiting = tokio::spawn(lock.write().try_acquire_for(Duration::from_secs(20)));
    server.until_queued("example:timeout", 1).await?;
    guard.release().await?;
    let guard = waiting.await??;
    assert!(guard.is_some_and(|guard| guard.is_held()));
    println!("try_acquire_for: the other one left in time, so here is the guard");
    Ok(())
}
