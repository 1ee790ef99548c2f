//! Calls outside of a runtime, or in one without timers or I/O.

use super::{Elsewhere, LONG, calls_that_can_fail, client, multi_thread, write};
use crate::server::{PATIENCE, Server, soon};
use fairlock::{Client, Error, LostReason};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;

#[test]
fn a_guard_dropped_outside_of_any_runtime_is_released() {
    let runtime = multi_thread();
    let server = runtime.block_on(Server::start());
    let lock = runtime.block_on(async { client(&server, LONG).await.rw_lock("a") });
    let guard = runtime.block_on(write(&lock));
    std::thread::spawn(move || {
        assert!(tokio::runtime::Handle::try_current().is_err());
        drop(guard);
    })
    .join()
    .expect("no panic");
    drop(runtime.block_on(write(&lock)));
}

#[test]
fn a_future_dropped_outside_of_any_runtime_leaves_the_queue() {
    let runtime = multi_thread();
    let server = runtime.block_on(Server::start());
    let lock = runtime.block_on(async { client(&server, LONG).await.rw_lock("a") });
    let guard = runtime.block_on(write(&lock));
    let mut waiting = Box::pin(lock.write().acquire_fair());
    runtime.block_on(async {
        tokio::select! {
            _ = &mut waiting => panic!("a second writer entered"),
            () = server.until_queued("a", 1) => {}
        }
    });
    std::thread::spawn(move || drop(waiting)).join().expect("no panic");
    runtime.block_on(server.until_queued("a", 0));
    assert!(guard.is_held());
}

/// On this thread, outside of any runtime.
fn block_on_bare<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    let begun = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(begun.elapsed() < PATIENCE, "it hangs");
        std::thread::park_timeout(PATIENCE);
    }
}

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

type Run = fn(Job);

/// Where a program may call from, other than from a runtime with timers.
const PLACES: [(&str, Run); 3] = [
    ("no runtime", |job| block_on_bare(job)),
    ("a runtime without anything", |job| {
        Builder::new_current_thread().build().unwrap().block_on(job);
    }),
    ("a runtime without timers", |job| {
        Builder::new_multi_thread()
            .worker_threads(1)
            .enable_io()
            .build()
            .unwrap()
            .block_on(job);
    }),
];

#[test]
fn calls_outside_of_a_runtime_with_timers_say_so_and_never_panic() {
    let home = multi_thread();
    let server = home.block_on(Server::start());
    for (place, run) in PLACES {
        for (name, call) in home.block_on(calls_that_can_fail(&server)) {
            run(Box::pin(async move {
                let said = call.await;
                assert!(
                    matches!(said, Err(Error::Runtime { .. })),
                    "{name} with {place}: {said:?}"
                );
                assert!(said.unwrap_err().to_string().contains("enable_all()"));
            }));
        }
        // Guards that could not be released there are, in the background.
        let lock = home.block_on(client(&server, LONG)).rw_lock("r");
        drop(home.block_on(write(&lock)));
    }
}

#[test]
fn losses_are_told_and_shutdowns_done_outside_of_a_runtime_with_timers() {
    let home = multi_thread();
    let server = home.block_on(Server::start());
    for (_, run) in PLACES {
        let client = home.block_on(client(&server, LONG));
        let guard = home.block_on(async {
            let short = client.rw_lock("l").write().max_hold(Duration::from_millis(50));
            soon("the lock", short.acquire_fair()).await.unwrap()
        });
        let held = home.block_on(write(&client.rw_lock("h")));
        run(Box::pin(async move {
            assert_eq!(held.while_held(std::future::ready(7)).await.unwrap(), 7);
            assert_eq!(guard.lost().await, LostReason::MaxHold);
            client.shutdown().await;
            assert!(!held.is_held());
        }));
        // Released, though its lease lasts for minutes.
        let next = home.block_on(self::client(&server, LONG)).rw_lock("h");
        drop(home.block_on(write(&next)));
    }
}

#[test]
fn a_loss_is_told_where_nobody_has_timers_any_more() {
    let home = multi_thread();
    let server = home.block_on(Server::start());
    let mut elsewhere = Elsewhere::new();
    let gone = home.block_on(elsewhere.client(&server, LONG));
    let guard = home.block_on(write(&gone.rw_lock("a")));
    elsewhere.end();
    assert_eq!(block_on_bare(guard.lost()), LostReason::LeaseExpired);
    assert!(!guard.is_held());
}

#[test]
fn without_io_a_runtime_cannot_connect_but_can_use_a_client() {
    let home = multi_thread();
    let server = home.block_on(Server::start());
    let client = home.block_on(client(&server, LONG));
    let timers = Builder::new_current_thread().enable_time().build().unwrap();
    let said = timers.block_on(Client::connect(server.url()));
    assert!(matches!(said, Err(Error::Runtime { .. })), "{said:?}");
    let guard = timers.block_on(write(&client.rw_lock("a")));
    timers.block_on(soon("the release", guard.release())).unwrap();
}
