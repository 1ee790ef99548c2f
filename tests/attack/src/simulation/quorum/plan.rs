//! What a seed makes of a run over several servers.

use crate::simulation::dice::Dice;
use crate::simulation::world::{Fault, Weather};
use fairlock::Policy;
use std::time::Duration;

/// How bad it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Nothing goes wrong: then nothing may be lost, and everybody enters in order.
    Calm,
    /// At any time a minority of the servers is broken, forgetful, or out of somebody's reach.
    Minority,
    /// Any server, but at any time only a minority has forgotten anything.
    Wild,
}

#[derive(Clone, Copy, Debug)]
pub struct Habits {
    pub locks: u64,
    pub policy: Policy,
    /// The longest one is the quorum's.
    pub leases: [Duration; 3],
    /// The longest hold of most users, and the longest pause.
    pub hold: Duration,
    pub pause: Duration,
    /// So many of 1,000 ask to write, and so many drop what they asked for before they have it.
    pub writes: u64,
    pub cancels: u64,
    /// Each user names an owner of its own: then the run can see whose votes a server keeps.
    pub named: bool,
}

impl Habits {
    pub fn longest_lease(&self) -> Duration {
        self.leases[0]
    }
}

#[derive(Debug)]
pub struct Plan {
    pub mood: Mood,
    pub habits: Habits,
    pub processes: u64,
    pub users: u64,
    pub storms: u64,
    pub storm: Duration,
    pub faults: Vec<Fault>,
    /// The mean time between two faults.
    pub every: Duration,
    pub weather: Weather,
}

/// What is done to one server, to one process's way to it, or to a process.
pub const FAULTS: [Fault; 11] = [
    Fault::ServerFreeze,
    Fault::Restart,
    Fault::Rollback,
    Fault::DataLoss,
    Fault::ScriptFlush,
    Fault::ErrorReplies,
    Fault::Cut,
    Fault::HalfOpen,
    Fault::Partition,
    Fault::Freeze,
    Fault::Kill,
];

/// Whether the server may have forgotten something that it said.
pub fn is_forgetful(fault: Fault) -> bool {
    matches!(fault, Fault::Restart | Fault::Rollback | Fault::DataLoss)
}

impl Plan {
    pub fn new(dice: &mut Dice) -> Self {
        let ms = Duration::from_millis;
        let leases = *dice.pick(&[
            [ms(10_000), ms(10_000), ms(10_000)],
            [ms(3_000), ms(1_000), ms(1_000)],
            [ms(10_000), ms(500), ms(100)],
            [ms(1_000), ms(1_000), ms(500)],
        ]);
        let mood = *dice.pick(&[
            Mood::Calm,
            Mood::Minority,
            Mood::Minority,
            Mood::Minority,
            Mood::Wild,
            Mood::Wild,
        ]);
        let mut faults = match (mood, dice.below(3)) {
            (Mood::Calm, _) => Vec::new(),
            (_, 0) => vec![*dice.pick(&FAULTS)],
            _ => FAULTS.into_iter().filter(|_| dice.permille(400)).collect(),
        };
        if faults.is_empty() && mood != Mood::Calm {
            faults.push(Fault::Restart);
        }
        let bad = mood != Mood::Calm && dice.permille(400);
        let quick = dice.permille(500);
        Self {
            mood,
            habits: Habits {
                locks: 1 + dice.below(2),
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
                pause: if quick { ms(2) } else { *dice.pick(&[ms(20), ms(1_000)]) },
                writes: *dice.pick(&[100, 500, 800, 1000]),
                cancels: *dice.pick(&[0, 100, 500]),
                named: dice.permille(500),
            },
            processes: 1 + dice.below(4),
            users: 1 + dice.below(3),
            storms: 2,
            storm: *dice.pick(&[ms(20_000), ms(120_000), ms(600_000)]),
            faults,
            every: *dice.pick(&[ms(500), ms(5_000), ms(30_000)]),
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
        }
    }

    /// Whether places last and messages come: then nobody who asks later enters earlier.
    pub fn is_ordered(&self) -> bool {
        let of_server = |fault: &Fault| is_forgetful(*fault) || *fault == Fault::ServerFreeze;
        self.habits.policy == Policy::Fifo
            && self.weather == Weather::default()
            && self.faults.iter().all(of_server)
            && self.mood != Mood::Wild
    }
}
