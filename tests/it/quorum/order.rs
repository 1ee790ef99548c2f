//! Exclusion and order without faults.

use super::{Fleet, LEASE, PREFIX, entered, read, write};
use crate::server::{Server, connected, soon};
use fairlock::{Client, Mode, Owner, Policy};
use futures::future::join_all;
use std::time::Duration;

#[tokio::test]
async fn writers_of_a_quorum_enter_one_by_one_in_the_order_of_their_places() {
    for servers in [3, 5] {
        let fleet = Fleet::start(servers).await;
        let [a, b, c] = fleet.quorums().await;
        let holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
        assert!(holder.is_held());
        let second = write(&b.rw_lock("x"));
        fleet.until(fleet.all(), "x", 1, 1).await;
        let third = write(&c.rw_lock("x"));
        fleet.until(fleet.all(), "x", 1, 2).await;
        assert!(!second.is_finished() && !third.is_finished());
        holder.release().await.unwrap();
        let second = entered("the second", second).await;
        fleet.until(fleet.all(), "x", 1, 1).await;
        assert!(!third.is_finished());
        assert_eq!(second.votes(), servers);
        second.release().await.unwrap();
        entered("the third", third).await.release().await.unwrap();
        fleet.until(fleet.all(), "x", 0, 0).await;
    }
}

#[tokio::test]
async fn readers_of_a_quorum_share_and_a_writer_between_them_keeps_its_place() {
    let fleet = Fleet::start(3).await;
    let [a, b, c] = fleet.quorums().await;
    let first = a.rw_lock("x").read().acquire_fair().await.unwrap();
    let second = b.rw_lock("x").read().acquire_fair().await.unwrap();
    let writer = write(&c.rw_lock("x"));
    fleet.until(fleet.all(), "x", 2, 1).await;
    let late = read(&a.rw_lock("x"));
    fleet.until(fleet.all(), "x", 2, 2).await;
    first.release().await.unwrap();
    second.release().await.unwrap();
    let writer = entered("the writer", writer).await;
    fleet.until(fleet.all(), "x", 1, 1).await;
    assert!(!late.is_finished());
    writer.release().await.unwrap();
    let _ = entered("the late reader", late).await;
}

#[tokio::test]
async fn a_try_gets_a_free_lock_and_no_other() {
    let fleet = Fleet::start(3).await;
    let [a, b] = fleet.quorums().await;
    let guard = a
        .rw_lock("x")
        .write()
        .try_acquire()
        .await
        .unwrap()
        .expect("a free lock");
    assert!(b.rw_lock("x").read().try_acquire().await.unwrap().is_none());
    let limit = std::time::Duration::from_millis(1);
    assert!(b.rw_lock("x").read().try_acquire_for(limit).await.unwrap().is_none());
    guard.release().await.unwrap();
    fleet.until(fleet.all(), "x", 0, 0).await;
    assert!(b.rw_lock("x").read().try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn an_owner_reenters_at_all_servers() {
    let fleet = Fleet::start(3).await;
    let [a, b, c] = fleet.quorums().await;
    let owner = Owner::new();
    let outer = a.rw_lock("x").with_owner(&owner).write().acquire_fair().await.unwrap();
    fleet.until(fleet.all(), "x", 1, 0).await;
    let waiter = write(&c.rw_lock("x"));
    fleet.until(fleet.all(), "x", 1, 1).await;
    let inner = b.rw_lock("x").with_owner(&owner).write().acquire_fair();
    let inner = soon("the owner is inside", inner).await.unwrap();
    outer.release().await.unwrap();
    assert!(inner.is_held() && !waiter.is_finished());
    inner.release().await.unwrap();
    let _ = entered("the waiter", waiter).await;
}

#[tokio::test]
async fn a_scope_reenters_at_all_servers() {
    let fleet = Fleet::start(3).await;
    let (lock, owner) = (fleet.quorum().await.rw_lock("x"), Owner::new());
    let nested = owner.scope(async {
        let outer = lock.write().acquire_fair().await.unwrap();
        let inner = soon("the owner is inside", lock.read().acquire_fair()).await.unwrap();
        inner.release().await.unwrap();
        outer.release().await.unwrap();
    });
    nested.await;
}

#[tokio::test]
async fn a_policy_holds_at_all_servers() {
    let fleet = Fleet::start(3).await;
    let [a, b, c] = fleet.quorums().await;
    let lock = |quorum: &fairlock::Quorum| quorum.rw_lock("x").policy(Policy::WriterFirst);
    let holder = lock(&a).write().acquire_fair().await.unwrap();
    let reader = read(&lock(&b));
    fleet.until(fleet.all(), "x", 1, 1).await;
    let writer = write(&lock(&c));
    fleet.until(fleet.all(), "x", 1, 2).await;
    let other = a.rw_lock("x").read().acquire_fair().await;
    assert!(
        matches!(other, Err(fairlock::Error::PolicyMismatch { .. })),
        "{other:?}"
    );
    holder.release().await.unwrap();
    let writer = entered("the writer", writer).await;
    assert!(!reader.is_finished());
    drop(writer);
    let _ = entered("the reader", reader).await;
}

#[tokio::test]
async fn a_free_lock_of_a_quorum_costs_two_calls_a_server() {
    let fleet = Fleet::start(3).await;
    let a = fleet.quorum().await;
    let calls = async || {
        join_all(fleet.0.iter().map(Server::script_calls))
            .await
            .iter()
            .sum::<u64>()
    };
    for round in 0..5 {
        let before = calls().await;
        let name = format!("x{round}");
        let guard = a.rw_lock(name.as_str()).write().acquire_fair().await.unwrap();
        // The slowest server too.
        fleet.until(fleet.all(), &name, 1, 0).await;
        guard.release().await.unwrap();
        fleet.until(fleet.all(), &name, 0, 0).await;
        assert_eq!(calls().await - before, 6);
    }
}

/// The servers hand over one after the other.
#[tokio::test]
async fn a_hand_over_after_a_long_wait_costs_no_call_of_the_waiter() {
    let fleet = Fleet::start(3).await;
    let b = fleet.quorum().await;
    let calls = async || {
        join_all(fleet.0.iter().map(Server::script_calls))
            .await
            .iter()
            .sum::<u64>()
    };
    let mut holders = Vec::new();
    for server in &fleet.0 {
        let client = connected(Client::builder().prefix(PREFIX).lease(LEASE), server.url()).await;
        holders.push(client.rw_lock("x").write().acquire_fair().await.unwrap());
    }
    let waiter = write(&b.rw_lock("x"));
    fleet.until(fleet.all(), "x", 1, 1).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let before = calls().await;
    let mut releases = 0;
    for holder in holders.drain(..2) {
        holder.release().await.unwrap();
        releases += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let guard = entered("the waiter", waiter).await;
    assert_eq!(calls().await - before, releases);
    drop(guard);
}

#[tokio::test]
async fn a_status_says_which_servers_agree() {
    let fleet = Fleet::start(3).await;
    let [a, b] = fleet.quorums().await;
    let _holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    let _waiter = write(&b.rw_lock("x"));
    fleet.until(fleet.all(), "x", 1, 1).await;
    let status = b.rw_lock("x").status().await.unwrap();
    assert_eq!((status.servers.len(), status.waiting, status.holders.len()), (3, 1, 1));
    let holder = &status.holders[0];
    assert_eq!((holder.votes, holder.is_majority, holder.mode), (3, true, Mode::Write));
    assert!(status.servers.iter().all(|server| server.status.is_ok()));
}
