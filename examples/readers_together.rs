//! Readers next to each other in the queue enter together: one script ends a writer's hold and grants to all of them,
//! and each client gets one message for all of its own readers.
//!
//! Run it with `cargo run --example readers_together`. It uses the server that `REDIS_URL` names, or starts a private
//! server. It counts calls and messages only there, where all of them are its own.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::Client;
use std::time::Duration;
use tokio::task::JoinSet;

const CLIENTS: u64 = 3;
const READERS_PER_CLIENT: u64 = 300;
const READERS: u64 = CLIENTS * READERS_PER_CLIENT;

#[tokio::main]
async fn main() -> common::Outcome {
    const NAME: &str = "example:readers_together";
    let server = common::Server::find_or_start().await?;
    // The lease is so long that no renewal falls into the time of the counting.
    let builder = Client::builder().lease(Duration::from_secs(60));
    let lock = builder.clone().connect(server.url()).await?.rw_lock(NAME);

    let writer = lock.write().acquire_fair().await?;
    let mut readers = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = builder.clone().connect(server.url()).await?;
        for _ in 0..READERS_PER_CLIENT {
            readers.spawn(client.rw_lock(NAME).read().acquire_fair());
        }
    }
    server.until_queued(NAME, READERS as usize).await?;
    println!("{READERS} readers of {CLIENTS} clients wait behind a writer");

    let (calls, messages) = (server.script_calls().await?, server.calls("publish").await?);
    writer.release().await?;
    let mut guards = Vec::new();
    while let Some(reader) = readers.join_next().await {
        guards.push(reader??);
    }
    assert!(guards.iter().all(|guard| guard.is_held()));
    assert_eq!(guards.len() as u64, READERS);
    let inside = format!("the writer left: {} readers are inside", guards.len());
    let calls = common::since(server.script_calls().await?, calls);
    let messages = common::since(server.calls("publish").await?, messages);
    let Some((calls, messages)) = calls.zip(messages) else {
        println!("{inside}; others use the server, so calls are not counted");
        return Ok(());
    };
    println!("{inside}; {calls} script call, {messages} messages");
    assert_eq!(calls, 1, "the writer's release lets in all readers");
    assert_eq!(messages, CLIENTS, "one message for each client");
    Ok(())
}
