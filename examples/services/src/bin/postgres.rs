//! Fencing against PostgreSQL. A holder is stopped past its lease, wakes up and writes, not knowing that another one has
//! been inside. The row remembers the greatest fencing token that has written it, and refuses:
//!
//! ```sql
//! UPDATE accounts SET balance = $1, token = $2 WHERE id = $3 AND token <= $2
//! ```
//!
//! One statement, so nothing comes between the look and the write; "no row was updated" means that the lock had been
//! lost. Tokens fit a `bigint`. Beside it is a row that does not look at tokens: there the late write wins, and what the
//! second holder did is lost.
//!
//! It uses the server that `DATABASE_URL` names, or starts a private one if PostgreSQL is installed; otherwise it says
//! so and ends.
//!
//! Run it with `cargo run -p fairlock-services --bin postgres`.

#[path = "../../../common/mod.rs"]
mod common;
#[path = "../pg.rs"]
mod pg;

use fairlock::{Client, FencingToken};
use pg::Postgres;
use std::sync::mpsc;
use std::time::Duration;
use tokio::sync::oneshot;

const LOCK: &str = "services:accounts:7";
const FENCED: i64 = 7;
const UNFENCED: i64 = 8;

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

async fn balance(db: &tokio_postgres::Client, id: i64) -> Fallible<i64> {
    let select = "SELECT balance FROM fairlock_accounts WHERE id = $1";
    Ok(db.query_one(select, &[&id]).await?.get(0))
}

/// What a deposit does with a balance that it read under the lock. Says whether the row took it.
async fn write(db: &tokio_postgres::Client, balance: i64, token: FencingToken) -> Fallible<bool> {
    let token = i64::try_from(token.get())?;
    let fenced = "UPDATE fairlock_accounts SET balance = $1, token = $2 WHERE id = $3 AND token <= $2";
    let taken = db.execute(fenced, &[&balance, &token, &FENCED]).await?;
    let unfenced = "UPDATE fairlock_accounts SET balance = $1 WHERE id = $2";
    db.execute(unfenced, &[&balance, &UNFENCED]).await?;
    Ok(taken == 1)
}

/// Reads the balance, is stopped for as long as it takes, and deposits 10. Says whether that was taken.
#[tokio::main(flavor = "current_thread")]
async fn deposit_late(
    redis: &str,
    postgres: &str,
    inside: oneshot::Sender<()>,
    pause: &mpsc::Receiver<()>,
) -> Fallible<bool> {
    let client = Client::builder()
        .lease(Duration::from_millis(600))
        .connect(redis)
        .await?;
    let db = pg::connect(postgres).await?;
    let guard = client.rw_lock(LOCK).write().acquire_fair().await?;
    let balance = balance(&db, FENCED).await?;
    let _ = inside.send(());
    // Nothing of this process runs: its only thread is blocked. So it is when a process or its machine is suspended.
    pause.recv()?;
    write(&db, balance + 10, guard.fencing_token()).await
}

#[tokio::main]
async fn main() -> common::Outcome {
    let postgres = match Postgres::find_or_start().await? {
        Ok(postgres) => postgres,
        Err(why) => {
            println!("SKIPPED: {why}");
            return Ok(());
        }
    };
    let server = common::Server::find_or_start().await?;
    let db = pg::connect(postgres.url()).await?;
    let table = "DROP TABLE IF EXISTS fairlock_accounts;
        CREATE TABLE fairlock_accounts (id bigint PRIMARY KEY, balance bigint NOT NULL, token bigint NOT NULL DEFAULT 0);
        INSERT INTO fairlock_accounts (id, balance) VALUES (7, 100), (8, 100)";
    db.batch_execute(table).await?;

    let (inside, stopped) = oneshot::channel();
    let (resume, pause) = mpsc::channel();
    let late = std::thread::spawn({
        let (redis, postgres) = (server.url().to_owned(), postgres.url().to_owned());
        move || deposit_late(&redis, &postgres, inside, &pause)
    });
    stopped.await?;
    println!("the first holder read a balance of 100 and was stopped");

    // Waits for the rest of the first one's lease.
    let lock = Client::connect(server.url()).await?.rw_lock(LOCK);
    let guard = lock.write().acquire_fair().await?;
    let read = balance(&db, FENCED).await?;
    assert!(write(&db, read + 50, guard.fencing_token()).await?);
    guard.release().await?;
    println!("its lease ended, the second one deposited 50");

    resume.send(())?;
    let taken = late.join().map_err(|_| "the first holder panicked")??;
    assert!(!taken, "the row took a write of a holder that had lost the lock");
    assert_eq!(balance(&db, FENCED).await?, 150);
    println!("the first one woke up and wrote 110: refused by the row's token, the balance is 150");
    assert_eq!(balance(&db, UNFENCED).await?, 110);
    println!("in the row without tokens the balance is 110: the second one's 50 are gone");
    db.batch_execute("DROP TABLE fairlock_accounts").await?;
    Ok(())
}
