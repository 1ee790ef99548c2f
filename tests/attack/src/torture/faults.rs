//! Which faults come when: a function of the seed.

use fairlock_support::random::{self, Rng};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum Fault {
    /// SIGKILL of a worker; a new one comes.
    Kill,
    /// SIGSTOP of a worker, mostly for longer than its leases, and SIGCONT.
    Stop,
    /// A worker gets a tenth of the time, as under a quota of the processor.
    Quota,
    /// A worker may open no further file, and its connections are reset.
    Files,
    /// A worker may have no further memory, which mostly aborts it; a new one comes.
    Starve,
    /// Connections reset, or ended in order.
    Cut,
    /// Nothing passes, and no connection is closed.
    Stall,
    Delay,
    Throttle,
    /// Replies dropped after execution, with their connections.
    LoseReplies,
    DropMessages,
    /// Connections overtake each other, also those that are closed.
    Reorder,
    /// CLIENT KILL by type and by id.
    ClientKill,
    /// CLIENT PAUSE ALL or WRITE.
    Pause,
    /// DEBUG SLEEP: the server does not answer anybody.
    Sleep,
    ScriptFlush,
    /// SIGKILL of the server, which comes back with all of its data.
    Restart,
    /// SIGKILL while what is on the disk is up to a second old.
    RestartEverysec,
    /// The server comes back without its data, or FLUSHALL.
    Wipe,
    /// A key or a field of one lock is deleted.
    Lose,
    /// Memory exhausted for a while.
    Memory,
    /// The server's disk is full for a while.
    Disk,
    /// The server's clock stepped, and later stepped back to the true time.
    Clock,
}

/// Faults of one lane come one after the other; those of different lanes at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    Process,
    Network,
    Server,
}

impl Fault {
    pub fn lane(self) -> Lane {
        match self {
            Self::Kill | Self::Stop | Self::Quota | Self::Files | Self::Starve => Lane::Process,
            Self::Cut
            | Self::Stall
            | Self::Delay
            | Self::Throttle
            | Self::LoseReplies
            | Self::DropMessages
            | Self::Reorder => Lane::Network,
            _ => Lane::Server,
        }
    }

    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or(String::new(), |value| value.get_name().to_owned())
    }

    /// From and to how many ms it lasts. Leases are 100 ms to 2 s.
    fn lasts_ms(self) -> (u64, u64) {
        match self {
            Self::Kill | Self::Cut | Self::ClientKill | Self::ScriptFlush | Self::Lose => (0, 0),
            Self::Stop | Self::Quota | Self::Files => (300, 3500),
            Self::Starve => (100, 1000),
            Self::Stall => (200, 3500),
            Self::Delay | Self::Throttle | Self::LoseReplies | Self::DropMessages | Self::Reorder => (300, 3000),
            Self::Pause | Self::Sleep => (30, 2500),
            Self::Restart | Self::RestartEverysec | Self::Wipe => (0, 2500),
            Self::Memory | Self::Disk => (100, 2000),
            Self::Clock => (200, 4000),
        }
    }
}

/// One fault: what, for how long, and two numbers that decide the rest, such as whom it hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// After the one before it.
    pub pause: Duration,
    pub fault: Fault,
    pub lasts: Duration,
    pub target: u64,
    pub detail: u64,
}

/// The faults of one lane, without end.
pub struct Schedule {
    random: Rng,
    faults: Vec<Fault>,
    /// Each comes once before any comes again.
    left: Vec<Fault>,
}

impl Schedule {
    pub fn new(seed: u64, lane: Lane, faults: &[Fault]) -> Self {
        let faults = faults.iter().copied().filter(|fault| fault.lane() == lane);
        Self::of(seed, lane as u64, faults.collect())
    }

    /// The same for several schedules of one lane, each with a number of its own.
    pub fn of(seed: u64, number: u64, faults: Vec<Fault>) -> Self {
        Self {
            random: random::stream(seed, 1000 + number),
            faults,
            left: Vec::new(),
        }
    }
}

impl Iterator for Schedule {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if self.faults.is_empty() {
            return None;
        }
        if self.left.is_empty() {
            self.left.clone_from(&self.faults);
        }
        let which = self.random.usize(..self.left.len());
        let fault = self.left.swap_remove(which);
        let (least, most) = fault.lasts_ms();
        Some(Step {
            pause: Duration::from_millis(self.random.u64(50..=1200)),
            fault,
            lasts: Duration::from_millis(self.random.u64(least..=most)),
            target: self.random.u64(..),
            detail: self.random.u64(..),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    fn steps(seed: u64, lane: Lane) -> Vec<Step> {
        Schedule::new(seed, lane, Fault::value_variants()).take(100).collect()
    }

    #[test]
    fn a_seed_repeats_its_faults_and_another_has_others() {
        for lane in [Lane::Process, Lane::Network, Lane::Server] {
            assert_eq!(steps(7, lane), steps(7, lane));
            assert_ne!(steps(7, lane), steps(8, lane));
        }
    }

    #[test]
    fn every_fault_comes_in_its_lane() {
        for &fault in Fault::value_variants() {
            assert!(
                steps(1, fault.lane()).iter().any(|step| step.fault == fault),
                "{fault:?}"
            );
        }
    }
}
