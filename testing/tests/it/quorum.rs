//! A lock over three servers.

use fairlock::{Client, Error, Quorum};
use fairlock_testing::Server;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

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
    for server in lock.status().await.unwrap().servers {
        let (server, left) = (server.address, server.status.unwrap().holders[0].lease_left);
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

#[tokio::test(start_paused = true)]
async fn a_call_for_the_token_proves_the_hold_from_its_sending() {
    let (servers, guard) = held_by_three().await;
    let begun = Instant::now();
    servers.iter().for_each(Server::freeze);
    let token = tokio::spawn(async move { guard.fencing_token().await.map(|token| (token, guard)) });
    sleep(Duration::from_millis(400)).await;
    servers.iter().for_each(Server::thaw);
    let (_, guard) = token.await.unwrap().unwrap();
    servers.iter().for_each(Server::stop);
    guard.lost().await;
    let (held, lease) = (begun.elapsed(), Duration::from_secs(10));
    assert!(held > lease * 9 / 10 && held < lease, "{held:?}");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_a_majority_knows_is_told_without_the_servers() {
    let (servers, guard) = held_by_three().await;
    let token = guard.fencing_token().await.unwrap();
    servers.iter().for_each(Server::freeze);
    let again = timeout(Duration::from_millis(10), guard.fencing_token()).await;
    assert_eq!(again.expect("at once").unwrap(), token);
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_majority_ends_after_one_lease() {
    let servers = [Server::new(), Server::new(), Server::new()];
    let quorum = quorum_of(&servers).await.unwrap();
    servers[1].stop();
    servers[2].stop();
    let begun = Instant::now();
    let acquired = timeout(Duration::from_secs(3600), quorum.rw_lock("a").write().acquire_fair()).await;
    let (took, lease) = (begun.elapsed(), Duration::from_secs(10));
    let acquired = acquired.expect("within a lease");
    assert!(matches!(acquired, Err(Error::Unavailable { .. })), "{acquired:?}");
    assert!(took >= lease && took < lease + Duration::from_secs(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_of_another_quorum_is_not_taken_for_one_that_is_away() {
    let servers: Vec<_> = (0..5).map(|_| Server::new()).collect();
    let others = servers[2..].iter().map(Server::endpoint);
    let _other = Quorum::builder("other").connect(others).await.unwrap();
    let refused = quorum_of(&servers[..3]).await;
    assert!(matches!(refused, Err(Error::Connect { .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_quorum_that_was_shut_down_connects_to_no_further_server() {
    let servers = [Server::new(), Server::new(), Server::new()];
    servers[2].stop();
    let quorum = quorum_of(&servers).await.unwrap();
    quorum.shutdown().await;
    servers[2].start();
    sleep(Duration::from_secs(60)).await;
    assert_eq!((quorum.reached(), quorum.servers()), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn a_minority_tells_no_status() {
    let servers = [Server::new(), Server::new(), Server::new()];
    let lock = quorum_of(&servers).await.unwrap().rw_lock("a");
    servers[2].stop();
    assert_eq!(lock.status().await.unwrap().servers.len(), 3);
    servers[1].stop();
    let status = lock.status().await;
    assert!(matches!(status, Err(Error::Unavailable { .. })), "{status:?}");
}
