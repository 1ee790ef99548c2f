//! Coming from a read/write mutex over one key, call by call. A writer stores its id as a string, readers add theirs to
//! a set, and a second key tells of a writer's intent. A lock is a Go context that is refreshed in the background. A
//! caller that does not get the lock sleeps for the TTL of the key and tries again.
//!
//! | theirs | ours | better how |
//! |---|---|---|
//! | `NewMutex(redis, name, ..)` | `client.rw_lock(name)` | no I/O; waiters get a message, so they need not sleep for a TTL |
//! | `WithTTL(d)`; below 2 s ignored, 4 s unless set | `builder.lease(d)`, `request.lease(d)`; 10 s unless set | an impossible value is an error |
//! | `WithLockIntent()` | `Policy::WriterFirst`; `Policy::Fifo`, the default, starves nobody | the intent ends with the waiting writer and not with a TTL; all users of a lock must agree |
//! | no intent | `Policy::ReaderFirst` | by choice |
//! | `WithKey(k)`: the key is `name:k` | `client.rw_lock("name:k")` | no option needed |
//! | `WithContext(ctx)`, cancelled | dropping the future | leaves the queue at once; those behind move up |
//! | `WithContext(ctx)`, with a deadline | `try_acquire_for(d)` | waits in the queue for that long |
//! | `SetLog(f)`, `NopLog`, `LogFunc` | a `tracing` subscriber, or none | with lock, owner and token as fields |
//! | `Lock()`, `RLock()` | `write().acquire_fair()`, `read().acquire_fair()` | in turn |
//! | `TryLock()`, `TryRLock()` | `write().try_acquire()`, `read().try_acquire()` | "no" is `None`; a failure is an error, not a "no" |
//! | `ErrLock` | `None` | |
//! | `lock.Unlock()` | `guard.release()`, or dropping it | only once, and it says if the lock had been lost |
//! | `lock.ID()`, `randomID()` | `guard.owner()`, `guard.fencing_token()` | the token is in order |
//! | `lock.Key()` | `lock.name()` | |
//! | `lock.Deadline()` | `request.max_hold(d)` | the server keeps it too |
//! | `lock.Done()`, `lock.Err()` | `guard.lost()`, `guard.is_held()` | they say why, before anybody else enters |
//! | the lock as the context of a job | `guard.while_held(job)` | the job is dropped when the lock is lost |
//! | `lock.Value(key)` | the job's own captures | |
//! | refresh at half the TTL, again after 500 ms | renewal at a third of the lease, again sooner | one call for all requests of a lock |
//! | one TTL for all readers | a lease for each | living readers do not keep a dead one alive |
//! | `redis.Options{DB: 9}` | a URL, or a `redis::Client` | |
//!
//! Run it with `cargo run --example seed_rw_mutex`. It uses the server that `REDIS_URL` names, or starts a private one.
#![allow(clippy::print_stdout, reason = "an example tells what it does")]

mod common;

use fairlock::{Client, Error, LostReason, Policy, RwLock};
use redis::IntoConnectionInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};

const NAME: &str = "example:seed_rw_mutex";
const TTL: Duration = Duration::from_secs(4);

#[tokio::main]
async fn main() -> common::Outcome {
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone())?;
    let server = common::Server::find_or_start().await?;
    let client = Client::builder().lease(TTL).connect(server.url()).await?;
    let mutex = client.rw_lock(NAME);

    locks(&mutex).await?;
    options(&server, &client).await?;
    contexts(&server, &mutex).await?;
    intent(&server, &client).await?;
    lock_as_context(&mutex).await?;
    // An operator's eviction and the loss that follows are warnings.
    let warnings = log.warnings.load(Ordering::Relaxed);
    assert!(warnings > 0);
    println!("SetLog: a subscriber of the program's own saw the warning of the eviction");
    Ok(())
}

/// Their first two tests.
async fn locks(mutex: &RwLock) -> common::Outcome {
    let writing = mutex.write().acquire_fair().await?; // Lock
    let left = mutex.status().await?.holders[0].lease_left;
    assert!(left <= TTL && !left.is_zero(), "{left:?}");
    assert!(mutex.write().try_acquire().await?.is_none()); // TryLock
    assert!(mutex.read().try_acquire().await?.is_none()); // TryRLock
    assert_eq!(mutex.name(), NAME); // Key
    assert_eq!(mutex.status().await?.holders[0].owner, writing.owner()); // ID
    writing.release().await?; // Unlock

    let reading = mutex.read().acquire_fair().await?; // RLock
    assert!(mutex.write().try_acquire().await?.is_none());
    let second = mutex.read().try_acquire().await?.ok_or("readers share")?;
    assert_ne!(second.owner(), reading.owner());
    second.release().await?;
    reading.release().await?;
    let again = mutex.write().acquire_fair().await?;
    // Their deferred Unlock.
    drop(again);
    println!("Lock, RLock, TryLock, TryRLock, Unlock: as theirs");
    Ok(())
}

async fn options(server: &common::Server, client: &Client) -> common::Outcome {
    let mutex = client.rw_lock(format!("{NAME}:options"));
    // WithTTL: theirs silently ignores one second.
    mutex
        .write()
        .lease(Duration::from_secs(1))
        .acquire_fair()
        .await?
        .release()
        .await?;
    let refused = mutex.write().lease(Duration::from_millis(1)).acquire_fair().await;
    assert!(matches!(refused, Err(Error::InvalidDuration { .. })));
    // WithKey: another lock.
    let whole = mutex.write().acquire_fair().await?;
    let part = client
        .rw_lock(format!("{NAME}:options:42"))
        .write()
        .try_acquire()
        .await?;
    assert!(part.is_some());
    // Options{DB: 9}: other databases have other locks.
    let info = server.url().into_connection_info()?;
    let settings = info.redis_settings().clone().set_db(9);
    let elsewhere = redis::Client::open(info.set_redis_settings(settings))?;
    let elsewhere = Client::connect(elsewhere).await?.rw_lock(mutex.name());
    assert!(elsewhere.write().try_acquire().await?.is_some());
    // The refresh: the lock is held for longer than a TTL.
    whole.release().await?;
    let short = Duration::from_secs(2);
    let held = mutex.write().lease(short).acquire_fair().await?;
    sleep(short + short / 4).await;
    assert!(held.is_held());
    held.release().await?;
    println!("WithTTL, WithKey, the refresh and the database: done");
    Ok(())
}

/// WithContext.
async fn contexts(server: &common::Server, mutex: &RwLock) -> common::Outcome {
    let inside = mutex.read().acquire_fair().await?;
    // With a deadline.
    let none = mutex.write().try_acquire_for(Duration::from_millis(50)).await?;
    assert!(none.is_none());
    // Cancelled: something drops the future.
    let cancelled = timeout(Duration::from_millis(50), mutex.write().acquire_fair()).await;
    assert!(cancelled.is_err());
    server.until_queued(NAME, 0).await?;
    let writer = tokio::spawn(mutex.write().acquire_fair());
    server.until_queued(NAME, 1).await?;
    let behind = tokio::spawn(mutex.read().acquire_fair());
    server.until_queued(NAME, 2).await?;
    writer.abort();
    let behind = behind.await??;
    assert!(inside.is_held() && behind.is_held());
    inside.release().await?;
    behind.release().await?;
    println!("WithContext: who is cancelled leaves the queue, and those behind move up");
    Ok(())
}

/// WithLockIntent: a writer that waits keeps new readers out.
async fn intent(server: &common::Server, client: &Client) -> common::Outcome {
    for policy in [Policy::Fifo, Policy::WriterFirst, Policy::ReaderFirst] {
        let name = format!("{NAME}:{policy:?}");
        let mutex = client.rw_lock(name.as_str()).policy(policy);
        let reading = mutex.read().acquire_fair().await?;
        let writer = tokio::spawn(mutex.write().acquire_fair());
        server.until_queued(&name, 1).await?;
        let late = mutex.read().try_acquire().await?;
        assert_eq!(late.is_some(), policy == Policy::ReaderFirst, "{policy:?}");
        drop(late);
        reading.release().await?;
        writer.await??.release().await?;
        // TryLock has no intent, and a request that gave up leaves none.
        let reading = mutex.read().acquire_fair().await?;
        assert!(mutex.write().try_acquire().await?.is_none());
        assert!(
            mutex
                .write()
                .try_acquire_for(Duration::from_millis(20))
                .await?
                .is_none()
        );
        server.until_queued(&name, 0).await?;
        assert!(mutex.read().try_acquire().await?.is_some());
        reading.release().await?;
    }
    println!("WithLockIntent: a writer that waits keeps new readers out, and only while it waits");
    Ok(())
}

/// Their lock is a context: Deadline, Done, Err.
async fn lock_as_context(mutex: &RwLock) -> common::Outcome {
    // Deadline.
    let limited = mutex
        .write()
        .max_hold(Duration::from_millis(100))
        .acquire_fair()
        .await?;
    let job = limited.while_held(std::future::pending::<()>()).await;
    assert!(matches!(
        job,
        Err(Error::Lost {
            reason: LostReason::MaxHold,
            ..
        })
    ));
    // Done and Err, when somebody takes the lock away.
    let held = mutex.write().acquire_fair().await?;
    assert!(held.is_held() && timeout(Duration::from_millis(20), held.lost()).await.is_err());
    assert_eq!(mutex.evict(&held.owner()).await?, 1);
    let reason = held.lost().await;
    assert!(!held.is_held());
    // Value: what the job captures.
    let value = 42;
    let next = mutex.write().acquire_fair().await?;
    assert_eq!(next.while_held(async { value }).await?, 42);
    assert!(next.fencing_token() > held.fencing_token());
    next.release().await?;
    println!("Deadline, Done, Err, Value: the lock was lost because {reason}");
    Ok(())
}

/// Their LogFunc: counts warnings. A program would use a subscriber that exists already.
#[derive(Clone, Default)]
struct Log {
    warnings: Arc<AtomicUsize>,
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("fairlock") && *metadata.level() <= tracing::Level::WARN
    }

    fn event(&self, _event: &tracing::Event<'_>) {
        self.warnings.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _attributes: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}

    fn enter(&self, _span: &tracing::span::Id) {}

    fn exit(&self, _span: &tracing::span::Id) {}
}
