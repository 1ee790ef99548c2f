//! Messages of grants, lines of events, introductions.

use super::{MOST, bytes, holds, number, text};
use fairlock::testing::{Words, parse};
use proptest::prelude::*;

#[test]
pub(super) fn a_message_is_read_as_it_was_written_or_refused() {
    let grant = (
        "[rw][0-9a-f]{1,15}:[0-9]{1,19}(:[0-9a-f]{32})?",
        prop_oneof![3 => 0..=MOST, 1 => MOST..=i64::MAX],
    );
    let grants = proptest::collection::vec(grant, 1..5);
    holds((grants, ".*", bytes()), |(grants, key, odd)| {
        let words: Vec<_> = grants.iter().map(|(name, token)| format!("{token} {name}")).collect();
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
pub(super) fn a_line_of_an_event_is_read_as_it_was_written_or_left_out() {
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
pub(super) fn an_introduction_is_read_as_it_was_written() {
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
