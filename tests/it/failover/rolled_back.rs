//! The server goes back to an earlier state: to its file, or to a replica that lagged.

use crate::observe::{LONG, View, client, keys};
use crate::server::{Server, eventually, soon};
use fairlock::{LostReason, Owner, RwLock, WriteGuard};
use fairlock_support::packed::Packed;
use fairlock_support::scripts::RELEASE;
use std::time::Duration;

/// The keys of lock "a".
async fn state(server: &Server) -> Vec<Option<Vec<u8>>> {
    let mut dumps = redis::pipe();
    for key in keys("a") {
        dumps.cmd("DUMP").arg(key);
    }
    dumps.query_async(&mut server.redis().await).await.unwrap()
}

async fn go_back(server: &Server, state: Vec<Option<Vec<u8>>>) {
    let mut back = redis::pipe();
    back.atomic();
    for (key, dump) in keys("a").iter().zip(state) {
        back.del(key).ignore();
        if let Some(dump) = dump {
            back.cmd("RESTORE").arg(key).arg(0).arg(dump).ignore();
        }
    }
    back.exec_async(&mut server.redis().await).await.unwrap();
}

/// Releases who holds lock "a", and nobody tells its client.
async fn release_unheard(server: &Server) {
    let mut redis = server.redis().await;
    let holder = Packed::of(&mut redis, &keys("a")[0]).await.holder;
    let mut release = redis::cmd("EVAL");
    release.arg(RELEASE.text).arg(3).arg(&keys("a")).arg("").arg(holder);
    release.exec_async(&mut redis).await.unwrap();
}

/// A hold of that owner, which the server has forgotten: it waits there, as it did before, behind one that is over too.
async fn waits_again(server: &Server, owner: &Owner, lease: Duration) -> (RwLock, WriteGuard) {
    let first = client(server.url(), lease)
        .await
        .rw_lock("a")
        .write()
        .acquire_fair()
        .await
        .unwrap();
    let lock = client(server.url(), lease).await.rw_lock("a").with_owner(owner);
    let second = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 1).await;
    let before = state(server).await;
    first.release().await.unwrap();
    let second = soon("its turn", second).await.unwrap().unwrap();
    go_back(server, before).await;
    (lock, second)
}

#[tokio::test]
async fn an_owner_asks_again_at_once_when_its_lost_hold_waits_once_more() {
    let server = Server::start().await;
    let owner = Owner::new();
    let (lock, guard) = waits_again(&server, &owner, Duration::from_secs(3)).await;
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::UnknownToServer);
    drop(guard);
    let again = soon("its turn", lock.write().acquire_fair()).await;
    assert!(again.unwrap().is_held());
}

#[tokio::test]
async fn a_lost_hold_that_waits_once_more_is_released_though_its_guard_is_kept() {
    let server = Server::start().await;
    let (_, guard) = waits_again(&server, &Owner::new(), LONG).await;
    // A client that connects again looks at its holds.
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
    kill.exec_async(&mut server.redis().await).await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::UnknownToServer);
    eventually("it waits no more", async || {
        View::of(&server, "a").await.waiting.is_empty()
    })
    .await;
    drop(guard);
}

#[tokio::test]
async fn a_grant_that_is_lost_before_its_replicas_have_it_keeps_its_place() {
    const PATIENT: Duration = Duration::from_secs(300);
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let strict = client(server.url(), Duration::from_secs(3)).await.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    let first = tokio::spawn(strict.write().wait_for_replicas(1, PATIENT).acquire_fair());
    server.until_queued("a", 1).await;
    let second = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 2).await;
    let third = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 3).await;
    held.release().await.unwrap();
    server.until_queued("a", 2).await;
    release_unheard(&server).await;
    let second = soon("its turn", second).await.unwrap().unwrap();
    let behind = View::of(&server, "a").await.waiting;
    eventually("the first one asks again", async || {
        View::of(&server, "a").await.waiting.len() == 2
    })
    .await;
    assert_eq!(
        View::of(&server, "a").await.waiting[1..],
        behind,
        "it stands before who came later"
    );
    drop((first, second, third));
}
