//! Where a reply of the server ends, so that a proxy can drop whole replies.

/// The length of the first frame in the buffer. `None`: it is not complete.
pub fn frame_len(buffer: &[u8]) -> Option<usize> {
    let line = buffer.iter().position(|&byte| byte == b'\n')? + 1;
    let number = || {
        let text = std::str::from_utf8(&buffer[1..line]).ok()?;
        text.trim_end().parse::<i64>().ok()
    };
    match buffer[0] {
        b'$' | b'=' | b'!' => match number().and_then(|n| usize::try_from(n).ok()) {
            Some(n) => (buffer.len() >= line + n + 2).then_some(line + n + 2),
            None => Some(line),
        },
        b'*' | b'>' | b'~' | b'%' | b'|' => {
            let pairs = if matches!(buffer[0], b'%' | b'|') { 2 } else { 1 };
            let mut at = line;
            for _ in 0..number().unwrap_or(0).max(0) * pairs {
                at += frame_len(&buffer[at..])?;
            }
            Some(at)
        }
        _ => Some(line),
    }
}

/// Something published that came to a subscriber.
pub fn is_message(frame: &[u8]) -> bool {
    frame.starts_with(b">3\r\n$7\r\nmessage\r\n")
}

/// What the server sends unasked: a message, or what confirms a subscription.
pub fn is_push(frame: &[u8]) -> bool {
    frame.starts_with(b">")
}

/// Scripts answer with arrays, or with one number.
pub fn is_script_reply(frame: &[u8]) -> bool {
    frame.starts_with(b"*") || frame.starts_with(b":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_ends_where_it_ends_and_not_before() {
        let frames: [&[u8]; 9] = [
            b"+OK\r\n",
            b":12\r\n",
            b"$-1\r\n",
            b"$0\r\n\r\n",
            b"$3\r\na\nb\r\n",
            b"*0\r\n",
            b"*3\r\n:1\r\n$1\r\nx\r\n*1\r\n:2\r\n",
            b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\nw:1\r\n",
            b"%1\r\n$1\r\na\r\n*1\r\n:1\r\n",
        ];
        for frame in frames {
            let mut longer = frame.to_vec();
            longer.extend(b"+OK\r\n");
            assert_eq!(
                frame_len(&longer),
                Some(frame.len()),
                "{:?}",
                frame.escape_ascii().to_string()
            );
            for cut in 0..frame.len() {
                assert_eq!(
                    frame_len(&frame[..cut]),
                    None,
                    "{cut} of {:?}",
                    frame.escape_ascii().to_string()
                );
            }
        }
        assert!(
            is_message(frames[7])
                && !is_script_reply(frames[7])
                && is_script_reply(frames[6])
                && is_script_reply(frames[1])
        );
    }
}
