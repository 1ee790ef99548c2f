//! Failures that a busy machine explains, and those that nothing explains.

use futures::future::FutureExt;
use std::fmt::Display;
use std::io::Write;
use std::panic::{AssertUnwindSafe, panic_any, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// How often a scenario is tried that failed while this process was late.
const TRIES: u32 = 6;

/// What is late by this much may lose a short lease to a busy machine. Each further attempt has to be late by twice as
/// much: a scenario that fails by itself is red also where something is always a little late.
fn excuse(attempt: u32) -> Duration {
    Duration::from_millis(30) * (1 << (attempt - 1))
}

/// A broken promise, as a panic.
struct Violation;

/// Holds whatever the machine does: [`in_time`] excuses no break of it. Call it in the scenario's own task: a `JoinHandle`
/// hides what a panic carries.
#[track_caller]
pub fn promise(is_kept: bool, what: impl Display) {
    if !is_kept {
        // The panic itself does not say what it carries.
        println!("VIOLATION: {what}");
        panic_any(Violation);
    }
}

/// Runs a scenario in which short leases have to survive, or moments have to be met. A failure other than a broken
/// [`promise`] counts only if this process was served in time meanwhile. After a failure that lateness explains, the
/// scenario is tried again, on servers of its own. A machine that is late every time cannot judge the scenario: the test
/// then says so and passes.
pub async fn in_time(scenario: impl AsyncFn()) {
    for attempt in 1..=TRIES {
        let clock = Lateness::measured();
        let Err(failure) = AssertUnwindSafe(Box::pin(scenario())).catch_unwind().await else {
            return;
        };
        let late = clock.most();
        if failure.is::<Violation>() || late < excuse(attempt) {
            println!("attempt {attempt} failed, late by {late:?}");
            resume_unwind(failure);
        }
        println!("attempt {attempt} failed, but this process was late by {late:?}");
    }
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // Past libtest, which hides what a test that passes prints.
    let _ = writeln!(
        std::io::stderr(),
        "{test}: not judged, this machine was late in each of {TRIES} attempts"
    );
}

/// How late this process and the runtime of the test are, at most, while it exists.
pub struct Lateness {
    most_us: Arc<AtomicU64>,
    on_the_runtime: AbortHandle,
}

impl Lateness {
    const TICK: Duration = Duration::from_millis(5);

    pub fn measured() -> Self {
        let most_us = Arc::new(AtomicU64::new(0));
        let note = |most_us: &AtomicU64, begun: Instant| {
            let late = begun.elapsed().saturating_sub(Self::TICK);
            most_us.fetch_max(u64::try_from(late.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        };
        let weak = Arc::downgrade(&most_us);
        std::thread::spawn(move || {
            loop {
                let begun = Instant::now();
                std::thread::sleep(Self::TICK);
                let Some(most_us) = weak.upgrade() else { return };
                note(&most_us, begun);
            }
        });
        let weak = Arc::downgrade(&most_us);
        let on_the_runtime = tokio::spawn(async move {
            loop {
                let begun = Instant::now();
                tokio::time::sleep(Self::TICK).await;
                let Some(most_us) = weak.upgrade() else { return };
                note(&most_us, begun);
            }
        });
        Self {
            most_us,
            on_the_runtime: on_the_runtime.abort_handle(),
        }
    }

    pub fn most(&self) -> Duration {
        Duration::from_micros(self.most_us.load(Ordering::Relaxed))
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.on_the_runtime.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::eventually;

    #[tokio::test]
    async fn a_scenario_that_fails_only_while_this_process_is_late_is_excused() {
        let tried = AtomicU64::new(0);
        in_time(async || {
            let attempt = 1 + tried.fetch_add(1, Ordering::Relaxed) as u32;
            // So that the clock of lateness runs before the runtime is kept from everything, and after.
            tokio::time::sleep(Lateness::TICK).await;
            std::thread::sleep(excuse(attempt) + Lateness::TICK * 2);
            tokio::time::sleep(Lateness::TICK).await;
            panic!("as a lease that was lost");
        })
        .await;
        assert_eq!(tried.into_inner(), u64::from(TRIES));
    }

    #[tokio::test]
    async fn a_scenario_that_fails_although_this_process_is_served_in_time_is_red() {
        eventually("a failure counts", async || {
            AssertUnwindSafe(in_time(async || panic!("as a bug")))
                .catch_unwind()
                .await
                .is_err()
        })
        .await;
    }

    #[tokio::test]
    async fn a_broken_promise_is_red_although_this_process_is_late() {
        let tried = AtomicU64::new(0);
        let judged = in_time(async || {
            tried.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Lateness::TICK).await;
            std::thread::sleep(excuse(TRIES));
            tokio::time::sleep(Lateness::TICK).await;
            promise(true, "nothing");
            promise(false, "two are inside");
        });
        assert!(AssertUnwindSafe(judged).catch_unwind().await.is_err());
        assert_eq!(tried.into_inner(), 1);
    }
}
