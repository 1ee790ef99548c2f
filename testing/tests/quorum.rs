//! A lock over three servers.

use fairlock::{Client, Error, Quorum};
use fairlock_testing::Server;
use std::time::Duration;
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn a_fencing_token_makes_no_vote_longer_than_its_max_hold() {
    let (lease, max_hold) = (Duration::from_secs(60), Duration::from_secs(20));
    let servers = [Server::new(), Server::new(), Server::new()];
    let quorum = Quorum::builder("test").longest_lease(lease);
    let quorum = quorum.connect(servers.each_ref().map(Server::endpoint)).await.unwrap();
    let lock = quorum.rw_lock("a");
    let limited = lock.write().lease(lease).max_hold(max_hold);
    let guard = limited.acquire_fair().await.unwrap();
    let begun = Instant::now();
    sleep(Duration::from_secs(19)).await;
    guard.fencing_token().await.unwrap();
    for (server, status) in lock.status().await.unwrap().servers {
        let left = status.unwrap().holders[0].lease_left;
        let until = begun.elapsed() + left;
        // The margin of a lease, for clocks of different rates.
        assert!(until < max_hold + lease / 40, "{server}: {until:?}");
    }
}

async fn quorum_of(servers: &[Server]) -> Result<Quorum, Error> {
    Quorum::builder("test")
        .connect(servers.iter().map(Server::endpoint))
        .await
}

#[tokio::test(start_paused = true)]
async fn a_quorum_has_three_five_seven_or_nine_servers_and_outlives_a_minority() {
    for count in 1..=11 {
        let servers: Vec<_> = (0..count).map(|_| Server::new()).collect();
        let quorum = match quorum_of(&servers).await {
            Ok(quorum) => quorum,
            Err(error) => {
                assert!(matches!(error, Error::InvalidQuorum { .. }), "{error}");
                assert!(![3, 5, 7, 9].contains(&count), "{error}");
                continue;
            }
        };
        assert!([3, 5, 7, 9].contains(&count), "{count} servers");
        let lock = quorum.rw_lock("a");
        let guard = lock.write().acquire_fair().await.unwrap();
        for server in &servers[..count / 2] {
            server.stop();
        }
        sleep(Duration::from_secs(60)).await;
        assert!(guard.is_held(), "{} of {count} are left", count - count / 2);
        guard.release().await.unwrap();
        lock.write().acquire_fair().await.unwrap().release().await.unwrap();
        let guard = lock.write().acquire_fair().await.unwrap();
        servers[count / 2].stop();
        sleep(Duration::from_secs(60)).await;
        assert!(!guard.is_held(), "{} of {count} are left", count / 2);
    }
}

/// Three servers on which a hold stands.
async fn held_by_three() -> ([Server; 3], fairlock::QuorumGuard<fairlock::Write>) {
    let servers = [Server::new(), Server::new(), Server::new()];
    let quorum = quorum_of(&servers).await.unwrap();
    let guard = quorum.rw_lock("a").write().acquire_fair().await.unwrap();
    sleep(Duration::from_millis(100)).await;
    (servers, guard)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_forgotten_its_vote_knows_no_token() {
    let (servers, guard) = held_by_three().await;
    servers[1].freeze();
    servers[2].freeze();
    let token = tokio::spawn(async move { guard.fencing_token().await.map(|token| (token, guard)) });
    sleep(Duration::from_millis(100)).await;
    // The first server has been told. Empty, it is in quarantine, and its new vote counts for nothing.
    servers[0].stop();
    servers[0].flush_all();
    servers[0].start();
    sleep(Duration::from_secs(4)).await;
    servers[1].thaw();
    sleep(Duration::from_secs(1)).await;
    assert!(!token.is_finished(), "one server knows it, and one has forgotten it");
    servers[2].thaw();
    let (_, guard) = token.await.unwrap().unwrap();
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_know_the_vote_knows_no_token() {
    let (servers, guard) = held_by_three().await;
    // Another client has the lock there, so the vote does not come back.
    servers[1].forget("a");
    let other = Client::builder().prefix("fairlock.q").connect(servers[1].endpoint());
    let _theirs = other.await.unwrap().rw_lock("a").write().await.unwrap();
    servers[2].freeze();
    let token = tokio::spawn(async move { guard.fencing_token().await.map(|token| (token, guard)) });
    sleep(Duration::from_secs(1)).await;
    assert!(!token.is_finished(), "the second server has not heard of it");
    servers[2].thaw();
    let (_, guard) = token.await.unwrap().unwrap();
    assert!(guard.is_held());
}
