//! A guard says when it is lost. Here the program blocks its executor for longer than its lease, as a suspended or
//! swapping machine does. Then nothing renews the lock, the server gives it to others, and the guard knows.
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

    // A renewed hold lasts, however short its lease is.
    let done = guard.while_held(sleep(LEASE + LEASE / 2)).await;
    assert!(done.is_ok() && guard.is_held());
    println!("held for longer than a lease: it is renewed in the background");

    // This job blocks everything, the renewals too. When the lock is lost, `while_held` drops the job at its next
    // await.
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

    // A lost guard stays lost, and others can enter.
    assert!(!guard.is_held());
    assert_eq!(guard.lost().await, LostReason::LeaseExpired);
    let other = Client::connect(server.url()).await?.rw_lock("example:lost_lease");
    let other = other.write().acquire_fair().await?;
    assert!(other.fencing_token() > guard.fencing_token());
    println!("somebody else is inside");

    // The release says so too, and does not touch the hold of the other owner.
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Lost { .. })));
    println!(
        "release: {}",
        released.err().map(|error| error.to_string()).unwrap_or_default()
    );
    assert!(other.is_held());
    other.release().await?;

    // `max_hold` ends a hold in the same way.
    let guard = lock.write().max_hold(Duration::from_millis(200)).acquire_fair().await?;
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    println!("a hold ended at its max_hold");
    Ok(())
}
