//! Coming from the token mutex, call by call: the lock that many write for themselves. That lock stores a random number
//! under a free key (`SET key number PX ms NX`) and tries again after a random pause. A script unlocks: it deletes the
//! key if the number is still there.
//!
//! | theirs | ours | better how |
//! |---|---|---|
//! | an address, dialled by each `Lock` and `Unlock` | `Client::connect`, once | two connections, for any number of locks and tasks |
//! | a key; `newNetMutex()` | `client.rw_lock(name)` | no I/O; readers can share it too |
//! | a random number per mutex | a name per request, `guard.fencing_token()` | two tasks with one mutex cannot free each other's hold; tokens are in order, so that the resource can refuse a late write |
//! | `Lock()`: `SET NX`, sleep at random, again | `write().acquire_fair()` | in the order of asking; a task that waits sends nothing |
//! | `PX`, twice the work's time | `.lease(..)` | the client renews while the guard lives, so the lease does not limit the work |
//! | `Unlock()`: compare and delete; the reply is not looked at | `guard.release()`, or dropping the guard | says if the lock had been lost, and hands it over in the same step |
//! | a panic when the server is away | `Result` | says what happened, to which lock, what to do |
//! | `sync.Locker`: two calls that belong together | a guard | you cannot unlock twice, and an early return cannot forget to |
//! | its test: a hundred count to a hundred | below | and enter in the order in which they asked |
//!
//! Run it with `cargo run --example seed_token_mutex`. It uses the server that `REDIS_URL` names, or starts a private
//! one. It counts calls on a private server only.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error, RwLock};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, yield_now};

const NAME: &str = "example:seed_token_mutex";
const TOTAL: usize = 100;
/// How long others wait for a dead holder.
const LEASE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    // `newNetMutex`, in two processes.
    let here = Client::connect(server.url()).await?.rw_lock(NAME);
    let there = Client::connect(server.url()).await?.rw_lock(NAME);

    a_hundred_count(&server, &here, &there).await?;
    work_may_take_longer(&here, &there).await?;
    a_late_unlock_frees_nobody(&here, &there).await?;
    a_dead_holder_blocks_for_a_lease(&server, &here).await?;

    let nobody = Client::connect("redis://127.0.0.1:1").await;
    assert!(matches!(nobody, Err(Error::Connect { .. })));
    println!(
        "no server: {}",
        nobody.err().map(|error| error.to_string()).unwrap_or_default()
    );
    Ok(())
}

/// Their test: all ask at once, each reads the count, lets others run, and writes it.
async fn a_hundred_count(server: &common::Server, here: &RwLock, there: &RwLock) -> common::Outcome {
    // Their start signal is a lock that everybody waits for.
    let start = here.write().lease(Duration::from_secs(60)).acquire_fair().await?;
    let count = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for id in 0..TOTAL {
        let lock = if id % 2 == 0 { here } else { there }.clone();
        let request = lock.write().lease(Duration::from_secs(60));
        tasks.spawn(count_one(request.acquire_fair(), id, Arc::clone(&count)));
        server.until_queued(NAME, id + 1).await?;
    }
    let (calls, begun) = (server.script_calls().await?, Instant::now());
    start.release().await?;
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    let calls = common::since(server.script_calls().await?, calls);
    let count = count.lock().map_err(|_| "a task panicked")?;
    assert!(count.iter().copied().eq(0..TOTAL), "not in turn: {count:?}");
    // One release each, and the start; now and then a renewal for all waiters.
    let renewals = 2 * (1 + begun.elapsed().as_secs() / 20);
    println!("{TOTAL} tasks counted to {}, in turn", count.len());
    // This is not true on a server that others use.
    if let Some(calls) = calls {
        println!("that took {calls} script calls");
        assert!(
            calls <= TOTAL as u64 + 1 + renewals,
            "{calls} calls: somebody asked in vain"
        );
    }
    Ok(())
}

async fn count_one<F>(asking: F, id: usize, count: Arc<Mutex<Vec<usize>>>) -> common::Outcome
where
    F: Future<Output = Result<fairlock::WriteGuard, Error>>,
{
    let guard = asking.await?;
    let mut before = count.lock().map_err(|_| "a task panicked")?.clone();
    yield_now().await;
    before.push(id);
    *count.lock().map_err(|_| "a task panicked")? = before;
    Ok(guard.release().await?)
}

/// Their lock expires after its `PX`, whatever its holder still does.
async fn work_may_take_longer(here: &RwLock, there: &RwLock) -> common::Outcome {
    let guard = here.write().lease(LEASE).acquire_fair().await?;
    let work = tokio::time::sleep(LEASE + LEASE / 4);
    guard.while_held(work).await?;
    assert!(guard.is_held());
    assert!(there.write().try_acquire().await?.is_none());
    guard.release().await?;
    println!("work took longer than the lease of {LEASE:?}: the lock was held all the time");
    Ok(())
}

/// This is why their number is random. Here an operator ends the first hold, so that the second request enters.
async fn a_late_unlock_frees_nobody(here: &RwLock, there: &RwLock) -> common::Outcome {
    let first = here.write().acquire_fair().await?;
    assert_eq!(there.evict(&first.owner()).await?, 1);
    // Both are of the same mutex. With one number per mutex the first task could free the second one's hold.
    let second = here.write().acquire_fair().await?;
    assert!(second.fencing_token() > first.fencing_token());
    let late = first.release().await;
    assert!(matches!(late, Err(Error::Lost { .. })));
    assert!(second.is_held() && there.write().try_acquire().await?.is_none());
    second.release().await?;
    println!("a late unlock was refused and freed nobody");
    Ok(())
}

/// This is why there is a time limit.
async fn a_dead_holder_blocks_for_a_lease(server: &common::Server, here: &RwLock) -> common::Outcome {
    let url = server.url().to_owned();
    let process = std::thread::spawn(move || die_holding(url));
    let dead = process.join().map_err(|_| "it panicked")??;
    let begun = Instant::now();
    let next = here.write().acquire_fair().await?;
    println!("its holder died: the next one was inside after {:.1?}", begun.elapsed());
    assert!(!dead.is_held() && next.fencing_token() > dead.fencing_token());
    Ok(next.release().await?)
}

/// A process that ends without a word: its runtime stops, and nothing is renewed or released any more.
fn die_holding(url: String) -> Result<fairlock::WriteGuard, Box<dyn std::error::Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let guard = runtime.block_on(async {
        let client = Client::builder().lease(LEASE).connect(url).await?;
        client.rw_lock(NAME).write().acquire_fair().await
    });
    runtime.shutdown_background();
    Ok(guard?)
}
