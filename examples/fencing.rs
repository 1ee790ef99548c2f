//! Fencing: a paused holder wakes up after its lease and writes, although others have been inside. No lock can prevent
//! that. The store can: each write brings its fencing token, and the store refuses old tokens.
//!
//! Run it with `cargo run --example fencing`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, FencingToken};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;

/// The resource. In a database: `UPDATE ... SET value = $1, token = $2 WHERE id = $3 AND token <= $2`.
#[derive(Default)]
struct Store(Mutex<(Option<FencingToken>, String)>);

impl Store {
    fn write(&self, value: &str, token: FencingToken) -> Result<(), String> {
        let mut row = self.0.lock().map_err(|_| "a writer panicked")?;
        if Some(token) < row.0 {
            return Err(format!("token {token} is older than the greatest seen"));
        }
        *row = (Some(token), value.to_owned());
        Ok(())
    }

    fn value(&self) -> String {
        self.0.lock().map(|row| row.1.clone()).unwrap_or_default()
    }
}

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let store = Arc::new(Store::default());
    let (inside, paused) = oneshot::channel();
    let (resume, pause) = mpsc::channel();
    let holder = std::thread::spawn({
        let (url, store) = (server.url().to_owned(), Arc::clone(&store));
        move || hold_and_pause(&url, &store, inside, &pause)
    });
    paused.await?;

    // The lock is free one lease after the paused holder's last renewal.
    let lock = Client::connect(server.url()).await?.rw_lock("example:fencing");
    let guard = lock.write().acquire_fair().await?;
    store.write("by the second holder", guard.fencing_token())?;
    println!(
        "the first holder is paused; the second one wrote with token {}",
        guard.fencing_token()
    );

    resume.send(())?;
    let refusal = holder.join().map_err(|_| "the first holder panicked")??;
    println!("the first holder woke up and wrote: refused, {refusal}");
    assert_eq!(store.value(), "by the second holder");
    Ok(())
}

/// The first holder. It has a thread and a runtime of its own, like a process that can be stopped. Returns the store's
/// refusal.
#[tokio::main(flavor = "current_thread")]
async fn hold_and_pause(
    url: &str,
    store: &Store,
    inside: oneshot::Sender<()>,
    pause: &mpsc::Receiver<()>,
) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let client = Client::builder().lease(Duration::from_secs(1)).connect(url).await?;
    let guard = client.rw_lock("example:fencing").write().acquire_fair().await?;
    store.write("by the first holder", guard.fencing_token())?;
    assert!(guard.is_held());
    // The holder has checked its guard and stops before it writes: this blocks the thread, and with it the renewals.
    let _ = inside.send(());
    pause.recv()?;
    let refused = store.write("by the first holder, late", guard.fencing_token());
    assert!(!guard.is_held());
    refused
        .err()
        .ok_or_else(|| "the store took a write with an old token".into())
}
