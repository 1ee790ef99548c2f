//! Every kind of runtime, and several at once.

use super::{LEASE, LONG, client, multi_thread, until_closed, write};
use crate::lateness::{in_time, promise};
use crate::server::{Server, soon};
use fairlock::WriteGuard;
use std::sync::mpsc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Renewed past its lease, handed over, shared, cancelled, dropped, shut down by dropping.
async fn all_that_needs_the_background() {
    let server = Server::start().await;
    let (here, there) = (client(&server, LEASE).await, client(&server, LEASE).await);
    let (a, b) = (here.rw_lock("a"), there.rw_lock("a"));
    let guard = write(&a).await;
    let waiter = tokio::spawn(b.write().acquire_fair());
    server.until_queued("a", 1).await;
    sleep(LEASE + LEASE / 2).await;
    assert!(guard.is_held(), "it was not renewed");
    assert!(!waiter.is_finished());
    let first = guard.fencing_token();
    guard.release().await.unwrap();
    let second = soon("the hand-over", waiter).await.unwrap().unwrap();
    promise(second.fencing_token() > first, "tokens grow");

    let none = a.write().try_acquire_for(Duration::from_millis(50)).await.unwrap();
    assert!(none.is_none());
    server.until_queued("a", 0).await;
    drop(second);
    let readers = soon("readers", async {
        tokio::try_join!(a.read().acquire_fair(), b.read().acquire_fair())
    });
    drop(readers.await.unwrap());
    drop((a, b, here, there));
    until_closed(&server).await;
}

#[test]
fn everything_works_on_a_current_thread_runtime() {
    current_thread().block_on(in_time(all_that_needs_the_background));
}

#[test]
fn everything_works_on_a_multi_thread_runtime() {
    multi_thread().block_on(in_time(all_that_needs_the_background));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_moved_between_tasks_threads_and_runtimes_stays_held() {
    in_time(async || {
        let server = Server::start().await;
        let lock = client(&server, LEASE).await.rw_lock("a");
        let acquired = tokio::spawn(lock.write().acquire_fair());
        let guard = soon("the guard", acquired).await.unwrap().unwrap();
        let token = guard.fencing_token();

        // To a thread that knows no runtime, which keeps it for longer than a lease.
        let (give, take) = mpsc::channel::<WriteGuard>();
        let (give_back, take_back) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let guard = take.recv().expect("the guard");
            std::thread::sleep(LEASE + LEASE / 2);
            let held = guard.is_held();
            let _ = give_back.send((guard, held));
        });
        give.send(guard).unwrap();
        let (guard, held) = soon("the thread", take_back).await.unwrap();
        thread.join().unwrap();
        assert!(held, "it was not renewed while a thread had it");

        // To another runtime, which releases it while the first one lives.
        let released = std::thread::spawn(move || {
            let same = guard.fencing_token() == token;
            (same, current_thread().block_on(soon("the release", guard.release())))
        });
        let (same, released) = tokio::task::spawn_blocking(move || released.join().unwrap())
            .await
            .unwrap();
        assert!(same);
        released.unwrap();
        assert!(lock.write().try_acquire().await.unwrap().is_some());
    })
    .await;
}

#[tokio::test]
async fn a_client_serves_tasks_of_several_runtimes() {
    let server = Server::start().await;
    let lock = client(&server, LONG).await.rw_lock("a");
    let guard = write(&lock).await;
    let there = lock.clone();
    let elsewhere = tokio::task::spawn_blocking(move || {
        current_thread().block_on(async {
            let guard = write(&there).await;
            soon("the release", guard.release()).await
        })
    });
    server.until_queued("a", 1).await;
    guard.release().await.unwrap();
    soon("the other runtime", elsewhere).await.unwrap().unwrap();
    assert!(lock.write().try_acquire().await.unwrap().is_some());
}
