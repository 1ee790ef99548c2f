//! Whether fencing tokens grow. No I/O.

use crate::torture::wire::Held;
use std::collections::{HashMap, VecDeque};

/// Holds that ended longer ago than this are forgotten: no worker is stopped for that long.
const REMEMBERED_US: u64 = 20_000_000;

/// The holds whose users know their tokens, by lock.
///
/// A user that has its token holds the lock at that moment. So a conflicting hold that is seen only after the last look of
/// that user began after the user had its token, and then its own token has to be greater: see *A majority* in design.md.
/// Reports come in any order, because a worker may be stopped before it reports.
#[derive(Default)]
pub struct Tokens {
    holds: HashMap<String, VecDeque<Held>>,
    pub compared: u64,
}

impl Tokens {
    /// Returns what is wrong.
    pub fn add(&mut self, held: &Held) -> Option<String> {
        if held.token == 0 {
            return None;
        }
        self.compared += 1;
        let holds = self.holds.entry(held.lock.clone()).or_default();
        let conflicts = |other: &&Held| other.mode == 'w' || held.mode == 'w';
        let wrong = holds.iter().filter(conflicts).find(|other| {
            let is_later = other.until_us < held.from_us && other.token >= held.token;
            is_later || held.until_us < other.from_us && held.token >= other.token
        });
        let wrong = wrong.map(|other| format!("tokens do not grow: {other:?} and {held:?}"));
        holds.push_back(held.clone());
        while holds
            .front()
            .is_some_and(|first| first.until_us + REMEMBERED_US < held.until_us)
        {
            holds.pop_front();
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(mode: char, token: u64, from_us: u64, until_us: u64) -> Held {
        Held {
            mode,
            lock: "a".into(),
            owner: u128::from(token),
            token,
            from_us,
            until_us,
        }
    }

    #[test]
    fn a_token_that_does_not_grow_is_found_in_whatever_order_it_is_told() {
        let cases = [
            (held('w', 5, 10, 20), held('w', 6, 21, 30), true),
            (held('w', 6, 10, 20), held('w', 6, 21, 30), false),
            (held('w', 6, 10, 20), held('r', 5, 21, 30), false),
            (held('r', 6, 10, 20), held('w', 5, 21, 30), false),
            // Readers do not conflict, and nobody knows which of two holds at the same time began first.
            (held('r', 6, 10, 20), held('r', 5, 21, 30), true),
            (held('w', 6, 10, 20), held('w', 5, 20, 30), true),
            // Its user never had the token.
            (held('w', 0, 10, 20), held('w', 5, 21, 30), true),
        ];
        for (former, later, good) in cases {
            for pair in [[&former, &later], [&later, &former]] {
                let mut tokens = Tokens::default();
                let wrong: Vec<_> = pair.into_iter().filter_map(|held| tokens.add(held)).collect();
                assert_eq!(wrong.is_empty(), good, "{pair:?}: {wrong:?}");
            }
        }
    }
}
