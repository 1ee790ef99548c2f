//! What runs in this process: fairlock, other locks of Rust, and the floor of their client.

use super::contestant::{Contention, Contestant, FLOOR, Grants, Side};
use crate::clock;
use crate::env::connection;
use crate::p1::Plain;
use crate::peers::{Kind, Locks, Mutex};
use std::sync::{Arc, Mutex as Shared, PoisonError};
use std::time::Instant;
use tokio::sync::Barrier;

pub const LANGUAGE: &str = "Rust";

pub enum Local {
    Floor(Plain),
    Lock { locks: Locks, name: String, mutex: Mutex },
}

pub async fn contestants(url: &str) -> Vec<Contestant> {
    let floor = Local::Floor(Plain::new(connection(url).await, "peers-rust-floor"));
    let note = "redis-rs: SET NX PX and EVALSHA on one connection";
    let mut all = vec![Contestant::new(
        LANGUAGE,
        FLOOR,
        &version("redis"),
        note,
        Side::Here(floor),
    )];
    for kind in Kind::ALL {
        let locks = Locks::connect(kind, url).await;
        let name = format!("peers-{}", kind.name());
        let note = match kind {
            Kind::Fairlock => "a queue, in order; its write lock",
            _ => "polls every 1 ms",
        };
        let local = Local::new(locks, &name);
        all.push(Contestant::new(
            LANGUAGE,
            kind.name(),
            &version(kind.name()),
            note,
            Side::Here(local),
        ));
    }
    all
}

/// Which version of a crate this program was built with.
fn version(name: &str) -> String {
    const LOCK_FILE: &str = include_str!("../../../../Cargo.lock");
    let package = LOCK_FILE.split_once(&format!("name = \"{name}\"\nversion = \""));
    let version = package.and_then(|(_, rest)| rest.split('"').next());
    version.unwrap_or("unknown").to_owned()
}

impl Local {
    pub fn new(locks: Locks, name: &str) -> Self {
        Self::Lock {
            mutex: locks.mutex(name),
            locks,
            name: name.to_owned(),
        }
    }

    pub async fn cycles(&mut self, n: usize) -> f64 {
        let begun = Instant::now();
        for _ in 0..n {
            match self {
                Self::Floor(plain) => plain.cycle().await,
                Self::Lock { mutex, .. } => mutex.acquire().await.release().await,
            }
        }
        begun.elapsed().as_secs_f64() * 1e6 / n as f64
    }

    pub async fn contend(&mut self, contention: Contention) -> Grants {
        let Contention { contenders, time, hold } = contention;
        let Self::Lock { locks, name, .. } = self else {
            panic!("a floor has no contenders");
        };
        let begin = Arc::new(Barrier::new(contenders));
        let tally = Arc::new(Shared::new(Tally::default()));
        let contender = |me| {
            let (mutex, begin, tally) = (locks.mutex(name), Arc::clone(&begin), Arc::clone(&tally));
            tokio::spawn(async move {
                begin.wait().await;
                let until = clock::now() + time.as_secs_f64() * 1e6;
                loop {
                    let asked = clock::now();
                    let held = mutex.acquire().await;
                    let entered = clock::now();
                    clock::sleep_exactly(hold).await;
                    let (left, in_time) = (clock::now(), entered < until);
                    tally.lock().unwrap_or_else(PoisonError::into_inner).count(
                        me,
                        in_time,
                        entered - asked,
                        left - entered,
                    );
                    held.release().await;
                    if !in_time {
                        return;
                    }
                }
            })
        };
        let running: Vec<_> = (0..contenders).map(contender).collect();
        for task in running {
            task.await.expect("a contender");
        }
        tally.lock().unwrap_or_else(PoisonError::into_inner).grants()
    }
}

#[derive(Default)]
struct Tally {
    grants: Grants,
    last: Option<usize>,
    /// Of waits, in microseconds.
    sum: f64,
    longest: f64,
    /// Of holds, in microseconds.
    held: f64,
}

impl Tally {
    fn grants(&self) -> Grants {
        Grants {
            unevenness: Some(self.longest * self.grants.all as f64 / self.sum),
            held: Some(self.held / self.grants.all as f64),
            ..self.grants
        }
    }

    fn count(&mut self, contender: usize, in_time: bool, waited: f64, held: f64) {
        self.sum += waited;
        self.held += held;
        self.longest = self.longest.max(waited);
        self.grants.all += 1;
        self.grants.within += usize::from(in_time);
        self.grants.changed += usize::from(self.last.replace(contender) != Some(contender));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_that_change_hands_are_counted() {
        let mut tally = Tally::default();
        for (contender, in_time) in [(1, true), (1, true), (0, true), (1, false), (1, false)] {
            let (waited, held) = if in_time { (10.0, 2.0) } else { (25.0, 7.0) };
            tally.count(contender, in_time, waited, held);
        }
        let expected = Grants {
            within: 3,
            all: 5,
            changed: 3,
            unevenness: Some(25.0 / 16.0),
            held: Some(4.0),
        };
        assert_eq!(tally.grants(), expected);
    }

    #[test]
    fn versions_are_those_of_the_lock_file() {
        assert_eq!(version("fairlock-bench"), env!("CARGO_PKG_VERSION"));
        assert_eq!(version("no-such-crate"), "unknown");
    }
}
