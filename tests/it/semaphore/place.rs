//! The room in the queue, and a request's place there.

use super::{take, user};
use crate::server::{Server, eventually, soon};
use crate::users::{LEASE, LONG, client, queued, write};
use fairlock::{Error, Owner, Policy};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

#[tokio::test]
async fn a_queue_that_is_full_refuses_at_once_and_tells_how_many_wait() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let inside = write(&lock).await;
    let first = queued(&server, lock.write().max_queue(1), 1).await;
    let refused = lock.write().max_queue(1).acquire_fair().await;
    assert!(matches!(&refused, Err(Error::QueueFull { lock, waiting: 1, .. }) if lock == "a"));
    let refused = lock.read().max_queue(0).enqueue().await;
    assert!(matches!(refused, Err(Error::QueueFull { waiting: 1, .. })));
    assert_eq!(server.queued("a").await, 1);
    let second = queued(&server, lock.write().max_queue(2), 2).await;
    let refused = lock.write().max_queue(2).try_acquire_for(LONG).await;
    assert!(matches!(refused, Err(Error::QueueFull { waiting: 2, .. })));
    inside.release().await.unwrap();
    first.enters().await.release().await.unwrap();
    second.enters().await.release().await.unwrap();
    // Who need not wait needs no room, and a try that would have to is told "busy".
    let inside = take(lock.write().max_queue(0)).await;
    assert!(lock.write().max_queue(0).try_acquire().await.unwrap().is_none());
    inside.release().await.unwrap();
}

#[tokio::test]
async fn a_queue_is_not_full_for_an_upgrade_which_stands_before_all() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let mine = lock.with_owner(&Owner::new());
    let held = take(mine.read()).await;
    let other = take(lock.read()).await;
    let second = queued(&server, lock.write(), 1).await;
    let first = queued(&server, mine.write().max_queue(1), 2).await;
    other.release().await.unwrap();
    let upgraded = first.enters().await;
    upgraded.release().await.unwrap();
    held.release().await.unwrap();
    second.enters().await.release().await.unwrap();
}

#[tokio::test]
async fn a_queue_is_not_full_of_those_whom_the_preference_puts_behind() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let lock = lock.policy(Policy::WriterFirst);
    let inside = take(lock.write()).await;
    let reader = queued(&server, lock.read(), 1).await;
    let writer = queued(&server, lock.write().max_queue(1), 2).await;
    let refused = lock.write().max_queue(1).acquire_fair().await;
    assert!(matches!(refused, Err(Error::QueueFull { waiting: 1, .. })));
    let refused = lock.read().max_queue(2).acquire_fair().await;
    assert!(matches!(refused, Err(Error::QueueFull { waiting: 2, .. })));
    inside.release().await.unwrap();
    writer.enters().await.release().await.unwrap();
    reader.enters().await.release().await.unwrap();
}

#[tokio::test]
async fn a_queued_request_knows_who_stands_before_it_until_it_enters() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let inside = write(&lock).await;
    let first = queued(&server, lock.write(), 1).await;
    let reader = lock.read().enqueue().await.unwrap();
    let last = lock.write().enqueue().await.unwrap();
    assert_eq!((reader.ahead(), last.ahead()), (1, 2));
    let place = last.place().await.unwrap().expect("it waits");
    assert_eq!((place.ahead, place.status.holding, place.status.waiting), (2, 1, 3));
    assert_eq!(place.status.holders[0].owner, inside.owner());
    inside.release().await.unwrap();
    let first = first.enters().await;
    let place = last.place().await.unwrap().expect("it waits");
    assert_eq!((place.ahead, last.ahead()), (1, 2), "then and now");
    first.release().await.unwrap();
    assert_eq!(reader.place().await.unwrap(), None, "it was granted");
    let reader = soon("its turn", reader).await.unwrap();
    assert_eq!(last.place().await.unwrap().expect("it waits").ahead, 0);
    reader.release().await.unwrap();
    soon("its turn", last).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn who_enters_at_once_has_no_place() {
    let server = Server::start().await;
    let semaphore = user(&server, 4).await;
    let queued = semaphore.permits(3).enqueue().await.unwrap();
    assert_eq!((queued.ahead(), queued.place().await.unwrap()), (0, None));
    assert_eq!(soon("the guard", queued).await.unwrap().permits(), 3);
}

#[tokio::test]
async fn a_request_keeps_its_place_when_a_wait_for_it_is_dropped_and_loses_it_when_it_is_dropped_itself() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let inside = write(&lock).await;
    let mut queued = lock.write().enqueue().await.unwrap();
    let other = lock.write().enqueue().await.unwrap();
    {
        let waiting = pin!(&mut queued);
        let polled = waiting.poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
    drop(other);
    eventually("the other leaves", async || server.queued("a").await == 1).await;
    assert_eq!(queued.place().await.unwrap().expect("it waits").ahead, 0);
    inside.release().await.unwrap();
    soon("its turn", &mut queued).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_request_with_a_limit_leaves_the_queue_at_its_end() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let free = lock.write().enqueue_for(Duration::from_millis(1)).await.unwrap();
    let inside = soon("a free lock", free).await.unwrap().expect("it was free");
    let tried = lock.write().enqueue_for(Duration::ZERO).await.unwrap();
    assert_eq!(server.queued("a").await, 0);
    assert!(tried.await.unwrap().is_none());
    let late = lock.write().enqueue_for(Duration::from_millis(1)).await.unwrap();
    let next = lock.write().enqueue_for(LONG).await.unwrap();
    assert_eq!((late.ahead(), next.ahead()), (0, 1));
    assert!(soon("the end of its time", late).await.unwrap().is_none());
    eventually("it leaves", async || server.queued("a").await == 1).await;
    inside.release().await.unwrap();
    assert!(soon("its turn", next).await.unwrap().is_some());
}

#[tokio::test]
async fn what_was_granted_and_not_taken_yet_is_renewed_until_it_is_dropped() {
    let server = Server::start().await;
    let lock = client(server.url(), LEASE).await.rw_lock("a");
    let queued = lock.write().enqueue().await.unwrap();
    // The first renewals of any client on this server.
    let calls = server.script_calls().await;
    eventually("renewals for more than a lease", async || {
        server.script_calls().await >= calls + 5
    })
    .await;
    let other = client(server.url(), LONG).await.rw_lock("a");
    assert!(other.write().try_acquire().await.unwrap().is_none());
    drop(queued);
    eventually("it is free", async || {
        other.write().try_acquire().await.unwrap().is_some()
    })
    .await;
}

#[tokio::test]
async fn a_request_that_lost_its_place_asks_again_and_tells_its_new_one() {
    let server = Server::start().await;
    let lock = client(server.url(), LEASE).await.rw_lock("a");
    let other = client(server.url(), LONG).await.rw_lock("a");
    let _lost = write(&other).await;
    let mut queued = lock.write().enqueue().await.unwrap();
    let mut redis = server.redis().await;
    redis::cmd("FLUSHALL").exec_async(&mut redis).await.unwrap();
    let inside = write(&other).await;
    // It asks again when it is polled, and tells its new place once it has read the reply: so it is polled all the time.
    let asks_again = async {
        while !matches!(queued.place().await, Ok(Some(place)) if place.ahead == 0) {
            tokio::select! {
                guard = &mut queued => panic!("nobody left: {guard:?}"),
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    };
    soon("its place", asks_again).await;
    inside.release().await.unwrap();
    soon("its turn", queued).await.unwrap().release().await.unwrap();
}
