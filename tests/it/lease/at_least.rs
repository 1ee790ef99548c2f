//! Holds that last for a least time, whatever becomes of their guards and their processes. Tokens tell when the server
//! granted, in microseconds of its clock.

use super::lost_because;
use crate::lateness::in_time;
use crate::observe::{LONG, View, client, keys, ms, until_free};
use crate::server::{Server, connected, eventually, soon};
use fairlock::{Client, Error, FencingToken, LostReason, Owner, WriteGuard};
use futures::future::join_all;
use std::time::Duration;

const LEAST: Duration = Duration::from_secs(2);

async fn now_ms(server: &Server) -> i64 {
    View::of(server, "a").await.now_ms
}

fn at_ms(token: FencingToken) -> i64 {
    token.get() as i64 / 1000
}

/// When the server ends the only hold of the lock.
async fn deadline_ms(server: &Server) -> i64 {
    let view = View::of(server, "a").await;
    assert_eq!(view.holds, 1);
    let waits = |request: &String| view.waiting.contains(request);
    let holds = view.leases.iter().filter(|(request, _)| !waits(request));
    holds.map(|(_, deadline)| *deadline).next().expect("a lease")
}

/// The ways in which a user leaves a hold.
const WAYS: [&str; 3] = ["released", "dropped", "release dropped"];

async fn leave(guard: WriteGuard, way: &str) {
    match way {
        "released" => guard.release().await.unwrap(),
        "dropped" => drop(guard),
        _ => {
            let mut release = Box::pin(guard.release());
            assert!(futures::poll!(&mut release).is_pending());
        }
    }
}

#[tokio::test]
async fn a_hold_that_its_user_leaves_is_handed_over_after_its_least_time() {
    in_time(async || {
        let cases = WAYS.map(async |way| {
            let server = Server::start().await;
            let (mine, other) = (client(server.url(), LONG).await, client(server.url(), LONG).await);
            let begun = now_ms(&server).await;
            let guard = mine
                .rw_lock("a")
                .write()
                .hold_at_least(LEAST)
                .acquire_fair()
                .await
                .unwrap();
            let waiter = tokio::spawn(other.rw_lock("a").write().acquire_fair());
            server.until_queued("a", 1).await;
            leave(guard, way).await;
            // The lease is far longer: the server ends the hold in time, also if this process is gone by then.
            eventually("sealed", async || {
                deadline_ms(&server).await < now_ms(&server).await + 10_000
            })
            .await;
            assert!(deadline_ms(&server).await >= begun + 2000, "{way}");
            let next = soon("the next", waiter).await.unwrap().unwrap();
            assert!(
                at_ms(next.fencing_token()) >= begun + 2000,
                "{way}: it entered too early"
            );
            next.release().await.unwrap();
            until_free(&server, "a").await;
        });
        join_all(cases).await;
    })
    .await;
}

#[tokio::test]
async fn a_hold_that_is_older_is_handed_over_at_once() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let guard = lock.write().hold_at_least(ms(100)).acquire_fair().await.unwrap();
    let begun = now_ms(&server).await;
    eventually("its least time is over", async || now_ms(&server).await > begun + 200).await;
    guard.release().await.unwrap();
    assert!(View::of(&server, "a").await.is_free());
}

/// A process that ends with its runtime, at the moment at which it has left its guard, or while it has it. It begins
/// and ends on a thread of its own.
async fn short_lived(url: String, keeps_its_guard: bool) {
    let life = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let guard = runtime.block_on(async {
            let lock = connected(Client::builder().lease(ms(300)), url).await.rw_lock("a");
            let guard = lock.write().hold_at_least(LEAST).acquire_fair().await.unwrap();
            // Nothing runs between this drop and the end of the runtime.
            keeps_its_guard.then_some(guard)
        });
        drop(runtime);
        drop(guard);
    };
    tokio::task::spawn_blocking(life).await.unwrap();
}

#[tokio::test]
async fn a_process_that_ends_leaves_its_hold_for_the_least_time() {
    in_time(async || {
        for keeps_its_guard in [false, true] {
            let server = Server::start().await;
            let lock = client(server.url(), ms(300)).await.rw_lock("a");
            let begun = now_ms(&server).await;
            short_lived(server.url(), keeps_its_guard).await;
            assert!(
                deadline_ms(&server).await >= begun + 2000,
                "guard kept: {keeps_its_guard}"
            );
            assert!(lock.write().try_acquire().await.unwrap().is_none());
            let next = soon("the next", lock.write().acquire_fair()).await.unwrap();
            assert!(at_ms(next.fencing_token()) >= begun + 2000);
        }
    })
    .await;
}

#[tokio::test]
async fn waiters_get_a_guard_when_the_server_keeps_the_hold_so_long() {
    in_time(async || {
        let server = Server::start().await;
        let mine = client(server.url(), ms(600)).await.rw_lock("a");
        let held = mine.write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(mine.write().hold_at_least(LONG).acquire_fair());
        server.until_queued("a", 1).await;
        let lease = View::of(&server, "a").await.leases;
        let most = lease.iter().map(|(_, deadline)| *deadline).max().unwrap_or_default();
        assert!(
            most < now_ms(&server).await + 10_000,
            "a place in the queue has the lease alone"
        );
        held.release().await.unwrap();
        let begun = now_ms(&server).await;
        let guard = soon("its turn", waiter).await.unwrap().unwrap();
        // By now, and not only after the next renewal; and no renewal takes it back.
        for _ in 0..20 {
            assert!(deadline_ms(&server).await >= begun + 600_000);
            tokio::time::sleep(ms(30)).await;
        }
        assert!(guard.is_held());
    })
    .await;
}

#[tokio::test]
async fn grants_are_at_least_so_far_apart_whoever_crashes() {
    let server = Server::start().await;
    let users = (0..4).map(async |user| {
        let mut tokens = Vec::new();
        for round in 0..4 {
            // Every other of its processes ends without a farewell.
            let url = server.url();
            let life = move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.expect("a runtime");
                runtime.block_on(async {
                    let client = connected(Client::builder().lease(ms(150)), url).await;
                    let asking = client.rw_lock("a").write().hold_at_least(ms(200));
                    let guard = soon("its turn", asking.acquire_fair()).await.unwrap();
                    let token = guard.fencing_token();
                    if (user + round) % 2 == 0 {
                        // Where the machine is late, it was lost, and the server keeps it all the same.
                        let _ = guard.release().await;
                        client.shutdown().await;
                    }
                    token
                })
            };
            tokens.push(tokio::task::spawn_blocking(life).await.unwrap());
        }
        tokens
    });
    let mut tokens: Vec<_> = join_all(users).await.concat();
    tokens.sort();
    for pair in tokens.windows(2) {
        let apart_us = pair[1].get() - pair[0].get();
        assert!(apart_us >= 200_000, "{apart_us} us apart");
    }
}

#[tokio::test]
async fn a_shutdown_leaves_holds_to_the_server_for_their_least_time() {
    in_time(async || {
        let server = Server::start().await;
        let mine = client(server.url(), LONG).await;
        let begun = now_ms(&server).await;
        let lock = mine.rw_lock("a");
        let guard = lock.write().hold_at_least(LEAST).acquire_fair().await.unwrap();
        let left = mine
            .rw_lock("b")
            .write()
            .hold_at_least(LONG)
            .acquire_fair()
            .await
            .unwrap();
        left.release().await.unwrap();
        soon("the shutdown", mine.shutdown()).await;
        assert_eq!(guard.lost().await, LostReason::Shutdown);
        let deadline = deadline_ms(&server).await;
        assert!(
            (begun + 2000..begun + 300_000).contains(&deadline),
            "{} ms",
            deadline - begun
        );
        assert_eq!(View::of(&server, "b").await.holds, 1, "it was left before");
        let next = client(server.url(), ms(500)).await.rw_lock("a");
        let next = soon("the next", next.write().acquire_fair()).await.unwrap();
        assert!(at_ms(next.fencing_token()) >= begun + 2000);
    })
    .await;
}

#[tokio::test]
async fn a_downgrade_keeps_the_least_time() {
    in_time(async || {
        let server = Server::start().await;
        let (mine, other) = (client(server.url(), LONG).await, client(server.url(), LONG).await);
        let begun = now_ms(&server).await;
        let writing = mine
            .rw_lock("a")
            .write()
            .hold_at_least(LEAST)
            .acquire_fair()
            .await
            .unwrap();
        let reading = writing.downgrade().await.unwrap();
        reading.release().await.unwrap();
        let beside = other.rw_lock("a").read().try_acquire().await.unwrap();
        beside.expect("it is held to read").release().await.unwrap();
        assert!(other.rw_lock("a").write().try_acquire().await.unwrap().is_none());
        let next = soon("the next", other.rw_lock("a").write().acquire_fair())
            .await
            .unwrap();
        assert!(at_ms(next.fencing_token()) >= begun + 2000);
    })
    .await;
}

#[tokio::test]
async fn an_owner_reenters_a_hold_that_it_has_left_and_others_wait() {
    let server = Server::start().await;
    let (mine, other) = (client(server.url(), LONG).await, client(server.url(), LONG).await);
    let mine = mine.rw_lock("a").with_owner(&Owner::new());
    for way in WAYS {
        let guard = mine.write().hold_at_least(LONG).acquire_fair().await.unwrap();
        let token = guard.fencing_token();
        leave(guard, way).await;
        let again = soon("it reenters", mine.write().acquire_fair()).await.unwrap();
        assert_eq!(again.fencing_token(), token, "{way}");
        assert!(other.rw_lock("a").write().try_acquire().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn an_eviction_ends_the_least_time() {
    let server = Server::start().await;
    let (mine, other) = (client(server.url(), LONG).await, client(server.url(), LONG).await);
    let guard = mine
        .rw_lock("a")
        .write()
        .hold_at_least(LONG)
        .acquire_fair()
        .await
        .unwrap();
    let owner = guard.owner();
    guard.release().await.unwrap();
    let waiter = tokio::spawn(other.rw_lock("a").write().acquire_fair());
    server.until_queued("a", 1).await;
    assert_eq!(other.rw_lock("a").evict(&owner).await.unwrap(), 1);
    let _next = soon("the next", waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_release_says_whether_the_server_keeps_the_hold() {
    let server = Server::start().await;
    let mine = client(server.url(), LONG).await;
    let guard = mine
        .rw_lock("a")
        .write()
        .hold_at_least(LONG)
        .acquire_fair()
        .await
        .unwrap();
    let _: () = redis::cmd("DEL")
        .arg(&keys("a"))
        .query_async(&mut server.redis().await)
        .await
        .unwrap();
    let released = soon("an answer", guard.release()).await;
    assert_eq!(lost_because(&released), Some(LostReason::UnknownToServer));
}

#[tokio::test]
async fn the_replica_that_was_waited_for_knows_the_least_time() {
    let master = Server::start().await;
    let mine = client(master.url(), ms(10_000)).await;
    // In two words: Redis 6.2 takes no quoted pair.
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &master.port().to_string()]).await;
    eventually("the replica is in step", async || {
        let asking = mine.rw_lock("probe").write().wait_for_replicas(1, ms(1000));
        asking.try_acquire().await.is_ok()
    })
    .await;
    let begun = now_ms(&master).await;
    let asking = mine.rw_lock("a").write().hold_at_least(LONG);
    let guard = soon("a guard", asking.wait_for_replicas(1, LONG).acquire_fair())
        .await
        .unwrap();
    assert!(deadline_ms(&replica).await >= begun + 600_000);
    drop(guard);
}

#[tokio::test]
async fn a_least_time_beyond_max_hold_or_a_year_is_refused() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let beyond = lock
        .write()
        .max_hold(ms(100))
        .hold_at_least(ms(101))
        .acquire_fair()
        .await;
    assert!(
        matches!(
            beyond,
            Err(Error::InvalidDuration {
                what: "hold_at_least",
                ..
            })
        ),
        "{beyond:?}"
    );
    let beyond = lock.write().hold_at_least(Duration::MAX).try_acquire().await;
    assert!(matches!(beyond, Err(Error::InvalidDuration { .. })), "{beyond:?}");
    let equal = lock
        .write()
        .max_hold(ms(100))
        .hold_at_least(ms(100))
        .acquire_fair()
        .await
        .unwrap();
    equal.release().await.unwrap();
    let year = lock.read().lease(Duration::from_secs(365 * 24 * 3600));
    let year = year
        .hold_at_least(Duration::from_secs(365 * 24 * 3600))
        .lock_delay(Duration::from_secs(365 * 24 * 3600));
    let _year = soon("a year", year.acquire_fair()).await.unwrap();
}

#[tokio::test]
async fn a_semaphore_with_a_least_time_is_a_rate_limit() {
    let server = Server::start().await;
    let mine = client(server.url(), LONG).await;
    let entering = (0..8).map(async |_| {
        let permits = mine.semaphore("a", 2).permits(1).hold_at_least(ms(200));
        let permit = soon("its turn", permits.acquire_fair()).await.unwrap();
        let entered = std::time::Instant::now();
        drop(permit);
        entered
    });
    let mut entered = join_all(entering).await;
    entered.sort();
    for three in entered.windows(3) {
        let within = three[2] - three[0];
        assert!(within >= ms(200), "three entered within {within:?}");
    }
}
