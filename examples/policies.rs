//! Policies: the same three requests, in the same order, under each policy. A writer holds; a reader, a writer and
//! another reader wait. Who enters when?
//!
//! Run it with `cargo run --example policies`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error, Policy, RwLock};
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;

type Order = Arc<Mutex<Vec<&'static str>>>;

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let client = Client::connect(server.url()).await?;
    let expected = [
        (Policy::Fifo, ["reader 1", "writer", "reader 2"]),
        (Policy::WriterFirst, ["writer", "reader 1", "reader 2"]),
        (Policy::ReaderFirst, ["reader 1", "reader 2", "writer"]),
    ];
    for (policy, expected) in expected {
        let lock = client.rw_lock(format!("example:policies:{policy:?}")).policy(policy);
        let order = order_of_entry(&server, &lock).await?;
        // Readers that enter together may report in either order.
        let mut sorted = order.clone();
        if policy != Policy::Fifo {
            let readers = if policy == Policy::WriterFirst { 1..3 } else { 0..2 };
            sorted[readers].sort_unstable();
        }
        assert_eq!(sorted, expected, "{policy:?}");
        println!("{policy:?}: {}", sorted.join(", "));
    }

    // All users of a lock must name the same policy; another one is an error.
    let refused = client
        .rw_lock("example:policies:WriterFirst")
        .read()
        .acquire_fair()
        .await;
    let stored = match refused {
        Err(Error::PolicyMismatch { stored, .. }) => stored,
        other => return Err(format!("not refused: {other:?}").into()),
    };
    assert_eq!(stored, Policy::WriterFirst);
    println!("who comes with another policy is told which one the lock has: {stored:?}");
    Ok(())
}

/// Who entered after whom.
async fn order_of_entry(
    server: &common::Server,
    lock: &RwLock,
) -> Result<Vec<&'static str>, Box<dyn std::error::Error + Send + Sync>> {
    let inside = lock.write().acquire_fair().await?;
    let order = Order::default();
    let mut tasks = JoinSet::new();
    for (waiting, who) in ["reader 1", "writer", "reader 2"].into_iter().enumerate() {
        tasks.spawn(enter(lock.clone(), who, Arc::clone(&order)));
        server.until_queued(lock.name(), waiting + 1).await?;
    }
    inside.release().await?;
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    let order = order.lock().map_err(|_| "a task panicked")?;
    Ok(order.clone())
}

async fn enter(lock: RwLock, who: &'static str, order: Order) -> Result<(), Error> {
    let note = || {
        if let Ok(mut order) = order.lock() {
            order.push(who);
        }
    };
    if who == "writer" {
        let guard = lock.write().acquire_fair().await?;
        note();
        guard.release().await
    } else {
        let guard = lock.read().acquire_fair().await?;
        note();
        guard.release().await
    }
}
