//! Owners: a function that holds the lock calls another function that acquires it too, perhaps in another process. Both
//! act for the same owner, so the inner function does not wait for the outer one, and nobody enters between.
//!
//! Run it with `cargo run --example owners`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error, FencingToken, Owner, RwLock};
use std::time::Duration;

const NAME: &str = "example:owners";

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let (here, there) = (
        Client::connect(server.url()).await?,
        Client::connect(server.url()).await?,
    );

    let me = Owner::new();
    let mine = here.rw_lock(NAME).with_owner(&me);
    let outer = mine.write().acquire_fair().await?;
    let waiting = tokio::spawn(there.rw_lock(NAME).write().acquire_fair());
    server.until_queued(NAME, 1).await?;
    println!("I write, and somebody else waits");

    let token = audit(&mine).await?;
    assert_eq!(token, outer.fencing_token());
    println!("a function that I called took the lock again: it did not wait, and its token was mine");

    // An owner is a number. A process that gets it acts for the same owner.
    let elsewhere = Owner::from_uuid(me.uuid());
    let token = audit(&there.rw_lock(NAME).with_owner(&elsewhere)).await?;
    assert_eq!(token, outer.fencing_token());
    println!("so did another process that I gave my number to");

    let inner = mine.write().acquire_fair().await?;
    outer.release().await?;
    server.until_queued(NAME, 1).await?;
    assert!(!waiting.is_finished());
    println!("I took it twice and released it once: the other one still waits");
    inner.release().await?;
    let other = waiting.await??;
    assert!(other.fencing_token() > token);
    println!("I released it twice: the other one is inside");

    // Tasks that run side by side need an owner each, because two waits of one owner could wait for each other.
    let first = tokio::spawn(mine.write().acquire_fair());
    server.until_queued(NAME, 1).await?;
    let second = mine.read().try_acquire_for(Duration::from_secs(120)).await;
    assert!(matches!(second, Err(Error::OwnerWaiting { .. })));
    println!("a second wait of one owner is refused");
    other.release().await?;
    first.await??.release().await?;
    Ok(())
}

/// This function need not know whether its caller holds the lock.
async fn audit(lock: &RwLock) -> Result<FencingToken, Error> {
    let guard = lock.read().acquire_fair().await?;
    let token = guard.fencing_token();
    guard.release().await?;
    Ok(token)
}
