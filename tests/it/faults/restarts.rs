//! A server that comes back, with its data or without.

use super::{Line, Setting, lost};
use crate::lateness::{in_time, promise};
use crate::observe::{LONG, View, client, keys, ms, until_free};
use crate::server::Server;
use fairlock::{Error, LostReason};
use futures::future::join_all;

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
        local token, at = ARGV[2], ARGV[1]
        local s = struct.pack('<BBBI4I4I4dddddd', 2, 0, 1, 0, 1, 0, token, token, token, at, at + 60000, 4000)
        redis.call('HSET', KEYS[1], 's', s .. 'wf:1', 'policy', 2, 'seq', 0)";
        let [state, ..] = keys("a");
        let deadline = View::of(&s.server, "a").await.now_ms + 4000;
        let script = redis::Script::new(script);
        let mut call = script.key(state);
        call.arg(deadline).arg(held.fencing_token().get());
        let _: () = call.invoke_async(&mut s.server.redis().await).await.unwrap();
        assert_eq!(lost(&held).await, LostReason::UnknownToServer);
        let (order, tokens) = line.through().await;
        assert_eq!(order, Vec::from_iter(0..10));
        promise(tokens.iter().all(|token| *token > held.fencing_token()), "tokens grow");
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
        let grow = tokens.iter().all(|token| *token > held.fencing_token());
        promise(grow, format_args!("tokens grow: {name}"));
        until_free(&server, &name).await;
    });
    join_all(cases).await;
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
