//! Who enters when: order, batches, and what dead and frozen processes do to the others.

use crate::lateness::{in_time, promise};
use crate::process::{Process, Resource};
use crate::server::{Server, connected, eventually, soon};
use fairlock::{Access, Acquire, Client, Mode, RwLock};
use fairlock_support::random;
use futures::future::try_join_all;
use std::cmp;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// A day: nothing is renewed while a test counts calls.
const LONG: Duration = Duration::from_secs(24 * 3600);
const LEASE: Duration = Duration::from_secs(2);

async fn client(server: &Server, lease: Duration) -> Client {
    connected(Client::builder().lease(lease), server.url()).await
}

async fn lock(server: &Server, lease: Duration) -> RwLock {
    client(server, lease).await.rw_lock("a")
}

/// Requests of the lock "a" that are queued, in their order: mode, and client and number.
async fn queue(server: &Server) -> Vec<(char, String)> {
    let queue: Vec<String> = redis::cmd("ZRANGE")
        .arg(&["fairlock:{a}:q", "0", "-1"])
        .query_async(&mut server.redis().await)
        .await
        .expect("ZRANGE");
    queue
        .iter()
        .map(|name| (name.as_bytes()[0] as char, name[1..].to_owned()))
        .collect()
}

/// Requests of the lock "a", waiting or holding.
async fn leases(server: &Server) -> usize {
    redis::cmd("ZCARD")
        .arg("fairlock:{a}:l")
        .query_async(&mut server.redis().await)
        .await
        .expect("ZCARD")
}

/// When the first lease of a request of the lock "a" ends, by the server's clock. Tokens are microseconds of it.
async fn first_deadline_ms(server: &Server) -> u64 {
    let (_, deadline): (String, u64) = redis::cmd("ZRANGE")
        .arg(&["fairlock:{a}:l", "0", "0", "WITHSCORES"])
        .query_async(&mut server.redis().await)
        .await
        .expect("ZRANGE");
    deadline
}

/// Client and number of the request behind the owner of an unowned request.
fn request_of(owner: &str) -> String {
    let (high, low) = owner.parse::<Uuid>().expect("an owner").as_u64_pair();
    format!("{:015x}:{}", (high >> 16) << 12 | high & 0xfff, low & ((1 << 62) - 1))
}

/// What a user of another process reported.
struct Entry {
    request: String,
    token: u64,
    clear: bool,
}

/// The entries that a process reports until `n` of its users have released.
async fn entries(mut process: Process, n: usize) -> Vec<Entry> {
    let (mut entries, mut released) = (Vec::new(), 0);
    while released < n {
        let line = process.line().await;
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["released", _, "true"] => released += 1,
            ["entered", _, token, owner, clear] => entries.push(Entry {
                request: request_of(owner),
                token: token.parse().expect("a token"),
                clear: clear == "clear",
            }),
            _ => panic!("a user of another process said {line:?}"),
        }
    }
    entries
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_waiters_of_four_processes_enter_in_order_of_arrival_and_readers_together() {
    const EACH: usize = 50;
    let server = Server::start().await;
    let mut random = random::seeded();
    let held = lock(&server, LONG).await.write().acquire_fair().await.unwrap();
    let url = server.url();
    let lease = Duration::from_secs(20);
    let mut processes = futures::future::join_all([&url; 4].map(|url| Process::start(url, lease))).await;
    for id in 0..EACH {
        for process in &mut processes {
            let mode = if random.u64(..3) == 0 { 'w' } else { 'r' };
            let hold = Duration::from_millis(random.u64(..4));
            process.ask(id, mode, "a", Some(hold));
        }
    }
    server.until_queued("a", 4 * EACH).await;
    let arrived = queue(&server).await;
    held.release().await.unwrap();
    let reports = processes
        .into_iter()
        .map(|process| tokio::spawn(entries(process, EACH)));
    let entered: Vec<Entry> = try_join_all(reports).await.unwrap().into_iter().flatten().collect();
    assert!(
        entered.iter().all(|entry| entry.clear),
        "conflicting users were inside together"
    );
    let tokens: HashMap<_, _> = entered.iter().map(|entry| (&entry.request, entry.token)).collect();
    assert_eq!(tokens.len(), 4 * EACH, "nobody entered twice");
    for (here, next) in arrived.iter().zip(&arrived[1..]) {
        // Readers that stood together entered together: they share a token.
        let batch = here.0 == 'r' && next.0 == 'r';
        let expected = if batch {
            cmp::Ordering::Equal
        } else {
            cmp::Ordering::Less
        };
        assert_eq!(tokens[&here.1].cmp(&tokens[&next.1]), expected, "{here:?} {next:?}");
    }
}

#[tokio::test]
async fn a_thousand_readers_behind_a_writer_enter_by_one_script_call() {
    let server = Server::start().await;
    let writer = lock(&server, LONG).await.write().acquire_fair().await.unwrap();
    let mut readers = Vec::new();
    for _ in 0..4 {
        let lock = lock(&server, LONG).await;
        readers.extend((0..250).map(|_| tokio::spawn(lock.read().acquire_fair())));
    }
    server.until_queued("a", 1000).await;
    let (calls, messages) = (server.script_calls().await, server.calls("publish").await);
    writer.release().await.unwrap();
    let guards = soon("1,000 readers", try_join_all(readers)).await.unwrap();
    assert_eq!(server.script_calls().await - calls, 1);
    assert_eq!(
        server.calls("publish").await - messages,
        4,
        "one message for each client"
    );
    let mut tokens: Vec<_> = guards
        .iter()
        .map(|guard| guard.as_ref().unwrap().fencing_token())
        .collect();
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 1, "readers that enter together share a token");
}

#[tokio::test]
async fn a_killed_process_with_fifty_waiters_at_the_head_costs_one_lease_in_total() {
    in_time(async || {
        let server = Server::start().await;
        let held = lock(&server, LONG).await.write().acquire_fair().await.unwrap();
        let mut dying = Process::start(&server.url(), LEASE).await;
        for id in 0..50 {
            dying.ask(id, 'w', "a", None);
        }
        server.until_queued("a", 50).await;
        let living = tokio::spawn(lock(&server, LONG).await.write().acquire_fair());
        server.until_queued("a", 51).await;
        dying.kill();
        let killed = Instant::now();
        held.release().await.unwrap();
        assert_eq!(server.queued("a").await, 50, "the dead are still in front");
        let guard = soon("the one who lives", living).await.unwrap().unwrap();
        println!("entered {:?} after the kill, lease {LEASE:?}", killed.elapsed());
        // Fifty leases, one after the other, are 100 s.
        assert!(killed.elapsed() < 25 * LEASE, "{:?}", killed.elapsed());
        assert!(guard.is_held());
        assert_eq!(server.queued("a").await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_killed_holder_costs_one_lease() {
    in_time(async || {
        let server = Server::start().await;
        let mut dying = Process::start(&server.url(), LEASE).await;
        dying.ask(1, 'w', "a", None);
        let token = dying.entered(1).await;
        let waiting = tokio::spawn(lock(&server, LONG).await.write().acquire_fair());
        server.until_queued("a", 1).await;
        dying.kill();
        let killed = Instant::now();
        let deadline_ms = first_deadline_ms(&server).await;
        assert_eq!(
            server.queued("a").await,
            1,
            "its death is not known before its lease ends"
        );
        let guard = soon("the next", waiting).await.unwrap().unwrap();
        println!("entered {:?} after the kill, lease {LEASE:?}", killed.elapsed());
        assert!(
            guard.fencing_token().get() / 1000 >= deadline_ms,
            "before its lease had ended"
        );
        promise(guard.fencing_token().get() > token, "tokens grow");
    })
    .await;
}

#[tokio::test]
async fn a_killed_reader_is_gone_within_one_lease_while_others_read_on() {
    let server = Server::start().await;
    let mut dying = Process::start(&server.url(), LEASE).await;
    dying.ask(1, 'r', "a", None);
    dying.entered(1).await;
    let reader = lock(&server, LONG).await.read().acquire_fair().await.unwrap();
    let writer = tokio::spawn(lock(&server, LONG).await.write().acquire_fair());
    server.until_queued("a", 1).await;
    assert_eq!(leases(&server).await, 3);
    dying.kill();
    eventually("the dead reader is gone", async || leases(&server).await == 2).await;
    assert!(reader.is_held());
    assert!(!writer.is_finished());
    reader.release().await.unwrap();
    drop(soon("the writer", writer).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_holder_frozen_past_its_lease_knows_that_it_lost_before_it_does_anything() {
    let server = Server::start().await;
    let mut frozen = Process::start(&server.url(), LEASE).await;
    frozen.ask(1, 'w', "a", None);
    let old = frozen.entered(1).await;
    let waiting = tokio::spawn(lock(&server, LONG).await.write().acquire_fair());
    server.until_queued("a", 1).await;
    frozen.freeze();
    let guard = soon("another one", waiting).await.unwrap().unwrap();
    let new = guard.fencing_token().get();
    assert!(new > old);
    let mut resource = Resource::new(server.redis().await, "a");
    assert!(resource.store(new).await);
    frozen.tell("held 1");
    frozen.tell("store 1");
    frozen.tell("release 1");
    frozen.thaw();
    assert_eq!(frozen.line().await, "held 1 false");
    assert_eq!(frozen.line().await, "stored 1 false");
    assert_eq!(frozen.line().await, "released 1 false");
    assert!(guard.is_held(), "a late release is nobody's");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_frozen_past_its_lease_holds_nobody_up_and_gets_in_afterwards() {
    let server = Server::start().await;
    let held = lock(&server, LONG).await.write().acquire_fair().await.unwrap();
    let mut frozen = Process::start(&server.url(), LEASE).await;
    frozen.ask(1, 'w', "a", None);
    server.until_queued("a", 1).await;
    let (second, third) = (lock(&server, LONG).await, lock(&server, LONG).await);
    let second = tokio::spawn(second.write().acquire_fair());
    server.until_queued("a", 2).await;
    frozen.freeze();
    server.until_queued("a", 1).await;
    held.release().await.unwrap();
    let second = soon("the one behind", second).await.unwrap().unwrap();
    let third = tokio::spawn(third.write().acquire_fair());
    server.until_queued("a", 1).await;
    frozen.thaw();
    server.until_queued("a", 2).await;
    let first = second.fencing_token();
    second.release().await.unwrap();
    // It came back with its old ticket: only who entered meanwhile has passed it.
    assert!(frozen.entered(1).await > first.get());
    assert!(!third.is_finished());
    frozen.tell("release 1");
    assert_eq!(frozen.line().await, "released 1 true");
    drop(soon("the last", third).await.unwrap().unwrap());
}

/// Acquires again and again until told to stop, and counts. Leaves when the next one has entered, so that readers
/// among themselves would never leave the lock free; after a while also if nobody could enter.
async fn keep_coming<M: Access>(ask: impl Fn() -> Acquire<M>, stop: Arc<AtomicBool>, entered: Arc<AtomicUsize>) {
    while !stop.load(Ordering::SeqCst) {
        let guard = ask().acquire_fair().await.unwrap();
        let mine = entered.fetch_add(1, Ordering::SeqCst) + 1;
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if entered.load(Ordering::SeqCst) > mine {
                break;
            }
        }
        guard.release().await.unwrap();
    }
}

/// One request of mode `M` among eight tasks of mode `N` that keep coming: how many entered before it.
async fn entered_before<M: Access, N: Access>(
    server: &Server,
    one: impl Fn(&RwLock) -> Acquire<M>,
    others: impl Fn(&RwLock) -> Acquire<N> + Copy + Send + 'static,
) -> usize {
    let lock = lock(server, Duration::from_secs(20)).await;
    let (stop, entered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let tasks = [(); 8].map(|()| {
        let lock = lock.clone();
        tokio::spawn(keep_coming(
            move || others(&lock),
            Arc::clone(&stop),
            Arc::clone(&entered),
        ))
    });
    eventually("a crowd", async || entered.load(Ordering::SeqCst) > 50).await;
    let before = entered.load(Ordering::SeqCst);
    let guard = soon("the one among the many", one(&lock).acquire_fair()).await.unwrap();
    let passed = entered.load(Ordering::SeqCst) - before;
    stop.store(true, Ordering::SeqCst);
    guard.release().await.unwrap();
    try_join_all(tasks).await.unwrap();
    passed
}

#[tokio::test]
async fn a_writer_gets_in_although_readers_keep_coming() {
    let server = Server::start().await;
    let passed = entered_before(&server, RwLock::write, RwLock::read).await;
    // Those who are inside, those whose call is on its way, and some for a slow machine.
    assert!(passed <= 50, "{passed} readers entered before the writer");
}

#[tokio::test]
async fn a_reader_gets_in_although_writers_keep_coming() {
    let server = Server::start().await;
    let passed = entered_before(&server, RwLock::read, RwLock::write).await;
    assert!(passed <= 50, "{passed} writers entered before the reader");
}

/// What the users of one lock see of each other in memory.
#[derive(Default)]
struct Inside {
    /// Readers, or -1: a writer.
    holders: AtomicI64,
    /// The greatest token that anybody entered with, and that a writer did.
    token: AtomicU64,
    writer_token: AtomicU64,
}

impl Inside {
    fn enter(&self, mode: char, token: u64) {
        if mode == 'w' {
            assert_eq!(self.holders.swap(-1, Ordering::SeqCst), 0, "a writer is not alone");
            assert!(self.token.fetch_max(token, Ordering::SeqCst) < token);
            self.writer_token.store(token, Ordering::SeqCst);
        } else {
            assert!(
                self.holders.fetch_add(1, Ordering::SeqCst) >= 0,
                "a reader beside a writer"
            );
            self.token.fetch_max(token, Ordering::SeqCst);
            assert!(self.writer_token.load(Ordering::SeqCst) < token);
        }
    }

    fn leave(&self, mode: char) {
        if mode == 'w' {
            assert_eq!(
                self.holders.swap(0, Ordering::SeqCst),
                -1,
                "somebody entered beside a writer"
            );
        } else {
            assert!(
                self.holders.fetch_sub(1, Ordering::SeqCst) > 0,
                "a writer entered beside a reader"
            );
        }
    }
}

async fn cycle<M: Access>(ask: Acquire<M>, inside: &Inside, release: bool) {
    let mode = if M::MODE == Mode::Write { 'w' } else { 'r' };
    let guard = soon("a turn", ask.acquire_fair()).await.unwrap();
    inside.enter(mode, guard.fencing_token().get());
    tokio::task::yield_now().await;
    inside.leave(mode);
    if release {
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conflicting_holds_never_overlap_and_tokens_grow_under_hammering() {
    let server = Server::start().await;
    let mut random = random::seeded();
    let mut locks = Vec::new();
    for _ in 0..3 {
        locks.push(lock(&server, Duration::from_secs(20)).await);
    }
    let inside = Arc::new(Inside::default());
    let tasks = (0..8).map(|task| {
        let (lock, inside) = (locks[task % 3].clone(), Arc::clone(&inside));
        let mut random = random.fork();
        tokio::spawn(async move {
            for _ in 0..300 {
                let release = random.u64(..4) > 0;
                match random.u64(..2) {
                    0 => cycle(lock.read(), &inside, release).await,
                    _ => cycle(lock.write(), &inside, release).await,
                }
            }
        })
    });
    try_join_all(tasks).await.unwrap();
    eventually("nobody is left", async || leases(&server).await == 0).await;
    assert_eq!(server.queued("a").await, 0);
}
