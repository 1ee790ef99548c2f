//! The reply of the status script.

use super::reply::{policy_of, text};
use crate::types::limits::MOST_NUMBER;
use crate::types::mode::{Mode, Policy};
use redis::Value;

/// A reply of the status script.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) now_us: u64,
    pub(crate) mode: Option<Mode>,
    pub(crate) policy: Policy,
    pub(crate) write_holds: u64,
    pub(crate) holding: usize,
    pub(crate) waiting: usize,
    pub(crate) holders: Vec<SnapshotHolder>,
    pub(crate) waiters: Vec<SnapshotWaiter>,
    pub(crate) raw: RawState,
    /// How many stand before the request that was asked about. `None`: it does not wait.
    pub(crate) ahead: Option<usize>,
    /// The ticket of the request whose place was asked for, if that request waits.
    pub(crate) ticket_us: Option<u64>,
}

/// The state of a lock as it lies in the server: the numbers and the text of its field `s`. PROTOCOL.md explains each of
/// them, and the next layout may have others. They are for diagnosis, not for decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RawState {
    /// The last token or ticket that was given out.
    pub seq: u64,
    /// The last token.
    pub token: u64,
    /// The token with which the present phase began: a read hold with a lesser token was interrupted.
    pub first: u64,
    /// No lease ends before that time of the server's clock, in ms. 0: there is no lease.
    pub near: u64,
    /// When the keys expire, in ms of the server's clock, or a little later.
    pub keep: u64,
    /// The longest lease that was ever asked for, in ms.
    pub cap: u64,
    /// Read holds of all owners.
    pub reads: u64,
    /// Write holds, all of one owner.
    pub writes: u64,
    /// Requests in the queue.
    pub waiting: u64,
    /// 1: the only request holds, and the other two keys do not exist.
    pub sole: u64,
    /// 1: a script stopped at the limit of a batch.
    pub more: u64,
    /// 1: an upgrade may wait.
    pub up: u64,
    /// The request by which the writer entered, or the sole request. Otherwise empty.
    pub holder: String,
    /// The permits that there are: how many readers the lock lets in. 0: it has no bound.
    pub limit: u64,
    /// The permits that are taken.
    pub used: u64,
}

#[derive(Debug)]
pub(crate) struct SnapshotHolder {
    pub(crate) request: String,
    pub(crate) deadline_ms: u64,
    pub(crate) read_holds: u64,
    pub(crate) token: u64,
}

#[derive(Debug)]
pub(crate) struct SnapshotWaiter {
    pub(crate) request: String,
    pub(crate) ticket_us: u64,
    pub(crate) upgrade: bool,
    pub(crate) deadline_ms: u64,
}

impl Snapshot {
    pub(crate) fn read(reply: &Value) -> Option<Self> {
        let Value::Array(items) = reply else { return None };
        let (items, place) = items.split_first_chunk()?;
        let [now, mode, policy, write_holds, holding, waiting, holders, waiters, raw] = items;
        let (holders, waiters) = (texts(holders, 4)?, texts(waiters, 3)?);
        let place = match place {
            [] => None,
            [place] => match texts(place, 2)?.as_slice() {
                [] => None,
                [rank, score] => Some((rank.parse().ok()?, ticket(score)?.0)),
                _ => return None,
            },
            _ => return None,
        };
        Some(Self {
            now_us: text(now)?.parse().ok()?,
            mode: match text(mode)? {
                "read" => Some(Mode::Read),
                "write" => Some(Mode::Write),
                "" => None,
                _ => return None,
            },
            policy: policy_of(text(policy)?.bytes().next().map_or(0, i64::from))?,
            write_holds: text(write_holds)?.parse().ok()?,
            holding: text(holding)?.parse().ok()?,
            waiting: text(waiting)?.parse().ok()?,
            holders: holders
                .chunks_exact(4)
                .map(SnapshotHolder::read)
                .collect::<Option<_>>()?,
            waiters: waiters
                .chunks_exact(3)
                .map(SnapshotWaiter::read)
                .collect::<Option<_>>()?,
            raw: RawState::read(&texts(raw, 1)?)?,
            ahead: place.map(|(rank, _)| rank),
            ticket_us: place.map(|(_, ticket)| ticket),
        })
    }
}

impl RawState {
    fn read(fields: &[&str]) -> Option<Self> {
        let (numbers, &[holder, limit, used]) = fields.split_last_chunk()?;
        // No script gives a greater one, and calendars cannot show one.
        let number = |text: &&str| text.parse().ok().filter(|number| *number <= MOST_NUMBER);
        let numbers: Vec<u64> = numbers.iter().map(number).collect::<Option<_>>()?;
        let &[
            seq,
            token,
            first,
            near,
            keep,
            cap,
            reads,
            writes,
            waiting,
            sole,
            more,
            up,
        ] = numbers.as_slice()
        else {
            return None;
        };
        Some(Self {
            seq,
            token,
            first,
            near,
            keep,
            cap,
            reads,
            writes,
            waiting,
            sole,
            more,
            up,
            holder: holder.to_owned(),
            limit: number(&limit)?,
            used: number(&used)?,
        })
    }
}

impl SnapshotHolder {
    fn read(fields: &[&str]) -> Option<Self> {
        Some(Self {
            request: (*fields.first()?).to_owned(),
            deadline_ms: fields.get(1)?.parse().ok()?,
            read_holds: fields.get(2)?.parse().ok()?,
            token: fields.get(3)?.parse().ok().filter(|token| *token <= MOST_NUMBER)?,
        })
    }
}

impl SnapshotWaiter {
    fn read(fields: &[&str]) -> Option<Self> {
        let (ticket_us, upgrade) = ticket(fields.get(1)?)?;
        Some(Self {
            request: (*fields.first()?).to_owned(),
            ticket_us,
            upgrade,
            deadline_ms: fields.get(2)?.parse().ok()?,
        })
    }
}

/// The ticket in a score, and whether the score is an upgrade's.
fn ticket(score: &str) -> Option<(u64, bool)> {
    // Scores are tickets in bands: see PROTOCOL.md. Doubles hold them exactly.
    const BAND: f64 = 4_503_599_627_370_496.0;
    let score: f64 = score.parse().ok().filter(|score: &f64| score.is_finite())?;
    Some((score.rem_euclid(BAND) as u64, score < 0.0))
}

/// A list with the same number of texts for each of its items.
fn texts(value: &Value, each: usize) -> Option<Vec<&str>> {
    match value {
        Value::Array(items) if items.len() % each == 0 => items.iter().map(text).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply about a writer, with these numbers.
    fn reply(token: u64, seq: u64) -> Value {
        let text = |text: String| Value::BulkString(text.into_bytes());
        let texts = |texts: &[String]| Value::Array(texts.iter().cloned().map(text).collect());
        let holder = ["w1:1".to_owned(), "9".to_owned(), "0".to_owned(), token.to_string()];
        let mut raw = vec!["0".to_owned(); 15];
        (raw[0], raw[12]) = (seq.to_string(), "w1:1".to_owned());
        let [now, mode, policy, one] = ["7", "write", "", "1"].map(|is| text(is.to_owned()));
        let none = text("0".to_owned());
        let items = [
            now,
            mode,
            policy,
            one.clone(),
            one,
            none,
            texts(&holder),
            texts(&[]),
            texts(&raw),
        ];
        Value::Array(items.into())
    }

    #[test]
    fn numbers_that_no_script_gives_are_refused() {
        let read = |token, seq| Snapshot::read(&reply(token, seq)).map(|read| (read.holders[0].token, read.raw.seq));
        assert_eq!(read(MOST_NUMBER, MOST_NUMBER), Some((MOST_NUMBER, MOST_NUMBER)));
        assert_eq!(read(MOST_NUMBER + 1, 1), None);
        assert_eq!(read(1, MOST_NUMBER + 1), None);
    }
}
