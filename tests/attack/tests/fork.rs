//! fork() without exec: the child has a copy of every guard, and of the connections.
#![allow(unsafe_code, reason = "there is no safe fork()")]

use fairlock::{Client, WriteGuard};
use fairlock_support::server::{Server, connected, eventually, soon};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// No renewal comes while a test runs.
const LONG: Duration = Duration::from_secs(600);

/// Forks. The child gets `None`.
fn fork() -> Option<libc::pid_t> {
    // SAFETY: the child calls nothing that another thread of the parent may keep locked, but what this test is about; and
    // the parent kills a child that does not end.
    match unsafe { libc::fork() } {
        0 => None,
        pid if pid > 0 => Some(pid),
        _ => panic!("no fork: {}", std::io::Error::last_os_error()),
    }
}

/// Ends the child without destructors.
fn end() -> ! {
    // SAFETY: it only ends this process.
    unsafe { libc::_exit(0) }
}

async fn ended(pid: libc::pid_t) {
    eventually("the child ends", async || {
        let mut status = 0;
        // SAFETY: a child of this process, and a place for its status.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        assert!(ended >= 0 && status == 0, "status {status}");
        ended == pid
    })
    .await;
}

async fn held(server: &Server) -> (Client, WriteGuard) {
    let client = connected(Client::builder().lease(LONG), server.url()).await;
    let guard = soon("the lock", client.rw_lock("a").write().acquire_fair())
        .await
        .unwrap();
    (client, guard)
}

/// The server still knows of the hold, and the parent can end it.
async fn is_untouched(client: &Client, guard: WriteGuard) {
    let status = soon("a status", client.rw_lock("a").status()).await.unwrap();
    assert_eq!(status.holding, 1, "the child has released its parent's hold");
    assert!(guard.is_held());
    soon("the release", guard.release()).await.unwrap();
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn a_child_whose_runtime_has_no_threads_drops_a_guard_and_its_parent_holds_on() {
    let runtime = multi_thread();
    let server = runtime.block_on(Server::start());
    let (client, guard) = runtime.block_on(held(&server));
    let Some(child) = fork() else {
        drop(guard);
        end();
    };
    runtime.block_on(async {
        ended(child).await;
        is_untouched(&client, guard).await;
    });
}

/// The child goes on running the parent's runtime, in its only thread.
#[test]
fn a_child_that_runs_a_copy_of_the_runtime_drops_a_guard_and_its_parent_holds_on() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::start().await;
        let (client, guard) = held(&server).await;
        let waiting = Box::pin(client.rw_lock("a").write().acquire_fair());
        let mut waiting = Some(tokio::task::unconstrained(waiting));
        tokio::select! {
            biased;
            _ = waiting.as_mut().expect("it is there") => panic!("two are inside"),
            () = server.until_queued("a", 1) => {}
        }
        let Some(child) = fork() else {
            drop(waiting.take());
            drop(guard);
            // The releaser has its turn.
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            end();
        };
        ended(child).await;
        assert_eq!(server.queued("a").await, 1, "the child has left its parent's queue");
        drop(waiting.take());
        is_untouched(&client, guard).await;
    });
}

/// The thread that runs the client's tasks is not in the child.
#[test]
fn a_child_drops_a_guard_of_the_blocking_client_and_its_parent_holds_on() {
    let runtime = multi_thread();
    let server = runtime.block_on(Server::start());
    let settings = Client::builder().lease(LONG);
    let client = fairlock::blocking::Client::connect_with(settings, server.url()).unwrap();
    let lock = client.rw_lock("a");
    let guard = lock.write().acquire_fair().unwrap();
    let Some(child) = fork() else {
        drop(guard);
        end();
    };
    runtime.block_on(ended(child));
    assert_eq!(
        lock.status().unwrap().holding,
        1,
        "the child has released its parent's hold"
    );
    guard.release().unwrap();
}
