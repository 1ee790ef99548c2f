//! The replies of the scripts. A server may be old, foreign or broken. So every reply that no script gives is an error,
//! and never a grant.

use crate::types::limits::{MOST_LEASE, MOST_NUMBER};
use crate::types::mode::Policy;
use redis::{ErrorKind, RedisError, Value};
use std::time::Duration;

/// The reply about a request that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted {
        token: u64,
    },
    /// `seq` is the lock's counter at that moment: later grants have greater tokens.
    Queued {
        ticket: u64,
        seq: u64,
    },
}

/// How a request stands, as a renewal reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Holds {
        token: u64,
    },
    /// `seq`: as in [`Answer::Queued`].
    Waits {
        seq: u64,
    },
    Unknown,
}

#[derive(Debug)]
pub(crate) enum Acquired {
    /// The answer, and the time after which to look again.
    Answered(Answer, Look),
    Busy,
    Conflict,
    /// The number of the owner's waiting request, if this client made it.
    OwnerWaits(Option<u64>),
    OtherPolicy(Policy),
}

/// The time after which to look at the lock again. `None`: nobody has to.
pub(crate) type Look = Option<Duration>;

impl Acquired {
    pub(crate) fn read(reply: &[i64], only_now: bool) -> Result<Self, RedisError> {
        let &[status, value, next_ms, seq] = reply else {
            return Err(unexpected(reply));
        };
        let next = next_look(next_ms);
        let acquired = match status {
            2 => number(value).map(|token| Self::Answered(Answer::Granted { token }, next)),
            // A try never waits, and a request that may wait is never told "busy": neither could go on from there.
            1 if !only_now => match (number(value), seq) {
                // The counter may have been lost.
                (Some(ticket), 0) => Some((ticket, 0)),
                (ticket, seq) => ticket.zip(number(seq)),
            }
            .map(|(ticket, seq)| Self::Answered(Answer::Queued { ticket, seq }, next)),
            0 if only_now => Some(Self::Busy),
            -1 => Some(Self::Conflict),
            -2 => u64::try_from(value)
                .ok()
                .map(|number| Self::OwnerWaits((number > 0).then_some(number))),
            -3 if policy_of(value).is_none() && u8::try_from(value).is_ok() => return Err(other_layout()),
            -3 => policy_of(value).map(Self::OtherPolicy),
            _ => None,
        };
        acquired.ok_or_else(|| unexpected(reply))
    }
}

/// Reads how each request stood when it was released.
pub(crate) fn read_released(reply: &[i64], asked: usize) -> Result<(Vec<Standing>, Look), RedisError> {
    read_each(reply, asked, |status| match status {
        0 => Some(Standing::Unknown),
        1 => Some(Standing::Waits { seq: 0 }),
        token => number(token).map(|token| Standing::Holds { token }),
    })
}

pub(crate) fn read_renewed(reply: &[i64], asked: usize) -> Result<(Vec<Standing>, Look), RedisError> {
    read_each(reply, asked, |standing| match standing {
        -1 => Some(Standing::Unknown),
        // The counter may have been lost.
        0 => Some(Standing::Waits { seq: 0 }),
        ..0 => standing
            .checked_neg()
            .and_then(number)
            .map(|seq| Standing::Waits { seq }),
        token => number(token).map(|token| Standing::Holds { token }),
    })
}

pub(crate) fn read_downgraded(reply: &[i64]) -> Result<(Option<u64>, Look), RedisError> {
    match *reply {
        [next_ms, -1] => Ok((None, next_look(next_ms))),
        [next_ms, token] if number(token).is_some() => Ok((number(token), next_look(next_ms))),
        _ => Err(unexpected(reply)),
    }
}

pub(crate) fn read_evicted(reply: &[i64]) -> Result<(usize, Look), RedisError> {
    match *reply {
        [next_ms, count] => {
            let count = usize::try_from(count).map_err(|_| unexpected(reply))?;
            Ok((count, next_look(next_ms)))
        }
        _ => Err(unexpected(reply)),
    }
}

/// When to look again, then one number for each request that was asked about.
fn read_each<T>(reply: &[i64], asked: usize, read: impl Fn(i64) -> Option<T>) -> Result<(Vec<T>, Look), RedisError> {
    let read = reply
        .split_first()
        .filter(|(_, each)| each.len() == asked)
        .and_then(|(next_ms, each)| {
            Some((
                each.iter().map(|n| read(*n)).collect::<Option<_>>()?,
                next_look(*next_ms),
            ))
        });
    read.ok_or_else(|| unexpected(reply))
}

/// A token, a ticket or the counter: microseconds since 1970 or a little more. Lua counts in doubles.
fn number(number: i64) -> Option<u64> {
    u64::try_from(number)
        .ok()
        .filter(|number| (1..=MOST_NUMBER).contains(number))
}

/// The stored policy, as the byte of its code.
pub(super) fn policy_of(value: i64) -> Option<Policy> {
    match u8::try_from(value) {
        Ok(0) => Some(Policy::Fifo),
        Ok(b'w') => Some(Policy::WriterFirst),
        Ok(b'r') => Some(Policy::ReaderFirst),
        _ => None,
    }
}

/// No lease is longer than a year, so this cuts nothing that a sane server says. Sums with it must not overflow.
fn next_look(next_ms: i64) -> Look {
    let next_ms = u64::try_from(next_ms).ok()?;
    Some(Duration::from_millis(next_ms).min(MOST_LEASE))
}

pub(crate) fn numbers(reply: Value) -> Result<Vec<i64>, RedisError> {
    match &reply {
        Value::Array(items) => items
            .iter()
            .map(|item| match item {
                Value::Int(number) => Ok(*number),
                _ => Err(malformed(&reply)),
            })
            .collect(),
        _ => Err(malformed(&reply)),
    }
}

/// See *Versions* in PROTOCOL.md.
fn other_layout() -> RedisError {
    RedisError::from((
        ErrorKind::UnexpectedReturnType,
        "the lock is in use by another version of fairlock",
    ))
}

fn unexpected(reply: &[i64]) -> RedisError {
    malformed(&Value::Array(reply.iter().copied().map(Value::Int).collect()))
}

/// The error for a reply that no version of the scripts gives.
pub(crate) fn malformed(what: &Value) -> RedisError {
    RedisError::from((
        ErrorKind::UnexpectedReturnType,
        "the server's reply is not one of fairlock's scripts",
        format!("{what:?}").chars().take(200).collect(),
    ))
}

pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
