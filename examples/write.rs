//! An exclusive lock: tasks of two clients add to a number that nothing else protects, and no addition is lost. The
//! tasks enter one after another, each with a greater fencing token than the one before.
//!
//! Run it with `cargo run --example write`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error, FencingToken, RwLock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::task::{JoinSet, yield_now};

const TASKS: u64 = 20;
const ADDITIONS: u64 = 5;

#[derive(Default)]
struct Shared {
    number: AtomicU64,
    tokens: Mutex<Vec<FencingToken>>,
}

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    // Two clients stand for two processes: a process needs only one.
    let clients = [
        Client::connect(server.url()).await?,
        Client::connect(server.url()).await?,
    ];
    let shared = Arc::new(Shared::default());

    let mut tasks = JoinSet::new();
    for client in clients.iter().cycle().take(TASKS as usize) {
        tasks.spawn(add(client.rw_lock("example:write"), Arc::clone(&shared)));
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }

    let number = shared.number.load(Ordering::Relaxed);
    assert_eq!(number, TASKS * ADDITIONS, "an addition was lost");
    let tokens = shared.tokens.lock().map_err(|_| "a task panicked")?;
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    println!("{TASKS} tasks of 2 clients added {ADDITIONS} times each: the number is {number}");
    println!(
        "each entered with a greater token than the one before, the last with {}",
        tokens[tokens.len() - 1]
    );
    Ok(())
}

async fn add(lock: RwLock, shared: Arc<Shared>) -> Result<(), Error> {
    for _ in 0..ADDITIONS {
        let guard = lock.write().acquire_fair().await?;
        // Read, let others run, write: without the lock this loses additions.
        let number = shared.number.load(Ordering::Relaxed);
        yield_now().await;
        shared.number.store(number + 1, Ordering::Relaxed);
        if let Ok(mut tokens) = shared.tokens.lock() {
            tokens.push(guard.fencing_token());
        }
        guard.release().await?;
    }
    Ok(())
}
