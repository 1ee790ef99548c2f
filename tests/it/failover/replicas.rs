//! Grants that count only when replicas have them.

use crate::failover::demotion::{info, replica_of, until_server_waits};
use crate::lateness::in_time;
use crate::observe::{LONG, View, keys, ms, until_free};
use crate::proxy::Proxy;
use crate::server::{PATIENCE, Server, connected, eventually, soon};
use fairlock::{Client, ClientBuilder, Error, LostReason, RwLock, WriteGuard};
use fairlock_support::packed::Packed;
use futures::future::join_all;
use redis::Value;
use std::future::poll_fn;
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Whatever has this time limit is waited for.
const PATIENT: Duration = Duration::from_secs(300);

async fn writer(server: &Server, lock: &str) -> Option<String> {
    let state = Packed::of(&mut server.redis().await, &keys(lock)[0]).await;
    (state.writes > 0).then(|| state.writer().to_owned())
}

async fn knows_waitaof(server: &Server) -> bool {
    let mut known = redis::cmd("COMMAND");
    known.arg("INFO").arg("WAITAOF");
    let known: Vec<Value> = known.query_async(&mut server.redis().await).await.unwrap();
    !matches!(known.as_slice(), [Value::Nil])
}

/// Has a server refuse every write while it has fewer replicas.
async fn wants_replicas(server: &Server, n: usize) {
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("min-replicas-to-write").arg(n);
    set.query_async::<()>(&mut server.redis().await)
        .await
        .expect("CONFIG SET")
}

async fn client(server: &Server, with: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Client {
    connected(with(Client::builder().lease(LONG)), server.url()).await
}

fn is_not_replicated<T: std::fmt::Debug>(outcome: &Result<T, Error>) -> bool {
    matches!(
        outcome,
        Err(Error::NotReplicated {
            wanted: 1,
            reached: 0,
            ..
        })
    )
}

/// A grant that waits for its replica, which is frozen.
async fn asked_without_replica() -> (Server, Server, RwLock, JoinHandle<Result<WriteGuard, Error>>) {
    let master = Server::start().await;
    let replica = replica_of(&master).await;
    let client = client(&master, |builder| builder.wait_for_replicas(1, PATIENT)).await;
    let lock = client.rw_lock("a");
    replica.freeze();
    let asked = tokio::spawn(lock.write().acquire_fair());
    until_server_waits(&master).await;
    (master, replica, lock, asked)
}

#[tokio::test]
async fn a_guard_is_handed_out_when_the_replica_knows_of_it() {
    let (master, replica, _, asked) = asked_without_replica().await;
    assert!(writer(&master, "a").await.is_some(), "granted");
    assert!(!asked.is_finished(), "but it does not count yet");
    replica.thaw();
    let guard = soon("the guard", asked).await.unwrap().unwrap();
    assert_eq!(writer(&replica, "a").await, writer(&master, "a").await);
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_grant_without_replicas_is_withdrawn_before_its_error_is_seen() {
    let server = Server::start().await;
    let strict = client(&server, |builder| builder.wait_for_replicas(1, ms(20))).await;
    let lock = strict.rw_lock("a");
    for outcome in [
        lock.write().acquire_fair().await.map(Some),
        lock.write().try_acquire().await,
        lock.write().try_acquire_for(PATIENCE).await,
    ] {
        assert!(is_not_replicated(&outcome), "{outcome:?}");
        assert_eq!(writer(&server, "a").await, None, "withdrawn");
    }
    let error = lock.read().acquire_fair().await.unwrap_err();
    assert!(
        error.to_string().contains("reached 0 of 1 replicas within 20ms"),
        "{error}"
    );
    // A single request may do without.
    let guard = lock
        .write()
        .wait_for_replicas(0, Duration::ZERO)
        .acquire_fair()
        .await
        .unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_max_hold_that_is_shorter_than_the_wait_hides_no_missing_replica() {
    let server = Server::start().await;
    let strict = client(&server, |builder| builder.wait_for_replicas(1, ms(400))).await;
    let short = strict.rw_lock("a").write().max_hold(ms(50));
    let outcome = soon("an answer", short.acquire_fair()).await;
    assert!(is_not_replicated(&outcome), "{outcome:?}");
    assert_eq!(writer(&server, "a").await, None, "withdrawn");
}

#[tokio::test]
async fn who_is_evicted_while_it_waits_for_a_replica_is_told_at_once_and_does_not_come_back() {
    let (master, _replica, lock, asked) = asked_without_replica().await;
    let owner = lock.status().await.unwrap().holders[0].owner;
    assert_eq!(lock.evict(&owner).await.unwrap(), 1);
    let outcome = soon("an answer", asked).await.unwrap();
    assert!(
        matches!(
            outcome,
            Err(Error::Lost {
                reason: LostReason::Evicted,
                ..
            })
        ),
        "{outcome:?}"
    );
    assert_eq!(writer(&master, "a").await, None);
}

#[tokio::test]
async fn a_shutdown_ends_every_wait_for_a_replica() {
    let (master, _replica, lock, asked) = asked_without_replica().await;
    let second = client(&master, |builder| builder.wait_for_replicas(1, PATIENT)).await;
    let third = tokio::spawn(second.rw_lock("b").write().acquire_fair());
    eventually("both servers' connections wait", async || {
        info(&master, "clients").await.contains("blocked_clients:2")
    })
    .await;
    // This one's renewal stands behind the other's WAIT.
    let behind = tokio::spawn(second.rw_lock("c").write().acquire_fair());
    eventually("granted", async || writer(&master, "c").await.is_some()).await;
    second.shutdown().await;
    for waiting in [third, behind] {
        let outcome = soon("an answer", waiting).await.unwrap();
        assert!(matches!(outcome, Err(Error::Shutdown { .. })), "{outcome:?}");
    }
    assert!(!asked.is_finished(), "another client's");
    drop(lock);
}

/// The releaser, which tries for a lease, ends with the client.
#[tokio::test]
async fn a_shutdown_ends_the_withdrawal_of_a_grant_that_the_server_does_not_let_go() {
    let server = Server::start().await;
    let strict = client(&server, |builder| builder.wait_for_replicas(1, ms(500))).await;
    let asked = tokio::spawn(strict.rw_lock("a").write().acquire_fair());
    until_server_waits(&server).await;
    wants_replicas(&server, 1).await;
    // By then nobody asks the replicas any more, and only the releaser makes calls.
    let begun = View::of(&server, "a").await.now_ms;
    eventually("the wait is long over", async || {
        View::of(&server, "a").await.now_ms > begun + 3000
    })
    .await;
    let errors = info(&server, "errorstats").await;
    eventually("the release is refused", async || {
        info(&server, "errorstats").await != errors
    })
    .await;
    strict.shutdown().await;
    let outcome = soon("an answer", asked).await.unwrap();
    assert!(
        matches!(outcome, Err(Error::NotReplicated { .. } | Error::Server { .. })),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn a_short_wait_for_replicas_ends_while_a_long_one_goes_on() {
    in_time(async || {
        let master = Server::start().await;
        let replica = replica_of(&master).await;
        let client = connected(Client::builder().lease(ms(300)), master.url()).await;
        replica.freeze();
        let long = client.rw_lock("a").write().wait_for_replicas(1, PATIENT);
        let long = tokio::spawn(long.acquire_fair());
        until_server_waits(&master).await;
        let short = client.rw_lock("b").write().wait_for_replicas(1, ms(20));
        // Its call stands behind the other one for several times as long as it may take by itself.
        let outcome = soon("the verdict", short.acquire_fair()).await;
        assert!(is_not_replicated(&outcome), "{outcome:?}");
        assert!(!long.is_finished());
        replica.thaw();
        drop(soon("the guard", long).await.unwrap().unwrap());
    })
    .await;
}

#[tokio::test]
async fn one_request_alone_may_ask_for_replicas() {
    let server = Server::start().await;
    let lock = client(&server, |builder| builder).await.rw_lock("a");
    let outcome = lock.write().wait_for_replicas(1, ms(20)).acquire_fair().await;
    assert!(is_not_replicated(&outcome), "{outcome:?}");
    drop(lock.write().acquire_fair().await.unwrap());
    until_free(&server, "a").await;
}

#[tokio::test]
async fn a_grant_that_was_handed_over_is_withdrawn_too_and_passed_on() {
    let server = Server::start().await;
    let plain = client(&server, |builder| builder).await.rw_lock("a");
    let strict = client(&server, |builder| builder.wait_for_replicas(1, ms(20)))
        .await
        .rw_lock("a");
    let first = plain.write().acquire_fair().await.unwrap();
    let second = tokio::spawn(strict.write().acquire_fair());
    server.until_queued("a", 1).await;
    let third = tokio::spawn(plain.write().acquire_fair());
    server.until_queued("a", 2).await;
    first.release().await.unwrap();
    let outcome = soon("the verdict", second).await.unwrap();
    assert!(is_not_replicated(&outcome), "{outcome:?}");
    drop(soon("the next", third).await.unwrap().unwrap());
}

/// Its lease is over, so nothing is lost by a pause.
#[tokio::test]
async fn a_waiter_whose_server_refuses_all_writes_asks_at_leisure() {
    let server = Server::start().await;
    let held = client(&server, |builder| builder)
        .await
        .rw_lock("a")
        .write()
        .acquire_fair();
    let held = held.await.unwrap();
    let lock = client(&server, |builder| builder.lease(ms(1500))).await.rw_lock("a");
    let waiter = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 1).await;
    wants_replicas(&server, 1).await;
    tokio::time::sleep(ms(2000)).await;
    let (begun, before) = (Instant::now(), server.errors("NOREPLICAS").await);
    eventually("it asks again", async || server.errors("NOREPLICAS").await > before).await;
    tokio::time::sleep(ms(1500)).await;
    let asked = u128::from(server.errors("NOREPLICAS").await - before);
    let most = begun.elapsed().as_millis() / 250 + 2;
    assert!(asked <= most, "{asked} times in {:?}", begun.elapsed());
    wants_replicas(&server, 0).await;
    held.release().await.unwrap();
    assert!(soon("its turn", waiter).await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn an_upgrade_that_is_not_replicated_leaves_the_reader() {
    let master = Server::start().await;
    let replica = replica_of(&master).await;
    // Its requests ask for themselves.
    let lock = client(&master, |builder| builder).await.rw_lock("a");
    let reading = soon("a replicated read hold", async {
        loop {
            match lock.read().wait_for_replicas(1, ms(200)).acquire_fair().await {
                Ok(reading) => return reading,
                refused => assert!(is_not_replicated(&refused), "{refused:?}"),
            }
        }
    });
    let reading = reading.await;
    replica.freeze();
    let outcome = reading.upgrade().await;
    assert!(is_not_replicated(&outcome), "{outcome:?}");
    assert_eq!(writer(&master, "a").await, None);
    assert!(reading.is_held());
    reading.release().await.unwrap();
}

#[tokio::test]
async fn an_upgrade_asks_no_replica_if_the_request_of_its_hold_asked_none() {
    let server = Server::start().await;
    let strict = client(&server, |builder| builder.wait_for_replicas(1, ms(20))).await;
    let writing = strict.rw_lock("a").write().wait_for_replicas(0, ms(20));
    let reading = writing.acquire_fair().await.unwrap().downgrade().await.unwrap();
    let writing = reading.upgrade().await.unwrap();
    writing.release().await.unwrap();
    reading.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_for_replicas_can_be_dropped() {
    let (master, replica, lock, asked) = asked_without_replica().await;
    asked.abort();
    until_free(&master, "a").await;
    replica.thaw();
    drop(soon("the next", lock.write().acquire_fair()).await.unwrap());
}

#[tokio::test]
async fn those_who_wait_for_replicas_at_once_share_a_wait() {
    let master = Server::start().await;
    let replica = replica_of(&master).await;
    let client = client(&master, |builder| builder.wait_for_replicas(1, PATIENT)).await;
    replica.freeze();
    let asked = (0..50).map(|i| tokio::spawn(client.rw_lock(format!("lock-{i}")).write().acquire_fair()));
    let asked: Vec<_> = asked.collect();
    until_server_waits(&master).await;
    for i in 0..50 {
        let name = format!("lock-{i}");
        eventually("all are granted", async || writer(&master, &name).await.is_some()).await;
    }
    replica.thaw();
    for guard in soon("the guards", join_all(asked)).await {
        drop(guard.unwrap().unwrap());
    }
    let waits = master.calls("wait").await;
    assert!(waits <= 10, "{waits} of WAIT for 50 grants");
}

/// Polls a future whenever the runtime gets to it. The future then sees a reply before a task that the same reply wakes.
async fn polled_always<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        context.waker().wake_by_ref();
        future.as_mut().poll(context)
    })
    .await
}

/// Whether a command stands behind the WAIT that a server waits for, on the same connection.
async fn stands_behind_a_wait(server: &Server) -> bool {
    let mut list = redis::cmd("CLIENT");
    list.arg("LIST");
    let clients: String = list.query_async(&mut server.redis().await).await.expect("CLIENT LIST");
    let waits = |client: &&str| client.contains(" cmd=wait ");
    clients.lines().filter(waits).any(|client| !client.contains(" qbuf=0 "))
}

/// The server writes the second grant behind the first one's WAIT, so the reply to that WAIT says nothing about it.
#[tokio::test]
async fn an_earlier_answer_says_nothing_about_a_later_grant() {
    let master = Server::start().await;
    let replica = replica_of(&master).await;
    let client = client(&master, |builder| builder.wait_for_replicas(1, PATIENT)).await;
    for round in 1..=3 {
        let acquire = |name: &str| client.rw_lock(format!("{name} {round}")).write().acquire_fair();
        replica.freeze();
        let first = tokio::spawn(acquire("first"));
        until_server_waits(&master).await;
        let second = tokio::spawn(polled_always(acquire("second")));
        eventually("the second stands behind the WAIT", async || {
            stands_behind_a_wait(&master).await
        })
        .await;
        replica.thaw();
        for asked in [first, second] {
            drop(soon("the guard", asked).await.unwrap().unwrap());
        }
        assert_eq!(master.calls("wait").await, 2 * round, "a WAIT for each");
    }
}

/// The link does not watch the silence of the connection on which the server waits: only calls without a reply end it.
#[tokio::test]
async fn a_silent_connection_for_waits_is_replaced() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let strict = Client::builder().lease(LONG).wait_for_replicas(1, ms(20));
    let lock = connected(strict, proxy.url()).await.rw_lock("a");
    let outcome = lock.write().acquire_fair().await;
    assert!(is_not_replicated(&outcome), "{outcome:?}");
    proxy.silence();
    eventually("the server is asked for its replicas again", async || {
        is_not_replicated(&soon("an outcome", lock.write().acquire_fair()).await)
    })
    .await;
}

#[tokio::test]
async fn a_grant_can_wait_for_disks_where_the_server_can() {
    let server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "everysec"]).await;
    let knows = knows_waitaof(&server).await;
    let lock = client(&server, |builder| builder.wait_for_disks(0, PATIENT))
        .await
        .rw_lock("a");
    let outcome = soon("the guard", lock.write().acquire_fair()).await;
    match outcome {
        Ok(guard) if knows => guard.release().await.unwrap(),
        Err(Error::Server { source, .. }) if !knows => assert!(source.to_string().contains("WAITAOF"), "{source}"),
        outcome => panic!("the server knows WAITAOF: {knows}, but: {outcome:?}"),
    }
    let lock = client(&server, |builder| builder.wait_for_disks(1, ms(20)))
        .await
        .rw_lock("a");
    let outcome = lock.write().acquire_fair().await;
    assert!(!knows || is_not_replicated(&outcome), "{outcome:?}");
    assert_eq!(writer(&server, "a").await, None);
}

#[tokio::test]
async fn a_server_that_misses_its_replicas_for_a_while_does_not_end_who_waits() {
    let server = Server::start().await;
    let holder = connected(Client::builder().lease(LONG), server.url())
        .await
        .rw_lock("a");
    let lock = connected(Client::builder().lease(ms(1000)), server.url())
        .await
        .rw_lock("a");
    let guard = holder.write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 1).await;
    wants_replicas(&server, 1).await;
    let rejected = async || {
        let stats = info(&server, "commandstats").await;
        let mut calls = stats
            .lines()
            .filter(|line| line.starts_with("cmdstat_eval") || line.starts_with("cmdstat_fcall:"));
        calls.any(|line| !(line.contains("rejected_calls=0") && line.contains("failed_calls=0")))
    };
    eventually("renewals are refused", rejected).await;
    assert!(!waiter.is_finished());
    wants_replicas(&server, 0).await;
    soon("the release", guard.release()).await.unwrap();
    drop(soon("the hand-over", waiter).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_release_is_sent_again_for_as_long_as_the_server_keeps_the_hold() {
    in_time(async || {
        let server = Server::start().await;
        let builder = Client::builder().lease(ms(200)).lock_delay(LONG);
        let lock = connected(builder, server.url()).await.rw_lock("a");
        let guard = lock.write().acquire_fair().await.unwrap();
        wants_replicas(&server, 1).await;
        drop(guard);
        let begun = View::of(&server, "a").await.now_ms;
        eventually("the lease alone is over", async || {
            View::of(&server, "a").await.now_ms > begun + 1000
        })
        .await;
        wants_replicas(&server, 0).await;
        until_free(&server, "a").await;
    })
    .await;
}

/// Nobody had it, so nobody waits for the end of its least time.
#[tokio::test]
async fn a_withdrawal_does_not_wait_for_a_least_time() {
    let server = Server::start().await;
    let builder = Client::builder().lease(ms(3000)).wait_for_replicas(1, ms(1000));
    let lock = connected(builder, server.url()).await.rw_lock("a");
    let asking = tokio::spawn(lock.write().hold_at_least(Duration::from_secs(3600)).try_acquire());
    eventually("the server waits for a replica", async || {
        asking.is_finished() || info(&server, "clients").await.contains("blocked_clients:1")
    })
    .await;
    wants_replicas(&server, 1).await;
    let refused = soon("the answer", asking).await.unwrap();
    assert!(refused.is_err(), "{refused:?}");
    wants_replicas(&server, 0).await;
    until_free(&server, "a").await;
}

/// A renewal is minutes away, so nobody but the releaser asks again.
#[tokio::test]
async fn a_release_that_the_server_refuses_for_a_while_is_sent_again() {
    let server = Server::start().await;
    let lock = client(&server, |builder| builder).await.rw_lock("a");
    let guard = lock.write().acquire_fair().await.unwrap();
    let errors = info(&server, "errorstats").await;
    wants_replicas(&server, 1).await;
    drop(guard);
    eventually("the release is refused", async || {
        info(&server, "errorstats").await != errors
    })
    .await;
    assert!(writer(&server, "a").await.is_some(), "refused");
    wants_replicas(&server, 0).await;
    until_free(&server, "a").await;
}

#[tokio::test]
async fn a_time_that_cannot_be_is_refused() {
    let server = Server::start().await;
    for timeout in [Duration::ZERO, Duration::MAX] {
        let built = Client::builder()
            .wait_for_replicas(1, timeout)
            .connect(server.url())
            .await;
        assert!(matches!(built, Err(Error::InvalidDuration { .. })), "{built:?}");
        let lock = client(&server, |builder| builder).await.rw_lock("a");
        let asked = lock.read().wait_for_replicas(1, timeout).acquire_fair().await;
        assert!(matches!(asked, Err(Error::InvalidDuration { .. })), "{asked:?}");
    }
}

#[tokio::test]
async fn a_grant_that_is_not_on_the_servers_own_disk_does_not_count_either() {
    let server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "no"]).await;
    if !knows_waitaof(&server).await {
        println!("skipped: the server has no WAITAOF");
        return;
    }
    let lock = client(&server, |builder| builder.wait_for_disks(0, ms(20)))
        .await
        .rw_lock("a");
    let outcome = lock.write().acquire_fair().await;
    let Err(error @ Error::NotReplicated { .. }) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(error.to_string().contains("the server's own disk"), "{error}");
    assert_eq!(writer(&server, "a").await, None);
}
