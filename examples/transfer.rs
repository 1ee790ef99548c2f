//! A transfer between two accounts that can never deadlock: the client acquires both locks in one order, whoever names
//! them in which order. The transfer shows its fencing tokens and reads both accounts in one transaction, thinks, and writes
//! both in another one. Both refuse an old token. So a transfer whose locks were lost on the way writes nothing once a later
//! one has read, and the sum of all accounts never changes.
//!
//! Run it with `cargo run --example transfer`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, FencingToken, RwLock};
use std::sync::{Arc, Mutex, MutexGuard};

const TRANSFERS: u32 = 100;

/// The bank's table: of each account the amount, and the greatest token that it has seen.
#[derive(Default)]
struct Bank(Mutex<Rows>);

type Rows = [(Option<FencingToken>, i64); 2];

/// Of two accounts the numbers, and the tokens of their locks.
type Held = [(usize, Option<FencingToken>); 2];

impl Bank {
    fn balance(&self, account: usize) -> i64 {
        self.rows()[account].1
    }

    /// One transaction: from now on the bank refuses whoever held these locks before.
    fn read(&self, accounts: Held) -> Result<[i64; 2], &'static str> {
        let rows = self.shown(accounts)?;
        Ok(accounts.map(|(account, _)| rows[account].1))
    }

    /// One transaction: it writes both rows or none.
    fn write(&self, accounts: Held, amounts: [i64; 2]) -> Result<(), &'static str> {
        let mut rows = self.shown(accounts)?;
        for ((account, _), amount) in accounts.into_iter().zip(amounts) {
            rows[account].1 = amount;
        }
        Ok(())
    }

    /// The rows, which have seen these tokens.
    fn shown(&self, accounts: Held) -> Result<MutexGuard<'_, Rows>, &'static str> {
        let mut rows = self.rows();
        if accounts.iter().any(|&(account, token)| token < rows[account].0) {
            return Err("a later holder was here");
        }
        for (account, token) in accounts {
            rows[account].0 = token;
        }
        Ok(rows)
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().expect("nobody panics")
    }
}

/// An account's number and its lock.
type Side<'a> = (usize, &'a RwLock);

async fn transfer(
    client: &Client,
    bank: &Bank,
    (from, of_from): Side<'_>,
    (to, of_to): Side<'_>,
    amount: i64,
) -> common::Outcome {
    let both = client.all().write(of_from).write(of_to).acquire_fair().await?;
    both.while_held(async {
        let accounts = [(from, both.fencing_token(of_from)), (to, both.fencing_token(of_to))];
        // Had it not seen the tokens, a late write of a former holder could come before ours, and be undone by it.
        let [less, more] = bank.read(accounts)?;
        // Without the locks another transfer would write here, and be undone below.
        tokio::task::yield_now().await;
        bank.write(accounts, [less - amount, more + amount])
    })
    .await??;
    // The money has moved. A release that fails does not undo that.
    if let Err(error) = both.release().await {
        println!("{error}");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let bank = Arc::new(Bank::default());

    // One process moves money from Alice to Bob, another one from Bob to Alice.
    let mut processes = Vec::new();
    for from in [0, 1] {
        let (client, bank) = (Client::connect(server.url()).await?, Arc::clone(&bank));
        processes.push(tokio::spawn(async move {
            let locks = ["alice", "bob"].map(|name| client.rw_lock(format!("example:account:{name}")));
            let side = |account: usize| (account, &locks[account]);
            for _ in 0..TRANSFERS {
                transfer(&client, &bank, side(from), side(1 - from), from as i64 + 1).await?;
            }
            client.shutdown().await;
            common::Outcome::Ok(())
        }));
    }
    for process in processes {
        process.await??;
    }
    let [alice, bob] = [0, 1].map(|account| bank.balance(account));
    assert_eq!(alice, i64::from(TRANSFERS));
    assert_eq!(alice + bob, 0);
    println!(
        "{} transfers in both directions: Alice has {alice}, Bob has {bob}, nobody waited for ever",
        2 * TRANSFERS
    );
    Ok(())
}
