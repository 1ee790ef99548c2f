//! The test cases of a read/write mutex with lock intent, and the test of a token mutex, with a fair lock in their place.

use super::{LEASE, client, is_lost};
use crate::proxy::Proxy;
use crate::server::{Server, eventually, soon};
use fairlock::{Client, Mode, Owner, Policy};
use std::time::Duration;
use tokio::task::JoinSet;

// The read/write mutex: its tests Mutex, RWMutex, LockIntent and ID, and what they assert of the TTL.

#[tokio::test]
async fn case_mutex() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("mutex");
    let guard = lock.write().acquire_fair().await.unwrap();
    let left = lock.status().await.unwrap().holders[0].lease_left;
    assert!(left <= LEASE && left > LEASE / 4, "{left:?}");
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    let again = lock.write().acquire_fair().await.unwrap();
    // Their deferred unlock unlocks a second time, silently; here a guard can be released only once.
    again.release().await.unwrap();
}

#[tokio::test]
async fn case_rw_mutex() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("rw_mutex");
    let guard = lock.read().acquire_fair().await.unwrap();
    let left = lock.status().await.unwrap().holders[0].lease_left;
    assert!(left <= LEASE && left > LEASE / 4, "{left:?}");
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    let second = lock.read().try_acquire().await.unwrap().expect("readers share");
    second.release().await.unwrap();
    guard.release().await.unwrap();
    assert!(lock.write().acquire_fair().await.unwrap().is_held());
}

#[tokio::test]
async fn case_lock_intent() {
    // Theirs is an option of a mutex; in ours a writer that waits holds readers back under these two policies.
    for policy in [Policy::Fifo, Policy::WriterFirst] {
        let server = Server::start().await;
        // So long a lease that no intent ends with it.
        let builder = Client::builder().lease(Duration::from_secs(600));
        let client = builder.connect(server.url()).await.unwrap();
        let lock = client.rw_lock("lock_intent").policy(policy);
        let guard = lock.read().acquire_fair().await.unwrap();
        let writer = tokio::spawn(lock.write().acquire_fair());
        server.until_queued("lock_intent", 1).await;
        assert!(
            lock.read().try_acquire().await.unwrap().is_none(),
            "{policy:?}: no reader passes the intent"
        );
        guard.release().await.unwrap();
        let writing = soon("the writer", writer).await.unwrap().unwrap();
        writing.release().await.unwrap();
        let reading = lock.read().try_acquire().await.unwrap();
        let reading = reading.expect("the intent is gone");
        // A try leaves no intent; a writer that gives up takes it away, where theirs stays for a TTL.
        assert!(lock.write().try_acquire().await.unwrap().is_none());
        assert!(lock.read().try_acquire().await.unwrap().is_some(), "{policy:?}");
        let none = lock.write().try_acquire_for(Duration::from_millis(50)).await.unwrap();
        assert!(none.is_none());
        server.until_queued("lock_intent", 0).await;
        assert!(lock.read().try_acquire().await.unwrap().is_some(), "{policy:?}");
        // Nor does it keep those back who came after it.
        let writer = tokio::spawn(lock.write().acquire_fair());
        server.until_queued("lock_intent", 1).await;
        let behind = tokio::spawn(lock.read().acquire_fair());
        server.until_queued("lock_intent", 2).await;
        writer.abort();
        let behind = soon("the reader behind it", behind).await.unwrap().unwrap();
        assert!(behind.is_held() && reading.is_held(), "{policy:?}");
    }
    // Without the intent, theirs lets readers in past a waiting writer.
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("lock_intent").policy(Policy::ReaderFirst);
    let _guard = lock.read().acquire_fair().await.unwrap();
    let _writer = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("lock_intent", 1).await;
    assert!(lock.read().try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn case_ids_differ() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("ids");
    let mut owners = Vec::new();
    for _ in 0..100 {
        let guard = lock.read().acquire_fair().await.unwrap();
        // 16 bytes, as theirs: in hex 32 digits.
        assert_eq!(guard.owner().uuid().simple().to_string().len(), 32);
        owners.push(guard.owner());
        guard.release().await.unwrap();
    }
    owners.extend((0..100).map(|_| Owner::new()));
    owners.sort();
    owners.dedup();
    assert_eq!(owners.len(), 200);
}

/// The token mutex: a hundred at once count to a hundred. Theirs sleep at random and enter in any order.
#[tokio::test]
async fn case_a_hundred_count_in_turn() {
    const TOTAL: usize = 100;
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("ntlock");
    let first = lock.write().acquire_fair().await.unwrap();
    let count = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for id in 0..TOTAL {
        let (lock, count) = (lock.clone(), std::sync::Arc::clone(&count));
        tasks.spawn(async move {
            let guard = lock.write().acquire_fair().await.unwrap();
            let before = count.lock().unwrap().clone();
            // Others run meanwhile: without the lock their counts are lost.
            tokio::task::yield_now().await;
            *count.lock().unwrap() = [before, vec![id]].concat();
            guard.release().await.unwrap();
        });
        server.until_queued("ntlock", id + 1).await;
    }
    // Their start signal.
    first.release().await.unwrap();
    soon("all of them", tasks.join_all()).await;
    let in_turn: Vec<_> = (0..TOTAL).collect();
    assert_eq!(*count.lock().unwrap(), in_turn);
}

/// The token mutex: why the value is random. A asks, its time is over, B enters; A's late unlock must not free B.
#[tokio::test]
async fn case_a_late_unlock_does_not_free_the_next_holder() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let builder = Client::builder().lease(Duration::from_secs(1));
    let proxy_client = builder.connect(proxy.url()).await.unwrap();
    let a = proxy_client.rw_lock("ntlock");
    let b = client(&server).await.rw_lock("ntlock");
    let held = a.write().acquire_fair().await.unwrap();
    proxy.stall(true);
    let next = soon("B", b.write().acquire_fair()).await.unwrap();
    assert!(!held.is_held(), "A knows before B enters");
    proxy.stall(false);
    let late = held.release().await;
    assert!(is_lost(&late), "{late:?}");
    // Its client has more to tell the server now: it ends when it has.
    drop((a, proxy_client));
    eventually("A's client has ended", async || server.connections().await == 2).await;
    let status = b.status().await.unwrap();
    assert_eq!((status.mode, status.holding), (Some(Mode::Write), 1));
    next.release().await.unwrap();
    eventually("free", async || b.status().await.unwrap().mode.is_none()).await;
}
