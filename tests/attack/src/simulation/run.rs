//! One history of one server: storms of faults under which users work, rests in which everybody must get what they wait
//! for, and the end of everybody.

use super::circles::Circles;
use super::dice::Dice;
use super::hands::{Hands, PROMPT};
use super::plan::Plan;
use super::process::{Process, pausable};
use super::server::{Server, Trace};
use super::users::{User, owner};
use super::world::{Fault, LATE, Net, Phase, Weather, World};
use super::{Failure, Stats};
use fairlock::testing::Network;
use fairlock::{Client, Error, Owner, RwLock};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

struct Run {
    plan: Plan,
    world: Arc<World>,
    hands: Arc<Hands>,
    dice: Dice,
    processes: Vec<(Arc<Process>, Vec<tokio::task::JoinHandle<()>>)>,
    begun: u64,
}

impl Run {
    fn process(&mut self) {
        self.begun += 1;
        let process = Process::new(self.begun);
        let mut users = Vec::new();
        let owners = if self.plan.shared_owners { 7 } else { self.begun * 100 };
        let owners: Arc<Vec<Owner>> = Arc::new((owners..owners + 3).map(|n| owner(n << 32)).collect());
        let net: Arc<dyn Network> = Arc::new(Net {
            world: Arc::clone(&self.world),
            process: Arc::clone(&process),
        });
        let lease = self.plan.habits.leases[0];
        let (world, hands) = (Arc::clone(&self.world), Arc::clone(&self.hands));
        let (habits, n) = (self.plan.habits, self.plan.users);
        let (calm, keeps_holds) = (self.plan.calm(), self.plan.keeps_holds());
        let mut dice = self.dice.fork();
        let begun = self.begun;
        let (process_, world_) = (Arc::clone(&process), Arc::clone(&world));
        // The first task connects, and becomes all users.
        let begin = async move {
            let client = loop {
                match Client::builder()
                    .lease(lease)
                    .lock_delay(habits.lock_delay)
                    .deadlock_timeout(habits.deadlock_timeout)
                    .connect(Arc::clone(&net))
                    .await
                {
                    Ok(client) => break client,
                    Err(_) => sleep(Duration::from_millis(100)).await,
                }
            };
            let users = (0..n).map(|number| User {
                world: Arc::clone(&world_),
                hands: Arc::clone(&hands),
                process: Arc::clone(&process_),
                client: client.clone(),
                owners: Arc::clone(&owners),
                own: owner(begun << 8 | number),
                habits,
                dice: dice.fork(),
                calm,
                keeps_holds,
                bounded: false,
                named: false,
            });
            futures::future::join_all(users.map(User::run)).await;
        };
        let task = tokio::spawn(pausable(Arc::clone(&process), begin));
        process.keep(task.abort_handle());
        users.push(task);
        self.processes.push((process, users));
    }

    async fn storm(&mut self) -> Result<(), String> {
        self.world.begin(Phase::Busy);
        self.world.core().weather = self.plan.weather;
        // Until the first fault: a rest has settled everything.
        self.world.core().fine_since = (self.plan.weather == Weather::default()).then(Instant::now);
        let end = Instant::now() + self.plan.storm;
        let calls = self.world.core().server.calls + self.plan.storm_calls();
        while Instant::now() < end && self.world.core().server.calls < calls {
            if self.plan.faults.is_empty() {
                sleep(Duration::from_secs(1)).await;
            } else {
                sleep(self.dice.span(self.plan.every * 2)).await;
                let fault = *self.dice.pick(&self.plan.faults);
                let n = self.dice.index(self.processes.len());
                let process = Arc::clone(&self.processes[n].0);
                if self.world.inflict(fault, &process, self.plan.longest_lease()) {
                    self.processes.swap_remove(n);
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
        self.world.clear_up(&processes);
        self.world.begin(Phase::Rest);
        // The longest that one may wait for another: holds and the leases of the dead, one after the other for each user.
        let habits = &self.plan.habits;
        let users = u32::try_from(self.plan.users * self.plan.processes).unwrap_or(u32::MAX);
        let longest = (habits.hold * 20 * 4 + habits.pause * 20 + habits.at_least + self.plan.longest_search()) * users
            + self.plan.longest_kept() * 3;
        // Connections that were silent are noticed and made again, and what was frozen has caught up.
        let settled = Instant::now() + self.plan.longest_lease() * 2 + Duration::from_secs(15);
        let end = settled + longest + Duration::from_secs(60);
        while self.hands.busy() > 0 {
            if Instant::now() > settled {
                self.world.core().fine_since.get_or_insert(settled);
            }
            if Instant::now() > end {
                let locks = self.world.core().server.busy();
                return Err(format!("{} users do not come to an end: {locks:#?}", self.hands.busy()));
            }
            sleep(Duration::from_millis(250)).await;
            self.look()?;
        }
        if self.plan.calm() {
            // What users have left lasts for its least time, and what time has ended for its lock delay.
            let lapsed = Instant::now() + self.plan.habits.lock_delay;
            let kept_until = self.hands.kept_until().map_or(lapsed, |until| until.max(lapsed));
            sleep_until(kept_until + PROMPT).await;
            self.nothing_is_left()?;
        }
        sleep_until(settled).await;
        self.look()?;
        // Holds for a least time or in a lock delay.
        sleep(self.plan.longest_kept()).await;
        self.nothing_is_left()
    }

    /// Everybody has left everything.
    fn nothing_is_left(&self) -> Result<(), String> {
        let mut core = self.world.core();
        let now_us = core.now_us();
        match core.server.lasting(now_us).as_slice() {
            // Leases of the dead end late by a clock that was set back.
            left if !left.is_empty() && !core.server.backward => {
                Err(format!("nobody wants it, and it stays: {left:#?}"))
            }
            _ => Ok(()),
        }
    }

    fn look(&mut self) -> Result<(), String> {
        for (process, tasks) in &mut self.processes {
            if tasks.iter().any(tokio::task::JoinHandle::is_finished) {
                return Err(format!("a task of process {} panicked", process.id));
            }
        }
        let calm = self.plan.calm();
        let patience = if calm {
            Duration::ZERO
        } else {
            self.plan.longest_lease()
        };
        self.hands.look(&self.world, patience);
        let mut core = self.world.core();
        if let Some(circles) = core.server.circles.as_ref().filter(|_| calm) {
            let bound = self.plan.found_within();
            let standing = circles
                .standing(bound)
                .map(|edges| format!("a circle stands for {bound:?}: {edges:?}"));
            core.violation = core.violation.take().or(standing);
        }
        match core.violation.take() {
            Some(violation) => Err(violation),
            None => Ok(()),
        }
    }

    async fn all(&mut self) -> Result<(), String> {
        let (hands, delay) = (Arc::clone(&self.hands), self.plan.habits.lock_delay);
        if !delay.is_zero() {
            tokio::spawn(async move { hands.watch(delay).await });
        }
        for _ in 0..self.plan.processes {
            self.process();
        }
        for _ in 0..self.plan.storms {
            self.storm().await?;
            self.rest().await?;
        }
        self.ending().await
    }

    /// Everybody works for a while and dies, at the latest when somebody has got a hold with a least time beyond its
    /// lease. One lease later a stranger enters every lock at once, and leaves nothing behind.
    async fn ending(&mut self) -> Result<(), String> {
        self.world.begin(Phase::Busy);
        let end = Instant::now() + Duration::from_secs(60);
        let calls = self.world.core().server.calls + self.dice.below(1000);
        let (step, long) = (Duration::from_millis(5), self.plan.habits.leases[0]);
        while Instant::now() < end && self.world.core().server.calls < calls && !self.hands.has_just_taken(step, long) {
            sleep(step).await;
        }
        self.look()?;
        for (process, _) in self.processes.drain(..) {
            self.world.inflict(Fault::Kill, &process, Duration::ZERO);
        }
        let longest = self.plan.longest_kept();
        // The server may execute the last calls of the dead after their death.
        sleep(longest + LATE + Duration::from_secs(1)).await;
        let net: Arc<dyn Network> = Arc::new(Net {
            world: Arc::clone(&self.world),
            process: Process::new(0),
        });
        let client = Client::builder()
            .lease(self.plan.longest_lease())
            .deadlock_timeout(Duration::MAX)
            .connect(net)
            .await;
        let client = client.map_err(|error| format!("a stranger cannot connect: {error}"))?;
        // A clock that was set back lets the dead live for one lease more.
        let patience = match self.world.core().server.backward {
            true => longest * 2,
            false => Duration::from_secs(1),
        };
        for number in 0..self.plan.habits.locks {
            let habits = &self.plan.habits;
            let lock = habits.lock(&client, number, habits.most_permits());
            let entered = tokio::time::timeout(patience, lock.write().acquire_fair()).await;
            let guard = match entered {
                Ok(entered) => entered.map_err(|error| format!("a stranger cannot enter: {error}"))?,
                Err(_) => {
                    return Err(format!(
                        "the dead keep lock {number}: {:#?}",
                        self.world.core().server.busy()
                    ));
                }
            };
            guard
                .release()
                .await
                .map_err(|error| format!("a stranger cannot leave: {error}"))?;
            let probed = tokio::time::timeout(patience, probe(&lock)).await;
            match probed {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return Err(format!("lock {number} is busy, though nobody uses it")),
                Ok(Err(error)) => return Err(format!("a probe of lock {number}: {error}")),
                Err(_) => return Err(format!("a probe of lock {number} waits for ever")),
            }
        }
        self.look()?;
        match self.world.core().server.busy().as_slice() {
            [] => Ok(()),
            left => Err(format!("something is left: {left:#?}")),
        }
    }
}

/// A fresh upgrade, a named owner, a try: of a lock that nobody uses all must enter. `false`: the try found it busy.
async fn probe(lock: &RwLock) -> Result<bool, Error> {
    let reading = lock.read().acquire_fair().await?;
    reading.upgrade().await?.release().await?;
    reading.release().await?;
    lock.with_owner(&owner(7))
        .write()
        .acquire_fair()
        .await?
        .release()
        .await?;
    let tried = lock.write().try_acquire().await?;
    let entered = tried.is_some();
    if let Some(guard) = tried {
        guard.release().await?;
    }
    Ok(entered)
}

/// One history.
pub fn run(seed: u64, traced: bool) -> Result<Stats, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    fairlock::testing::seed(seed);
    let mut dice = Dice::new(seed);
    let plan = Plan::new(&mut dice);
    runtime.block_on(async {
        let begun = Instant::now();
        let at_most = *dice.pick(&[1, 2, usize::MAX, usize::MAX]);
        let mut server = Server::new(at_most, true, traced);
        server.circles = (plan.habits.tangles > 0).then(Circles::default);
        let world = World::new(server, dice.fork());
        let task = tokio::spawn(Arc::clone(&world).run());
        let mut run = Run {
            plan,
            world,
            hands: Arc::default(),
            dice,
            processes: Vec::new(),
            begun: 0,
        };
        let result = run.all().await;
        let result = result.and_then(|()| {
            if task.is_finished() {
                Err("the world ended".to_owned())
            } else {
                Ok(())
            }
        });
        let mut core = run.world.core();
        match result {
            Ok(()) => Ok(Stats {
                runs: 1,
                simulated: begun.elapsed(),
                calls: core.server.calls,
                grants: core.server.grants,
                faults: core.faults.clone(),
                outcomes: run.hands.outcomes(),
                digest: core.server.digest,
            }),
            Err(what) => Err(Failure {
                seed,
                what,
                trace: core.server.trace.as_mut().map(Trace::take).unwrap_or_default(),
            }),
        }
    })
}
