//! Looks at everything that is reported and says what must not be. No I/O.

use super::holds::PERMITS;
use super::wire::Held;
use crate::checker::Checker;
use crate::model::named_owner;
use crate::record::{Record, What};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Holds that ended longer ago than this are forgotten: no worker is stopped for that long.
const REMEMBERED_US: u64 = 20_000_000;
const TOKENS_PER_LOCK: usize = 20_000;
/// So many are told in full; the others are counted.
const SHOWN: usize = 8;
/// What the journal had before a violation.
const RECENT: usize = 12;

/// A time in which the server forgot who held, or took leases for over that were not: its data was lost, or its clock
/// jumped. Who held before may believe so until a lease after it.
#[derive(Clone, Copy, Debug)]
struct Loss {
    from_us: u64,
    /// Until it is over, the end of time.
    until_us: u64,
    /// What was granted before has a smaller token: tokens follow the server's clock. A guard may come into its user's
    /// hands after the loss although it was granted before.
    tokens_until: u64,
    /// From then on everybody must know.
    known_us: u64,
    /// The journal may lack its last entries, or all. A jump of the clock and a deleted key leave it whole.
    journal_lost: bool,
}

impl Loss {
    fn concerns(&self, held: &Held) -> bool {
        let before = held.from_us < self.until_us || held.token < self.tokens_until;
        before && held.until_us > self.from_us
    }
}

/// What the journal has granted with a token.
#[derive(Clone, Copy, Debug, Default)]
struct Granted {
    reads: bool,
    writes: bool,
    /// Who writes with it, if its requests name it.
    writer: Option<u128>,
}

impl Granted {
    fn note(&mut self, request: &str) {
        match request.starts_with('w') {
            false => self.reads = true,
            true => {
                self.writes = true;
                self.writer = named_owner(request).and_then(|owner| u128::from_str_radix(owner, 16).ok());
            }
        }
    }

    /// Who asks again because no reply came is told the lock's last token: that may be the one by which its owner has
    /// begun to write in another process meanwhile.
    fn is_of(self, held: &Held) -> bool {
        match held.mode {
            'w' => self.writes,
            _ => self.reads || self.writer == Some(held.owner),
        }
    }
}

/// A part of a hold that nothing excuses.
struct Piece {
    from_us: u64,
    until_us: u64,
    held: Held,
}

#[derive(Default)]
pub struct Judge {
    /// By lock. `None`: it found a violation, and can say nothing about what comes after it.
    checkers: HashMap<String, Option<Checker>>,
    journal_grants: u64,
    longest_lease_us: u64,
    losses: Vec<Loss>,
    /// By lock: of readers and of writers. Readers are many and do not conflict with each other.
    holds: HashMap<String, [VecDeque<Piece>; 2]>,
    /// By lock: the last records.
    recent: HashMap<String, VecDeque<Record>>,
    /// By lock and token.
    tokens: HashMap<String, BTreeMap<u64, Granted>>,
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
        self.journal_grants
    }

    /// From now on, until `loss_ends`, whoever holds may be wrong.
    pub fn loss_begins(&mut self, now_us: u64) {
        let forgotten = now_us.saturating_sub(3 * REMEMBERED_US);
        self.losses.retain(|loss| loss.until_us > forgotten);
        self.losses.push(Loss {
            from_us: now_us,
            until_us: u64::MAX,
            tokens_until: u64::MAX,
            known_us: u64::MAX,
            journal_lost: false,
        });
    }

    /// `true_us`: the true time.
    pub fn loss_ends(&mut self, now_us: u64, true_us: u64) {
        let lease_us = self.longest_lease_us;
        if let Some(loss) = self.losses.last_mut() {
            loss.until_us = now_us;
            loss.tokens_until = true_us;
            loss.known_us = now_us + lease_us;
        }
    }

    /// The clock jumped, or a key was deleted. Who waited before that may be granted after it, with what is left of its
    /// lease, and believes in the whole of it.
    pub fn jump_ends(&mut self, now_us: u64, true_us: u64) {
        let lease_us = self.longest_lease_us;
        self.loss_ends(now_us, true_us);
        if let Some(loss) = self.losses.last_mut() {
            loss.until_us += lease_us;
            loss.tokens_until += lease_us;
        }
    }

    /// In the loss under way the journal may have lost entries that nobody has read.
    pub fn journal_lost(&mut self) {
        if let Some(loss) = self.losses.last_mut() {
            loss.journal_lost = true;
        }
    }

    /// The server's data are gone, and the journal with them.
    pub fn data_lost(&mut self) {
        self.journal_lost();
        for checker in self.checkers.values_mut() {
            checker.get_or_insert_default().state_lost(None);
        }
    }

    /// A key or a field of a lock was deleted.
    pub fn damaged(&mut self, lock: &str) {
        if let Some(Some(checker)) = self.checkers.get_mut(lock) {
            checker.damaged(lock);
        }
    }

    pub fn record(&mut self, record: &Record) {
        self.records += 1;
        if !self.checkers.contains_key(&record.lock) {
            self.checkers.insert(record.lock.clone(), Some(Checker::new()));
        }
        let checker = self.checkers.get_mut(&record.lock).expect("just made");
        if let Some(Err(violation)) = checker.as_mut().map(|checker| checker.check(record)) {
            *checker = None;
            let before = self.before(&record.lock);
            self.violation(format!("{violation}\n  after\n{before}"));
        }
        let recent = self.recent.entry(record.lock.clone()).or_default();
        recent.push_back(record.clone());
        if recent.len() > RECENT {
            recent.pop_front();
        }
        let tokens = self.tokens.entry(record.lock.clone()).or_default();
        for note in record.notes.iter().filter(|note| note.what == What::Granted) {
            self.journal_grants += 1;
            tokens.entry(note.token).or_default().note(&note.request);
        }
        while tokens.len() > TOKENS_PER_LOCK {
            tokens.pop_first();
        }
    }

    fn before(&self, key: &str) -> String {
        let recent = self.recent.get(key).into_iter().flatten();
        recent.map(|record| format!("    {record}\n")).collect()
    }

    /// Somebody was inside.
    pub fn held(&mut self, held: Held) {
        self.intervals += 1;
        let pieces = self.without_excuses(&held);
        let mut found = Vec::new();
        let holds = self.holds.entry(held.lock.clone()).or_default();
        let writes = held.mode == 'w';
        let conflicting = if writes { &holds[..] } else { &holds[1..] };
        for &(from_us, until_us) in &pieces {
            let overlaps = conflicting
                .iter()
                .flatten()
                .filter(|other| other.from_us < until_us && from_us < other.until_us && other.held.owner != held.owner);
            for other in overlaps {
                let both = until_us.min(other.until_us) - from_us.max(other.from_us);
                found.push(format!(
                    "inside at the same time for {both} us: {:?} and {held:?}",
                    other.held
                ));
            }
        }
        if let Some(permits) = held.mode.to_digit(10) {
            for (from_us, until_us) in &pieces {
                let beside = holds[0]
                    .iter()
                    .filter(|other| other.from_us < *until_us && *from_us < other.until_us);
                let others: Vec<_> = beside
                    .filter_map(|other| Some((other.from_us..other.until_us, other.held.mode.to_digit(10)?)))
                    .collect();
                let begun = others.iter().map(|(time, _)| time.start.max(*from_us));
                let most = begun.map(|at| {
                    others
                        .iter()
                        .filter(|(time, _)| time.contains(&at))
                        .map(|(_, n)| n)
                        .sum::<u32>()
                });
                let most = permits + most.max().unwrap_or(0);
                if most > PERMITS {
                    found.push(format!("{most} permits of {PERMITS} are out, one of them by {held:?}"));
                }
            }
        }
        let of_mode = &mut holds[usize::from(writes)];
        for (from_us, until_us) in pieces {
            let held = held.clone();
            of_mode.push_back(Piece {
                from_us,
                until_us,
                held,
            });
        }
        while of_mode
            .front()
            .is_some_and(|piece| piece.until_us + REMEMBERED_US < held.until_us)
        {
            of_mode.pop_front();
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
        for loss in self.losses.iter().filter(|loss| loss.concerns(held)) {
            let again = loss.known_us;
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
            let Some((_, held)) = self.unmatched.pop_front() else {
                return;
            };
            let key = format!("fairlock:{{{}}}", held.lock);
            let tokens = self.tokens.get(&key);
            let granted = tokens.and_then(|tokens| tokens.get(&held.token));
            if granted.is_some_and(|granted| granted.is_of(&held)) {
                self.matched += 1;
            } else if !self.unknown_by_loss(&held) {
                self.violation(format!("a guard without a grant in the journal: {held:?}"));
            }
        }
    }

    /// What the journal had not told us yet when it was lost.
    fn unknown_by_loss(&self, held: &Held) -> bool {
        let mut losses = self.losses.iter();
        losses.any(|loss| loss.journal_lost && held.from_us < loss.known_us)
    }

    /// Nobody holds or waits any more.
    pub fn finish(&mut self) {
        let checkers = self.checkers.values().flatten();
        let wrong: Vec<_> = checkers.filter_map(|checker| checker.finish().err()).collect();
        for violation in wrong {
            self.violation(format!("at the end: {violation}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_US: u64 = 1000;

    fn judge() -> Judge {
        Judge::new(LEASE_US, false)
    }

    fn held(mode: char, owner: u128, token: u64, from_us: u64, until_us: u64) -> Held {
        Held {
            mode,
            lock: "a".into(),
            owner,
            token,
            from_us,
            until_us,
        }
    }

    #[test]
    fn a_writer_beside_another_owner_is_found_and_readers_together_or_one_owner_are_not() {
        for (a, b, owner, violations) in [
            ('w', 'w', 2, 1),
            ('w', 'r', 2, 1),
            ('r', 'w', 2, 1),
            ('r', 'r', 2, 0),
            ('w', 'w', 1, 0),
        ] {
            let mut judge = judge();
            judge.held(held(a, 1, 1, 10, 20));
            judge.held(held(b, owner, 2, 19, 30));
            assert_eq!(judge.violations, violations, "{a} {b} {owner}");
        }
    }

    #[test]
    fn more_permits_than_there_are_at_one_moment_are_found() {
        for (permits, violations) in [(['2', '3', '5'], 0), (['3', '3', '5'], 1), (['2', '2', '2'], 1)] {
            let mut judge = judge();
            // The first two overlap, and the last one comes behind them or beside the second.
            judge.held(held(permits[0], 1, 1, 10, 30));
            judge.held(held(permits[1], 2, 1, 20, 40));
            let from_us = if permits[2] == '5' { 40 } else { 25 };
            judge.held(held(permits[2], 3, 1, from_us, 50));
            assert_eq!(judge.violations, violations, "{permits:?}");
        }
    }

    #[test]
    fn one_after_the_other_is_right_in_whatever_order_it_is_told() {
        let mut judge = judge();
        judge.held(held('w', 2, 2, 20, 30));
        judge.held(held('w', 1, 1, 10, 20));
        assert_eq!(judge.violations, 0);
    }

    #[test]
    fn a_loss_excuses_who_held_before_it_for_one_lease_and_nobody_else() {
        let after_loss = || {
            let mut judge = judge();
            judge.loss_begins(100);
            judge.loss_ends(110, 500);
            judge
        };
        let cases = [
            // Granted before, seen after.
            (held('w', 1, 499, 90, 300), held('w', 2, 600, 120, 130), 0),
            (held('w', 1, 499, 115, 300), held('w', 2, 600, 120, 130), 0),
            // Both granted after it.
            (held('w', 1, 501, 115, 300), held('w', 2, 600, 120, 130), 1),
            // Both before.
            (held('w', 1, 499, 50, 300), held('w', 2, 498, 90, 99), 1),
            // A lease later it must know.
            (held('w', 1, 499, 90, 1200), held('w', 2, 600, 1150, 1160), 1),
        ];
        for (a, b, violations) in cases {
            let mut judge = after_loss();
            judge.held(a.clone());
            judge.held(b.clone());
            assert_eq!(judge.violations, violations, "{a:?} {b:?}");
        }
    }

    #[test]
    fn a_jump_of_the_clock_also_excuses_who_waited_before_it_for_one_lease() {
        let cases = [
            // Granted after it, with a lease from before it that ends at once.
            (held('w', 1, 501, 115, 300), held('w', 2, 600, 112, 130), 0),
            (held('w', 1, 1400, 1005, 1300), held('w', 2, 1450, 1050, 1060), 0),
            // A lease later there is none from before it.
            (held('w', 1, 1400, 1005, 1300), held('w', 2, 1450, 1150, 1160), 1),
            (held('w', 1, 1700, 1205, 1300), held('w', 2, 1750, 1250, 1260), 1),
        ];
        for (a, b, violations) in cases {
            let mut judge = judge();
            judge.loss_begins(100);
            judge.jump_ends(110, 500);
            judge.held(a.clone());
            judge.held(b.clone());
            assert_eq!(judge.violations, violations, "{a:?} {b:?}");
        }
    }

    #[test]
    fn a_reader_may_have_the_token_of_its_owners_writer_and_of_no_other() {
        let mut granted = Granted::default();
        granted.note(&format!("w0a:1:{:032x}", 7));
        assert!(granted.is_of(&held('r', 7, 9, 10, 20)) && granted.is_of(&held('w', 7, 9, 10, 20)));
        assert!(!granted.is_of(&held('r', 8, 9, 10, 20)));
        granted.note("r0a:2");
        assert!(granted.is_of(&held('r', 8, 9, 10, 20)));
    }

    #[test]
    fn a_guard_that_the_journal_does_not_have_is_found() {
        let mut judge = Judge::new(LEASE_US, true);
        judge.pass_begins();
        judge.held(held('w', 1, 7, 10, 20));
        judge.pass_ends();
        assert_eq!(
            judge.violations, 0,
            "the pass under way may have been there before the grant"
        );
        judge.pass_begins();
        judge.pass_ends();
        assert_eq!((judge.violations, judge.matched), (1, 0));
    }

    #[test]
    fn only_a_loss_of_the_journal_excuses_a_guard_that_it_does_not_have() {
        type During = fn(&mut Judge);
        let cases: [(During, u64); 3] = [(|_| {}, 1), (Judge::journal_lost, 0), (Judge::data_lost, 0)];
        for (number, (during, violations)) in cases.into_iter().enumerate() {
            let mut judge = Judge::new(LEASE_US, true);
            judge.loss_begins(100);
            during(&mut judge);
            judge.loss_ends(110, 500);
            // The last guard came into its user's hand when all had to know of the loss.
            for from_us in [90, 1109, 1110] {
                judge.held(held('w', 1, 7, from_us, 2000));
            }
            judge.pass_begins();
            judge.pass_ends();
            assert_eq!(judge.violations, 1 + 2 * violations, "{number}");
        }
    }
}
