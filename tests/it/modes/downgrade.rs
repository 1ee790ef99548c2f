//! A writer that goes on as a reader.

use crate::lua::Lock;
use crate::proxy::Proxy;
use crate::server::{Server, eventually, soon};
use crate::users::{LEASE, LONG, client, downgrade, held_by, queued, read, state, user, write};
use fairlock::{Error, LostReason, Owner, WriteGuard};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::sleep;

#[tokio::test]
async fn a_downgrade_lets_in_the_readers_at_the_head_by_one_script_call() {
    let server = Server::start().await;
    let (lock, other) = (user(&server, LONG).await, user(&server, LONG).await);
    let writing = write(&lock).await;
    let first = queued(&server, other.read(), 1).await;
    let second = queued(&server, other.read(), 2).await;
    let writer = queued(&server, other.write(), 3).await;
    let behind = queued(&server, other.read(), 4).await;
    let token = writing.fencing_token();
    let calls = server.script_calls().await;
    let reading = downgrade(writing).await;
    let (first, second) = (first.enters().await, second.enters().await);
    assert_eq!(server.script_calls().await - calls, 1);
    assert_eq!(reading.fencing_token(), token);
    assert!(first.fencing_token() > token);
    assert_eq!(state(&server, "a").await["mode"], "read");
    assert_eq!(state(&server, "a").await["reads"], "3");
    assert!(!writer.entered() && !behind.entered());
    for guard in [first, second, reading] {
        assert_eq!(server.queued("a").await, 2);
        guard.release().await.unwrap();
    }
    let writer = writer.enters().await;
    assert!(!behind.entered());
    writer.release().await.unwrap();
    drop(behind.enters().await);
}

#[tokio::test]
async fn a_writer_at_the_head_stays_out_until_the_downgraded_read_is_released() {
    let server = Server::start().await;
    let (lock, other) = (user(&server, LONG).await, user(&server, LONG).await);
    let writing = write(&lock).await;
    let writer = queued(&server, other.write(), 1).await;
    let reading = downgrade(writing).await;
    assert_eq!(server.queued("a").await, 1, "it entered beside the reader");
    assert!(!writer.entered() && reading.is_held());
    reading.release().await.unwrap();
    drop(writer.enters().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_downgraded_and_upgraded_is_never_free_in_between() {
    const ROUNDS: usize = 100;
    let server = Server::start().await;
    let (lock, other) = (user(&server, LONG).await, user(&server, LONG).await);
    let mut writing = write(&lock.with_owner(&Owner::new())).await;
    let (tries, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let intruder = tokio::spawn({
        let (tries, done) = (Arc::clone(&tries), Arc::clone(&done));
        async move {
            loop {
                let entered = other.write().try_acquire().await.expect("an answer");
                if entered.is_some() {
                    return done.load(Ordering::SeqCst);
                }
                tries.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    for _ in 0..ROUNDS {
        let reading = downgrade(writing).await;
        let raised = soon("the upgrade", reading.try_upgrade()).await.unwrap();
        writing = raised.expect("nobody else reads");
        reading.release().await.unwrap();
    }
    eventually("a try a round", async || {
        tries.load(Ordering::SeqCst) >= ROUNDS || intruder.is_finished()
    })
    .await;
    assert!(!intruder.is_finished(), "a writer entered in between");
    done.store(true, Ordering::SeqCst);
    // Were it not for the holder it would enter.
    writing.release().await.unwrap();
    assert!(
        soon("the other writer", intruder).await.unwrap(),
        "it entered before the end"
    );
}

#[tokio::test]
async fn a_downgrade_of_a_nested_write_leaves_the_lock_written() {
    let server = Server::start().await;
    let (lock, other) = (user(&server, LONG).await, user(&server, LONG).await);
    let owner = Owner::new();
    let mine = lock.with_owner(&owner);
    let (outer, inner) = (write(&mine).await, write(&mine).await);
    let token = outer.fencing_token();
    let reader = queued(&server, other.read(), 1).await;
    let reading = downgrade(inner).await;
    assert_eq!(reading.fencing_token(), token);
    assert_eq!(state(&server, "a").await, held_by(&owner, 1, 1, token));
    assert!(!reader.entered());
    outer.release().await.unwrap();
    let entered = reader.enters().await;
    let last = entered.fencing_token();
    entered.release().await.unwrap();
    assert_eq!(state(&server, "a").await, held_by(&owner, 1, 0, last));
    reading.release().await.unwrap();
    assert!(state(&server, "a").await.is_empty());
}

#[tokio::test]
async fn a_downgrade_that_is_dropped_at_any_moment_releases_everything() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let mine = client(proxy.url(), LONG).await.rw_lock("a");
    let other = user(&server, LONG).await;
    let executed = async || state(&server, "a").await.get("mode").is_some_and(|mode| mode == "read");
    for moment in ["never polled", "sent", "executed", "soon after"] {
        let writing = write(&mine).await;
        let writer = queued(&server, other.write(), 1).await;
        proxy.delay_replies(Duration::from_millis(200));
        {
            let mut dropped = pin!(writing.downgrade());
            if moment != "never polled" {
                let polled = dropped.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(matches!(polled, Poll::Pending), "{moment}");
            }
            match moment {
                "executed" => eventually("it executed", executed).await,
                "soon after" => sleep(Duration::from_millis(3)).await,
                _ => {}
            }
        }
        proxy.delay_replies(Duration::ZERO);
        writer.enters().await.release().await.unwrap();
        eventually("nothing left", async || state(&server, "a").await.is_empty()).await;
    }
}

#[tokio::test]
async fn a_downgrade_whose_reply_is_lost_counts_once() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let owner = Owner::new();
    let mine = client(proxy.url(), LONG).await.rw_lock("a").with_owner(&owner);
    let writing = write(&mine).await;
    let token = writing.fencing_token();
    let reader = queued(&server, user(&server, LONG).await.read(), 1).await;
    proxy.lose_replies(1);
    let reading = downgrade(writing).await;
    assert_eq!(proxy.replies_to_lose(), 0);
    assert_eq!(reading.fencing_token(), token);
    let entered = reader.enters().await;
    let last = entered.fencing_token();
    assert!(last > token, "later than what it was told while it waited");
    entered.release().await.unwrap();
    assert_eq!(state(&server, "a").await, held_by(&owner, 1, 0, last));
    reading.release().await.unwrap();
    assert!(state(&server, "a").await.is_empty());
}

#[tokio::test]
async fn a_downgrade_after_the_loss_is_an_error_and_takes_nothing() {
    let server = Server::start().await;
    let (lock, other) = (user(&server, LONG).await, user(&server, LONG).await);
    // Known here.
    let asked = lock.write().max_hold(LEASE).acquire_fair();
    let writing = soon("to write", asked).await.unwrap();
    assert_eq!(soon("the loss", writing.lost()).await, LostReason::MaxHold);
    let next: WriteGuard = write(&other).await;
    let lost = soon("an answer", writing.downgrade()).await;
    assert!(
        matches!(
            lost,
            Err(Error::Lost {
                reason: LostReason::MaxHold,
                ..
            })
        ),
        "{lost:?}"
    );
    assert!(next.is_held());
    next.release().await.unwrap();

    // Known to the server only: it lost its data, and others are inside.
    let writing = write(&lock).await;
    let _: () = redis::cmd("FLUSHALL")
        .query_async(&mut server.redis().await)
        .await
        .unwrap();
    let next = write(&other).await;
    let before = state(&server, "a").await;
    let lost = soon("an answer", writing.downgrade()).await;
    assert!(
        matches!(
            lost,
            Err(Error::Lost {
                reason: LostReason::UnknownToServer,
                ..
            })
        ),
        "{lost:?}"
    );
    assert_eq!(state(&server, "a").await, before);
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_downgrade_of_a_hold_that_was_interrupted_is_lost() {
    let server = Server::start().await;
    let (lock, other) = (user(&server, LONG).await, user(&server, LONG).await);
    let raw = Lock::new(&server, "a").await;
    let writing = write(&lock).await;
    let request = raw.state().await.holding()[0].to_owned();
    // The server loses its data, and another one writes. Then a late copy of the acquire is executed.
    let _: () = redis::cmd("FLUSHALL")
        .query_async(&mut server.redis().await)
        .await
        .unwrap();
    write(&other).await.release().await.unwrap();
    raw.acquire(&request).await.token();
    let lost = soon("an answer", writing.downgrade()).await;
    let reason = match lost {
        Err(Error::Lost { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason, LostReason::UnknownToServer);
    // The client releases the read hold that the server has made of it.
    write(&other).await.release().await.unwrap();
}

/// What a late copy of its acquire has made of the hold is nobody's, and has no least time.
#[tokio::test]
async fn a_hold_that_was_interrupted_leaves_nothing_for_its_least_time() {
    for downgrades in [true, false] {
        let server = Server::start().await;
        let (lock, other) = (user(&server, LONG).await, user(&server, LONG).await);
        let raw = Lock::new(&server, "a").await;
        let asked = lock.write().hold_at_least(LONG * 10).acquire_fair();
        let writing = soon("a grant", asked).await.unwrap();
        let request = raw.state().await.holding()[0].to_owned();
        let flushed = redis::cmd("FLUSHALL").exec_async(&mut server.redis().await).await;
        flushed.unwrap();
        write(&other).await.release().await.unwrap();
        raw.acquire(&request).await.token();
        let lost = match downgrades {
            true => soon("an answer", writing.downgrade()).await.map(drop),
            false => soon("an answer", writing.release()).await,
        };
        assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
        write(&other).await.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_request_without_an_owner_upgrades_and_downgrades_as_one_owner() {
    let server = Server::start().await;
    let (lock, other) = (user(&server, LONG).await, user(&server, LONG).await);
    let reading = read(&lock).await;
    let writing = reading.try_upgrade().await.unwrap().expect("nobody else reads");
    assert_eq!(writing.owner(), reading.owner());
    let again = writing.downgrade().await.unwrap();
    assert_eq!(again.owner(), reading.owner());
    assert_eq!(state(&server, "a").await["reads"], "2");
    reading.release().await.unwrap();
    again.release().await.unwrap();
    assert!(state(&server, "a").await.is_empty());
    assert!(other.write().try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_downgrade_does_not_end_the_limit_of_max_hold() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await;
    let asked = lock.write().max_hold(LEASE * 2).acquire_fair();
    let writing = soon("to write", asked).await.unwrap();
    let reading = writing.downgrade().await.unwrap();
    assert_eq!(soon("the loss", reading.lost()).await, LostReason::MaxHold);
    drop(write(&lock).await);
}
