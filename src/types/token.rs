//! The fencing token.

use std::fmt;
use std::num::{ParseIntError, TryFromIntError};
use std::str::FromStr;

/// A number that never falls from one grant of a lock to the next. A writer's token is greater than the tokens of all
/// other owners that held the lock before. Readers or permits that are inside together may share a token, and so may the
/// holds of one owner: a token fences nobody from those.
///
/// Send the token to the resource with every write, and let the resource refuse a token that is smaller than the
/// greatest one that it has seen. If you write what follows from what you have read, send the token with the read too.
/// Then a holder that was paused for longer than its lease can do no harm. The guide
/// [`failures`](crate::guide::failures#where-exclusion-is-not-kept) says how, and when it matters. No lock with a lease
/// can promise that by itself: see Martin Kleppmann, "How to do distributed locking" (2016).
///
/// Tokens grow within one lock, not between locks. Tokens go on growing when the server restarts without its data,
/// because the server's clock replaces a lost counter. So they may repeat where a counter is lost and the clock is behind:
/// the guide [`failover`](crate::guide::failover#the-servers-clock) says when. Tokens fit a signed 64-bit integer and, until the year 2255, a
/// double.
///
/// To store a token in a column of SQL (`BIGINT`) and to read it back, convert it to and from `i64`. A token is at most
/// `i64::MAX`, so only a number from elsewhere can fail to convert:
///
/// ```
/// use fairlock::FencingToken;
///
/// let token: FencingToken = "1795379506491652".parse()?;
/// let column: i64 = token.into();
/// assert_eq!(FencingToken::try_from(column)?, token);
/// assert!(FencingToken::try_from(-1i64).is_err() && FencingToken::try_from(u64::MAX).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "u64", into = "u64")
)]
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

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> i64 {
        // Saturates for what cannot be: the server's numbers are less than 2^53, and other numbers are checked.
        i64::try_from(token.0).unwrap_or(i64::MAX)
    }
}

impl TryFrom<u64> for FencingToken {
    type Error = TryFromIntError;

    /// Fails for a number above `i64::MAX`.
    fn try_from(number: u64) -> Result<Self, TryFromIntError> {
        i64::try_from(number).map(|_| Self(number))
    }
}

impl TryFrom<i64> for FencingToken {
    type Error = TryFromIntError;

    /// Fails for a negative number.
    fn try_from(number: i64) -> Result<Self, TryFromIntError> {
        u64::try_from(number).map(Self)
    }
}

impl FromStr for FencingToken {
    type Err = ParseIntError;

    /// Reads what `Display` writes: decimal digits.
    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        // The parser of i64 refuses what is too great, and that of u64 what is negative.
        text.parse::<i64>()?;
        text.parse().map(Self)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
