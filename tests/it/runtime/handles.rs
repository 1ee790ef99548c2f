//! Handles, guards and futures: what outlives what, what is `Send`, and what must not be dropped unused.

use super::{LEASE, calls_that_can_fail, client, until_closed, write};
use crate::lateness::in_time;
use crate::server::{Server, soon};
use fairlock::{Acquire, Client, Error, FencingToken, Owner, Policy, ReadGuard, RwLock, Write, WriteGuard};
use std::time::Duration;
use tokio::time::sleep;

/// A new function has to find its place in the tables above.
#[tokio::test]
async fn the_tables_name_every_public_async_function() {
    let server = Server::start().await;
    let calls = calls_that_can_fail(&server).await;
    // A future, and no function.
    let functions = calls.iter().filter(|(name, _)| *name != "Queued");
    let mut known: Vec<_> = functions.map(|(name, _)| (*name).to_owned()).collect();
    // Guards of one lock, and of several; leaders; clients; streams, whose items are errors.
    let never_fails = [
        "lost",
        "while_held",
        "lost",
        "while_held",
        "lost",
        "while_leading",
        "shutdown",
        "next",
        "next",
        "next",
    ];
    known.extend(never_fails.map(str::to_owned));
    known.sort();
    let mut found = Vec::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|end| end == "rs") {
            let source = std::fs::read_to_string(path).unwrap();
            // An `async fn`, or a function that returns a future.
            for function in source.split("    pub ").skip(1) {
                let head = function.split(['{', ';']).next().unwrap();
                let returned = || head.strip_prefix("fn ").filter(|_| head.contains("-> impl Future<"));
                let named = head.strip_prefix("async fn ").or_else(returned);
                found.extend(named.map(|named| named.split(['(', '<']).next().unwrap().to_owned()));
            }
        }
    }
    found.sort();
    assert_eq!(found, known);
}

#[tokio::test]
async fn a_guard_outlives_the_last_handle_of_its_client() {
    in_time(async || {
        let server = Server::start().await;
        let connected = client(&server, LEASE).await;
        let lock = connected.rw_lock("a");
        let guard = write(&lock).await;
        drop((connected, lock));
        assert_eq!(server.connections().await, 2);
        sleep(LEASE * 2).await;
        assert!(guard.is_held(), "it was not renewed");
        let held = server.keys().await;
        assert_eq!(held, ["fairlock:{a}"]);

        drop(guard);
        until_closed(&server).await;
        let next = client(&server, LEASE).await.rw_lock("a");
        assert!(
            next.write().try_acquire().await.unwrap().is_some(),
            "closed before it had been released"
        );
    })
    .await;
}

#[tokio::test]
async fn a_waiting_future_outlives_the_last_handle_of_its_client() {
    in_time(async || {
        let server = Server::start().await;
        let holder = client(&server, LEASE).await;
        let guard = write(&holder.rw_lock("a")).await;
        let waiter = tokio::spawn(client(&server, LEASE).await.rw_lock("a").write().acquire_fair());
        server.until_queued("a", 1).await;
        sleep(LEASE + LEASE / 2).await;
        assert!(!waiter.is_finished());
        guard.release().await.unwrap();
        let next = soon("its turn", waiter).await.unwrap().unwrap();
        drop((next, holder));
        until_closed(&server).await;
    })
    .await;
}

// What follows is asserted by the compiler.

fn is_send_sync<T: Send + Sync + 'static>() {}

fn is_send<T: Send + 'static>(_: &T) {}

#[test]
fn handles_guards_and_errors_are_send_sync_and_static() {
    is_send_sync::<Client>();
    is_send_sync::<fairlock::ClientBuilder>();
    is_send_sync::<RwLock>();
    is_send_sync::<Acquire<Write>>();
    is_send_sync::<Acquire<fairlock::Read>>();
    is_send_sync::<ReadGuard>();
    is_send_sync::<WriteGuard>();
    is_send_sync::<Owner>();
    is_send_sync::<FencingToken>();
    is_send_sync::<Policy>();
    is_send_sync::<Error>();
}

#[tokio::test]
async fn futures_are_send_and_static() {
    let server = Server::start().await;
    let connect = Client::connect(server.url());
    is_send(&connect);
    let lock = connect.await.unwrap().rw_lock("a");
    is_send(&lock.write().acquire_fair());
    is_send(&lock.read().try_acquire());
    is_send(&lock.read().try_acquire_for(Duration::MAX));
    let guard = tokio::spawn(lock.write().acquire_fair()).await.unwrap().unwrap();
    let guard = tokio::spawn(async move {
        tokio::select! {
            reason = guard.lost() => panic!("lost: {reason}"),
            done = guard.while_held(std::future::ready(7)) => assert_eq!(done.unwrap(), 7),
        }
        guard
    });
    let guard = guard.await.unwrap();
    tokio::spawn(guard.release()).await.unwrap().unwrap();
}

/// `expect` fails to compile where the lint that it names stays silent.
#[deny(unfulfilled_lint_expectations)]
#[tokio::test]
async fn what_is_not_used_is_warned_of() {
    let server = Server::start().await;
    let lock = client(&server, LEASE).await.rw_lock("a");
    #[expect(unused_must_use, reason = "a request that is not sent")]
    {
        lock.write();
    }
    #[expect(unused_must_use, reason = "a future that is not awaited")]
    {
        lock.write().acquire_fair();
    }
    #[expect(unused_must_use, reason = "a guard that is dropped at once")]
    {
        lock.write().acquire_fair().await.unwrap();
    }
    let guard = write(&lock).await;
    #[expect(unused_must_use, reason = "a question that nobody asked for")]
    {
        guard.is_held();
    }
    #[expect(
        unused_must_use,
        reason = "a release that is not awaited; the guard is dropped all the same"
    )]
    {
        guard.release();
    }
    assert!(server.keys().await.len() <= 1);
}
