//! Coming from a reentrant read/write lock in one hash, call by call. That lock has fields for the mode and for the
//! counts of readers and writer, a script per operation, a TTL for the whole, an owner's UUID with every call.
//! fairlock's state keeps the same.
//!
//! | theirs | ours | better how |
//! |---|---|---|
//! | hash `mode`, `rcount`, `r:{uuid}`, `writer`, `wcount` | the same, most of it in one packed field, and a queue and leases beside the hash | a call of a script reads and writes one field: see `PROTOCOL.md` |
//! | owner: a UUID | `Owner::new()`, `Owner::from_uuid(id)` | an owner is optional; requests without one never reenter |
//! | `RLock`: done or refused | `read().try_acquire()`; to wait, `acquire_fair()` | waiters enter in turn |
//! | `WLock`: done or refused | `write().try_acquire()`; `acquire_fair()` | a writer does not starve behind readers |
//! | `RUnLock`, `WUnLock` | `guard.release()` | hands the lock over to the next waiter, in the same step |
//! | `RRenew`, `WRenew` | nothing: the client renews while the guard lives | one call for all; `guard.lost()` says if renewals failed |
//! | the TTL of the hash | `.lease(d)`, for each request | one live reader does not keep a dead one's hold |
//! | sole reader writes: upgrade | the same, by `write()` of the owner, `guard.try_upgrade()`, or `guard.upgrade()` that waits | of two upgrades that would wait for each other one fails at once; a new token |
//! | write count at zero, but reading: downgrade | the same, or `guard.downgrade()` | no moment without a hold |
//! | a code and the TTL that is left | `Result<Option<Guard>, Error>`; `status()` | who holds, who waits, and for how long |
//! | one key can be hot: shards by resource | a lock per resource; all its keys in one slot | |
//! | a crashed client's lock expires | the same, for each of its requests | waiters learn of it within milliseconds |
//!
//! Run it with `cargo run --example seed_reentrant_hash`. It uses the server that `REDIS_URL` names, or starts a
//! private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error, Mode, Owner, RwLock};
use redis::AsyncCommands;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::sleep;

const NAME: &str = "example:seed_reentrant_hash";

#[tokio::main]
async fn main() -> common::Outcome {
    let server = common::Server::find_or_start().await?;
    let lock = Client::connect(server.url()).await?.rw_lock(NAME);
    let (me, you) = (Owner::new(), Owner::new());
    let (mine, yours) = (lock.with_owner(&me), lock.with_owner(&you));

    reads(&server, &mine, &yours).await?;
    writes(&server, &mine, &yours).await?;
    up_and_down(&server, &mine, &yours).await?;
    renewals_and_losses(&lock, &mine, &yours).await?;
    Ok(())
}

/// What both designs keep: theirs in fields of the hash, ours in one packed field and the read holds of each owner.
async fn state(
    server: &common::Server,
    lock: &RwLock,
) -> Result<HashMap<String, String>, Box<dyn std::error::Error + Send + Sync>> {
    let mut redis = redis::Client::open(server.url())?
        .get_multiplexed_async_connection()
        .await?;
    let mut state = HashMap::new();
    let hash: HashMap<String, Vec<u8>> = redis.hgetall(format!("fairlock:{{{NAME}}}")).await?;
    for (field, count) in hash.into_iter().filter(|(field, _)| field.starts_with("r:")) {
        state.insert(field, String::from_utf8(count)?);
    }
    let status = lock.status().await?;
    let mut put = |field: &str, value: String| state.insert(field.to_owned(), value);
    match status.mode {
        Some(Mode::Write) => {
            let writer = status.raw.holder.splitn(3, ':').nth(2).unwrap_or_default();
            put("writer", writer.to_owned());
            put("mode", "write".to_owned());
        }
        Some(Mode::Read) => _ = put("mode", "read".to_owned()),
        None => {}
    }
    for (field, count) in [("rcount", status.raw.reads), ("wcount", status.raw.writes)] {
        if count > 0 {
            put(field, count.to_string());
        }
    }
    Ok(state)
}

fn fields<const N: usize>(fields: [(&str, &str); N]) -> HashMap<String, String> {
    fields.map(|(field, value)| (field.to_owned(), value.to_owned())).into()
}

/// RLock and RUnLock.
async fn reads(server: &common::Server, mine: &RwLock, yours: &RwLock) -> common::Outcome {
    let first = mine.read().try_acquire().await?.ok_or("it is free")?;
    let again = mine.read().try_acquire().await?.ok_or("it reads already")?;
    let other = yours.read().try_acquire().await?.ok_or("readers share")?;
    let (me, you) = (first.owner().uuid().simple(), other.owner().uuid().simple());
    let expected = [
        ("mode", "read"),
        ("rcount", "3"),
        (&format!("r:{me}"), "2"),
        (&format!("r:{you}"), "1"),
    ];
    assert_eq!(state(server, mine).await?, fields(expected));
    // WLock: others read.
    assert!(mine.write().try_acquire().await?.is_none());
    for guard in [first, other, again] {
        guard.release().await?;
    }
    assert_eq!(state(server, mine).await?, fields([]));
    println!("RLock, RUnLock: three holds of two owners, in one hash");
    Ok(())
}

/// WLock and WUnLock.
async fn writes(server: &common::Server, mine: &RwLock, yours: &RwLock) -> common::Outcome {
    let outer = mine.write().try_acquire().await?.ok_or("it is free")?;
    let inner = mine.write().try_acquire().await?.ok_or("it writes already")?;
    let also = mine.read().try_acquire().await?.ok_or("it writes already")?;
    assert_eq!(inner.fencing_token(), outer.fencing_token());
    let me = outer.owner().uuid().simple().to_string();
    let expected = [
        ("mode", "write"),
        ("writer", me.as_str()),
        ("wcount", "2"),
        ("rcount", "1"),
        (&format!("r:{me}"), "1"),
    ];
    assert_eq!(state(server, mine).await?, fields(expected));
    // RLock and WLock of another owner: refused. Or the other owner waits, which is not possible in theirs.
    assert!(yours.read().try_acquire().await?.is_none());
    assert!(yours.write().try_acquire().await?.is_none());
    let waiting = tokio::spawn(yours.read().acquire_fair());
    server.until_queued(NAME, 1).await?;
    // The write count is zero and the owner still reads: it falls back to reading, and the other owner enters at once.
    inner.release().await?;
    assert!(!waiting.is_finished());
    outer.release().await?;
    let other = waiting.await??;
    assert_eq!(state(server, mine).await?.get("mode").map(String::as_str), Some("read"));
    also.release().await?;
    other.release().await?;
    assert_eq!(state(server, mine).await?, fields([]));
    println!("WLock, WUnLock: a writer reenters, reads too, and falls back to reading");
    Ok(())
}

/// The changes between the modes.
async fn up_and_down(server: &common::Server, mine: &RwLock, yours: &RwLock) -> common::Outcome {
    let reading = mine.read().acquire_fair().await?;
    let writing = mine.write().try_acquire().await?.ok_or("it is the only reader")?;
    assert!(writing.fencing_token() > reading.fencing_token());
    writing.release().await?;
    // Another owner reads: the upgrade is refused, or it waits ahead of everybody.
    let other = yours.read().acquire_fair().await?;
    assert!(reading.try_upgrade().await?.is_none());
    let upgrading = tokio::spawn(async move { (reading.upgrade().await, reading) });
    server.until_queued(NAME, 1).await?;
    // Both upgrades would wait for each other. Theirs would refuse both for ever.
    let conflict = other.upgrade().await;
    assert!(matches!(conflict, Err(Error::UpgradeConflict { .. })));
    other.release().await?;
    let (writing, reading) = upgrading.await?;
    let downgraded = writing?.downgrade().await?;
    assert_eq!(state(server, mine).await?.get("rcount").map(String::as_str), Some("2"));
    yours
        .read()
        .try_acquire()
        .await?
        .ok_or("readers share")?
        .release()
        .await?;
    downgraded.release().await?;
    reading.release().await?;
    println!("upgrade and downgrade: at once, or in turn, or a conflict that says so");
    Ok(())
}

/// RRenew and WRenew, and what they refuse.
async fn renewals_and_losses(lock: &RwLock, mine: &RwLock, yours: &RwLock) -> common::Outcome {
    const LEASE: Duration = Duration::from_secs(2);
    let writing = mine.write().lease(LEASE).acquire_fair().await?;
    let reading = mine.read().lease(LEASE).acquire_fair().await?;
    sleep(LEASE + LEASE / 4).await;
    assert!(writing.is_held() && reading.is_held());
    // Their reply tells the remaining TTL; the status tells everything.
    let status = lock.status().await?;
    assert_eq!((status.mode, status.holding, status.waiting), (Some(Mode::Write), 2, 0));
    for holder in &status.holders {
        assert!(holder.owner == writing.owner() && holder.lease_left <= LEASE);
    }
    // An owner without holds is refused everything. Here it was evicted.
    assert_eq!(lock.evict(&writing.owner()).await?, 2);
    let reason = writing.lost().await;
    assert!(matches!(writing.release().await, Err(Error::Lost { .. })));
    reading.lost().await;
    assert!(matches!(reading.release().await, Err(Error::Lost { .. })));
    let other = yours.write().try_acquire().await?.ok_or("it is free")?;
    other.release().await?;
    println!("renewed past its lease without a call; then lost because {reason}");
    Ok(())
}
