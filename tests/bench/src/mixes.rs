//! Readers and writers together, beside the other crates that have a read/write lock.

use crate::contend::{Contended, Load, contend, handles};
use crate::env::{Env, connect};
use crate::peers::{Kind, Locks, of_distkit, of_rlock};
use crate::report::{Report, quantile};
use distkit::lock::{RwLock as DistkitLock, RwLockReadGuard, RwLockWriteGuard};
use rlock::async_lock::{RLock, RReadLockGuard, RWriteLockGuard};
use std::sync::Arc;
use std::time::Duration;

const TASKS: usize = 64;
const READS: [u32; 3] = [50, 90, 99];
const HOLDS: [u64; 2] = [0, 1];

pub async fn run(env: &Env, report: &mut Report) {
    let client = connect(&env.server.url()).await;
    let of = async |kind| Locks::connect(kind, &env.server.url()).await;
    let (distkits, rlocks) = (of(Kind::Distkit).await, of(Kind::Rlock).await);
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
                of_distkit.add(distkit(&distkits, &name), load).await;
                of_rlock.add(rlock(&rlocks, &name), load).await;
            }
            ours.report(report, &name);
            of_distkit.report(report, &format!("{name}_peer_distkit"));
            of_rlock.report(report, &format!("{name}_peer_rlock"));
        }
    }
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

/// One lock for each task: a lock has one owner.
fn distkit(locks: &Locks, name: &str) -> Vec<Arc<DistkitLock>> {
    let Locks::Distkit(manager) = locks else {
        unreachable!("connected as distkit")
    };
    (0..TASKS)
        .map(|_| DistkitLock::new(of_distkit(manager, name)))
        .collect()
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

fn rlock(locks: &Locks, name: &str) -> Vec<Rlock> {
    let Locks::Rlock(manager) = locks else {
        unreachable!("connected as rlock")
    };
    (0..TASKS).map(|_| Rlock(manager.clone(), name.to_owned())).collect()
}

struct Rlock(RLock, String);

pub enum RlockGuard {
    Read(RReadLockGuard),
    Write(RWriteLockGuard),
}

impl Contended for Rlock {
    type Guard = RlockGuard;

    async fn enter(&self, write: bool) -> RlockGuard {
        let Self(locks, name) = self;
        if write {
            let guard = locks.acquire_write_with_options(name, of_rlock()).await;
            RlockGuard::Write(guard.expect("granted"))
        } else {
            let guard = locks.acquire_read_with_options(name, of_rlock()).await;
            RlockGuard::Read(guard.expect("granted"))
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
