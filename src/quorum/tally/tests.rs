use super::*;
use crate::protocol::key::Lock;
use crate::protocol::order::FIRST_PLACE;
use crate::protocol::reply::Answer;
use crate::state::claim::Claim;
use crate::types::mode::Admission;

const LEASE: Duration = Duration::from_secs(10);
const QUEUED: fn(u64) -> Answer = |ticket| Answer::Queued {
    ticket,
    seq: ticket,
    ahead: 0,
};
const GRANTED: fn(u64) -> Answer = |token| Answer::Granted { token };

/// A tally of three servers, each of which gave such an answer to a request.
fn answered(now: Instant, answers: &[Answer]) -> Tally {
    let mut tally = Tally::new(3, LEASE, Duration::MAX);
    for (at, answer) in answers.iter().enumerate() {
        assert_eq!(
            is_told(&mut tally, at, *answer, now),
            at == 1,
            "the second answer of three makes a majority, and wakes the caller"
        );
    }
    tally
}

/// A server gives its first answer. Returns whether it makes a majority.
fn is_told(tally: &mut Tally, at: usize, answer: Answer, now: Instant) -> bool {
    let lock = Arc::new(Lock::new("p", "a".into()));
    let mut claim = Claim::new(LEASE, Duration::MAX, now);
    claim.is_vote = true;
    let request = Request::new(1, "w0a:1".to_owned(), lock, Admission::FIFO, claim);
    request.claim().on_reply(now, answer);
    assert!(tally.is_first(at));
    tally.on_answer(at, Arc::new(request), None, now, now)
}

fn holds(tally: &Tally) -> bool {
    matches!(tally.phase, Phase::Holds { .. })
}

#[test]
fn a_majority_of_grants_holds_with_the_greatest_token_and_a_minority_does_not() {
    let now = Instant::now();
    let mut few = answered(now, &[GRANTED(5), QUEUED(7), QUEUED(9)]);
    assert!(!few.weigh(|| now, |_| Some(now)) && !holds(&few));
    let mut tally = answered(now, &[GRANTED(5), QUEUED(7), GRANTED(9)]);
    assert!(tally.weigh(|| now, |_| Some(now)));
    assert!(matches!(tally.phase, Phase::Holds { token: 9, .. }));
    assert_eq!(tally.held(now), 2);
}

#[test]
fn a_vote_that_is_gained_later_ends_with_the_max_hold() {
    let (now, max_hold) = (Instant::now(), Duration::from_secs(4));
    let mut tally = Tally::new(3, LEASE, max_hold);
    is_told(&mut tally, 0, GRANTED(5), now);
    is_told(&mut tally, 1, GRANTED(6), now);
    assert!(tally.weigh(|| now, |_| Some(now)) && holds(&tally));
    tally.limit(now);
    let later = now + Duration::from_secs(1);
    is_told(&mut tally, 2, GRANTED(7), later);
    tally.weigh(|| later, |_| Some(now));
    assert_eq!(tally.held(later), 3);
    for vote in &tally.votes {
        let asked = vote.request.as_ref().unwrap().claim().lease_to_renew(later);
        assert!(asked.is_some_and(|asked| asked <= max_hold), "{asked:?}");
    }
}

#[test]
fn a_grant_without_a_connection_does_not_count() {
    let now = Instant::now();
    let mut tally = answered(now, &[GRANTED(5), GRANTED(6)]);
    assert!(!tally.weigh(|| now, |at| (at > 0).then_some(now)));
    assert!(tally.weigh(|| now, |_| Some(now)) && holds(&tally));
}

/// The server may have granted it from old data, with a token that is behind one that it has forgotten.
#[test]
fn a_vote_that_was_asked_for_in_the_quarantine_of_its_server_asks_again_when_that_is_over() {
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    for old in [GRANTED(5), QUEUED(5)] {
        let mut tally = answered(now, &[old, GRANTED(6), QUEUED(7)]);
        let trusted = |at: usize| Some(if at == 0 { later } else { now });
        assert!(!tally.weigh(|| now, trusted));
        assert!(matches!(tally.step(0, now, Some(later)), Step::Wait(Some(at)) if at == later));
        assert!(!tally.weigh(|| later, trusted), "it does not count later either");
        assert!(matches!(tally.step(0, later, Some(later)), Step::AskAgain));
        assert!(matches!(tally.step(1, later, Some(now)), Step::Wait(_)));
    }
    // A hold gains it all the same, as its token is drawn.
    let mut tally = answered(now, &[GRANTED(5), GRANTED(6), GRANTED(7)]);
    let trusted = |at: usize| Some(if at == 0 { later } else { now });
    assert!(tally.weigh(|| now, trusted) && holds(&tally) && tally.held(now) == 2);
    assert!(matches!(tally.step(0, now, Some(later)), Step::Wait(Some(at)) if at <= later));
    tally.weigh(|| later, trusted);
    assert_eq!(tally.held(later), 3);
    // Asked for after that, it counts; and a hold keeps the votes that it has.
    let mut tally = answered(later, &[GRANTED(5), GRANTED(6)]);
    assert!(tally.weigh(|| later, |_| Some(later)) && holds(&tally));
    let restarted = later + Duration::from_secs(1);
    assert!(!tally.weigh(|| restarted, |_| Some(restarted)) && holds(&tally));
    assert!(matches!(tally.step(0, restarted, Some(restarted)), Step::Wait(_)));
}

#[test]
fn a_grant_does_not_count_while_its_place_is_under_way_and_never_when_it_was_given_up() {
    let now = Instant::now();
    let trusted = |_| Some(now);
    let mut tally = answered(now, &[GRANTED(5), QUEUED(7)]);
    assert_eq!(tally.ticket_to_take(), Some(7));
    tally.take_ticket(7, now);
    assert!(matches!(tally.step(0, now, None), Step::Place(_, 7, Some(5))));
    tally.votes[1]
        .request
        .as_ref()
        .unwrap()
        .on_renewal(now, now, LEASE, Standing::Holds { token: 8, first: 8 });
    assert!(!tally.weigh(|| now, trusted), "the place may end it");
    // A renewal that was sent earlier tells of the former grant.
    tally.on_place(0, 7, Some(5), Standing::Waits { seq: 9 }, now);
    assert!(!tally.weigh(|| now, trusted), "it was given up");
    // The same token is a grant that the server kept.
    let mut kept = answered(now, &[GRANTED(5), QUEUED(7)]);
    kept.take_ticket(7, now);
    assert!(matches!(kept.step(0, now, None), Step::Place(_, 7, Some(5))));
    kept.on_place(0, 7, Some(5), Standing::Holds { token: 5, first: 5 }, now);
    assert!(matches!(kept.step(0, now, None), Step::Wait(Some(_))), "it has settled");
    kept.votes[1]
        .request
        .as_ref()
        .unwrap()
        .on_renewal(now, now, LEASE, Standing::Holds { token: 8, first: 8 });
    assert!(kept.weigh(|| now, trusted) && holds(&kept));
}

#[test]
fn a_vote_that_waits_at_the_ticket_already_is_not_placed() {
    let now = Instant::now();
    for (last, is_placed) in [
        (QUEUED(32), false),
        (QUEUED(16), true),
        (QUEUED(48), true),
        (GRANTED(32), true),
    ] {
        let mut tally = answered(now, &[QUEUED(32), QUEUED(32)]);
        tally.take_ticket(32, now);
        is_told(&mut tally, 2, last, now);
        let is_place = |at| matches!(tally.step(at, now, None), Step::Place(_, 32, _));
        assert_eq!([0, 1, 2].map(is_place), [false, false, is_placed], "{last:?}");
    }
}

#[test]
fn a_vote_whose_place_was_lost_asks_again() {
    let now = Instant::now();
    let mut tally = answered(now, &[GRANTED(5), QUEUED(7)]);
    tally.take_ticket(7, now);
    assert!(matches!(tally.step(0, now, None), Step::Place(..)));
    tally.is_void(0);
    assert!(matches!(tally.step(0, now, None), Step::AskAgain));
    assert_eq!(tally.old_ticket(0), Some(7));
    assert!(!tally.is_first(0));
}

#[test]
fn the_ticket_is_the_greatest_number_of_a_majority_if_one_of_them_waits() {
    let now = Instant::now();
    assert_eq!(answered(now, &[QUEUED(7)]).ticket_to_take(), None);
    assert_eq!(answered(now, &[GRANTED(7), GRANTED(8)]).ticket_to_take(), None);
    assert_eq!(answered(now, &[QUEUED(7), GRANTED(9)]).ticket_to_take(), Some(9));
    assert_eq!(answered(now, &[GRANTED(4), QUEUED(7)]).ticket_to_take(), Some(7));
}

#[test]
fn a_hold_lasts_as_long_as_the_proof_of_a_majority_and_is_lost_for_ever() {
    let now = Instant::now();
    let trusted = |_| Some(now);
    let mut tally = answered(now, &[GRANTED(5), GRANTED(6), GRANTED(7)]);
    assert!(tally.weigh(|| now, trusted));
    let until = tally.held_until(now).expect("a hold");
    let renew = |tally: &Tally, at: usize, sent: Instant| {
        let token = [5, 6, 7][at];
        let standing = Standing::Holds { token, first: token };
        tally.votes[at]
            .request
            .as_ref()
            .unwrap()
            .on_renewal(sent, sent, LEASE, standing);
    };
    let later = now + LEASE / 2;
    renew(&tally, 0, later);
    assert_eq!(tally.held_until(later), Some(until), "one of three");
    renew(&tally, 2, later);
    assert_eq!(tally.held_until(later), Some(until + LEASE / 2), "two of three");
    assert_eq!(tally.held(until), 2);
    assert!(!tally.weigh(|| until, trusted) && holds(&tally));
    assert!(tally.weigh(|| until + LEASE / 2, trusted));
    assert!(matches!(tally.phase, Phase::Over(End::Lost(LostReason::LeaseExpired))));
    renew(&tally, 0, until + LEASE / 2);
    assert!(!tally.weigh(|| until + LEASE / 2, trusted) && !holds(&tally));
}

fn claim(tally: &Tally, at: usize, change: impl FnOnce(&Request)) {
    change(tally.votes[at].request.as_ref().unwrap());
}

/// Somebody else may have been inside meanwhile: this process slept when the proof of the majority ended.
#[test]
fn a_vote_that_is_granted_after_the_proof_of_a_majority_has_ended_saves_no_hold() {
    let now = Instant::now();
    let trusted = |_| Some(now);
    let mut tally = answered(now, &[GRANTED(5), GRANTED(6), QUEUED(7)]);
    assert!(tally.weigh(|| now, trusted) && holds(&tally));
    let until = tally.held_until(now).expect("a hold");
    let (renewed, woken) = (now + LEASE / 2, until + LEASE / 10);
    let standing = Standing::Holds { token: 5, first: 5 };
    claim(&tally, 0, |request| {
        request.on_renewal(renewed, renewed, LEASE, standing)
    });
    let standing = Standing::Waits { seq: 7 };
    claim(&tally, 2, |request| {
        request.on_renewal(renewed, renewed, LEASE, standing)
    });
    // The message is the first thing that the process reads.
    claim(&tally, 2, |request| {
        request.change(|claim| claim.on_grant(woken, 8));
    });
    // Also if it slept in the middle of the count.
    let clock = std::cell::Cell::new(until - LEASE / 10);
    assert!(tally.weigh(|| clock.replace(woken), trusted));
    assert!(matches!(tally.phase, Phase::Over(End::Lost(LostReason::LeaseExpired))));
}

/// A waiter with the ticket 7 at three servers that have not replied for long.
fn in_recess(now: Instant) -> (Tally, Instant) {
    let mut tally = answered(now, &[GRANTED(5), QUEUED(6), QUEUED(7)]);
    tally.take_ticket(7, now);
    let at = tally.recess_at().expect("a ticket");
    (tally, at)
}

#[test]
fn an_evicted_vote_does_not_come_back_after_a_recess() {
    let now = Instant::now();
    let (mut tally, at) = in_recess(now);
    claim(&tally, 0, |request| {
        request.change(|claim| claim.on_grant(now, 0));
    });
    assert!(tally.weigh(|| at, |_| None) && tally.is_in_recess());
    assert!(!matches!(tally.step(0, at, None), Step::AskAgain));
    assert!(matches!(tally.step(1, at, None), Step::AskAgain));
}

/// All votes are on their way out, so a hold that began with them would be lost at once.
#[test]
fn no_hold_begins_in_a_recess() {
    let now = Instant::now();
    let (mut tally, at) = in_recess(now);
    assert!(tally.weigh(|| at, |_| None) && tally.is_in_recess());
    for (vote, token) in [(0, 5), (1, 8)] {
        let standing = Standing::Holds { token, first: token };
        claim(&tally, vote, |request| request.on_renewal(at, at, LEASE, standing));
    }
    tally.weigh(|| at, |_| Some(now));
    assert!(!holds(&tally));
    assert!(matches!(tally.step(1, at, Some(now)), Step::AskAgain));
}

/// It waits for the end of a quarantine, and then the servers are out of its reach.
#[test]
fn a_waiter_without_a_ticket_gives_its_votes_back_too_when_it_reaches_no_majority() {
    let now = Instant::now();
    let quarantined = |at: usize| Some(if at == 1 { now + LEASE } else { now });
    let mut tally = answered(now, &[GRANTED(5), GRANTED(6)]);
    tally.weigh(|| now, quarantined);
    assert_eq!((tally.ticket_to_take(), holds(&tally)), (None, false));
    let later = now + LEASE * 3;
    tally.weigh(|| later, |_| None);
    assert!(tally.is_in_recess());
    assert!(matches!(tally.step(0, later, None), Step::AskAgain));
}

/// Sent again at once, the place would get the same reply again, for ever.
#[test]
fn a_server_that_tells_a_grant_again_that_was_given_up_is_asked_again() {
    let now = Instant::now();
    let mut tally = answered(now, &[GRANTED(5), QUEUED(7)]);
    tally.take_ticket(7, now);
    assert!(matches!(tally.step(0, now, None), Step::Place(_, 7, Some(5))));
    let reply = |tally: &mut Tally, given_up: Option<u64>, standing: Standing, at: Instant| {
        claim(tally, 0, |request| request.on_renewal(at, at, LEASE, standing));
        tally.on_place(0, 7, given_up, standing, at);
    };
    reply(&mut tally, Some(5), Standing::Waits { seq: 9 }, now);
    // The server went back to an earlier state.
    let later = now + PLACED_AGAIN * 2;
    let standing = Standing::Holds { token: 5, first: 5 };
    claim(&tally, 0, |request| request.on_renewal(later, later, LEASE, standing));
    let mut steps = 0;
    while let Step::Place(_, _, given_up) = tally.step(0, later, Some(now)) {
        steps += 1;
        assert!(steps < 10, "the place is sent for ever");
        reply(&mut tally, given_up, standing, later);
    }
    assert!(matches!(tally.step(0, later, Some(now)), Step::AskAgain));
}

/// A waiter that has the third vote gives it to a request before it only. The loss of one more server would end the hold.
#[test]
fn a_holder_places_itself_before_every_waiter_where_it_lacks_a_vote() {
    let now = Instant::now();
    let trusted = |_| Some(now);
    let due = now + PLACED_AGAIN;
    for ticket in [None, Some(9)] {
        let mut tally = answered(now, &[GRANTED(5), GRANTED(6), QUEUED(9)]);
        ticket.into_iter().for_each(|ticket| tally.take_ticket(ticket, now));
        assert!(tally.weigh(|| now, trusted) && holds(&tally));
        assert_eq!(tally.old_ticket(2), Some(FIRST_PLACE));
        // A hand-over costs no place, so it waits for the grant first.
        assert!(matches!(tally.step(2, now, Some(now)), Step::Wait(Some(at)) if at <= due));
        for at in [0, 1] {
            assert!(matches!(tally.step(at, due, Some(now)), Step::Wait(_)));
        }
        assert!(matches!(
            tally.step(2, due, Some(now)),
            Step::Place(_, FIRST_PLACE, None)
        ));
        // It is placed once.
        tally.on_place(2, FIRST_PLACE, None, Standing::Waits { seq: 9 }, due);
        let later = due + PLACED_AGAIN * 2;
        assert!(matches!(tally.step(2, later, Some(now)), Step::Wait(_)));
        claim(&tally, 2, |request| {
            request.change(|claim| claim.on_grant(later, 10));
        });
        tally.weigh(|| later, trusted);
        assert_eq!(tally.held(later), 3);
    }
}

/// The answer to a place that was sent while the request waited tells nothing of the place of its hold.
#[test]
fn a_place_that_is_answered_after_the_hold_has_begun_does_not_settle_it() {
    let now = Instant::now();
    let due = now + PLACED_AGAIN;
    let mut tally = answered(now, &[QUEUED(7), QUEUED(7), QUEUED(9)]);
    tally.take_ticket(9, now);
    assert!(matches!(tally.step(0, now, Some(now)), Step::Place(_, 9, None)));
    for at in [1, 2] {
        claim(&tally, at, |request| {
            request.change(|claim| claim.on_grant(now, 10));
        });
    }
    assert!(tally.weigh(|| now, |_| Some(now)) && holds(&tally));
    tally.on_place(0, 9, None, Standing::Waits { seq: 9 }, now);
    assert!(matches!(
        tally.step(0, due, Some(now)),
        Step::Place(_, FIRST_PLACE, None)
    ));
}

/// A hand-over costs one message of each server, however long the waiter waited.
#[test]
fn a_grant_after_a_long_wait_is_not_placed_at_once() {
    let now = Instant::now();
    let mut tally = answered(now, &[QUEUED(7), QUEUED(7), QUEUED(7)]);
    tally.take_ticket(7, now);
    let granted = now + PLACED_AGAIN * 2;
    for at in [0, 1] {
        assert!(matches!(tally.step(at, granted, Some(now)), Step::Wait(_)));
        claim(&tally, at, |request| {
            request.change(|claim| claim.on_grant(granted, 9));
        });
        tally.weigh(|| granted, |_| Some(now));
        let step = tally.step(at, granted, Some(now));
        assert!(
            matches!(step, Step::Wait(Some(_))),
            "vote {at} is placed before it counts"
        );
    }
    assert!(holds(&tally));
}

mod refusals;
