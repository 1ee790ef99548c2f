//! A lock over three servers.

use fairlock::Quorum;
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
