//! Years of a small service: what its users see of crashes, deploys and fail-overs at the rates of real life.
//!
//! Only the minutes around each incident are simulated. Between two incidents nothing changes: clients ping, and a lock is
//! handed on as in the minute before. Three processes lead in turn, do a job every minute, and read and write something.

mod seen;

use super::dice::Dice;
use super::hands::{Hands, Hold};
use super::process::{Process, pausable};
use super::server::Server;
use super::users::Habits;
use super::world::{Fault, LATE, Net, Weather, World};
use fairlock::testing::Network;
use fairlock::{Access, Acquire, Client, Error, Guard, LostReason, Policy};
use seen::Ledger;
pub use seen::Report;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const LEASE: Duration = Duration::from_secs(10);
const PROCESSES: usize = 3;
const BEFORE: Duration = Duration::from_secs(60);
const AFTER: Duration = Duration::from_secs(240);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// What takes longer than this is an interruption to whoever asked.
const NOTICED: Duration = Duration::from_secs(1);

/// What happens, and how often in ten years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Incident {
    /// Each process in turn is replaced, and shuts its client down.
    Deploy,
    Fault(Fault),
}

const IN_TEN_YEARS: [(Incident, u64); 12] = [
    (Incident::Deploy, 1000),
    (Incident::Fault(Fault::Kill), 520),
    (Incident::Fault(Fault::Freeze), 1000),
    (Incident::Fault(Fault::Cut), 3650),
    (Incident::Fault(Fault::HalfOpen), 500),
    (Incident::Fault(Fault::Partition), 240),
    (Incident::Fault(Fault::ServerFreeze), 520),
    (Incident::Fault(Fault::Restart), 120),
    (Incident::Fault(Fault::ErrorReplies), 120),
    (Incident::Fault(Fault::ScriptFlush), 40),
    (Incident::Fault(Fault::Rollback), 40),
    (Incident::Fault(Fault::DataLoss), 4),
];

const LOCKS: [&str; 3] = ["leader", "job", "shared"];
const LEADER: u64 = 0;
const JOB: u64 = 1;
const SHARED: u64 = 2;

/// One process of the service, as its users have it.
#[derive(Clone)]
struct User {
    world: Arc<World>,
    hands: Arc<Hands>,
    ledger: Arc<Ledger>,
    process: Arc<Process>,
    client: Client,
    dice: Dice,
}

impl User {
    async fn acquire<M: Access>(&self, lock: u64, asked: Acquire<M>) -> Option<Arc<Guard<M>>> {
        let begun = Instant::now();
        let guard = match asked.acquire_fair().await {
            Ok(guard) => guard,
            Err(Error::Shutdown { .. }) => std::future::pending().await,
            Err(Error::Unavailable { .. } | Error::Server { .. }) => {
                self.ledger.of(lock).refused += 1;
                return None;
            }
            Err(error) => {
                self.world.violated(format!("an error that nobody expects: {error:?}"));
                return None;
            }
        };
        let mut seen = self.ledger.of(lock);
        seen.grants += 1;
        if lock != LEADER {
            seen.waited(begun.elapsed());
        }
        drop(seen);
        let hold = Hold {
            lock,
            owner: guard.owner(),
            named: true,
            prompt: true,
            mode: M::MODE,
            permits: 0,
            token: guard.fencing_token().get(),
            at_least: Duration::ZERO,
            lock_delay: Duration::ZERO,
        };
        let guard = Arc::new(guard);
        self.hands.take(&self.world, &self.process, &guard, hold, &habits());
        Some(guard)
    }

    async fn release<M: Access>(&self, lock: u64, guard: Arc<Guard<M>>) {
        let Ok(guard) = Arc::try_unwrap(guard) else {
            return self.world.violated("a guard is in two hands".to_owned());
        };
        match guard.release().await {
            Err(Error::Lost { reason, .. }) => self.lost(lock, reason),
            Err(Error::Unavailable { .. } | Error::Server { .. }) => self.lost(lock, LostReason::LeaseExpired),
            _ => {}
        }
    }

    fn lost(&self, lock: u64, reason: LostReason) {
        let why = match reason {
            LostReason::LeaseExpired => "by time",
            LostReason::UnknownToServer => "by the server",
            LostReason::Shutdown => "by a deploy",
            _ => "otherwise",
        };
        *self.ledger.of(lock).lost.entry(why).or_default() += 1;
    }

    async fn pauses(&mut self, mean: Duration) {
        let ms = self.dice.below(2 * mean.as_millis() as u64);
        sleep(Duration::from_millis(ms)).await;
    }

    async fn lead(mut self) {
        loop {
            let Some(guard) = self.acquire(LEADER, self.client.rw_lock("lock 0").write()).await else {
                self.pauses(NOTICED).await;
                continue;
            };
            self.ledger.leads(self.process.id);
            let reason = guard.lost().await;
            self.ledger.abdicates(self.process.id);
            self.lost(LEADER, reason);
        }
    }

    async fn job(mut self) {
        loop {
            self.pauses(Duration::from_secs(60)).await;
            if let Some(guard) = self.acquire(JOB, self.client.rw_lock("lock 1").write()).await {
                self.pauses(Duration::from_secs(2)).await;
                self.release(JOB, guard).await;
            }
        }
    }

    async fn share(mut self) {
        loop {
            self.pauses(Duration::from_secs(2)).await;
            let lock = self.client.rw_lock("lock 2");
            if self.dice.permille(50) {
                if let Some(guard) = self.acquire(SHARED, lock.write()).await {
                    self.pauses(Duration::from_millis(50)).await;
                    self.release(SHARED, guard).await;
                }
            } else if let Some(guard) = self.acquire(SHARED, lock.read()).await {
                self.pauses(Duration::from_millis(50)).await;
                self.release(SHARED, guard).await;
            }
        }
    }
}

fn habits() -> Habits {
    Habits {
        locks: LOCKS.len() as u64,
        permits: 0,
        policy: Policy::Fifo,
        leases: [LEASE; 3],
        hold: LEASE,
        pause: LEASE,
        writes: 0,
        named: 0,
        cancels: 0,
        least: 0,
        at_least: Duration::ZERO,
        lock_delay: Duration::ZERO,
        together: 0,
        tangles: 0,
        deadlock_timeout: Duration::MAX,
    }
}

/// A process, its only task, and its client once it is connected.
struct Seat {
    process: Arc<Process>,
    task: tokio::task::JoinHandle<()>,
    client: Arc<Mutex<Option<Client>>>,
}

struct Years {
    world: Arc<World>,
    hands: Arc<Hands>,
    ledger: Arc<Ledger>,
    dice: Dice,
    seats: Vec<Seat>,
    begun: u64,
}

impl Years {
    fn seat(&mut self) -> Seat {
        self.begun += 1;
        let process = Process::new(self.begun);
        let net: Arc<dyn Network> = Arc::new(Net {
            world: Arc::clone(&self.world),
            process: Arc::clone(&process),
        });
        let there = Arc::new(Mutex::new(None));
        let (world, hands, ledger) = (
            Arc::clone(&self.world),
            Arc::clone(&self.hands),
            Arc::clone(&self.ledger),
        );
        let (mut dice, process_, client_) = (self.dice.fork(), Arc::clone(&process), Arc::clone(&there));
        let works = async move {
            let client = loop {
                let builder = Client::builder().lease(LEASE).deadlock_timeout(Duration::MAX);
                match builder.connect(Arc::clone(&net)).await {
                    Ok(client) => break client,
                    Err(_) => sleep(Duration::from_millis(100)).await,
                }
            };
            *client_.lock().expect("no panic while it is locked") = Some(client.clone());
            let mut user = || User {
                world: Arc::clone(&world),
                hands: Arc::clone(&hands),
                ledger: Arc::clone(&ledger),
                process: Arc::clone(&process_),
                client: client.clone(),
                dice: dice.fork(),
            };
            let (leader, job, sharer) = (user(), user(), user());
            tokio::join!(leader.lead(), job.job(), sharer.share());
        };
        let task = tokio::spawn(pausable(Arc::clone(&process), works));
        process.keep(task.abort_handle());
        Seat {
            process,
            task,
            client: there,
        }
    }

    /// SIGTERM: the client shuts down, and the process ends.
    async fn leaves(&self, seat: Seat) {
        let client = seat.client.lock().expect("no panic while it is locked").take();
        if let Some(client) = client {
            let shutdown = pausable(Arc::clone(&seat.process), async move { client.shutdown().await });
            // As systemd does: a process that does not end is killed.
            let _ = tokio::time::timeout(Duration::from_secs(30), shutdown).await;
        }
        self.kill(&seat);
    }

    fn kill(&self, seat: &Seat) {
        self.world.inflict(Fault::Kill, &seat.process, Duration::ZERO);
        self.hands.killed(seat.process.id);
        self.ledger.abdicates(seat.process.id);
    }

    async fn happens(&mut self, incident: Incident) {
        let n = self.dice.index(self.seats.len());
        match incident {
            Incident::Deploy => {
                for _ in 0..PROCESSES {
                    let (new, old) = (self.seat(), self.seats.remove(0));
                    self.seats.push(new);
                    self.leaves(old).await;
                    sleep(Duration::from_secs(5)).await;
                }
            }
            Incident::Fault(Fault::Kill) => {
                let dead = self.seats.swap_remove(n);
                self.kill(&dead);
                // Its supervisor starts it again.
                sleep(Duration::from_secs(2)).await;
                let new = self.seat();
                self.seats.push(new);
            }
            Incident::Fault(fault) => {
                let process = Arc::clone(&self.seats[n].process);
                self.world.inflict(fault, &process, LEASE);
            }
        }
    }

    async fn passes(&mut self, time: Duration) -> Result<(), String> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            sleep(Duration::from_secs(1)).await;
            self.hands.look(&self.world, LEASE);
            if let Some(seat) = self.seats.iter().find(|seat| seat.task.is_finished()) {
                return Err(format!("the task of process {} panicked", seat.process.id));
            }
            if let Some(violation) = self.world.core().violation.take() {
                return Err(violation);
            }
        }
        Ok(())
    }

    /// The minutes around one incident; now and then another one comes before its end.
    async fn episode(&mut self, incidents: &[Incident]) -> Result<(), String> {
        for _ in 0..PROCESSES {
            let seat = self.seat();
            self.seats.push(seat);
        }
        *self.ledger.leader.lock().expect("no panic while it is locked") = Ok(0);
        self.passes(BEFORE).await?;
        for incident in incidents {
            self.happens(*incident).await;
            let before_next = self.dice.below(60);
            self.passes(Duration::from_secs(before_next)).await?;
        }
        self.passes(AFTER).await?;
        let processes: Vec<_> = self.seats.iter().map(|seat| Arc::clone(&seat.process)).collect();
        self.world.clear_up(&processes);
        for seat in std::mem::take(&mut self.seats) {
            self.kill(&seat);
        }
        sleep(LEASE * 2 + LATE).await;
        let mut core = self.world.core();
        let now_us = core.now_us();
        match core.server.lasting(now_us).as_slice() {
            [] => Ok(()),
            left => Err(format!("nobody wants it, and it stays: {left:#?}")),
        }
    }
}

/// What happens in those years, in any order.
fn incidents(years: f64, dice: &mut Dice) -> Vec<Incident> {
    let mut all = Vec::new();
    for (incident, in_ten_years) in IN_TEN_YEARS {
        let most = (in_ten_years as f64 * years / 10.0).ceil() as usize;
        all.extend(std::iter::repeat_n(incident, most));
    }
    for at in (1..all.len()).rev() {
        all.swap(at, dice.index(at + 1));
    }
    all
}

/// One history of years.
pub fn run(seed: u64, years: f64) -> Result<Report, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    fairlock::testing::seed(seed);
    let mut dice = Dice::new(seed);
    runtime.block_on(async {
        let world = World::new(Server::new(usize::MAX, true, false), dice.fork());
        let task = tokio::spawn(Arc::clone(&world).run());
        world.core().weather = Weather::default();
        let ledger = Arc::new(Ledger {
            locks: Mutex::default(),
            leader: Mutex::new(Ok(0)),
        });
        let mut service = Years {
            world,
            hands: Arc::default(),
            ledger: Arc::clone(&ledger),
            dice: dice.fork(),
            seats: Vec::new(),
            begun: 0,
        };
        let all = incidents(years, &mut dice);
        let mut report = Report {
            years,
            incidents: all.len() as u64,
            ..Report::default()
        };
        let mut rest = all.as_slice();
        while !rest.is_empty() {
            // So many come within five minutes of another one, at these rates.
            let together = if dice.permille(8) { 2 } else { 1 };
            let (now, later) = rest.split_at(together.min(rest.len()));
            let begun = Instant::now();
            service
                .episode(now)
                .await
                .map_err(|wrong| format!("{now:?}: {wrong}"))?;
            report.simulated += begun.elapsed();
            rest = later;
            if task.is_finished() {
                return Err("the world ended".to_owned());
            }
        }
        report.calls = service.world.core().server.calls;
        report.longest_deaf = service.hands.longest_deaf();
        report.locks = ledger.locks.lock().expect("no panic while it is locked").clone();
        Ok(report)
    })
}

#[test]
fn a_month_of_a_small_service_has_no_violation_and_its_users_see_every_kind_of_incident() {
    let report = run(crate::test_seed(), 0.1).expect("nothing wrong");
    println!("{report}");
    let [leader, job, shared] = &report.locks;
    assert!(leader.grants > 10 && job.grants > 100 && shared.grants > 10_000);
    assert!(
        leader.lost.contains_key("by a deploy") && leader.lost.len() > 1,
        "{:?}",
        leader.lost
    );
    // A dead or silent process costs one lease, and what the server is away besides; refused asks count on their own.
    assert!(
        shared.longest > NOTICED && shared.longest < LEASE * 5,
        "{:?}",
        shared.longest
    );
}
