//! From reading to writing and back: an upgrade waits for the other readers, ahead of the queue. A downgrade waits for
//! nobody. If two readers upgrade at the same time, one of them gets an error and must leave.
//!
//! Run it with `cargo run --example upgrade`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error, Owner};

const NAME: &str = "example:upgrade";

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let lock = Client::connect(server.url()).await?.rw_lock(NAME);
    let me = Owner::new();
    let reading = lock.with_owner(&me).read().acquire_fair().await?;
    let other = lock.read().acquire_fair().await?;

    // First a try, then an upgrade in its turn, which comes before the turn of the writer that already waits.
    assert!(reading.try_upgrade().await?.is_none());
    println!("somebody else reads, so there is no upgrade now");
    let writer = tokio::spawn(lock.write().acquire_fair());
    server.until_queued(NAME, 1).await?;
    let upgrade = async { Ok::<_, Box<dyn std::error::Error + Send + Sync>>(reading.upgrade().await?) };
    let conflict = async {
        server.until_queued(NAME, 2).await?;
        let refused = other.upgrade().await;
        assert!(matches!(refused, Err(Error::UpgradeConflict { .. })));
        println!("the other reader asks to write too, and is told that this cannot be: it leaves");
        Ok(other.release().await?)
    };
    let (writing, ()) = tokio::try_join!(upgrade, conflict)?;
    assert!(writing.fencing_token() > reading.fencing_token());
    assert!(!writer.is_finished());
    println!("I write, with a greater token; the writer that was here before still waits");

    // The owner reads on what it has written, others may read too, and no writer has been in between.
    reading.release().await?;
    let token = writing.fencing_token();
    let reading = writing.downgrade().await?;
    assert_eq!(reading.fencing_token(), token);
    server.until_queued(NAME, 1).await?;
    assert!(!writer.is_finished());
    println!("I read again, with the same token; the writer still waits");

    reading.release().await?;
    let writer = writer.await??;
    assert!(writer.fencing_token() > token);
    println!("I left: the writer is inside");

    let late = tokio::spawn(lock.read().acquire_fair());
    server.until_queued(NAME, 1).await?;
    let reading = writer.downgrade().await?;
    let late = late.await??;
    assert!(reading.is_held() && late.is_held());
    println!("it reads now, and the reader that waited came in with it");
    Ok(())
}
