//! What a worker tells its parent: a line for each thing, on its standard output.

use std::fmt;

/// A hold as its user saw it: from when the guard was in hand to the last look that found it held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// `w` or `r`, or the number of permits.
    pub mode: char,
    pub lock: String,
    pub owner: u128,
    pub token: u64,
    /// CLOCK_MONOTONIC, us.
    pub from_us: u64,
    pub until_us: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    Held(Held),
    /// Grants since the last such line, and the longest wait among them.
    Grants {
        workload: String,
        grants: u64,
        longest_us: u64,
    },
    /// A register's writes since the last such line: confirmed, and refused by the fence.
    Writes {
        register: String,
        confirmed: u64,
        refused: u64,
    },
    /// Errors that a user must expect, since the last such line.
    Failed {
        what: String,
        times: u64,
    },
    /// Something that must not happen.
    Wrong(String),
    /// All tasks have ended.
    Drained,
    /// It got its locks once more; the longest took this long.
    Probed {
        longest_us: u64,
    },
}

impl Line {
    pub fn parse(text: &str) -> Option<Self> {
        let (what, rest) = text.split_once(' ').unwrap_or((text, ""));
        let words: Vec<&str> = rest.split(' ').collect();
        match (what, words.as_slice()) {
            ("h", &[mode, owner, token, from, until, lock]) => Some(Self::Held(Held {
                mode: mode.chars().next()?,
                lock: lock.to_owned(),
                owner: u128::from_str_radix(owner, 16).ok()?,
                token: token.parse().ok()?,
                from_us: from.parse().ok()?,
                until_us: until.parse().ok()?,
            })),
            ("g", &[workload, grants, longest]) => Some(Self::Grants {
                workload: workload.to_owned(),
                grants: grants.parse().ok()?,
                longest_us: longest.parse().ok()?,
            }),
            ("r", &[register, confirmed, refused]) => Some(Self::Writes {
                register: register.to_owned(),
                confirmed: confirmed.parse().ok()?,
                refused: refused.parse().ok()?,
            }),
            ("f", &[times, what]) => Some(Self::Failed {
                what: what.to_owned(),
                times: times.parse().ok()?,
            }),
            ("e", _) => Some(Self::Wrong(rest.to_owned())),
            ("d", _) => Some(Self::Drained),
            ("p", &[longest]) => Some(Self::Probed {
                longest_us: longest.parse().ok()?,
            }),
            _ => None,
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held(Held {
                mode,
                lock,
                owner,
                token,
                from_us,
                until_us,
            }) => write!(f, "h {mode} {owner:x} {token} {from_us} {until_us} {lock}"),
            Self::Grants {
                workload,
                grants,
                longest_us,
            } => write!(f, "g {workload} {grants} {longest_us}"),
            Self::Writes {
                register,
                confirmed,
                refused,
            } => write!(f, "r {register} {confirmed} {refused}"),
            Self::Failed { what, times } => write!(f, "f {times} {what}"),
            Self::Wrong(text) => write!(f, "e {}", text.replace('\n', " / ")),
            Self::Drained => write!(f, "d"),
            Self::Probed { longest_us } => write!(f, "p {longest_us}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let held = Held {
            mode: 'w',
            lock: "many-7".into(),
            owner: u128::MAX - 5,
            token: 1_760_400_000_123_456,
            from_us: 1,
            until_us: 2,
        };
        let lines = [
            Line::Held(held),
            Line::Grants {
                workload: "hot".into(),
                grants: 3,
                longest_us: 4,
            },
            Line::Writes {
                register: "fenced".into(),
                confirmed: 5,
                refused: 6,
            },
            Line::Failed {
                what: "lost".into(),
                times: 8,
            },
            Line::Wrong("a b".into()),
            Line::Drained,
            Line::Probed { longest_us: 7 },
        ];
        for line in lines {
            assert_eq!(Line::parse(&line.to_string()), Some(line));
        }
        for text in ["", "h w 1", "x", "p", "g hot x 1"] {
            assert_eq!(Line::parse(text), None, "{text:?}");
        }
    }
}
