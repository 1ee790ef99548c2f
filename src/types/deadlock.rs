//! What a deadlock's error tells: each owner of the circle, and what it waits for.

use super::client_info::ClientInfo;
use super::mode::Mode;
use super::owner::Owner;
use std::fmt;
use std::time::Duration;

/// An owner of a circle that waits for each other: see [`Error::Deadlock`](crate::Error::Deadlock).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Blocked {
    /// The owner that waits.
    pub owner: Owner,
    /// The client by which it waits.
    pub client: ClientInfo,
    /// The name of the lock that it waits for. The next owner of the circle holds that lock; the first owner is the next
    /// one of the last.
    pub waits_for: String,
    /// The mode in which it asked for the lock.
    pub mode: Mode,
    /// How long it has waited.
    pub waited: Duration,
}

impl Blocked {
    pub(crate) fn new(owner: Owner, client: ClientInfo, waits_for: String, mode: Mode, waited: Duration) -> Self {
        Self {
            owner,
            client,
            waits_for,
            mode,
            waited,
        }
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.mode.as_str();
        let Self {
            owner,
            client,
            waits_for,
            ..
        } = self;
        let seconds = self.waited.as_secs_f32();
        write!(
            f,
            "owner {owner} of {client} has waited {seconds:.1} s to {mode} {waits_for:?}"
        )
    }
}

/// Tells a circle in words.
pub(super) fn in_words(circle: &[Blocked]) -> String {
    let mut words = String::new();
    for (blocked, next) in circle.iter().zip(circle.iter().cycle().skip(1)) {
        let separator = if words.is_empty() { "" } else { "; " };
        words += &format!("{separator}{blocked}, which owner {} holds", next.owner);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_told_as_a_chain_that_ends_where_it_began() {
        let owners = [Owner::new(), Owner::new()];
        let blocked = |n: usize, lock: &str| {
            let client = ClientInfo {
                id: format!("{n}a"),
                ..ClientInfo::default()
            };
            Blocked::new(
                owners[n],
                client,
                lock.to_owned(),
                Mode::Write,
                Duration::from_millis(1500),
            )
        };
        let words = in_words(&[blocked(0, "a"), blocked(1, "b")]);
        let [one, two] = owners;
        let expected = format!(
            "owner {one} of 0a has waited 1.5 s to write \"a\", which owner {two} holds; owner {two} of 1a has waited \
             1.5 s to write \"b\", which owner {one} holds"
        );
        assert_eq!(words, expected);
    }
}
