//! The patterns of SCAN and PSUBSCRIBE: `*`, `?`, `[a-c]`, `[^a]`, and `\` before a character that stands for itself.

pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|at| matches(rest, &text[at..])),
        [b'?', rest @ ..] => !text.is_empty() && matches(rest, &text[1..]),
        [b'[', rest @ ..] => match (text, set(rest)) {
            ([first, others @ ..], Some((of, rest))) => of.has(*first) && matches(rest, others),
            _ => false,
        },
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => {
            text.first() == Some(literal) && matches(rest, &text[1..])
        }
    }
}

struct Set<'a> {
    members: &'a [u8],
    negated: bool,
}

/// The set behind a `[`, and what comes after it. `None`: it has no end.
fn set(pattern: &[u8]) -> Option<(Set<'_>, &[u8])> {
    let negated = pattern.first() == Some(&b'^');
    let pattern = &pattern[usize::from(negated)..];
    let mut end = 0;
    while *pattern.get(end)? != b']' {
        end += if pattern[end] == b'\\' { 2 } else { 1 };
    }
    let members = &pattern[..end];
    Some((Set { members, negated }, &pattern[end + 1..]))
}

impl Set<'_> {
    fn has(&self, byte: u8) -> bool {
        let mut members = self.members;
        let mut found = false;
        while let [first, rest @ ..] = members {
            members = match (first, rest) {
                (b'\\', [literal, rest @ ..]) => {
                    found |= *literal == byte;
                    rest
                }
                (from, [b'-', to, rest @ ..]) => {
                    found |= (from.min(to)..=from.max(to)).contains(&&byte);
                    rest
                }
                (member, rest) => {
                    found |= *member == byte;
                    rest
                }
            };
        }
        found != self.negated
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_those_of_redis_do() {
        let is = |pattern: &str, text: &str| matches(pattern.as_bytes(), text.as_bytes());
        assert!(is("fairlock:{*}", "fairlock:{a:b}") && !is("fairlock:{*}", "fairlock:{a}:q"));
        assert!(is("a?c", "abc") && !is("a?c", "ac") && !is("", "a") && is("**", ""));
        assert!(is("[a-c]x", "bx") && !is("[a-c]x", "dx") && is("[^a-c]x", "dx") && !is("[^a]", "a"));
        assert!(is(r"a\*", "a*") && !is(r"a\*", "ab") && is(r"[\]]", "]") && !is("[ab", "a"));
    }
}
