//! What many waiters, locks and names cost.

use crate::lateness::in_time;
use crate::server::{Server, connected, eventually, soon};
use crate::users::{passes, write};
use fairlock::{Client, Guard, Owner, RwLock};
use futures::stream::{self, StreamExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MANY: usize = 10_000;
/// Long enough for a slow machine.
const LEASE: Duration = Duration::from_secs(90);
const RENEWALS_PER_CALL: usize = 500;

async fn client(server: &Server, lease: Duration) -> Client {
    connected(Client::builder().lease(lease), server.url()).await
}

/// 12 s, or on a slow machine so much that a third of it is five times what [`MANY`] calls take.
async fn lease_of_many(server: &Server) -> Duration {
    const CALLS: usize = 1000;
    let client = client(server, LEASE).await;
    let begun = Instant::now();
    drop(hold_many(&client, CALLS).await);
    let lease = begun.elapsed() * (MANY / CALLS) as u32 * 15;
    client.shutdown().await;
    println!("a lease of {lease:?} or 12 s");
    lease.clamp(Duration::from_secs(12), LEASE)
}

/// A number of INFO, such as `used_memory`.
async fn info(server: &Server, field: &str) -> usize {
    let text: String = redis::cmd("INFO")
        .query_async(&mut server.redis().await)
        .await
        .expect("INFO");
    let prefix = format!("{field}:");
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
    line.expect("a known field").parse().expect("a number")
}

/// Bytes of memory that this process has in use. What tests before this one gave back is used again unseen: run a test
/// alone to learn the growth.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: usize = line
        .expect("VmRSS")
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    kib * 1024
}

/// One of each client, and one of them all.
async fn channels(server: &Server) -> usize {
    server.channels("*").await.len()
}

async fn size(server: &Server) -> usize {
    redis::cmd("DBSIZE")
        .query_async(&mut server.redis().await)
        .await
        .expect("DBSIZE")
}

fn growth(what: &str, before: (usize, usize), after: (usize, usize), n: usize) {
    let (server, here) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    println!(
        "{what}: {} bytes each in the server, {} bytes each in this process",
        server / n,
        here / n
    );
}

#[tokio::test]
async fn ten_thousand_waiters_of_one_client_share_two_connections_and_few_renewals() {
    in_time(async || {
        let server = Server::start().await;
        let lease = lease_of_many(&server).await / 2;
        let holder = client(&server, Duration::from_secs(3600)).await.rw_lock("a");
        let held = holder.write().acquire_fair().await.unwrap();
        let waiting = client(&server, lease).await;
        let before = (info(&server, "used_memory").await, resident());
        let lock = waiting.rw_lock("a");
        let mut waiters: Vec<_> = (0..MANY).map(|_| tokio::spawn(lock.write().acquire_fair())).collect();
        server.until_queued("a", MANY).await;
        growth(
            "a waiter",
            before,
            (info(&server, "used_memory").await, resident()),
            MANY,
        );
        assert_eq!((server.connections().await, channels(&server).await), (4, 3));

        let (begun, calls) = (Instant::now(), server.script_calls().await);
        tokio::time::sleep(lease + lease / 3).await;
        let calls = server.script_calls().await - calls;
        // The last interval need not be whole.
        let intervals = begun.elapsed().as_millis() / (lease / 3).as_millis() + 1;
        let most = intervals as u64 * MANY.div_ceil(RENEWALS_PER_CALL) as u64;
        println!("{calls} calls in {:?}, {most} allowed", begun.elapsed());
        assert!(calls > 0 && calls <= most, "{calls} calls, {most} allowed");
        assert_eq!(server.queued("a").await, MANY, "everybody still waits");

        held.release().await.unwrap();
        for waiter in waiters.drain(..50) {
            passes("its turn", waiter).await;
        }
        // A task that is done keeps its guard until its handle goes.
        waiters.iter().for_each(|waiter| waiter.abort());
        drop(waiters);
        server.until_queued("a", 0).await;
        eventually("nobody holds", async || {
            lock.write().try_acquire().await.unwrap().is_some()
        })
        .await;
        assert_eq!((server.connections().await, channels(&server).await), (4, 3));
    })
    .await;
}

/// Acquires locks "0" to "n - 1", some at a time.
async fn hold_many(client: &Client, n: usize) -> Vec<Guard<fairlock::Write>> {
    let asks = stream::iter(0..n).map(|i| client.rw_lock(i.to_string()).write().acquire_fair());
    let guards: Vec<_> = asks.buffer_unordered(64).collect().await;
    guards.into_iter().map(|guard| guard.unwrap()).collect()
}

#[tokio::test]
async fn ten_thousand_locks_held_by_one_client_are_renewed_once_an_interval() {
    in_time(async || {
        let server = Server::start().await;
        let lease = lease_of_many(&server).await;
        let client = client(&server, lease).await;
        let before = (info(&server, "used_memory").await, resident());
        let guards = soon("all of them", hold_many(&client, MANY)).await;
        growth("a lock", before, (info(&server, "used_memory").await, resident()), MANY);
        assert_eq!((server.connections().await, channels(&server).await), (2, 2));

        let (begun, calls) = (Instant::now(), server.script_calls().await);
        tokio::time::sleep(2 * lease / 3).await;
        let calls = server.script_calls().await - calls;
        let intervals = begun.elapsed().as_millis() / (lease / 3).as_millis() + 1;
        println!("{calls} calls in {:?}", begun.elapsed());
        assert!(
            calls > 0 && calls as usize <= intervals as usize * MANY,
            "{calls} calls"
        );
        assert!(guards.iter().all(Guard::is_held));

        drop(guards);
        eventually("all are released", async || held(&server).await == 0).await;
        assert_eq!((server.connections().await, channels(&server).await), (2, 2));
    })
    .await;
}

/// So many that a look at all of them takes longer than the pause after which the first one is looked at again.
const EVEN_MORE: usize = 40_000;
const TICK: Duration = Duration::from_millis(50);

/// A server that does not answer leaves the calls of all locks under way. Their client then looks at each lock again and
/// again, and leaves the thread to others all the same.
#[tokio::test]
async fn forty_thousand_locks_whose_server_is_silent_leave_the_thread_to_others() {
    let server = Server::start().await;
    let (lease, url) = (Duration::from_secs(15), server.url());
    let (ready, all_held) = tokio::sync::oneshot::channel();
    let ticks = Arc::new(AtomicUsize::new(0));
    let ticked = Arc::clone(&ticks);
    // On a thread of its own, which a client that keeps it does not give back.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let client = connected(Client::builder().lease(lease), &url).await;
            let held = hold_many(&client, EVEN_MORE).await;
            ready.send(()).expect("the test waits");
            loop {
                tokio::time::sleep(TICK).await;
                ticked.fetch_add(1, Relaxed);
                assert_eq!(held.len(), EVEN_MORE);
            }
        });
    });
    soon("all of them", all_held).await.expect("all are held");
    server.freeze();
    // All renewals have begun long before.
    let turns = ticks.load(Relaxed) + lease.div_duration_f64(TICK) as usize;
    eventually("others have their turns", async || ticks.load(Relaxed) > turns).await;
}

/// Locks that somebody holds.
async fn held(server: &Server) -> usize {
    let script = "local held = 0 \
                  for _, key in ipairs(redis.call('KEYS', '*}')) do held = held + redis.call('HEXISTS', key, 'mode') end \
                  return held";
    let mut redis = server.redis().await;
    redis::cmd("EVAL")
        .arg(script)
        .arg(0)
        .query_async(&mut redis)
        .await
        .expect("EVAL")
}

#[tokio::test]
async fn ten_thousand_readers_of_one_lock_enter_and_leave_within_their_lease() {
    let server = Server::start().await;
    let client = client(&server, LEASE).await;
    let lock = client.rw_lock("a");
    let begun = Instant::now();
    let asks = stream::iter(0..MANY)
        .map(|_| lock.read().acquire_fair())
        .buffer_unordered(64);
    let guards: Vec<_> = soon("all of them", asks.collect()).await;
    println!("{MANY} readers in after {:?}", begun.elapsed());
    assert!(guards.iter().all(|guard| guard.as_ref().unwrap().is_held()));
    let begun = Instant::now();
    drop(guards);
    eventually("all are released", async || held(&server).await == 0).await;
    println!("and out {:?} later", begun.elapsed());
    drop(lock.write().try_acquire().await.unwrap().expect("it is free"));
}

/// Waiters that come all at once and go all at once, behind a holder.
async fn come_and_go(server: &Server, lock: impl Fn(usize) -> RwLock) {
    let held = write(&client(server, LEASE).await.rw_lock("a")).await;
    let before = (server.connections().await, channels(server).await);
    let waiters: Vec<_> = (0..MANY).map(|i| tokio::spawn(lock(i).read().acquire_fair())).collect();
    let begun = Instant::now();
    server.until_queued("a", MANY).await;
    println!("{MANY} queued after {:?}", begun.elapsed());
    waiters.iter().for_each(|waiter| waiter.abort());
    server.until_queued("a", 0).await;
    // A client that finds its connection silent, on a machine this busy, tries another one for a while.
    eventually("the connections are those of before", async || {
        (server.connections().await, channels(server).await) == before
    })
    .await;
    assert!(held.is_held());
    assert_eq!(
        server.keys().await,
        ["fairlock:{a}", "fairlock:{a}:l"],
        "the holder's own lease"
    );
}

#[tokio::test]
async fn ten_thousand_waiters_dropped_at_once_leave_the_queue_empty() {
    let server = Server::start().await;
    let lock = client(&server, LEASE).await.rw_lock("a");
    come_and_go(&server, |_| lock.clone()).await;
}

/// `FAIRLOCK_NAMES` is the number of names, 20,000 unless set. With `FAIRLOCK_WAIT_FOR_EXPIRY` set the test goes on
/// until the server is empty, which takes the lease and a minute more.
#[tokio::test]
async fn names_used_once_leave_one_small_key_each_that_expires() {
    let n: usize = std::env::var("FAIRLOCK_NAMES").map_or(20_000, |n| n.parse().expect("a number"));
    let server = Server::start().await;
    let lease = Duration::from_secs(5);
    let client = client(&server, lease).await;
    let (before, begun) = ((info(&server, "used_memory").await, resident()), Instant::now());
    let uses = stream::iter(0..n).map(|i| {
        let lock = client.rw_lock(i.to_string());
        async move { lock.write().acquire_fair().await.unwrap().release().await.unwrap() }
    });
    uses.buffer_unordered(64).collect::<()>().await;
    let rate = n as f64 / begun.elapsed().as_secs_f64();
    println!("{n} names in {:?}: {rate:.0} a second", begun.elapsed());
    growth("a name", before, (info(&server, "used_memory").await, resident()), n);

    let keys = size(&server).await;
    println!("{keys} keys at the end");
    assert!(keys <= n + 1, "a name leaves one key, and the client one");
    let longest = lease + Duration::from_secs(60);
    for i in (0..n).rev().step_by(n.div_ceil(200)) {
        let ttl_ms: i64 = redis::cmd("PTTL")
            .arg(format!("fairlock:{{{i}}}"))
            .query_async(&mut server.redis().await)
            .await
            .unwrap();
        // -2: it has expired already.
        assert!(
            ttl_ms == -2 || (0..=longest.as_millis() as i64).contains(&ttl_ms),
            "{i}: {ttl_ms} ms"
        );
    }
    if std::env::var_os("FAIRLOCK_WAIT_FOR_EXPIRY").is_some() {
        let begun = Instant::now();
        while size(&server).await > 0 {
            assert!(
                begun.elapsed() < longest + Duration::from_secs(20),
                "{} keys remain",
                size(&server).await
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        println!("no key is left {:?} after the last use", begun.elapsed());
    }
}

#[tokio::test]
async fn a_client_without_work_sends_nothing_but_pings() {
    let server = Server::start().await;
    let client = client(&server, Duration::from_secs(3)).await;
    let lock = client.rw_lock("a");
    lock.write().acquire_fair().await.unwrap().release().await.unwrap();
    drop(lock.read().acquire_fair().await.unwrap());
    eventually("the release", async || held(&server).await == 0).await;
    let mut redis = server.redis().await;
    redis::cmd("CONFIG")
        .arg("RESETSTAT")
        .exec_async(&mut redis)
        .await
        .unwrap();
    // Longer than an interval between renewals.
    eventually("three pings", async || server.calls("ping").await >= 3).await;
    let text: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(&mut redis)
        .await
        .unwrap();
    let ours = [
        "info",
        "hello",
        // Redis 6.2 counts no subcommands.
        "client",
        "config",
        "client|setinfo",
        "config|resetstat",
        "select",
        "client|setname",
        "command",
    ];
    let commands = text
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':').map(|(name, _)| name));
    let others: Vec<_> = commands.filter(|name| !ours.contains(name)).collect();
    assert_eq!(others, ["ping"]);
}

#[tokio::test]
async fn ten_thousand_owners_that_wait_for_one_lock_queue_and_leave() {
    let server = Server::start().await;
    let lock = client(&server, LEASE).await.rw_lock("a");
    come_and_go(&server, |_| lock.with_owner(&Owner::new())).await;
}
