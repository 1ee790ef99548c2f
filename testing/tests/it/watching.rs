//! What holders, candidates and observers are told of others, and how soon. Time is paused in all tests.

use fairlock::{Election, FencingToken, Leaders, Owner};
use fairlock_testing::Server;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Everybody has heard by then that somebody listens, and the next look is half a minute away.
const SETTLED: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_waiter_that_comes_late_is_told_by_its_event_and_not_by_a_look() {
    let server = Server::new();
    let (client, other) = (server.client().await.unwrap(), server.client().await.unwrap());
    let guard = client.rw_lock("a").write().await.unwrap();
    let contended = tokio::spawn(async move {
        guard.contended().await.unwrap();
        Instant::now()
    });
    sleep(SETTLED).await;
    assert!(!contended.is_finished());
    let begun = Instant::now();
    let waits = tokio::spawn(async move { other.rw_lock("a").write().await });
    assert!(contended.await.unwrap() - begun < SOON);
    drop(waits.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_owners_own_upgrade_that_comes_late_is_no_contention() {
    let server = Server::new();
    let (client, other) = (server.client().await.unwrap(), server.client().await.unwrap());
    let beside = other.rw_lock("a").read().await.unwrap();
    let lock = client.rw_lock("a").with_owner(&Owner::new());
    let (guard, further) = (lock.read().await.unwrap(), lock.read().await.unwrap());
    let contended = tokio::spawn(async move { guard.contended().await });
    sleep(SETTLED).await;
    let upgrades = tokio::spawn(async move { further.upgrade().await.map(drop) });
    sleep(SOON).await;
    assert_eq!(other.rw_lock("a").status().await.unwrap().waiting, 1);
    assert!(!contended.is_finished(), "it was told of its own upgrade");
    drop(beside);
    upgrades.await.unwrap().unwrap();
    contended.abort();
}

#[tokio::test(start_paused = true)]
async fn an_observer_is_told_of_a_new_leader_by_its_event_and_not_by_a_look() {
    let server = Server::new();
    let election = server.client().await.unwrap().election("leader");
    let mut leaders = observer(&server).await;
    assert!(leaders.next().await.unwrap().unwrap().is_none());
    for _ in 0..3 {
        assert!(timeout(SETTLED, leaders.next()).await.is_err(), "nothing changes");
        let leading = election.campaign().await.unwrap();
        let seen = timeout(SOON, leaders.next()).await.expect("soon");
        assert_eq!(seen.unwrap().unwrap().unwrap().term, leading.term());
        leading.resign().await.unwrap();
        let seen = timeout(SOON, leaders.next()).await.expect("soon");
        assert!(seen.unwrap().unwrap().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_has_the_lease_that_its_election_names() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    for lease in [Duration::from_secs(2), Duration::from_secs(90)] {
        let leading = client.election("leader").lease(lease).campaign().await.unwrap();
        let left = client.rw_lock("leader").status().await.unwrap().holders[0].lease_left;
        assert!(left <= lease && left > lease * 9 / 10, "{left:?} of {lease:?}");
        leading.resign().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_hold_keeps_the_lease_and_the_delay_of_its_request() {
    let server = Server::new();
    let client = server.client().await.unwrap();
    let lock = client.rw_lock("a");
    let (lease, delay) = (Duration::from_secs(60), Duration::from_secs(30));
    let is_kept = async |of: &str| {
        let holders = lock.status().await.unwrap().holders;
        assert!(!holders.is_empty(), "{of}");
        for holder in holders {
            let left = holder.lease_left;
            assert!(
                left > lease + delay - SOON && left < lease + delay + SOON * 3,
                "{of}: {left:?}"
            );
        }
    };
    let writing = lock.write().lease(lease).lock_delay(delay).await.unwrap();
    is_kept("the write hold").await;
    let reading = writing.downgrade().await.unwrap();
    is_kept("its downgrade").await;
    reading.release().await.unwrap();
    let reading = lock.read().lease(lease).lock_delay(delay).await.unwrap();
    let writing = reading.upgrade().await.unwrap();
    is_kept("an upgrade").await;
    // What is asked for is asked for in each renewal.
    sleep(lease).await;
    for holder in lock.status().await.unwrap().holders {
        assert!(holder.lease_left > lease, "{:?}", holder.lease_left);
    }
    drop((writing, reading));
}

/// An observer with a client of its own.
async fn observer(server: &Server) -> Leaders {
    let election = server.client().await.unwrap().election("leader");
    election.observe().await.unwrap()
}

/// An observer that has settled, and the leader's election.
async fn observed(server: &Server) -> (Leaders, Election) {
    let election = server.client().await.unwrap().election("leader").lease(SETTLED * 60);
    let mut leaders = observer(server).await;
    assert!(leaders.next().await.unwrap().unwrap().is_none());
    assert!(timeout(SETTLED, leaders.next()).await.is_err(), "nobody leads");
    (leaders, election)
}

/// The term of the leader that the observer is told next.
async fn told(leaders: &mut Leaders, within: Duration) -> Option<FencingToken> {
    let told = timeout(within, leaders.next()).await.expect("in time");
    told.unwrap().unwrap().map(|leader| leader.term)
}

#[tokio::test(start_paused = true)]
async fn an_observer_is_told_soon_of_a_leader_that_was_evicted_or_expired() {
    let server = Server::new();
    let (mut leaders, election) = observed(&server).await;
    let lock = server.client().await.unwrap().rw_lock("leader");
    for evicted in [true, false] {
        let leading = election.campaign().await.unwrap();
        assert_eq!(told(&mut leaders, SOON).await, Some(leading.term()));
        assert!(timeout(SETTLED, leaders.next()).await.is_err(), "nothing changes");
        match evicted {
            true => assert_eq!(lock.evict(&leading.owner()).await.unwrap(), 1),
            false => assert_eq!(server.expire("leader"), 1),
        }
        assert_eq!(told(&mut leaders, SOON).await, None, "evicted: {evicted}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_is_told_of_the_same_leader_again_after_an_error() {
    let server = Server::new();
    let (mut leaders, election) = observed(&server).await;
    let leading = election.campaign().await.unwrap();
    assert_eq!(told(&mut leaders, SOON).await, Some(leading.term()));
    server.stop();
    let error = timeout(SETTLED * 6, leaders.next()).await.expect("within a minute");
    error.unwrap().expect_err("the server is away");
    server.start();
    loop {
        let told = timeout(SETTLED * 6, leaders.next()).await.expect("within a minute");
        match told.unwrap() {
            Ok(leader) => break assert_eq!(leader.unwrap().term, leading.term()),
            Err(error) => assert!(matches!(error, fairlock::Error::Unavailable { .. }), "{error}"),
        }
    }
}

/// The events of a term that began and ended before the first look come after it.
#[tokio::test(start_paused = true)]
async fn an_observer_is_not_told_of_a_leader_that_had_left() {
    let server = Server::new();
    let election = server.client().await.unwrap().election("leader");
    let mut leaders = observer(&server).await;
    sleep(SOON).await;
    election.campaign().await.unwrap().resign().await.unwrap();
    sleep(SOON).await;
    assert_eq!(told(&mut leaders, SOON).await, None);
    assert!(timeout(SOON, leaders.next()).await.is_err(), "nothing changes");
}

#[tokio::test(start_paused = true)]
async fn an_observer_finds_out_by_its_next_look_what_no_event_tells() {
    let server = Server::new();
    let (mut leaders, election) = observed(&server).await;
    let leading = election.campaign().await.unwrap();
    assert_eq!(told(&mut leaders, SOON).await, Some(leading.term()));
    assert!(timeout(SETTLED, leaders.next()).await.is_err(), "nothing changes");
    assert!(server.forget("leader"));
    assert_eq!(told(&mut leaders, Duration::from_secs(35)).await, None);
}
