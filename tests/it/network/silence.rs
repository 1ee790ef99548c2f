//! Silences: nothing passes, and no connection is closed. One that ends a quarter of a lease before what holds is proven
//! costs no hold, however TCP has spread its retransmissions by then.
//!
//! A run counts only if its silences were as long as planned: the test measures them by its own clock.

use crate::lateness::in_time;
use crate::observe::{LONG, keys, ms};
use crate::proxy::Proxy;
use crate::server::{Server, connected, eventually, soon};
use fairlock::{Client, WriteGuard};
use fairlock_support::packed::Packed;
use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use std::time::{Duration, Instant};
use tokio::time::sleep_until;

/// To end a silence takes some time: what does it may be another process.
const TO_END: Duration = Duration::from_millis(40);

/// Locks that are held.
const HOLDS: usize = 10;

fn name(nth: usize) -> String {
    format!("hold {nth}")
}

async fn hold(client: &Client) -> Vec<WriteGuard> {
    let guards = (0..HOLDS).map(|nth| client.rw_lock(name(nth)).write().acquire_fair());
    let guards = soon("the holds", join_all(guards)).await;
    guards.into_iter().map(|guard| guard.expect("a free lock")).collect()
}

/// How much of its lease each hold has left at least, in the server. It does not know of a hold that was lost.
async fn left(redis: &mut MultiplexedConnection) -> Duration {
    let mut ask = redis::pipe();
    ask.cmd("TIME");
    for nth in 0..HOLDS {
        ask.cmd("HGET").arg(&keys(&name(nth))[0]).arg("s");
    }
    let mut replies: Vec<redis::Value> = ask.query_async(redis).await.expect("the locks");
    let deadlines: Vec<u64> = replies
        .split_off(1)
        .into_iter()
        .filter_map(|field| redis::from_redis_value::<Vec<u8>>(field).ok())
        .filter_map(|field| Packed::read(&field).filter(|state| state.sole))
        .map(|state| state.near)
        .collect();
    let (seconds, us): (u64, u64) = redis::from_redis_value(replies.remove(0)).expect("the time");
    let now_ms = seconds * 1000 + us / 1000;
    let left = deadlines.iter().map(|deadline| deadline.saturating_sub(now_ms));
    ms(left.min().filter(|_| deadlines.len() == HOLDS).unwrap_or(0))
}

enum Outcome {
    /// So many holds were lost.
    Counts(usize),
    /// The machine was busy: the silence was longer than planned.
    TooLong(Duration),
}

/// Waits until all holds have been renewed several times, and just now. Once is not enough: a renewal from before the last
/// silence may come late, by a connection that was given up, and moves a deadline of which the client knows nothing.
async fn just_renewed(lease: Duration, guards: &[WriteGuard], redis: &mut MultiplexedConnection) {
    let (begun, mut renewals, mut before) = (Instant::now(), 0, Duration::MAX);
    while renewals < 4 && guards.iter().all(WriteGuard::is_held) {
        assert!(begun.elapsed() < lease * 30, "the holds are not renewed any more");
        let left = left(redis).await;
        renewals += usize::from(left > before);
        before = left;
        tokio::time::sleep(ms(2)).await;
    }
}

/// Silences of all lengths that are promised, each begun just after all holds were renewed.
async fn silences(
    lease: Duration,
    guards: &[WriteGuard],
    redis: &mut MultiplexedConnection,
    mut silent: impl FnMut(bool),
) -> Outcome {
    for parts in [20, 40, 60, 73] {
        just_renewed(lease, guards, redis).await;
        // By a silence that was as long as planned.
        let lost = lost(guards);
        if lost > 0 {
            return Outcome::Counts(lost);
        }
        // Proven is at least this much less than what the server keeps: a fiftieth, and the way there.
        let left = left(redis).await.saturating_sub(lease / 50 + ms(5));
        let latest = Instant::now() + left.saturating_sub(lease / 4);
        let planned = (Instant::now() + lease * parts / 100).min(latest - TO_END);
        silent(true);
        sleep_until(planned.into()).await;
        silent(false);
        let late = Instant::now().saturating_duration_since(latest);
        if late > ms(2) {
            return Outcome::TooLong(late);
        }
    }
    // Whoever is not held by then knows it.
    let begun = Instant::now();
    while left(redis).await < lease / 2 && begun.elapsed() < lease * 3 {
        tokio::time::sleep(ms(5)).await;
    }
    Outcome::Counts(lost(guards))
}

fn lost(guards: &[WriteGuard]) -> usize {
    guards.iter().filter(|guard| !guard.is_held()).count()
}

/// Runs that do not count are made again.
async fn none_is_lost(lease: Duration, run: impl AsyncFn() -> Outcome) {
    // A client that is starved of CPU after a silence is as deaf as during it.
    in_time(async || none_is_lost_at_once(lease, &run).await).await;
}

async fn none_is_lost_at_once(lease: Duration, run: &impl AsyncFn() -> Outcome) {
    for attempt in 1..=30 {
        match run().await {
            Outcome::Counts(lost) => {
                assert_eq!(lost, 0, "of {HOLDS} holds with leases of {lease:?}");
                return;
            }
            Outcome::TooLong(late) => println!("attempt {attempt}: a silence ended {late:?} too late; once more"),
        }
    }
    panic!("thirty runs, and in none were the silences as long as planned");
}

async fn swallowed_bytes_cost_no_hold(lease: Duration) {
    none_is_lost(lease, async || {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let far = connected(Client::builder().lease(lease), proxy.url()).await;
        let guards = hold(&far).await;
        let mut redis = server.redis().await;
        silences(lease, &guards, &mut redis, |silent| proxy.swallow(silent)).await
    })
    .await;
}

#[tokio::test]
async fn swallowed_bytes_cost_no_hold_with_a_lease_of_a_second() {
    swallowed_bytes_cost_no_hold(ms(1_000)).await;
}

#[tokio::test]
async fn swallowed_bytes_cost_no_hold_with_a_lease_of_three_seconds() {
    swallowed_bytes_cost_no_hold(ms(3_000)).await;
}

/// The client has nothing else to send, so no second call fails.
#[tokio::test]
async fn one_call_without_a_reply_replaces_a_silent_connection() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let far = connected(Client::builder().lease(LONG), proxy.url()).await;
    let lock = far.rw_lock("a");
    let before = proxy.connections();
    // The client makes the command connection first, then the subscription.
    proxy.silence_first(1);
    let unanswered = lock.exists().await;
    assert!(unanswered.is_err(), "{unanswered:?}");
    eventually("a connection beside it", async || proxy.connections() > before).await;
    eventually("a reply over it", async || lock.exists().await.is_ok()).await;
}

/// The connections that a client makes to a server that is silent are bounded, and it goes back to having two.
#[tokio::test]
async fn a_long_silence_costs_a_bounded_number_of_connections() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let far = connected(Client::builder().lease(ms(1_000)), proxy.url()).await;
    let guards = hold(&far).await;
    let before = proxy.connections();
    proxy.swallow(true);
    let begun = Instant::now();
    eventually("all are lost", async || guards.iter().all(|guard| !guard.is_held())).await;
    tokio::time::sleep_until((begun + ms(4_000)).into()).await;
    let (made, took) = (proxy.connections() - before, begun.elapsed());
    proxy.swallow(false);
    // At twelve a second, the most that half of a limit allows, and those of the subscription.
    let most = took.as_millis() as usize * 12 / 1000 + 12;
    assert!(made <= most, "{made} connections in {took:?}");
    assert!(made >= 4, "only {made} connections in {took:?}");
    drop(guards);
    let again = soon("a lock", far.rw_lock("again").write().acquire_fair())
        .await
        .unwrap();
    soon("its release", again.release()).await.unwrap();
    eventually("two connections are left", async || server.connections().await <= 2).await;
}

#[cfg(target_os = "linux")]
mod dropped {
    use super::*;
    use crate::server::program;
    use fairlock_support::cable::Cable;

    async fn dropped_packets_cost_no_hold(lease: Duration) {
        if let Err(why) = Cable::lay() {
            return println!("skipped: {why}");
        }
        none_is_lost(lease, async || {
            let mut cable = Cable::lay().expect("as before");
            let server = cable.server(&program()).await;
            let far = connected(Client::builder().lease(lease), cable.url(&server)).await;
            let guards = hold(&far).await;
            // The server's socket needs no network.
            let socket = format!("redis+unix://{}", server.socket().display());
            let near = redis::Client::open(socket).expect("a valid URL");
            let config = crate::server::patient();
            let near = near.get_multiplexed_async_connection_with_config(&config);
            let mut near = near.await.expect("the server answers");
            silences(lease, &guards, &mut near, |silent| {
                cable.forward(!silent).expect("the router obeys");
            })
            .await
        })
        .await;
    }

    #[tokio::test]
    async fn dropped_packets_cost_no_hold_with_a_lease_of_a_second() {
        dropped_packets_cost_no_hold(ms(1_000)).await;
    }

    #[tokio::test]
    async fn dropped_packets_cost_no_hold_with_a_lease_of_three_seconds() {
        dropped_packets_cost_no_hold(ms(3_000)).await;
    }
}
