//! Leases, limits of holds, and time limits.

use super::{assert_helpful, client};
use crate::lateness::in_time;
use crate::server::{Server, eventually, soon};
use fairlock::{Client, Error};
use std::time::Duration;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

const NS: Duration = Duration::from_nanos(1);

#[tokio::test]
async fn a_lease_outside_of_100_ms_to_a_year_is_refused_at_the_client_and_at_the_request() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("the lock");
    for lease in [
        Duration::ZERO,
        NS,
        Duration::from_millis(99),
        Duration::from_millis(100) - NS,
        YEAR + NS,
        Duration::MAX,
    ] {
        let connected = Client::builder().lease(lease).connect(server.url()).await;
        let error = connected.err().unwrap_or_else(|| panic!("{lease:?} at the client"));
        assert!(
            matches!(error, Error::InvalidDuration { given, .. } if given == lease),
            "{error}"
        );
        assert_helpful(&error, "lease", "between 100ms and 31536000s");
        let error = lock.write().lease(lease).acquire_fair().await.unwrap_err();
        assert!(
            matches!(error, Error::InvalidDuration { given, .. } if given == lease),
            "{error}"
        );
        assert_helpful(&error, "the lock", "between 100ms and 31536000s");
        assert!(matches!(
            lock.read().lease(lease).try_acquire().await,
            Err(Error::InvalidDuration { .. })
        ));
    }
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn the_shortest_and_the_longest_lease_work() {
    in_time(async || {
        let server = Server::start().await;
        for lease in [
            Duration::from_millis(100),
            Duration::from_millis(100) + NS,
            YEAR - NS,
            YEAR,
        ] {
            let client = Client::builder().lease(lease).connect(server.url()).await.unwrap();
            let lock = client.rw_lock("a");
            let guard = lock.write().acquire_fair().await.unwrap();
            assert!(lock.read().lease(lease).try_acquire().await.unwrap().is_none());
            // With 100 ms a stalled machine may lose it; that is an answer too.
            assert!(
                matches!(guard.release().await, Ok(()) | Err(Error::Lost { .. })),
                "{lease:?}"
            );
            drop(
                soon("the next", lock.write().lease(lease).acquire_fair())
                    .await
                    .unwrap(),
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_max_hold_below_1_ms_is_refused_and_any_other_ends_the_hold_in_time() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("the lock");
    for max_hold in [Duration::ZERO, NS, Duration::from_millis(1) - NS] {
        let error = lock.write().max_hold(max_hold).acquire_fair().await.unwrap_err();
        assert!(
            matches!(error, Error::InvalidDuration { what: "max_hold", .. }),
            "{error}"
        );
        assert_helpful(&error, "the lock", "at least 1ms");
    }
    for max_hold in [
        Duration::from_millis(1),
        Duration::from_millis(99),
        Duration::from_millis(400),
    ] {
        let guard = lock.write().max_hold(max_hold).acquire_fair().await.unwrap();
        soon("its end", guard.lost()).await;
        assert!(!guard.is_held());
        // Others enter although the guard is still there.
        let next = soon("the next", lock.write().acquire_fair()).await.unwrap();
        assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
        next.release().await.unwrap();
    }
    for max_hold in [YEAR, YEAR + NS, Duration::MAX] {
        let guard = lock.write().max_hold(max_hold).acquire_fair().await.unwrap();
        assert!(guard.is_held(), "{max_hold:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_try_takes_any_time_limit() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    for limit in [
        Duration::ZERO,
        Duration::from_millis(500),
        YEAR,
        YEAR + NS,
        Duration::MAX,
    ] {
        let guard = soon("a free lock", lock.write().try_acquire_for(limit)).await.unwrap();
        guard.unwrap_or_else(|| panic!("{limit:?}")).release().await.unwrap();
    }
    let held = lock.write().acquire_fair().await.unwrap();
    for limit in [Duration::ZERO, NS, Duration::from_millis(1), Duration::from_millis(99)] {
        let none = soon("the end of the time", lock.write().try_acquire_for(limit)).await;
        // Within a nanosecond the server may not even answer: that is an error and not a "no".
        assert!(
            matches!(none, Ok(None) | Err(Error::Unavailable { .. })),
            "{limit:?}: {none:?}"
        );
    }
    let waiter = tokio::spawn(lock.write().try_acquire_for(Duration::MAX));
    server.until_queued("a", 1).await;
    held.release().await.unwrap();
    assert!(soon("without limit", waiter).await.unwrap().unwrap().is_some());
    eventually("nobody waits", async || server.queued("a").await == 0).await;
}

#[tokio::test]
async fn a_refused_default_lease_does_not_speak_of_a_lock_without_a_name() {
    let server = Server::start().await;
    let refused = Client::builder().lease(Duration::ZERO).connect(server.url()).await;
    let text = refused.unwrap_err().to_string();
    assert!(!text.contains("lock \"\""), "{text}");
}
