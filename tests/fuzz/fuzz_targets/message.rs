//! Whatever comes on a channel: a client's messages, events, and what clients say of themselves.
#![no_main]

use fairlock::testing::{Words, name_of_event_channel, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let value = redis::Value::BulkString(bytes.to_vec());
    if let Some(message) = parse(Words::Message, &value) {
        let text = std::str::from_utf8(bytes).expect("a message is text");
        let (grants, key) = text.split_once('\n').expect("a message has two lines");
        assert!(message.ends_with(&format!("{key:?})")), "{message}");
        let words: Vec<_> = grants.split(' ').collect();
        assert_eq!(words.len() % 2, 0, "{message}");
        for token in words.iter().skip(1).step_by(2) {
            assert!(token.parse::<u64>().expect("a number") <= 1 << 53, "{message}");
        }
    }
    parse(Words::Events, &value);
    parse(Words::Introduction, &value);
    if let Ok(text) = std::str::from_utf8(bytes) {
        name_of_event_channel("fairlock", text);
    }
});
