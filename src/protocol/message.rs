//! The message that tells a client of its grants: `token request request ... token request ... \n key`. Each token is
//! for the requests behind it.

use crate::types::limits::MOST_NUMBER;
use redis::{Cmd, RedisError, Value};

/// Counts those who hear such messages: the subscribers of a client's channel on the server that executes this.
pub(crate) fn count_subscribers(channel: &str) -> Cmd {
    let mut count = redis::cmd("PUBSUB");
    count.arg("NUMSUB").arg(channel);
    count
}

/// Reads the reply to [`count_subscribers`].
pub(crate) fn read_subscribers(reply: Value) -> Result<u64, RedisError> {
    let (_channel, n) = redis::from_redis_value::<(Value, u64)>(reply)?;
    Ok(n)
}

/// The requests and tokens of a message, and the key of their lock. `None`: the message is not fairlock's.
pub(crate) fn read_message(payload: &[u8]) -> Option<(Vec<(&str, u64)>, &str)> {
    let (grants, key) = std::str::from_utf8(payload).ok()?.split_once('\n')?;
    let mut list = Vec::new();
    let mut token = None;
    // A token needs a request behind it.
    let mut complete = false;
    for word in grants.split(' ') {
        complete = word.starts_with(['r', 'w']);
        if complete {
            list.push((word, token?));
        } else {
            token = Some(word.parse().ok().filter(|token| *token <= MOST_NUMBER)?);
        }
    }
    complete.then_some((list, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_requests_tokens_and_the_key() {
        let message = b"1760400000123456 w0a:7 1760400000123457 r0a:8 r0a:9\nfairlock:{a b\n}";
        let (grants, key) = read_message(message).expect("well formed");
        assert_eq!(
            grants,
            [
                ("w0a:7", 1_760_400_000_123_456),
                ("r0a:8", 1_760_400_000_123_457),
                ("r0a:9", 1_760_400_000_123_457)
            ]
        );
        assert_eq!(key, "fairlock:{a b\n}");
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for text in [
            "",
            "x",
            "\n",
            "w0a:7\nk",
            "7\nk",
            "7 w0a:7 8\nk",
            "7 x\nk",
            "x w0a:7\nk",
            "7  w0a:7\nk",
            "9999999999999999999 w0a:7\nk",
        ] {
            assert!(read_message(text.as_bytes()).is_none(), "{text:?}");
        }
        assert!(read_message(b"\xff\n").is_none());
    }
}
