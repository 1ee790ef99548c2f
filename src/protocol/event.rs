//! Events of locks: how the scripts write them, and how a client tells the others that it listens.

use super::key;
use super::name::RequestName;
use crate::types::limits::MOST_NUMBER;
use crate::types::mode::Mode;
use crate::types::owner::Owner;
use crate::types::timers::BELIEVED_FOR;
use crate::types::token::FencingToken;
use redis::{Cmd, RedisError, Value};
use std::fmt;
use std::time::{Duration, SystemTime};

/// The announcement of a client that listens to the events of all locks.
pub(crate) const ALL_LOCKS: &str = "*";

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Event {
    /// The time of the event, by the server's clock.
    pub at: SystemTime,
    /// The lock's name.
    pub lock: String,
    /// What happened.
    pub kind: EventKind,
    /// The owner of the request.
    pub owner: Owner,
    /// The client that made the request: see [`ClientInfo::id`](crate::ClientInfo).
    pub client_id: String,
    /// The request's mode.
    pub mode: Mode,
    /// The fencing token, if the event is a grant.
    pub token: Option<FencingToken>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum EventKind {
    /// The request could not enter at once and took its place in the queue.
    Queued,
    /// The request entered.
    Granted,
    /// The request released its hold.
    Released,
    /// The request's lease ran out while the request held or waited.
    Expired,
    /// The request left the queue without having entered.
    Left,
    /// An operator evicted the request.
    Evicted,
}

impl EventKind {
    /// Returns the word in serde's form, such as `granted`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Granted => "granted",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Left => "left",
            Self::Evicted => "evicted",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Announces to all clients that somebody listens: a message reaches those that are connected, a sorted set reaches later
/// ones. `now`: the server's time in seconds. What others have announced and do not announce any more leaves the set.
pub(crate) fn announce(prefix: &str, subjects: &[String], now: u64) -> Vec<Cmd> {
    let channel = key::audience_channel(prefix);
    let mut add = redis::cmd("ZADD");
    add.arg(&channel);
    for subject in subjects {
        add.arg(now + BELIEVED_FOR.as_secs()).arg(subject);
    }
    let mut forget = redis::cmd("ZREMRANGEBYSCORE");
    forget.arg(&channel).arg("-inf").arg(now);
    let mut expire = redis::cmd("EXPIRE");
    expire.arg(&channel).arg(BELIEVED_FOR.as_secs());
    let tell = subjects.iter().map(|subject| {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&channel).arg(subject);
        publish
    });
    [add, forget, expire].into_iter().chain(tell).collect()
}

/// The command that asks who listens already.
pub(crate) fn listeners(prefix: &str) -> Cmd {
    let mut members = redis::cmd("ZRANGE");
    members.arg(key::audience_channel(prefix)).arg(0).arg(-1);
    members
}

/// Reads the reply to [`listeners`].
pub(crate) fn read_listeners(reply: Value) -> Result<Vec<String>, RedisError> {
    Ok(redis::from_redis_value(reply)?)
}

pub(crate) fn read_events(lock: &str, payload: &str) -> Vec<Event> {
    let mut lines = payload.split('\n');
    let at = lines
        .next()
        .and_then(|line| line.parse().ok())
        // No script tells a time later than any token, and calendars cannot show one.
        .filter(|at| *at <= MOST_NUMBER)
        .map(Duration::from_micros);
    let Some(at) = at.and_then(|at| SystemTime::UNIX_EPOCH.checked_add(at)) else {
        return Vec::new();
    };
    lines.filter_map(|line| read_event(lock, at, line)).collect()
}

fn read_event(lock: &str, at: SystemTime, line: &str) -> Option<Event> {
    let mut words = line.split(' ');
    let kind = match words.next()? {
        "queued" => EventKind::Queued,
        "granted" => EventKind::Granted,
        "released" => EventKind::Released,
        "expired" => EventKind::Expired,
        "left" => EventKind::Left,
        "evicted" => EventKind::Evicted,
        _ => return None,
    };
    let name = RequestName::read(words.next()?)?;
    let token = words.next()?.parse().ok().filter(|token| *token <= MOST_NUMBER)?;
    Some(Event {
        at,
        lock: lock.to_owned(),
        kind,
        owner: name.owner()?,
        client_id: name.client.to_owned(),
        mode: name.mode,
        token: (token > 0).then(|| FencingToken::new(token)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_line_by_line_and_unknown_ones_skipped() {
        let payload = "1760400000123456\nqueued w0a:7 0\ngranted r0b:8 1760400000123456\nsung r0b:8 0\nqueued";
        let events = read_events("a", payload);
        let kinds: Vec<_> = events
            .iter()
            .map(|event| (event.kind, event.mode, event.token))
            .collect();
        let token = Some(FencingToken::new(1_760_400_000_123_456));
        assert_eq!(
            kinds,
            [
                (EventKind::Queued, Mode::Write, None),
                (EventKind::Granted, Mode::Read, token)
            ]
        );
        assert!(read_events("a", "").is_empty());
        assert!(read_events("a", "99999999999999999999\nqueued w0a:7 0").is_empty());
        assert!(
            read_events("a", "253402300800000000\nqueued w0a:7 0").is_empty(),
            "the year 10000"
        );
    }
}
