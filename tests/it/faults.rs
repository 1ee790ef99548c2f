//! What breaks beneath the lock: messages, replies, connections, the server, its data.

use crate::observe::{LONG, Random, View, client, keys, ms, until_free};
use crate::proxy::Proxy;
use crate::server::{PATIENCE, Server, eventually, in_time, soon};
use fairlock::{Client, Error, FencingToken, LostReason, Owner, RwLock};
use futures::future::join_all;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Writers that came one after the other. Each releases as soon as it is in.
struct Line {
    waiters: Vec<JoinHandle<FencingToken>>,
    entered: Arc<Mutex<Vec<usize>>>,
}

impl Line {
    async fn up(server: &Server, clients: &[&Client], name: &str, n: usize) -> Self {
        let entered = Arc::new(Mutex::new(Vec::new()));
        let mut waiters = Vec::new();
        for i in 0..n {
            let (lock, entered) = (clients[i % clients.len()].rw_lock(name), Arc::clone(&entered));
            waiters.push(tokio::spawn(async move {
                let guard = lock.write().acquire_fair().await.unwrap();
                entered.lock().unwrap().push(i);
                let token = guard.fencing_token();
                guard.release().await.unwrap();
                token
            }));
            server.until_queued(name, i + 1).await;
        }
        Self { waiters, entered }
    }

    /// Waits until all have been in; gives the order in which they were, and their tokens.
    async fn through(self) -> (Vec<usize>, Vec<FencingToken>) {
        let waiters = join_all(self.waiters);
        let tokens = soon("everybody gets in", waiters).await;
        let tokens = tokens.into_iter().map(Result::unwrap).collect();
        let order = std::mem::take(&mut *self.entered.lock().unwrap());
        (order, tokens)
    }
}

/// A server, one client next to it and one behind a proxy.
struct Setting {
    server: Server,
    proxy: Proxy,
    far: Client,
    near: Client,
}

impl Setting {
    async fn new(far_lease: u64) -> Self {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let (far, near) = (
            client(proxy.url(), ms(far_lease)).await,
            client(server.url(), LONG).await,
        );
        Self {
            server,
            proxy,
            far,
            near,
        }
    }
}

async fn lost(guard: &fairlock::WriteGuard) -> LostReason {
    soon("it is lost", guard.lost()).await
}

#[tokio::test]
async fn without_any_message_waiters_enter_by_their_renewals() {
    let s = Setting::new(2100).await;
    s.proxy.drop_messages(true);
    let held = s.near.rw_lock("a").write().acquire_fair().await.unwrap();
    let line = Line::up(&s.server, &[&s.far], "a", 3).await;
    held.release().await.unwrap();
    let (order, _) = line.through().await;
    assert_eq!(order, [0, 1, 2]);
    assert!(s.proxy.messages() >= 3, "messages were sent and dropped");
    until_free(&s.server, "a").await;
}

#[tokio::test]
async fn a_grant_told_before_the_waiter_knows_that_it_waits_is_heard() {
    let s = Setting::new(600_000).await;
    let held = s.near.rw_lock("a").write().acquire_fair().await.unwrap();
    s.proxy.hold_replies(true);
    let waiter = tokio::spawn(s.far.rw_lock("a").write().acquire_fair());
    s.server.until_queued("a", 1).await;
    // The message overtakes the reply.
    held.release().await.unwrap();
    eventually("the message passes", async || s.proxy.messages() == 1).await;
    assert!(!waiter.is_finished());
    s.proxy.hold_replies(false);
    let guard = soon("it enters", waiter).await.unwrap().unwrap();
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_grant_whose_message_is_lost_before_the_waiter_parks_is_learned_by_renewal() {
    let s = Setting::new(1500).await;
    let held = s.near.rw_lock("a").write().acquire_fair().await.unwrap();
    s.proxy.delay_replies(ms(300));
    let waiter = tokio::spawn(s.far.rw_lock("a").write().acquire_fair());
    s.server.until_queued("a", 1).await;
    s.proxy.delay_replies(ms(0));
    s.proxy.drop_messages(true);
    held.release().await.unwrap();
    let guard = soon("it enters", waiter).await.unwrap().unwrap();
    assert!(guard.is_held());
    assert_eq!(s.proxy.messages(), 1, "it was sent and dropped");
}

#[tokio::test]
async fn connections_that_fell_silent_are_made_again() {
    // Its next renewal is minutes away.
    let s = Setting::new(600_000).await;
    let held = s.near.rw_lock("a").write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(s.far.rw_lock("a").write().acquire_fair());
    s.server.until_queued("a", 1).await;
    s.proxy.silence();
    held.release().await.unwrap();
    let guard = soon("it enters", waiter).await.unwrap().unwrap();
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_lease_is_counted_from_the_asking_and_not_from_the_answer() {
    in_time(async || {
        let s = Setting::new(6_000).await;
        let lock = s.far.rw_lock("a");
        // The scripts are there from now on.
        lock.write().acquire_fair().await.unwrap().release().await.unwrap();
        s.proxy.delay_replies(ms(500));
        let asked = Instant::now();
        let guard = lock.write().acquire_fair().await.unwrap();
        s.proxy.stall(true);
        tokio::time::sleep_until((asked + ms(6_000)).into()).await;
        assert!(!guard.is_held());
    })
    .await;
}

#[tokio::test]
async fn a_grant_that_was_missed_is_learned_as_soon_as_the_subscription_is_made_again() {
    // Its next renewal is minutes away.
    let s = Setting::new(600_000).await;
    let held = s.near.rw_lock("a").write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(s.far.rw_lock("a").write().acquire_fair());
    s.server.until_queued("a", 1).await;
    s.proxy.drop_messages(true);
    held.release().await.unwrap();
    eventually("the message is dropped", async || s.proxy.messages() == 1).await;
    assert!(!waiter.is_finished());
    s.proxy.cut();
    let guard = soon("it enters", waiter).await.unwrap().unwrap();
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_hundred_waiters_keep_their_order_over_a_restart() {
    let mut server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let (a, b) = (client(server.url(), LONG).await, client(server.url(), LONG).await);
    let held = a.rw_lock("a").write().acquire_fair().await.unwrap();
    let line = Line::up(&server, &[&a, &b], "a", 100).await;
    server.kill();
    server.start_again().await;
    assert_eq!(server.queued("a").await, 100);
    assert!(held.is_held());
    held.release().await.unwrap();
    let (order, _) = line.through().await;
    assert_eq!(order, Vec::from_iter(0..100));
    until_free(&server, "a").await;
}

/// The server is away for 15 s, in which nobody can do anything.
async fn outage(server: &mut Server) {
    server.kill();
    tokio::time::sleep(ms(15_000)).await;
    server.start_again().await;
}

#[tokio::test]
async fn after_an_outage_with_its_data_the_server_knows_whose_lease_was_longer() {
    let mut server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let (short, long) = (
        client(server.url(), ms(5000)).await,
        client(server.url(), ms(30_000)).await,
    );
    let other = client(server.url(), ms(30_000)).await;
    let short_held = short.rw_lock("short").write().acquire_fair().await.unwrap();
    let long_held = long.rw_lock("long").write().acquire_fair().await.unwrap();
    let short_line = Line::up(&server, &[&short], "short", 5).await;
    let long_line = Line::up(&server, &[&long, &other], "long", 10).await;
    let outage = outage(&mut server);
    let (reason, ()) = tokio::join!(short_held.lost(), outage);
    assert_eq!(reason, LostReason::LeaseExpired);
    let (order, tokens) = short_line.through().await;
    // Their places had expired too: whoever asked again first found a free lock, the others queued by their tickets.
    assert!(order.len() == 5 && order[1..].is_sorted(), "{order:?}");
    assert!(tokens.iter().min() > Some(&short_held.fencing_token()));
    assert!(matches!(short_held.release().await, Err(Error::Lost { .. })));

    assert!(long_held.is_held());
    assert_eq!(server.queued("long").await, 10);
    // Longer than what was left of the lease after the outage.
    tokio::time::sleep(ms(2000)).await;
    assert!(long_held.is_held());
    long_held.release().await.unwrap();
    let (order, _) = long_line.through().await;
    assert_eq!(order, Vec::from_iter(0..10));
}

#[tokio::test]
async fn after_an_outage_without_its_data_holders_have_lost_and_waiters_queue_again() {
    let mut server = Server::start().await;
    let (a, b) = (
        client(server.url(), ms(30_000)).await,
        client(server.url(), ms(30_000)).await,
    );
    let held = a.rw_lock("a").write().acquire_fair().await.unwrap();
    let line = Line::up(&server, &[&a, &b], "a", 10).await;
    outage(&mut server).await;
    assert_eq!(lost(&held).await, LostReason::UnknownToServer);
    let (mut order, tokens) = line.through().await;
    // Whoever asks first finds a free lock: only the others are in the order of their old tickets.
    assert!(tokens.iter().all(|token| *token > held.fencing_token()));
    order.sort_unstable();
    assert_eq!(order, Vec::from_iter(0..10));
    until_free(&server, "a").await;
}

#[tokio::test]
async fn waiters_of_a_server_that_lost_its_data_queue_in_their_old_order() {
    in_time(async || {
        let s = Setting::new(1500).await;
        let held = s.far.rw_lock("a").write().acquire_fair().await.unwrap();
        let line = Line::up(&s.server, &[&s.far], "a", 10).await;
        // Whoever asks first would enter; so somebody else is inside until all have asked.
        let script = "redis.call('FLUSHALL')
        redis.call('HSET', KEYS[1], 'mode', 'write', 'writer', 'f:1', 'wcount', 1, 'seq', ARGV[2])
        redis.call('ZADD', KEYS[2], ARGV[1], 'wf:1')";
        let [state, _, leases] = keys("a");
        let deadline = View::of(&s.server, "a").await.now_ms + 4000;
        let script = redis::Script::new(script);
        let mut call = script.key(state);
        call.key(leases).arg(deadline).arg(held.fencing_token().get());
        let _: () = call.invoke_async(&mut s.server.redis().await).await.unwrap();
        assert_eq!(lost(&held).await, LostReason::UnknownToServer);
        let (order, tokens) = line.through().await;
        assert_eq!(order, Vec::from_iter(0..10));
        assert!(tokens.iter().all(|token| *token > held.fencing_token()));
    })
    .await;
}

#[tokio::test]
async fn an_acquire_whose_reply_is_lost_counts_once() {
    let s = Setting::new(600_000).await;
    let mine = s.far.rw_lock("a").with_owner(&Owner::new());
    for (holds, reading) in [(1, false), (2, true), (3, false)] {
        s.proxy.lose_replies(1);
        if reading {
            std::mem::forget(mine.read().acquire_fair().await.unwrap());
        } else {
            std::mem::forget(mine.write().acquire_fair().await.unwrap());
        }
        assert_eq!(s.proxy.replies_to_lose(), 0, "it was lost");
        let view = View::of(&s.server, "a").await;
        assert_eq!((view.holds, view.leases.len()), (holds, holds), "{view:?}");
    }
    let held = s.far.rw_lock("b").write().acquire_fair().await.unwrap();
    s.proxy.lose_replies(1);
    let waiter = tokio::spawn(s.far.rw_lock("b").write().acquire_fair());
    eventually("it was lost", async || s.proxy.replies_to_lose() == 0).await;
    held.release().await.unwrap();
    soon("it enters", waiter)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    until_free(&s.server, "b").await;
    s.far.shutdown().await;
    until_free(&s.server, "a").await;
}

#[tokio::test]
async fn a_release_whose_reply_is_lost_is_confirmed_and_done_once() {
    let s = Setting::new(600_000).await;
    let mine = s.far.rw_lock("a").with_owner(&Owner::new());
    let (outer, inner) = (
        mine.write().acquire_fair().await.unwrap(),
        mine.write().acquire_fair().await.unwrap(),
    );
    s.proxy.lose_replies(1);
    inner.release().await.unwrap();
    assert_eq!(s.proxy.replies_to_lose(), 0, "it was lost");
    assert_eq!(View::of(&s.server, "a").await.holds, 1);
    let waiter = tokio::spawn(s.near.rw_lock("a").write().acquire_fair());
    s.server.until_queued("a", 1).await;
    s.proxy.lose_replies(1);
    outer.release().await.unwrap();
    let guard = soon("the next enters", waiter).await.unwrap().unwrap();
    assert_eq!(View::of(&s.server, "a").await.holds, 1);
    guard.release().await.unwrap();
    until_free(&s.server, "a").await;
}

#[tokio::test]
async fn a_renewal_whose_reply_is_lost_loses_nothing() {
    in_time(async || {
        let s = Setting::new(2400).await;
        let held = s.far.rw_lock("a").write().acquire_fair().await.unwrap();
        let line = Line::up(&s.server, &[&s.far], "a", 2).await;
        s.proxy.lose_replies(1);
        eventually("it was lost", async || s.proxy.replies_to_lose() == 0).await;
        tokio::time::sleep(ms(3000)).await;
        assert!(held.is_held());
        assert_eq!(s.server.queued("a").await, 2);
        held.release().await.unwrap();
        assert_eq!(line.through().await.0, [0, 1]);
        until_free(&s.server, "a").await;
    })
    .await;
}

/// Who is inside by the users' own account.
#[derive(Default)]
struct Inside {
    writers: AtomicUsize,
    readers: AtomicUsize,
}

impl Inside {
    /// Stays inside for a moment, and fails if somebody is there who must not be.
    async fn visit(&self, writes: bool, stay_ms: u64) {
        let count = if writes { &self.writers } else { &self.readers };
        count.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(ms(stay_ms)).await;
        let (writers, readers) = (self.writers.load(Ordering::SeqCst), self.readers.load(Ordering::SeqCst));
        assert!(
            writers == 0 || (writers == 1 && readers == 0),
            "{writers} writers, {readers} readers"
        );
        count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Takes the lock once, as an owner of its own, and says which token it had.
async fn visit(lock: &RwLock, owner: &Owner, inside: &Inside, writes: bool, stay_ms: u64) -> FencingToken {
    let mine = lock.with_owner(owner);
    if writes {
        let guard = mine.write().acquire_fair().await.unwrap();
        inside.visit(true, stay_ms).await;
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        token
    } else {
        let guard = mine.read().acquire_fair().await.unwrap();
        inside.visit(false, stay_ms).await;
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        token
    }
}

/// Readers and writers of several clients that come again and again.
struct Load {
    begun: Instant,
    workers: Vec<JoinHandle<()>>,
    /// The token of every owner that was inside; owners as requests name them.
    tokens: Arc<Mutex<HashMap<String, FencingToken>>>,
}

impl Load {
    fn start(clients: &[Client], random: &mut Random, workers: usize, visits: usize) -> Self {
        let (inside, tokens) = (Arc::new(Inside::default()), Arc::new(Mutex::new(HashMap::new())));
        let workers = (0..workers).map(|i| {
            let lock = clients[i % clients.len()].rw_lock("a");
            let (inside, tokens) = (Arc::clone(&inside), Arc::clone(&tokens));
            let plan: Vec<_> = (0..visits).map(|_| (random.below(2) == 0, random.below(4))).collect();
            tokio::spawn(async move {
                for (writes, stay_ms) in plan {
                    let owner = Owner::new();
                    let token = visit(&lock, &owner, &inside, writes, stay_ms).await;
                    tokens.lock().unwrap().insert(owner.uuid().simple().to_string(), token);
                }
            })
        });
        Self {
            begun: Instant::now(),
            workers: workers.collect(),
            tokens,
        }
    }

    /// Fails when it takes so long that somebody must have missed a grant.
    fn is_over(&self) -> bool {
        assert!(self.begun.elapsed() < 2 * PATIENCE, "somebody hangs");
        self.workers.iter().all(JoinHandle::is_finished)
    }

    async fn end(self) -> HashMap<String, FencingToken> {
        let ended = soon("everybody was inside", join_all(self.workers)).await;
        ended.into_iter().for_each(Result::unwrap);
        std::mem::take(&mut *self.tokens.lock().unwrap())
    }
}

#[tokio::test]
async fn scripts_flushed_at_any_moment_are_loaded_again() {
    let server = Server::start().await;
    let clients = [client(server.url(), LONG).await, client(server.url(), LONG).await];
    let mut random = Random::new();
    let load = Load::start(&clients, &mut random, 8, 40);
    let mut redis = server.redis().await;
    while !load.is_over() {
        let _: () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut redis).await.unwrap();
        tokio::time::sleep(ms(random.below(4))).await;
    }
    assert_eq!(load.end().await.len(), 320);
    until_free(&server, "a").await;
}

#[tokio::test]
async fn connections_killed_at_random_cost_nobody_a_place() {
    let server = Server::start().await;
    let mut random = Random::new();
    let clients = join_all((0..3).map(|_| client(server.url(), LONG))).await;
    let load = Load::start(&clients, &mut random, 12, 25);
    let mut queues = Vec::new();
    let mut kills = 0;
    while !load.is_over() {
        queues.push(View::of(&server, "a").await.waiting);
        // Some, however few looks there are. Not for ever: each costs the clients a reconnect.
        if kills < 40 && (random.below(6) == 0 || queues.len() % 8 == 0) {
            let kind = if random.below(2) == 0 { "pubsub" } else { "normal" };
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("TYPE").arg(kind);
            let _: usize = kill.query_async(&mut server.redis().await).await.unwrap();
            kills += 1;
        }
        tokio::time::sleep(ms(random.below(8))).await;
    }
    let tokens = load.end().await;
    assert_eq!(tokens.len(), 300);
    assert!(kills > 0, "nothing was killed");
    let mut first_seen = HashMap::new();
    for (moment, queue) in queues.into_iter().enumerate() {
        let seen: Vec<_> = queue
            .iter()
            .map(|request| *first_seen.entry(request.clone()).or_insert(moment))
            .collect();
        assert!(seen.is_sorted(), "{queue:?} came as {seen:?}");
        let owners = queue
            .iter()
            .map(|request| request.rsplit(':').next().expect("an owner"));
        let entered: Vec<_> = owners.map(|owner| tokens[owner]).collect();
        assert!(entered.is_sorted(), "{queue:?} entered as {entered:?}");
    }
    until_free(&server, "a").await;
}

#[tokio::test]
async fn cancels_whose_connection_is_cut_leave_nothing() {
    let s = Setting::new(600_000).await;
    let held = s.near.rw_lock("a").write().acquire_fair().await.unwrap();
    for stalled in [false, true] {
        let waiters: Vec<_> = (0..20)
            .map(|_| tokio::spawn(s.far.rw_lock("a").write().acquire_fair()))
            .collect();
        s.server.until_queued("a", 20).await;
        s.proxy.stall(stalled);
        waiters.iter().for_each(JoinHandle::abort);
        for waiter in waiters {
            let _ = waiter.await;
        }
        s.proxy.cut();
        s.proxy.stall(false);
        eventually("only the holder is left", async || {
            View::of(&s.server, "a").await.leases.len() == 1
        })
        .await;
    }
    held.release().await.unwrap();
    until_free(&s.server, "a").await;
}

#[tokio::test]
async fn cancels_that_never_reach_the_server_end_with_their_lease() {
    in_time(async || {
        let s = Setting::new(1500).await;
        let held = s.near.rw_lock("a").write().acquire_fair().await.unwrap();
        let waiters: Vec<_> = (0..20)
            .map(|_| tokio::spawn(s.far.rw_lock("a").write().acquire_fair()))
            .collect();
        s.server.until_queued("a", 20).await;
        let next = tokio::spawn(s.near.rw_lock("a").write().acquire_fair());
        s.server.until_queued("a", 21).await;
        s.proxy.stall(true);
        waiters.iter().for_each(JoinHandle::abort);
        held.release().await.unwrap();
        let guard = soon("the next enters", next).await.unwrap().unwrap();
        assert_eq!(View::of(&s.server, "a").await.leases.len(), 1);
        guard.release().await.unwrap();
        until_free(&s.server, "a").await;
    })
    .await;
}

#[tokio::test]
async fn deleted_keys_are_noticed_by_the_holder_and_hang_no_waiter() {
    let server = Server::start().await;
    let (a, b) = (
        client(server.url(), ms(3000)).await,
        client(server.url(), ms(3000)).await,
    );
    let cases = [
        vec![0],
        vec![1],
        vec![2],
        vec![0, 1],
        vec![1, 2],
        vec![0, 2],
        vec![0, 1, 2],
    ];
    let cases = cases.map(async |deleted| {
        let name = format!("{deleted:?}");
        let held = a.rw_lock(&*name).write().acquire_fair().await.unwrap();
        let line = Line::up(&server, &[&b], &name, 4).await;
        let names = keys(&name);
        let mut del = redis::cmd("DEL");
        for key in deleted {
            del.arg(&names[key]);
        }
        let _: usize = del.query_async(&mut server.redis().await).await.unwrap();
        assert_eq!(lost(&held).await, LostReason::UnknownToServer, "{name}");
        let (mut order, tokens) = line.through().await;
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3]);
        assert!(tokens.iter().all(|token| *token > held.fencing_token()), "{name}");
        until_free(&server, &name).await;
    });
    join_all(cases).await;
}

#[tokio::test]
async fn a_server_frozen_for_less_than_the_lease_loses_nobody() {
    in_time(async || {
        let server = Server::start().await;
        let client = client(server.url(), ms(6000)).await;
        let held = client.rw_lock("a").write().acquire_fair().await.unwrap();
        let line = Line::up(&server, &[&client], "a", 3).await;
        tokio::time::sleep(ms(1000)).await;
        server.freeze();
        tokio::time::sleep(ms(2500)).await;
        server.thaw();
        let before = server.script_calls().await;
        eventually("it renews again", async || server.script_calls().await >= before + 4).await;
        assert!(held.is_held());
        held.release().await.unwrap();
        assert_eq!(line.through().await.0, [0, 1, 2]);
        until_free(&server, "a").await;
    })
    .await;
}

#[tokio::test]
async fn holders_of_a_server_frozen_for_longer_than_the_lease_know_of_their_loss_before_it_thaws() {
    in_time(async || {
        let server = Server::start().await;
        let (a, b) = (
            client(server.url(), ms(1000)).await,
            client(server.url(), ms(1000)).await,
        );
        let held = a.rw_lock("a").write().acquire_fair().await.unwrap();
        let line = Line::up(&server, &[&a, &b], "a", 4).await;
        server.freeze();
        assert_eq!(lost(&held).await, LostReason::LeaseExpired);
        tokio::time::sleep(ms(1000)).await;
        server.thaw();
        let (mut order, tokens) = line.through().await;
        assert!(tokens.iter().all(|token| *token > held.fencing_token()));
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3]);
        assert!(matches!(held.release().await, Err(Error::Lost { .. })));
        until_free(&server, "a").await;
    })
    .await;
}

#[tokio::test]
async fn a_holder_cut_off_half_open_knows_of_its_loss_before_the_next_enters() {
    in_time(async || {
        let s = Setting::new(1000).await;
        for round in 0..2 {
            let held = soon("it reconnects", s.far.rw_lock("a").write().acquire_fair())
                .await
                .unwrap();
            let next = tokio::spawn(s.near.rw_lock("a").write().acquire_fair());
            s.server.until_queued("a", 1).await;
            // Cut off at different moments of its rhythm of renewals.
            tokio::time::sleep(ms(150 * round)).await;
            s.proxy.stall(true);
            let next = soon("the next enters", next).await.unwrap().unwrap();
            assert!(!held.is_held());
            assert_eq!(lost(&held).await, LostReason::LeaseExpired);
            s.proxy.stall(false);
            next.release().await.unwrap();
        }
        let again = soon("it reconnects", s.far.rw_lock("a").write().acquire_fair())
            .await
            .unwrap();
        again.release().await.unwrap();
        until_free(&s.server, "a").await;
    })
    .await;
}

#[tokio::test]
async fn parked_waiters_send_renewals_only_and_those_together() {
    in_time(async || {
        let server = Server::start().await;
        let (a, b) = (client(server.url(), LONG).await, client(server.url(), ms(900)).await);
        let held = a.rw_lock("a").write().acquire_fair().await.unwrap();
        let line = Line::up(&server, &[&b], "a", 50).await;
        // The first renewal loads its script.
        let queued = server.script_calls().await;
        eventually("a renewal", async || server.script_calls().await > queued).await;
        let (begun, calls, loads) = (Instant::now(), server.script_calls().await, server.calls("eval").await);
        tokio::time::sleep(ms(2400)).await;
        let renewals = server.script_calls().await - calls;
        // One each 300 ms for all of them, twice that if the waiters fell out of step.
        let intervals = u64::try_from(begun.elapsed().as_millis()).unwrap() / 300;
        assert!(
            (2..=2 * intervals + 4).contains(&renewals),
            "{renewals} in {intervals} intervals"
        );
        assert_eq!((server.calls("publish").await, server.calls("eval").await), (0, loads));
        held.release().await.unwrap();
        assert_eq!(line.through().await.0, Vec::from_iter(0..50));
    })
    .await;
}

/// The words of the next command of this kind that the server executes for a client.
async fn monitored(server: &Server, lock: &str) -> JoinHandle<Vec<String>> {
    let mut monitor = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    monitor.write_all(b"MONITOR\r\n").await.unwrap();
    let mut lines = BufReader::new(monitor).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("+OK"));
    let state = keys(lock)[0].clone();
    tokio::spawn(async move {
        loop {
            let line = lines.next_line().await.unwrap().expect("the server lives");
            let words: Vec<_> = line.split('"').skip(1).step_by(2).map(str::to_owned).collect();
            if words[0] == "EVALSHA" && words.contains(&state) {
                return words;
            }
        }
    })
}

#[tokio::test]
async fn an_acquire_executed_after_its_own_cancel_is_passed_on_when_it_is_granted() {
    let s = Setting::new(600_000).await;
    // The scripts are loaded before anybody watches.
    drop(s.far.rw_lock("other").write().acquire_fair().await.unwrap());
    let held = s.near.rw_lock("a").write().acquire_fair().await.unwrap();
    let sent = monitored(&s.server, "a").await;
    let waiter = tokio::spawn(s.far.rw_lock("a").write().acquire_fair());
    let sent = soon("it is sent", sent).await.unwrap();
    waiter.abort();
    s.server.until_queued("a", 0).await;
    // It came twice, by a connection that was given up and by the next; the first one only now.
    let mut late = redis::cmd(&sent[0]);
    late.arg(&sent[1..]);
    late.exec_async(&mut s.server.redis().await).await.unwrap();
    s.server.until_queued("a", 1).await;
    let next = tokio::spawn(s.near.rw_lock("a").write().acquire_fair());
    s.server.until_queued("a", 2).await;
    held.release().await.unwrap();
    soon("the next enters", next)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    until_free(&s.server, "a").await;
}

#[tokio::test]
async fn an_owner_is_not_refused_for_an_acquire_that_was_executed_after_its_own_cancel() {
    let s = Setting::new(600_000).await;
    drop(s.far.rw_lock("other").write().acquire_fair().await.unwrap());
    let held = s.near.rw_lock("a").write().acquire_fair().await.unwrap();
    let lock = s.far.rw_lock("a").with_owner(&fairlock::Owner::new());
    let sent = monitored(&s.server, "a").await;
    let waiter = tokio::spawn(lock.read().acquire_fair());
    let sent = soon("it is sent", sent).await.unwrap();
    waiter.abort();
    s.server.until_queued("a", 0).await;
    // It came twice, by a connection that was given up and by the next; the first one only now.
    let mut late = redis::cmd(&sent[0]);
    late.arg(&sent[1..]);
    late.exec_async(&mut s.server.redis().await).await.unwrap();
    s.server.until_queued("a", 1).await;
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    s.server.until_queued("a", 0).await;
    held.release().await.unwrap();
    drop(lock.write().acquire_fair().await.unwrap());
}

#[tokio::test]
async fn a_server_frozen_over_two_renewals_but_less_than_the_lease_costs_no_hold() {
    in_time(async || {
        let server = Server::start().await;
        let client = client(server.url(), ms(9000)).await;
        let held = client.rw_lock("a").write().acquire_fair().await.unwrap();
        // Renewals are due after 3 and 6 s and are given up after another second.
        tokio::time::sleep(ms(2500)).await;
        server.freeze();
        tokio::time::sleep(ms(4700)).await;
        server.thaw();
        tokio::time::sleep(ms(3000)).await;
        assert!(held.is_held(), "{:?}", held.lost().await);
    })
    .await;
}

#[tokio::test]
async fn waiters_of_one_client_enter_in_order_when_the_server_lost_its_data() {
    in_time(async || {
        let server = Server::start().await;
        let client = client(server.url(), ms(1500)).await;
        let _held = client.rw_lock("a").write().acquire_fair().await.unwrap();
        let line = Line::up(&server, &[&client], "a", 10).await;
        let _: () = redis::cmd("FLUSHALL")
            .query_async(&mut server.redis().await)
            .await
            .unwrap();
        assert_eq!(line.through().await.0, Vec::from_iter(0..10));
    })
    .await;
}
