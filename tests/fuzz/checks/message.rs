//! Whatever comes on a channel: a client's messages, events, and what clients say of themselves.

use fairlock::testing::{Words, name_of_event_channel, parse};

pub fn check(bytes: &[u8]) {
    let value = redis::Value::BulkString(bytes.to_vec());
    if let Some(message) = parse(Words::Message, &value) {
        let text = std::str::from_utf8(bytes).expect("a message is text");
        let (grants, key) = text.split_once('\n').expect("a message has two lines");
        assert!(message.ends_with(&format!("{key:?})")), "{message}");
        let words: Vec<_> = grants.split(' ').collect();
        let is_request = |word: &&str| word.starts_with(['r', 'w']);
        let ends = [words.first(), words.last()].map(|word| word.is_some_and(is_request));
        assert_eq!(ends, [false, true], "{message}");
        for token in words.iter().filter(|word| !is_request(word)) {
            assert!(token.parse::<u64>().expect("a number") <= 1 << 53, "{message}");
        }
    }
    parse(Words::Events, &value);
    parse(Words::Introduction, &value);
    if let Ok(text) = std::str::from_utf8(bytes) {
        name_of_event_channel("fairlock", text);
    }
}
