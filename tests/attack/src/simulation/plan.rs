//! What a seed makes of a run: its processes, its weather, its faults.

use super::dice::Dice;
use super::users::Habits;
use super::world::{Fault, Weather};
use fairlock::Policy;
use std::time::Duration;

/// A storm ends after so many calls of scripts, so that no run takes long.
pub const STORM_CALLS: u64 = 30_000;
/// One of owners that deadlock after fewer, because a search takes many calls for each grant.
const TANGLED_CALLS: u64 = 6_000;

/// What a run is like; all of it follows from the seed.
pub(super) struct Plan {
    pub(super) habits: Habits,
    pub(super) processes: u64,
    pub(super) users: u64,
    pub(super) storms: u64,
    pub(super) storm: Duration,
    pub(super) faults: Vec<Fault>,
    /// The mean time between two faults.
    pub(super) every: Duration,
    pub(super) weather: Weather,
    pub(super) shared_owners: bool,
}

impl Plan {
    pub(super) fn new(dice: &mut Dice) -> Self {
        let ms = Duration::from_millis;
        let leases = *dice.pick(&[
            [ms(10_000), ms(10_000), ms(10_000)],
            [ms(1_000), ms(1_000), ms(3_000)],
            [ms(100), ms(500), ms(10_000)],
        ]);
        // Every kind of fault alone, and mixtures.
        let mut faults = match dice.below(4) {
            0 => Vec::new(),
            1 => vec![*dice.pick(&Fault::ALL)],
            _ => Fault::ALL.into_iter().filter(|_| dice.permille(400)).collect(),
        };
        // Tokens grow by the clock or by what is stored: not both may be taken back.
        let loses = faults
            .iter()
            .any(|fault| matches!(fault, Fault::Rollback | Fault::DataLoss | Fault::KeyLoss));
        faults.retain(|fault| !loses || *fault != Fault::ClockBack);
        let permits = *dice.pick(&[0, 0, 0, 1, 3, 8]);
        // Nobody looks for deadlocks through bounded locks.
        let tangled = permits == 0 && dice.permille(250);
        if tangled && dice.permille(500) {
            faults.clear();
        }
        let bad = !faults.is_empty() && dice.permille(500);
        // Some hours in which little happens, or some minutes in which much does.
        let sparse = dice.permille(400);
        let quick = !sparse && dice.permille(600);
        let locks = 1 + dice.below(3);
        Self {
            habits: Habits {
                locks: if tangled { locks.max(2) } else { locks },
                permits,
                policy: *dice.pick(&[
                    Policy::Fifo,
                    Policy::Fifo,
                    Policy::Fifo,
                    Policy::WriterFirst,
                    Policy::ReaderFirst,
                ]),
                leases,
                hold: if quick {
                    ms(2)
                } else {
                    *dice.pick(&[ms(20), ms(300), leases[0]])
                },
                pause: if quick {
                    ms(2)
                } else {
                    *dice.pick(&[ms(20), ms(1_000), ms(60_000)])
                },
                writes: *dice.pick(&[100, 300, 500, 1000]),
                // Each owner that may deadlock is one chain of calls.
                named: if tangled { 0 } else { *dice.pick(&[0, 0, 300, 800]) },
                cancels: *dice.pick(&[0, 100, 500]),
                least: *dice.pick(&[0, 0, 0, 20, 200]),
                at_least: *dice.pick(&[ms(100), leases[0] / 2, leases[0] * 3]),
                lock_delay: *dice.pick(&[ms(0), ms(0), ms(0), ms(100), leases[0]]),
                together: *dice.pick(&[0, 0, 0, 200, 1000]) / if tangled { 4 } else { 1 },
                tangles: if tangled { 700 } else { 0 },
                deadlock_timeout: if tangled {
                    *dice.pick(&[ms(100), ms(1_000)])
                } else {
                    Duration::MAX
                },
            },
            processes: 1 + dice.below(if sparse { 2 } else { 4 }),
            users: 1 + dice.below(5),
            storms: 3,
            storm: if sparse {
                ms(6 * 3_600_000)
            } else {
                *dice.pick(&[ms(20_000), ms(120_000), ms(600_000)])
            },
            faults,
            every: if sparse {
                ms(60_000)
            } else {
                *dice.pick(&[ms(500), ms(5_000), ms(30_000)])
            },
            weather: if bad {
                Weather {
                    lost: *dice.pick(&[0, 50, 1000]),
                    doubled: *dice.pick(&[0, 100]),
                    late: *dice.pick(&[0, 100]),
                    slow: *dice.pick(&[0, 10, 200]),
                    spell: *dice.pick(&[ms(20), ms(500), ms(3_000)]),
                }
            } else {
                Weather::default()
            },
            shared_owners: dice.permille(200),
        }
    }

    /// Nothing goes wrong: then nothing may be lost.
    pub(super) fn calm(&self) -> bool {
        self.faults.is_empty()
    }

    /// Whatever goes wrong costs nobody who lives a hold.
    pub(super) fn keeps_holds(&self) -> bool {
        let costs_none = |fault: &Fault| matches!(fault, Fault::ScriptFlush | Fault::Kill);
        self.weather == Weather::default() && self.faults.iter().all(costs_none)
    }

    pub(super) fn storm_calls(&self) -> u64 {
        if self.habits.tangles > 0 {
            TANGLED_CALLS
        } else {
            STORM_CALLS
        }
    }

    /// The client that is to find a circle looks after one to two time-outs, and again a time-out later: by then all
    /// others have noted their waits. A look takes some calls. The delay of a hold that was lost ends a circle too.
    pub(super) fn found_within(&self) -> Duration {
        self.habits.deadlock_timeout.saturating_mul(3) + self.habits.lock_delay + Duration::from_millis(100)
    }

    /// A circle of which nothing could be known during a storm is looked for after so long at most.
    pub(super) fn longest_search(&self) -> Duration {
        match self.habits.tangles {
            0 => Duration::ZERO,
            _ => self.habits.deadlock_timeout * 130,
        }
    }

    /// For how long the server keeps what nobody renews: a lease, a least time or a delay, as a slow clock counts them.
    pub(super) fn longest_kept(&self) -> Duration {
        let Habits {
            at_least, lock_delay, ..
        } = self.habits;
        let lease = self.longest_lease();
        let longest = (lease + lock_delay).max(at_least + lease / 2);
        if self.keeps_nothing() {
            lease
        } else {
            longest + longest / 30 + Duration::from_millis(10)
        }
    }

    /// What nobody wants is released at once.
    pub(super) fn keeps_nothing(&self) -> bool {
        self.habits.least == 0 && self.habits.lock_delay.is_zero()
    }

    pub(super) fn longest_lease(&self) -> Duration {
        self.habits.leases.into_iter().max().unwrap_or_default()
    }
}
