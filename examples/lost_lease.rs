//! A lock that can be lost says so. Here the program blocks its executor for longer than its lease, as a machine does
//! that is suspended or swaps: nothing renews the lock, the server gives it to others, and the guard knows.
//!
//! Run it with `cargo run --example lost_lease`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error, LostReason};
use std::time::Duration;
use tokio::time::sleep;

const LEASE: Duration = Duration::from_secs(2);

#[tokio::main(flavor = "current_thread")]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let lock = Client::connect(server.url()).await?.rw_lock("example:lost_lease");
    let guard = lock.write().lease(LEASE).acquire_fair().await?;

    // As long as it is renewed it lasts, however short its lease.
    let done = guard.while_held(sleep(LEASE + LEASE / 2)).await;
    assert!(done.is_ok() && guard.is_held());
    println!("held for longer than a lease: it is renewed in the background");

    // A job that stops everything, the renewal too. When the lock is lost the job is dropped at its next await.
    let mut wrote = false;
    let job = async {
        std::thread::sleep(LEASE + LEASE / 2);
        sleep(Duration::from_millis(10)).await;
        wrote = true;
    };
    let outcome = guard.while_held(job).await;
    assert!(matches!(
        outcome,
        Err(Error::Lost {
            reason: LostReason::LeaseExpired,
            ..
        })
    ));
    assert!(!wrote, "the job went on without the lock");
    println!("the executor was blocked for longer than the lease: the job was dropped before it wrote");

    // Once lost it stays so, and others can enter.
    assert!(!guard.is_held());
    assert_eq!(guard.lost().await, LostReason::LeaseExpired);
    let other = Client::connect(server.url()).await?.rw_lock("example:lost_lease");
    let other = other.write().acquire_fair().await?;
    assert!(other.fencing_token() > guard.fencing_token());
    println!("somebody else is inside");

    // The release says it too, and does not touch what the other one holds.
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Lost { .. })));
    println!(
        "release: {}",
        released.err().map(|error| error.to_string()).unwrap_or_default()
    );
    assert!(other.is_held());
    other.release().await?;

    // A limit that one sets oneself ends a hold in the same way.
    let guard = lock.write().max_hold(Duration::from_millis(200)).acquire_fair().await?;
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    println!("a hold ended at its max_hold");
    Ok(())
}
