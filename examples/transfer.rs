//! A transfer between two accounts that can never deadlock: the client acquires both locks in one order, whoever names
//! them in which order. The sum of all accounts never changes, and each account refuses an old fencing token.
//!
//! Run it with `cargo run --example transfer`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error, FencingToken, RwLock};
use std::sync::{Arc, Mutex};

const TRANSFERS: u32 = 100;

/// A row of the bank's table: an amount, and the greatest token that has written it.
#[derive(Default)]
struct Account(Mutex<(Option<FencingToken>, i64)>);

impl Account {
    fn add(&self, amount: i64, token: Option<FencingToken>) {
        let mut row = self.0.lock().expect("nobody panics");
        assert!(token >= row.0, "a late writer");
        *row = (token, row.1 + amount);
    }

    fn balance(&self) -> i64 {
        self.0.lock().expect("nobody panics").1
    }
}

/// An account's row and its lock.
type Side<'a> = (&'a Account, &'a RwLock);

async fn transfer(client: &Client, from: Side<'_>, to: Side<'_>, amount: i64) -> Result<(), Error> {
    let both = client.all().write(from.1).write(to.1).acquire_fair().await?;
    both.while_held(async {
        from.0.add(-amount, both.fencing_token(from.1));
        // A hasty transfer would lose money here.
        tokio::task::yield_now().await;
        to.0.add(amount, both.fencing_token(to.1));
    })
    .await?;
    both.release().await
}

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let accounts = Arc::new([Account::default(), Account::default()]);

    // One process moves money from Alice to Bob, another one from Bob to Alice.
    let mut processes = Vec::new();
    for from in [0, 1] {
        let (client, accounts) = (Client::connect(server.url()).await?, Arc::clone(&accounts));
        processes.push(tokio::spawn(async move {
            let locks = ["alice", "bob"].map(|name| client.rw_lock(format!("example:account:{name}")));
            let side = |account: usize| (&accounts[account], &locks[account]);
            for _ in 0..TRANSFERS {
                transfer(&client, side(from), side(1 - from), from as i64 + 1).await?;
            }
            client.shutdown().await;
            Ok::<_, Error>(())
        }));
    }
    for process in processes {
        process.await??;
    }
    let [alice, bob] = [0, 1].map(|account: usize| accounts[account].balance());
    assert_eq!(alice, i64::from(TRANSFERS));
    assert_eq!(alice + bob, 0);
    println!(
        "{} transfers in both directions: Alice has {alice}, Bob has {bob}, nobody waited for ever",
        2 * TRANSFERS
    );
    Ok(())
}
