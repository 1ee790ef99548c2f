//! A machine that was suspended: the leases at the server have run on, and tokio's clock has stood still.

use crate::once;
use fairlock::{Client, Error, LostReason, Quorum, WriteGuard};
use fairlock_testing::{Server, suspend};
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const LEASE: Duration = Duration::from_secs(600);

async fn hold(server: &Server) -> WriteGuard {
    let client = server.client().await.unwrap();
    client.rw_lock("a").write().lease(LEASE).acquire_fair().await.unwrap()
}

async fn quorum(servers: &[Server; 3]) -> Quorum {
    let quorum = Quorum::builder("test").longest_lease(LEASE);
    quorum.connect(servers.each_ref().map(Server::endpoint)).await.unwrap()
}

/// The release of a lock that all servers have granted, which freeze before it.
async fn release_at_frozen(servers: &[Server; 3]) -> impl Future<Output = Result<(), Error>> + use<> {
    let lock = quorum(servers).await.rw_lock("a");
    let guard = lock.write().lease(LEASE).acquire_fair().await.unwrap();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(guard.votes(), 3);
    servers.iter().for_each(Server::freeze);
    guard.release()
}

async fn is_not_confirmed_after_the_lease(servers: &[Server; 3], release: impl Future<Output = Result<(), Error>>) {
    suspend(LEASE);
    for server in servers {
        server.expire("a");
        server.thaw();
    }
    let late = release.await;
    assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_guard_believes_nothing_after_a_suspend_that_is_longer_than_its_lease() {
    let server = Server::new();
    let guard = hold(&server).await;
    suspend(LEASE);
    server.expire("a");
    assert!(!guard.is_held(), "at once, before any timer ends");
    assert_eq!(guard.lost().await, LostReason::LeaseExpired);
}

#[tokio::test(start_paused = true)]
async fn a_release_after_a_suspend_says_that_the_hold_was_lost() {
    let server = Server::new();
    let guard = hold(&server).await;
    suspend(LEASE);
    let lost = guard.release().await.expect_err("others may have been inside");
    let reason = LostReason::LeaseExpired;
    assert!(
        matches!(lost, Error::Lost { reason: why, .. } if why == reason),
        "{lost}"
    );
}

/// The user had left in time. Whether the hold ended by its lease or was lost before, nobody knows.
#[tokio::test(start_paused = true)]
async fn a_release_that_reached_its_server_after_the_lease_is_not_confirmed() {
    let server = Server::new();
    let guard = hold(&server).await;
    server.freeze();
    let mut release = pin!(guard.release());
    assert!(once(&mut release).await.is_pending());
    suspend(LEASE);
    server.expire("a");
    server.thaw();
    let late = release.await;
    assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
}

/// The same at a majority.
#[tokio::test(start_paused = true)]
async fn a_release_that_reached_all_servers_of_a_quorum_after_the_lease_is_not_confirmed() {
    let servers = [Server::new(), Server::new(), Server::new()];
    let mut release = pin!(release_at_frozen(&servers).await);
    assert!(once(&mut release).await.is_pending());
    is_not_confirmed_after_the_lease(&servers, release).await;
}

/// The servers that hear of it again say "unknown". Before the end of the lease that means that they executed what was sent
/// first.
#[tokio::test(start_paused = true)]
async fn a_release_that_a_quorum_did_not_answer_is_not_sent_again_after_the_lease() {
    let servers = [Server::new(), Server::new(), Server::new()];
    let mut release = pin!(release_at_frozen(&servers).await);
    assert!(once(&mut release).await.is_pending());
    servers.iter().for_each(Server::disconnect);
    // The calls fail, and the release pauses before it sends them again.
    sleep(Duration::from_millis(1)).await;
    assert!(once(&mut release).await.is_pending());
    is_not_confirmed_after_the_lease(&servers, release).await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_loss_hears_of_it_within_seconds_though_all_timers_stood_still() {
    let server = Server::new();
    let guard = hold(&server).await;
    let mut lost = pin!(guard.lost());
    assert!(once(&mut lost).await.is_pending());
    // The watchdog has looked, and sleeps.
    sleep(Duration::from_millis(10)).await;
    let begun = Instant::now();
    suspend(LEASE);
    assert_eq!(lost.await, LostReason::LeaseExpired);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_hold_outlives_a_suspend_that_is_shorter_than_its_proof() {
    let server = Server::new();
    let guard = hold(&server).await;
    suspend(LEASE / 2);
    assert!(guard.is_held());
    sleep(LEASE * 2).await;
    assert!(guard.is_held(), "it was renewed");
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_was_asked_for_before_a_suspend_is_proven_anew() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let lock = client.rw_lock("a");
    let mut acquire = pin!(lock.write().lease(LEASE).acquire_fair());
    assert!(once(&mut acquire).await.is_pending());
    // The reply is there, and the watchdog has looked.
    sleep(Duration::from_millis(10)).await;
    suspend(LEASE);
    let guard = acquire.await.unwrap();
    assert!(guard.is_held(), "by a call that was sent after the suspend");
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_guard_of_a_quorum_believes_nothing_after_a_suspend_and_tells_who_waits_for_the_loss() {
    let servers = [Server::new(), Server::new(), Server::new()];
    let quorum = quorum(&servers).await;
    let hold = || async { quorum.rw_lock("a").write().lease(LEASE).acquire_fair().await.unwrap() };
    let guard = hold().await;
    let begun = Instant::now();
    let mut lost = pin!(guard.lost());
    assert!(once(&mut lost).await.is_pending());
    suspend(LEASE);
    assert_eq!(lost.await, LostReason::LeaseExpired);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let guard = hold().await;
    suspend(LEASE);
    assert!(!guard.is_held(), "at once, before any timer ends");
    let guard = hold().await;
    suspend(LEASE);
    guard.release().await.expect_err("others may have been inside");
}

#[tokio::test(start_paused = true)]
async fn a_hold_of_a_quorum_that_ended_before_its_future_was_polled_again_is_no_guard() {
    let servers = [Server::new(), Server::new(), Server::new()];
    let quorum = quorum(&servers).await;
    let lock = quorum.rw_lock("a");
    let held = lock.write().lease(LEASE).acquire_fair().await.unwrap();
    let mut next = pin!(lock.write().lease(LEASE).acquire_fair());
    assert!(once(&mut next).await.is_pending());
    sleep(Duration::from_millis(10)).await;
    held.release().await.unwrap();
    // The hold has begun, and nobody polls the future for longer than a lease.
    sleep(Duration::from_millis(10)).await;
    suspend(LEASE);
    let ended = next.await;
    assert!(
        matches!(
            &ended,
            Err(Error::Lost {
                reason: LostReason::LeaseExpired,
                ..
            })
        ),
        "{ended:?}"
    );
}

/// A server that is new may have forgotten holds of others. What the clock found later must not shorten its quarantine.
#[tokio::test(start_paused = true)]
async fn a_quarantine_that_is_noted_after_a_suspend_lasts_as_long_as_any_other() {
    let servers = [Server::new(), Server::new(), Server::new()];
    suspend(LEASE);
    let quorum = quorum(&servers).await;
    let begun = Instant::now();
    let guard = quorum.rw_lock("a").write().lease(LEASE).acquire_fair().await.unwrap();
    assert!(
        begun.elapsed() > LEASE - Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_first_acquire_of_a_quorum_after_a_long_suspend_waits_for_its_answers() {
    let servers = [Server::new(), Server::new(), Server::new()];
    let quorum = quorum(&servers).await;
    for when in ["fair", "within", "now"] {
        suspend(LEASE * 2);
        let request = quorum.rw_lock(when).write().lease(LEASE);
        let acquired = match when {
            "fair" => request.acquire_fair().await.map(Some),
            "within" => request.try_acquire_for(LEASE).await,
            _ => request.try_acquire().await,
        };
        let acquired = acquired.unwrap_or_else(|error| panic!("{when}: {error}, though all servers are up"));
        assert!(acquired.is_some(), "{when}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_time_limit_does_not_count_a_suspend_before_it() {
    let server = Server::new();
    let guard = hold(&server).await;
    for together in [false, true] {
        // A client that waits for nothing does not look at the clock.
        let client = server.client().await.unwrap();
        sleep(Duration::from_secs(1)).await;
        suspend(LEASE / 4);
        let (free, lock) = (client.rw_lock("0"), client.rw_lock("a"));
        let (begun, limit) = (Instant::now(), LEASE / 8);
        let is_granted = match together {
            false => lock.write().try_acquire_for(limit).await.unwrap().is_some(),
            true => client
                .all()
                .write(&free)
                .write(&lock)
                .try_acquire_for(limit)
                .await
                .unwrap()
                .is_some(),
        };
        assert!(
            !is_granted && begun.elapsed() >= limit,
            "{together}: {:?}",
            begun.elapsed()
        );
    }
    guard.release().await.unwrap();
}

/// A hold that was lost in the suspend keeps its lock delay, though nobody has looked at the clock before its end.
async fn keeps_its_lock_delay(end: impl AsyncFnOnce(Client, WriteGuard)) {
    let server = Server::new();
    let delayed = Client::builder().lease(LEASE).lock_delay(LEASE);
    let client = delayed.connect(server.endpoint()).await.unwrap();
    let guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
    suspend(LEASE);
    let begun = Instant::now();
    end(client, guard).await;
    let next = hold(&server).await;
    assert!(begun.elapsed() > LEASE / 2, "{:?}", begun.elapsed());
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_dropped_right_after_a_suspend_keeps_its_lock_delay() {
    keeps_its_lock_delay(async |_, guard| drop(guard)).await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_right_after_a_suspend_keeps_the_lock_delay() {
    keeps_its_lock_delay(async |client, _guard| client.shutdown().await).await;
}
