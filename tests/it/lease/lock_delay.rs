//! How long nobody enters after a holder has lost the lock. Tokens tell when the server granted, in microseconds of its
//! clock.

use crate::lateness::in_time;
use crate::observe::{LONG, View, client, ms};
use crate::proxy::Proxy;
use crate::server::{Server, connected, soon};
use fairlock::{Client, Error, LostReason};

const DELAY_MS: i64 = 1500;
const DELAY: std::time::Duration = std::time::Duration::from_millis(DELAY_MS as u64);

#[tokio::test]
async fn a_holder_that_is_cut_off_loses_the_lock_the_delay_before_others_enter() {
    in_time(async || {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let builder = Client::builder().lease(ms(500)).lock_delay(DELAY);
        let far = connected(builder, proxy.url()).await.rw_lock("a");
        let guard = far.write().acquire_fair().await.unwrap();
        let near = client(server.url(), ms(500)).await.rw_lock("a");
        let waiter = tokio::spawn(near.write().acquire_fair());
        server.until_queued("a", 1).await;
        proxy.stall(true);
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::LeaseExpired);
        let lost_ms = View::of(&server, "a").await.now_ms;
        let next = soon("the next", waiter).await.unwrap().unwrap();
        let entered_ms = next.fencing_token().get() as i64 / 1000;
        // The margin is for the clocks, and the rest for the way to this thread.
        assert!(entered_ms + 40 >= lost_ms + DELAY_MS, "{} ms", entered_ms - lost_ms);
    })
    .await;
}

#[tokio::test]
async fn what_max_hold_ends_keeps_others_out_for_the_delay_though_its_guard_is_dropped() {
    for dropped in [false, true] {
        let server = Server::start().await;
        let lock = client(server.url(), LONG).await.rw_lock("a");
        let begun = View::of(&server, "a").await.now_ms;
        let asking = lock.write().max_hold(ms(300)).lock_delay(DELAY);
        let guard = asking.acquire_fair().await.unwrap();
        let waiter = tokio::spawn(lock.write().acquire_fair());
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::MaxHold);
        let guard = (!dropped).then_some(guard);
        let next = soon("the next", waiter).await.unwrap().unwrap();
        let entered = next.fencing_token().get() as i64 / 1000;
        assert!(
            entered >= begun + 300 + DELAY_MS,
            "{} ms, dropped: {dropped}",
            entered - begun
        );
        drop(guard);
    }
}

#[tokio::test]
async fn what_max_hold_ends_unnoticed_keeps_others_out_for_the_delay_though_its_guard_is_dropped() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let begun = View::of(&server, "a").await.now_ms;
    let guard = lock
        .write()
        .max_hold(ms(300))
        .lock_delay(DELAY)
        .acquire_fair()
        .await
        .unwrap();
    // No task of the client runs meanwhile.
    std::thread::sleep(ms(310));
    drop(guard);
    let next = soon("the next", lock.write().acquire_fair()).await.unwrap();
    let entered = next.fencing_token().get() as i64 / 1000;
    assert!(entered >= begun + 300 + DELAY_MS, "{} ms", entered - begun);
}

#[tokio::test]
async fn release_drop_eviction_and_shutdown_do_not_wait() {
    for way in ["release", "drop", "evict", "shutdown"] {
        let server = Server::start().await;
        let mine = connected(Client::builder().lease(LONG).lock_delay(LONG), server.url()).await;
        let other = client(server.url(), LONG).await.rw_lock("a");
        let guard = mine.rw_lock("a").write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(other.write().acquire_fair());
        server.until_queued("a", 1).await;
        match way {
            "release" => guard.release().await.unwrap(),
            "drop" => drop(guard),
            "evict" => _ = other.evict(&guard.owner()).await.unwrap(),
            _ => mine.shutdown().await,
        }
        let _next = soon(way, waiter).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn waiters_and_their_grants_have_the_delay_too() {
    in_time(async || {
        let server = Server::start().await;
        let mine = connected(Client::builder().lease(ms(500)).lock_delay(LONG), server.url()).await;
        let held = mine.rw_lock("a").write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(mine.rw_lock("a").read().acquire_fair());
        server.until_queued("a", 1).await;
        let kept = async || {
            let view = View::of(&server, "a").await;
            view.leases
                .iter()
                .all(|(_, deadline)| *deadline > view.now_ms + 500_000)
        };
        assert!(kept().await);
        let downgraded = held.downgrade().await.unwrap();
        let reading = soon("its turn", waiter).await.unwrap().unwrap();
        // Over several renewals.
        for _ in 0..20 {
            assert!(kept().await);
            tokio::time::sleep(ms(30)).await;
        }
        assert!(downgraded.is_held() && reading.is_held());
    })
    .await;
}

#[tokio::test]
async fn a_quarantine_lasts_longer_by_the_delay() {
    let server = Server::start().await;
    let begun = View::of(&server, "a").await.now_ms;
    let builder = Client::builder().lease(ms(200)).quarantine(ms(200)).lock_delay(DELAY);
    let lock = connected(builder, server.url()).await.rw_lock("a");
    let guard = soon("the end of the quarantine", lock.write().acquire_fair())
        .await
        .unwrap();
    let entered = guard.fencing_token().get() as i64 / 1000;
    assert!(entered >= begun + 200 + DELAY_MS, "{} ms", entered - begun);
}

#[tokio::test]
async fn a_delay_of_more_than_a_year_is_refused() {
    let server = Server::start().await;
    let refused = Client::builder().lock_delay(LONG * 100_000).connect(server.url()).await;
    assert!(
        matches!(refused, Err(Error::InvalidDuration { what: "lock_delay", .. })),
        "{refused:?}"
    );
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let refused = lock.write().lock_delay(LONG * 100_000).acquire_fair().await;
    assert!(matches!(refused, Err(Error::InvalidDuration { .. })), "{refused:?}");
}
