//! The guard of several locks is lost as soon as one of them is, also before the user has it.

use super::Setting;
use crate::observe::{LONG, View, ms, until_free};
use crate::server::{eventually, soon};
use fairlock::{Error, LostReason, Owner};

/// The lock that was lost, and why.
fn loss<T: std::fmt::Debug>(result: Result<T, Error>) -> (String, LostReason) {
    match result {
        Err(Error::Lost { lock, reason, .. }) => (lock, reason),
        other => panic!("not a loss: {other:?}"),
    }
}

#[tokio::test]
async fn a_lock_that_is_lost_while_the_request_waits_for_the_next_ends_the_wait() {
    let s = Setting::new().await;
    let [a, b, c] = &s.mine;
    let held = s.others[2].write().acquire_fair().await.unwrap();
    let mine = Owner::new();
    let all = s.client.all().with_owner(&mine).write(a).write(b).write(c);
    let all = tokio::spawn(all.acquire_fair());
    s.server.until_queued("c", 1).await;
    assert_eq!(s.others[0].evict(&mine).await.unwrap(), 1);
    let lost = soon("the end of the wait", all).await.unwrap();
    assert_eq!(loss(lost), ("a".to_owned(), LostReason::Evicted));
    s.server.until_queued("c", 0).await;
    until_free(&s.server, "b").await;
    held.release().await.unwrap();
}

#[tokio::test]
async fn the_guard_is_lost_with_any_of_its_locks() {
    for evicted in 0..3 {
        let s = Setting::new().await;
        let [a, b, c] = &s.mine;
        let all = s.client.all().write(c).write(b).write(a).acquire_fair().await.unwrap();
        assert!(all.is_held());
        s.others[evicted].evict(&all.owner()).await.unwrap();
        let name = s.others[evicted].name();
        let job = soon("the end of the job", all.while_held(std::future::pending::<()>()));
        assert_eq!(loss(job.await), (name.to_owned(), LostReason::Evicted));
        assert!(!all.is_held());
        assert_eq!(soon("the loss", all.lost()).await, LostReason::Evicted);
        // The work may be under way: the others stay until the guard goes.
        for (i, other) in s.others.iter().enumerate().filter(|(i, _)| *i != evicted) {
            assert_eq!(View::of(&s.server, other.name()).await.holds, 1, "lock {i}");
        }
        let released = soon("the release", all.release()).await;
        assert_eq!(loss(released), (name.to_owned(), LostReason::Evicted));
        for lock in &s.others {
            assert!(View::of(&s.server, lock.name()).await.is_free(), "{}", lock.name());
        }
    }
}

#[tokio::test]
async fn max_hold_counts_from_the_guard_of_all_and_not_from_the_first_lock() {
    let s = Setting::new().await;
    let [a, b, _] = &s.mine;
    let held = s.others[1].write().acquire_fair().await.unwrap();
    let all = s.client.all().write(a).write(b).max_hold(ms(300)).acquire_fair();
    let all = tokio::spawn(all);
    s.server.until_queued("b", 1).await;
    let begun = View::of(&s.server, "a").await.now_ms;
    eventually("twice as long", async || {
        View::of(&s.server, "a").await.now_ms > begun + 600
    })
    .await;
    assert_eq!(View::of(&s.server, "a").await.holds, 1);
    held.release().await.unwrap();
    let all = soon("the guard", all).await.unwrap().unwrap();
    assert_eq!(soon("the end of the limit", all.lost()).await, LostReason::MaxHold);
    for name in ["a", "b"] {
        until_free(&s.server, name).await;
    }
}

#[tokio::test]
async fn a_shutdown_releases_all_and_ends_the_wait_for_the_next() {
    let s = Setting::new().await;
    let [a, b, c] = &s.mine;
    let _held = s.others[2].write().acquire_fair().await.unwrap();
    let waits = tokio::spawn(s.client.all().write(b).write(c).acquire_fair());
    s.server.until_queued("c", 1).await;
    let all = s.client.all().write(a).acquire_fair().await.unwrap();
    s.client.shutdown().await;
    let waited = soon("the end of the wait", waits).await.unwrap();
    // Whichever of the two the wait sees first.
    let is_end = matches!(
        waited,
        Err(Error::Lost {
            reason: LostReason::Shutdown,
            ..
        } | Error::Shutdown { .. })
    );
    assert!(is_end, "{waited:?}");
    assert_eq!(all.lost().await, LostReason::Shutdown);
    for name in ["a", "b"] {
        assert!(View::of(&s.server, name).await.is_free(), "{name}");
    }
}

#[tokio::test]
async fn the_lock_delay_of_all_keeps_others_out_of_each_lock() {
    let s = Setting::new().await;
    let [a, b, _] = &s.mine;
    let asking = s.client.all().write(a).write(b).max_hold(ms(100)).lock_delay(LONG);
    let all = asking.acquire_fair().await.unwrap();
    assert_eq!(soon("the loss", all.lost()).await, LostReason::MaxHold);
    // Nobody has looked at the other lock yet.
    drop(all);
    for other in &s.others[..2] {
        assert!(other.write().try_acquire().await.unwrap().is_none(), "{}", other.name());
    }
}
