//! The real client of a quorum in virtual time, with a simulated server for each seat. Each server has a clock, a network and
//! faults of its own. Runs, storms and rests are those of one server.

mod hands;
mod plan;
mod servers;
mod users;

use super::dice::Dice;
use super::plan::STORM_CALLS;
use super::process::{Process, pausable};
use super::server::Trace;
use super::world::{Fault, Phase, Weather, World};
use super::{Failure, Stats};
use fairlock::Quorum;
use hands::Hands;
use plan::Plan;
use servers::{ASKED_AGAIN, Servers};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use users::User;

struct Run {
    plan: Plan,
    servers: Arc<Servers>,
    hands: Arc<Hands>,
    dice: Dice,
    processes: Vec<(Arc<Process>, JoinHandle<()>)>,
    begun: u64,
}

impl Run {
    fn process(&mut self) {
        self.begun += 1;
        let process = Process::new(self.begun);
        let (servers, hands, nets) = (
            Arc::clone(&self.servers),
            Arc::clone(&self.hands),
            self.servers.nets(&process),
        );
        let (habits, mood, is_ordered) = (self.plan.habits, self.plan.mood, self.plan.is_ordered());
        let ids: Vec<_> = (0..self.plan.users).map(|n| self.begun * 100 + n).collect();
        let mut dice = self.dice.fork();
        let process_ = Arc::clone(&process);
        // The first task connects, and becomes all users.
        let begin = async move {
            let quorum = loop {
                match builder(habits.longest_lease()).connect(nets.clone()).await {
                    Ok(quorum) => break quorum,
                    Err(_) => sleep(Duration::from_millis(100)).await,
                }
            };
            let users = ids.into_iter().map(|id| User {
                id,
                servers: Arc::clone(&servers),
                hands: Arc::clone(&hands),
                process: Arc::clone(&process_),
                quorum: quorum.clone(),
                owner: hands::owner(id, &habits),
                habits,
                dice: dice.fork(),
                mood,
                is_ordered,
            });
            futures::future::join_all(users.map(User::run)).await;
        };
        let task = tokio::spawn(pausable(Arc::clone(&process), begin));
        process.keep(task.abort_handle());
        self.processes.push((process, task));
    }

    async fn storm(&mut self) -> Result<(), String> {
        self.servers.begin(Phase::Busy, self.plan.weather);
        let end = Instant::now() + self.plan.storm;
        let calls = self.servers.calls() + STORM_CALLS;
        while Instant::now() < end && self.servers.calls() < calls {
            if self.plan.faults.is_empty() {
                sleep(Duration::from_secs(1)).await;
            } else {
                sleep(self.dice.span(self.plan.every * 2)).await;
                let fault = *self.dice.pick(&self.plan.faults);
                let n = self.dice.index(self.processes.len());
                let process = Arc::clone(&self.processes[n].0);
                if self.servers.inflict(fault, &process, &self.plan, &mut self.dice) {
                    drop(self.processes.swap_remove(n));
                    self.hands.killed(process.id);
                    self.process();
                }
            }
            self.look()?;
        }
        Ok(())
    }

    /// Faults end; everybody must get what they wait for, and nothing is left.
    async fn rest(&mut self) -> Result<(), String> {
        let processes: Vec<_> = self.processes.iter().map(|(process, _)| Arc::clone(process)).collect();
        self.servers.clear_up(&processes);
        self.servers.begin(Phase::Rest, Weather::default());
        // The longest that one may wait for another: holds and the leases of the dead, one after the other for each user.
        let habits = &self.plan.habits;
        let users = u32::try_from(self.plan.users * self.plan.processes).unwrap_or(u32::MAX);
        let longest = (habits.hold * 20 * 4 + habits.pause * 20) * users + habits.longest_lease() * 3;
        // Connections that were silent are noticed and made again, what was frozen has caught up, and servers vote again.
        let settled = Instant::now() + habits.longest_lease() * 3 + Duration::from_secs(15);
        let end = settled + longest + Duration::from_secs(60);
        while self.hands.busy() > 0 {
            if Instant::now() > end {
                let locks = self.servers.busy();
                return Err(format!("{} users do not come to an end: {locks:#?}", self.hands.busy()));
            }
            sleep(Duration::from_millis(250)).await;
            self.look()?;
        }
        sleep_until(settled).await;
        self.look()
    }

    fn look(&mut self) -> Result<(), String> {
        if let Some((process, _)) = self.processes.iter().find(|(_, task)| task.is_finished()) {
            return Err(format!("a task of process {} panicked", process.id));
        }
        match self.servers.violation() {
            Some(violation) => Err(violation),
            None => Ok(()),
        }
    }

    async fn all(&mut self) -> Result<(), String> {
        for _ in 0..self.plan.processes {
            self.process();
        }
        for _ in 0..self.plan.storms {
            self.storm().await?;
            self.rest().await?;
        }
        self.ending().await
    }

    /// Everybody dies. One lease later a stranger enters every lock by the votes of all servers, and leaves nothing behind.
    async fn ending(&mut self) -> Result<(), String> {
        for (process, _) in std::mem::take(&mut self.processes) {
            self.servers.inflict(Fault::Kill, &process, &self.plan, &mut self.dice);
        }
        let longest = self.plan.habits.longest_lease();
        sleep(longest + Duration::from_secs(1)).await;
        let nets = self.servers.nets(&Process::new(0));
        let quorum = builder(longest).connect(nets).await;
        let quorum = quorum.map_err(|error| format!("a stranger cannot connect: {error}"))?;
        for number in 0..self.plan.habits.locks {
            let lock = users::lock(&quorum, number, &self.plan.habits);
            let entered = timeout(longest * 2, lock.write().acquire_fair()).await;
            let Ok(entered) = entered else {
                return Err(format!("the dead keep lock {number}: {:#?}", self.servers.busy()));
            };
            let guard = entered.map_err(|error| format!("a stranger cannot enter: {error}"))?;
            let end = Instant::now() + longest + ASKED_AGAIN;
            while guard.votes() < self.servers.worlds.len() {
                if Instant::now() > end {
                    let (votes, busy) = (guard.votes(), self.servers.busy());
                    return Err(format!("lock {number}: a stranger has {votes} votes: {busy:#?}"));
                }
                sleep(Duration::from_millis(50)).await;
            }
            guard
                .release()
                .await
                .map_err(|error| format!("a stranger cannot leave: {error}"))?;
            // The release of the slowest server is on its way.
            sleep(Duration::from_millis(100)).await;
            match lock.write().try_acquire().await {
                Ok(Some(guard)) => {
                    let left = guard.release().await;
                    left.map_err(|error| format!("a stranger cannot leave again: {error}"))?;
                }
                other => return Err(format!("a try of lock {number}, which nobody uses: {other:?}")),
            }
        }
        sleep(Duration::from_millis(100)).await;
        self.look()?;
        match self.servers.busy().as_slice() {
            [] => Ok(()),
            left => Err(format!("something is left: {left:#?}")),
        }
    }
}

fn builder(longest_lease: Duration) -> fairlock::QuorumBuilder {
    Quorum::builder("simulation").longest_lease(longest_lease)
}

/// One history.
pub fn run(seed: u64, servers: u64, traced: bool) -> Result<Stats, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    fairlock::testing::seed(seed);
    let mut dice = Dice::new(seed);
    let plan = Plan::new(&mut dice);
    if traced {
        println!("{plan:#?}");
    }
    runtime.block_on(async {
        let begun = Instant::now();
        let servers = Arc::new(Servers::new(servers, plan.habits.longest_lease(), &mut dice, traced));
        let tasks: Vec<_> = servers
            .worlds
            .iter()
            .map(|world| tokio::spawn(Arc::clone(world).run()))
            .collect();
        let mut run = Run {
            plan,
            servers,
            hands: Arc::default(),
            dice,
            processes: Vec::new(),
            begun: 0,
        };
        let result = run.all().await;
        let result = result.and_then(|()| match tasks.iter().any(JoinHandle::is_finished) {
            true => Err("a world ended".to_owned()),
            false => Ok(()),
        });
        if let Err(what) = result {
            let trace = run.servers.trace.clone().as_mut().map(Trace::take);
            return Err(Failure {
                seed,
                what,
                trace: trace.unwrap_or_default(),
            });
        }
        let mut stats = Stats {
            runs: 1,
            simulated: begun.elapsed(),
            outcomes: run.hands.outcomes(),
            ..Stats::default()
        };
        let count = |world: &Arc<World>| {
            let core = world.core();
            stats.calls += core.server.calls;
            stats.grants += core.server.grants;
            stats.digest = stats.digest.rotate_left(7) ^ core.server.digest;
            for (fault, n) in &core.faults {
                *stats.faults.entry(*fault).or_default() += n;
            }
        };
        run.servers.worlds.iter().for_each(count);
        Ok(stats)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::{report, runs};

    #[test]
    fn a_seed_gives_one_history_of_several_servers() {
        let digest = |seed| run(seed, 3, false).expect("nothing wrong").digest;
        let first = crate::test_seed();
        let digests: Vec<_> = (first..first + 4).map(digest).collect();
        let again: Vec<_> = (first..first + 4).map(digest).collect();
        assert_eq!(digests, again);
        assert_ne!(digests[0], digests[1], "another seed is another history");
    }

    #[test]
    fn nothing_is_wrong_in_storms_over_three_and_five_servers() {
        for servers in [3, 5] {
            match runs(crate::test_seed(), 2, Some(servers), |stats| stats.runs >= 30) {
                Ok(stats) => {
                    report(&stats);
                    assert_eq!(stats.faults.len(), plan::FAULTS.len(), "every kind of fault happened");
                    assert!(stats.grants > 50_000);
                }
                Err(failure) => panic!("{servers} servers, seed {}: {}", failure.seed, failure.what),
            }
        }
    }
}
