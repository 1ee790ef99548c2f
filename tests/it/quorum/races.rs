//! Requests that race: each server has another first one, and all enter all the same.

use super::{Fleet, entered, write};
use crate::proxy::Proxy;
use crate::server::{eventually, soon};
use fairlock::{Owner, Quorum};
use futures::future::{FutureExt, join_all};
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
            if (round + at).is_multiple_of(3) {
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

/// Each of three writers has the vote of another server, so nobody has a majority until two of them give theirs up.
#[tokio::test]
async fn three_writers_with_a_vote_each_all_enter() {
    let fleet = Fleet::start(3).await;
    let mut writers = Vec::new();
    for _ in 0..3 {
        let ways: Vec<_> = join_all(fleet.0.iter().map(|server| Proxy::to(server.port()))).await;
        let urls: Vec<_> = ways.iter().map(Proxy::url).collect();
        let quorum = soon("a client", connected(&urls)).await;
        writers.push((quorum, ways));
    }
    for (at, (_, ways)) in writers.iter().enumerate() {
        let others = ways.iter().enumerate().filter(|(to, _)| *to != at);
        others.for_each(|(_, way)| way.stall(true));
    }
    let waiting: Vec<_> = writers.iter().map(|(quorum, _)| write(&quorum.rw_lock("x"))).collect();
    fleet.until(fleet.all(), "x", 1, 0).await;
    assert!(waiting.iter().all(|waiter| !waiter.is_finished()));
    for (_, ways) in &writers {
        ways.iter().for_each(|way| way.stall(false));
    }
    let enter = async |waiter| {
        let guard: fairlock::QuorumWriteGuard = entered("a writer", waiter).await;
        guard.release().await.expect("a hold until then");
    };
    join_all(waiting.into_iter().map(enter)).await;
    fleet.until(fleet.all(), "x", 0, 0).await;
}

/// A client that has reached all of these servers.
pub(super) async fn connected(urls: &[String]) -> Quorum {
    loop {
        match Fleet::builder().connect(urls).await {
            Ok(quorum) if quorum.reached().0 == urls.len() => return quorum,
            // These machines are slow at times.
            Ok(_) | Err(fairlock::Error::Connect { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// An owner leaves its wait while a server's reply is under way, and asks again at once. The new request waits for the
/// former one, because that server would refuse a second one.
#[tokio::test]
async fn an_owner_that_leaves_a_call_under_way_and_asks_again_waits_for_its_end() {
    let fleet = Fleet::start(3).await;
    let holder = fleet.quorum().await.rw_lock("x").write().acquire_fair().await.unwrap();
    let way = Proxy::to(fleet.0[2].port()).await;
    let quorum = connected(&[fleet.0[0].url(), fleet.0[1].url(), way.url()]).await;
    let lock = quorum.rw_lock("x").with_owner(&Owner::new());
    way.hold_replies(true);
    let mut first = Box::pin(lock.write().acquire_fair());
    let answered = async {
        fleet.until(fleet.all(), "x", 1, 1).await;
        // Two servers answer this after that.
        let other = quorum.rw_lock("y").write().acquire_fair().await.unwrap();
        fleet.until([2], "y", 1, 0).await;
        other
    };
    let other = tokio::select! {
        _ = &mut first => panic!("somebody holds"),
        other = answered => other,
    };
    // A majority has answered, so a task of the client has the third call. That task learns later that the caller has left.
    let before = fleet.0[2].script_calls().await;
    drop(first);
    let mut again = Box::pin(lock.write().acquire_fair());
    assert!((&mut again).now_or_never().is_none());
    // What a connection was given before this call is executed before it.
    let mut next = Box::pin(quorum.rw_lock("z").write().acquire_fair());
    assert!((&mut next).now_or_never().is_none());
    fleet.until([2], "z", 1, 0).await;
    fleet.until([2], "x", 1, 0).await;
    let calls = fleet.0[2].script_calls().await - before;
    assert_eq!(calls, 2, "the acquire of z and the release of the former request");
    way.hold_replies(false);
    let again = tokio::spawn(again);
    fleet.until(fleet.all(), "x", 1, 1).await;
    holder.release().await.unwrap();
    let entered = soon("it enters", again).await.unwrap().unwrap();
    entered.release().await.unwrap();
    other.release().await.unwrap();
}
