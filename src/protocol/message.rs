//! The message that tells a client of its grants: `request token request token ... \n key`.

use crate::types::limits::MOST_NUMBER;

/// The requests and tokens of a message, and the key of their lock. `None`: the message is not fairlock's.
pub(crate) fn read_message(payload: &[u8]) -> Option<(Vec<(&str, u64)>, &str)> {
    let (grants, key) = std::str::from_utf8(payload).ok()?.split_once('\n')?;
    let mut words = grants.split(' ');
    let mut list = Vec::new();
    while let Some(request) = words.next() {
        let token = words.next()?.parse().ok().filter(|token| *token <= MOST_NUMBER)?;
        list.push((request, token));
    }
    Some((list, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_requests_tokens_and_the_key() {
        let message = b"w0a:7 1760400000123456 r0a:8 1760400000123457\nfairlock:{a b\n}";
        let (grants, key) = read_message(message).expect("well formed");
        assert_eq!(
            grants,
            [("w0a:7", 1_760_400_000_123_456), ("r0a:8", 1_760_400_000_123_457)]
        );
        assert_eq!(key, "fairlock:{a b\n}");
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [&b""[..], b"x", b"\n", b"w0a:7\nkey", b"w0a:7 x\nkey", b"\xff\n"] {
            assert!(read_message(bytes).is_none(), "{bytes:?}");
        }
    }
}
