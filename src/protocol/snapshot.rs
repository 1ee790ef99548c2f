//! The reply of the status script.

use super::reply::{policy_of, text};
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
        let [now, mode, policy, write_holds, holding, waiting, holders, waiters] = items.as_slice() else {
            return None;
        };
        let (holders, waiters) = (texts(holders, 4)?, texts(waiters, 3)?);
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
        })
    }
}

impl SnapshotHolder {
    fn read(fields: &[&str]) -> Option<Self> {
        Some(Self {
            request: (*fields.first()?).to_owned(),
            deadline_ms: fields.get(1)?.parse().ok()?,
            read_holds: fields.get(2)?.parse().ok()?,
            token: fields.get(3)?.parse().ok()?,
        })
    }
}

impl SnapshotWaiter {
    fn read(fields: &[&str]) -> Option<Self> {
        // Scores are tickets in bands: see PROTOCOL.md. Doubles hold them exactly.
        const BAND: f64 = 4_503_599_627_370_496.0;
        let score: f64 = fields.get(1)?.parse().ok().filter(|score: &f64| score.is_finite())?;
        Some(Self {
            request: (*fields.first()?).to_owned(),
            ticket_us: score.rem_euclid(BAND) as u64,
            upgrade: score < 0.0,
            deadline_ms: fields.get(2)?.parse().ok()?,
        })
    }
}

/// A list with the same number of texts for each of its items.
fn texts(value: &Value, each: usize) -> Option<Vec<&str>> {
    match value {
        Value::Array(items) if items.len() % each == 0 => items.iter().map(text).collect(),
        _ => None,
    }
}
