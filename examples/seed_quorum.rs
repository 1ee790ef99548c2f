//! Coming from Redlock or redsync, call by call: a mutex that sets a random text under a key at several servers, counts to
//! a majority, and tries again after a random pause.
//!
//! | theirs | ours | better how |
//! |---|---|---|
//! | `redsync.New(pools...)` | `Quorum::builder(name).connect(urls)` | refuses a server that is named twice, and servers of another quorum |
//! | `NewMutex(name, WithExpiry(d))` | `quorum.rw_lock(name).write().lease(d)` | readers can share it too |
//! | `Lock()`: tries, with random pauses between them | `acquire_fair()` | in the order of the places; a waiter is told |
//! | `TryLock()` | `try_acquire()` | |
//! | `WithTries(n)`, `WithRetryDelay(d)` | `try_acquire_for(limit)` | a time, and no tries |
//! | `Extend()`, again and again | nothing: the client renews while the guard lives | one call for all locks of a server |
//! | `Until()` | `is_held()`, `lost()`, `while_held(job)` | wakes the holder when the lock is lost |
//! | `Value()`: a random text | `fencing_token()` | grows, so that the resource can refuse a late write |
//! | `Unlock()`: whether a majority deleted the text | `release()` | hands the lock over in the same step |
//! | a restarted server forgets, and votes at once | it votes after the longest lease | two holders never count the same vote |
//!
//! Run it with `cargo run --example seed_quorum`. It starts three private servers.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Error, Quorum, QuorumLock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

const TOTAL: u64 = 30;
const LEASE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> common::Outcome {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(common::Server::start().await?);
    }
    let urls: Vec<_> = servers.iter().map(|server| server.url().to_owned()).collect();
    let connect = || Quorum::builder("seed").longest_lease(LEASE).connect(&urls);
    // `redsync.New`, in two processes.
    let (here, there) = (connect().await?, connect().await?);
    let (mine, yours) = (here.rw_lock("my-mutex"), there.rw_lock("my-mutex"));

    // Lock and Unlock; TryLock beside a holder.
    let guard = mine.write().acquire_fair().await?;
    assert!(yours.write().try_acquire().await?.is_none());
    // WithTries.
    let limit = Duration::from_millis(100);
    assert!(yours.write().try_acquire_for(limit).await?.is_none());
    // Extend: the work takes longer than the lease.
    guard.while_held(tokio::time::sleep(LEASE + LEASE / 4)).await?;
    guard.release().await?;
    println!("work took longer than the lease of {LEASE:?}: the lock was held all the time");

    all_count(&mine, &yours).await?;

    // A minority dies, and both go on.
    drop(servers.pop());
    all_count(&mine, &yours).await?;
    println!("the same with two servers of three");

    // A majority dies.
    let guard = mine.write().acquire_fair().await?;
    drop(servers.pop());
    let lost = guard.while_held(std::future::pending::<()>()).await;
    assert!(matches!(lost, Err(Error::Lost { .. })));
    println!(
        "with one of three the holder knew: {}",
        lost.err().map(|error| error.to_string()).unwrap_or_default()
    );
    Ok(())
}

/// All ask at once; each has a greater token than those before.
async fn all_count(mine: &QuorumLock, yours: &QuorumLock) -> common::Outcome {
    static GREATEST: AtomicU64 = AtomicU64::new(0);
    let mut tasks = JoinSet::new();
    for id in 0..TOTAL {
        let lock = if id % 2 == 0 { mine } else { yours }.clone();
        tasks.spawn(async move {
            let guard = lock.write().acquire_fair().await?;
            let token = guard.fencing_token().await?.get();
            let before = GREATEST.swap(token, Ordering::SeqCst);
            guard.release().await?;
            Ok::<_, Error>(token > before)
        });
    }
    let mut grown = 0;
    while let Some(greater) = tasks.join_next().await {
        grown += u64::from(greater??);
    }
    assert_eq!(grown, TOTAL, "each token is greater than the one before");
    println!("{TOTAL} tasks entered one by one, and their tokens grew");
    Ok(())
}
