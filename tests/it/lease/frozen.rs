//! A waiter that is frozen from its grant on.

use super::{Frozen, Process};
use crate::lateness::{in_time, promise};
use crate::observe::{LONG, View, client, ms};
use crate::server::{Server, eventually, soon};
use fairlock::{Client, WriteGuard};
use tokio::sync::oneshot;

/// A process that waits for "a", is frozen while it waits, and says what it got.
async fn a_frozen_waiter(server: &Server) -> (Frozen, oneshot::Receiver<(Client, WriteGuard)>) {
    let url = server.url();
    let (says, said) = oneshot::channel();
    let waiter = Process::start(move || async move {
        let client = client(url, ms(1000)).await;
        let guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
        assert!(guard.is_held());
        says.send((client, guard)).expect("the test waits");
        // Time for the watchdog to be told if the server disagrees.
        tokio::time::sleep(ms(500)).await;
    });
    server.until_queued("a", 1).await;
    (waiter.freeze().await, said)
}

#[tokio::test]
async fn a_waiter_frozen_from_its_grant_until_another_has_the_lock_queues_again() {
    in_time(async || {
        let server = Server::start().await;
        let near = client(server.url(), LONG).await.rw_lock("a");
        let held = near.write().acquire_fair().await.unwrap();
        let (waiter, mut said) = a_frozen_waiter(&server).await;
        held.release().await.unwrap();
        assert_eq!(View::of(&server, "a").await.mode, "write", "granted to the frozen one");
        let third = soon("the grant expires", near.write().acquire_fair()).await.unwrap();
        assert!(said.try_recv().is_err());
        let third_leaves = async {
            server.until_queued("a", 1).await;
            promise(said.try_recv().is_err(), "two are inside");
            third.release().await.unwrap();
            soon("it enters", &mut said).await.unwrap()
        };
        let ((_client, guard), ()) = tokio::join!(third_leaves, waiter.thaw());
        assert!(guard.is_held());
    })
    .await;
}

#[tokio::test]
async fn a_waiter_frozen_from_its_grant_until_nobody_has_the_lock_gets_a_fresh_hold() {
    in_time(async || {
        let server = Server::start().await;
        let near = client(server.url(), LONG).await.rw_lock("a");
        let held = near.write().acquire_fair().await.unwrap();
        let (waiter, said) = a_frozen_waiter(&server).await;
        held.release().await.unwrap();
        eventually("the grant has run out", async || {
            let view = View::of(&server, "a").await;
            view.leases.iter().all(|(_, deadline)| *deadline < view.now_ms)
        })
        .await;
        let ((_client, guard), ()) = tokio::join!(async { soon("it enters", said).await.unwrap() }, waiter.thaw());
        let view = View::of(&server, "a").await;
        assert!(
            guard.is_held() && view.leases.iter().all(|(_, deadline)| *deadline > view.now_ms),
            "{view:?}"
        );
    })
    .await;
}
