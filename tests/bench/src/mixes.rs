//! Readers and writers together, beside the other crates that have a read/write lock.

use crate::contend::{Contended, Load, contend, handles};
use crate::env::{Env, connect};
use crate::report::{Report, quantile};
use distkit::DistkitRedisKey;
use distkit::lock::{LockOptions, RwLock as DistkitLock, RwLockReadGuard, RwLockWriteGuard};
use redis::aio::ConnectionManager;
use rlock::AcquireOptions;
use rlock::async_lock::{RLock, RReadLockGuard, RWriteLockGuard};
use std::sync::Arc;
use std::time::Duration;

const TASKS: usize = 64;
const READS: [u32; 3] = [50, 90, 99];
const HOLDS: [u64; 2] = [0, 1];

pub async fn run(env: &Env, report: &mut Report) {
    let client = connect(&env.server.url()).await;
    let redis = redis::Client::open(env.server.url()).expect("a valid URL");
    let manager = redis.get_connection_manager().await.expect("the server answers");
    let rlock = RLock::with_connection_manager(manager.clone())
        .await
        .expect("a lock manager");
    for reads in READS {
        for hold in HOLDS {
            let load = Load {
                time: Duration::from_millis(env.times(600) as u64),
                hold: Duration::from_millis(hold),
                reads: f64::from(reads) / 100.0,
            };
            let name = format!("mix_{reads}_{hold}");
            let (mut ours, mut of_distkit, mut of_rlock) = (Mix::default(), Mix::default(), Mix::default());
            for _ in env.some_rounds(&format!("mix of {reads} % reads, hold {hold} ms"), 3) {
                ours.add(handles(&client, &name, TASKS), load).await;
                of_distkit.add(distkit(&manager, &name), load).await;
                of_rlock
                    .add(vec![Rlock(rlock.clone(), name.clone()); TASKS], load)
                    .await;
            }
            ours.report(report, &name);
            of_distkit.report(report, &format!("{name}_peer_distkit"));
            of_rlock.report(report, &format!("{name}_peer_rlock"));
        }
    }
    rlock.shutdown().await;
}

/// A number for each round.
#[derive(Default)]
struct Mix {
    per_second: Vec<f64>,
    read: Vec<f64>,
    write: Vec<f64>,
}

impl Mix {
    async fn add<L: Contended>(&mut self, locks: Vec<L>, load: Load) {
        let passes = contend(locks, load).await;
        self.per_second.push(passes.per_second());
        for (write, numbers) in [(false, &mut self.read), (true, &mut self.write)] {
            let waits = passes.waits_of(write);
            // A short slice of few writes may have none.
            if !waits.is_empty() {
                numbers.push(quantile(&waits, 0.99) / 1e3);
            }
        }
    }

    fn report(&self, report: &mut Report, key: &str) {
        report.beside(&format!("{key}_per_s"), "grants per second", &self.per_second);
        for (name, what, numbers) in [("read", "readers", &self.read), ("write", "writers", &self.write)] {
            if !numbers.is_empty() {
                report.beside(
                    &format!("{key}_{name}_p99"),
                    &format!("ms: p99 wait of {what}"),
                    numbers,
                );
            }
        }
    }
}

/// How often the others ask again. Their defaults are 50 ms (distkit) and 100 ms (rlock); both document it as what to
/// set, and with less than this they keep the server busy with asking.
const RETRY: Duration = Duration::from_millis(1);

/// One lock for each task: a lock has one owner.
fn distkit(manager: &ConnectionManager, name: &str) -> Vec<Arc<DistkitLock>> {
    let lock = || {
        let key = DistkitRedisKey::try_from(name.to_owned()).expect("a valid name");
        DistkitLock::new(LockOptions::builder(key, manager.clone()).retry_interval(RETRY).build())
    };
    (0..TASKS).map(|_| lock()).collect()
}

pub enum DistkitGuard {
    Read(RwLockReadGuard),
    Write(RwLockWriteGuard),
}

impl Contended for Arc<DistkitLock> {
    type Guard = DistkitGuard;

    async fn enter(&self, write: bool) -> DistkitGuard {
        if write {
            DistkitGuard::Write(self.write().await.expect("granted"))
        } else {
            DistkitGuard::Read(self.read().await.expect("granted"))
        }
    }

    async fn leave(guard: DistkitGuard) {
        match guard {
            DistkitGuard::Read(guard) => guard.release().await,
            DistkitGuard::Write(guard) => guard.release().await,
        }
        .expect("released");
    }
}

#[derive(Clone)]
struct Rlock(RLock, String);

pub enum RlockGuard {
    Read(RReadLockGuard),
    Write(RWriteLockGuard),
}

impl Contended for Rlock {
    type Guard = RlockGuard;

    async fn enter(&self, write: bool) -> RlockGuard {
        let options = AcquireOptions::builder()
            .retry_interval(RETRY)
            .build()
            .expect("valid options");
        if write {
            RlockGuard::Write(
                self.0
                    .acquire_write_with_options(&self.1, options)
                    .await
                    .expect("granted"),
            )
        } else {
            RlockGuard::Read(
                self.0
                    .acquire_read_with_options(&self.1, options)
                    .await
                    .expect("granted"),
            )
        }
    }

    async fn leave(guard: RlockGuard) {
        match guard {
            RlockGuard::Read(mut guard) => guard.release().await,
            RlockGuard::Write(mut guard) => guard.release().await,
        }
        .expect("released");
    }
}
