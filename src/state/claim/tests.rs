use super::*;

mod doubt;
mod keep;

const LEASE: Duration = Duration::from_millis(1000);
const QUEUED: Answer = Answer::Queued {
    ticket: 7,
    seq: 10,
    ahead: 0,
};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn claim() -> (Claim, Instant) {
    let now = Instant::now();
    (Claim::new(LEASE, Duration::MAX, now), now)
}

fn grant(claim: &mut Claim, now: Instant) -> Option<Grant> {
    match claim.poll_outcome(now) {
        Some(Outcome::HandOut(grant)) => Some(grant),
        _ => None,
    }
}

fn handed_out(claim: &mut Claim, now: Instant) -> Option<u64> {
    grant(claim, now).map(|grant| grant.token)
}

#[test]
fn a_lease_counts_from_the_sending_less_a_margin() {
    let (mut claim, t) = claim();
    claim.on_reply(t, Answer::Granted { token: 1 });
    assert_eq!(handed_out(&mut claim, t + ms(900)), Some(1));
    assert_eq!(claim.held_until(t + ms(979)), Some(t + ms(980)));
    assert_eq!(claim.held_until(t + ms(980)), None);
}

#[test]
fn a_max_hold_begins_when_the_user_has_the_guard() {
    let now = Instant::now();
    let mut claim = Claim::new(LEASE * 10, ms(100), now);
    claim.on_reply(now, Answer::Granted { token: 1 });
    assert_eq!(handed_out(&mut claim, now), Some(1));
    // Replicas had to confirm the hold.
    let later = now + ms(5000);
    assert!(claim.held_until(later).is_some());
    claim.keep(later);
    assert_eq!(claim.held_until(later), Some(later + ms(100)));
    assert_eq!(claim.held_until(later + ms(100)), None);
}

#[test]
fn who_was_told_of_a_deadlock_is_still_leaving() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    assert!(!claim.is_leaving(t));
    assert!(claim.end(EndedBy::Deadlocked(Arc::from([]))));
    claim.leave(t);
    assert!(claim.is_leaving(t), "the server may still know it");
}

/// Its guard may exist for as long as its user likes.
#[test]
fn a_lost_hold_keeps_no_request_of_its_owner_waiting() {
    let (mut claim, t) = claim();
    claim.on_reply(t, Answer::Granted { token: 1 });
    assert_eq!(handed_out(&mut claim, t), Some(1));
    claim.end(EndedBy::Lost(LostReason::Evicted));
    assert!(!claim.is_leaving(t));
}

#[test]
fn a_grant_has_one_source() {
    let granted = |steps: fn(&mut Claim, Instant)| {
        let (mut claim, t) = claim();
        steps(&mut claim, t);
        let grant = grant(&mut claim, t + ms(500)).expect("it is proven");
        assert_eq!((grant.token, grant.at), (20, t + ms(500)));
        (grant.via, grant.heard.map(|heard| heard - t))
    };
    let by_reply = granted(|claim, t| claim.on_reply(t, Answer::Granted { token: 20 }));
    assert_eq!(by_reply, (GrantVia::Reply, None));
    let by_message = granted(|claim, t| {
        claim.on_reply(t, QUEUED);
        assert!(claim.on_grant(t + ms(300), 20));
        // A renewal and a second message that come later told nothing new.
        claim.on_renewal(
            t + ms(290),
            t + ms(310),
            LEASE,
            Standing::Holds { token: 20, first: 20 },
        );
        assert!(!claim.on_grant(t + ms(320), 20));
    });
    assert_eq!(by_message, (GrantVia::Message, Some(ms(300))));
    let before_the_reply = granted(|claim, t| {
        assert!(!claim.on_grant(t + ms(100), 20));
        claim.on_reply(t, QUEUED);
    });
    assert_eq!(before_the_reply, (GrantVia::Message, Some(ms(100))));
    let by_renewal = granted(|claim, t| {
        claim.on_reply(t, QUEUED);
        claim.on_renewal(
            t + ms(300),
            t + ms(301),
            LEASE,
            Standing::Holds { token: 20, first: 20 },
        );
        assert!(!claim.on_grant(t + ms(400), 20));
    });
    assert_eq!(by_renewal, (GrantVia::Renewal, None));
}

#[test]
fn a_lapsed_hold_stays_lost_though_a_late_renewal_succeeds() {
    let (mut claim, t) = claim();
    claim.on_reply(t, Answer::Granted { token: 1 });
    assert!(handed_out(&mut claim, t).is_some());
    assert!(!claim.on_renewal(t + ms(900), t + ms(990), LEASE, Standing::Holds { token: 1, first: 1 }));
    assert_eq!(claim.held_until(t + ms(990)), None);
}

#[test]
fn a_message_of_before_a_call_that_was_told_to_wait_is_of_a_former_life() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    claim.on_renewal(t + ms(300), t + ms(301), LEASE, Standing::Waits { seq: 20 });
    assert!(!claim.on_grant(t + ms(400), 20));
    assert!(claim.poll_outcome(t + ms(400)).is_none());
    claim.on_reply(
        t + ms(410),
        Answer::Queued {
            ticket: 7,
            seq: 30,
            ahead: 0,
        },
    );
    assert!(!claim.on_grant(t + ms(420), 30));
    claim.on_renewal(t + ms(430), t + ms(440), LEASE, Standing::Waits { seq: 25 });
    assert!(!claim.on_grant(t + ms(450), 30), "what was known stays known");
    assert!(claim.on_grant(t + ms(500), 31));
    assert_eq!(handed_out(&mut claim, t + ms(500)), Some(31));
}

#[test]
fn a_call_that_found_it_waiting_after_its_grant_ends_the_grant_even_if_it_was_sent_before() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    assert!(claim.on_grant(t + ms(10), 15));
    claim.on_renewal(t + ms(5), t + ms(20), LEASE, Standing::Waits { seq: 14 });
    assert!(
        matches!(claim.phase, Phase::Granted { .. }),
        "executed before the grant"
    );
    claim.on_renewal(t + ms(5), t + ms(20), LEASE, Standing::Waits { seq: 15 });
    assert!(claim.poll_outcome(t + ms(21)).is_none());
    assert!(!claim.on_grant(t + ms(22), 15));
    assert!(claim.on_grant(t + ms(23), 16));
    assert_eq!(handed_out(&mut claim, t + ms(24)), Some(16));
    assert!(claim.on_renewal(t + ms(6), t + ms(30), LEASE, Standing::Waits { seq: 17 }));
    assert!(matches!(
        claim.ended(),
        Some(EndedBy::Lost(LostReason::UnknownToServer))
    ));
}

#[test]
fn a_reply_that_a_later_call_overtook_grants_nothing() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    claim.on_renewal(t + ms(300), t + ms(301), LEASE, Standing::Waits { seq: 20 });
    assert!(!claim.on_renewal(
        t + ms(200),
        t + ms(302),
        LEASE,
        Standing::Holds { token: 15, first: 15 }
    ));
    assert!(claim.poll_outcome(t + ms(303)).is_none());
    // The server went back to an earlier state, where it holds.
    assert!(claim.on_renewal(
        t + ms(400),
        t + ms(401),
        LEASE,
        Standing::Holds { token: 15, first: 15 }
    ));
    assert_eq!(handed_out(&mut claim, t + ms(402)), Some(15));
}

#[test]
fn a_grant_that_was_repeated_has_its_last_token() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    assert!(claim.on_grant(t + ms(400), 11));
    assert!(claim.on_renewal(
        t + ms(401),
        t + ms(402),
        LEASE,
        Standing::Holds { token: 35, first: 35 }
    ));
    assert_eq!(handed_out(&mut claim, t + ms(402)), Some(35));
}

#[test]
fn a_grant_is_not_handed_out_when_its_proof_has_run_out() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    assert!(claim.on_grant(t + ms(500), 11));
    assert!(matches!(claim.poll_outcome(t + ms(980)), Some(Outcome::Renew)));
    assert!(claim.on_renewal(
        t + ms(985),
        t + ms(986),
        LEASE,
        Standing::Holds { token: 11, first: 11 }
    ));
    assert_eq!(handed_out(&mut claim, t + ms(987)), Some(11));
}

#[test]
fn a_message_alone_proves_nothing_about_time() {
    let (mut claim, t) = claim();
    assert!(!claim.on_grant(t, 11));
    assert!(claim.poll_outcome(t).is_none());
    claim.on_reply(t, QUEUED);
    assert_eq!(handed_out(&mut claim, t), Some(11));
}

#[test]
fn a_message_of_a_former_life_is_ignored_before_and_after_the_reply() {
    let (mut claim, t) = claim();
    claim.on_grant(t, 9);
    claim.on_reply(t, QUEUED);
    assert!(claim.poll_outcome(t).is_none());
    assert!(!claim.on_grant(t, 10));
    assert!(claim.poll_outcome(t).is_none());
    assert!(claim.on_grant(t, 11));
}

#[test]
fn a_late_queued_reply_does_not_take_a_grant_back() {
    let (mut claim, t) = claim();
    claim.on_reply(t, Answer::Granted { token: 13 });
    claim.on_reply(t, QUEUED);
    assert_eq!(handed_out(&mut claim, t), Some(13));
}

#[test]
fn a_waiter_that_the_server_forgot_asks_again_with_its_ticket() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    assert!(claim.on_renewal(t, t, LEASE, Standing::Unknown));
    assert!(matches!(
        claim.poll_outcome(t),
        Some(Outcome::Ended(EndedBy::Displaced { ticket: Some(7) }))
    ));
}

#[test]
fn an_upgrade_that_ended_with_its_read_hold_is_displaced_and_a_hold_is_not() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    assert!(claim.on_grant(t, 1));
    assert!(matches!(claim.ended(), Some(EndedBy::Displaced { ticket: Some(7) })));
    let mut claim = Claim::new(LEASE, Duration::MAX, t);
    claim.on_reply(t, Answer::Granted { token: 20 });
    assert!(!claim.on_grant(t, 1));
    assert_eq!(handed_out(&mut claim, t), Some(20));
}

#[test]
fn a_message_that_an_upgrade_ended_may_overtake_the_reply() {
    let (mut claim, t) = claim();
    assert!(!claim.on_grant(t, 1), "its reply comes later");
    claim.on_reply(t, QUEUED);
    assert!(matches!(
        claim.poll_outcome(t),
        Some(Outcome::Ended(EndedBy::Displaced { ticket: Some(7) }))
    ));
    // It had not ended: that was a former life, or a message about another request.
    let mut claim = Claim::new(LEASE, Duration::MAX, t);
    assert!(!claim.on_grant(t, 1));
    claim.on_reply(t, Answer::Granted { token: 20 });
    assert_eq!(handed_out(&mut claim, t), Some(20));
}

#[test]
fn a_request_that_was_granted_at_once_and_forgotten_asks_for_the_place_that_it_had() {
    let (mut claim, t) = claim();
    claim.on_reply(t, Answer::Granted { token: 13 });
    assert!(claim.on_renewal(t, t, LEASE, Standing::Unknown));
    assert!(matches!(claim.ended(), Some(EndedBy::Displaced { ticket: Some(13) })));
}

#[test]
fn a_holder_that_the_server_forgot_has_lost() {
    let (mut claim, t) = claim();
    claim.on_reply(t, Answer::Granted { token: 1 });
    assert!(handed_out(&mut claim, t).is_some());
    assert!(claim.on_renewal(t, t, LEASE, Standing::Unknown));
    assert!(matches!(
        claim.ended(),
        Some(EndedBy::Lost(LostReason::UnknownToServer))
    ));
}

#[test]
fn a_hold_is_interrupted_when_a_phase_began_after_it_and_not_when_others_entered_beside_it() {
    let (mut claim, t) = claim();
    claim.on_reply(t, Answer::Granted { token: 20 });
    assert_eq!(handed_out(&mut claim, t), Some(20));
    // A phase that began before this hold says nothing against it.
    assert!(!claim.on_renewal(t + ms(1), t + ms(2), LEASE, Standing::Holds { token: 15, first: 15 }));
    // Readers that waited entered beside it.
    assert!(!claim.on_renewal(t + ms(3), t + ms(4), LEASE, Standing::Holds { token: 30, first: 20 }));
    assert!(claim.held_until(t + ms(4)).is_some());
    assert!(claim.on_renewal(t + ms(5), t + ms(6), LEASE, Standing::Holds { token: 30, first: 21 }));
    assert!(matches!(
        claim.ended(),
        Some(EndedBy::Lost(LostReason::UnknownToServer))
    ));
}

#[test]
fn a_grant_keeps_its_token_while_its_phase_goes_on() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    assert!(claim.on_grant(t + ms(400), 11));
    assert!(claim.on_renewal(
        t + ms(401),
        t + ms(402),
        LEASE,
        Standing::Holds { token: 35, first: 11 }
    ));
    assert_eq!(handed_out(&mut claim, t + ms(402)), Some(11));
}

#[test]
fn a_hold_that_waits_again_after_the_server_went_back_is_lost() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    assert!(claim.on_grant(t + ms(10), 11));
    assert!(handed_out(&mut claim, t + ms(11)).is_some());
    claim.on_renewal(t + ms(9), t + ms(12), LEASE, Standing::Waits { seq: 10 });
    assert!(
        claim.held_until(t + ms(12)).is_some(),
        "that call was executed before the grant"
    );
    assert!(claim.on_renewal(t + ms(13), t + ms(14), LEASE, Standing::Waits { seq: 10 }));
    assert!(matches!(
        claim.ended(),
        Some(EndedBy::Lost(LostReason::UnknownToServer))
    ));
    assert!(claim.report_loss(), "its place in the queue is given up");
}

#[test]
fn a_grant_that_waits_again_after_the_server_went_back_is_not_handed_out() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    assert!(claim.on_grant(t + ms(10), 11));
    assert!(!claim.on_renewal(t + ms(11), t + ms(12), LEASE, Standing::Waits { seq: 10 }));
    assert!(claim.poll_outcome(t + ms(12)).is_none());
    assert!(!claim.on_grant(t + ms(13), 11), "the message of the former grant");
    assert!(claim.on_grant(t + ms(13), 12));
}

#[test]
fn max_hold_cuts_renewals_and_ends_the_hold() {
    let t = Instant::now();
    let mut claim = Claim::new(LEASE, ms(2500), t);
    claim.on_reply(t, Answer::Granted { token: 1 });
    assert!(handed_out(&mut claim, t).is_some());
    claim.keep(t);
    for sent in [600, 1200, 1800] {
        let lease = claim.lease_to_renew(t + ms(sent)).expect("held");
        claim.on_renewal(
            t + ms(sent),
            t + ms(sent),
            lease,
            Standing::Holds { token: 1, first: 1 },
        );
    }
    assert_eq!(
        claim.lease_to_renew(t + ms(2000)),
        Some(ms(520)),
        "what is left, and the margin"
    );
    assert!(claim.held_until(t + ms(2499)).is_some());
    assert_eq!(claim.held_until(t + ms(2500)), None);
    assert!(matches!(claim.ended(), Some(EndedBy::Lost(LostReason::MaxHold))));
}

#[test]
fn nothing_happens_to_a_claim_that_is_over() {
    let (mut claim, t) = claim();
    assert!(claim.end(EndedBy::Released));
    claim.on_reply(t, Answer::Granted { token: 1 });
    assert!(!claim.on_grant(t, 5));
    assert!(!claim.on_renewal(t, t, LEASE, Standing::Holds { token: 1, first: 1 }));
    assert!(!claim.end(EndedBy::Lost(LostReason::Shutdown)));
    assert!(matches!(claim.poll_outcome(t), Some(Outcome::Ended(EndedBy::Released))));
    assert_eq!(claim.lease_to_renew(t), None);
}
