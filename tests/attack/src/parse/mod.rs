//! Whatever a server answers or pushes: it is understood completely or refused, and never taken for a grant.
//!
//! Here words are read without any I/O, beside what ought to be made of them; `make fuzz` does the same guided by
//! coverage, and wild.rs is the whole client before a server that answers at random.

mod errors;
mod messages;
mod names;
mod replies;
mod seeds;
mod status;

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

fn text(bytes: impl Into<Vec<u8>>) -> Value {
    Value::BulkString(bytes.into())
}
