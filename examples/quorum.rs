//! A lock over three servers of which one dies: the holder keeps the lock, and the waiters enter in their order.
//!
//! Run it with `cargo run --example quorum`. It starts three private servers.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Quorum, QuorumLock};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const LEASE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> common::Outcome {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(common::Server::start().await?);
    }
    let urls: Vec<_> = servers.iter().map(|server| server.url().to_owned()).collect();
    let connect = || Quorum::builder("example").longest_lease(LEASE).connect(&urls);
    let (here, there) = (connect().await?.rw_lock("a"), connect().await?.rw_lock("a"));

    let begun = Instant::now();
    let holder = here.write().acquire_fair().await?;
    println!("new servers voted after {:?}, the longest lease", begun.elapsed());
    let first_token = holder.fencing_token().await?;
    let waiter = tokio::spawn(there.write().acquire_fair());
    until_waiting(&there).await?;

    drop(servers.pop());
    // Two renewals later the holder has seen that.
    holder.while_held(sleep(LEASE)).await?;
    assert!(holder.is_held() && !waiter.is_finished());
    println!("a server died: {} of 3 keep the hold", holder.votes());

    holder.release().await?;
    let next = waiter.await??;
    let token = next.fencing_token().await?;
    assert!(token > first_token);
    println!("the waiter is inside, and its token is greater");
    next.release().await?;
    Ok(())
}

async fn until_waiting(lock: &QuorumLock) -> common::Outcome {
    loop {
        let status = lock.status().await?;
        let waits = status
            .servers
            .iter()
            .filter(|server| server.status.as_ref().is_ok_and(|one| one.waiting == 1));
        if waits.count() == 3 {
            return Ok(());
        }
        sleep(Duration::from_millis(5)).await;
    }
}
