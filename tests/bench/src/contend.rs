//! Tasks that want the same lock again and again, and what each went through.

use crate::clock;
use fairlock::{Client, ReadGuard, RwLock, WriteGuard};
use fairlock_support::random::Rng;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Barrier;

/// A lock as one task uses it, fairlock's or another.
pub trait Contended: Send + Sync + 'static {
    type Guard: Send;

    fn enter(&self, write: bool) -> impl Future<Output = Self::Guard> + Send;

    fn leave(guard: Self::Guard) -> impl Future<Output = ()> + Send;
}

pub enum Guard {
    Read(ReadGuard),
    Write(WriteGuard),
}

impl Contended for RwLock {
    type Guard = Guard;

    async fn enter(&self, write: bool) -> Guard {
        if write {
            Guard::Write(self.write().acquire_fair().await.expect("granted"))
        } else {
            Guard::Read(self.read().acquire_fair().await.expect("granted"))
        }
    }

    async fn leave(guard: Guard) {
        match guard {
            Guard::Read(guard) => guard.release().await,
            Guard::Write(guard) => guard.release().await,
        }
        .expect("released");
    }
}

/// One task's handles of the lock.
pub fn handles(client: &Client, lock: &str, n: usize) -> Vec<RwLock> {
    (0..n).map(|_| client.rw_lock(lock)).collect()
}

/// One time through the lock. Microseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    pub task: usize,
    pub write: bool,
    pub asked: f64,
    pub entered: f64,
}

impl Pass {
    pub fn wait(&self) -> f64 {
        self.entered - self.asked
    }
}

/// Everything that happened between `from` and `until`, and what was asked for before `until` and came after it.
pub struct Passes {
    pub all: Vec<Pass>,
    pub tasks: usize,
    pub from: f64,
    pub until: f64,
}

/// What the tasks do.
#[derive(Clone, Copy)]
pub struct Load {
    pub time: Duration,
    /// By tokio's timer, which counts whole milliseconds and rounds up.
    pub hold: Duration,
    /// The share of reads.
    pub reads: f64,
}

/// A task for each handle. They begin together; whoever waits when the time is over is waited for.
pub async fn contend<L: Contended>(locks: Vec<L>, load: Load) -> Passes {
    let tasks = locks.len();
    let ready = Arc::new(Barrier::new(tasks));
    let contender = |(task, lock): (usize, L)| {
        let ready = Arc::clone(&ready);
        tokio::spawn(async move {
            let mut random = Rng::with_seed(task as u64);
            let mut passes = Vec::new();
            ready.wait().await;
            let from = clock::now();
            let until = from + load.time.as_secs_f64() * 1e6;
            let mut asked = from;
            while asked < until {
                let write = random.f64() >= load.reads;
                let guard = lock.enter(write).await;
                let entered = clock::now();
                if !load.hold.is_zero() {
                    tokio::time::sleep(load.hold).await;
                }
                L::leave(guard).await;
                passes.push(Pass {
                    task,
                    write,
                    asked,
                    entered,
                });
                asked = clock::now();
            }
            (from, passes)
        })
    };
    let running: Vec<_> = locks.into_iter().enumerate().map(contender).collect();
    let (mut all, mut from) = (Vec::new(), f64::MAX);
    for task in running {
        let (begun, passes) = task.await.expect("a contender");
        from = from.min(begun);
        all.extend(passes);
    }
    Passes {
        all,
        tasks,
        from,
        until: from + load.time.as_secs_f64() * 1e6,
    }
}

impl Passes {
    pub fn waits(&self) -> Vec<f64> {
        self.all.iter().map(Pass::wait).collect()
    }

    pub fn waits_of(&self, write: bool) -> Vec<f64> {
        let some = self.all.iter().filter(|pass| pass.write == write);
        some.map(Pass::wait).collect()
    }

    /// Who entered in time.
    fn in_time(&self) -> impl Iterator<Item = &Pass> {
        self.all.iter().filter(|pass| pass.entered < self.until)
    }

    pub fn per_second(&self) -> f64 {
        self.in_time().count() as f64 / (self.until - self.from) * 1e6
    }

    /// Of each task.
    pub fn grants(&self) -> Vec<f64> {
        let mut grants = vec![0.0; self.tasks];
        for pass in self.in_time() {
            grants[pass.task] += 1.0;
        }
        grants
    }

    /// How many who asked earlier one that entered has passed, on average. By the tasks' clock, so what overtook on the
    /// way to the server counts too.
    pub fn passed_by(&self) -> f64 {
        let mut passes = self.all.clone();
        passes.sort_by(|a, b| a.entered.total_cmp(&b.entered));
        let mut passed = 0.0;
        for (at, pass) in passes.iter().enumerate() {
            // A task waits for one thing at a time: those whom it passed enter within as many passes as there are tasks
            // only if the lock is fair, so all later ones are looked at.
            passed += passes[at + 1..].iter().filter(|later| later.asked < pass.asked).count() as f64;
        }
        passed / passes.len() as f64
    }
}

/// Jain's index of fairness: 1 if all have the same, 1/n if one has all.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_of_shares() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), 1.0);
        assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), 0.25);
        assert!((jain(&[1.0, 3.0]) - 0.8).abs() < 1e-12);
    }

    #[test]
    fn passes_are_counted_within_the_time() {
        let pass = |task, asked, entered| Pass {
            task,
            write: task == 0,
            asked,
            entered,
        };
        let passes = Passes {
            all: vec![
                pass(0, 0.0, 1e6),
                pass(1, 0.5e6, 3e6),
                pass(0, 1e6, 1.5e6),
                pass(0, 1.6e6, 1.9e6),
            ],
            tasks: 2,
            from: 0.0,
            until: 2e6,
        };
        assert_eq!(passes.per_second(), 1.5);
        assert_eq!(passes.grants(), [3.0, 0.0]);
        assert_eq!(passes.waits_of(false), [2.5e6]);
        assert_eq!(passes.waits().len(), 4);
        // The second task was passed twice.
        assert_eq!(passes.passed_by(), 0.5);
    }
}
