//! Replies of status.

use super::replies::{Change, change, changed, real_replies};
use super::{MOST, holds, text};
use fairlock::testing::{Words, parse};
use proptest::prelude::*;
use redis::Value;

#[derive(Clone, Debug)]
pub(super) struct Looks {
    pub(super) now: u64,
    pub(super) mode: &'static str,
    pub(super) policy: &'static str,
    pub(super) holders: Vec<(u32, u64, u64, u64)>,
    pub(super) waiters: Vec<(u32, u64, bool, u64)>,
}

pub(super) fn looks() -> impl Strategy<Value = Looks> {
    let (now, most) = (1..=MOST.cast_unsigned(), 1_u64 << 52);
    let holder = (any::<u32>(), 0..=u64::MAX, 0..9_u64, 0..=MOST.cast_unsigned());
    let waiter = (any::<u32>(), 0..most, any::<bool>(), 0..=u64::MAX);
    (
        now,
        proptest::sample::select(vec!["", "read", "write"]),
        proptest::sample::select(vec!["", "w", "r", "n"]),
        proptest::collection::vec(holder, 0..4),
        proptest::collection::vec(waiter, 0..4),
    )
        .prop_map(|(now, mode, policy, holders, waiters)| Looks {
            now,
            mode,
            policy,
            holders,
            waiters,
        })
}

#[test]
pub(super) fn a_status_is_read_as_it_was_written_and_not_in_part() {
    const BAND: f64 = 4_503_599_627_370_496.0;
    holds((looks(), change(), 0..3_usize), |(looks, change, depth)| {
        let name = |number: u32| format!("w0123456789abcde:{number}");
        let holders = looks.holders.iter().flat_map(|(number, deadline, reads, token)| {
            [
                name(*number),
                deadline.to_string(),
                reads.to_string(),
                token.to_string(),
            ]
            .map(text)
        });
        let waiters = looks.waiters.iter().flat_map(|(number, ticket, upgrade, deadline)| {
            let score = *ticket as f64 - if *upgrade { BAND } else { 0.0 };
            [name(*number), format!("{score}"), deadline.to_string()].map(text)
        });
        let numbers = (0..12).map(|n| (looks.now / (n + 1)).to_string());
        let state = numbers.chain(["w0123456789abcde:1", "4", "3"].map(str::to_owned));
        let reply = Value::Array(vec![
            text(looks.now.to_string()),
            text(looks.mode),
            text(looks.policy),
            text("1"),
            text(looks.holders.len().to_string()),
            text(looks.waiters.len().to_string()),
            Value::Array(holders.collect()),
            Value::Array(waiters.collect()),
            Value::Array(state.map(text).collect()),
        ]);
        let read = parse(Words::Status, &reply).expect("well formed");
        for (number, deadline, reads, token) in &looks.holders {
            let holder = format!(
                "SnapshotHolder {{ request: {:?}, deadline_ms: {deadline}, read_holds: {reads}, token: {token} }}",
                name(*number)
            );
            assert!(read.contains(&holder), "{holder} is not in {read}");
        }
        for (number, ticket, upgrade, deadline) in &looks.waiters {
            let waiter = format!(
                "SnapshotWaiter {{ request: {:?}, ticket_us: {ticket}, upgrade: {upgrade}, deadline_ms: {deadline} }}",
                name(*number)
            );
            assert!(read.contains(&waiter), "{waiter} is not in {read}");
        }
        // One field more or less shifts all that follow: it is noticed.
        let odd = matches!(change, Change::Drop(_) | Change::Double(_) | Change::Wrap);
        let wrecked = changed(reply.clone(), &change, depth);
        if odd && wrecked != reply {
            assert_eq!(parse(Words::Status, &wrecked), None, "{wrecked:?}");
        }
    });
}

#[test]
pub(super) fn a_status_of_no_known_mode_policy_or_score_is_refused() {
    let at = |at: usize, with: &str| {
        let (_, mut reply) = real_replies()
            .into_iter()
            .find(|(words, _)| matches!(words, Words::Status))
            .expect("one");
        let Value::Array(items) = &mut reply else {
            panic!("a status is a list")
        };
        match (&mut items[at], at) {
            (Value::Array(waiters), 7) => waiters[1] = text(with),
            (item, _) => *item = text(with),
        }
        parse(Words::Status, &reply)
    };
    assert!(at(1, "read").is_some() && at(2, "w").is_some() && at(7, "-5").is_some());
    for (place, what) in [
        (1, "Write"),
        (2, "x"),
        (7, "nan"),
        (7, "inf"),
        (7, "1e999"),
        (0, "-1"),
        (4, "-1"),
    ] {
        assert_eq!(at(place, what), None, "{what:?} at {place}");
    }
}
