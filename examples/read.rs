//! A shared lock: readers hold together, and a writer waits until they have left. A reader that asks after the writer
//! enters after the writer, so the writer does not starve.
//!
//! Run it with `cargo run --example read`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::Client;

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let here = Client::connect(server.url()).await?.rw_lock("example:read");
    let there = Client::connect(server.url()).await?.rw_lock("example:read");

    // Readers share.
    let (a, b) = tokio::try_join!(here.read().acquire_fair(), there.read().acquire_fair())?;
    assert!(a.is_held() && b.is_held());
    println!("two readers of two clients are inside together");

    // A writer waits for both; a reader that comes later waits for the writer.
    let writer = tokio::spawn(here.write().acquire_fair());
    server.until_queued("example:read", 1).await?;
    assert!(
        there.read().try_acquire().await?.is_none(),
        "a reader passed a waiting writer"
    );
    let late = tokio::spawn(there.read().acquire_fair());
    server.until_queued("example:read", 2).await?;
    a.release().await?;
    assert!(!writer.is_finished(), "the writer entered beside a reader");
    println!("a writer waits for the one that is left, and a late reader waits behind the writer");

    b.release().await?;
    let writer = writer.await??;
    assert!(!late.is_finished(), "the late reader entered beside the writer");
    println!("both readers left: the writer is inside, alone");

    let writers_token = writer.fencing_token();
    writer.release().await?;
    let late = late.await??;
    assert!(late.fencing_token() > writers_token);
    println!("the writer left: the late reader is inside");
    Ok(())
}
