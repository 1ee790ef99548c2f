//! A deadlock on purpose: two owners take two locks in opposite orders. The youngest wait is told the circle in words, lets
//! go of what it holds, and tries again.
//!
//! Run it with `cargo run --example deadlock`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error, Owner, RwLock};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Barrier;

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let both_hold = Arc::new(Barrier::new(2));
    let mut transfers = Vec::new();
    for (label, order) in [("red", ["alice", "bob"]), ("blue", ["bob", "alice"])] {
        // Each would be a process. The default is a second.
        let builder = Client::builder()
            .label(label)
            .deadlock_timeout(Duration::from_millis(100));
        let client = builder.connect(server.url()).await?;
        let accounts = order.map(|name| client.rw_lock(format!("example:account:{name}")));
        let both_hold = Arc::clone(&both_hold);
        // Only named owners can be followed from lock to lock. All requests in the scope are this owner's.
        transfers.push(tokio::spawn(
            Owner::new().scope(async move { transfer(label, &accounts, Some(&both_hold)).await }),
        ));
    }
    let mut told = 0;
    for transfer in transfers {
        told += transfer.await??;
    }
    assert_eq!(told, 1);
    println!("both transfers are done, and one of the two was told of the deadlock");
    Ok(())
}

/// Returns how often it was told of a deadlock.
async fn transfer(label: &str, [from, to]: &[RwLock; 2], mut both_hold: Option<&Barrier>) -> Result<u32, Error> {
    let mut told = 0;
    loop {
        let first = from.write().acquire_fair().await?;
        // Only for the example: now the other one holds its first lock, too.
        if let Some(both_hold) = both_hold.take() {
            both_hold.wait().await;
        }
        match to.write().acquire_fair().await {
            Ok(second) => {
                println!("{label} moves the money");
                second.release().await?;
                first.release().await?;
                return Ok(told);
            }
            Err(error @ Error::Deadlock { .. }) => {
                println!("{label} is told: {error}");
                told += 1;
                first.release().await?;
            }
            Err(error) => return Err(error),
        }
    }
}
