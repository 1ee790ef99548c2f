//! The replies of the scripts. A server may be old, foreign or broken. So every reply that no script gives is an error,
//! and never a grant.

use super::name::is_read;
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
    /// `seq` is the lock's counter at that moment: later grants have greater tokens. So many waiters stand before it.
    Queued {
        ticket: u64,
        seq: u64,
        ahead: usize,
    },
}

/// How a request stands, as a renewal reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// A hold whose own token is less than `first` was interrupted: others may have been inside since.
    Holds {
        token: u64,
        first: u64,
    },
    /// `seq`: as in [`Answer::Queued`].
    Waits {
        seq: u64,
    },
    Unknown,
}

#[derive(Debug)]
pub(crate) enum Acquired {
    Answered(Answer),
    Refused(Refusal),
}

/// Why the server did not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Busy,
    Conflict,
    /// The number of the owner's waiting request, if this client made it.
    OwnerWaits(Option<u64>),
    OtherPolicy(Policy),
    /// As many wait as the request allows, or more.
    QueueFull(usize),
    /// The read hold of this upgrade is over.
    NotReading,
}

/// The time after which to look at the lock again. `None`: nobody has to.
pub(crate) type Look = Option<Duration>;

impl Acquired {
    /// The time after which to look again comes with every answer, also with a refusal: a script that refuses a request has
    /// expired others and granted before.
    pub(crate) fn read(reply: &Value, only_now: bool) -> Result<(Self, Look), RedisError> {
        // The usual replies are one number.
        if let Value::Int(alone) = *reply {
            return match alone {
                // A try never waits, and a request that may wait is never told "busy": neither could go on from there.
                0 if only_now => Ok((Self::Refused(Refusal::Busy), None)),
                token => match number(token).filter(|token| *token > 1) {
                    Some(token) => Ok((Self::Answered(Answer::Granted { token }), None)),
                    None => Err(malformed(reply)),
                },
            };
        }
        let reply = numbers(reply)?;
        let (&[status, value, next_ms, seq], ahead) = match reply.split_first_chunk() {
            Some((common, [])) => (common, None),
            Some((common, &[ahead])) => (common, Some(ahead)),
            _ => return Err(unexpected(&reply)),
        };
        let acquired = match status {
            1 if !only_now => queued(value, seq, ahead).map(Self::Answered),
            // Only a waiter is told a fifth number.
            _ if ahead.is_some() => None,
            2 => number(value).map(|token| Self::Answered(Answer::Granted { token })),
            0 if !only_now => None,
            status => refusal(status, value).map(Self::Refused),
        };
        let acquired = acquired.ok_or_else(|| unexpected(&reply))?;
        Ok((acquired, next_look(next_ms)))
    }
}

fn refusal(status: i64, value: i64) -> Option<Refusal> {
    match status {
        0 => Some(Refusal::Busy),
        -1 => Some(Refusal::Conflict),
        -2 => u64::try_from(value)
            .ok()
            .map(|number| Refusal::OwnerWaits((number > 0).then_some(number))),
        -3 => policy_of(value).map(Refusal::OtherPolicy),
        -4 => Some(Refusal::NotReading),
        -5 => usize::try_from(value).ok().map(Refusal::QueueFull),
        _ => None,
    }
}

fn queued(ticket: i64, seq: i64, ahead: Option<i64>) -> Option<Answer> {
    Some(Answer::Queued {
        ticket: number(ticket)?,
        // The counter may have been lost.
        seq: if seq == 0 { 0 } else { number(seq)? },
        ahead: usize::try_from(ahead?).ok()?,
    })
}

/// Reads how each request stood when it was released.
pub(crate) fn read_released(reply: &Value, asked: usize) -> Result<(Vec<Standing>, Look), RedisError> {
    let released = |status| match status {
        0 => Some(Standing::Unknown),
        1 => Some(Standing::Waits { seq: 0 }),
        // The number that a release tells is the one that must not be greater than the hold's own token.
        told => number(told).map(|told| Standing::Holds {
            token: told,
            first: told,
        }),
    };
    if let (Value::Int(alone), 1) = (reply, asked) {
        let standing = released(*alone).ok_or_else(|| malformed(reply))?;
        return Ok((vec![standing], None));
    }
    let reply = numbers(reply)?;
    let read = reply.split_first().and_then(|(next_ms, each)| {
        let each = read_each(each, (0..asked).map(|_| ()), |status, ()| released(status))?;
        Some((each, next_look(*next_ms)))
    });
    read.ok_or_else(|| unexpected(&reply))
}

/// Reads the standings of these requests.
pub(crate) fn read_renewed<'a>(
    reply: &Value,
    requests: impl ExactSizeIterator<Item = &'a str>,
) -> Result<(Vec<Standing>, Look), RedisError> {
    let reply = numbers(reply)?;
    let read = || {
        let (&[next_ms, first], each) = reply.split_first_chunk()?;
        let first = u64::try_from(first).ok().filter(|first| *first <= MOST_NUMBER)?;
        let each = read_each(each, requests, |standing, request| {
            standing_of(standing, request, first)
        })?;
        Some((each, next_look(next_ms)))
    };
    read().ok_or_else(|| unexpected(&reply))
}

/// `phase`: the token with which the present phase began.
fn standing_of(standing: i64, request: &str, phase: u64) -> Option<Standing> {
    match standing {
        -1 => Some(Standing::Unknown),
        // The counter may have been lost.
        0 => Some(Standing::Waits { seq: 0 }),
        ..0 => standing
            .checked_neg()
            .and_then(number)
            .map(|seq| Standing::Waits { seq }),
        token => {
            let token = number(token)?;
            // Readers beside readers share a phase. Two holds of a writer are one if they have one token.
            let first = if is_read(request) { phase } else { token };
            Some(Standing::Holds { token, first })
        }
    }
}

/// The number that a release would tell the read request: greater than the write hold's token if that was interrupted.
/// `None`: the server does not know the write hold.
pub(crate) fn read_downgraded(reply: &Value) -> Result<(Option<u64>, Look), RedisError> {
    let reply = numbers(reply)?;
    match *reply.as_slice() {
        [next_ms, -1] => Ok((None, next_look(next_ms))),
        [next_ms, token] if number(token).is_some() => Ok((number(token), next_look(next_ms))),
        _ => Err(unexpected(&reply)),
    }
}

pub(crate) fn read_evicted(reply: &Value) -> Result<(usize, Look), RedisError> {
    let reply = numbers(reply)?;
    match *reply.as_slice() {
        [next_ms, count] => {
            let count = usize::try_from(count).map_err(|_| unexpected(&reply))?;
            Ok((count, next_look(next_ms)))
        }
        _ => Err(unexpected(&reply)),
    }
}

/// One number for each request that was asked about.
fn read_each<T, R>(
    numbers: &[i64],
    asked: impl ExactSizeIterator<Item = R>,
    read: impl Fn(i64, R) -> Option<T>,
) -> Option<Vec<T>> {
    let pairs = (numbers.len() == asked.len()).then(|| numbers.iter().zip(asked))?;
    pairs.map(|(number, asked)| read(*number, asked)).collect()
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
        Ok(b'n') => Some(Policy::Bounded),
        _ => None,
    }
}

/// No lease is longer than a year, so this cuts nothing that a sane server says. Sums with it must not overflow.
fn next_look(next_ms: i64) -> Look {
    let next_ms = u64::try_from(next_ms).ok()?;
    Some(Duration::from_millis(next_ms).min(MOST_LEASE))
}

fn numbers(reply: &Value) -> Result<Vec<i64>, RedisError> {
    match reply {
        Value::Array(items) => items
            .iter()
            .map(|item| match item {
                Value::Int(number) => Ok(*number),
                _ => Err(malformed(reply)),
            })
            .collect(),
        _ => Err(malformed(reply)),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn array(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().copied().map(Value::Int).collect())
    }

    #[test]
    fn the_usual_replies_are_one_number() {
        let granted = |reply| matches!(reply, Ok((Acquired::Answered(Answer::Granted { token: 9 }), None)));
        assert!(granted(Acquired::read(&Value::Int(9), false)) && granted(Acquired::read(&Value::Int(9), true)));
        assert!(matches!(
            Acquired::read(&Value::Int(0), true),
            Ok((Acquired::Refused(Refusal::Busy), None))
        ));
        let busy = Acquired::read(&array(&[0, 0, 1000, 9]), true);
        assert!(matches!(busy, Ok((Acquired::Refused(Refusal::Busy), Some(next))) if next == Duration::from_secs(1)));
        assert!(Acquired::read(&array(&[0, 0, 1000, 9]), false).is_err());
        for (reply, only_now) in [(0, false), (1, false), (1, true), (-1, true)] {
            assert!(Acquired::read(&Value::Int(reply), only_now).is_err(), "{reply}");
        }
        let told = Standing::Holds { token: 9, first: 9 };
        assert_eq!(read_released(&Value::Int(9), 1).unwrap(), (vec![told], None));
        assert!(read_released(&Value::Int(9), 2).is_err(), "one number for two requests");
    }

    #[test]
    fn a_waiter_is_told_how_many_stand_before_it_and_who_finds_no_room_how_many_wait() {
        let queued = Acquired::read(&array(&[1, 7, 500, 9, 3]), false);
        let (ticket, seq, ahead) = (7, 9, 3);
        let expected = Answer::Queued { ticket, seq, ahead };
        assert!(
            matches!(queued, Ok((Acquired::Answered(answer), Some(_))) if answer == expected),
            "{queued:?}"
        );
        assert!(matches!(
            Acquired::read(&array(&[-5, 100, 500, 9]), false),
            Ok((Acquired::Refused(Refusal::QueueFull(100)), Some(_)))
        ));
        assert!(matches!(
            Acquired::read(&array(&[-3, 110, 500, 9]), false),
            Ok((Acquired::Refused(Refusal::OtherPolicy(Policy::Bounded)), Some(_)))
        ));
        for malformed in [
            &[-5, -1, 500, 9][..],
            &[-5, 1, 500, 9, 0],
            &[1, 7, 500, 9],
            &[1, 7, 500, 9, -1],
            &[1, 7, 500, 9, 3, 3],
        ] {
            assert!(Acquired::read(&array(malformed), false).is_err(), "{malformed:?}");
        }
    }

    #[test]
    fn a_reader_is_interrupted_by_another_phase_and_a_writer_by_another_token() {
        let reply = array(&[-1, 20, 30, 30]);
        let (standings, _) = read_renewed(&reply, ["r0a:1", "w0a:2"].into_iter()).unwrap();
        let (token, phase) = (30, 20);
        let expected = [phase, token].map(|first| Standing::Holds { token, first });
        assert_eq!(standings, expected);
        for short in [&[-1][..], &[-1, 20], &[-1, 20, 30, 30, 30], &[-1, -1, 30, 30]] {
            assert!(
                read_renewed(&array(short), ["r0a:1", "w0a:2"].into_iter()).is_err(),
                "{short:?}"
            );
        }
    }
}
