//! The servers of a simulated quorum, each a world of its own, and which of them are broken.

use super::plan::{Mood, Plan, is_forgetful};
use crate::simulation::dice::Dice;
use crate::simulation::process::Process;
use crate::simulation::server::{Server, Trace};
use crate::simulation::world::{Fault, Net, Phase, Weather, World};
use fairlock::Owner;
use fairlock::testing::Network;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// A server that came back votes again within this time after its quarantine.
pub const ASKED_AGAIN: Duration = Duration::from_secs(2);

#[derive(Default)]
struct State {
    /// The servers that are broken or forgetful, and since when there has been nothing wrong with each.
    broken: BTreeMap<usize, Option<Instant>>,
    /// How many faults each server has seen.
    faults: Vec<u64>,
}

pub struct Servers {
    pub worlds: Vec<Arc<World>>,
    pub trace: Option<Trace>,
    longest_lease: Duration,
    state: Mutex<State>,
}

impl Servers {
    pub fn new(servers: u64, longest_lease: Duration, dice: &mut Dice, traced: bool) -> Self {
        let trace = traced.then(Trace::default);
        let at_most = *dice.pick(&[1, 2, usize::MAX, usize::MAX]);
        // Clocks differ by less than the longest lease, with what they drift.
        let (most, turns) = (longest_lease.as_micros() as i64, longest_lease * 4);
        let world = |number| {
            let mut server = Server::new(at_most, false, false);
            server.number(number);
            server.trace = trace.as_ref().map(|trace| trace.of(number));
            // Another server's number may be ahead of the clock by which a lost counter goes on.
            server.backward = true;
            let world = World::new(server, dice.fork());
            let ahead_us = dice.below(most as u64 * 9 / 10) as i64 - most * 9 / 20;
            world.skew(ahead_us, turns);
            world
        };
        let worlds: Vec<_> = (0..servers).map(world).collect();
        let faults = vec![0; worlds.len()];
        Self {
            worlds,
            trace,
            longest_lease,
            state: Mutex::new(State {
                broken: BTreeMap::new(),
                faults,
            }),
        }
    }

    pub fn note(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            trace.clone().push(line());
        }
    }

    pub fn majority(&self) -> usize {
        self.worlds.len() / 2 + 1
    }

    pub fn violated(&self, what: String) {
        if let Some(trace) = &self.trace {
            trace.end();
        }
        self.worlds[0].violated(what);
    }

    pub async fn until_busy(&self) {
        self.worlds[0].until_busy().await;
    }

    /// The ways of one process to all servers.
    pub fn nets(&self, process: &Arc<Process>) -> Vec<Arc<dyn Network>> {
        let net = |world: &Arc<World>| -> Arc<dyn Network> {
            Arc::new(Net {
                world: Arc::clone(world),
                process: Arc::clone(process),
            })
        };
        self.worlds.iter().map(net).collect()
    }

    pub fn begin(&self, phase: Phase, weather: Weather) {
        for world in &self.worlds {
            world.core().weather = weather;
        }
        self.worlds[0].begin(phase);
    }

    /// The servers that are well and keep a hold of that owner, each with the faults that it has seen.
    pub fn keeping(&self, lock: u64, owner: &Owner) -> Vec<(usize, u64)> {
        let (key, owner) = (format!("fairlock.q:{{lock {lock}}}"), owner.uuid().simple().to_string());
        let state = self.state.lock().expect("no panic while it is locked");
        let mut keeping = Vec::new();
        for (at, world) in self.worlds.iter().enumerate() {
            let mut core = world.core();
            if core.is_well(Duration::ZERO) && core.server.is_inside(&key, &owner) {
                keeping.push((at, state.faults[at]));
            }
        }
        keeping
    }

    /// How many of them have seen no fault since.
    pub fn still_well(&self, servers: &[(usize, u64)]) -> usize {
        let state = self.state.lock().expect("no panic while it is locked");
        servers
            .iter()
            .filter(|(at, faults)| state.faults[*at] == *faults)
            .count()
    }

    /// Forgets what is whole again.
    fn look(&self) {
        let now = Instant::now();
        let mut state = self.state.lock().expect("no panic while it is locked");
        for (at, since) in &mut state.broken {
            let is_well = self.worlds[*at].core().is_well(self.longest_lease);
            *since = is_well.then(|| since.unwrap_or(now));
        }
        let whole = |since: &Option<Instant>| since.is_some_and(|since| since + ASKED_AGAIN <= now);
        state.broken.retain(|_, since| !whole(since));
    }

    /// Does something to a server or to one process, as the mood allows. Returns whether the process is gone.
    pub fn inflict(&self, fault: Fault, process: &Arc<Process>, plan: &Plan, dice: &mut Dice) -> bool {
        self.look();
        if matches!(fault, Fault::Freeze | Fault::Kill) {
            let mut state = self.state.lock().expect("no panic while it is locked");
            state.faults.iter_mut().for_each(|faults| *faults += 1);
            drop(state);
            // A frozen process is thawed by one world, and a dead one has no connection to any.
            let worlds = if fault == Fault::Kill {
                &self.worlds[..]
            } else {
                &self.worlds[..1]
            };
            return worlds
                .iter()
                .fold(false, |_, world| world.inflict(fault, process, self.longest_lease));
        }
        let mut state = self.state.lock().expect("no panic while it is locked");
        let any = plan.mood == Mood::Wild && !is_forgetful(fault);
        let is_full = state.broken.len() == self.worlds.len() - self.majority();
        let may_break = |at: &usize| any || !is_full || state.broken.contains_key(at);
        let choice: Vec<_> = (0..self.worlds.len()).filter(may_break).collect();
        let Some(at) = (!choice.is_empty()).then(|| *dice.pick(&choice)) else {
            return false;
        };
        // In a wild run only those that forget count.
        if plan.mood != Mood::Wild || is_forgetful(fault) {
            state.broken.insert(at, None);
        }
        state.faults[at] += 1;
        drop(state);
        self.worlds[at].inflict(fault, process, self.longest_lease)
    }

    pub fn clear_up(&self, processes: &[Arc<Process>]) {
        self.worlds.iter().for_each(|world| world.clear_up(processes));
    }

    pub fn violation(&self) -> Option<String> {
        self.worlds.iter().find_map(|world| world.core().violation.take())
    }

    /// Locks with somebody who holds or waits.
    pub fn busy(&self) -> Vec<String> {
        let busy = |(at, world): (usize, &Arc<World>)| {
            let locks = world.core().server.busy();
            locks.into_iter().map(move |lock| format!("server {at}: {lock}"))
        };
        self.worlds.iter().enumerate().flat_map(busy).collect()
    }

    pub fn calls(&self) -> u64 {
        self.worlds.iter().map(|world| world.core().server.calls).sum()
    }
}
