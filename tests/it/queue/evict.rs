//! An operator throws an owner out.

use crate::observability::status::dumps;
use crate::proxy::Proxy;
use crate::server::{Server, connected, soon};
use fairlock::{Client, Error, LostReason, Mode, Owner, RwLock};
use std::time::Duration;

/// So long that nothing is renewed and nothing expires in a test: what is heard came by a message.
const LONG: Duration = Duration::from_secs(600);

async fn client(server: &Server) -> Client {
    let builder = Client::builder().lease(LONG);
    connected(builder, server.url()).await
}

async fn two_clients(server: &Server) -> (RwLock, RwLock) {
    (client(server).await.rw_lock("a"), client(server).await.rw_lock("a"))
}

fn is_evicted<T: std::fmt::Debug>(outcome: &Result<T, Error>) -> bool {
    matches!(
        outcome,
        Err(Error::Lost {
            reason: LostReason::Evicted,
            ..
        })
    )
}

#[tokio::test]
async fn an_evicted_holder_hears_it_and_the_next_waiter_enters_in_the_same_script() {
    let server = Server::start().await;
    let (here, there) = two_clients(&server).await;
    let me = Owner::new();
    let guard = here.with_owner(&me).write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(there.write().acquire_fair());
    server.until_queued("a", 1).await;
    let calls = server.script_calls().await;
    assert_eq!(there.evict(&me).await.unwrap(), 1);
    let next = soon("the next writer", waiter).await.unwrap().unwrap();
    // Renewals come after 200 s, so it was the message.
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Evicted);
    let after = server.script_calls().await;
    assert_eq!(after - calls, 1, "somebody asked again");
    assert!(!guard.is_held());
    assert!(next.is_held() && next.fencing_token() > guard.fencing_token());
    let dropped = guard.while_held(std::future::pending::<()>()).await;
    assert!(is_evicted(&dropped), "{dropped:?}");
    let released = guard.release().await;
    assert!(is_evicted(&released), "{released:?}");
    assert!(next.is_held());
    next.release().await.unwrap();
    assert_eq!(there.status().await.unwrap().mode, None);
}

#[tokio::test]
async fn an_evicted_sole_holder_leaves_the_lock_free_and_may_come_back() {
    let server = Server::start().await;
    let (here, there) = two_clients(&server).await;
    let me = Owner::new();
    let guard = here.with_owner(&me).read().acquire_fair().await.unwrap();
    assert_eq!(there.evict(&me).await.unwrap(), 1);
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Evicted);
    assert_eq!(there.evict(&me).await.unwrap(), 0, "it is out already");
    let upgraded = guard.upgrade().await;
    assert!(is_evicted(&upgraded), "{upgraded:?}");
    let token = guard.fencing_token();
    drop(guard);
    let back = here.with_owner(&me).write().try_acquire().await.unwrap();
    let back = back.expect("the lock is free");
    assert!(back.fencing_token() > token);
    let downgraded = {
        assert_eq!(there.evict(&me).await.unwrap(), 1);
        soon("the loss", back.lost()).await;
        back.downgrade().await
    };
    assert!(is_evicted(&downgraded), "{downgraded:?}");
}

#[tokio::test]
async fn an_evicted_waiter_gets_an_error_and_those_behind_move() {
    let server = Server::start().await;
    let (here, there) = two_clients(&server).await;
    let me = Owner::new();
    let _reading = here.read().acquire_fair().await.unwrap();
    let waiting = tokio::spawn(here.with_owner(&me).write().acquire_fair());
    server.until_queued("a", 1).await;
    let behind = tokio::spawn(there.read().acquire_fair());
    server.until_queued("a", 2).await;
    assert_eq!(there.evict(&me).await.unwrap(), 1);
    let outcome = soon("the error", waiting).await.unwrap();
    assert!(is_evicted(&outcome), "{outcome:?}");
    drop(soon("the reader behind it", behind).await.unwrap().unwrap());
    // It waits nowhere any more, so it may ask again.
    let none = here.with_owner(&me).write().try_acquire().await.unwrap();
    assert!(none.is_none());
}

#[tokio::test]
async fn who_waits_behind_an_evicted_waiter_enters_by_the_eviction_itself() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let builder = Client::builder().lease(LONG);
    let deaf = builder.connect(proxy.url()).await.unwrap().rw_lock("a");
    let there = client(&server).await.rw_lock("a");
    // So that the evicted one cannot help by leaving.
    proxy.drop_messages(true);
    let me = Owner::new();
    let _reading = there.read().acquire_fair().await.unwrap();
    let waiting = tokio::spawn(deaf.with_owner(&me).write().acquire_fair());
    server.until_queued("a", 1).await;
    let behind = tokio::spawn(there.read().acquire_fair());
    server.until_queued("a", 2).await;
    assert_eq!(there.evict(&me).await.unwrap(), 1);
    drop(soon("the reader behind it", behind).await.unwrap().unwrap());
    assert!(!waiting.is_finished());
}

#[tokio::test]
async fn all_holds_and_waits_of_an_owner_go_whichever_client_they_are_of() {
    let server = Server::start().await;
    let (here, there) = two_clients(&server).await;
    let me = Owner::new();
    let other = there.read().acquire_fair().await.unwrap();
    let first = here.with_owner(&me).read().acquire_fair().await.unwrap();
    let second = there.with_owner(&me).read().acquire_fair().await.unwrap();
    let third = there.with_owner(&me).read().acquire_fair().await.unwrap();
    let upgrading = tokio::spawn(async move { (first.upgrade().await, first) });
    server.until_queued("a", 1).await;
    let behind = tokio::spawn(here.read().acquire_fair());
    server.until_queued("a", 2).await;
    assert_eq!(here.evict(&me).await.unwrap(), 4);
    let (upgraded, first) = soon("the error", upgrading).await.unwrap();
    assert!(is_evicted(&upgraded), "{upgraded:?}");
    for guard in [&first, &second, &third] {
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::Evicted);
    }
    let behind = soon("who was behind the upgrade", behind).await.unwrap().unwrap();
    assert!(other.is_held() && behind.is_held());
    let status = here.status().await.unwrap();
    assert_eq!((status.mode, status.holding, status.waiting), (Some(Mode::Read), 2, 0));
    assert!(
        status
            .holders
            .iter()
            .all(|holder| holder.owner != me && holder.holds == 1)
    );

    // And a writer with everything.
    drop((other, behind, first, second, third));
    let mine = here.with_owner(&me);
    let writing = soon("to write", mine.write().acquire_fair()).await.unwrap();
    let inner = there.with_owner(&me).write().acquire_fair().await.unwrap();
    let reading = mine.read().acquire_fair().await.unwrap();
    assert_eq!(there.evict(&me).await.unwrap(), 3);
    soon("the losses", async {
        (writing.lost().await, inner.lost().await, reading.lost().await)
    })
    .await;
    assert!(there.write().try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn to_evict_an_owner_that_is_not_there_changes_nothing() {
    let server = Server::start().await;
    let (here, there) = two_clients(&server).await;
    let unused = dumps(&server).await;
    assert_eq!(there.evict(&Owner::new()).await.unwrap(), 0);
    assert_eq!(dumps(&server).await, unused, "keys were made");

    let me = Owner::new();
    let guard = here.with_owner(&me).write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(there.write().acquire_fair());
    server.until_queued("a", 1).await;
    let before = dumps(&server).await;
    assert_eq!(there.evict(&Owner::new()).await.unwrap(), 0);
    // Nor one that is in another lock only.
    let elsewhere = Owner::new();
    let _other = client(&server)
        .await
        .rw_lock("b")
        .with_owner(&elsewhere)
        .write()
        .acquire_fair()
        .await
        .unwrap();
    assert_eq!(there.evict(&elsewhere).await.unwrap(), 0);
    let after = dumps(&server).await;
    assert!(before.iter().all(|key| after.contains(key)), "{before:?}\n{after:?}");
    assert!(guard.is_held() && !waiter.is_finished());
}

#[tokio::test]
async fn without_messages_an_evicted_holder_hears_it_at_its_next_renewal() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let builder = Client::builder().lease(Duration::from_secs(3));
    let deaf = builder.connect(proxy.url()).await.unwrap().rw_lock("a");
    let there = client(&server).await.rw_lock("a");
    proxy.drop_messages(true);
    let me = Owner::new();
    let guard = deaf.with_owner(&me).write().acquire_fair().await.unwrap();
    assert_eq!(there.evict(&me).await.unwrap(), 1);
    let next = there.write().try_acquire().await.unwrap();
    let next = next.expect("the lock is free, whatever the evicted one believes");
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::UnknownToServer);
    assert!(next.fencing_token() > guard.fencing_token());
    assert!(proxy.messages() > 0, "no message was dropped");
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(next.is_held());
}

#[tokio::test]
async fn owners_of_unnamed_requests_can_be_evicted_as_status_shows_them() {
    let server = Server::start().await;
    let (here, there) = two_clients(&server).await;
    let guard = here.write().acquire_fair().await.unwrap();
    let stays = tokio::spawn(there.read().acquire_fair());
    server.until_queued("a", 1).await;
    let goes = tokio::spawn(here.read().acquire_fair());
    server.until_queued("a", 2).await;
    let status = there.status().await.unwrap();
    assert_eq!(there.evict(&status.waiters[1].owner).await.unwrap(), 1);
    let outcome = soon("the error", goes).await.unwrap();
    assert!(is_evicted(&outcome), "{outcome:?}");
    assert!(guard.is_held() && !stays.is_finished());
    assert_eq!(there.evict(&status.holders[0].owner).await.unwrap(), 1);
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Evicted);
    drop(soon("the other waiter", stays).await.unwrap().unwrap());
}

#[tokio::test]
async fn the_next_of_more_than_a_batch_of_readers_enter_after_an_eviction() {
    const READERS: usize = 1100;
    let server = Server::start().await;
    let (here, there) = two_clients(&server).await;
    let me = Owner::new();
    let _guard = here.with_owner(&me).write().acquire_fair().await.unwrap();
    let mut readers = tokio::task::JoinSet::new();
    for queued in (0..READERS).step_by(100) {
        for _ in 0..100 {
            readers.spawn(here.read().acquire_fair());
        }
        server.until_queued("a", queued + 100).await;
    }
    assert_eq!(there.evict(&me).await.unwrap(), 1);
    // One script grants to 1,024; nobody renews for 200 s, so the rest came in by the care of the evicting client.
    soon("all readers", async {
        while let Some(reader) = readers.join_next().await {
            std::mem::forget(reader.unwrap().unwrap());
        }
    })
    .await;
    assert_eq!(here.status().await.unwrap().holding, READERS);
}

#[tokio::test]
async fn an_evicted_owner_may_come_back_while_its_old_guard_still_exists() {
    let server = Server::start().await;
    let (here, there) = two_clients(&server).await;
    let me = Owner::new();
    let guard = here.with_owner(&me).write().acquire_fair().await.unwrap();
    assert_eq!(there.evict(&me).await.unwrap(), 1);
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Evicted);
    let back = soon("to come back", here.with_owner(&me).write().acquire_fair())
        .await
        .unwrap();
    assert!(back.is_held() && !guard.is_held());
    assert!(back.fencing_token() > guard.fencing_token());
    drop(guard);
    assert_eq!(there.status().await.unwrap().holders[0].owner, me);
}
