//! Requests that race: each server has another first one, and all enter all the same.

use super::Fleet;
use crate::server::{eventually, soon};
use fairlock::Quorum;
use futures::future::join_all;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writers that enter again and again, and a register that refuses a token that is not greater than all before.
async fn race(quorums: &[Quorum], rounds: usize) {
    let (inside, register) = (AtomicU64::new(0), AtomicU64::new(0));
    let writer = async |quorum: &Quorum| {
        let lock = quorum.rw_lock("x");
        for _ in 0..rounds {
            let guard = lock.write().acquire_fair().await.expect("a grant");
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "another writer is inside");
            let token = guard.fencing_token().await.expect("a token").get();
            let before = register.fetch_max(token, Ordering::SeqCst);
            assert!(token > before, "token {token} after {before}");
            tokio::task::yield_now().await;
            assert!(guard.is_held());
            inside.fetch_sub(1, Ordering::SeqCst);
            guard.release().await.expect("a hold until then");
        }
    };
    soon("all enter", join_all(quorums.iter().map(writer))).await;
}

#[tokio::test]
async fn racing_writers_all_enter_and_their_tokens_grow() {
    for servers in [3, 5] {
        let fleet = Fleet::start(servers).await;
        let quorums: [Quorum; 4] = fleet.quorums().await;
        race(&quorums, 25).await;
        fleet.until(fleet.all(), "x", 0, 0).await;
    }
}

#[tokio::test]
async fn racing_readers_and_writers_all_enter() {
    let fleet = Fleet::start(3).await;
    let quorums: [Quorum; 4] = fleet.quorums().await;
    let (readers, writers) = (AtomicU64::new(0), AtomicU64::new(0));
    let user = async |at: usize| {
        let lock = quorums[at].rw_lock("x");
        for round in 0..25 {
            if (round + at) % 3 == 0 {
                let guard = lock.write().acquire_fair().await.unwrap();
                assert_eq!(writers.fetch_add(1, Ordering::SeqCst), 0);
                assert_eq!(readers.load(Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                writers.fetch_sub(1, Ordering::SeqCst);
                drop(guard);
            } else {
                let guard = lock.read().acquire_fair().await.unwrap();
                readers.fetch_add(1, Ordering::SeqCst);
                assert_eq!(writers.load(Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                readers.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        }
    };
    soon("all enter", join_all((0..4).map(user))).await;
    eventually("nothing is left", async || fleet.state(0, "x").await.holds() == 0).await;
}

/// One vote of each server for another client: no majority, until two of them give theirs up.
#[tokio::test]
async fn three_writers_with_a_vote_each_all_enter() {
    let fleet = Fleet::start(3).await;
    let quorums: [Quorum; 3] = fleet.quorums().await;
    for round in 0..10 {
        let name = format!("x{round}");
        // All ask at once, over connections of their own, so that the servers get them in different orders.
        let ask = async |quorum: &Quorum| {
            let guard = quorum
                .rw_lock(name.as_str())
                .write()
                .acquire_fair()
                .await
                .expect("a grant");
            guard.release().await.expect("a hold until then");
        };
        soon("all enter", join_all(quorums.iter().map(ask))).await;
    }
}
