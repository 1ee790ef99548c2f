//! Which servers make a quorum.

use super::races::connected;
use super::{Fleet, LEASE};
use crate::proxy::Proxy;
use crate::server::{eventually, soon};
use fairlock::{Error, Quorum};
use futures::future::join_all;
use std::time::Duration;

pub(super) fn why<T>(result: Result<T, Error>) -> String {
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
    assert_eq!((quorum.reached(), quorum.servers()), (2, 3));
    let guard = quorum.rw_lock("x").write().acquire_fair().await.unwrap();
    assert_eq!(guard.votes(), 2);
    fleet.0[1].start_again().await;
    crate::server::eventually("it is reached", async || quorum.reached() == 3).await;
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
    let named = || SentinelClient::build(vec!["redis://127.0.0.1:1"], "mine", None, SentinelServerType::Master);
    let seats = [(); 3].map(|()| named().unwrap());
    let refused = Fleet::builder().connect(seats).await;
    assert!(matches!(refused, Err(Error::InvalidQuorum { .. })), "{refused:?}");
    assert!(why(refused).contains("Sentinel"));
}

/// A grant of one server would count as the vote of another one.
#[tokio::test]
async fn a_subscription_that_leads_to_another_server_than_the_calls_is_refused() {
    let fleet = Fleet::start(3).await;
    let ways = join_all(fleet.0.iter().map(|server| Proxy::to(server.port()))).await;
    let urls: Vec<_> = ways.iter().map(Proxy::url).collect();
    let quorum = soon("a client", connected(&urls)).await;
    let subscribed = async |at: usize| {
        let mut list = redis::cmd("CLIENT");
        list.arg("LIST").arg("TYPE").arg("pubsub");
        let list: String = list.query_async(&mut fleet.0[at].redis().await).await.unwrap();
        list.lines().count()
    };
    assert_eq!((subscribed(0).await, subscribed(2).await), (1, 1));
    // The address of the third server leads to the first one for a while. The connection for calls stays.
    ways[2].leads_to(fleet.0[0].port());
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("pubsub");
    kill.exec_async(&mut fleet.0[2].redis().await).await.unwrap();
    for _ in 0..20 {
        assert_eq!(
            subscribed(0).await,
            1,
            "a subscription for the seat of the third server"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ways[2].leads_to(fleet.0[2].port());
    eventually("a subscription to the third server", async || subscribed(2).await == 1).await;
    let guard = quorum.rw_lock("x").write().acquire_fair().await.unwrap();
    eventually("all votes", async || guard.votes() == 3).await;
}

/// A server that refuses the client must not take the seat, because the messages of the right one would count no more.
#[tokio::test]
async fn a_server_of_another_quorum_behind_an_address_takes_no_seat() {
    let (fleet, others) = (Fleet::start(3).await, Fleet::start(3).await);
    let other = Quorum::builder("other").longest_lease(LEASE);
    let _other = other.connect(others.urls()).await.unwrap();
    let ways = join_all(fleet.0.iter().map(|server| Proxy::to(server.port()))).await;
    let urls: Vec<_> = ways.iter().map(Proxy::url).collect();
    let _quorum = soon("a client", connected(&urls)).await;
    let mut redis = fleet.0[2].redis().await;
    let mut channels = redis::cmd("PUBSUB");
    let channels: Vec<String> = channels.arg("CHANNELS").query_async(&mut redis).await.unwrap();
    let (channel, before) = (&channels[0], others.0[0].calls("info").await);
    // The connection for messages stays.
    ways[2].leads_to(others.0[0].port());
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
    kill.exec_async(&mut redis).await.unwrap();
    eventually("it asks who is there, and goes away", async || {
        others.0[0].calls("info").await > before + 2
    })
    .await;
    for _ in 0..10 {
        let mut say = redis::cmd("PUBLISH");
        let heard: usize = say.arg(channel).arg("nothing").query_async(&mut redis).await.unwrap();
        assert_eq!(heard, 1, "by the connection that is still right");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
