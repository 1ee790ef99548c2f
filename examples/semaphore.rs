//! A pool of four GPUs for jobs of different sizes: at most four are in use at a time, jobs enter in the order in which they
//! asked, and a big job is not passed by small ones.
//!
//! Run it with `cargo run --example semaphore`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error, PermitGuard, Semaphore};

const NAME: &str = "example:gpu";
const GPUS: u32 = 4;

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let client = Client::connect(server.url()).await?;
    let gpus = client.semaphore(NAME, GPUS);

    let (training, tuning) = (
        gpus.permits(2).acquire_fair().await?,
        gpus.permits(1).acquire_fair().await?,
    );
    println!("training on 2 GPUs, tuning on 1: {}", in_use(&gpus).await?);

    // It does not fit yet. Whoever asks later waits behind it, although one GPU is idle.
    let big = gpus.permits(4).enqueue().await?;
    let small = gpus.permits(1).enqueue().await?;
    println!(
        "a big job wants all 4: {} before it; a small one: {}",
        big.ahead(),
        small.ahead()
    );
    assert_eq!((big.ahead(), small.ahead()), (0, 1));
    assert!(gpus.permits(1).try_acquire().await?.is_none());

    training.release().await?;
    assert!(big.place().await?.is_some(), "one GPU is still in use");
    tuning.release().await?;
    let big = big.await?;
    println!("the big job runs when the others are done: {}", in_use(&gpus).await?);
    assert!(small.place().await?.is_some());
    big.release().await?;
    let small: PermitGuard = small.await?;
    println!("then the small one: {}", in_use(&gpus).await?);

    // Whoever would have to wait behind too many is told so at once.
    let draining = gpus.rw_lock().write().enqueue().await?;
    let refused = gpus.permits(1).max_queue(1).acquire_fair().await;
    assert!(matches!(refused, Err(Error::QueueFull { waiting: 1, .. })));
    println!("one waits already, and no more were wanted: refused");

    small.release().await?;
    let drained = draining.await?;
    assert_eq!(gpus.status().await?.used, 0);
    println!("drained for maintenance");
    drained.release().await?;
    Ok(())
}

async fn in_use(gpus: &Semaphore) -> Result<String, Error> {
    let status = gpus.status().await?;
    let limit = status.limit.unwrap_or_default();
    assert!(status.used <= limit);
    Ok(format!("{} of {limit} GPUs in use", status.used))
}
