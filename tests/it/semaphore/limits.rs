//! The limit: what it may be, who sets it, and what it does to those who are inside or wait.

use super::{busy, take, used, user};
use crate::server::Server;
use crate::users::{LONG, client, queued};
use fairlock::{Error, Policy};

#[tokio::test]
async fn numbers_that_cannot_be_are_refused_before_anything_is_sent() {
    let server = Server::start().await;
    let client = client(server.url(), LONG).await;
    let calls = server.script_calls().await;
    for (limit, permits, expected) in [
        (0, 1, ("limit", 0, 1_000_000_000)),
        (1_000_000_001, 1, ("limit", 1_000_000_001, 1_000_000_000)),
        (4, 0, ("number of permits", 0, 4)),
        (4, 5, ("number of permits", 5, 4)),
    ] {
        let refused = client.semaphore("a", limit).permits(permits).try_acquire().await;
        let error = refused.expect_err("a number that cannot be");
        let (what, given, most) = expected;
        let told = format!("{what} {given} for lock \"a\" is refused: it must be between 1 and {most}");
        assert_eq!(error.to_string(), told);
        let Error::InvalidPermits {
            lock,
            what,
            given,
            most,
            ..
        } = error
        else {
            panic!("{limit} {permits}: {error:?}");
        };
        assert_eq!((lock.as_str(), (what, given, most)), ("a", expected));
    }
    for lock in [
        client.rw_lock("a").max_readers(0),
        client.rw_lock("a").policy(Policy::Bounded),
    ] {
        let refused = lock.write().acquire_fair().await;
        assert!(matches!(refused, Err(Error::InvalidPermits { given: 0, .. })));
    }
    assert_eq!(server.script_calls().await, calls);
}

#[tokio::test]
async fn a_bounded_lock_and_one_without_a_bound_refuse_each_other() {
    let server = Server::start().await;
    let client = client(server.url(), LONG).await;
    take(client.semaphore("a", 4).permits(1)).await.release().await.unwrap();
    let refused = client.rw_lock("a").read().try_acquire().await.unwrap_err();
    let bounded = Policy::Bounded;
    assert!(matches!(&refused, Error::PolicyMismatch { stored, .. } if *stored == bounded));
    assert!(
        refused.to_string().contains("as a semaphore or by max_readers"),
        "{refused}"
    );
    assert_eq!(client.rw_lock("a").status().await.unwrap().policy, bounded);
    take(client.rw_lock("b").read()).await.release().await.unwrap();
    let refused = client.semaphore("b", 4).permits(1).try_acquire().await.unwrap_err();
    assert!(matches!(
        &refused,
        Error::PolicyMismatch {
            stored: Policy::Fifo,
            ..
        }
    ));
    assert!(refused.to_string().contains("without a bound"), "{refused}");
    // By either name it is the same lock.
    let reading = take(client.rw_lock("a").max_readers(4).read()).await;
    assert_eq!(used(&client.semaphore("a", 4)).await, 1);
    reading.release().await.unwrap();
}

#[tokio::test]
async fn a_greater_limit_lets_in_who_waits_before_the_one_that_brought_it() {
    let server = Server::start().await;
    let (old, new) = (user(&server, 2).await, user(&server, 4).await);
    let _inside = take(old.permits(2)).await;
    let waiting = queued(&server, old.permits(2), 1).await;
    assert!(busy(new.permits(1)).await, "the waiter took what was new");
    let guard = waiting.enters().await;
    let status = old.status().await.unwrap();
    assert_eq!((status.limit, status.used), (Some(4), 4));
    drop(guard);
}

#[tokio::test]
async fn a_smaller_limit_takes_nothing_away_and_lets_nobody_in_above_it() {
    let server = Server::start().await;
    let (old, new) = (user(&server, 4).await, user(&server, 1).await);
    let (two, one) = (take(old.permits(2)).await, take(old.permits(1)).await);
    assert!(busy(new.permits(1)).await);
    assert!(two.is_held() && one.is_held());
    let status = new.status().await.unwrap();
    assert_eq!((status.limit, status.used), (Some(1), 3));
    two.release().await.unwrap();
    assert!(busy(new.permits(1)).await);
    one.release().await.unwrap();
    take(new.permits(1)).await.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_for_more_than_a_limit_that_fell_enters_when_nobody_is_inside() {
    let server = Server::start().await;
    let (old, new) = (user(&server, 4).await, user(&server, 1).await);
    let inside = take(old.permits(2)).await;
    let big = queued(&server, old.permits(4), 1).await;
    assert!(busy(new.permits(1)).await);
    inside.release().await.unwrap();
    let big = big.enters().await;
    assert_eq!(used(&new).await, 4);
    assert!(busy(new.permits(1)).await);
    big.release().await.unwrap();
}
