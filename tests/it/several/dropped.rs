//! Requests for several locks that are dropped on their way, and their guards.

use super::Setting;
use crate::lock::cancellation::{MOMENTS, drop_at, setting};
use crate::observe::{LONG, until_free};
use crate::server::soon;
use fairlock::Client;
use futures::future::{BoxFuture, FutureExt, join_all};

const WAYS: [&str; 4] = ["fair", "try", "within", "release"];

/// Asks for three locks, of which the first is free. What it got is dropped, or released.
fn ask(way: &str, client: &Client, name: &str) -> BoxFuture<'static, ()> {
    let locks = ["a", "b", "c"].map(|part| client.rw_lock(format!("{name} {part}")));
    let all = client.all().write(&locks[2]).read(&locks[1]).write(&locks[0]);
    match way {
        "fair" => all.acquire_fair().map(drop).boxed(),
        "try" => all.try_acquire().map(drop).boxed(),
        "within" => all.try_acquire_for(LONG).map(drop).boxed(),
        "release" => async move {
            if let Ok(all) = all.acquire_fair().await {
                let _ = all.release().await;
            }
        }
        .boxed(),
        _ => unreachable!("no such way: {way}"),
    }
}

#[tokio::test]
async fn a_call_for_several_locks_dropped_at_any_await_point_leaves_nothing() {
    let s = setting().await;
    let cases = WAYS.iter().flat_map(|way| MOMENTS.map(|moment| (*way, moment)));
    // All are free, or the second is busy, so that the request waits with one hold.
    let cases = cases.flat_map(|case| [false, true].map(|busy| (case, busy)));
    let cases = cases.map(async |((way, moment), busy)| {
        let name = format!("{way} {moment:?} {busy}");
        let second = s.near.rw_lock(format!("{name} b"));
        let held = match busy {
            true => Some(second.write().acquire_fair().await.unwrap()),
            false => None,
        };
        drop_at(moment, ask(way, &s.far, &name)).await;
        drop(held);
        for part in ["a", "b", "c"] {
            until_free(&s.server, &format!("{name} {part}")).await;
        }
    });
    join_all(cases).await;
}

#[tokio::test]
async fn a_dropped_guard_lets_in_who_waits_for_any_of_its_locks() {
    let s = Setting::new().await;
    let [a, b, c] = &s.mine;
    let all = s.client.all().write(a).write(b).write(c).acquire_fair().await.unwrap();
    let waiting = s.others.clone().map(|lock| tokio::spawn(lock.write().acquire_fair()));
    for lock in &s.others {
        s.server.until_queued(lock.name(), 1).await;
    }
    drop(all);
    for next in waiting {
        let _next = soon("the next", next).await.unwrap().unwrap();
    }
}
