use super::*;
use crate::protocol::reply::Answer;

#[test]
fn messages_are_needed_until_a_grant_is_taken() {
    let now = Instant::now();
    let lock = Arc::new(Lock::new("p", "a".into()));
    let claim = Claim::new(Duration::from_secs(9), Duration::MAX, now);
    let request = Request::new(1, "wa:1".to_owned(), lock, Admission::FIFO, claim);
    let queued = Answer::Queued {
        ticket: 7,
        seq: 7,
        ahead: 1,
    };
    request.claim().on_reply(now, queued);
    assert!(request.needs_messages(), "it waits");
    request.claim().on_grant(now, 8);
    assert!(request.needs_messages(), "nobody has taken it");
    assert!(matches!(request.claim().poll_outcome(now), Some(Outcome::HandOut(_))));
    assert!(!request.needs_messages());
}
