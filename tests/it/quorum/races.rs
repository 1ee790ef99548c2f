//! Requests that race: each server has another first one, and all enter all the same.

use super::{Fleet, entered, write};
use crate::proxy::Proxy;
use crate::server::{eventually, soon};
use fairlock::{Owner, Quorum, QuorumWriteGuard};
use futures::future::{FutureExt, join_all};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::task::JoinHandle;

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

struct Writer {
    _quorum: Quorum,
    ways: Vec<Proxy>,
    waits: JoinHandle<QuorumWriteGuard>,
}

/// Three writers, each with the vote of the server of its number: the ways of each to the others are stalled.
async fn with_a_vote_each(fleet: &Fleet) -> Vec<Writer> {
    let client = async || {
        let ways: Vec<_> = join_all(fleet.0.iter().map(|server| Proxy::to(server.port()))).await;
        let urls: Vec<_> = ways.iter().map(Proxy::url).collect();
        (soon("a client", connected(&urls)).await, ways)
    };
    // Before the first way is stalled: what is asked for over a stalled one is given up soon.
    let clients = join_all((0..3).map(|_| client())).await;
    let mut writers = Vec::new();
    for (at, (quorum, ways)) in clients.into_iter().enumerate() {
        let others = ways.iter().enumerate().filter(|(to, _)| *to != at);
        others.for_each(|(_, way)| way.stall(true));
        let replies = ways[at].script_replies();
        let waits = write(&quorum.rw_lock("x"));
        fleet.until([at], "x", 1, 0).await;
        eventually("it knows of its vote", async || ways[at].script_replies() > replies).await;
        writers.push(Writer {
            _quorum: quorum,
            ways,
            waits,
        });
    }
    fleet.until(fleet.all(), "x", 1, 0).await;
    assert!(writers.iter().all(|writer| !writer.waits.is_finished()));
    writers
}

impl Writer {
    fn reaches_all(&self) {
        self.ways.iter().for_each(|way| way.stall(false));
    }

    async fn enters_and_leaves(&mut self) {
        let guard = entered("a writer", &mut self.waits).await;
        guard.release().await.expect("a hold until then");
    }
}

/// Nobody has a majority until two of them give their votes up.
#[tokio::test]
async fn three_writers_with_a_vote_each_all_enter() {
    let fleet = Fleet::start(3).await;
    let mut writers = with_a_vote_each(&fleet).await;
    writers.iter().for_each(Writer::reaches_all);
    join_all(writers.iter_mut().map(Writer::enters_and_leaves)).await;
    fleet.until(fleet.all(), "x", 0, 0).await;
}

/// `None`: nobody has a name there.
fn client_and_number(name: &str) -> Option<(&str, u64)> {
    let (client, number) = name.split_once(':')?;
    Some((client, number.parse().expect("a number")))
}

/// A copy of a call that gives a vote up may still be on its way, and would end a later grant of the same request.
#[tokio::test]
async fn a_vote_that_is_given_up_without_a_reply_is_asked_for_under_a_new_name() {
    let fleet = Fleet::start(3).await;
    let mut writers = with_a_vote_each(&fleet).await;
    let names = async |at: usize| -> Vec<String> {
        let mut waiting = redis::cmd("ZRANGE");
        waiting.arg(format!("{}:l", super::key("x"))).arg(0).arg(-1);
        let waiting: Vec<String> = waiting.query_async(&mut fleet.0[at].redis().await).await.unwrap();
        [vec![fleet.state(at, "x").await.holder], waiting].concat()
    };
    let mut held = Vec::new();
    for (at, writer) in writers.iter().enumerate() {
        // The next call is the one that gives the vote up.
        writer.ways[at].lose_replies(1);
        held.push(fleet.state(at, "x").await.holder);
    }
    writers.iter().for_each(Writer::reaches_all);
    eventually("a vote that was given up has a new name", async || {
        let mut renamed = false;
        for (at, name) in held.iter().enumerate() {
            let (client, number) = client_and_number(name).expect("a holder");
            let is_new = |other: &String| client_and_number(other).is_some_and(|new| new.0 == client && new.1 > number);
            renamed |= names(at).await.iter().any(is_new);
        }
        renamed
    })
    .await;
    join_all(writers.iter_mut().map(Writer::enters_and_leaves)).await;
    fleet.until(fleet.all(), "x", 0, 0).await;
}

/// A client that has reached all of these servers.
pub(super) async fn connected(urls: &[String]) -> Quorum {
    loop {
        match Fleet::builder().connect(urls).await {
            Ok(quorum) if quorum.reached() == urls.len() => return quorum,
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
