//! Who gets permits, and when.

use super::{busy, take, used, user};
use crate::server::{Server, eventually, soon};
use crate::users::{LONG, client, queued};
use fairlock::{Error, LostReason, Mode, Owner, PermitGuard};
use fairlock_support::packed::{Packed, run_out};

#[tokio::test]
async fn permits_are_shared_up_to_the_limit_and_come_back() {
    let server = Server::start().await;
    let (here, there) = (user(&server, 4).await, user(&server, 4).await);
    let (two, one) = (take(here.permits(2)).await, take(there.permits(1)).await);
    assert_eq!((two.permits(), one.permits(), used(&here).await), (2, 1, 3));
    assert!(busy(there.permits(2)).await);
    let last = take(there.permits(1)).await;
    assert!(busy(here.permits(1)).await);
    two.release().await.unwrap();
    assert!(busy(here.permits(3)).await);
    let two = take(here.permits(2)).await;
    for guard in [two, one, last] {
        guard.release().await.unwrap();
    }
    assert_eq!(used(&here).await, 0);
    let all = take(here.permits(4)).await;
    assert!(all.is_held() && busy(there.permits(1)).await);
}

#[tokio::test]
async fn nobody_small_passes_a_big_request_that_does_not_fit_yet() {
    let server = Server::start().await;
    let semaphore = user(&server, 4).await;
    let inside = take(semaphore.permits(3)).await;
    let big = queued(&server, semaphore.permits(2), 1).await;
    let small = queued(&server, semaphore.permits(1), 2).await;
    assert!(busy(semaphore.permits(1)).await, "a try neither");
    assert!(!big.entered() && !small.entered());
    assert_eq!(used(&semaphore).await, 3, "one lies idle");
    inside.release().await.unwrap();
    let (big, small) = (big.enters().await, small.enters().await);
    assert!(big.fencing_token() <= small.fencing_token());
    assert_eq!(used(&semaphore).await, 3);
}

#[tokio::test]
async fn the_release_of_a_big_one_lets_in_as_many_as_fit() {
    let server = Server::start().await;
    let semaphore = user(&server, 4).await;
    let inside = take(semaphore.permits(4)).await;
    let mut waiting = Vec::new();
    for place in 1..=5 {
        waiting.push(queued(&server, semaphore.permits(1), place).await);
    }
    inside.release().await.unwrap();
    let fifth = waiting.pop().unwrap();
    let mut inside: Vec<PermitGuard> = Vec::new();
    for waiter in waiting {
        inside.push(waiter.enters().await);
    }
    assert!(!fifth.entered());
    assert_eq!(server.queued("a").await, 1);
    drop(inside.pop());
    fifth.enters().await.release().await.unwrap();
}

#[tokio::test]
async fn a_dropped_wait_for_permits_lets_in_who_stood_behind_it() {
    let server = Server::start().await;
    let semaphore = user(&server, 4).await;
    let _inside = take(semaphore.permits(3)).await;
    let big = queued(&server, semaphore.permits(2), 1).await;
    let small = queued(&server, semaphore.permits(1), 2).await;
    big.cancel().await;
    assert!(small.enters().await.is_held());
}

#[tokio::test]
async fn a_writer_drains_the_semaphore() {
    let server = Server::start().await;
    let semaphore = user(&server, 4).await;
    let (one, two) = (take(semaphore.permits(1)).await, take(semaphore.permits(2)).await);
    let writer = queued(&server, semaphore.rw_lock().write(), 1).await;
    let behind = queued(&server, semaphore.permits(1), 2).await;
    one.release().await.unwrap();
    assert!(!writer.entered());
    two.release().await.unwrap();
    let writer = writer.enters().await;
    assert!(!behind.entered());
    assert_eq!(used(&semaphore).await, 0);
    writer.release().await.unwrap();
    behind.enters().await.release().await.unwrap();
}

#[tokio::test]
async fn an_owner_that_reads_twice_counts_once() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a").max_readers(1);
    let mine = lock.with_owner(&Owner::new());
    let (outer, inner) = (take(mine.read()).await, take(mine.read()).await);
    assert_eq!(lock.status().await.unwrap().used, 1);
    outer.release().await.unwrap();
    assert!(busy(lock.read()).await, "it still reads");
    inner.release().await.unwrap();
    take(lock.read()).await.release().await.unwrap();
}

#[tokio::test]
async fn a_reader_of_a_bounded_lock_upgrades_and_downgrades_within_the_bound() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a").max_readers(2);
    let (reading, other) = (take(lock.read()).await, take(lock.read()).await);
    assert!(reading.try_upgrade().await.unwrap().is_none());
    other.release().await.unwrap();
    let writing = reading.upgrade().await.unwrap();
    reading.release().await.unwrap();
    assert_eq!(lock.status().await.unwrap().used, 0);
    let reading = writing.downgrade().await.unwrap();
    let status = lock.status().await.unwrap();
    assert_eq!((status.limit, status.used), (Some(2), 1));
    let other = take(lock.read()).await;
    assert!(busy(lock.read()).await);
    drop((reading, other));
}

#[tokio::test]
async fn permits_whose_lease_ran_out_go_to_who_waits_and_their_guard_is_lost() {
    let server = Server::start().await;
    let (dying, living) = (user(&server, 4).await, user(&server, 4).await);
    let lost = take(dying.permits(3)).await;
    let waiting = queued(&server, living.permits(2), 1).await;
    let mut redis = server.redis().await;
    let state = "fairlock:{a}";
    let leases: Vec<String> = redis::cmd("ZRANGE")
        .arg(format!("{state}:l"))
        .arg(0)
        .arg(-1)
        .query_async(&mut redis)
        .await
        .unwrap();
    let weighs = leases.iter().find(|request| request.ends_with(":*3"));
    run_out(&mut redis, state, &[weighs.expect("its weight is in its name")]).await;
    // The call of anybody notices it.
    assert!(busy(living.permits(4)).await);
    let guard = waiting.enters().await;
    assert_eq!(Packed::of(&mut redis, state).await.used, 2);
    assert!(matches!(lost.release().await, Err(Error::Lost { .. })));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_status_tells_who_has_how_many_permits_and_who_waits_for_how_many() {
    let server = Server::start().await;
    let semaphore = user(&server, 4).await;
    let (three, one) = (take(semaphore.permits(3)).await, take(semaphore.permits(1)).await);
    let _waiting = queued(&server, semaphore.permits(2), 1).await;
    let status = semaphore.status().await.unwrap();
    assert_eq!((status.limit, status.used, status.mode), (Some(4), 4, Some(Mode::Read)));
    let mut holders: Vec<_> = status.holders.iter().map(|h| (h.permits, h.owner)).collect();
    holders.sort();
    assert_eq!(holders, [(1, one.owner()), (3, three.owner())]);
    assert_eq!(status.waiters[0].permits, 2);
    let plain = client(server.url(), LONG).await.rw_lock("b");
    let _reading = take(plain.read()).await;
    let status = plain.status().await.unwrap();
    assert_eq!((status.limit, status.used, status.holders[0].permits), (None, 0, 1));
}

#[tokio::test]
async fn an_operator_evicts_a_holder_of_permits_whom_the_status_names() {
    let server = Server::start().await;
    let (semaphore, operator) = (user(&server, 4).await, user(&server, 4).await);
    let guard = take(semaphore.permits(3)).await;
    let owner = operator.status().await.unwrap().holders[0].owner;
    assert_eq!(owner, guard.owner());
    assert_eq!(operator.rw_lock().evict(&owner).await.unwrap(), 1);
    assert_eq!(soon("the eviction", guard.lost()).await, LostReason::Evicted);
    take(operator.permits(4)).await.release().await.unwrap();
}

#[tokio::test]
async fn permits_are_renewed_and_released_like_any_other_hold() {
    let server = Server::start().await;
    let semaphore = user(&server, 4).await;
    let guard = take(semaphore.permits(2)).await;
    assert_eq!(guard.while_held(async { 7 }).await.unwrap(), 7);
    drop(guard);
    eventually("the release", async || used(&semaphore).await == 0).await;
    let limited = semaphore.permits(2).max_hold(std::time::Duration::from_millis(1));
    let limited = limited.acquire_fair().await.unwrap();
    assert_eq!(soon("its end", limited.lost()).await, LostReason::MaxHold);
    eventually("others enter", async || !busy(semaphore.permits(4)).await).await;
}
