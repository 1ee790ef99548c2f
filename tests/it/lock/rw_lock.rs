//! A lock excludes, shares, is released and is handed over.

use crate::server::{Server, soon};
use fairlock::{Client, Error, Owner};
use std::time::Duration;

async fn client(server: &Server) -> Client {
    Client::connect(server.url()).await.expect("the server is up")
}

#[tokio::test]
async fn a_writer_excludes_writers_and_readers() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    let guard = lock.write().acquire_fair().await.unwrap();
    assert!(guard.is_held());
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    drop(lock.write().try_acquire().await.unwrap().expect("free"));
}

#[tokio::test]
async fn readers_share_and_exclude_writers() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    let (a, b) = tokio::try_join!(lock.read().acquire_fair(), lock.read().acquire_fair()).unwrap();
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    a.release().await.unwrap();
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    b.release().await.unwrap();
    drop(lock.write().try_acquire().await.unwrap().expect("free"));
}

#[tokio::test]
async fn a_release_hands_the_lock_to_who_waits() {
    let server = Server::start().await;
    let (here, there) = (client(&server).await.rw_lock("a"), client(&server).await.rw_lock("a"));
    let guard = here.write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(there.write().acquire_fair());
    server.until_queued("a", 1).await;
    let first = guard.fencing_token();
    guard.release().await.unwrap();
    let second = soon("the hand-over", waiter).await.unwrap().unwrap();
    assert!(second.fencing_token() > first);
}

#[tokio::test]
async fn a_dropped_guard_releases_in_the_background() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    drop(lock.write().acquire_fair().await.unwrap());
    drop(soon("the next one", lock.write().acquire_fair()).await.unwrap());
}

#[tokio::test]
async fn an_owner_reenters_with_the_same_token_and_leaves_in_any_order() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    let mine = lock.with_owner(&Owner::new());
    let outer = mine.write().acquire_fair().await.unwrap();
    let inner = mine.write().acquire_fair().await.unwrap();
    let also = mine.read().acquire_fair().await.unwrap();
    assert_eq!(outer.fencing_token(), inner.fencing_token());
    assert_eq!(outer.fencing_token(), also.fencing_token());
    outer.release().await.unwrap();
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    inner.release().await.unwrap();
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    drop(lock.read().try_acquire().await.unwrap().expect("read by others only"));
    also.release().await.unwrap();
}

#[tokio::test]
async fn a_second_waiting_request_of_one_owner_is_refused() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    let mine = lock.with_owner(&Owner::new());
    let _guard = lock.write().acquire_fair().await.unwrap();
    let waiting = tokio::spawn(mine.write().acquire_fair());
    server.until_queued("a", 1).await;
    let second = mine.read().acquire_fair().await;
    assert!(matches!(second, Err(Error::OwnerWaiting { .. })), "{second:?}");
    waiting.abort();
}

#[tokio::test]
async fn an_owner_may_ask_again_right_after_its_future_was_dropped() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    let mine = lock.with_owner(&Owner::new());
    let guard = lock.write().acquire_fair().await.unwrap();
    // In a task that the runtime schedules like the releaser's, so that a refusal arrives before the release's reply.
    let asking = tokio::spawn(async move {
        for _ in 0..20 {
            let dropped = tokio::time::timeout(Duration::from_millis(5), mine.write().acquire_fair()).await;
            assert!(dropped.is_err());
        }
        mine
    });
    let mine = soon("the refusals", asking).await.unwrap();
    // It waits a lease for its former requests, if they do not go: longer than this test does.
    let waiting = tokio::spawn(mine.write().lease(Duration::from_secs(600)).acquire_fair());
    server.until_queued("a", 1).await;
    drop(guard);
    drop(soon("its turn", waiting).await.unwrap().unwrap());
}

#[tokio::test]
async fn an_owner_that_dropped_its_guard_asks_again_behind_who_waits() {
    let server = Server::start().await;
    let (mine, other) = (client(&server).await.rw_lock("a"), client(&server).await.rw_lock("a"));
    let mine = mine.with_owner(&Owner::new());
    let guard = mine.write().acquire_fair().await.unwrap();
    let waiting = tokio::spawn(other.write().acquire_fair());
    server.until_queued("a", 1).await;
    drop(guard);
    // If this came to the server before the release, the owner would enter again and pass the waiter.
    assert!(mine.write().try_acquire().await.unwrap().is_none());
    drop(soon("its turn", waiting).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_hold_that_reached_a_max_hold_far_below_its_lease_lets_in_who_waits() {
    let server = Server::start().await;
    let (lock, other) = (client(&server).await.rw_lock("a"), client(&server).await.rw_lock("a"));
    // A third of the lease is longer than this test waits for anything.
    let (lease, max_hold) = (Duration::from_secs(3600), Duration::from_millis(500));
    let guard = lock
        .write()
        .lease(lease)
        .max_hold(max_hold)
        .acquire_fair()
        .await
        .unwrap();
    let next = soon("the next one", other.write().acquire_fair()).await.unwrap();
    assert!(!guard.is_held() && next.is_held());
}
