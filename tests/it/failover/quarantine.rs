//! A server that begins anew: holders hear of it, and with a quarantine nobody enters what only looks free.

use crate::observe::{LONG, ms};
use crate::server::{Server, connected, eventually, soon};
use fairlock::{Client, Error, FencingToken, LostReason, Mode, Owner};
use futures::FutureExt;
use std::pin::pin;
use std::time::Duration;

const QUARANTINE: Duration = Duration::from_millis(1500);

async fn careful(server: &Server) -> Client {
    connected(Client::builder().lease(LONG).quarantine(QUARANTINE), server.url()).await
}

/// When the quarantine ends, in microseconds of the server's clock: tokens follow that.
async fn ends_us(server: &Server) -> u64 {
    let mut get = redis::cmd("GET");
    let life: String = get
        .arg("fairlock:life")
        .query_async(&mut server.redis().await)
        .await
        .unwrap();
    let (_, since_ms) = life.split_once(' ').unwrap();
    (since_ms.parse::<u64>().unwrap() + QUARANTINE.as_millis() as u64) * 1000
}

async fn is_over(server: &Server) {
    let ends = ends_us(server).await;
    eventually("the quarantine is over", async || {
        let (s, us): (u64, u64) = redis::cmd("TIME").query_async(&mut server.redis().await).await.unwrap();
        s * 1_000_000 + us > ends
    })
    .await;
}

fn assert_after(token: FencingToken, ends_us: u64) {
    assert!(
        token.get() >= ends_us,
        "{token} was granted {} us early",
        ends_us - token.get()
    );
}

#[tokio::test]
async fn a_holder_hears_at_once_that_a_server_began_anew_without_its_data() {
    let mut server = Server::start().await;
    // No renewal is due for minutes.
    let client = connected(Client::builder().lease(LONG), server.url()).await;
    let reading = client.rw_lock("a").read().acquire_fair().await.unwrap();
    let writing = client.rw_lock("b").write().acquire_fair().await.unwrap();
    server.kill();
    server.start_again().await;
    assert_eq!(
        soon("word of the loss", reading.lost()).await,
        LostReason::UnknownToServer
    );
    assert_eq!(
        soon("word of the loss", writing.lost()).await,
        LostReason::UnknownToServer
    );
}

#[tokio::test]
async fn a_grant_that_lay_unread_while_its_server_began_anew_is_looked_at_at_once() {
    let mut server = Server::start().await;
    let client = connected(Client::builder().lease(LONG), server.url()).await;
    let mut left = pin!(client.rw_lock("a").write().acquire_fair());
    assert!((&mut left).now_or_never().is_none());
    // The reply to a later call comes after the one that lies in that future.
    let later = client.rw_lock("b").write().acquire_fair().await.unwrap();
    server.kill();
    server.start_again().await;
    soon("word of the loss", later.lost()).await;
    // A grant by message: the client has looked at what it knew to hold, over both connections.
    let holder = connected(Client::builder(), server.url()).await;
    let held = holder.rw_lock("c").write().acquire_fair().await.unwrap();
    let waiter = client.rw_lock("c").write();
    let waiter = tokio::spawn(async move { waiter.acquire_fair().await });
    eventually("it waits", async || {
        holder.rw_lock("c").status().await.unwrap().waiting == 1
    })
    .await;
    held.release().await.unwrap();
    drop(soon("the message", waiter).await.unwrap().unwrap());
    let guard = left.await.unwrap();
    assert_eq!(
        soon("word of the loss", guard.lost()).await,
        LostReason::UnknownToServer
    );
}

#[tokio::test]
async fn a_lock_that_looks_free_is_not_granted_in_quarantine() {
    let mut server = Server::start().await;
    let client = careful(&server).await;
    let lock = client.rw_lock("a");
    // An empty server may have been another before.
    let guard = soon("the first", lock.write().acquire_fair()).await.unwrap();
    assert_after(guard.fencing_token(), ends_us(&server).await);
    server.kill();
    server.start_again().await;
    soon("word of the loss", guard.lost()).await;
    // A try, writers and readers in order: as if somebody held it.
    let begun = std::time::Instant::now();
    let tried = lock.read().try_acquire().await.unwrap();
    assert!(tried.is_none() || begun.elapsed() > QUARANTINE, "{tried:?}");
    drop(tried);
    let next = tokio::spawn(lock.write().acquire_fair());
    let status = lock.status().await.unwrap();
    if let [holder] = status.holders.as_slice() {
        assert_eq!(
            (holder.mode, holder.owner),
            (
                Mode::Write,
                "00000000-0000-0000-0000-000000000000".parse::<Owner>().unwrap()
            )
        );
    }
    let next = soon("the end of the quarantine", next).await.unwrap().unwrap();
    assert_after(next.fencing_token(), ends_us(&server).await);
    assert!(next.fencing_token() > guard.fencing_token());
    next.release().await.unwrap();
    // Once it is over a free lock is free.
    drop(lock.write().try_acquire().await.unwrap().unwrap());
}

#[tokio::test]
async fn what_was_asked_for_while_the_server_was_away_is_not_granted_in_quarantine() {
    let mut server = Server::start().await;
    let client = careful(&server).await;
    let lock = client.rw_lock("a");
    let guard = soon("the first", lock.write().acquire_fair()).await.unwrap();
    // Of these two the server knows one when it goes, and the other one comes while it is away.
    let waits = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 1).await;
    server.kill();
    let tried = soon("word of the outage", client.rw_lock("b").write().try_acquire()).await;
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    let asks = tokio::spawn(client.rw_lock("c").write().acquire_fair());
    tokio::task::yield_now().await;
    server.start_again().await;
    soon("word of the loss", guard.lost()).await;
    let ends = ends_us(&server).await;
    for entered in [asks, waits] {
        let entered = soon("the end of the quarantine", entered).await.unwrap().unwrap();
        assert_after(entered.fencing_token(), ends);
        entered.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_client_connects_to_a_server_whose_clock_was_stepped_back() {
    let server = Server::start().await;
    careful(&server).await;
    let mut redis = server.redis().await;
    let life: String = redis::cmd("GET")
        .arg("fairlock:life")
        .query_async(&mut redis)
        .await
        .unwrap();
    let (run, since_ms) = life.split_once(' ').unwrap();
    let ahead = since_ms.parse::<u64>().unwrap() + 3_600_000;
    let mut set = redis::cmd("SET");
    set.arg("fairlock:life").arg(format!("{run} {ahead}"));
    set.exec_async(&mut redis).await.unwrap();
    let client = careful(&server).await;
    soon("a client", client.rw_lock("a").status()).await.unwrap();
}

#[tokio::test]
async fn holds_that_the_server_still_knows_go_on_in_quarantine() {
    let mut server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let client = careful(&server).await;
    let lock = client.rw_lock("a");
    let guard = soon("the first", lock.write().acquire_fair()).await.unwrap();
    is_over(&server).await;
    let next = tokio::spawn(lock.write().acquire_fair());
    server.until_queued("a", 1).await;
    server.kill();
    server.start_again().await;
    soon("the release", guard.release()).await.unwrap();
    let next = soon("the hand-over", next).await.unwrap().unwrap();
    next.release().await.unwrap();
    let new = soon("a lock that looks free", lock.write().acquire_fair())
        .await
        .unwrap();
    assert_after(new.fencing_token(), ends_us(&server).await);
}

#[tokio::test]
async fn a_replica_that_takes_over_is_in_quarantine() {
    let master = Server::start().await;
    let port = master.port().to_string();
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]).await;
    let first = careful(&master).await;
    is_over(&master).await;
    let former = ends_us(&master).await;
    let _held = first.rw_lock("a").write().acquire_fair().await.unwrap();
    eventually("the replica knows the master's life", async || {
        let mut exists = redis::cmd("EXISTS");
        exists.arg("fairlock:life");
        exists.query_async::<bool>(&mut replica.redis().await).await.unwrap()
    })
    .await;
    let mut promote = redis::cmd("REPLICAOF");
    let promoted = promote
        .arg("NO")
        .arg("ONE")
        .query_async::<()>(&mut replica.redis().await)
        .await;
    promoted.unwrap();
    // What it does not know may be held: here a lock of another name stands for that.
    let second = careful(&replica).await;
    let guard = soon("the end", second.rw_lock("b").write().acquire_fair())
        .await
        .unwrap();
    let ends = ends_us(&replica).await;
    assert!(ends > former, "a life of its own");
    assert_after(guard.fencing_token(), ends);
}

#[tokio::test]
async fn a_client_that_connects_later_does_not_begin_the_quarantine_again() {
    let server = Server::start().await;
    let _first = careful(&server).await;
    let ends = ends_us(&server).await;
    is_over(&server).await;
    let second = careful(&server).await;
    assert_eq!(ends_us(&server).await, ends);
    drop(second.rw_lock("a").write().try_acquire().await.unwrap().unwrap());
}

#[tokio::test]
async fn a_quarantine_that_cannot_be_is_refused() {
    let server = Server::start().await;
    for lasts in [Duration::ZERO, ms(99), Duration::MAX] {
        let built = Client::builder().quarantine(lasts).connect(server.url()).await;
        assert!(matches!(built, Err(Error::InvalidDuration { .. })), "{built:?}");
    }
}
