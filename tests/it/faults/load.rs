//! More calls than a connection carries at once: bursts, slow lines, renewals and releases that would pile up.

use crate::lateness::in_time;
use crate::observe::{LONG, client};
use crate::proxy::Proxy;
use crate::server::{Server, eventually, soon};
use crate::users::write;
use fairlock::Client;
use futures::future::join_all;
use futures::stream;
use futures::stream::StreamExt;
use std::time::Duration;
use tokio::task::JoinHandle;

#[tokio::test]
async fn a_burst_of_requests_does_not_cost_a_healthy_connection() {
    // A server that gets no CPU for a second looks dead.
    in_time(async || {
        let server = Server::start().await;
        let _held = write(&client(server.url(), Duration::from_secs(60)).await.rw_lock("a")).await;
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
        server.keys().await.iter().all(|key| !key.ends_with(":q"))
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
