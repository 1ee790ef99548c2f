//! The lock for threads. No test here has a runtime of its own, but for the one that says so.

use crate::proxy::Proxy;
use crate::server::Server;
use fairlock::blocking::{Client, RwLock};
use fairlock::{Error, LostReason, Owner};
use std::time::Duration;

/// A server needs tokio to start, and no runtime afterwards.
fn server() -> Server {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(Server::start())
}

/// Its connecting may take longer than the two seconds that it allows.
fn client(server: &Server) -> Client {
    until("a client", || {
        let settings = fairlock::Client::builder().lease(super::LEASE);
        match Client::connect_with(settings, server.url()) {
            Err(Error::Connect { source, .. }) if source.is_timeout() => None,
            connected => Some(connected.expect("the server is up")),
        }
    })
}

fn lock(server: &Server, name: &str) -> RwLock {
    client(server).rw_lock(name)
}

fn queued(lock: &RwLock, n: usize) {
    while lock.status().unwrap().waiting != n {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn threads_wait_in_turn_and_a_dropped_guard_has_left() {
    let server = server();
    let mine = lock(&server, "a");
    let theirs = lock(&server, "a");
    let guard = mine.write().acquire_fair().unwrap();
    assert!(theirs.read().try_acquire().unwrap().is_none());
    let limit = Duration::from_millis(20);
    assert!(theirs.read().try_acquire_for(limit).unwrap().is_none());
    let waiter = std::thread::spawn(move || theirs.write().acquire_fair().unwrap().fencing_token());
    queued(&mine, 1);
    let first = guard.fencing_token();
    drop(guard);
    assert!(waiter.join().unwrap() > first);
    // The thread has dropped its guard, so the server has confirmed the release.
    assert_eq!(mine.status().unwrap().holding, 0);
}

#[test]
fn threads_share_permits_and_bounded_locks() {
    let server = server();
    let client = client(&server);
    let gpus = client.semaphore("gpus", 3);
    let two = gpus.permits(2).acquire_fair().unwrap();
    assert_eq!((two.permits(), gpus.status().unwrap().used), (2, 2));
    assert!(gpus.permits(2).try_acquire().unwrap().is_none());
    drop(gpus.permits(1).try_acquire().unwrap().unwrap());
    until("a drop has released", || {
        (gpus.status().unwrap().used == 2).then_some(())
    });
    drop(two);
    let pages = client.rw_lock("pages").max_readers(1);
    let reads = pages.read().acquire_fair().unwrap();
    assert!(pages.read().try_acquire().unwrap().is_none());
    let status = pages.status().unwrap();
    assert_eq!((status.limit, status.holders[0].owner), (Some(1), reads.owner()));
}

#[test]
fn a_thread_tries_to_upgrade() {
    let server = server();
    let [mine, theirs] = [(); 2].map(|()| lock(&server, "a"));
    let reading = mine.read().acquire_fair().unwrap();
    let other = theirs.read().acquire_fair().unwrap();
    assert!(reading.try_upgrade().unwrap().is_none());
    other.release().unwrap();
    let writing = reading.try_upgrade().unwrap().unwrap();
    assert!(writing.fencing_token() > reading.fencing_token());
}

#[test]
fn a_thread_learns_of_a_loss() {
    let server = server();
    let owner = Owner::new();
    let mine = lock(&server, "a").with_owner(&owner);
    let guard = mine.write().acquire_fair().unwrap();
    assert!(guard.is_held());
    assert_eq!(guard.lost_within(Duration::from_millis(10)), None);
    let theirs = lock(&server, "a");
    let evicted = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(theirs.inner().evict(&owner)).unwrap()
    });
    assert_eq!(guard.lost_within(Duration::from_secs(60)), Some(LostReason::Evicted));
    assert_eq!(evicted.join().unwrap(), 1);
    assert!(matches!(guard.release(), Err(Error::Lost { .. })));
}

#[test]
fn a_thread_upgrades_and_downgrades() {
    let server = server();
    let mine = lock(&server, "a");
    let reader = mine.read().acquire_fair().unwrap();
    let writer = reader.upgrade().unwrap();
    assert!(writer.fencing_token() > reader.fencing_token());
    drop(reader);
    let reader = writer.downgrade().unwrap();
    assert!(mine.read().try_acquire().unwrap().is_some());
    assert!(mine.write().try_acquire().unwrap().is_none());
    reader.release().unwrap();
}

/// Blocking in a task is a mistake that may not panic.
#[tokio::test]
async fn a_task_that_blocks_gets_its_lock() {
    let server = Server::start().await;
    let mine = lock(&server, "a");
    let guard = mine.write().acquire_fair().unwrap();
    drop(guard);
    tokio::task::spawn_blocking(move || mine.write().acquire_fair().unwrap().release().unwrap())
        .await
        .unwrap();
}

/// A task has a budget, which is filled again when it returns to its runtime. Each reply takes one of 128.
#[test]
fn a_task_that_blocks_hundreds_of_times_gets_its_lock_each_time() {
    let server = server();
    let mine = lock(&server, "a");
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            for _ in 0..200 {
                mine.write().acquire_fair().unwrap().release().unwrap();
            }
        });
        ended.send(()).unwrap();
    });
    end.recv_timeout(fairlock_support::server::PATIENCE)
        .expect("it does not hang");
}

/// A future that this thread runs may own a guard, and a guard that is dropped blocks.
#[test]
fn a_thread_that_blocks_may_block_within() {
    let server = server();
    let client = client(&server);
    let mine = client.rw_lock("a");
    let guard = mine.write().acquire_fair().unwrap();
    client.block_on(async move { drop(guard) });
    assert_eq!(mine.status().unwrap().holding, 0);
    client.block_on(async {
        let outer = client.inner().rw_lock("b").write().acquire_fair().await.unwrap();
        mine.write().acquire_fair().unwrap().release().unwrap();
        outer.release().await.unwrap();
    });
}

/// The client's only thread is this task's too.
#[test]
fn a_task_in_the_background_may_block() {
    let server = server();
    let client = client(&server);
    let mine = client.rw_lock("a");
    let guard = mine.write().acquire_fair().unwrap();
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        client.block_on(async {
            let task = tokio::spawn(async move {
                drop(guard);
                mine.write().acquire_fair().unwrap().release().unwrap();
                mine.status().unwrap().holding
            });
            ended.send(task.await.unwrap()).unwrap();
        });
    });
    let holding = end.recv_timeout(fairlock_support::server::PATIENCE);
    assert_eq!(holding.expect("it does not hang"), 0);
}

/// Tries until it is so.
fn until<T>(what: &str, mut tries: impl FnMut() -> Option<T>) -> T {
    let begun = std::time::Instant::now();
    while begun.elapsed() < fairlock_support::server::PATIENCE {
        if let Some(done) = tries() {
            return done;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("never: {what}");
}

/// The thread in the background outlives the last handle, until the server knows of everything that was dropped.
#[test]
fn what_is_dropped_with_the_last_handle_is_released_over_a_new_connection() {
    let server = server();
    let theirs = lock(&server, "a");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.unwrap();
    let proxy = runtime.block_on(Proxy::to(server.port()));
    let settings = fairlock::Client::builder().lease(Duration::from_secs(600));
    let client = Client::connect_with(settings, proxy.url()).unwrap();
    let guard = client
        .block_on(client.inner().rw_lock("a").write().acquire_fair())
        .unwrap();
    proxy.refuse(true);
    // What is sent from now on is lost. A cut comes a moment later, and a release may overtake it.
    proxy.silence();
    drop((guard, client));
    assert!(theirs.write().try_acquire().unwrap().is_none());
    proxy.refuse(false);
    drop(until("the hold is released", || theirs.write().try_acquire().unwrap()));
}

#[test]
fn a_guard_of_the_async_api_outlives_the_client_that_blocks() {
    let server = server();
    let theirs = lock(&server, "a");
    let client = Client::connect_with(fairlock::Client::builder().lease(super::LEASE), server.url()).unwrap();
    let guard = client
        .block_on(client.inner().rw_lock("a").write().acquire_fair())
        .unwrap();
    drop(client);
    let mut last = Duration::MAX;
    until("it is renewed", || {
        let left = theirs.status().unwrap().holders[0].lease_left;
        (left > std::mem::replace(&mut last, left)).then_some(())
    });
    drop(guard);
    drop(until("it is released", || theirs.write().try_acquire().unwrap()));
}

/// A thread of the client's pool may have a runtime of the user's, whose thread cannot be handed to others.
#[test]
fn a_runtime_on_a_thread_of_the_background_may_block() {
    let server = server();
    let client = client(&server);
    let mine = client.rw_lock("a");
    let token = client.block_on(async {
        let blocks = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let guard = mine.write().acquire_fair().unwrap();
                let token = guard.fencing_token();
                drop(guard);
                token
            })
        });
        blocks.await.unwrap()
    });
    assert!(client.rw_lock("a").write().acquire_fair().unwrap().fencing_token() > token);
}

/// Its thread's first use of the slot comes before its first use of tokio, whose context is thus gone first.
#[test]
fn a_guard_in_a_thread_local_may_outlive_the_context_of_tokio() {
    use std::cell::RefCell;
    const CHILD: &str = "FAIRLOCK_TEST_OF_A_THREAD_LOCAL";
    thread_local!(static SLOT: RefCell<Option<fairlock::blocking::WriteGuard>> = const { RefCell::new(None) });
    // A panic while a thread ends is the end of its process, so another one tries.
    if let Ok(url) = std::env::var(CHILD) {
        let client = Client::connect(url).unwrap();
        let lock = client.rw_lock("a");
        let ends = std::thread::spawn(move || {
            SLOT.with(|slot| slot.replace(Some(lock.write().acquire_fair().unwrap())));
        });
        ends.join().unwrap();
        drop(client.rw_lock("a").write().acquire_fair().unwrap());
        return;
    }
    passes_alone("a_guard_in_a_thread_local_may_outlive_the_context_of_tokio", CHILD);
}

/// Other tests have threads of that name.
#[test]
#[cfg(target_os = "linux")]
fn the_thread_in_the_background_ends_with_its_client() {
    const CHILD: &str = "FAIRLOCK_TEST_OF_THE_BACKGROUND";
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let name =
            |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("comm")).ok();
        tasks.filter_map(name).filter(|name| name.trim() == "fairlock").count()
    };
    if let Ok(url) = std::env::var(CHILD) {
        for shuts_down in [false, true] {
            let client = Client::connect(&url).unwrap();
            drop(client.rw_lock("a").write().acquire_fair().unwrap());
            assert!(threads() > 0);
            if shuts_down {
                client.shutdown();
            }
            drop(client);
            until("its thread ends", || (threads() == 0).then_some(()));
        }
        assert!(Client::connect("redis://127.0.0.1:1").is_err());
        return until("its thread ends", || (threads() == 0).then_some(()));
    }
    passes_alone("the_thread_in_the_background_ends_with_its_client", CHILD);
}

/// Runs a test of this file in a process of its own, which finds the URL of a server in that variable.
fn passes_alone(test: &str, variable: &str) {
    let server = server();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let name = format!("lock::blocking::{test}");
    let ended = child
        .args(["--exact", &name])
        .env(variable, server.url())
        .output()
        .unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(said.contains("1 passed"), "the child ran: {said}");
}
