//! Messages of grants that are lost, late or never sent.

use super::{Line, Setting};
use crate::lateness::in_time;
use crate::observe::{LONG, client, ms, until_free};
use crate::server::{Server, eventually, soon};
use std::time::Instant;

#[tokio::test]
async fn without_any_message_waiters_enter_by_their_renewals() {
    let s = Setting::new(2100).await;
    s.proxy.drop_messages(true);
    let held = s.near.rw_lock("a").write().acquire_fair().await.unwrap();
    let line = Line::up(&s.server, &[&s.far], "a", 3).await;
    held.release().await.unwrap();
    let (order, _) = line.through().await;
    assert_eq!(order, [0, 1, 2]);
    assert!(s.proxy.messages() >= 3, "messages were sent and dropped");
    until_free(&s.server, "a").await;
}

#[tokio::test]
async fn a_grant_told_before_the_waiter_knows_that_it_waits_is_heard() {
    let s = Setting::new(600_000).await;
    let held = s.near.rw_lock("a").write().acquire_fair().await.unwrap();
    s.proxy.hold_replies(true);
    let waiter = tokio::spawn(s.far.rw_lock("a").write().acquire_fair());
    s.server.until_queued("a", 1).await;
    // The message overtakes the reply.
    held.release().await.unwrap();
    eventually("the message passes", async || s.proxy.messages() == 1).await;
    assert!(!waiter.is_finished());
    s.proxy.hold_replies(false);
    let guard = soon("it enters", waiter).await.unwrap().unwrap();
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_grant_whose_message_is_lost_before_the_waiter_parks_is_learned_by_renewal() {
    let s = Setting::new(1500).await;
    let held = s.near.rw_lock("a").write().acquire_fair().await.unwrap();
    s.proxy.delay_replies(ms(300));
    let waiter = tokio::spawn(s.far.rw_lock("a").write().acquire_fair());
    s.server.until_queued("a", 1).await;
    s.proxy.delay_replies(ms(0));
    s.proxy.drop_messages(true);
    held.release().await.unwrap();
    let guard = soon("it enters", waiter).await.unwrap().unwrap();
    assert!(guard.is_held());
    assert_eq!(s.proxy.messages(), 1, "it was sent and dropped");
}

#[tokio::test]
async fn a_grant_that_was_missed_is_learned_as_soon_as_the_subscription_is_made_again() {
    // Its next renewal is minutes away.
    let s = Setting::new(600_000).await;
    let held = s.near.rw_lock("a").write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(s.far.rw_lock("a").write().acquire_fair());
    s.server.until_queued("a", 1).await;
    s.proxy.drop_messages(true);
    held.release().await.unwrap();
    eventually("the message is dropped", async || s.proxy.messages() == 1).await;
    assert!(!waiter.is_finished());
    s.proxy.cut();
    let guard = soon("it enters", waiter).await.unwrap().unwrap();
    assert!(guard.is_held());
}

#[tokio::test]
async fn parked_waiters_send_renewals_only_and_those_together() {
    in_time(async || {
        let server = Server::start().await;
        let (a, b) = (client(server.url(), LONG).await, client(server.url(), ms(900)).await);
        let held = a.rw_lock("a").write().acquire_fair().await.unwrap();
        let line = Line::up(&server, &[&b], "a", 50).await;
        // The first renewal loads its script.
        let queued = server.script_calls().await;
        eventually("a renewal", async || server.script_calls().await > queued).await;
        let (begun, calls, loads) = (Instant::now(), server.script_calls().await, server.calls("eval").await);
        tokio::time::sleep(ms(2400)).await;
        let renewals = server.script_calls().await - calls;
        // One each 300 ms for all of them, twice that if the waiters fell out of step.
        let intervals = u64::try_from(begun.elapsed().as_millis()).unwrap() / 300;
        assert!(
            (2..=2 * intervals + 4).contains(&renewals),
            "{renewals} in {intervals} intervals"
        );
        assert_eq!((server.calls("publish").await, server.calls("eval").await), (0, loads));
        held.release().await.unwrap();
        assert_eq!(line.through().await.0, Vec::from_iter(0..50));
    })
    .await;
}
