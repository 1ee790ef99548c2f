use super::*;
use crate::protocol::reply::Answer;
use crate::types::mode::Admission;

fn next(now: Instant, ms: u64) -> FollowUp {
    let at = now + Duration::from_millis(ms);
    let until = now + Duration::from_secs(60);
    FollowUp { at, until }
}

#[test]
fn a_lock_without_requests_is_checked_once_and_then_forgotten() {
    let (mut table, now) = (Table::default(), Instant::now());
    let lock = Arc::new(Lock::new("p", "a".into()));
    assert!(table.follow_up(&lock, next(now, 900)), "the schedule starts earlier");
    table.follow_up(&lock, next(now, 1000));
    assert_eq!(table.arm(), Some(now + Duration::from_millis(900)));
    assert!(table.take_due(now).is_empty());
    let due = table.take_due(now + Duration::from_millis(900));
    assert!(matches!(due.as_slice(), [due] if due.renew.is_empty() && due.follow_up.is_some()));
    assert_eq!(table.arm(), None);
    assert!(table.locks.is_empty());
}

fn request(number: u64, lock: &str, now: Instant) -> Arc<Request> {
    let lock = Arc::new(Lock::new("p", lock.into()));
    let claim = Claim::new(Duration::from_secs(9), Duration::MAX, now);
    Arc::new(Request::new(
        number,
        format!("wa:{number}"),
        lock,
        Admission::FIFO,
        claim,
    ))
}

fn numbers(due: &[Due]) -> Vec<u64> {
    let renewed = due.iter().flat_map(|due| &due.renew);
    renewed.map(|request| request.number).collect()
}

#[test]
fn a_lock_that_is_used_again_and_again_is_scheduled_once() {
    let (mut table, now) = (Table::default(), Instant::now());
    let first = request(1, "a", now);
    assert!(table.insert(Arc::clone(&first), now), "the schedule starts earlier");
    table.remove(&first);
    for number in 2..1000 {
        let later = now + Duration::from_millis(number);
        let again = request(number, "a", later);
        table.insert(Arc::clone(&again), later);
        table.remove(&again);
    }
    assert_eq!((table.locks.len(), table.schedule.len(), table.kept), (1, 1, 1));
    let due = now + Duration::from_secs(3);
    assert_eq!(table.arm(), Some(due));
    assert!(table.take_due(due).is_empty(), "there is nothing to ask the server");
    assert_eq!((table.locks.len(), table.schedule.len(), table.kept), (0, 0, 0));
}

#[test]
fn a_lock_whose_crowd_has_gone_does_not_keep_the_room_for_it() {
    let (mut table, now) = (Table::default(), Instant::now());
    let crowd: Vec<_> = (0..1000).map(|number| request(number, "a", now)).collect();
    for request in &crowd {
        table.insert(Arc::clone(request), now);
    }
    for request in &crowd {
        table.remove(request);
    }
    assert!(table.locks[&crowd[0].lock.state].requests.capacity() <= ROOM_KEPT);
}

#[test]
fn of_many_locks_that_are_used_once_only_some_are_kept() {
    let (mut table, now) = (Table::default(), Instant::now());
    for number in 0..1000 {
        let request = request(number, &number.to_string(), now);
        table.insert(Arc::clone(&request), now);
        table.remove(&request);
        table.remove(&request);
    }
    assert_eq!((table.locks.len(), table.kept), (MOST_KEPT, MOST_KEPT));
}

#[test]
fn a_shorter_lease_makes_a_kept_lock_due_earlier() {
    let (mut table, now) = (Table::default(), Instant::now());
    let first = request(1, "a", now);
    table.insert(Arc::clone(&first), now);
    table.remove(&first);
    let claim = Claim::new(Duration::from_secs(3), Duration::MAX, now);
    let lock = Arc::clone(&first.lock);
    let second = Arc::new(Request::new(2, "wa:2".to_owned(), lock, Admission::FIFO, claim));
    assert!(table.insert(second, now), "the schedule starts earlier");
    assert_eq!(table.arm(), Some(now + Duration::from_secs(1)));
}

#[test]
fn requests_stand_by_number_however_they_were_registered() {
    let (mut table, now) = (Table::default(), Instant::now());
    let of = [3, 1, 2].map(|number| request(number, "a", now));
    for request in &of {
        request.claim().on_reply(now, Answer::Granted { token: 5 });
        table.insert(Arc::clone(request), now);
    }
    assert!(table.get(&of[0].lock.state, 2).is_some());
    assert!(table.get("p:{b}", 2).is_none(), "a message about another lock");
    let due = now + Duration::from_secs(3);
    assert_eq!(numbers(&table.take_due(due)), [1, 2, 3]);
    table.remove(&of[1]);
    assert_eq!(numbers(&table.take_due(due + Duration::from_secs(3))), [2, 3]);
}

#[test]
fn only_who_waits_looks_for_expired_leases() {
    let (mut table, now) = (Table::default(), Instant::now());
    let [held, waiting] = [(1, "a"), (2, "b")].map(|(number, lock)| {
        let request = request(number, lock, now);
        table.insert(Arc::clone(&request), now);
        request
    });
    let queued = Answer::Queued {
        ticket: 7,
        seq: 7,
        ahead: 0,
    };
    waiting.claim().on_reply(now, queued);
    held.claim().on_reply(now, Answer::Granted { token: 5 });
    let soon = now + Duration::from_millis(10);
    for request in [&held, &waiting] {
        table.schedule_check(&request.lock, soon);
    }
    let due = table.take_due(soon);
    assert!(matches!(due.as_slice(), [due] if due.lock.state == waiting.lock.state && due.renew.is_empty()));
}

#[test]
fn the_end_of_a_hold_that_nobody_waits_for_is_a_release_and_no_look() {
    let (mut table, now) = (Table::default(), Instant::now());
    let request = request(1, "a", now);
    table.insert(Arc::clone(&request), now);
    let end = now + Duration::from_secs(1);
    request.claim().on_reply(now, Answer::Granted { token: 5 });
    request.claim().keep_on(Some(end));
    request.claim().seal(now);
    table.schedule_check(&request.lock, end);
    let due = table.take_due(end);
    assert!(matches!(due.as_slice(), [due] if due.release.len() == 1 && due.renew.is_empty() && !due.looks));
}

#[test]
fn the_end_of_a_hold_is_no_look_at_the_other_requests_of_its_lock() {
    let (mut table, now) = (Table::default(), Instant::now());
    let [sealed, later, waiting] = [1, 2, 3].map(|number| request(number, "a", now));
    let at = |ms| now + Duration::from_millis(ms);
    for (request, end) in [(&sealed, at(100)), (&later, at(200))] {
        table.insert(Arc::clone(request), now);
        request.claim().on_reply(now, Answer::Granted { token: 5 });
        request.claim().keep_on(Some(end));
        request.claim().seal(now);
        table.schedule_end(request, end);
    }
    table.insert(Arc::clone(&waiting), now);
    let queued = Answer::Queued {
        ticket: 7,
        seq: 7,
        ahead: 0,
    };
    waiting.claim().on_reply(now, queued);
    for (request, end) in [(&sealed, at(100)), (&later, at(200))] {
        assert_eq!(table.arm(), Some(end));
        let due = table.take_due(end);
        let released: Vec<_> = due
            .iter()
            .flat_map(|due| &due.release)
            .map(|request| request.number)
            .collect();
        assert_eq!((released, due[0].looks), (vec![request.number], false));
        table.remove(request);
    }
    // The rhythm of the waiter is as it was.
    assert_eq!(table.arm(), Some(now + Duration::from_secs(3)));
    assert_eq!(numbers(&table.take_due(now + Duration::from_secs(3))), [3]);
}

/// A hold is lost, and the look that finds that plans the end of its delay.
#[test]
fn an_end_that_a_look_has_found_is_taken_too() {
    let (mut table, now) = (Table::default(), Instant::now());
    let request = request(1, "a", now);
    table.insert(Arc::clone(&request), now);
    request.claim().on_reply(now, Answer::Granted { token: 5 });
    let end = now + Duration::from_secs(20);
    request.claim().keep_on(Some(end));
    request.claim().end(crate::state::claim::EndedBy::Lost(
        crate::types::error::LostReason::MaxHold,
    ));
    let due = table.take_due(now + Duration::from_secs(3));
    assert!(matches!(due.as_slice(), [due] if due.lost.len() == 1 && due.release.is_empty()));
    assert_eq!(table.arm(), Some(end));
    let due = table.take_due(end);
    assert!(matches!(due.as_slice(), [due] if due.release.len() == 1));
}

#[test]
fn a_look_at_a_lock_puts_no_planned_follow_up_off() {
    let (mut table, now) = (Table::default(), Instant::now());
    let request = request(1, "a", now);
    table.insert(Arc::clone(&request), now);
    request.claim().on_reply(now, Answer::Granted { token: 5 });
    table.follow_up(&request.lock, next(now, 900));
    let early = now + Duration::from_millis(100);
    table.schedule_check(&request.lock, early);
    table.take_due(early);
    assert_eq!(table.arm(), Some(now + Duration::from_millis(900)));
}

#[test]
fn a_follow_up_outlives_the_requests_of_its_lock() {
    let (mut table, now) = (Table::default(), Instant::now());
    let request = request(1, "a", now);
    table.insert(Arc::clone(&request), now);
    table.follow_up(&request.lock, next(now, 900));
    table.remove(&request);
    assert_eq!(table.arm(), Some(now + Duration::from_millis(900)));
}
