//! runs: what it would gain if one grant let a whole run of writers of one client in, who hand the lock on among
//! themselves. An experiment, because fairlock does not do this: docs/scripts.md says why.
//!
//! It is the most that runs can gain: here the tasks of one process hold the lock once, and a queue of their own hands it
//! on. The scripts do nothing for the others of a run, and nobody learns who they are.

use crate::contend::{Contended, Load, contend, handles};
use crate::env::{Env, connect};
use crate::report::{Goal, Report, median};
use fairlock::{RwLock, WriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// How many enter by one grant, at most.
const LONGEST: usize = 64;

/// Key, title, tasks, and how long each holds.
const SETTINGS: [(&str, &str, usize, Duration); 4] = [
    (
        "runs",
        "grants per second if one process hands on among its 8 tasks / one by one",
        8,
        Duration::ZERO,
    ),
    ("runs_64", "the same, 64 tasks", 64, Duration::ZERO),
    (
        "runs_hold",
        "the same, 8 tasks that hold for 1 ms",
        8,
        Duration::from_millis(1),
    ),
    (
        "runs_hold_10",
        "the same, 8 tasks that hold for 10 ms",
        8,
        Duration::from_millis(10),
    ),
];

/// A lock that the tasks of one process hold in turns.
#[derive(Clone)]
struct Shared {
    lock: RwLock,
    /// Tokio's mutex is fair.
    turn: Arc<Mutex<Run>>,
    waiting: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Run {
    guard: Option<WriteGuard>,
    entered: usize,
}

impl Shared {
    fn new(lock: RwLock) -> Self {
        Self {
            lock,
            turn: Arc::default(),
            waiting: Arc::default(),
        }
    }
}

struct Turn {
    run: OwnedMutexGuard<Run>,
    waiting: Arc<AtomicUsize>,
}

impl Contended for Shared {
    type Guard = Turn;

    async fn enter(&self, _write: bool) -> Turn {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut run = Arc::clone(&self.turn).lock_owned().await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if run.guard.is_none() {
            run.guard = Some(self.lock.write().acquire_fair().await.expect("granted"));
            run.entered = 0;
        }
        run.entered += 1;
        let waiting = Arc::clone(&self.waiting);
        Turn { run, waiting }
    }

    async fn leave(mut turn: Turn) {
        if turn.waiting.load(Ordering::Relaxed) > 0 && turn.run.entered < LONGEST {
            return;
        }
        let guard = turn.run.guard.take().expect("a turn has the lock");
        guard.release().await.expect("released");
    }
}

pub async fn run(env: &Env, report: &mut Report) {
    let client = connect(&env.server.url()).await;
    let mut ratios = [const { Vec::new() }; SETTINGS.len()];
    for _ in env.rounds("runs in one process") {
        for ((key, _, tasks, hold), ratios) in SETTINGS.iter().zip(&mut ratios) {
            let load = Load {
                time: Duration::from_millis(30).max(*hold * 10),
                hold: *hold,
                reads: 0.0,
            };
            let (mut runs, mut fair) = (Vec::new(), Vec::new());
            for _ in 0..env.times(5) {
                fair.push(contend(handles(&client, key, *tasks), load).await.per_second());
                let shared = Shared::new(client.rw_lock(*key));
                runs.push(contend(vec![shared; *tasks], load).await.per_second());
            }
            ratios.push(median(&runs) / median(&fair));
        }
    }
    for ((key, title, ..), ratios) in SETTINGS.iter().zip(&ratios) {
        report.row(key, title, Goal::None, ratios);
    }
}
