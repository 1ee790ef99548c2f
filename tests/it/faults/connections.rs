//! Connections that fall silent, are cut half-open or are killed at random, and scripts that are flushed.

use super::{Setting, lost};
use crate::lateness::in_time;
use crate::lua::{Lock, RELEASE};
use crate::observe::{LONG, View, client, ms, until_free};
use crate::server::{PATIENCE, Server, eventually, soon};
use fairlock::{Client, FencingToken, LostReason, Owner, RwLock};
use fairlock_support::random::{self, Rng};
use futures::future::join_all;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::task::JoinHandle;

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

/// Its claim says nothing of a wait while the reply has not come, so a doubt about waiters would pass it by.
#[tokio::test]
async fn a_grant_that_nobody_heard_is_looked_for_though_the_reply_before_it_came_later() {
    let server = Server::start().await;
    let held = Lock::new(&server, "a").await;
    let token = held.acquire("w1:1").await.token();
    let user = client(server.url(), LONG).await;
    let mut waiting = Box::pin(user.rw_lock("a").write().acquire_fair());
    assert!(futures::poll!(&mut waiting).is_pending());
    server.until_queued("a", 1).await;
    let subscribed = server.calls("subscribe").await;
    // In one step: it cannot have been heard.
    let mut deafened = redis::pipe();
    deafened.atomic().cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub");
    deafened.add_command(held.command(RELEASE, &["w1:1".to_owned()]));
    deafened.exec_async(&mut server.redis().await).await.unwrap();
    eventually("a new subscription", async || {
        server.calls("subscribe").await > subscribed
    })
    .await;
    // Those of the new subscription come after the client has told its waiters to renew.
    let pings = server.calls("ping").await;
    eventually("its pings", async || server.calls("ping").await >= pings + 2).await;
    let guard = soon("the grant", waiting).await.unwrap();
    assert!(guard.fencing_token().get() > token);
}

#[tokio::test]
async fn a_ping_that_the_server_refuses_is_a_reply_and_ends_no_subscription() {
    let s = Setting::new(600_000).await;
    let held = s.near.rw_lock("a").write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(s.far.rw_lock("a").write().acquire_fair());
    s.server.until_queued("a", 1).await;
    let subscribed = s.server.calls("subscribe").await;
    let mut connection = s.server.redis().await;
    let rules = redis::cmd("ACL").arg(&["SETUSER", "default", "-ping"]).to_owned();
    rules.exec_async(&mut connection).await.unwrap();
    // So many pings of each client's subscription that it would have ended if they counted as missed.
    eventually("pings are refused", async || s.server.refused("ping").await >= 6).await;
    assert_eq!(s.server.calls("subscribe").await, subscribed);
    held.release().await.unwrap();
    drop(soon("the grant", waiter).await.unwrap().unwrap());
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
    fn start(clients: &[Client], random: &mut Rng, workers: usize, visits: usize) -> Self {
        let (inside, tokens) = (Arc::new(Inside::default()), Arc::new(Mutex::new(HashMap::new())));
        let workers = (0..workers).map(|i| {
            let lock = clients[i % clients.len()].rw_lock("a");
            let (inside, tokens) = (Arc::clone(&inside), Arc::clone(&tokens));
            let plan: Vec<_> = (0..visits).map(|_| (random.u64(..2) == 0, random.u64(..4))).collect();
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
    server.refuse_functions().await;
    let clients = [client(server.url(), LONG).await, client(server.url(), LONG).await];
    let mut random = random::seeded();
    let load = Load::start(&clients, &mut random, 8, 40);
    let mut redis = server.redis().await;
    while !load.is_over() {
        let _: () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut redis).await.unwrap();
        tokio::time::sleep(ms(random.u64(..4))).await;
    }
    assert_eq!(load.end().await.len(), 320);
    until_free(&server, "a").await;
}

#[tokio::test]
async fn connections_killed_at_random_cost_nobody_a_place() {
    let server = Server::start().await;
    let mut random = random::seeded();
    let clients = join_all((0..3).map(|_| client(server.url(), LONG))).await;
    let load = Load::start(&clients, &mut random, 12, 25);
    let mut queues = Vec::new();
    let mut kills = 0;
    while !load.is_over() {
        queues.push(View::of(&server, "a").await.waiting);
        // Some, however few looks there are. Not for ever: each costs the clients a reconnect.
        if kills < 40 && (random.u64(..6) == 0 || queues.len() % 8 == 0) {
            let kind = if random.u64(..2) == 0 { "pubsub" } else { "normal" };
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("TYPE").arg(kind);
            let _: usize = kill.query_async(&mut server.redis().await).await.unwrap();
            kills += 1;
        }
        tokio::time::sleep(ms(random.u64(..8))).await;
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
