//! Events: a stream tells what happens to a lock. Events cost nothing while nobody listens.
//!
//! Run it with `cargo run --example events`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, EventKind};

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let client = Client::connect(server.url()).await?;
    let lock = client.rw_lock("example:events");
    let mut events = lock.events().await?;

    let guard = lock.write().acquire_fair().await?;
    let next = tokio::spawn(lock.read().acquire_fair());
    let mut seen = Vec::new();
    let mut holding = Some(guard);
    while seen.len() < 4 {
        // An error says that the stream missed events; then the stream goes on.
        let event = events.next().await.expect("it never ends")?;
        println!(
            "{:?} {:?} of client {}, token {:?}",
            event.kind, event.mode, event.client_id, event.token
        );
        seen.push(event.kind);
        if event.kind == EventKind::Queued
            && let Some(guard) = holding.take()
        {
            guard.release().await?;
        }
    }
    assert_eq!(
        seen,
        [
            EventKind::Granted,
            EventKind::Queued,
            EventKind::Released,
            EventKind::Granted
        ]
    );
    println!("a writer entered, a reader queued, the writer left and the reader entered");
    next.await??.release().await?;
    Ok(())
}
