//! Messages that may have been lost, holds that the server may have forgotten, and what a deaf waiter may believe.

use super::*;

#[test]
fn a_doubted_wait_is_due_until_a_later_call_is_answered() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    assert!(claim.doubt(t + ms(10)));
    claim.on_renewal(t + ms(5), t + ms(12), LEASE, Standing::Waits { seq: 10 });
    assert!(
        claim.due() <= Some(t + ms(10)),
        "that call may have been executed before"
    );
    claim.on_renewal(t + ms(11), t + ms(13), LEASE, Standing::Waits { seq: 10 });
    assert!(claim.due() > Some(t + ms(300)));
}

#[test]
fn a_grant_that_lay_unread_while_its_server_began_anew_is_due_at_once() {
    let (mut claim, t) = claim();
    assert!(
        !claim.doubt_hold(t + ms(10)),
        "the watchdog does not renew what has no reply"
    );
    let mut again = claim.clone();
    claim.on_reply(t, Answer::Granted { token: 7 });
    assert!(claim.due() <= Some(t));
    assert_eq!(handed_out(&mut claim, t + ms(11)), Some(7));
    assert!(claim.due().is_some_and(|due| due <= t + ms(11)));
    // A call that was sent later found the server as it is now.
    again.on_reply(t + ms(10), Answer::Granted { token: 8 });
    assert!(again.due() > Some(t + ms(300)));
}

#[test]
fn a_hold_that_may_be_forgotten_is_due_until_a_later_call_is_answered() {
    let (mut claim, t) = claim();
    claim.on_reply(t, Answer::Granted { token: 7 });
    assert_eq!(handed_out(&mut claim, t), Some(7));
    assert!(claim.doubt_hold(t + ms(10)));
    assert!(!claim.doubt(t + ms(10)), "messages do not matter any more");
    assert!(claim.due().is_some_and(|due| due <= t + ms(10)));
    claim.on_renewal(t + ms(5), t + ms(11), ms(1000), Standing::Holds { token: 7, first: 7 });
    assert!(claim.due().is_some_and(|due| due <= t + ms(11)), "that was sent before");
    claim.on_renewal(t + ms(12), t + ms(13), ms(1000), Standing::Holds { token: 7, first: 7 });
    assert!(claim.due().is_some_and(|due| due > t + ms(300)));
}

/// A vote of a quorum is renewed by the watchdog alone: without this it would wait for a third of its lease.
#[test]
fn a_grant_that_nothing_proves_is_due_until_a_later_call_is_answered() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    assert!(!claim.doubt_unproven(t + ms(1)), "it waits");
    claim.listens_since(t + ms(5));
    assert!(claim.on_grant(t + ms(10), 20));
    assert_eq!(claim.granted(t + ms(10)), None);
    assert!(claim.due() > Some(t + ms(10)));
    assert!(claim.doubt_unproven(t + ms(10)));
    assert!(claim.due() <= Some(t + ms(10)));
    assert!(!claim.doubt_unproven(t + ms(11)), "the watchdog knows");
    let standing = Standing::Holds { token: 20, first: 20 };
    claim.on_renewal(t + ms(12), t + ms(13), LEASE, standing);
    assert_eq!(claim.granted(t + ms(13)), Some(20));
    assert!(!claim.doubt_unproven(t + ms(14)));
}

#[test]
fn a_deaf_waiters_proofs_count_no_more_once_a_message_comes() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    claim.listens_since(t + ms(10));
    assert!(claim.on_grant(t + ms(20), 20));
    assert!(matches!(claim.poll_outcome(t + ms(20)), Some(Outcome::Renew)));
    // Sent before the subscription was confirmed: the lease may have been cut since.
    claim.on_renewal(t + ms(5), t + ms(21), LEASE, Standing::Waits { seq: 10 });
    assert!(matches!(claim.poll_outcome(t + ms(21)), Some(Outcome::Renew)));
    claim.on_renewal(t + ms(22), t + ms(23), LEASE, Standing::Holds { token: 20, first: 20 });
    assert_eq!(handed_out(&mut claim, t + ms(23)), Some(20));
}

#[test]
fn what_a_waiter_was_told_while_it_listened_proves_its_lease() {
    let (mut claim, t) = claim();
    claim.on_reply(t, QUEUED);
    claim.on_renewal(t + ms(11), t + ms(12), LEASE, Standing::Waits { seq: 10 });
    claim.listens_since(t + ms(10));
    assert!(claim.on_grant(t + ms(20), 20));
    assert_eq!(handed_out(&mut claim, t + ms(20)), Some(20));
}

#[test]
fn a_message_before_the_first_reply_proves_nothing_if_the_client_was_deaf_when_it_asked() {
    let (mut claim, t) = claim();
    claim.listens_since(t + ms(10));
    claim.on_grant(t + ms(20), 20);
    claim.on_reply(t, QUEUED);
    assert!(matches!(claim.poll_outcome(t + ms(21)), Some(Outcome::Renew)));
}

#[test]
fn a_reply_that_grants_proves_the_lease_also_to_the_deaf() {
    let (mut claim, t) = claim();
    claim.listens_since(t + ms(10));
    claim.on_grant(t + ms(20), 20);
    claim.on_reply(t, Answer::Granted { token: 20 });
    assert_eq!(handed_out(&mut claim, t + ms(21)), Some(20));
}
