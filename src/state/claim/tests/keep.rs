//! Holds that outlast their users.

use super::*;
use crate::state::claim::keep::without_margin;

const LEAST: Duration = Duration::from_secs(50);

/// A hold that lasts for `LEAST` from `t` on. Its lease is a second.
fn held_at_least() -> (Claim, Instant) {
    let (claim, t) = claim();
    let mut claim = claim.keeping(LEAST, Duration::ZERO);
    claim.on_reply(t, Answer::Granted { token: 1 });
    let asked = claim.lease_to_renew(t).expect("a lease");
    claim.on_renewal(t, t, asked, Standing::Holds { token: 1, first: 1 });
    assert_eq!(handed_out(&mut claim, t), Some(1));
    claim.keep(t);
    (claim, t)
}

/// A hold with a lock delay of `LEAST`.
fn held_with_a_lock_delay() -> (Claim, Instant) {
    let (claim, t) = claim();
    let mut claim = claim.keeping(Duration::ZERO, LEAST);
    claim.on_reply(t, Answer::Granted { token: 1 });
    assert!(handed_out(&mut claim, t).is_some());
    (claim, t)
}

#[test]
fn a_span_with_its_margin_lasts_as_long_on_a_faster_clock() {
    for span in (0..2_000).map(|n| Duration::from_micros(n * n * n)) {
        assert!(without_margin(with_margin(span)) >= span, "{span:?}");
    }
    assert_eq!(with_margin(Duration::ZERO), Duration::ZERO, "nothing was asked for");
}

#[test]
fn a_guard_with_a_least_time_comes_when_the_server_keeps_the_hold_so_long() {
    let (claim, t) = claim();
    let mut claim = claim.keeping(LEAST, Duration::ZERO);
    assert_eq!(claim.lease_to_ask(t), LEASE, "a place in the queue has its lease");
    claim.on_reply(t, QUEUED);
    assert_eq!(claim.lease_to_renew(t), Some(LEASE));
    assert!(claim.on_grant(t + ms(10), 20));
    assert!(matches!(claim.poll_outcome(t + ms(10)), Some(Outcome::Renew)));
    let asked = claim.lease_to_renew(t + ms(10)).expect("a lease");
    assert!(asked >= LEAST);
    claim.on_renewal(t + ms(10), t + ms(20), asked, Standing::Holds { token: 20, first: 20 });
    assert_eq!(handed_out(&mut claim, t + ms(20)), Some(20));
}

#[test]
fn a_least_time_far_below_the_lease_needs_no_further_call() {
    let (claim, t) = claim();
    let mut claim = claim.keeping(LEASE / 2, Duration::ZERO);
    claim.on_reply(t, Answer::Granted { token: 1 });
    assert_eq!(handed_out(&mut claim, t + ms(400)), Some(1));
}

#[test]
fn a_crash_after_a_grant_costs_the_least_time_and_a_lease_at_most() {
    let ((claim, t), at_least) = (claim(), LEASE * 10);
    let mut claim = claim.keeping(at_least, Duration::ZERO);
    claim.on_reply(t, Answer::Granted { token: 7 });
    let asked = claim.lease_to_ask(t);
    assert!(asked > at_least && asked <= at_least + LEASE, "{asked:?}");
}

#[test]
fn a_hold_that_its_user_has_left_is_not_lost_and_nor_is_one_that_its_lock_delay_keeps() {
    let (mut claim, t) = held_at_least();
    claim.seal(t);
    assert!(!claim.is_done_with(t), "others must not enter before its least time");
    let (mut claim, t) = held_with_a_lock_delay();
    assert_eq!(claim.held_until(t + LEASE), None);
    assert!(!claim.is_done_with(t + LEASE) && claim.is_done_with(t + LEASE + LEAST));
}

#[test]
fn a_hold_has_no_lock_delay_while_its_replicas_are_waited_for() {
    let (mut claim, t) = held_with_a_lock_delay();
    claim.begin_trial();
    assert!(!claim.end_trial(t + LEASE), "it is lost");
    assert!(claim.is_done_with(t + LEASE) && claim.lease_to_seal(t + LEASE).is_none());
    let (mut claim, t) = held_with_a_lock_delay();
    claim.begin_trial();
    assert!(claim.end_trial(t), "its user has it");
    assert_eq!(claim.held_until(t + LEASE), None);
    assert!(claim.lease_to_seal(t + LEASE).is_some());
}

#[test]
fn every_renewal_within_the_least_time_asks_for_its_rest() {
    let (mut claim, t) = held_at_least();
    for s in [0, 1, 20, 49] {
        let now = t + ms(s * 1000);
        claim.proven = Some(now + ms(1));
        let asked = claim.lease_to_renew(now).expect("a lease");
        assert!(now + without_margin(asked) >= t + LEAST, "{s} s: {asked:?}");
        claim.on_renewal(now, now, asked, Standing::Holds { token: 1, first: 1 });
        // A late copy of a shorter renewal may cut the lease: the client does not count on more.
        assert_eq!(claim.held_until(now), Some(now + ms(980)));
    }
    claim.proven = Some(t + LEAST + ms(1));
    assert_eq!(claim.lease_to_renew(t + LEAST), Some(LEASE));
}

#[test]
fn what_a_request_asks_for_before_it_knows_of_its_grant_makes_no_lease_shorter() {
    let t = Instant::now();
    let mut claim = Claim::new(LEASE, Duration::MAX, t).keeping(LEAST, Duration::ZERO);
    assert!(claim.lease_to_acquire(t).only_later, "the first call may come late too");
    claim.on_reply(t, QUEUED);
    let asked = claim.lease_to_renew(t).expect("a lease");
    assert!(claim.asked(asked).only_later);
    assert!(claim.on_grant(t, 20));
    let asked = claim.lease_to_renew(t).expect("a lease");
    assert!(
        !claim.asked(asked).only_later,
        "a clock that was stepped back is put right"
    );
    assert!(!Claim::new(LEASE, Duration::MAX, t).lease_to_acquire(t).only_later);
}

#[test]
fn a_hold_that_its_user_left_is_sealed_for_the_rest_and_released_once_at_its_end() {
    let (mut claim, t) = held_at_least();
    let left = t + ms(10_000);
    claim.proven = Some(left + LEASE);
    claim.end(EndedBy::Released);
    assert_eq!(claim.lease_to_renew(left), None);
    assert!(!claim.is_leaving(left), "its owner may reenter");
    let rest = claim.lease_to_seal(left).expect("a rest");
    assert!(rest >= ms(40_000) && rest < ms(42_000), "{rest:?}");
    assert_eq!(claim.release_at(left), None, "not before it is sealed");
    assert_eq!(claim.seal(left), t + LEAST);
    assert_eq!(claim.release_at(left), Some(t + LEAST));
    claim.let_go();
    assert_eq!(claim.release_at(t + LEAST), None);
    assert!(claim.is_leaving(t + LEAST));
    assert_eq!(claim.lease_to_seal(t + LEAST), None);
}

#[test]
fn a_hold_is_not_sealed_after_its_least_time_or_when_the_server_does_not_have_it() {
    let (mut claim, t) = held_at_least();
    assert_eq!(claim.lease_to_seal(t + LEAST), None);
    assert!(claim.lease_to_seal(t).is_some());
    claim.end(EndedBy::Lost(LostReason::Evicted));
    assert_eq!(claim.lease_to_seal(t), None);
    let (mut claim, t) = held_at_least();
    claim.on_renewal(t, t, LEASE, Standing::Unknown);
    assert_eq!(claim.lease_to_seal(t), None);
    let (mut claim, t) = held_at_least();
    claim.end(EndedBy::Lost(LostReason::Shutdown));
    assert!(claim.lease_to_seal(t).is_some(), "a shutdown leaves it to the server");
}

#[test]
fn what_was_never_handed_out_is_not_sealed() {
    let (claim, t) = claim();
    let mut claim = claim.keeping(LEAST, Duration::ZERO);
    claim.on_reply(t, Answer::Granted { token: 1 });
    claim.end(EndedBy::Released);
    assert_eq!(claim.lease_to_seal(t), None);
}

#[test]
fn the_server_is_asked_for_the_lock_delay_and_the_client_does_not_count_on_it() {
    let (claim, t) = claim();
    let delay = ms(500);
    let mut claim = claim.keeping(Duration::ZERO, delay);
    assert!(claim.lease_to_ask(t) >= LEASE + delay);
    claim.on_reply(t, Answer::Granted { token: 1 });
    assert_eq!(handed_out(&mut claim, t), Some(1));
    assert_eq!(claim.held_until(t), Some(t + ms(980)));
    let asked = claim.lease_to_renew(t + ms(300)).expect("a lease");
    assert!(asked >= LEASE + delay);
    claim.on_renewal(t + ms(300), t + ms(310), asked, Standing::Holds { token: 1, first: 1 });
    assert_eq!(claim.held_until(t + ms(310)), Some(t + ms(1280)));
}

#[test]
fn what_time_ends_is_released_after_the_lock_delay_and_what_an_operator_ends_at_once() {
    let delay = ms(500);
    let held = |max_hold| {
        let now = Instant::now();
        let mut claim = Claim::new(LEASE, max_hold, now).keeping(Duration::ZERO, delay);
        claim.on_reply(now, Answer::Granted { token: 1 });
        assert_eq!(handed_out(&mut claim, now), Some(1));
        claim.keep(now);
        (claim, now)
    };
    let (mut claim, t) = held(Duration::MAX);
    assert_eq!(claim.release_at(t), None);
    assert_eq!(claim.held_until(t + ms(990)), None);
    assert!(claim.report_loss(), "its user is told at once");
    assert_eq!(claim.release_at(t + ms(990)), Some(t + ms(1480)));
    let (mut claim, t) = held(ms(300));
    assert_eq!(claim.held_until(t + ms(300)), None);
    assert_eq!(claim.release_at(t + ms(300)), Some(t + ms(800)));
    // Dropped now, it stays as long.
    claim.leave(t + ms(300));
    assert!(claim.lease_to_seal(t + ms(300)).is_some());
    // So it does if nobody has noticed its end before that.
    let (mut claim, t) = held(ms(300));
    claim.leave(t + ms(310));
    assert!(claim.lease_to_seal(t + ms(310)).is_some_and(|rest| rest >= ms(490)));
    assert!(!claim.is_leaving(t + ms(310)), "its owner may reenter");
    let (mut claim, t) = held(ms(300));
    claim.leave(t + ms(290));
    assert_eq!(claim.lease_to_seal(t + ms(290)), None, "it was not lost");
    let (mut claim, t) = held(Duration::MAX);
    claim.end(EndedBy::Lost(LostReason::Evicted));
    assert_eq!(claim.release_at(t), Some(t));
    let (mut claim, t) = held(Duration::MAX);
    claim.end(EndedBy::Released);
    assert_eq!(claim.lease_to_seal(t), None, "a release hands over at once");
}

#[test]
fn a_hold_that_time_has_ended_has_no_limit_and_not_an_endless_one() {
    let now = Instant::now();
    let mut claim = Claim::new(LEASE, ms(300), now).keeping(Duration::ZERO, Duration::ZERO);
    claim.on_reply(now, Answer::Granted { token: 1 });
    assert_eq!(handed_out(&mut claim, now), Some(1));
    claim.keep(now);
    assert_eq!(claim.limit_left(now + ms(100)), Some(ms(200)));
    assert_eq!(claim.limit_left(now + ms(300)), None);
}
