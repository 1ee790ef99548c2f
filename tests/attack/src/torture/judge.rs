//! Looks at everything that is reported and says what must not be. No I/O.

use super::wire::Held;
use crate::checker::Checker;
use crate::record::{Record, What};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Holds that ended longer ago than this are forgotten: no worker is stopped for that long.
const REMEMBERED_US: u64 = 20_000_000;
const TOKENS_PER_LOCK: usize = 20_000;
/// So many are kept in full.
const SHOWN: usize = 50;

/// A time in which the server forgot who held, or took leases for over that were not: its data was lost, or its clock
/// jumped. Who held before may believe so until a lease after it.
#[derive(Clone, Copy, Debug)]
struct Loss {
    from_us: u64,
    /// `None`: not yet over.
    until_us: Option<u64>,
}

/// A part of a hold that nothing excuses.
struct Piece {
    from_us: u64,
    until_us: u64,
    held: Held,
}

#[derive(Default)]
pub struct Judge {
    checker: Checker,
    longest_lease_us: u64,
    losses: Vec<Loss>,
    holds: HashMap<String, VecDeque<Piece>>,
    /// Token to the modes in which the journal has it granted: 1 reading, 2 writing.
    tokens: HashMap<String, BTreeMap<u64, u8>>,
    /// Holds whose grants the journal must have, from this pass of reading on.
    unmatched: VecDeque<(u64, Held)>,
    pass: u64,
    pub journaled: bool,
    pub records: u64,
    pub intervals: u64,
    pub matched: u64,
    pub violations: u64,
    pub shown: Vec<String>,
}

impl Judge {
    pub fn new(longest_lease_us: u64, journaled: bool) -> Self {
        Self {
            longest_lease_us,
            journaled,
            ..Self::default()
        }
    }

    pub fn violation(&mut self, text: String) {
        self.violations += 1;
        if self.shown.len() < SHOWN {
            self.shown.push(text);
        }
    }

    pub fn grants(&self) -> u64 {
        self.checker.grants()
    }

    /// From now on, until `loss_ends`, whoever holds may be wrong.
    pub fn loss_begins(&mut self, now_us: u64) {
        let forgotten = now_us.saturating_sub(3 * REMEMBERED_US);
        self.losses.retain(|loss| loss.until_us.is_none_or(|until| until > forgotten));
        self.losses.push(Loss {
            from_us: now_us,
            until_us: None,
        });
    }

    pub fn loss_ends(&mut self, now_us: u64) {
        if let Some(loss) = self.losses.last_mut() {
            loss.until_us = Some(now_us);
        }
    }

    /// The server's data are gone, and the journal with them.
    pub fn data_lost(&mut self) {
        self.checker.state_lost(None);
    }

    pub fn record(&mut self, record: &Record) {
        self.records += 1;
        if let Err(violation) = self.checker.check(record) {
            self.violation(format!("{violation}\n    at {record}"));
        }
        let tokens = self.tokens.entry(record.lock.clone()).or_default();
        for note in record.notes.iter().filter(|note| note.what == What::Granted) {
            *tokens.entry(note.token).or_default() |= mode_bit(note.request.starts_with('w'));
        }
        while tokens.len() > TOKENS_PER_LOCK {
            tokens.pop_first();
        }
    }

    /// Somebody was inside.
    pub fn held(&mut self, held: Held) {
        self.intervals += 1;
        let pieces = self.without_excuses(&held);
        let mut found = Vec::new();
        let holds = self.holds.entry(held.lock.clone()).or_default();
        for &(from_us, until_us) in &pieces {
            let overlaps = holds.iter().filter(|other| {
                other.from_us < until_us
                    && from_us < other.until_us
                    && other.held.owner != held.owner
                    && (other.held.mode == 'w' || held.mode == 'w')
            });
            for other in overlaps {
                let both = until_us.min(other.until_us) - from_us.max(other.from_us);
                found.push(format!("inside at the same time for {both} us: {:?} and {held:?}", other.held));
            }
        }
        for (from_us, until_us) in pieces {
            let held = held.clone();
            holds.push_back(Piece {
                from_us,
                until_us,
                held,
            });
        }
        while holds.front().is_some_and(|piece| piece.until_us + REMEMBERED_US < held.until_us) {
            holds.pop_front();
        }
        for text in found {
            self.violation(text);
        }
        if self.journaled {
            self.unmatched.push_back((self.pass + 1, held));
        }
    }

    /// What was held before a loss ends with it; a lease later it counts again.
    fn without_excuses(&self, held: &Held) -> Vec<(u64, u64)> {
        let mut pieces = vec![(held.from_us, held.until_us)];
        for loss in &self.losses {
            let end = loss.until_us.unwrap_or(u64::MAX);
            if held.from_us >= end || held.until_us <= loss.from_us {
                continue;
            }
            let again = end.saturating_add(self.longest_lease_us);
            pieces = pieces
                .into_iter()
                .flat_map(|(from, until)| [(from, until.min(loss.from_us)), (from.max(again), until)])
                .filter(|(from, until)| from < until)
                .collect();
        }
        pieces
    }

    /// The reading of the journal begins anew, at the first lock. Whoever is inside by now was granted before.
    pub fn pass_begins(&mut self) {
        self.pass += 1;
    }

    /// Every lock's journal was read to its end.
    pub fn pass_ends(&mut self) {
        while self.unmatched.front().is_some_and(|(pass, _)| *pass <= self.pass) {
            let Some((_, held)) = self.unmatched.pop_front() else { return };
            let key = format!("fairlock:{{{}}}", held.lock);
            let tokens = self.tokens.get(&key);
            let modes = tokens.and_then(|tokens| tokens.get(&held.token)).copied().unwrap_or(0);
            if modes & mode_bit(held.mode == 'w') != 0 {
                self.matched += 1;
            } else if !self.unknown_by_loss(&held) {
                self.violation(format!("a guard without a grant in the journal: {held:?}"));
            }
        }
    }

    /// What the journal had not told us yet when it was lost.
    fn unknown_by_loss(&self, held: &Held) -> bool {
        self.losses.iter().any(|loss| {
            let end = loss.until_us.unwrap_or(u64::MAX);
            held.from_us < end.saturating_add(self.longest_lease_us)
        })
    }

    /// Nobody holds or waits any more.
    pub fn finish(&mut self) {
        if let Err(violation) = self.checker.finish() {
            self.violation(format!("at the end: {violation}"));
        }
    }
}

fn mode_bit(writes: bool) -> u8 {
    if writes { 2 } else { 1 }
}
