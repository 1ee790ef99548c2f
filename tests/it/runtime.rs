//! Runtimes: each kind of them, guards that leave theirs, and guards that outlive it.

use crate::server::{PATIENCE, Server, connected, eventually, in_time, soon};
use fairlock::{Acquire, Client, Error, FencingToken, LostReason, Owner, Policy, ReadGuard, RwLock, Write, WriteGuard};
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;
use tokio_stream::StreamExt;

const LEASE: Duration = Duration::from_secs(2);
/// So long that nothing in a test becomes free by expiry.
const LONG: Duration = Duration::from_secs(600);

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

async fn client(server: &Server, lease: Duration) -> Client {
    let builder = Client::builder().lease(lease);
    connected(builder, server.url()).await
}

async fn write(lock: &RwLock) -> WriteGuard {
    soon("to write", lock.write().acquire_fair()).await.expect("the lock")
}

async fn until_closed(server: &Server) {
    eventually("all connections closed", async || server.connections().await == 0).await;
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
    assert!(second.fencing_token() > first);

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

/// A runtime in a thread of its own, which ends when it is told to: what lives there is dropped.
struct Elsewhere {
    runtime: Option<Runtime>,
}

impl Elsewhere {
    fn new() -> Self {
        Self {
            runtime: Some(multi_thread()),
        }
    }

    async fn client(&self, server: &Server, lease: Duration) -> Client {
        let (builder, url) = (Client::builder().lease(lease), server.url());
        let runtime = self.runtime.as_ref().expect("it lives");
        runtime
            .spawn(async move { connected(builder, url).await })
            .await
            .unwrap()
    }

    fn end(&mut self) {
        self.runtime.take().expect("it lives").shutdown_background();
    }
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
type Answer = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

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

/// Every public async function that can say that it failed, by its name.
async fn calls_that_can_fail(server: &Server) -> Vec<(&'static str, Answer)> {
    fn call<T>(
        name: &'static str,
        call: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> (&'static str, Answer) {
        (name, Box::pin(async move { call.await.map(drop) }))
    }
    let client = client(server, LONG).await;
    let lock = client.rw_lock("free");
    let (released, downgraded) = (write(&client.rw_lock("r")).await, write(&client.rw_lock("d")).await);
    let readers = client.rw_lock("u");
    let (upgraded, tried) = (
        readers.read().acquire_fair().await.unwrap(),
        readers.read().acquire_fair().await.unwrap(),
    );
    let (a, b, c, d, e) = (lock.clone(), lock.clone(), lock.clone(), lock.clone(), client.clone());
    vec![
        call("connect", Client::connect(server.url())),
        call("connect", Client::builder().connect(server.url())),
        call("events", async move { e.events().await }),
        call("events", async move { a.events().await }),
        call("status", async move { b.status().await }),
        call("status_from", async move { c.status_from(1).await }),
        call("evict", async move { d.evict(&Owner::new()).await }),
        call("acquire_fair", lock.write().acquire_fair()),
        call("try_acquire", lock.write().try_acquire()),
        call("try_acquire_for", lock.write().try_acquire_for(LONG)),
        call("upgrade", async move { upgraded.upgrade().await }),
        call("try_upgrade", async move { tried.try_upgrade().await }),
        call("release", released.release()),
        call("downgrade", downgraded.downgrade()),
    ]
}

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

/// A new function has to find its place in the tables above.
#[tokio::test]
async fn the_tables_name_every_public_async_function() {
    let server = Server::start().await;
    let calls = calls_that_can_fail(&server).await;
    let mut known: Vec<_> = calls.iter().map(|(name, _)| (*name).to_owned()).collect();
    known.extend(["lost", "while_held", "shutdown"].map(str::to_owned));
    known.sort();
    let mut found = Vec::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|end| end == "rs") {
            let source = std::fs::read_to_string(path).unwrap();
            let names = source.split("    pub async fn ").skip(1);
            found.extend(names.map(|rest| rest.split(['(', '<']).next().unwrap().to_owned()));
        }
    }
    found.sort();
    assert_eq!(found, known);
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
