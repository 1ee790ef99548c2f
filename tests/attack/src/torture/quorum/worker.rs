//! A worker that uses the locks of a quorum.

use super::LONGEST_LEASE;
use crate::torture::clock::now_us;
use crate::torture::sabotage::Sabotage;
use crate::torture::task::{Hold, Inside, Reporter};
use crate::torture::wire::Line;
use crate::torture::worker::{Args, DRAINED_WITHIN, connected};
use crate::torture::workload::let_go;
use crate::torture::{connect_store, register};
use fairlock::{Access, Error, LostReason, Owner, Quorum, QuorumAcquire, QuorumBuilder, QuorumGuard, QuorumLock};
use fairlock_support::random::{self, Rng};
use futures::FutureExt;
use redis::RedisError;
use redis::aio::MultiplexedConnection;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout, timeout_at};

/// A waiter enters or gets an error within so many steps, whatever breaks around it, because a majority always votes. It waits
/// for some holds of milliseconds, and now and then for the lease of one that was killed or stopped. Only a hang takes so long.
const WAITS_AT_MOST: usize = 120;

const MANY: u64 = 20;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Team {
    /// Everybody wants one lock, to read or to write.
    Hot,
    Many,
    /// Requests dropped at any moment, tries, and limits.
    Cancel,
    /// Short leases, held for longer than the lease now and then.
    Short,
    /// Increments of a number kept elsewhere, with the fence and without.
    Register,
}

pub(super) const TEAMS: [(Team, &str, usize); 5] = [
    (Team::Hot, "hot", 3),
    (Team::Many, "many", 2),
    (Team::Cancel, "cancel", 2),
    (Team::Short, "short", 1),
    (Team::Register, "register", 2),
];

pub fn builder() -> QuorumBuilder {
    Quorum::builder("torture")
        .longest_lease(LONGEST_LEASE)
        .lease(LONGEST_LEASE)
}

/// Every lock that is used.
pub fn locks() -> Vec<String> {
    let many = (0..MANY).map(|number| format!("many-{number}"));
    let others = ["hot", "cancel", "short"].into_iter().chain(register::LOCKS);
    many.chain(others.map(str::to_owned)).collect()
}

struct Task {
    team: Team,
    name: &'static str,
    /// Another one for each task of each process.
    owner: u128,
    number: usize,
    quorum: Quorum,
    random: Rng,
    reporter: Arc<Reporter>,
    stopped: watch::Receiver<bool>,
}

impl<M> Inside for QuorumGuard<M> {
    fn is_inside(&self) -> bool {
        self.is_held()
    }
}

pub async fn work(args: &Args, reporter: &Arc<Reporter>, mut orders: mpsc::UnboundedReceiver<String>) {
    // All of the client's tasks run on this thread.
    fairlock::testing::break_rule(args.sabotage.and_then(Sabotage::rule));
    let (stop, stopped) = watch::channel(false);
    let quorum = connected(|| builder().connect(&args.url)).await;
    let (mut tasks, mut spares) = (Vec::new(), Vec::new());
    for (at, (team, name, size)) in TEAMS.into_iter().enumerate() {
        let task = |number: usize| Task {
            team,
            name,
            owner: uuid::Uuid::new_v4().as_u128(),
            number,
            quorum: quorum.clone(),
            random: random::stream(args.seed, (at as u64) << 32 | number as u64),
            reporter: Arc::clone(reporter),
            stopped: stopped.clone(),
        };
        // The register's rounds have no end, and it must have been written.
        if team != Team::Register {
            spares.push(task(size));
        }
        for number in 0..size {
            let task = task(number);
            if team == Team::Register {
                let store = connected(|| connect_store(&args.store)).await;
                tasks.push(tokio::spawn(task.increments(store)));
            } else {
                tasks.push(tokio::spawn(task.rounds()));
            }
        }
    }
    while let Some(order) = orders.recv().await {
        match order.as_str() {
            "stop" => {
                stop.send_replace(true);
                drain(std::mem::take(&mut tasks), reporter).await;
                reporter.line(&Line::Drained);
            }
            "probe" => probe(&quorum, &mut spares, reporter).await,
            "leave" => quorum.shutdown().await,
            _ => reporter.wrong(format!("what is {order:?}?")),
        }
    }
}

/// All is quiet: every task must come to an end.
async fn drain(tasks: Vec<JoinHandle<()>>, reporter: &Reporter) {
    let deadline = tokio::time::Instant::now() + DRAINED_WITHIN;
    for task in tasks {
        match timeout_at(deadline, task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => reporter.wrong(error.to_string()),
            Err(_) => reporter.wrong(format!("a task goes on {DRAINED_WITHIN:?} after the last fault")),
        }
    }
}

/// All is quiet: every lock must be there for who asks, and be free of whom a majority has told that it is. Every team
/// gets in by its own calls.
async fn probe(quorum: &Quorum, spares: &mut [Task], reporter: &Reporter) {
    let mut longest_us = 0;
    for name in locks() {
        let (asked, owner) = (now_us(), Owner::new());
        let lock = quorum.rw_lock(name.as_str()).with_owner(&owner);
        let probed = async {
            lock.write().acquire_fair().await?.release().await?;
            lock.status().await
        };
        match probed.await {
            Err(error) => reporter.wrong(format!("{name}, with nobody disturbing: {error}")),
            Ok(status)
                if status
                    .holders
                    .iter()
                    .any(|holder| holder.is_majority && holder.owner == owner) =>
            {
                reporter.wrong(format!("{name} was released, and a majority keeps it: {status:?}"));
                break;
            }
            Ok(_) => {}
        }
        longest_us = longest_us.max(now_us() - asked);
    }
    for spare in spares {
        reporter.must_get_in(spare.name, async || spare.round().await).await;
    }
    reporter.line(&Line::Probed { longest_us });
}

impl Task {
    fn lock(&self, name: &str) -> QuorumLock {
        self.quorum.rw_lock(name)
    }

    fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// The rounds of a task, until it is told to stop.
    async fn rounds(mut self) {
        while !self.is_stopped() {
            self.round().await;
        }
    }

    async fn round(&mut self) {
        let round = match self.team {
            Team::Hot => self.plain("hot", 70, 4).await,
            Team::Many => {
                let name = format!("many-{}", self.random.u64(..MANY));
                self.plain(&name, 60, 2).await
            }
            Team::Cancel => self.cancel().await,
            Team::Short => self.short().await,
            Team::Register => unreachable!("it has a loop of its own"),
        };
        if let Err(error) = round {
            self.failed(&error);
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Errors that a user must expect while a minority breaks. Any other is reported.
    fn failed(&self, error: &Error) {
        match error {
            Error::Lost { reason, .. } => self.reporter.failed(match reason {
                LostReason::MaxHold => "max_hold",
                LostReason::LeaseExpired => "lease-expired",
                LostReason::UnknownToServer => "unknown-to-servers",
                _ => "lost-otherwise",
            }),
            Error::Unavailable { .. } => self.reporter.failed("unavailable"),
            _ => self.reporter.wrong(format!("{}: {error} ({error:?})", self.name)),
        }
    }

    /// Waits for a way to a guard, and counts.
    async fn entered<T>(&self, way: impl Future<Output = Result<Option<T>, Error>>) -> Result<Option<T>, Error> {
        let asked = now_us();
        let got = tokio::select! {
            got = way => got?,
            () = self.waits_at_most() => {
                let name = self.name;
                self.reporter.wrong(format!("{name}: neither in nor told why not for {WAITS_AT_MOST} steps"));
                None
            }
        };
        if got.is_some() {
            self.reporter.granted(self.name, now_us() - asked);
        }
        Ok(got)
    }

    /// Each step is a second, and a call to a majority: it takes as long as calls take on a busy machine.
    async fn waits_at_most(&self) {
        let lock = self.lock(self.name);
        for _ in 0..WAITS_AT_MOST {
            sleep(Duration::from_secs(1)).await;
            if lock.status().await.is_err() {
                self.reporter.failed("status");
            }
        }
    }

    async fn pause(&mut self, most_ms: u64) {
        sleep(Duration::from_micros(self.random.u64(..=most_ms * 1000))).await;
    }

    /// From now on somebody is inside, says so, and knows the token half of the time.
    async fn hold<M: Access>(&mut self, name: &str, guard: &QuorumGuard<M>, stay: Duration) -> bool {
        let mut hold = Hold::new::<M>(&self.reporter, name, self.owner, 0);
        hold.look(guard);
        if self.random.bool() {
            match guard.fencing_token().await {
                Ok(token) => hold.knows(guard, token.get()),
                Err(error) => self.failed(&error),
            }
        }
        hold.stay(guard, stay).await
    }

    async fn plain(&mut self, name: &str, writes: u64, most_ms: u64) -> Result<(), Error> {
        let lock = self.lock(name);
        let stay = Duration::from_micros(self.random.u64(..most_ms * 1000));
        if self.random.u64(..100) < writes {
            self.through(name, lock.write(), stay).await?;
        } else {
            self.through(name, lock.read(), stay).await?;
        }
        self.pause(most_ms).await;
        Ok(())
    }

    async fn through<M: Access>(&mut self, name: &str, ask: QuorumAcquire<M>, stay: Duration) -> Result<(), Error> {
        let entered = self.entered(async { ask.acquire_fair().await.map(Some) }).await?;
        if let Some(guard) = entered {
            self.hold(name, &guard, stay).await;
            let_go!(self, guard);
        }
        Ok(())
    }

    async fn cancel(&mut self) -> Result<(), Error> {
        let lock = self.lock("cancel");
        let limit = Duration::from_micros(self.random.u64(..20_000));
        let lease = Duration::from_millis(self.random.u64(1000..=2000));
        let ask = lock.write().lease(lease);
        let acquired = match self.random.u64(..4) {
            0 => timeout(limit, ask.acquire_fair()).await.ok().transpose()?,
            1 => self.entered(ask.try_acquire_for(limit)).await?,
            2 => self.entered(ask.try_acquire()).await?,
            // Sent, and dropped before anything can have come back.
            _ => ask.acquire_fair().now_or_never().transpose()?,
        };
        if let Some(guard) = acquired {
            self.hold("cancel", &guard, Duration::from_millis(1)).await;
            let_go!(self, guard);
        }
        self.pause(4).await;
        Ok(())
    }

    async fn short(&mut self) -> Result<(), Error> {
        let lease = Duration::from_millis(self.random.u64(300..=600));
        let mut ask = self.lock("short").write().lease(lease);
        let stay = match self.random.u64(..20) {
            0 => lease * 2,
            1 => {
                ask = ask.max_hold(lease / 2);
                lease
            }
            _ => Duration::from_micros(self.random.u64(..5000)),
        };
        if let Some(guard) = self.entered(async { ask.acquire_fair().await.map(Some) }).await?
            && self.hold("short", &guard, stay).await
        {
            let_go!(self, guard);
        }
        self.pause(5).await;
        Ok(())
    }

    /// As [`register::rounds`], by the locks of the quorum: users go on after they have lost the lock, on purpose.
    async fn increments(mut self, mut store: MultiplexedConnection) {
        let which = self.number % 2;
        while !self.is_stopped() {
            if let Err(error) = self.increment(which, &mut store).await {
                self.failed(&error);
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    async fn increment(&mut self, which: usize, store: &mut MultiplexedConnection) -> Result<(), Error> {
        let name = register::LOCKS[which];
        let max_hold = Duration::from_millis(self.random.u64(20..=60));
        let ask = self.lock(name).write().max_hold(max_hold);
        let Some(guard) = self.entered(async { ask.acquire_fair().await.map(Some) }).await? else {
            return Ok(());
        };
        let mut hold = Hold::new::<fairlock::Write>(&self.reporter, name, self.owner, 0);
        let token = guard.fencing_token().await?.get();
        hold.knows(&guard, token);
        let pause = register::pause(&mut self.random);
        let incremented: Result<Option<i64>, RedisError> = async {
            let value = register::step(store, which, token, "").await?;
            if value < 0 {
                return Ok(None);
            }
            let begun = Instant::now();
            hold.stay(&guard, pause).await;
            sleep(pause.saturating_sub(begun.elapsed())).await;
            let written = register::step(store, which, token, &(value + 1).to_string()).await?;
            Ok((written >= 0).then_some(written))
        }
        .await;
        drop(hold);
        match incremented {
            Ok(written) => self.reporter.wrote(register::REGISTERS[which], written.is_some()),
            Err(error) => self.reporter.wrong(format!("the register's store failed: {error}")),
        }
        // Mostly lost by now, or not: neither matters to the register.
        guard.release().await
    }
}
