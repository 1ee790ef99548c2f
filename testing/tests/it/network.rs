//! The server in memory behind a network that is slow, or refuses, or swallows. Time is paused in all tests.

use fairlock::testing::{Connection, Network, OnPush};
use fairlock::{Client, IntoServer, Owner};
use fairlock_testing::Server;
use redis::{Cmd, PushInfo, PushKind, RedisError, Value};
use std::future::pending;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A way to the server, which may be that of one client alone.
#[derive(Clone)]
struct Way {
    server: Server,
    faults: Arc<Mutex<Faults>>,
}

#[derive(Clone, Default)]
struct Faults {
    /// Each reply takes so long.
    delay: Duration,
    /// There are no new connections.
    refuses: bool,
    /// Scripts reach no server.
    swallows: bool,
    /// The first connections, so many, bring nothing any more.
    silent: usize,
    /// Each connection breaks a millisecond after it was made.
    breaks: bool,
    /// How many connections were made.
    connects: usize,
}

impl Way {
    fn to(server: &Server) -> Self {
        Self {
            server: server.clone(),
            faults: Arc::default(),
        }
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap()
    }

    fn endpoint(&self) -> impl IntoServer + use<> {
        let network: Arc<dyn Network> = Arc::new(self.clone());
        network
    }
}

struct Wire {
    way: Way,
    inner: Arc<dyn Connection>,
    number: usize,
    is_broken: Arc<AtomicBool>,
}

fn failed(kind: ErrorKind) -> RedisError {
    std::io::Error::from(kind).into()
}

impl Network for Way {
    fn connect(&self, on_push: Option<OnPush>) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>> {
        let way = self.clone();
        Box::pin(async move {
            let (breaks, number) = {
                let mut faults = way.faults();
                faults.connects += 1;
                if faults.refuses {
                    return Err(failed(ErrorKind::ConnectionRefused));
                }
                (faults.breaks, faults.connects)
            };
            let inner = way.server.connect(on_push.clone()).await?;
            let is_broken = Arc::<AtomicBool>::default();
            if breaks {
                let is_broken = Arc::clone(&is_broken);
                tokio::spawn(async move {
                    sleep(Duration::from_millis(1)).await;
                    is_broken.store(true, Ordering::Relaxed);
                    if let Some(on_push) = on_push {
                        let (kind, data) = (PushKind::Disconnection, Vec::new());
                        on_push(PushInfo { kind, data });
                    }
                });
            }
            Ok(Arc::new(Wire {
                way,
                inner,
                number,
                is_broken,
            }) as Arc<dyn Connection>)
        })
    }

    fn spawn(&self, task: BoxFuture<()>) -> AbortHandle {
        self.server.spawn(task)
    }
}

fn is_script(command: &Cmd) -> bool {
    let name = command.args_iter().next();
    matches!(name, Some(redis::Arg::Simple(name)) if name.starts_with(b"EVAL") || name.starts_with(b"FCALL"))
}

impl Connection for Wire {
    fn send(&self, command: &Cmd) -> BoxFuture<Result<Value, RedisError>> {
        let faults = self.way.faults().clone();
        if self.is_broken.load(Ordering::Relaxed) {
            return Box::pin(async { Err(failed(ErrorKind::BrokenPipe)) });
        }
        if self.number <= faults.silent || faults.swallows && is_script(command) {
            return Box::pin(pending());
        }
        let reply = self.inner.send(command);
        if faults.delay.is_zero() {
            return reply;
        }
        Box::pin(async move {
            sleep(faults.delay).await;
            reply.await
        })
    }
}

/// Acquires wait in line for a lease, and a call has a second. More keep coming than the network carries in a second, so
/// who leaves the line stands behind all of them again.
#[tokio::test(start_paused = true)]
async fn releases_and_downgrades_keep_their_places_in_a_line_of_acquires() {
    let server = Server::new();
    let (way, other) = (Way::to(&server), server.client().await.unwrap());
    let client = Client::connect(way.endpoint()).await.unwrap();
    let write = async |name| client.rw_lock(name).write().acquire_fair().await.unwrap();
    let (released, downgraded, dropped) = (write("a").await, write("b").await, write("c").await);
    way.faults().delay = Duration::from_millis(400);
    for _ in 0..3_000 {
        let lock = client.rw_lock("busy");
        tokio::spawn(async move {
            loop {
                drop(lock.read().acquire_fair().await);
            }
        });
    }
    sleep(Duration::from_secs(5)).await;
    drop(dropped);
    let next = other.rw_lock("c");
    let next = timeout(Duration::from_secs(7), next.write().acquire_fair());
    let (released, downgraded, next) = tokio::join!(released.release(), downgraded.downgrade(), next);
    released.expect("it was sent before the acquires that came later");
    drop(downgraded.expect("so was this one"));
    drop(next.expect("so was what a drop released").unwrap());
}

/// One process holds permits and waits for more, so the renewal of a hold takes the place of a look.
#[tokio::test(start_paused = true)]
async fn a_crash_costs_its_lease_where_a_look_meets_the_renewal_of_a_hold() {
    let seconds = Duration::from_secs;
    for dies_after in 0..4 {
        let server = Server::new();
        let way = Way::to(&server);
        let mine = Client::builder().lease(seconds(600)).connect(server.endpoint());
        let theirs = Client::builder().lease(seconds(10)).connect(way.endpoint());
        let (mine, theirs) = (mine.await.unwrap(), theirs.await.unwrap());
        let permit = |client: &Client| client.semaphore("a", 2).permits(1).acquire_fair();
        let _held = permit(&mine).await.unwrap();
        let _dying = permit(&theirs).await.unwrap();
        sleep(seconds(110)).await;
        let waiting = tokio::spawn(permit(&mine));
        sleep(seconds(dies_after)).await;
        way.faults().swallows = true;
        let entered = timeout(seconds(11), waiting).await;
        let entered = entered.unwrap_or_else(|_| panic!("the dead process had a lease of 10 s; {dies_after}"));
        drop(entered.unwrap().unwrap());
    }
}

/// Its request stands at the server with a second's lease, whatever it had asked for before.
#[tokio::test(start_paused = true)]
async fn a_grant_over_a_new_subscription_proves_no_lease_that_was_asked_for_before_it() {
    let server = Server::new();
    let [first, operator] = [server.client().await.unwrap(), server.client().await.unwrap()];
    let [deaf, waiter] = [Way::to(&server), Way::to(&server)];
    let connect = |way: &Way| Client::builder().lease(Duration::from_secs(60)).connect(way.endpoint());
    let (theirs, mine) = (connect(&deaf).await.unwrap(), connect(&waiter).await.unwrap());
    let held = first.rw_lock("a").write().acquire_fair().await.unwrap();
    let owner = Owner::new();
    let ahead = tokio::spawn(theirs.rw_lock("a").with_owner(&owner).write().acquire_fair());
    sleep(Duration::from_millis(100)).await;
    let waits = tokio::spawn(mine.rw_lock("a").write().acquire_fair());
    sleep(Duration::from_millis(100)).await;
    deaf.faults().refuses = true;
    waiter.faults().refuses = true;
    server.disconnect();
    held.release().await.unwrap();
    waiter.faults().swallows = true;
    waiter.faults().refuses = false;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(operator.rw_lock("a").evict(&owner).await.unwrap(), 1);
    sleep(Duration::from_millis(100)).await;
    let status = operator.rw_lock("a").status().await.unwrap();
    assert_eq!((status.holders.len(), status.waiting), (1, 0), "{status:?}");
    assert!(!waits.is_finished(), "nothing proves a lease");
    waiter.faults().swallows = false;
    waits.await.unwrap().unwrap().release().await.unwrap();
    ahead.abort();
}

/// The lease of a request may be much shorter than its client's.
#[tokio::test(start_paused = true)]
async fn a_renewal_without_a_reply_is_repeated_in_time_for_its_requests_lease() {
    let server = Server::new();
    let way = Way::to(&server);
    let client = Client::builder().lease(Duration::from_secs(60)).connect(way.endpoint());
    let client = client.await.unwrap();
    let lease = Duration::from_millis(600);
    let guard = client.rw_lock("a").write().lease(lease).acquire_fair().await.unwrap();
    sleep(Duration::from_secs(5)).await;
    let connects = way.faults().connects;
    way.faults().silent = connects;
    sleep(Duration::from_secs(2)).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// A server that greets and then closes, because it has no room for clients, for example.
#[tokio::test(start_paused = true)]
async fn a_server_that_closes_each_connection_is_connected_to_with_pauses() {
    let server = Server::new();
    let way = Way::to(&server);
    let client = Client::connect(way.endpoint()).await.unwrap();
    way.faults().breaks = true;
    server.disconnect();
    let before = way.faults().connects;
    sleep(Duration::from_secs(60)).await;
    let connects = way.faults().connects - before;
    assert!((10..300).contains(&connects), "{connects} connects in a minute");
    drop(client);
}

/// The holder has renewed its lease since the waiter asked, so the waiter looks again and again.
#[tokio::test(start_paused = true)]
async fn a_waiter_with_a_long_lease_waits_for_a_dead_holder_no_longer_than_its_lease() {
    let server = Server::new();
    let way = Way::to(&server);
    let dying = Client::connect(way.endpoint()).await.unwrap();
    let living = Client::builder().lease(Duration::from_secs(24 * 3600));
    let living = living.connect(server.endpoint()).await.unwrap();
    let held = dying.rw_lock("a").write().acquire_fair().await.unwrap();
    let waits = tokio::spawn(living.rw_lock("a").write().acquire_fair());
    sleep(Duration::from_secs(60)).await;
    assert!(held.is_held() && !waits.is_finished());
    let connects = way.faults().connects;
    way.faults().silent = connects;
    way.faults().refuses = true;
    let next = timeout(Duration::from_secs(20), waits).await;
    drop(next.expect("after the holder's lease of 10 s").unwrap().unwrap());
}

/// The link sends the head of a line, and the rest has to wait for replies.
#[tokio::test(start_paused = true)]
async fn a_call_that_comes_while_others_stand_in_line_does_not_pass_them() {
    const LEASE: Duration = Duration::from_secs(600);
    let server = Server::new();
    let (way, other) = (Way::to(&server), server.client().await.unwrap());
    let client = Client::builder().lease(LEASE).connect(way.endpoint()).await.unwrap();
    let held = other.rw_lock("a").write().acquire_fair().await.unwrap();
    let waiting = async || other.rw_lock("a").status().await.unwrap().waiting;
    way.faults().refuses = true;
    server.disconnect();
    sleep(Duration::from_millis(100)).await;
    let mut calls = Vec::new();
    for _ in 0..600 {
        calls.push(tokio::spawn(client.rw_lock("a").write().acquire_fair()));
    }
    sleep(Duration::from_millis(1)).await;
    way.faults().delay = Duration::from_millis(500);
    way.faults().refuses = false;
    let first = async {
        while waiting().await == 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let connected = timeout(Duration::from_secs(60), first).await;
    connected.expect("it is connected again");
    let queued = waiting().await;
    assert!(queued < 600, "{queued} were sent at once");
    let newcomer = client.rw_lock("a").write().enqueue().await.unwrap();
    assert_eq!(newcomer.ahead(), 600, "it passed some");
    drop(newcomer);
    calls.iter().for_each(|call| call.abort());
    drop(held);
}

/// Otherwise the server has nothing to do until the last caller has sent its next call.
#[tokio::test(start_paused = true)]
async fn callers_whose_replies_come_together_go_on_in_two_halves() {
    const CALLERS: usize = 16;
    let server = Server::new();
    let way = Way::to(&server);
    let client = Client::connect(way.endpoint()).await.unwrap();
    // Now the server knows the scripts, which go over a line otherwise.
    let first = client.rw_lock("first").write().acquire_fair().await.unwrap();
    first.release().await.unwrap();
    way.faults().delay = Duration::from_millis(10);
    let (returned, first) = (Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (lock, returned, first) = (
            client.rw_lock(caller.to_string()),
            Arc::clone(&returned),
            Arc::clone(&first),
        );
        callers.spawn(async move {
            let _guard = lock.write().acquire_fair().await.unwrap();
            returned.fetch_add(1, Ordering::Relaxed);
            first.notify_one();
        });
    }
    // Like the task of a connection: the first caller wakes it, and it runs after all that were awake by then.
    let sends = tokio::spawn({
        let returned = Arc::clone(&returned);
        async move {
            first.notified().await;
            returned.load(Ordering::Relaxed)
        }
    });
    assert_eq!(sends.await.unwrap(), CALLERS / 2);
    while callers.join_next().await.is_some() {}
    assert_eq!(returned.load(Ordering::Relaxed), CALLERS);
}
