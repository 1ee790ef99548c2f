//! Cancellation: if you drop the future of an acquisition, the request leaves the queue and the waiters behind it move
//! up. A `timeout`, a `select!` or an aborted task may drop the future.
//!
//! Run it with `cargo run --example cancellation`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::Client;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

#[tokio::main]
async fn main() -> common::Outcome {
    const NAME: &str = "example:cancellation";
    let server = common::Server::find_or_start().await?;
    let lock = Client::connect(server.url()).await?.rw_lock(NAME);
    let other = Client::connect(server.url()).await?.rw_lock(NAME);
    let reader = lock.read().acquire_fair().await?;

    // By a timeout.
    let late = timeout(Duration::from_millis(200), lock.write().acquire_fair()).await;
    assert!(late.is_err());
    server.until_queued(NAME, 0).await?;
    println!("a writer gave up after 200 ms and is out of the queue");

    // By select!. A writer waits for the reader inside, and a reader of another client waits behind that writer.
    let (stop, stopped) = oneshot::channel::<()>();
    let writer = tokio::spawn({
        let acquire = lock.write().acquire_fair();
        async move {
            tokio::select! {
                guard = acquire => guard.map(Some),
                _ = stopped => Ok(None),
            }
        }
    });
    server.until_queued(NAME, 1).await?;
    let behind = tokio::spawn(other.read().acquire_fair());
    server.until_queued(NAME, 2).await?;
    println!("a writer waits, and a reader behind it");
    drop(stop);
    assert!(writer.await??.is_none());
    let behind = behind.await??;
    assert!(reader.is_held() && behind.is_held());
    println!("the writer was told to stop: the reader behind it is inside, beside the first one");
    behind.release().await?;
    reader.release().await?;

    // By the end of a task. If the grant comes at the same moment, the client hands the lock over.
    for _ in 0..50 {
        let guard = lock.write().acquire_fair().await?;
        let racing = tokio::spawn(other.write().acquire_fair());
        server.until_queued(NAME, 1).await?;
        drop(guard);
        racing.abort();
        // The task was cancelled, or its guard is dropped here.
        drop(racing.await);
        let next = timeout(Duration::from_secs(120), lock.write().acquire_fair()).await;
        next.map_err(|_| "a grant that nobody took was not passed on")??
            .release()
            .await?;
    }
    println!("50 tasks were aborted around the moment of their grant: the next one entered each time");
    Ok(())
}
