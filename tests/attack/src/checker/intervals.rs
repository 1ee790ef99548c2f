//! Holds as their users measured them: whether two of them overlap that must not.

use super::{Violation, writes};
use std::collections::BinaryHeap;

/// A request is of one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Read,
    Write,
}

impl Mode {
    /// Of a request.
    pub fn of(request: &str) -> Self {
        if writes(request) { Self::Write } else { Self::Read }
    }
}

/// A user with a guard in hand, until the release was called or the guard said that it was lost; the server's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    pub lock: String,
    /// As in the names of requests.
    pub owner: String,
    pub mode: Mode,
    pub token: u64,
    pub from_us: u64,
    pub until_us: u64,
}

/// The greatest value, and the greatest of another owner.
#[derive(Clone, Default)]
pub(super) struct Top<'a>([Option<(u64, &'a Interval)>; 2]);

impl<'a> Top<'a> {
    pub(super) fn add(&mut self, value: u64, of: &'a Interval) {
        let [first, second] = &mut self.0;
        match first {
            Some((best, holder)) if holder.owner == of.owner => {
                if value > *best {
                    (*best, *holder) = (value, of);
                }
            }
            Some((best, _)) if value <= *best => {
                if second.is_none_or(|(best, _)| value > best) {
                    *second = Some((value, of));
                }
            }
            _ => {
                // What was first stands behind, and was another owner's.
                *second = *first;
                *first = Some((value, of));
            }
        }
    }

    pub(super) fn of_others(&self, owner: &str) -> Option<(u64, &'a Interval)> {
        self.0.iter().flatten().find(|(_, of)| of.owner != owner).copied()
    }
}

/// Invariants 1 and 2 at the users: conflicting intervals do not overlap, and a later one has no smaller token, and a
/// writer a greater one.
pub fn check_intervals(intervals: &[Interval]) -> Result<(), Violation> {
    let mut sorted: Vec<&Interval> = intervals.iter().filter(|one| one.from_us < one.until_us).collect();
    sorted.sort_by(|a, b| (&a.lock, a.from_us).cmp(&(&b.lock, b.from_us)));
    for of_lock in sorted.chunk_by(|a, b| a.lock == b.lock) {
        // By mode: how long they last, and what tokens those had that are over.
        let (mut ends, mut tokens) = ([Top::default(), Top::default()], [Top::default(), Top::default()]);
        let mut lasting = BinaryHeap::new();
        for (index, interval) in of_lock.iter().enumerate() {
            while let Some(&(std::cmp::Reverse(until_us), ended)) = lasting.peek()
                && until_us <= interval.from_us
            {
                lasting.pop();
                let ended: &Interval = of_lock[ended];
                tokens[ended.mode as usize].add(ended.token, ended);
            }
            let conflicting = match interval.mode {
                Mode::Read => &[Mode::Write][..],
                Mode::Write => &[Mode::Read, Mode::Write],
            };
            for mode in conflicting {
                if let Some((until_us, other)) = ends[*mode as usize].of_others(&interval.owner) {
                    ensure!(until_us <= interval.from_us, 1, "{interval:?} overlaps {other:?}");
                }
                if let Some((token, other)) = tokens[*mode as usize].of_others(&interval.owner) {
                    // After a downgrade readers share the token of the writer: its phase goes on.
                    let least = token + u64::from(interval.mode == Mode::Write);
                    ensure!(least <= interval.token, 2, "{interval:?} came after {other:?}");
                }
            }
            ends[interval.mode as usize].add(interval.until_us, interval);
            lasting.push((std::cmp::Reverse(interval.until_us), index));
        }
    }
    Ok(())
}
