//! Errors of a server.

use super::holds;
use fairlock::{Error, testing};
use proptest::prelude::*;

#[test]
pub(super) fn an_error_is_worth_a_retry_only_if_it_passes() {
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
