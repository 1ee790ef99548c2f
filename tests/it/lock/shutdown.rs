//! A shutdown releases every hold, leaves every queue, and ends in time.

use crate::lateness::in_time;
use crate::observe::{LONG, client};
use crate::proxy::Proxy;
use crate::server::{Server, eventually, soon};
use fairlock::{Error, Owner};
use fairlock_support::packed::Packed;
use futures::future::{FutureExt, join_all};
use std::time::Duration;

#[tokio::test]
async fn shutdown_leaves_every_queue_and_releases_every_hold() {
    let server = Server::start().await;
    let (leaving, staying) = (
        client(server.url(), Duration::from_secs(10)).await,
        client(server.url(), Duration::from_secs(10)).await,
    );
    let held = leaving.rw_lock("a").write().acquire_fair().await.unwrap();
    let _other = staying.rw_lock("b").write().acquire_fair().await.unwrap();
    let waiting = tokio::spawn(leaving.rw_lock("b").write().acquire_fair());
    server.until_queued("b", 1).await;
    leaving.shutdown().await;
    assert!(!held.is_held());
    assert!(matches!(held.release().await, Err(Error::Lost { .. })));
    assert!(matches!(waiting.await.unwrap(), Err(Error::Shutdown { .. })));
    assert_eq!(server.queued("b").await, 0);
    assert!(staying.rw_lock("a").write().try_acquire().await.unwrap().is_some());
    let after = leaving.rw_lock("a").write().acquire_fair().await;
    assert!(matches!(after, Err(Error::Shutdown { .. })));
    eventually("connections closed", async || server.connections().await == 2).await;
}

#[tokio::test]
async fn an_owner_that_waits_for_its_former_request_does_not_enter_after_a_shutdown() {
    let server = Server::start().await;
    let (leaving, staying) = (
        client(server.url(), Duration::from_secs(10)).await,
        client(server.url(), Duration::from_secs(10)).await,
    );
    let watched = leaving.rw_lock("b").write().acquire_fair().await.unwrap();
    let mine = leaving.rw_lock("a").with_owner(&Owner::new());
    let former = mine.write().acquire_fair().await.unwrap();
    let token = former.fencing_token().get();
    server.freeze();
    drop(former);
    let again = tokio::spawn(mine.write().acquire_fair());
    // There is one thread: this runs it up to where it waits for the release.
    tokio::task::yield_now().await;
    let shutdown = tokio::spawn(async move { leaving.shutdown().await });
    soon("the shutdown has begun", watched.lost()).await;
    server.thaw();
    soon("the shutdown", shutdown).await.unwrap();
    let again = soon("an answer", again).await.unwrap();
    assert!(matches!(again, Err(Error::Shutdown { .. })), "{again:?}");
    // That nobody holds it would be a matter of luck, had it been sent: its release may still have come through.
    let mut redis = server.redis().await;
    let last = Packed::of(&mut redis, "fairlock:{a}").await.seq;
    assert_eq!(last, token, "it was granted after the shutdown had released it");
    let free = staying.rw_lock("a").write().try_acquire().await.unwrap();
    assert!(free.is_some(), "nobody holds it, and the lease is long");
}

#[tokio::test]
async fn shutdown_releases_over_a_new_connection_when_the_old_one_broke() {
    // More than are released at a time: the client's farewell, which waits for the connection too, waits for none of them.
    const LOCKS: usize = 300;
    in_time(async || {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let leaving = client(proxy.url(), Duration::from_secs(3600)).await;
        let locks: Vec<_> = (0..LOCKS).map(|n| leaving.rw_lock(n.to_string())).collect();
        let _held = join_all(locks.iter().map(|lock| lock.write().acquire_fair())).await;
        let staying = client(server.url(), Duration::from_secs(10)).await;
        proxy.cut();
        leaving.shutdown().await;
        eventually("the locks are free", async || {
            let tries = (0..LOCKS).map(async |n| staying.rw_lock(n.to_string()).write().try_acquire().await);
            let free = join_all(tries).await;
            free.into_iter().all(|guard| guard.unwrap().is_some())
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_shutdown_with_many_locks_of_a_server_that_hangs_does_not_wait_for_each() {
    in_time(async || {
        let server = Server::start().await;
        let client = client(server.url(), LONG).await;
        // Their releases, 64 at a time and each with its time limit, would take minutes.
        let locks: Vec<_> = (0..10_000).map(|n| client.rw_lock(n.to_string())).collect();
        let guards = join_all(locks.iter().map(|lock| lock.write().acquire_fair())).await;
        server.freeze();
        soon("the shutdown", client.shutdown()).await;
        server.thaw();
        drop(guards);
    })
    .await;
}

#[tokio::test]
async fn a_shutdown_ends_a_release_and_a_downgrade_that_get_no_reply() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let leaving = client(proxy.url(), LONG).await;
    let released = leaving.rw_lock("a").write().acquire_fair().await.unwrap();
    let downgraded = leaving.rw_lock("b").write().acquire_fair().await.unwrap();
    proxy.stall(true);
    let releasing = tokio::spawn(released.release());
    let downgrading = tokio::spawn(downgraded.downgrade());
    // There is one thread: both have asked.
    tokio::task::yield_now().await;
    soon("the shutdown", leaving.shutdown()).await;
    let ended = soon("an end of the release", releasing).await.unwrap();
    assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
    let ended = soon("an end of the downgrade", downgrading).await.unwrap();
    assert!(matches!(ended, Err(Error::Shutdown { .. })), "{ended:?}");
}

#[tokio::test]
async fn a_shutdown_ends_a_stream_that_has_not_begun() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let leaving = client(proxy.url(), LONG).await;
    let lock = leaving.rw_lock("a");
    proxy.stall(true);
    let mut streams = [lock.events().boxed(), leaving.events().boxed()];
    for stream in &mut streams {
        assert!(stream.now_or_never().is_none(), "nobody has answered");
    }
    let ended = async { tokio::join!(leaving.shutdown(), join_all(streams)).1 };
    for ended in soon("an end of the streams", ended).await {
        assert!(matches!(ended, Err(Error::Shutdown { .. })), "{ended:?}");
    }
    let later = soon("an end of a later one", lock.events()).await.map(drop);
    assert!(matches!(later, Err(Error::Shutdown { .. })), "{later:?}");
}
