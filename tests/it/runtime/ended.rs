//! The runtime of a client ends before its guards, its waiters or the client itself.

use super::{Elsewhere, LEASE, LONG, client, multi_thread, write};
use crate::failover::demotion::until_server_waits;
use crate::lateness::in_time;
use crate::observe::View;
use crate::server::{Server, connected, eventually, soon};
use fairlock::{Client, Error, LostReason, Owner, WriteGuard};
use std::time::{Duration, Instant};

/// A runtime that is gone, and what was acquired on it for the locks "a", "b" and so on.
async fn outliving(server: &Server, names: &[&str], lease: Duration) -> (Client, Vec<WriteGuard>) {
    let (url, names) = (
        server.url(),
        names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(),
    );
    let short_lived = std::thread::spawn(move || {
        let runtime = multi_thread();
        let outcome = runtime.block_on(async {
            let builder = Client::builder().lease(lease);
            let client = connected(builder, url).await;
            let mut guards = Vec::new();
            for name in names {
                guards.push(write(&client.rw_lock(name)).await);
            }
            (client, guards)
        });
        drop(runtime);
        outcome
    });
    tokio::task::spawn_blocking(move || short_lived.join().expect("no panic"))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_guard_dropped_after_its_runtime_leaves_the_lock_free_within_a_lease() {
    let server = Server::start().await;
    let (gone, guards) = outliving(&server, &["a"], LEASE).await;
    let lock = client(&server, LONG).await.rw_lock("a");
    std::thread::spawn(move || drop((guards, gone)))
        .join()
        .expect("no panic");
    // By the end of its lease: nobody else knows that it died.
    drop(write(&lock).await);
}

#[tokio::test]
async fn a_guard_released_after_its_runtime_reports_an_error() {
    let server = Server::start().await;
    let (_gone, mut guards) = outliving(&server, &["a", "b"], LEASE).await;
    let (a, b) = (guards.remove(0), guards.remove(0));
    // While it is still believed to be held, and after that.
    let unconfirmed = soon("a release", a.release()).await;
    assert!(
        matches!(unconfirmed, Err(Error::Unavailable { .. } | Error::Lost { .. })),
        "{unconfirmed:?}"
    );
    soon("the loss", b.lost()).await;
    let lost = soon("a release", b.release()).await;
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
}

#[tokio::test]
async fn a_guard_that_outlives_its_runtime_is_lost_with_its_lease() {
    let server = Server::start().await;
    let (_gone, guards) = outliving(&server, &["a"], LEASE).await;
    let guard = &guards[0];
    let lock = client(&server, LEASE).await.rw_lock("a");
    let waiter = tokio::spawn(lock.write().acquire_fair());
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::LeaseExpired);
    assert!(!guard.is_held());
    let next = soon("the next writer", waiter).await.unwrap().unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
}

#[tokio::test]
async fn a_client_that_outlives_its_runtime_refuses_and_shuts_down_without_hanging() {
    let server = Server::start().await;
    let (gone, guards) = outliving(&server, &["a"], LEASE).await;
    let lock = gone.rw_lock("b");
    let asked = soon("an answer", lock.write().acquire_fair()).await;
    assert!(matches!(asked, Err(Error::Unavailable { .. })), "{asked:?}");
    let tried = soon("an answer", lock.write().try_acquire()).await;
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    soon("the shutdown", gone.shutdown()).await;
    assert!(!guards[0].is_held());
}

fn is_of_the_ended_runtime<T: std::fmt::Debug>(result: &Result<T, Error>) -> bool {
    let is_unavailable = matches!(result, Err(Error::Unavailable { .. }));
    is_unavailable && format!("{result:?}").contains("the client's runtime has ended")
}

/// No lease ends here, and no time limit of a call is met by a frozen server: whatever ends is told.
#[tokio::test]
async fn when_the_clients_runtime_ends_waits_and_calls_fail_at_once() {
    let server = Server::start().await;
    let mut elsewhere = Elsewhere::new();
    let gone = elsewhere.client(&server, LONG).await;
    let holder = client(&server, LONG).await.rw_lock("a");
    let held = write(&holder).await;
    let lock = gone.rw_lock("a");
    let waiting = [
        tokio::spawn(lock.write().acquire_fair()),
        tokio::spawn(lock.write().acquire_fair()),
    ];
    let limited = tokio::spawn(lock.write().try_acquire_for(Duration::MAX));
    let ours = write(&gone.rw_lock("b")).await;
    let mut events = lock.events().await.unwrap();
    server.until_queued("a", 3).await;

    elsewhere.end();
    for waiter in waiting {
        let ended = soon("the end of a wait", waiter).await.unwrap();
        assert!(is_of_the_ended_runtime(&ended), "{ended:?}");
    }
    let ended = soon("the end of a wait", limited).await.unwrap();
    assert!(is_of_the_ended_runtime(&ended), "{ended:?}");
    let missed = loop {
        match soon("the end of the stream", events.next()).await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break Err::<(), _>(error),
            None => panic!("the stream ends without a word"),
        }
    };
    assert!(is_of_the_ended_runtime(&missed), "{missed:?}");
    assert!(soon("the end of the stream", events.next()).await.is_none());

    let asked = soon("an answer", lock.write().acquire_fair()).await;
    assert!(is_of_the_ended_runtime(&asked), "{asked:?}");
    let tried = soon("an answer", lock.write().try_acquire()).await;
    assert!(is_of_the_ended_runtime(&tried), "{tried:?}");
    let seen = soon("an answer", lock.status()).await;
    assert!(is_of_the_ended_runtime(&seen), "{seen:?}");
    let evicted = soon("an answer", lock.evict(&Owner::new())).await;
    assert!(is_of_the_ended_runtime(&evicted), "{evicted:?}");
    let listened = soon("an answer", gone.events()).await;
    assert!(is_of_the_ended_runtime(&listened), "{listened:?}");
    assert!(listened.unwrap_err().to_string().contains("connect a new client"));
    assert!(ours.is_held(), "its proof lasts for minutes");
    let released = soon("an answer", ours.release()).await;
    assert!(is_of_the_ended_runtime(&released), "{released:?}");
    soon("the shutdown", gone.shutdown()).await;
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_for_replicas_whose_runtime_ends_fails_at_once() {
    let server = Server::start().await;
    let mut elsewhere = Elsewhere::new();
    let gone = elsewhere.client(&server, LONG).await;
    let ask = |name: &str| tokio::spawn(gone.rw_lock(name).write().wait_for_replicas(1, LONG).acquire_fair());
    let first = ask("a");
    until_server_waits(&server).await;
    // Its renewal stands behind the other's WAIT.
    let second = ask("b");
    eventually("granted", async || !View::of(&server, "b").await.leases.is_empty()).await;
    elsewhere.end();
    for waiting in [first, second] {
        let ended = soon("the end of a wait", waiting).await.unwrap();
        assert!(is_of_the_ended_runtime(&ended), "{ended:?}");
    }
}

#[tokio::test]
async fn a_first_attempt_ends_with_its_clients_runtime() {
    let server = Server::start().await;
    let mut elsewhere = Elsewhere::new();
    let gone = elsewhere.client(&server, LONG).await;
    server.freeze();
    let lock = gone.rw_lock("a");
    let asking = tokio::spawn(async move {
        let mut asking = Box::pin(lock.write().acquire_fair());
        // It has sent its call by then.
        let polled = futures::poll!(asking.as_mut());
        assert!(polled.is_pending());
        asking.await
    });
    tokio::task::yield_now().await;
    elsewhere.end();
    let ended = soon("the end of the attempt", asking).await.unwrap();
    assert!(is_of_the_ended_runtime(&ended), "{ended:?}");
}

#[tokio::test]
async fn looks_under_way_end_with_their_clients_runtime() {
    let server = Server::start().await;
    let mut elsewhere = Elsewhere::new();
    let gone = elsewhere.client(&server, LONG).await;
    server.freeze();
    let lock = gone.rw_lock("a");
    let mut locks = gone.locks("*");
    let mut looks = Box::pin(async { tokio::join!(lock.exists(), lock.status(), locks.next()) });
    // They have sent their calls by then.
    assert!(futures::poll!(looks.as_mut()).is_pending());
    // All tasks are gone when this returns, and nobody has polled the looks meanwhile.
    let runtime = elsewhere.runtime.take();
    tokio::task::spawn_blocking(move || drop(runtime)).await.unwrap();
    let (exists, status, found) = soon("the end of the looks", looks).await;
    assert!(is_of_the_ended_runtime(&exists), "{exists:?}");
    assert!(is_of_the_ended_runtime(&status), "{status:?}");
    let found = found.expect("an error before the end of the stream");
    assert!(is_of_the_ended_runtime(&found), "{found:?}");
}

#[tokio::test]
async fn a_runtime_that_ends_under_waiters_costs_the_others_one_lease() {
    in_time(async || {
        let server = Server::start().await;
        let holder = client(&server, LONG).await.rw_lock("a");
        let guard = write(&holder).await;
        let url = server.url();
        let runtime = multi_thread();
        let builder = Client::builder().lease(LEASE);
        for _ in 0..10 {
            let (builder, url) = (builder.clone(), url.clone());
            runtime.spawn(async move {
                let lock = connected(builder, url).await.rw_lock("a");
                let waiting = (0..5).map(|_| lock.write().acquire_fair());
                futures::future::join_all(waiting).await;
            });
        }
        server.until_queued("a", 50).await;
        // In the middle of their waiting: their futures are dropped, but nobody is left to send a release.
        runtime.shutdown_background();
        let ended = Instant::now();
        let next = tokio::spawn(client(&server, LONG).await.rw_lock("a").write().acquire_fair());
        guard.release().await.unwrap();
        drop(soon("one lease for all of them", next).await.unwrap().unwrap());
        // Fifty leases, one after the other, are 100 s.
        assert!(ended.elapsed() < 25 * LEASE, "{:?}", ended.elapsed());
    })
    .await;
}
