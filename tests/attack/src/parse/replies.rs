//! Replies of the scripts: each is understood as PROTOCOL.md says, or refused.

use super::{MOST, YEAR, holds, number, text, value};
use fairlock::testing::{Words, parse};
use proptest::prelude::*;
use redis::Value;
use std::time::Duration;

macro_rules! real {
    ($words:expr, $file:literal) => {
        (
            $words,
            &include_bytes!(concat!("../../../fuzz/seeds/reply/", $file))[1..],
        )
    };
}

/// What a real server answered to each script, in each of the ways that it can.
pub(super) fn real_replies() -> Vec<(Words, Value)> {
    let replies = [
        real!(Words::Acquire, "granted"),
        real!(Words::Acquire, "queued"),
        real!(Words::Acquire, "other_policy"),
        real!(Words::Acquire, "queue_full"),
        real!(Words::Acquire, "owner_waits"),
        real!(Words::Acquire, "conflict"),
        real!(Words::Acquire, "not_reading"),
        real!(Words::Try, "granted"),
        real!(Words::Try, "busy"),
        real!(Words::Try, "busy_more"),
        real!(Words::Renew(3), "renewed"),
        real!(Words::Release(3), "released"),
        real!(Words::Downgrade, "downgraded"),
        real!(Words::Downgrade, "not_downgraded"),
        real!(Words::Evict, "evicted"),
        real!(Words::Status, "status"),
        real!(Words::Status, "status_free"),
        real!(Words::Hello, "hello2"),
        real!(Words::Hello, "hello3"),
    ];
    let read = |resp| redis::parse_redis_value(resp).expect("a real reply");
    replies.into_iter().map(|(words, resp)| (words, read(resp))).collect()
}

#[derive(Clone, Debug)]
pub(super) enum Change {
    Drop(usize),
    Double(usize),
    Swap(usize, usize),
    Replace(usize, Value),
    Truncate(usize),
    Wrap,
}

pub(super) fn change() -> impl Strategy<Value = Change> {
    let at = 0..8_usize;
    prop_oneof![
        at.clone().prop_map(Change::Drop),
        at.clone().prop_map(Change::Double),
        (at.clone(), at.clone()).prop_map(|(a, b)| Change::Swap(a, b)),
        (at.clone(), value()).prop_map(|(at, value)| Change::Replace(at, value)),
        (at.clone(), number()).prop_map(|(at, number)| Change::Replace(at, Value::Int(number))),
        at.prop_map(Change::Truncate),
        Just(Change::Wrap),
    ]
}

/// Changes one of the lists in a value: the outer one, or the inner one that `depth` picks.
pub(super) fn changed(value: Value, change: &Change, depth: usize) -> Value {
    let Value::Array(mut items) = value else { return value };
    let lists: Vec<_> = (0..items.len())
        .filter(|at| matches!(items[*at], Value::Array(_)))
        .collect();
    if depth > 0 && !lists.is_empty() {
        let at = lists[depth % lists.len()];
        items[at] = changed(std::mem::take(&mut items[at]), change, depth - 1);
        return Value::Array(items);
    }
    let len = items.len();
    if len > 0 {
        match change {
            Change::Drop(at) => drop(items.remove(at % len)),
            Change::Double(at) => items.insert(at % len, items[at % len].clone()),
            Change::Swap(a, b) => items.swap(a % len, b % len),
            Change::Replace(at, value) => items[at % len] = value.clone(),
            Change::Truncate(at) => items.truncate(at % len),
            Change::Wrap => items = vec![Value::Array(items)],
        }
    }
    Value::Array(items)
}

pub(super) fn reply() -> impl Strategy<Value = (Words, Value)> {
    let real = proptest::sample::select(real_replies());
    let changes = proptest::collection::vec((change(), 0..3_usize), 0..3);
    let mutated = (real, changes).prop_map(|((words, value), changes)| {
        let apply = |value, (change, depth): &(Change, usize)| changed(value, change, *depth);
        (words, changes.iter().fold(value, apply))
    });
    let asked = 0..4_usize;
    let words = prop_oneof![
        Just(Words::Acquire),
        Just(Words::Try),
        asked.clone().prop_map(Words::Release),
        asked.prop_map(Words::Renew),
        Just(Words::Downgrade),
        Just(Words::Evict),
        Just(Words::Status),
        Just(Words::Hello),
    ];
    let numbers = proptest::collection::vec(number().prop_map(Value::Int), 0..6).prop_map(Value::Array);
    prop_oneof![
        2 => mutated,
        1 => (words.clone(), numbers),
        1 => (words, value()),
    ]
}

pub(super) fn look(next_ms: i64) -> Option<Duration> {
    (next_ms >= 0).then(|| Duration::from_millis(next_ms.unsigned_abs()).min(YEAR))
}

pub(super) fn counts(number: i64) -> bool {
    (1..=MOST).contains(&number)
}

/// A reply of one number.
fn understood_alone(words: Words, alone: i64) -> Option<String> {
    match (words, alone) {
        (Words::Try, 0) => refused("Busy", -1),
        (Words::Acquire | Words::Try, token @ 2..) if counts(token) => {
            Some(format!("(Answered(Granted {{ token: {token} }}), None)"))
        }
        (Words::Release(1), told) => Some(format!("([{}], None)", released(told)?)),
        _ => None,
    }
}

fn refused(why: &str, next_ms: i64) -> Option<String> {
    Some(format!("(Refused({why}), {:?})", look(next_ms)))
}

fn refusal(status: i64, value: i64) -> Option<String> {
    match (status, value) {
        (-1, _) => Some("Conflict".to_owned()),
        (-2, n) if n >= 0 => Some(format!("OwnerWaits({:?})", (n > 0).then_some(n))),
        (-3, 0) => Some("OtherPolicy(Fifo)".to_owned()),
        (-3, 119) => Some("OtherPolicy(WriterFirst)".to_owned()),
        (-3, 114) => Some("OtherPolicy(ReaderFirst)".to_owned()),
        (-3, 110) => Some("OtherPolicy(Bounded)".to_owned()),
        (-4, _) => Some("NotReading".to_owned()),
        (-5, n) if n >= 0 => Some(format!("QueueFull({n})")),
        _ => None,
    }
}

fn released(told: i64) -> Option<String> {
    match told {
        0 => Some("Unknown".to_owned()),
        1 => Some("Waits { seq: 0 }".to_owned()),
        n => counts(n).then(|| format!("Holds {{ token: {n}, first: {n} }}")),
    }
}

/// What PROTOCOL.md says of the replies of scripts that answer with numbers.
pub(super) fn understood(words: Words, reply: &Value) -> Option<String> {
    let items = match reply {
        Value::Array(items) => items,
        Value::Int(alone) => return understood_alone(words, *alone),
        _ => return None,
    };
    let numbers: Option<Vec<i64>> = items
        .iter()
        .map(|item| {
            if let Value::Int(number) = item {
                Some(*number)
            } else {
                None
            }
        })
        .collect();
    let numbers = numbers?;
    let each = |read: &dyn Fn(i64) -> Option<String>, asked: usize| {
        let (next_ms, each) = numbers.split_first()?;
        let each: Option<Vec<_>> = each.iter().map(|number| read(*number)).collect();
        let each = each.filter(|each| each.len() == asked)?.join(", ");
        Some(format!("([{each}], {:?})", look(*next_ms)))
    };
    match (words, numbers.as_slice()) {
        (Words::Acquire | Words::Try, &[2, token, next_ms, _]) if counts(token) => {
            Some(format!("(Answered(Granted {{ token: {token} }}), {:?})", look(next_ms)))
        }
        (Words::Acquire, &[1, ticket, next_ms, seq, ahead])
            if counts(ticket) && (seq == 0 || counts(seq)) && ahead >= 0 =>
        {
            let next = look(next_ms);
            Some(format!(
                "(Answered(Queued {{ ticket: {ticket}, seq: {seq}, ahead: {ahead} }}), {next:?})"
            ))
        }
        (Words::Try, &[0, _, next_ms, _]) => refused("Busy", next_ms),
        (Words::Acquire | Words::Try, &[status, value, next_ms, _]) if status < 0 => {
            refused(&refusal(status, value)?, next_ms)
        }
        (Words::Release(asked), _) => each(&released, asked),
        (Words::Renew(asked), &[next_ms, first, ..]) if first == 0 || counts(first) => {
            // To read and to write by turns.
            let standing = |(at, n): (usize, i64)| match n {
                -1 => Some("Unknown".to_owned()),
                0 => Some("Waits { seq: 0 }".to_owned()),
                ..0 => n
                    .checked_neg()
                    .filter(|seq| counts(*seq))
                    .map(|seq| format!("Waits {{ seq: {seq} }}")),
                n => counts(n).then(|| {
                    let first = if at % 2 == 0 { first } else { n };
                    format!("Holds {{ token: {n}, first: {first} }}")
                }),
            };
            let each: Option<Vec<_>> = numbers[2..].iter().copied().enumerate().map(standing).collect();
            let each = each.filter(|each| each.len() == asked)?.join(", ");
            Some(format!("([{each}], {:?})", look(next_ms)))
        }
        (Words::Downgrade, &[next_ms, -1]) => Some(format!("(None, {:?})", look(next_ms))),
        (Words::Downgrade, &[next_ms, token]) if counts(token) => Some(format!("(Some({token}), {:?})", look(next_ms))),
        (Words::Evict, &[next_ms, number]) if number >= 0 => Some(format!("({number}, {:?})", look(next_ms))),
        _ => None,
    }
}

#[test]
pub(super) fn a_real_reply_is_understood() {
    for (words, reply) in real_replies() {
        assert!(parse(words, &reply).is_some(), "{words:?}: {reply:?}");
    }
}

#[test]
pub(super) fn a_reply_is_understood_as_the_design_says_or_refused() {
    holds(reply(), |(words, reply)| {
        let read = parse(words, &reply);
        match words {
            Words::Status | Words::Hello => {}
            words => assert_eq!(read, understood(words, &reply), "{words:?}: {reply:?}"),
        }
    });
}

#[test]
pub(super) fn only_a_server_that_says_so_is_an_old_one_or_a_replica() {
    let hello = |version: Value| vec![(text("role"), text("replica")), (text("version"), version)];
    holds((prop_oneof![0..12_u32, any::<u32>()], value()), |(major, odd)| {
        let expected = Some(format!("{} replica", if major < 7 { "Plain" } else { "Flags" }));
        let major = hello(text(format!("{major}.2.1")));
        let list = major.iter().cloned().flat_map(<[Value; 2]>::from).collect();
        assert_eq!(parse(Words::Hello, &Value::Array(list)), expected);
        assert_eq!(parse(Words::Hello, &Value::Map(major)), expected);
        assert!(parse(Words::Hello, &odd).is_some());
        assert!(parse(Words::Hello, &Value::Map(hello(odd))).is_some());
    });
}
