//! Which locks exist, which of them are busy, and whether a name is known at all.
//!
//! Run it with `cargo run --example locks`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error};

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let client = Client::builder().prefix("example-locks").connect(server.url()).await?;
    let catalogue = client.rw_lock("catalogue").read().acquire_fair().await?;
    let invoice = client.rw_lock("invoice:42").write().acquire_fair().await?;
    let other = client.rw_lock("invoice:43").write().acquire_fair().await?;
    other.release().await?;

    let mut invoices = Vec::new();
    let mut locks = client.locks("invoice:*");
    while let Some(name) = locks.next().await {
        match name {
            Ok(name) => invoices.push(name),
            // Somebody else's key among those of the locks.
            Err(foreign @ Error::ForeignKey { .. }) => println!("{foreign}"),
            Err(error) => return Err(error.into()),
        }
    }
    invoices.sort();
    for name in &invoices {
        println!(
            "{name}: {} inside",
            client.rw_lock(name.as_str()).status().await?.holding
        );
    }
    // A lock that was released a moment ago exists for a while.
    assert_eq!(invoices, ["invoice:42", "invoice:43"]);
    assert!(client.rw_lock("catalogue").exists().await?);
    assert!(!client.rw_lock("catalog").exists().await?);
    println!("nobody uses the lock \"catalog\": a typing error");
    invoice.release().await?;
    catalogue.release().await?;
    client.shutdown().await;
    Ok(())
}
