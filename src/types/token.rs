//! The fencing token.

use std::fmt;

/// A number that never falls from one grant of a lock to the next. A writer's token is greater than the tokens of all
/// other owners that held the lock before. Readers that are inside together may share a token, and so may the holds of
/// one owner.
///
/// Send the token to the resource with every write, and let the resource refuse a token that is smaller than the
/// greatest one that it has seen. Then a holder that was paused for longer than its lease can do no harm. The guide
/// [`failures`](crate::guide::failures#where-exclusion-is-not-kept) says how, and when it matters. No lock with a lease
/// can promise that by itself: see Martin Kleppmann, "How to do distributed locking" (2016).
///
/// Tokens grow within one lock, not between locks. Tokens go on growing when the server restarts without its data,
/// because the server's clock replaces a lost counter. Tokens fit a signed 64-bit integer and, until the year 2255, a
/// double.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    pub(crate) fn new(token: u64) -> Self {
        Self(token)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> u64 {
        token.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
