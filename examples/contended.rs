//! A long job that yields: it holds the lock for as long as nobody else wants it.
//!
//! Run it with `cargo run --example contended`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error, RwLock};
use std::pin::pin;
use tokio::sync::watch;

const NAME: &str = "example:contended";

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let client = Client::connect(server.url()).await?;
    let (enough, is_enough) = watch::channel(false);
    let job = tokio::spawn(long_job(client.rw_lock(NAME), is_enough));

    // The long job does not end by itself, so these two enter because it yields.
    let elsewhere = Client::connect(server.url()).await?;
    for n in 1..=2 {
        let guard = elsewhere.rw_lock(NAME).write().acquire_fair().await?;
        println!("short job {n} is inside");
        guard.release().await?;
    }
    enough.send(true)?;
    let (rows, turns) = job.await??;
    println!("the long job worked on {rows} rows in {turns} turns: it left only when others waited");
    Ok(())
}

/// Works on row after row, and leaves the lock only when somebody else waits for it.
async fn long_job(lock: RwLock, is_enough: watch::Receiver<bool>) -> Result<(u64, u32), Error> {
    let (mut rows, mut turns) = (0, 0);
    while !*is_enough.borrow() {
        let guard = lock.write().acquire_fair().await?;
        turns += 1;
        {
            // One call for the whole turn, because each call reads the status.
            let mut contended = pin!(guard.contended());
            while !*is_enough.borrow() {
                tokio::select! {
                    biased;
                    waits = &mut contended => {
                        waits?;
                        break;
                    }
                    () = work_on(rows) => rows += 1,
                }
            }
        }
        guard.release().await?;
    }
    Ok((rows, turns))
}

async fn work_on(_row: u64) {
    tokio::task::yield_now().await;
}
