//! Whatever a server answers or pushes: it is understood completely or refused, and never taken for a grant.
//!
//! Here words are read without any I/O, beside what ought to be made of them; `make fuzz` does the same guided by
//! coverage, and wild.rs is the whole client before a server that answers at random.

use fairlock::testing::{self, Words, parse};
use fairlock::{Error, Owner};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use redis::{PushKind, Value, VerbatimFormat};
use std::time::Duration;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
const MOST: i64 = 1 << 53;
const CASES: u32 = 20_000;

/// Replays a run: what a failed one printed.
pub(crate) fn seed() -> u128 {
    match std::env::var("PARSE_SEED") {
        Ok(text) => u128::from_str_radix(&text, 16).expect("PARSE_SEED is hexadecimal"),
        // The same every time, so that a red run is a matter of the change under test.
        Err(_) => 1,
    }
}

pub(crate) fn runner(seed: u128, cases: u32) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn holds<S: Strategy>(of: S, property: impl Fn(S::Value)) {
    let seed = seed();
    let result = runner(seed, CASES).run(&of, |case| {
        property(case);
        Ok(())
    });
    if let Err(error) = result {
        panic!("PARSE_SEED={seed:032x}: {error}");
    }
}

// ---- what may come

pub(crate) fn number() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => -4_i64..=4,
        1 => proptest::sample::select(vec![i64::MIN, i64::MIN + 1, i64::MAX, MOST - 1, MOST, MOST + 1, 114, 119]),
        1 => any::<i64>(),
        2 => 1_700_000_000_000_000_i64..1_900_000_000_000_000,
    ]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..12),
        proptest::sample::select(WORDS.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        number().prop_map(|number| number.to_string().into_bytes()),
    ]
}

const WORDS: &[&str] = &[
    "",
    "read",
    "write",
    "w",
    "r",
    "version",
    "7.0.15",
    "6.2",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-0",
    "message",
    "OK",
    "w0123456789abcde:1",
    "r0123456789abcde:2:6ba7b8109dad41d180b400c04fd430c8",
    "x1:1",
    "w:1",
    "wä:1",
];

fn server_error() -> impl Strategy<Value = Value> {
    let codes = [
        "ERR", "NOSCRIPT", "BUSY", "LOADING", "MOVED", "ASK", "READONLY", "OOM", "NOPERM", "WHAT", "",
    ];
    let details = ["", " ", " x", " 1 127.0.0.1:1", " 99999999999 :", " \u{fffd}"];
    (
        proptest::sample::select(codes.to_vec()),
        proptest::sample::select(details.to_vec()),
    )
        .prop_map(|(code, detail)| {
            redis::parse_redis_value(format!("-{code}{detail}\r\n").as_bytes()).expect("an error is a value")
        })
}

pub(crate) fn push_kind() -> impl Strategy<Value = PushKind> {
    proptest::sample::select(vec![
        PushKind::Message,
        PushKind::PMessage,
        PushKind::SMessage,
        PushKind::Subscribe,
        PushKind::Unsubscribe,
        PushKind::PUnsubscribe,
        PushKind::Invalidate,
        PushKind::Disconnection,
        PushKind::Other("x".to_owned()),
    ])
}

/// Every kind of value, nested.
pub(crate) fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => number().prop_map(Value::Int),
        3 => bytes().prop_map(Value::BulkString),
        1 => Just(Value::Nil),
        1 => Just(Value::Okay),
        1 => proptest::sample::select(WORDS.to_vec()).prop_map(|word| Value::SimpleString(word.to_owned())),
        1 => any::<f64>().prop_map(Value::Double),
        1 => any::<bool>().prop_map(Value::Boolean),
        1 => bytes().prop_map(Value::BigNumber),
        1 => Just(Value::VerbatimString { format: VerbatimFormat::Text, text: "2".to_owned() }),
        1 => server_error(),
    ];
    leaf.prop_recursive(4, 64, 9, |inner| {
        let list = proptest::collection::vec(inner.clone(), 0..9);
        let pairs = proptest::collection::vec((inner.clone(), inner.clone()), 0..4);
        prop_oneof![
            4 => list.clone().prop_map(Value::Array),
            1 => list.clone().prop_map(Value::Set),
            1 => pairs.clone().prop_map(Value::Map),
            1 => (push_kind(), list).prop_map(|(kind, data)| Value::Push { kind, data }),
            1 => (inner, pairs).prop_map(|(data, attributes)| Value::Attribute { data: Box::new(data), attributes }),
        ]
    })
}

macro_rules! real {
    ($words:expr, $file:literal) => {
        ($words, &include_bytes!(concat!("../../fuzz/seeds/reply/", $file))[1..])
    };
}

/// What a real server answered to each script, in each of the ways that it can.
fn real_replies() -> Vec<(Words, Value)> {
    let replies = [
        real!(Words::Acquire, "granted"),
        real!(Words::Acquire, "queued"),
        real!(Words::Acquire, "other_policy"),
        real!(Words::Acquire, "owner_waits"),
        real!(Words::Acquire, "conflict"),
        real!(Words::Try, "granted"),
        real!(Words::Try, "busy"),
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
enum Change {
    Drop(usize),
    Double(usize),
    Swap(usize, usize),
    Replace(usize, Value),
    Truncate(usize),
    Wrap,
}

fn change() -> impl Strategy<Value = Change> {
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
fn changed(value: Value, change: &Change, depth: usize) -> Value {
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

fn reply() -> impl Strategy<Value = (Words, Value)> {
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

// ---- what ought to be made of it

fn look(next_ms: i64) -> Option<Duration> {
    (next_ms >= 0).then(|| Duration::from_millis(next_ms.unsigned_abs()).min(YEAR))
}

fn counts(number: i64) -> bool {
    (1..=MOST).contains(&number)
}

/// What PROTOCOL.md says of the replies of scripts that answer with numbers.
fn understood(words: Words, reply: &Value) -> Option<String> {
    let Value::Array(items) = reply else { return None };
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
            Some(format!("Answered(Granted {{ token: {token} }}, {:?})", look(next_ms)))
        }
        (Words::Acquire, &[1, ticket, next_ms, seq]) if counts(ticket) && (seq == 0 || counts(seq)) => {
            let next = look(next_ms);
            Some(format!("Answered(Queued {{ ticket: {ticket}, seq: {seq} }}, {next:?})"))
        }
        (Words::Try, &[0, _, _, _]) => Some("Busy".to_owned()),
        (Words::Acquire | Words::Try, &[-1, _, _, _]) => Some("Conflict".to_owned()),
        (Words::Acquire | Words::Try, &[-2, n, _, _]) if n >= 0 => {
            Some(format!("OwnerWaits({:?})", (n > 0).then_some(n)))
        }
        (Words::Acquire | Words::Try, &[-3, 0, _, _]) => Some("OtherPolicy(Fifo)".to_owned()),
        (Words::Acquire | Words::Try, &[-3, 119, _, _]) => Some("OtherPolicy(WriterFirst)".to_owned()),
        (Words::Acquire | Words::Try, &[-3, 114, _, _]) => Some("OtherPolicy(ReaderFirst)".to_owned()),
        (Words::Release(asked), _) => {
            let stood = |n: i64| match n {
                0 => Some("Unknown".to_owned()),
                1 => Some("Waits { seq: 0 }".to_owned()),
                n => counts(n).then(|| format!("Holds {{ token: {n} }}")),
            };
            each(&stood, asked)
        }
        (Words::Renew(asked), _) => {
            let standing = |n: i64| match n {
                -1 => Some("Unknown".to_owned()),
                0 => Some("Waits { seq: 0 }".to_owned()),
                ..0 => n
                    .checked_neg()
                    .filter(|seq| counts(*seq))
                    .map(|seq| format!("Waits {{ seq: {seq} }}")),
                n => counts(n).then(|| format!("Holds {{ token: {n} }}")),
            };
            each(&standing, asked)
        }
        (Words::Downgrade, &[next_ms, -1]) => Some(format!("(None, {:?})", look(next_ms))),
        (Words::Downgrade, &[next_ms, token]) if counts(token) => Some(format!("(Some({token}), {:?})", look(next_ms))),
        (Words::Evict, &[next_ms, number]) if number >= 0 => Some(format!("({number}, {:?})", look(next_ms))),
        _ => None,
    }
}

fn text(bytes: impl Into<Vec<u8>>) -> Value {
    Value::BulkString(bytes.into())
}

#[test]
fn a_real_reply_is_understood() {
    for (words, reply) in real_replies() {
        assert!(parse(words, &reply).is_some(), "{words:?}: {reply:?}");
    }
}

#[test]
fn a_reply_is_understood_as_the_design_says_or_refused() {
    holds(reply(), |(words, reply)| {
        let read = parse(words, &reply);
        match words {
            Words::Status | Words::Hello => {}
            words => assert_eq!(read, understood(words, &reply), "{words:?}: {reply:?}"),
        }
    });
}

#[derive(Clone, Debug)]
struct Looks {
    now: u64,
    mode: &'static str,
    policy: &'static str,
    holders: Vec<(u32, u64, u64, u64)>,
    waiters: Vec<(u32, u64, bool, u64)>,
}

fn looks() -> impl Strategy<Value = Looks> {
    let (now, most) = (1..=MOST.cast_unsigned(), 1_u64 << 52);
    let holder = (any::<u32>(), 0..=u64::MAX, 0..9_u64, 0..=MOST.cast_unsigned());
    let waiter = (any::<u32>(), 0..most, any::<bool>(), 0..=u64::MAX);
    (
        now,
        proptest::sample::select(vec!["", "read", "write"]),
        proptest::sample::select(vec!["", "w", "r"]),
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
fn a_status_is_read_as_it_was_written_and_not_in_part() {
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
        let reply = Value::Array(vec![
            text(looks.now.to_string()),
            text(looks.mode),
            text(looks.policy),
            text("1"),
            text(looks.holders.len().to_string()),
            text(looks.waiters.len().to_string()),
            Value::Array(holders.collect()),
            Value::Array(waiters.collect()),
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
fn a_status_of_no_known_mode_policy_or_score_is_refused() {
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

#[test]
fn only_a_server_that_says_so_is_an_old_one_or_a_replica() {
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

// ---- messages and events

#[test]
fn a_message_is_read_as_it_was_written_or_refused() {
    let grant = (
        "[rw][0-9a-f]{1,15}:[0-9]{1,19}(:[0-9a-f]{32})?",
        prop_oneof![3 => 0..=MOST, 1 => MOST..=i64::MAX],
    );
    let grants = proptest::collection::vec(grant, 1..5);
    holds((grants, ".*", bytes()), |(grants, key, odd)| {
        let words: Vec<_> = grants.iter().map(|(name, token)| format!("{name} {token}")).collect();
        let message = format!("{}\n{key}", words.join(" "));
        let expected = grants
            .iter()
            .all(|(_, token)| *token <= MOST)
            .then(|| format!("{:?}", (&grants, &key)));
        assert_eq!(parse(Words::Message, &text(message.clone())), expected, "{message:?}");
        // Whatever is put into it, it is read or refused as a whole.
        let at = odd.len() * 7 % (message.len() + 1);
        let mut bytes = message.into_bytes();
        bytes.splice(at..at, odd.iter().copied());
        for words in [
            Words::Message,
            Words::Events,
            Words::Introduction,
            Words::Request,
            Words::Owner,
        ] {
            parse(words, &text(bytes.clone()));
            parse(words, &text(odd.clone()));
        }
    });
}

#[test]
fn a_line_of_an_event_is_read_as_it_was_written_or_left_out() {
    let kinds = ["queued", "granted", "released", "expired", "left", "evicted", "sung"];
    let line = (
        proptest::sample::select(kinds.to_vec()),
        "[rwx]0[0-9a-f]{1,14}:[0-9]{1,9}",
        number(),
    );
    let at = prop_oneof![3 => 0..=MOST as u64, 1 => any::<u64>()];
    holds((at, proptest::collection::vec(line, 0..5)), |(at, lines)| {
        let written: Vec<_> = lines
            .iter()
            .map(|(kind, name, token)| format!("{kind} {name} {token}"))
            .collect();
        let read = parse(Words::Events, &text(format!("{at}\n{}", written.join("\n")))).expect("text");
        let good = lines
            .iter()
            .filter(|(kind, name, token)| *kind != "sung" && !name.starts_with('x') && (0..=MOST).contains(token))
            // No calendar shows times that are later than the last token.
            .filter(|_| at <= MOST as u64);
        let tokens: Vec<i64> = good.map(|(_, _, token)| *token).collect();
        assert_eq!(read.matches("Event {").count(), tokens.len(), "{read}");
        for token in tokens {
            let shown = if token == 0 {
                "token: None".to_owned()
            } else {
                format!("token: Some(FencingToken({token}))")
            };
            assert!(read.contains(&shown), "{shown} is not in {read}");
        }
    });
}

#[test]
fn an_introduction_is_read_as_it_was_written() {
    let part = "[^\n]{1,9}";
    holds(
        (any::<u32>(), part, ".{1,9}", bytes()),
        |(process, host, label, odd)| {
            let read = parse(Words::Introduction, &text(format!("{process}\n{host}\n{label}"))).expect("always read");
            let shown = format!("label: Some({label:?}), host: Some({host:?}), process: Some({process}) }}");
            assert!(read.contains(&shown), "{shown} is not in {read}");
            assert!(parse(Words::Introduction, &text(odd)).is_some());
        },
    );
}

// ---- names

/// What Redis Cluster hashes of a key.
fn hash_tag(key: &str) -> &str {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key)
}

#[test]
fn every_name_has_keys_of_its_own_in_one_slot_and_is_read_back() {
    let name = || {
        prop_oneof![
            "\\PC{1,9}",
            "[a%25{}7D:]{1,6}",
            any::<String>().prop_filter("a name", |s| !s.is_empty())
        ]
    };
    holds((name(), name(), "[^{}]{1,9}"), |(one, other, prefix)| {
        let (keys, others) = (testing::keys(&prefix, &one), testing::keys(&prefix, &other));
        assert!(keys.iter().all(|key| hash_tag(key) == hash_tag(&keys[0])), "{keys:?}");
        let shared = keys.iter().any(|key| others.contains(key));
        assert_eq!(shared, one == other, "{keys:?} {others:?}");
        let channel = testing::event_channel(&prefix, &one);
        assert_eq!(
            testing::name_of_event_channel(&prefix, &channel),
            Some(one),
            "{channel:?}"
        );
        assert_eq!(
            keys.each_ref().map(|key| testing::is_state(&prefix, key)),
            [true, false, false],
            "{keys:?}"
        );
    });
}

#[test]
fn a_prefix_or_label_that_would_break_keys_or_commands_is_refused() {
    holds("[ -~{}ä\n]{0,140}", |given| {
        let [prefix, label] = testing::lets_through(&given, Some(&given));
        assert_eq!(
            prefix,
            (1..=128).contains(&given.len()) && !given.contains(['{', '}']),
            "{given:?}"
        );
        let printable = given.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
        assert_eq!(label, (1..=128).contains(&given.len()) && printable, "{given:?}");
    });
}

fn owner_of_name(name: &str) -> Option<Owner> {
    let shown = parse(Words::Owner, &text(name))?;
    let uuid = shown.strip_prefix("Owner(").and_then(|rest| rest.strip_suffix(')'));
    Some(uuid.expect("an owner").parse().expect("a UUID"))
}

#[test]
fn owners_survive_their_names_and_no_two_share_one() {
    let name = prop_oneof![
        "[0-9a-f]{1,17}:[0-9]{1,20}",
        "[0-9a-f]{32}",
        "[+0-9a-f:-]{0,40}",
        any::<String>()
    ];
    holds((any::<u128>(), name), |(id, name)| {
        let owner = Owner::from_uuid(uuid::Uuid::from_u128(id));
        let unowned = owner.uuid().get_version_num() == 8;
        if !unowned || owner.uuid().get_variant() == uuid::Variant::RFC4122 {
            assert_eq!(owner_of_name(&testing::owner_name(owner)), Some(owner), "{owner}");
        }
        // Whatever is read has a name that is read alike.
        if let Some(owner) = owner_of_name(&name) {
            assert_eq!(owner_of_name(&testing::owner_name(owner)), Some(owner), "{name:?}");
            if let Some((client, number)) = name.split_once(':') {
                let client = u64::from_str_radix(client, 16).expect("a client's number");
                let number: u64 = number.parse().expect("a request's number");
                assert_eq!(
                    testing::owner_name(owner),
                    format!("{client:015x}:{number}"),
                    "of {name:?}"
                );
            }
        }
    });
}

#[test]
fn a_request_has_a_mode_a_client_and_an_owner_or_is_refused() {
    let name = (
        "[rwx]?",
        "[0-9a-f]{0,16}",
        ":?[0-9]{0,21}",
        proptest::option::of("[0-9a-f]{32}"),
    );
    holds((name, any::<String>()), |((mode, client, number, owner), odd)| {
        let unowned = format!("{client}{number}");
        let owner_name = owner.clone().unwrap_or_else(|| unowned.clone());
        let name = owner
            .iter()
            .fold(format!("{mode}{unowned}"), |name, owner| format!("{name}:{owner}"));
        let read = parse(Words::Request, &text(name.clone()));
        let number = number.strip_prefix(':').and_then(|number| number.parse::<u64>().ok());
        match (mode.as_str(), number, owner_of_name(&owner_name)) {
            ("r" | "w", Some(_), Some(owner)) if !client.is_empty() => {
                let mode = if mode == "w" { "Write" } else { "Read" };
                assert_eq!(read, Some(format!("({mode}, {client:?}, {owner:?})")), "{name:?}");
            }
            _ => assert_eq!(read, None, "{name:?}"),
        }
        parse(Words::Request, &text(odd));
    });
}

// ---- errors

#[test]
fn an_error_is_worth_a_retry_only_if_it_passes() {
    const PASSING: [&str; 9] = [
        "LOADING",
        "MASTERDOWN",
        "READONLY",
        "UNBLOCKED",
        "MOVED",
        "ASK",
        "TRYAGAIN",
        "CLUSTERDOWN",
        "BUSY",
    ];
    let known = [
        "NOSCRIPT",
        "OOM",
        "NOPERM",
        "NOAUTH",
        "WRONGPASS",
        "WRONGTYPE",
        "ERR",
        "EXECABORT",
    ];
    let code = proptest::sample::select([&PASSING[..], &known].concat()).prop_map(str::to_owned);
    let code = prop_oneof![code, "[A-Z]{0,9}"];
    holds((code, "( [^\r\n]{0,30})?", ".{0,99}"), |(code, detail, lock)| {
        let value = redis::parse_redis_value(format!("-{code}{detail}\r\n").as_bytes()).expect("an error");
        let source = value.extract_error().expect_err("an error");
        let said = source.to_string();
        let error = testing::error(&lock, source);
        let told = error.to_string();
        assert!(told.contains(&said), "{told}");
        match error {
            Error::Unavailable { .. } => assert!(PASSING.contains(&code.as_str()), "{told}"),
            Error::Server { remedy, .. } => {
                assert!(!PASSING.contains(&code.as_str()), "{told}");
                assert!(!remedy.is_empty() && told.ends_with(remedy), "{told}");
            }
            other => panic!("{other}"),
        }
    });
}
