//! Whatever bytes a server answers, read as RESP and then as the reply of each script.

use fairlock::testing::{Words, parse};

/// The first byte says how many requests were asked about.
pub fn check(bytes: &[u8]) {
    let Some((asked, resp)) = bytes.split_first() else {
        return;
    };
    let Ok(value) = redis::parse_redis_value(resp) else {
        return;
    };
    let asked = usize::from(*asked & 7);
    for words in [Words::Acquire, Words::Try] {
        if let Some(answer) = parse(words, &value) {
            check_answer(&value, words, &answer);
        }
    }
    let items = match &value {
        redis::Value::Array(items) => Some(items.len()),
        _ => None,
    };
    if let Some(read) = parse(Words::Release(asked), &value) {
        let alone = asked == 1 && matches!(value, redis::Value::Int(_));
        assert!(alone || items == Some(asked + 1), "{read}");
    }
    if let Some(read) = parse(Words::Renew(asked), &value) {
        assert_eq!(items, Some(asked + 2), "{read}");
    }
    parse(Words::Downgrade, &value);
    parse(Words::Evict, &value);
    parse(Words::Status, &value);
    parse(Words::Hello, &value);
}

/// A grant is a token alone, or four numbers that begin with 2 and a token. Who waits is told five numbers: the last one says
/// how many wait before it.
fn check_answer(value: &redis::Value, words: Words, answer: &str) {
    use redis::Value::{Array, Int};
    let (status, number) = match value {
        // "Busy", to a try.
        Int(0) => (0, 0),
        Int(token @ 2..) => (2, *token),
        Array(items) => match items[..] {
            [Int(status), Int(number), Int(_), Int(_)] if status != 1 => (status, number),
            [Int(1), Int(ticket), Int(_), Int(_), Int(0..)] => (1, ticket),
            _ => panic!("{words:?}: {value:?} was taken for {answer}"),
        },
        _ => panic!("{words:?}: {value:?} was taken for {answer}"),
    };
    let counts = (1..=1 << 53).contains(&number);
    assert_eq!(
        answer.contains("Granted"),
        status == 2 && counts,
        "{value:?} was taken for {answer}"
    );
    assert_eq!(
        answer.contains("Queued"),
        status == 1 && counts,
        "{value:?} was taken for {answer}"
    );
}
