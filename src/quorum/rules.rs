//! The rules on which the promises of a quorum rest, each in one function. Under the feature `__testing` a test breaks one of
//! them at a time, to see that the checks of `tests/attack` notice it.

use crate::protocol::order::FIRST_PLACE;
use crate::types::error::Error;
#[cfg(feature = "__testing")]
use seam::{Rule, is_broken};

/// How many servers are a majority of so many: two majorities share a server.
pub(super) fn majority(servers: usize) -> usize {
    #[cfg(feature = "__testing")]
    if is_broken(Rule::Majority) {
        return servers / 2;
    }
    servers / 2 + 1
}

/// Why no majority is left, by what the other servers said. A minority that refuses is not why. `spare`: how many servers
/// may fail.
pub(super) fn failure(errors: Vec<Error>, spare: usize) -> Option<Error> {
    let (mut silences, mut refusals): (Vec<_>, Vec<_>) = errors
        .into_iter()
        .partition(|error| matches!(error, Error::Unavailable { .. }));
    if refusals.len() > spare {
        return refusals.pop();
    }
    silences.pop()
}

/// Whether a grant counts. `is_over`: the quarantine of its server is over. `is_old`: the grant was asked for before that. A
/// hold has its token already: a vote that it gains needs a server that forgets no hold, and no more.
pub(super) fn is_trusted(is_over: bool, is_old: bool, holds: bool) -> bool {
    #[cfg(feature = "__testing")]
    if is_broken(Rule::Quarantine) {
        return true;
    }
    is_over && (holds || !is_old)
}

/// Whether a grant counts. `renounced`: no grant up to that number does, because the vote gave it up. `placing`: a place that
/// may end the grant is under way.
pub(super) fn is_kept(token: u64, renounced: u64, placing: bool) -> bool {
    #[cfg(feature = "__testing")]
    if is_broken(Rule::GivingUp) {
        return token > renounced;
    }
    token > renounced && !placing
}

/// The place of a request at all servers: the greatest of the numbers that a majority told. So it is behind all who had their
/// places before.
pub(super) fn place(numbers: &[u64]) -> Option<u64> {
    #[cfg(feature = "__testing")]
    if is_broken(Rule::Places) {
        return None;
    }
    numbers.iter().max().copied()
}

/// The place of a request that holds, at the servers whose votes it lacks: before every waiter. A waiter has the vote there, and
/// gives it up for nobody behind it; then the loss of one more server would end the hold.
pub(super) fn place_of_holder() -> Option<u64> {
    #[cfg(feature = "__testing")]
    if is_broken(Rule::Holders) {
        return None;
    }
    Some(FIRST_PLACE)
}

/// The fencing token of the votes with which a hold begins: their greatest. So it is greater than every token that one of
/// their servers knew.
pub(super) fn token(tokens: impl Iterator<Item = u64>) -> u64 {
    #[cfg(feature = "__testing")]
    if is_broken(Rule::Tokens) {
        return tokens.min().unwrap_or_default();
    }
    tokens.max().unwrap_or_default()
}

/// Whether so many servers that know a token are enough for its user to have it.
pub(super) fn is_known(servers: usize, majority: usize) -> bool {
    #[cfg(feature = "__testing")]
    if is_broken(Rule::Announcing) {
        return servers > 0;
    }
    servers >= majority
}

/// The seam for tests: a rule that the clients on this thread break.
#[cfg(feature = "__testing")]
pub(crate) mod seam {
    use std::cell::Cell;

    /// A rule of a quorum.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Rule {
        /// Broken: half of the servers, rounded down, are a majority.
        Majority,
        /// Broken: a server that forgot its holds votes at once.
        Quarantine,
        /// Broken: a vote counts while its request gives it up.
        GivingUp,
        /// Broken: requests do not agree on their places.
        Places,
        /// Broken: a holder is behind the waiters where it lacks a vote.
        Holders,
        /// Broken: a hold has the least token of its votes.
        Tokens,
        /// Broken: the user has the token once one server knows it.
        Announcing,
    }

    thread_local! {
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// From now on the quorums on this thread break that rule, or none.
    pub fn break_rule(rule: Option<Rule>) {
        BROKEN.set(rule);
    }

    pub(super) fn is_broken(rule: Rule) -> bool {
        BROKEN.get() == Some(rule)
    }
}

#[cfg(all(test, not(fairlock_loom)))]
mod tests {
    use super::*;

    /// Whether two groups of these sizes may have no server in common.
    fn may_miss_each_other(servers: usize, one: usize, other: usize) -> bool {
        one + other <= servers
    }

    #[test]
    fn a_token_that_the_user_has_is_known_in_every_later_majority() {
        for servers in [3, 5, 7] {
            let majority = majority(servers);
            for told in 0..=servers {
                assert_eq!(
                    is_known(told, majority),
                    !may_miss_each_other(servers, told, majority),
                    "{told} of {servers}"
                );
            }
            assert!(!may_miss_each_other(servers, majority, majority));
        }
    }
}
