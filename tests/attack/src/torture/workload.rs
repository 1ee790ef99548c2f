//! What workers do with locks.

use super::holds::{PERMITS, SEVERAL};
use super::register;
use super::task::Task;
use fairlock::{Client, Error, Owner, Policy, ReadGuard, RwLock, WriteGuard};
use futures::FutureExt;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Workload {
    /// Everybody wants one lock.
    Hot,
    /// A thousand locks.
    Many,
    /// Many readers and a few writers.
    Readers,
    /// Acquisitions and releases dropped at any moment, and limits.
    Cancel,
    /// Readers become writers and writers readers.
    Upgrade,
    /// Tasks of several processes that share owners and reenter.
    Owners,
    /// Short leases, held for longer than the lease.
    Short,
    /// WriterFirst and ReaderFirst.
    Policies,
    /// Increments of a number kept elsewhere, with the fence and without.
    Register,
    /// Permits of a semaphore.
    Permits,
    /// Several locks in one guard.
    Several,
    /// Holds with a least time.
    Least,
    /// As many grants as possible.
    Flood,
}

const MANY: u64 = 1000;
pub const FLOOD: u64 = 64;
/// The longest lease of all.
pub const LONGEST_LEASE: Duration = Duration::from_millis(2000);

impl Workload {
    pub const ALL: [Self; 13] = [
        Self::Hot,
        Self::Many,
        Self::Readers,
        Self::Cancel,
        Self::Upgrade,
        Self::Owners,
        Self::Short,
        Self::Policies,
        Self::Register,
        Self::Permits,
        Self::Several,
        Self::Least,
        Self::Flood,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Many => "many",
            Self::Readers => "readers",
            Self::Cancel => "cancel",
            Self::Upgrade => "upgrade",
            Self::Owners => "owners",
            Self::Short => "short",
            Self::Policies => "policies",
            Self::Register => "register",
            Self::Permits => "permits",
            Self::Several => "several",
            Self::Least => "least",
            Self::Flood => "flood",
        }
    }

    pub fn lease(self) -> Duration {
        match self {
            Self::Many | Self::Flood => LONGEST_LEASE,
            Self::Short | Self::Least => ms(300),
            _ => ms(1000),
        }
    }

    pub fn tasks(self) -> usize {
        match self {
            Self::Readers => 10,
            Self::Many | Self::Cancel => 6,
            Self::Register => 4,
            Self::Least => 1,
            Self::Flood => 48,
            _ => 4,
        }
    }

    /// Every lock that it uses.
    pub fn locks(self) -> Vec<String> {
        let numbered = |n: u64| (0..n).map(|i| self.lock(i)).collect();
        match self {
            Self::Many => numbered(MANY),
            Self::Cancel => numbered(3),
            Self::Flood => numbered(FLOOD),
            Self::Policies => numbered(2),
            Self::Several => numbered(SEVERAL),
            Self::Register => register::LOCKS.map(str::to_owned).into(),
            _ => numbered(1),
        }
    }

    /// A lock as all name it.
    pub fn handle(self, client: &Client, name: &str) -> RwLock {
        let lock = client.rw_lock(name);
        match self {
            Self::Permits => lock.max_readers(PERMITS),
            Self::Policies if name == self.lock(0) => lock.policy(Policy::WriterFirst),
            Self::Policies => lock.policy(Policy::ReaderFirst),
            _ => lock,
        }
    }

    pub fn lock(self, number: u64) -> String {
        format!("{}-{number}", self.name())
    }

    /// One round of one task.
    pub async fn round(self, task: &mut Task) -> Result<(), Error> {
        match self {
            Self::Hot => task.plain(&self.lock(0), 70, 4).await,
            Self::Many => {
                let lock = self.lock(task.random.u64(..MANY));
                task.plain(&lock, 60, 2).await
            }
            Self::Readers if task.number == 0 => {
                task.pause(40).await;
                task.plain(&self.lock(0), 100, 3).await
            }
            Self::Readers => task.plain(&self.lock(0), 0, 6).await,
            Self::Cancel => task.cancel().await,
            Self::Upgrade => task.upgrade().await,
            Self::Owners => task.owners().await,
            Self::Short => task.short().await,
            Self::Policies => {
                let lock = self.lock(task.random.u64(..2));
                task.plain(&lock, 50, 4).await
            }
            Self::Register => unreachable!("it has a loop of its own"),
            Self::Permits => task.permits().await,
            Self::Several => task.several().await,
            Self::Least => task.least().await,
            Self::Flood => task.flood().await,
        }
    }
}

/// Releases in one of the ways in which users do.
macro_rules! let_go {
    ($task:expr, $guard:expr) => {
        match $task.random.u64(..10) {
            0 => drop($guard),
            1 => {
                let limit = Duration::from_micros($task.random.u64(..1500));
                match timeout(limit, $guard.release()).await {
                    Ok(released) => released?,
                    // Dropped on its way.
                    Err(_) => {}
                }
            }
            _ => $guard.release().await?,
        }
    };
}
pub(super) use let_go;

impl Task {
    fn lock(&self, name: &str) -> RwLock {
        self.client.rw_lock(name)
    }

    async fn plain(&mut self, name: &str, writes: u64, most_ms: u64) -> Result<(), Error> {
        let lock = self.workload.handle(&self.client, name);
        let stay = Duration::from_micros(self.random.u64(..most_ms * 1000));
        if self.random.u64(..100) < writes {
            let guard = self.enter(lock.write()).await?;
            self.hold(name, &guard).stay(&guard, stay).await;
            let_go!(self, guard);
        } else {
            let guard = self.enter(lock.read()).await?;
            self.hold(name, &guard).stay(&guard, stay).await;
            let_go!(self, guard);
        }
        self.pause(most_ms).await;
        Ok(())
    }

    async fn cancel(&mut self) -> Result<(), Error> {
        let name = Workload::Cancel.lock(self.random.u64(..3));
        let lock = self.lock(&name);
        let limit = Duration::from_micros(self.random.u64(..15_000));
        let acquired = match self.random.u64(..5) {
            0 => timeout(limit, self.enter(lock.write())).await.ok().transpose()?,
            1 => self.entered(lock.write().try_acquire_for(limit)).await?,
            2 => self.entered(lock.write().try_acquire()).await?,
            3 => {
                let reading = timeout(limit, self.enter(lock.read())).await.ok().transpose()?;
                if let Some(guard) = reading {
                    self.hold(&name, &guard).stay(&guard, ms(1)).await;
                    let_go!(self, guard);
                }
                None
            }
            // Sent, and dropped before anything can have come back.
            _ => lock.write().acquire_fair().now_or_never().transpose()?,
        };
        if let Some(guard) = acquired {
            self.hold(&name, &guard).stay(&guard, ms(1)).await;
            let_go!(self, guard);
        }
        self.pause(2).await;
        Ok(())
    }

    async fn upgrade(&mut self) -> Result<(), Error> {
        let name = Workload::Upgrade.lock(0);
        let lock = self.lock(&name);
        if self.random.u64(..100) < 25 {
            let writing = self.enter(lock.write()).await?;
            self.hold(&name, &writing).stay(&writing, ms(1)).await;
            let reading = writing.downgrade().await?;
            return self.go_on_reading(&name, reading).await;
        }
        let reading = self.enter(lock.read()).await?;
        self.go_on_reading(&name, reading).await
    }

    async fn go_on_reading(&mut self, name: &str, reading: ReadGuard) -> Result<(), Error> {
        let mut hold = self.hold(name, &reading);
        let stay = Duration::from_micros(self.random.u64(..3000));
        hold.stay(&reading, stay).await;
        let writing = match self.random.u64(..4) {
            0 => None,
            1 => self.entered(reading.try_upgrade()).await?,
            2 => {
                let limit = Duration::from_micros(self.random.u64(..10_000));
                timeout(limit, reading.upgrade()).await.ok().transpose()?
            }
            _ => self.entered(async { reading.upgrade().await.map(Some) }).await?,
        };
        hold.look(&reading);
        if let Some(writing) = writing {
            self.while_writing(name, writing).await?;
            hold.stay(&reading, ms(1)).await;
        }
        drop(hold);
        let_go!(self, reading);
        self.pause(5).await;
        Ok(())
    }

    async fn while_writing(&mut self, name: &str, writing: WriteGuard) -> Result<(), Error> {
        let mut hold = self.hold(name, &writing);
        let stay = Duration::from_micros(self.random.u64(..3000));
        hold.stay(&writing, stay).await;
        drop(hold);
        if self.random.u64(..100) < 30 {
            let reading = writing.downgrade().await?;
            self.hold(name, &reading).stay(&reading, ms(1)).await;
            let_go!(self, reading);
        } else {
            let_go!(self, writing);
        }
        Ok(())
    }

    /// Acquisitions inside of each other, by owners that other tasks and processes use at the same time.
    async fn owners(&mut self) -> Result<(), Error> {
        let name = Workload::Owners.lock(0);
        // Four for all processes.
        let owner = Owner::from_uuid(Uuid::from_u128(
            0x4000_8000_0000_0000_0000 | u128::from(self.random.u64(..4)),
        ));
        let lock = self.lock(&name).with_owner(&owner);
        let mut readings = Vec::new();
        let mut writings = Vec::new();
        for _ in 0..self.random.u64(1..=4) {
            let limit = ms(self.random.u64(1..=400));
            if self.random.u64(..100) < 50 {
                let Some(guard) = self.entered(lock.read().try_acquire_for(limit)).await? else {
                    break;
                };
                readings.push((self.hold(&name, &guard), guard));
            } else {
                let Some(guard) = self.entered(lock.write().try_acquire_for(limit)).await? else {
                    break;
                };
                writings.push((self.hold(&name, &guard), guard));
            }
            self.pause(2).await;
        }
        while !(readings.is_empty() && writings.is_empty()) {
            if self.random.u64(..100) < 50
                && let Some((mut hold, guard)) = readings.pop()
            {
                hold.look(&guard);
                drop(hold);
                let_go!(self, guard);
            } else if let Some((mut hold, guard)) = writings.pop() {
                hold.look(&guard);
                drop(hold);
                let_go!(self, guard);
            }
        }
        self.pause(5).await;
        Ok(())
    }

    async fn short(&mut self) -> Result<(), Error> {
        let name = Workload::Short.lock(0);
        let lease = ms(self.random.u64(100..=300));
        let mut acquire = self.lock(&name).write().lease(lease);
        let stay = match self.random.u64(..20) {
            0 => lease * 2,
            1 => {
                acquire = acquire.max_hold(lease / 2);
                lease
            }
            _ => Duration::from_micros(self.random.u64(..5000)),
        };
        let guard = self.enter(acquire).await?;
        let held = self.hold(&name, &guard).stay(&guard, stay).await;
        if held {
            let_go!(self, guard);
        }
        self.pause(5).await;
        Ok(())
    }

    async fn flood(&mut self) -> Result<(), Error> {
        let number = self.random.u64(..FLOOD);
        let name = Workload::Flood.lock(number);
        let lock = self.lock(&name);
        // Reporting every hold would cost as much as the grants: those of one lock must do.
        if self.random.u64(..100) < 75 {
            let guard = self.enter(lock.write()).await?;
            if number == 0 {
                self.hold(&name, &guard).look(&guard);
            }
            guard.release().await
        } else {
            let guard = self.enter(lock.read()).await?;
            if number == 0 {
                self.hold(&name, &guard).look(&guard);
            }
            guard.release().await
        }
    }
}

/// The rounds of a task, until it is told to stop.
pub async fn rounds(mut task: Task) {
    while !task.is_stopped() {
        if let Err(error) = task.workload.round(&mut task).await {
            task.failed(&error);
            sleep(ms(20)).await;
        }
    }
}
