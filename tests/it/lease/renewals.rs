//! What renewals do to deadlines.

use super::{after_renewals, lost_because};
use crate::lateness::in_time;
use crate::observe::{LONG, View, client, ms, until_free};
use crate::proxy::Proxy;
use crate::server::{Server, eventually, soon};
use fairlock::{Error, LostReason, Owner};
use fairlock_support::random;
use futures::future::join_all;
use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

#[tokio::test]
async fn waiters_behind_a_hold_of_several_leases_all_enter_in_order() {
    in_time(async || {
        let server = Server::start().await;
        let clients = [
            client(server.url(), ms(1000)).await,
            client(server.url(), ms(1500)).await,
        ];
        let held = clients[0].rw_lock("a").write().acquire_fair().await.unwrap();
        let mut waiters = Vec::new();
        for i in 0..6 {
            waiters.push(tokio::spawn(clients[i % 2].rw_lock("a").write().acquire_fair()));
            server.until_queued("a", i + 1).await;
        }
        let order = View::of(&server, "a").await.waiting;
        tokio::time::sleep(ms(4000)).await;
        assert_eq!(View::of(&server, "a").await.waiting, order);
        held.release().await.unwrap();
        for waiter in waiters {
            let guard = soon("its turn", waiter).await.unwrap().unwrap();
            assert!(guard.is_held());
            guard.release().await.unwrap();
        }
        until_free(&server, "a").await;
    })
    .await;
}

#[tokio::test]
async fn deadlines_stay_within_a_lease_though_waiters_come_and_go() {
    let server = Server::start().await;
    let client = client(server.url(), ms(60_000)).await;
    let lock = client.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    let mut random = random::seeded();
    for _ in 0..20 {
        let calls: Vec<_> = (0..20)
            .map(|_| (200 + random.u64(..20_000), random.u64(..20)))
            .collect();
        let calls = calls.into_iter().map(async |(lease_ms, wait_ms)| {
            let waiting = lock.write().lease(ms(lease_ms)).try_acquire_for(ms(1 + wait_ms));
            // Too short for an answer at times: that is another test's affair.
            let _ = waiting.await;
        });
        let sampling = async {
            let view = View::of(&server, "a").await;
            for (request, deadline) in &view.leases {
                let longest = if view.waiting.contains(request) { 20_200 } else { 60_000 };
                assert!(*deadline <= view.now_ms + longest, "{request} {deadline}: {view:?}");
            }
        };
        tokio::join!(join_all(calls), sampling);
    }
    held.release().await.unwrap();
    until_free(&server, "a").await;
}

#[tokio::test]
async fn a_hold_keeps_half_its_lease_while_its_owner_comes_and_goes() {
    in_time(async || {
        let server = Server::start().await;
        let client = client(server.url(), ms(6000)).await;
        let mine = client.rw_lock("a").with_owner(&Owner::new());
        let outer = mine.write().acquire_fair().await.unwrap();
        let name = View::of(&server, "a").await.leases[0].0.clone();
        let begun = Instant::now();
        while begun.elapsed() < ms(6500) {
            let (a, b) = tokio::try_join!(mine.write().acquire_fair(), mine.read().acquire_fair()).unwrap();
            a.release().await.unwrap();
            drop(b);
            let view = View::of(&server, "a").await;
            let outers = view.leases.iter().find(|(request, _)| *request == name);
            let left = outers.expect("it holds").1 - view.now_ms;
            assert!(left >= 3000, "{left} ms left");
            tokio::time::sleep(ms(2)).await;
        }
        outer.release().await.unwrap();
        until_free(&server, "a").await;
    })
    .await;
}

#[tokio::test]
async fn as_many_releases_as_acquires_leave_nothing_to_renew() {
    let server = Server::start().await;
    let client = client(server.url(), ms(3000)).await;
    let mut guards = (Vec::new(), Vec::new());
    for i in 0..20 {
        let mine = client.rw_lock(format!("lock {i}")).with_owner(&Owner::new());
        guards.1.push(mine.write().acquire_fair().await.unwrap());
        for _ in 0..3 {
            guards.0.push(mine.read().acquire_fair().await.unwrap());
        }
        guards.1.push(mine.write().acquire_fair().await.unwrap());
    }
    after_renewals(&server, 40).await;
    for guard in guards.0 {
        guard.release().await.unwrap();
    }
    for guard in guards.1 {
        guard.release().await.unwrap();
    }
    let before = server.script_calls().await;
    tokio::time::sleep(ms(1500)).await;
    assert_eq!(server.script_calls().await, before);
}

#[tokio::test]
async fn a_renewal_that_arrives_after_the_lease_makes_no_hold() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (far, near) = (client(proxy.url(), ms(1000)).await, client(server.url(), LONG).await);
    let held = far.rw_lock("a").write().acquire_fair().await.unwrap();
    proxy.stall(true);
    let second = soon("the lease ends", near.rw_lock("a").write().acquire_fair()).await;
    let second = second.unwrap();
    assert!(!held.is_held());
    // A script's first call over a connection carries its text.
    let calls = async || server.script_calls().await;
    let before = calls().await;
    proxy.stall(false);
    eventually("late commands are executed", async || calls().await > before).await;
    // The answer to this comes after those to all late commands.
    eventually("an answer", async || {
        match far.rw_lock("a").write().try_acquire().await {
            Ok(guard) => {
                assert!(guard.is_none());
                true
            }
            Err(error) => {
                assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
                false
            }
        }
    })
    .await;
    assert_eq!(View::of(&server, "a").await.holds, 1);
    second.release().await.unwrap();
    until_free(&server, "a").await;
    assert_eq!(lost_because(&held.release().await), Some(LostReason::LeaseExpired));
}

#[tokio::test]
async fn no_command_carries_a_clients_clock() {
    let server = Server::start().await;
    let mut monitor = tokio::net::TcpStream::connect(("127.0.0.1", server.port()))
        .await
        .unwrap();
    monitor.write_all(b"MONITOR\r\n").await.unwrap();
    let mut lines = BufReader::new(monitor).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("+OK"));

    let client = client(server.url(), ms(3000)).await;
    let held = client
        .rw_lock("a")
        .write()
        .max_hold(ms(60_000))
        .acquire_fair()
        .await
        .unwrap();
    let waiter = tokio::spawn(client.rw_lock("a").read().acquire_fair());
    server.until_queued("a", 1).await;
    after_renewals(&server, 2).await;
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    let _: () = redis::cmd("ECHO")
        .arg("the end")
        .query_async(&mut server.redis().await)
        .await
        .unwrap();

    let mut scripts = BTreeSet::new();
    while let Some(line) = soon("a line", lines.next_line()).await.unwrap() {
        if line.contains("\"ECHO\"") {
            break;
        }
        let words: Vec<_> = line.split('"').skip(1).step_by(2).collect();
        if !matches!(words.first(), Some(&("FCALL" | "EVALSHA"))) || line.contains(" lua] ") {
            continue;
        }
        scripts.insert(words[1].to_owned());
        // A request has its client's id in it, whose sixteen hexadecimal digits may look like a number.
        for word in words[2..].iter().filter(|word| !word.starts_with(['r', 'w'])) {
            // Seconds since 1970 have ten digits, and finer clocks more.
            let mut numbers = word.split(|c: char| !c.is_ascii_digit());
            assert!(numbers.all(|digits| digits.len() < 10), "{line}");
        }
    }
    assert_eq!(scripts.len(), 3, "acquire, renew and release were seen: {scripts:?}");
}

#[tokio::test]
async fn a_hold_whose_reply_lay_unread_for_most_of_its_lease_is_renewed_in_time() {
    in_time(async || {
        let server = Server::start().await;
        let lock = client(server.url(), ms(3000)).await.rw_lock("a");
        let mut acquire = pin!(lock.write().acquire_fair());
        let asks = poll_fn(|cx| Poll::Ready(acquire.as_mut().poll(cx).is_pending())).await;
        assert!(asks, "the reply is on its way");
        tokio::time::sleep(ms(2400)).await;
        let guard = acquire.await.unwrap();
        tokio::time::sleep(ms(3000)).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
    })
    .await;
}
