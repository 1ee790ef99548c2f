//! Futures that are dropped: nothing of them stays, and whoever comes next is not kept waiting.
//!
//! Leases are long here: who enters soon did not wait for one to run out.

use crate::faults::Setting;
use crate::observe::{LONG, View, client, ms, until_free};
use crate::proxy::Proxy;
use crate::server::{Server, eventually, soon};
use fairlock::{Error, Owner, RwLock, WriteGuard};
use fairlock_support::random;
use futures::future::{BoxFuture, FutureExt, join_all};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use tokio::task::JoinHandle;

/// When a future is dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moment {
    /// Right after so many polls.
    After(usize),
    /// When it would be polled once more: what woke it stays unseen.
    Woken(usize),
}

pub(crate) const MOMENTS: [Moment; 9] = [
    Moment::After(0),
    Moment::After(1),
    Moment::After(2),
    Moment::After(3),
    Moment::After(4),
    Moment::Woken(1),
    Moment::Woken(2),
    Moment::Woken(3),
    Moment::Woken(4),
];

/// Drives a future up to the moment, then drops it, and its output if there was time for one. It has a task of its
/// own: it is polled when it was woken, and not when something else was.
pub(crate) async fn drop_at<F: Future + Send + 'static>(moment: Moment, future: F) {
    let stepping = async move {
        let mut future = pin!(future);
        let mut polls = 0;
        poll_fn(|cx| {
            let (Moment::After(n) | Moment::Woken(n)) = moment;
            if polls >= n {
                return Poll::Ready(());
            }
            polls += 1;
            match future.as_mut().poll(cx) {
                Poll::Pending if polls == n && matches!(moment, Moment::After(_)) => Poll::Ready(()),
                Poll::Pending => Poll::Pending,
                Poll::Ready(_) => Poll::Ready(()),
            }
        })
        .await;
    };
    // One that is parked for good is dropped where it is.
    let stepping = tokio::spawn(tokio::time::timeout(ms(400), stepping));
    let _ = stepping.await.unwrap();
}

const WAYS: [&str; 6] = ["write", "read", "try write", "try read", "write within", "read within"];

/// A call that asks for the lock; what it got is dropped.
fn ask(way: &str, lock: &RwLock) -> BoxFuture<'static, ()> {
    let within = LONG;
    match way {
        "write" => lock.write().acquire_fair().map(drop).boxed(),
        "read" => lock.read().acquire_fair().map(drop).boxed(),
        "try write" => lock.write().try_acquire().map(drop).boxed(),
        "try read" => lock.read().try_acquire().map(drop).boxed(),
        "write within" => lock.write().try_acquire_for(within).map(drop).boxed(),
        "read within" => lock.read().try_acquire_for(within).map(drop).boxed(),
        _ => unreachable!("no such way: {way}"),
    }
}

fn wait(lock: &RwLock) -> JoinHandle<Result<WriteGuard, Error>> {
    tokio::spawn(lock.write().acquire_fair())
}

async fn enters(waiter: JoinHandle<Result<WriteGuard, Error>>) -> WriteGuard {
    soon("the next waiter enters", waiter).await.unwrap().unwrap()
}

/// A client far away, whose replies come late, and one near.
pub(crate) async fn setting() -> Setting {
    let setting = Setting::new(600_000).await;
    setting.proxy.delay_replies(ms(30));
    setting
}

#[tokio::test]
async fn a_call_dropped_at_any_await_point_of_a_held_lock_leaves_the_queue() {
    let s = setting().await;
    let cases = WAYS.iter().flat_map(|way| MOMENTS.map(|moment| (*way, moment)));
    let cases = cases.map(async |(way, moment)| {
        let name = format!("{way} {moment:?}");
        let held = s.near.rw_lock(&*name).write().acquire_fair().await.unwrap();
        drop_at(moment, ask(way, &s.far.rw_lock(&*name))).await;
        let next = wait(&s.near.rw_lock(&*name));
        eventually(&name, async || {
            let view = View::of(&s.server, &name).await;
            view.waiting.len() == 1 && view.leases.len() == 2
        })
        .await;
        held.release().await.unwrap();
        enters(next).await.release().await.unwrap();
        until_free(&s.server, &name).await;
    });
    join_all(cases).await;
}

#[tokio::test]
async fn a_call_dropped_at_any_await_point_of_a_free_lock_gives_it_back() {
    let s = setting().await;
    let cases = WAYS.iter().flat_map(|way| MOMENTS.map(|moment| (*way, moment)));
    let cases = cases.map(async |(way, moment)| {
        let name = format!("{way} {moment:?}");
        drop_at(moment, ask(way, &s.far.rw_lock(&*name))).await;
        let next = wait(&s.near.rw_lock(&*name));
        enters(next).await.release().await.unwrap();
        until_free(&s.server, &name).await;
    });
    join_all(cases).await;
}

#[tokio::test]
async fn a_call_dropped_after_any_time_leaves_nothing() {
    let s = setting().await;
    let mut random = random::seeded();
    let cases: Vec<_> = (0..100)
        .map(|i| (i, WAYS[random.usize(..6)], random.u64(..100), random.u64(..60)))
        .collect();
    let cases = cases.into_iter().map(async |(i, way, drop_ms, release_ms)| {
        let name = format!("{i}: {way} dropped after {drop_ms} ms, released after {release_ms} ms");
        let held = s.near.rw_lock(&*name).write().acquire_fair().await.unwrap();
        let lock = s.far.rw_lock(&*name);
        let (_, ()) = tokio::join!(tokio::time::timeout(ms(drop_ms), ask(way, &lock)), async {
            tokio::time::sleep(ms(release_ms)).await;
            held.release().await.unwrap();
        });
        enters(wait(&s.near.rw_lock(&*name))).await.release().await.unwrap();
        until_free(&s.server, &name).await;
    });
    join_all(cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_races_with_a_drop_is_passed_on() {
    let server = Server::start().await;
    let (a, b) = (client(server.url(), LONG).await, client(server.url(), LONG).await);
    let mut random = random::seeded();
    for i in 0..300 {
        let held = a.rw_lock("a").write().acquire_fair().await.unwrap();
        // A guard that it gets before the abort is dropped too.
        let dropped = tokio::spawn(ask("write", &b.rw_lock("a")));
        server.until_queued("a", 1).await;
        let third = wait(&a.rw_lock("a"));
        server.until_queued("a", 2).await;
        let (before, after) = (random.u64(..40), random.u64(..40));
        let release = tokio::spawn(async move {
            for _ in 0..before {
                tokio::task::yield_now().await;
            }
            drop(held);
        });
        for _ in 0..after * 10 {
            tokio::task::yield_now().await;
        }
        dropped.abort();
        release.await.unwrap();
        let third = enters(third).await;
        assert!(third.is_held(), "round {i}");
        third.release().await.unwrap();
        until_free(&server, "a").await;
    }
}

#[tokio::test]
async fn cancelling_a_queued_writer_lets_the_reader_behind_it_join_the_reader_inside() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let inside = lock.read().acquire_fair().await.unwrap();
    let writer = wait(&lock);
    server.until_queued("a", 1).await;
    let reader = tokio::spawn(lock.read().acquire_fair());
    server.until_queued("a", 2).await;
    writer.abort();
    let joined = soon("the reader enters", reader).await.unwrap().unwrap();
    assert!(inside.is_held() && joined.is_held());
    assert_eq!(View::of(&server, "a").await.holds, 2);
}

#[tokio::test]
async fn a_release_dropped_at_any_await_point_still_releases_once() {
    let s = setting().await;
    let cases = MOMENTS.map(async |moment| {
        let name = format!("{moment:?}");
        let held = s.far.rw_lock(&*name).write().acquire_fair().await.unwrap();
        let token = held.fencing_token();
        let next = wait(&s.near.rw_lock(&*name));
        s.server.until_queued(&name, 1).await;
        drop_at(moment, held.release()).await;
        let next = enters(next).await;
        assert!(next.fencing_token() > token);
        // Behind it in the same connection: whatever was sent a second time has been executed by then.
        assert!(
            s.far.rw_lock(&*name).read().try_acquire().await.unwrap().is_none(),
            "{name}"
        );
        let view = View::of(&s.server, &name).await;
        assert_eq!(
            (view.mode.as_str(), view.holds, view.leases.len()),
            ("write", 1, 1),
            "{name}"
        );
        next.release().await.unwrap();
        until_free(&s.server, &name).await;
    });
    join_all(cases).await;
}

#[tokio::test]
async fn a_release_of_an_inner_hold_dropped_at_any_await_point_leaves_the_outer_one() {
    let s = setting().await;
    let cases = MOMENTS.map(async |moment| {
        let name = format!("{moment:?}");
        let mine = s.far.rw_lock(&*name).with_owner(&Owner::new());
        let outer = mine.write().acquire_fair().await.unwrap();
        let inner = mine.write().acquire_fair().await.unwrap();
        drop_at(moment, inner.release()).await;
        eventually(&name, async || View::of(&s.server, &name).await.holds == 1).await;
        assert!(
            s.far.rw_lock(&*name).read().try_acquire().await.unwrap().is_none(),
            "{name}"
        );
        assert_eq!(View::of(&s.server, &name).await.holds, 1, "{name}");
        outer.release().await.unwrap();
        until_free(&s.server, &name).await;
    });
    join_all(cases).await;
}

#[tokio::test]
async fn what_was_dropped_before_its_late_reply_is_not_renewed() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let far = client(proxy.url(), ms(900)).await;
    proxy.delay_replies(ms(30));
    let mut random = random::seeded();
    let drops: Vec<_> = (0..60).map(|i| (i % 20, random.u64(..90))).collect();
    let drops = drops.into_iter().map(async |(lock, drop_ms)| {
        let lock = far.rw_lock(format!("lock {lock}"));
        let _ = tokio::time::timeout(ms(drop_ms), lock.write().acquire_fair()).await;
    });
    join_all(drops).await;
    for lock in 0..20 {
        until_free(&server, &format!("lock {lock}")).await;
    }
    eventually("the releases are answered", async || {
        let before = server.script_calls().await;
        tokio::time::sleep(ms(700)).await;
        server.script_calls().await == before
    })
    .await;
}

#[tokio::test]
async fn a_wait_with_a_limit_ends_with_none_and_leaves_no_trace() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    let begun = std::time::Instant::now();
    let (write, read) = tokio::join!(
        lock.write().try_acquire_for(ms(200)),
        lock.read().try_acquire_for(ms(300))
    );
    assert!(begun.elapsed() >= ms(300));
    assert!(write.unwrap().is_none() && read.unwrap().is_none());
    eventually("only the holder is left", async || {
        let view = View::of(&server, "a").await;
        view.waiting.is_empty() && view.leases.len() == 1
    })
    .await;
    held.release().await.unwrap();
    until_free(&server, "a").await;
    assert!(lock.write().try_acquire_for(ms(5000)).await.unwrap().is_some());
}

#[tokio::test]
async fn a_cancelled_head_middle_and_tail_leave_the_order_of_the_others() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    let mut waiters = Vec::new();
    for i in 1..=7 {
        waiters.push(wait(&lock));
        server.until_queued("a", i).await;
    }
    let order = View::of(&server, "a").await.waiting;
    for cancelled in [0, 3, 6] {
        waiters[cancelled].abort();
    }
    let left = [1, 2, 4, 5].map(|i: usize| order[i].clone());
    eventually("the others wait", async || View::of(&server, "a").await.waiting == left).await;
    held.release().await.unwrap();
    for i in [1, 2, 4, 5] {
        enters(std::mem::replace(
            &mut waiters[i],
            tokio::spawn(async { panic!("taken") }),
        ))
        .await
        .release()
        .await
        .unwrap();
    }
    until_free(&server, "a").await;
}

#[tokio::test]
async fn a_thousand_waiters_dropped_at_once_leave_an_empty_queue() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let held = lock.write().acquire_fair().await.unwrap();
    let waiters: Vec<_> = (0..1000).map(|_| wait(&lock)).collect();
    server.until_queued("a", 1000).await;
    waiters.iter().for_each(JoinHandle::abort);
    server.until_queued("a", 0).await;
    assert_eq!(View::of(&server, "a").await.leases.len(), 1);
    held.release().await.unwrap();
    until_free(&server, "a").await;
}

#[tokio::test]
async fn a_server_out_of_reach_is_an_error_and_not_a_no() {
    let s = Setting::new(600_000).await;
    s.proxy.stall(true);
    let within = s.far.rw_lock("a").write().try_acquire_for(ms(2500)).await;
    assert!(matches!(within, Err(Error::Unavailable { .. })), "{within:?}");
    let now = s.far.rw_lock("a").write().try_acquire().await;
    assert!(matches!(now, Err(Error::Unavailable { .. })), "{now:?}");
}

#[tokio::test]
async fn a_server_out_of_reach_for_a_short_limit_is_an_error_too() {
    let s = Setting::new(600_000).await;
    s.proxy.stall(true);
    let within = s.far.rw_lock("a").write().try_acquire_for(ms(300)).await;
    assert!(matches!(within, Err(Error::Unavailable { .. })), "{within:?}");
}
