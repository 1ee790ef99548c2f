//! Calls whose replies are lost or late, and calls that are executed after their own cancel.

use super::{Line, Setting};
use crate::lateness::in_time;
use crate::observe::{LONG, View, client, keys, ms, until_free};
use crate::proxy::Proxy;
use crate::server::{Server, eventually, soon};
use crate::users::passes;
use fairlock::Owner;
use std::time::Instant;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

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
    passes("it enters", waiter).await;
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

/// The server has no functions, so the first call that needs a script's text stands in line.
#[tokio::test]
async fn a_release_in_line_whose_reply_is_lost_is_confirmed_too() {
    let server = Server::start().await;
    server.refuse_functions().await;
    let proxy = Proxy::to(server.port()).await;
    let far = client(proxy.url(), LONG).await;
    let guard = far.rw_lock("a").write().acquire_fair().await.unwrap();
    proxy.lose_replies(1);
    guard.release().await.unwrap();
    assert_eq!(proxy.replies_to_lose(), 0, "it was lost");
    until_free(&server, "a").await;
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
            if ["FCALL", "EVALSHA"].contains(&words[0].as_str()) && words.contains(&state) {
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
    passes("the next enters", next).await;
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
