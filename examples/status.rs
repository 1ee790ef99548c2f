//! Status: who holds the lock and who waits, since when and from where. Eviction: an operator removes an owner that
//! does not release.
//!
//! Run it with `cargo run --example status`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error, LostReason};
use std::time::Duration;

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let billing = Client::builder().label("billing").connect(server.url()).await?;
    let mailing = Client::builder().label("mailing").connect(server.url()).await?;
    let operator = Client::connect(server.url()).await?.rw_lock("example:status");

    // The lock is stuck: billing holds it and does not release.
    let stuck = billing.rw_lock("example:status").write().acquire_fair().await?;
    let waiting = tokio::spawn(mailing.rw_lock("example:status").read().acquire_fair());
    let status = loop {
        let status = operator.status().await?;
        if status.waiting == 1 {
            break status;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let (holder, waiter) = (&status.holders[0], &status.waiters[0]);
    println!("{:?} by {}, token {}", holder.mode, holder.client, holder.token);
    println!("waiting at {}: {:?} by {}", waiter.position, waiter.mode, waiter.client);
    assert_eq!(holder.client.label.as_deref(), Some("billing"));
    assert_eq!(holder.owner, stuck.owner());
    assert_eq!(waiter.client.label.as_deref(), Some("mailing"));

    // The last resort. The next waiter enters in the same step, and the evicted owner learns of it from its guard.
    assert_eq!(operator.evict(&holder.owner).await?, 1);
    let reading = waiting.await??;
    assert!(
        reading.fencing_token() > stuck.fencing_token(),
        "that is what keeps them apart until it has learned"
    );
    assert_eq!(stuck.lost().await, LostReason::Evicted);
    assert!(matches!(stuck.release().await, Err(Error::Lost { .. })));
    println!("billing was evicted and knows it; mailing is in");
    reading.release().await?;
    Ok(())
}
