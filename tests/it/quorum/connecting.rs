//! Which servers make a quorum.

use super::{Fleet, LEASE};
use fairlock::{Error, Quorum};
use std::time::Duration;

fn why<T>(result: Result<T, Error>) -> String {
    result.err().map_or_else(String::new, |error| error.to_string())
}

#[tokio::test]
async fn a_server_named_twice_and_other_numbers_of_servers_are_refused() {
    let fleet = Fleet::start(3).await;
    let mut urls = fleet.urls();
    // Another name of the same server.
    urls[2] = urls[0].replace("127.0.0.1", "localhost");
    let twice = Fleet::builder().connect(urls).await;
    assert!(matches!(twice, Err(Error::InvalidQuorum { .. })), "{twice:?}");
    assert!(why(twice).contains("two addresses"));
    for servers in [0, 1, 2] {
        let few = Fleet::builder().connect(fleet.urls().into_iter().take(servers)).await;
        assert!(matches!(few, Err(Error::InvalidQuorum { .. })), "{few:?}");
    }
}

#[tokio::test]
async fn a_server_belongs_to_one_quorum_and_one_longest_lease() {
    let fleet = Fleet::start(3).await;
    let _first = fleet.quorum().await;
    let other = Quorum::builder("other")
        .longest_lease(LEASE)
        .connect(fleet.urls())
        .await;
    let other = why(other);
    assert!(
        other.contains("another quorum") && other.contains("as its other clients do"),
        "{other}"
    );
    let longer = Quorum::builder("test")
        .longest_lease(LEASE * 2)
        .connect(fleet.urls())
        .await;
    assert!(why(longer).contains("another quorum"));
}

#[tokio::test]
async fn a_minority_may_be_away_when_a_client_connects_and_takes_part_later() {
    let mut fleet = Fleet::start(3).await;
    fleet.0[1].kill();
    let quorum = fleet.quorum_by(Fleet::builder()).await;
    assert_eq!(quorum.reached(), (2, 3));
    let guard = quorum.rw_lock("x").write().acquire_fair().await.unwrap();
    assert_eq!(guard.votes(), 2);
    fleet.0[1].start_again().await;
    crate::server::eventually("it is reached", async || quorum.reached().0 == 3).await;
    // It is in quarantine: the vote comes later.
    fleet.until([1], "x", 1, 1).await;
    fleet.0[0].kill();
    fleet.0[2].kill();
    let refused = Fleet::builder().connect(fleet.urls()).await;
    assert!(matches!(refused, Err(Error::Connect { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_lease_is_no_longer_than_the_longest() {
    let fleet = Fleet::start(3).await;
    let quorum = fleet.quorum().await;
    let longer = quorum.rw_lock("x").write().lease(LEASE + Duration::from_millis(1));
    let refused = longer.acquire_fair().await;
    assert!(matches!(refused, Err(Error::InvalidDuration { .. })), "{refused:?}");
}

/// While the network is divided, clients on both sides would count the votes of one seat.
#[cfg(feature = "sentinel")]
#[tokio::test]
async fn a_master_that_sentinel_names_is_no_server_of_a_quorum() {
    use redis::sentinel::{SentinelClient, SentinelServerType};
    let named = || {
        SentinelClient::build(
            vec!["redis://127.0.0.1:1"],
            "mine".to_owned(),
            None,
            SentinelServerType::Master,
        )
    };
    let seats = [(); 3].map(|()| named().unwrap());
    let refused = Fleet::builder().connect(seats).await;
    assert!(matches!(refused, Err(Error::InvalidQuorum { .. })), "{refused:?}");
    assert!(why(refused).contains("Sentinel"));
}
