//! What waiting costs: 1,000 tasks wait behind a writer for longer than a lease. Together they send only renewals, a
//! few calls for all of them. Then they enter one by one, each by one message.
//!
//! Run it with `cargo run --example parked_waiters`. It uses the server that `REDIS_URL` names, or starts a private
//! one. It counts calls and messages only on a private server, where all of them are its own.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const WAITERS: u64 = 1000;
const LEASE: Duration = Duration::from_secs(3);
/// The client renews at a third of the lease. A call renews up to 500 requests of a lock: 2 calls for the waiters, 1
/// for the holder, and a few more if the waiters did not all queue at about the same time.
const INTERVAL: Duration = Duration::from_secs(1);
const CALLS_PER_INTERVAL: u64 = 5;

#[tokio::main]
async fn main() -> common::Outcome {
    const NAME: &str = "example:parked_waiters";
    let server = common::Server::find_or_start().await?;
    let builder = Client::builder().lease(LEASE);
    let holder = builder.clone().connect(server.url()).await?.rw_lock(NAME);
    let client = builder.connect(server.url()).await?;

    let guard = holder.write().acquire_fair().await?;
    let mut waiters = JoinSet::new();
    for _ in 0..WAITERS {
        let acquire = client.rw_lock(NAME).write().acquire_fair();
        waiters.spawn(async move { acquire.await?.release().await });
    }
    server.until_queued(NAME, WAITERS as usize).await?;

    // All wait.
    let (calls, messages) = (server.script_calls().await?, server.calls("publish").await?);
    let begun = Instant::now();
    tokio::time::sleep(LEASE + LEASE / 6).await;
    let sent = common::since(server.script_calls().await?, calls);
    let parked = begun.elapsed();
    println!("{WAITERS} tasks waited for {parked:.1?}, longer than a lease");
    server.until_queued(NAME, WAITERS as usize).await?;
    if let Some(sent) = sent {
        println!("they and the holder sent {sent} renewals");
        assert!(sent >= 3, "nobody renewed: the waiters would have expired");
        assert!(sent <= at_most(parked), "waiting costs more than renewals");
    }
    let told = common::since(server.calls("publish").await?, messages);
    assert_eq!(told.unwrap_or(0), 0, "a message, though nobody entered");

    // The lock goes from one waiter to the next.
    let (calls, begun) = (server.script_calls().await?, Instant::now());
    guard.release().await?;
    while let Some(waiter) = waiters.join_next().await {
        let released: Result<(), Error> = waiter?;
        released?;
    }
    let took = begun.elapsed();
    println!("then {WAITERS} entered one by one within {took:.1?}");
    let messages = common::since(server.calls("publish").await?, messages);
    let calls = common::since(server.script_calls().await?, calls);
    let Some((messages, calls)) = messages.zip(calls) else {
        println!("others use the server, so calls are not counted");
        return Ok(());
    };
    println!("that took {messages} messages, {calls} script calls");
    assert_eq!(messages, WAITERS, "each grant is one message");
    // Nobody acquires again: there are only releases, also of the first holder, and renewals of the remaining waiters.
    assert!(
        calls > WAITERS && calls <= WAITERS + 1 + at_most(took),
        "{calls} script calls"
    );
    Ok(())
}

/// The calls that renewals may take in that time.
fn at_most(time: Duration) -> u64 {
    time.as_millis().div_ceil(INTERVAL.as_millis()) as u64 * CALLS_PER_INTERVAL
}
