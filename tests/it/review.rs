//! What a review of the client found.

use crate::observe::LONG;
use crate::proxy::Proxy;
use crate::server::{Server, connected, eventually, in_time, soon};
use fairlock::{Client, Owner};
use futures::future::join_all;
use futures::stream::{self, StreamExt};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

async fn client(url: String, lease: Duration) -> Client {
    connected(Client::builder().lease(lease), url).await
}

#[tokio::test]
async fn a_hold_survives_an_outage_that_ends_before_its_lease() {
    in_time(async || {
        let lease = Duration::from_secs(6);
        let server = Server::start().await;
        let guard = client(server.url(), lease)
            .await
            .rw_lock("a")
            .write()
            .acquire_fair()
            .await
            .unwrap();
        // From here on: a renewal that is sent less than its time limit before the thaw is answered.
        let begun = Instant::now();
        let until = |ms| tokio::time::sleep_until((begun + Duration::from_millis(ms)).into());
        // It is renewed at 2 s: that fails, and so does the next time, at 4 s. The lease goes on until 6 s.
        until(1500).await;
        server.freeze();
        until(5300).await;
        server.thaw();
        let lost = tokio::time::timeout(Duration::from_secs(3), guard.lost()).await;
        assert!(lost.is_err(), "lost: {lost:?}");
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_hold_survives_refusals_that_end_before_its_lease() {
    in_time(async || {
        let server = Server::start().await;
        let mut redis = server.redis().await;
        let client = client(server.url(), Duration::from_secs(6)).await;
        let guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
        let begun = Instant::now();
        let until = |ms| tokio::time::sleep_until((begun + Duration::from_millis(ms)).into());
        // No connection is lost, and none is made again. The renewals of 2 s and of 4 s fail.
        until(1500).await;
        let mut rules = async |rules: &[&str]| {
            let mut command = redis::cmd("ACL");
            command.arg("SETUSER").arg("default").arg(rules);
            command.exec_async(&mut redis).await.unwrap();
        };
        rules(&["-evalsha", "-eval"]).await;
        until(5000).await;
        rules(&["+evalsha", "+eval"]).await;
        let lost = tokio::time::timeout(Duration::from_secs(3), guard.lost()).await;
        assert!(lost.is_err(), "lost: {lost:?}");
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_owner_asks_again_as_soon_as_its_release_is_answered() {
    in_time(async || {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let lock = client(proxy.url(), Duration::from_secs(10)).await.rw_lock("a");
        let mine = lock.with_owner(&Owner::new());
        let guard = mine.write().acquire_fair().await.unwrap();
        proxy.delay_replies(Duration::from_millis(50));
        let begun = Instant::now();
        let (released, again) = tokio::join!(guard.release(), mine.write().acquire_fair());
        released.unwrap();
        assert!(again.unwrap().is_held());
        // Two replies; a call's time limit is a second.
        assert!(begun.elapsed() < Duration::from_millis(900), "{:?}", begun.elapsed());
    })
    .await;
}

#[tokio::test]
async fn shutdown_releases_over_a_new_connection_when_the_old_one_broke() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let leaving = client(proxy.url(), Duration::from_secs(3600)).await;
    let _held = leaving.rw_lock("a").write().acquire_fair().await.unwrap();
    let other = client(server.url(), Duration::from_secs(10)).await.rw_lock("a");
    proxy.cut();
    leaving.shutdown().await;
    eventually("the lock is free", async || {
        other.write().try_acquire().await.unwrap().is_some()
    })
    .await;
}

#[tokio::test]
async fn a_burst_of_requests_does_not_cost_a_healthy_connection() {
    // A server that gets no CPU for a second looks dead.
    in_time(async || {
        let server = Server::start().await;
        let _held = client(server.url(), Duration::from_secs(60))
            .await
            .rw_lock("a")
            .write()
            .acquire_fair()
            .await
            .unwrap();
        // A call's time limit is a second: less than all of them take together.
        let builder = Client::builder().lease(LONG).label("burst");
        let client = builder.connect(server.url()).await.unwrap();
        let before = connections(&server).await;
        let lock = client.rw_lock("a");
        let burst: Vec<_> = (0..20_000).map(|_| tokio::spawn(lock.read().acquire_fair())).collect();
        server.until_queued("a", burst.len()).await;
        assert_eq!(connections(&server).await, before);
        assert!(!burst.iter().any(JoinHandle::is_finished));
    })
    .await;
}

#[tokio::test]
async fn users_calls_are_sent_512_at_a_time() {
    const AT_ONCE: usize = 512;
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let near = client(server.url(), LONG).await.rw_lock("a");
    let _held = near.write().acquire_fair().await.unwrap();
    let lock = client(proxy.url(), LONG).await.rw_lock("a");
    // The first call of a script carries its text, so the link sends it, and those that come meanwhile.
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    let connections = proxy.connections();
    // No call is answered any more, and no connection is made again.
    proxy.delay_replies(LONG);
    let burst: Vec<_> = (0..4 * AT_ONCE)
        .map(|_| tokio::spawn(lock.write().acquire_fair()))
        .collect();
    eventually("the calls are given up", async || proxy.connections() > connections + 1).await;
    // The first call that is given up makes room for another before the next one costs the connection.
    let sent = server.queued("a").await;
    assert!((AT_ONCE..AT_ONCE + 8).contains(&sent), "{sent}");
    drop(burst);
}

#[tokio::test]
async fn a_line_that_moves_slower_than_time_limits_does_not_cost_the_connection() {
    const ASKED: usize = 60;
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let near = client(server.url(), LONG).await.rw_lock("a");
    let held = near.write().acquire_fair().await.unwrap();
    // A call's time limit is a second; the replies take two.
    let lock = client(proxy.url(), LONG).await.rw_lock("a");
    let connections = proxy.connections();
    // 64 bytes, a reply or two, every 40 ms.
    proxy.throttle_replies(1_600);
    let asks = (0..ASKED).map(|_| lock.read().acquire_fair());
    let asks = tokio::spawn(join_all(asks));
    server.until_queued("a", ASKED).await;
    held.release().await.unwrap();
    let readers = soon("all of them", asks).await.unwrap();
    assert!(readers.iter().all(Result::is_ok));
    assert_eq!(proxy.connections(), connections, "a connection was made again");
}

/// The server's numbers of the connections with the label "burst".
async fn connections(server: &Server) -> Vec<String> {
    let mut redis = server.redis().await;
    let text: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut redis).await.unwrap();
    let ours = text.lines().filter(|line| line.contains(" name=burst "));
    let mut ids: Vec<_> = ours
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect();
    // The server lists them in an order that changes.
    ids.sort();
    ids
}

#[tokio::test]
async fn renewals_do_not_pile_up_during_an_outage() {
    const LOCKS: usize = 300;
    let server = Server::start().await;
    let holder = client(server.url(), LONG).await;
    let waiting = client(server.url(), Duration::from_secs(2)).await;
    let asks = stream::iter(0..LOCKS).map(|i| holder.rw_lock(i.to_string()).write().acquire_fair());
    let held: Vec<_> = asks.buffer_unordered(64).collect().await;
    let lock = |i: usize| waiting.rw_lock(i.to_string());
    let waiters: Vec<_> = (0..LOCKS)
        .map(|i| tokio::spawn(lock(i).write().acquire_fair()))
        .collect();
    eventually("all wait", async || server.keys().await.len() == 3 * LOCKS).await;
    let before = server.script_calls().await;
    server.freeze();
    tokio::time::sleep(Duration::from_secs(10)).await;
    waiters.iter().for_each(|waiter| waiter.abort());
    server.thaw();
    eventually("nobody waits", async || {
        server.keys().await.iter().all(|key| !key.ends_with(":queue"))
    })
    .await;
    eventually("nothing is renewed any more", async || {
        let calls = server.script_calls().await;
        tokio::time::sleep(Duration::from_millis(1000)).await;
        server.script_calls().await == calls
    })
    .await;
    // Each is renewed once more and released; fifteen renewals were due.
    let calls = server.script_calls().await - before;
    println!("{calls} calls for {LOCKS} waiters");
    assert!(calls < 4 * LOCKS as u64, "{calls} calls for {LOCKS} waiters");
    drop(held);
}

#[tokio::test]
async fn a_lock_that_the_server_refuses_holds_up_no_other_release() {
    in_time(async || {
        let server = Server::start().await;
        let client = client(server.url(), LONG).await;
        let mut set = redis::cmd("SET");
        let set = set.arg("fairlock:{odd}").arg("somebody else's");
        let (): () = set.query_async(&mut server.redis().await).await.unwrap();
        let odd = client.rw_lock("odd");
        // More than may be released at a time: each release is refused, and tried for a lease.
        for _ in 0..100 {
            assert!(odd.write().acquire_fair().await.is_err());
        }
        let lock = client.rw_lock("a");
        drop(lock.write().acquire_fair().await.unwrap());
        let next = soon("the next", lock.write().acquire_fair()).await.unwrap();
        next.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_shutdown_with_many_locks_of_a_server_that_hangs_does_not_wait_for_each() {
    in_time(async || {
        let server = Server::start().await;
        let client = client(server.url(), LONG).await;
        // Their releases, 64 at a time and each with its time limit, would take minutes.
        let locks: Vec<_> = (0..10_000).map(|n| client.rw_lock(n.to_string())).collect();
        let guards = join_all(locks.iter().map(|lock| lock.write().acquire_fair())).await;
        server.freeze();
        soon("the shutdown", client.shutdown()).await;
        server.thaw();
        drop(guards);
    })
    .await;
}
