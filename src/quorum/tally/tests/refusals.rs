//! What servers refuse, and when a request gives up for it.

use super::*;

/// Two upgrades that had places at a majority wait at one server each, and the third one is away: otherwise they wait for each
/// other for as long as it is.
#[test]
fn what_one_server_refuses_for_another_request_ends_after_a_lease_without_a_majority() {
    let conflict = || Error::UpgradeConflict { lock: "a".to_owned() };
    let now = Instant::now();
    let (nearly, later) = (now + LEASE - Duration::from_millis(1), now + LEASE);
    let trusted = |_| Some(now);
    let upgrades = || {
        let mut tally = Tally::new(3, LEASE, Duration::MAX);
        is_told(&mut tally, 0, QUEUED(5), now);
        tally.on_refusal(1, conflict(), now, true);
        assert!(!tally.weigh(|| now, trusted));
        tally
    };
    let mut alone = upgrades();
    alone.on_refusal(1, conflict(), nearly, true);
    assert!(!alone.weigh(|| nearly, trusted));
    assert!(
        !alone.weigh(|| later, trusted),
        "nobody knows whether it would still refuse"
    );
    alone.on_refusal(1, conflict(), later, true);
    assert!(alone.weigh(|| later, trusted));
    assert!(matches!(
        alone.phase,
        Phase::Over(End::Failed(Some(Error::UpgradeConflict { .. })))
    ));
    let mut kept = upgrades();
    is_told(&mut kept, 2, QUEUED(5), now);
    kept.on_refusal(1, conflict(), later, true);
    assert!(!kept.weigh(|| later, trusted), "a majority keeps it");
    // The other one left, and came back.
    let mut again = upgrades();
    again.on_silence(1);
    assert!(!again.weigh(|| nearly, trusted));
    again.on_refusal(1, conflict(), later, true);
    assert!(!again.weigh(|| later, trusted));
    // What is refused for another reason may end by itself.
    let mut other = Tally::new(3, LEASE, Duration::MAX);
    for asked in [now, later] {
        other.on_refusal(1, Error::Shutdown { lock: "a".to_owned() }, asked, true);
        assert!(!other.weigh(|| asked, trusted));
    }
}

#[test]
fn a_recess_ends_a_conflict() {
    let conflict = || Error::UpgradeConflict { lock: "a".to_owned() };
    let now = Instant::now();
    let trusted = |_| Some(now);
    for looks in [true, false] {
        let mut tally = answered(now, &[QUEUED(5), QUEUED(6)]);
        tally.take(1);
        tally.on_refusal(1, conflict(), now, true);
        assert!(!tally.weigh(|| now, trusted));
        let recess = tally.recess_at().unwrap();
        assert!(tally.weigh(|| recess, trusted) && tally.is_in_recess());
        // In the recess the request stands at no server, so the refusal says nothing, whether or not anybody looks.
        assert!(!looks || !tally.weigh(|| recess + LEASE, trusted));
        let back = recess + LEASE * 10;
        assert!(tally.on_knock(0, back) && !tally.on_knock(1, back));
        tally.on_refusal(1, conflict(), back, true);
        assert!(!tally.weigh(|| back, trusted));
        tally.on_refusal(1, conflict(), back + LEASE, true);
        assert!(tally.weigh(|| back + LEASE, trusted));
    }
}

/// Its drivers would wait for the end of the recess.
#[test]
fn a_request_that_is_over_is_in_no_recess() {
    let now = Instant::now();
    let mut tally = answered(now, &[QUEUED(5), QUEUED(6)]);
    let recess = tally.recess_at().unwrap();
    assert!(tally.weigh(|| recess, |_| Some(now)) && tally.is_in_recess());
    tally.phase = Phase::Over(End::Lost(LostReason::Evicted));
    assert!(!tally.is_in_recess());
}

#[test]
fn a_try_that_is_refused_by_more_than_a_minority_is_busy() {
    let now = Instant::now();
    let mut tally = answered(now, &[GRANTED(5)]);
    tally.on_busy(1);
    assert!(!tally.weigh(|| now, |_| Some(now)));
    tally.on_busy(2);
    assert!(tally.weigh(|| now, |_| Some(now)));
    assert!(matches!(tally.phase, Phase::Over(End::Busy)));
}

/// One server of three says nothing of the lock when it refuses.
#[test]
fn a_minority_that_refuses_does_not_hide_that_the_lock_is_busy() {
    let now = Instant::now();
    let refusal = || Error::Shutdown { lock: "a".to_owned() };
    let mut tally = answered(now, &[]);
    tally.on_refusal(0, refusal(), now, true);
    assert!(!tally.weigh(|| now, |_| Some(now)));
    tally.on_busy(1);
    assert!(tally.weigh(|| now, |_| Some(now)));
    assert!(matches!(tally.phase, Phase::Over(End::Busy)));
    let mut tally = answered(now, &[]);
    tally.on_refusal(0, refusal(), now, true);
    tally.on_refusal(1, refusal(), now, true);
    assert!(tally.weigh(|| now, |_| Some(now)));
    assert!(matches!(tally.phase, Phase::Over(End::Failed(Some(_)))));
}

/// The page of `try_acquire` promises an error without answers of a majority. A server that is away says nothing of the lock.
#[test]
fn a_busy_server_beside_one_that_is_away_waits_for_the_third_one() {
    let now = Instant::now();
    let away = || Error::of_server("a", (redis::ErrorKind::Io, "said").into());
    let half_answered = || {
        let mut tally = answered(now, &[]);
        tally.on_busy(0);
        tally.on_refusal(1, away(), now, true);
        assert!(!tally.weigh(|| now, |_| Some(now)), "one answer of three");
        assert!(!tally.is_answered());
        tally
    };
    let mut tally = half_answered();
    tally.on_busy(2);
    assert!(tally.weigh(|| now, |_| Some(now)));
    assert!(matches!(tally.phase, Phase::Over(End::Busy)));
    let mut tally = half_answered();
    is_told(&mut tally, 2, GRANTED(5), now);
    assert!(tally.weigh(|| now, |_| Some(now)));
    assert!(matches!(tally.phase, Phase::Over(End::Busy)));
    let mut tally = half_answered();
    tally.on_refusal(2, away(), now, true);
    assert!(tally.weigh(|| now, |_| Some(now)));
    let Phase::Over(End::Failed(Some(error))) = tally.phase else {
        panic!("it did not fail")
    };
    assert!(matches!(error, Error::Unavailable { .. }));
}

/// One server without memory, beside one that is away, is not what its user can mend.
#[test]
fn an_error_of_a_minority_is_not_told_when_others_are_away() {
    let now = Instant::now();
    let (refuses, is_away) = (redis::ErrorKind::UnexpectedReturnType, redis::ErrorKind::Io);
    let told = |kinds: &[redis::ErrorKind]| {
        let mut tally = answered(now, &[]);
        for (at, &kind) in kinds.iter().enumerate() {
            tally.on_refusal(at, Error::of_server("a", (kind, "said").into()), now, true);
        }
        assert!(tally.weigh(|| now, |_| Some(now)));
        match tally.phase {
            Phase::Over(End::Failed(Some(error))) => error,
            _ => panic!("it did not fail"),
        }
    };
    for kinds in [[refuses, is_away], [is_away, refuses]] {
        assert!(matches!(told(&kinds), Error::Unavailable { .. }));
    }
    assert!(matches!(told(&[is_away, refuses, refuses]), Error::Server { .. }));
}

/// Memory that is exhausted at one server and later at another one leaves a majority at each moment.
#[test]
fn refusals_of_different_times_do_not_add_up() {
    let now = Instant::now();
    let [later, much_later] = [1, 2].map(|seconds| now + Duration::from_secs(seconds));
    let refuse = |tally: &mut Tally, at: usize, asked: Instant| {
        tally.on_refusal(at, Error::Shutdown { lock: "a".to_owned() }, asked, false);
    };
    let mut tally = answered(now, &[]);
    refuse(&mut tally, 0, now);
    refuse(&mut tally, 1, later);
    assert!(!tally.weigh(|| later, |_| Some(now)), "the first one may answer now");
    tally.on_silence(0);
    assert!(!tally.weigh(|| later, |_| Some(now)));
    refuse(&mut tally, 0, later);
    assert!(!tally.weigh(|| much_later, |_| Some(now)), "the silence came between");
    refuse(&mut tally, 0, much_later);
    assert!(!tally.weigh(|| much_later, |_| Some(now)));
    refuse(&mut tally, 1, much_later);
    assert!(tally.weigh(|| much_later, |_| Some(now)));
    assert!(matches!(tally.phase, Phase::Over(End::Failed(Some(_)))));
}

#[test]
fn an_evicted_vote_is_not_asked_for_again_and_a_majority_of_them_ends_the_request() {
    let now = Instant::now();
    let evict = |tally: &Tally, at: usize| {
        let request = tally.votes[at].request.as_ref().unwrap();
        request.change(|claim| claim.on_grant(now, 0));
    };
    for (answers, holds_first) in [([GRANTED(5); 3], true), ([QUEUED(5); 3], false)] {
        let mut tally = answered(now, &answers);
        tally.weigh(|| now, |_| Some(now));
        assert_eq!(holds(&tally), holds_first);
        evict(&tally, 0);
        assert!(!tally.weigh(|| now, |_| Some(now)));
        assert!(matches!(tally.step(0, now, Some(now)), Step::Wait(_)));
        evict(&tally, 1);
        assert!(tally.weigh(|| now, |_| Some(now)));
        assert!(matches!(tally.phase, Phase::Over(End::Lost(LostReason::Evicted))));
    }
}
