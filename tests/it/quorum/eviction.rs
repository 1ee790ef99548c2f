//! An operator evicts an owner at the servers of a quorum, one after the other.

use super::{Fleet, LEASE, PREFIX, entered, key, lost_because, write};
use crate::server::{connected, eventually, soon};
use fairlock::{Client, Error, LostReason, Owner};
use std::time::Duration;

impl Fleet {
    /// Evicts the owner at one server, as `fairlock evict` does.
    async fn evict(&self, at: usize, lock: &str, owner: &Owner) {
        let client = connected(Client::builder().prefix(PREFIX).lease(LEASE), self.0[at].url()).await;
        let evicted = client.rw_lock(lock).evict(owner).await.unwrap();
        assert_eq!(evicted, 1);
        client.shutdown().await;
    }
}

#[tokio::test]
async fn a_holder_evicted_at_one_server_after_the_other_regains_none_of_them() {
    let fleet = Fleet::start(3).await;
    let (quorum, owner) = (fleet.quorum().await, Owner::new());
    let guard = quorum.rw_lock("x").with_owner(&owner).write().acquire_fair();
    let guard = guard.await.unwrap();
    eventually("all votes", async || guard.votes() == 3).await;
    fleet.evict(0, "x", &owner).await;
    eventually("it has two votes", async || guard.votes() == 2).await;
    assert!(guard.is_held());
    fleet.evict(1, "x", &owner).await;
    let lost = soon("the hold is lost", guard.lost()).await;
    assert_eq!(lost, LostReason::Evicted);
    fleet.until(fleet.all(), "x", 0, 0).await;
}

/// The client knows of the first eviction only. What it releases then is not kept by a majority.
#[tokio::test]
async fn a_release_after_two_evictions_of_which_one_is_not_heard_is_told_as_a_loss() {
    let fleet = Fleet::start(3).await;
    let (quorum, owner) = (fleet.quorum().await, Owner::new());
    let guard = quorum.rw_lock("x").with_owner(&owner).write().acquire_fair();
    let guard = guard.await.unwrap();
    eventually("all votes", async || guard.votes() == 3).await;
    fleet.evict(0, "x", &owner).await;
    eventually("it has two votes", async || guard.votes() == 2).await;
    let mut lose = redis::cmd("DEL");
    lose.arg(key("x"));
    lose.exec_async(&mut fleet.0[1].redis().await).await.unwrap();
    let released = soon("the release", guard.release()).await;
    assert_eq!(lost_because(&released), Some(LostReason::UnknownToServer));
}

#[tokio::test]
async fn a_waiter_evicted_at_a_majority_gets_the_error_and_the_next_one_its_turn() {
    let fleet = Fleet::start(3).await;
    let [a, b, c] = fleet.quorums().await;
    let holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    let owner = Owner::new();
    let evicted = b.rw_lock("x").with_owner(&owner).write();
    let evicted = tokio::spawn(async move { evicted.acquire_fair().await });
    fleet.until(fleet.all(), "x", 1, 1).await;
    let next = write(&c.rw_lock("x"));
    fleet.until(fleet.all(), "x", 1, 2).await;
    fleet.evict(0, "x", &owner).await;
    fleet.evict(2, "x", &owner).await;
    let ended = soon("the waiter ends", evicted).await.unwrap();
    assert_eq!(lost_because(&ended), Some(LostReason::Evicted));
    fleet.until(fleet.all(), "x", 1, 1).await;
    holder.release().await.unwrap();
    assert!(entered("the next one enters", next).await.is_held());
}

/// It has left its places, so no client of a server tells its drivers of anything.
#[tokio::test]
async fn a_shutdown_ends_a_waiter_that_was_evicted_where_a_server_was_never_reached() {
    let mut fleet = Fleet::start(3).await;
    fleet.0[2].kill();
    let (a, b) = (fleet.quorum_by(Fleet::builder()), fleet.quorum_by(Fleet::builder()));
    let (a, b, owner) = (a.await, b.await, Owner::new());
    let _holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    // A late reply does not cost it its place. The recess comes after little more than this.
    let waiting = b.rw_lock("x").with_owner(&owner).write().lease(Duration::from_secs(5));
    let waiter = tokio::spawn(waiting.acquire_fair());
    fleet.until([0, 1], "x", 1, 1).await;
    fleet.evict(1, "x", &owner).await;
    fleet.until([0], "x", 1, 0).await;
    soon("the shutdown", b.shutdown()).await;
    let waited = soon("the waiter ends", waiter).await.unwrap();
    assert!(matches!(waited, Err(Error::Shutdown { .. })), "{waited:?}");
}
