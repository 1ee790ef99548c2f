//! The clock by which leases, proofs and quarantines end: tokio's, and on top the time for which the machine was suspended.
//!
//! tokio reads `CLOCK_MONOTONIC`, which stands still while a machine is suspended. The leases at the server run on, so a
//! guard would believe in its hold after that. On Linux and Android `CLOCK_BOOTTIME` goes on, and the difference between
//! the two tells for how long the machine slept. Elsewhere nothing tells that, and nothing on any system tells that a
//! hypervisor stopped a virtual machine together with its clocks: then only a fencing token helps.
//!
//! [`now`] counts what the last [`look`] found. So it may be too early. That does no harm to the beginning of a proof, because
//! a proof that counts from too early a time ends too early. Three things must not be noted too early, so their callers look:
//! the end of a quarantine, because grants count after it; the beginning of a wait, because the caller's patience ends
//! too early; and the end of a hold by a drop or a shutdown, because a lost hold keeps its lock delay. Whoever believes in a
//! hold looks too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How late a task that keeps watch notices that the machine was suspended: its timer stood still, too.
const NOTICED_WITHIN: Duration = Duration::from_secs(1);

/// What looks have found, in ns. It never decreases.
static SUSPENDED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn now() -> Instant {
    let found = Duration::from_nanos(SUSPENDED.load(Ordering::Relaxed));
    #[cfg(feature = "__testing")]
    let found = found + seam::found();
    Instant::now() + found
}

/// The same, after a look whether the machine was suspended.
pub(crate) fn look() -> Instant {
    SUSPENDED.fetch_max(machine::suspended(), Ordering::Relaxed);
    #[cfg(feature = "__testing")]
    seam::look();
    now()
}

pub(crate) fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

pub(crate) async fn sleep_until(at: Instant) {
    sleep_in_parts(at, Duration::MAX).await;
}

/// The same for a task that notices soon that the machine was suspended, and tells others.
pub(crate) async fn watch_until(at: Instant) {
    sleep_in_parts(at, NOTICED_WITHIN).await;
}

async fn sleep_in_parts(at: Instant, longest: Duration) {
    loop {
        let left = at.saturating_duration_since(look());
        if left.is_zero() {
            return;
        }
        sleep(left.min(longest)).await;
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod machine {
    use rustix::time::{ClockId, clock_gettime};
    use std::sync::OnceLock;

    /// Two readings of a clock are some ns apart, once more and once less. No machine is suspended for so short a time.
    pub(super) const UNIT: u64 = 10_000;

    /// For how many ns the machine was suspended since the first call.
    pub(super) fn suspended() -> u64 {
        static AT_FIRST: OnceLock<u64> = OnceLock::new();
        since(*AT_FIRST.get_or_init(|| first(read)), read)
    }

    pub(super) fn first(read: impl Fn(ClockId) -> u64) -> u64 {
        (0..8).map(|_| difference(&read)).max().unwrap_or_default()
    }

    pub(super) fn since(first: u64, read: impl Fn(ClockId) -> u64) -> u64 {
        difference(read).saturating_sub(first) / UNIT * UNIT
    }

    /// The boot clock is read first: a pause between the two makes the difference less, and a later look finds the rest.
    fn difference(read: impl Fn(ClockId) -> u64) -> u64 {
        let (boot, awake) = (read(ClockId::Boottime), read(ClockId::Monotonic));
        boot.saturating_sub(awake)
    }

    fn read(clock: ClockId) -> u64 {
        let time = clock_gettime(clock);
        let [seconds, nanos] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or_default());
        seconds * 1_000_000_000 + nanos
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod machine {
    pub(super) fn suspended() -> u64 {
        0
    }
}

/// The seam for tests: a machine that was suspended, as far as this thread sees.
#[cfg(feature = "__testing")]
pub(crate) mod seam {
    use std::cell::Cell;
    use std::time::Duration;

    thread_local! {
        static SUSPENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
        static FOUND: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// Suspends the machine, as clients on this thread find at their next look: the time passes for leases, and not for
    /// timers.
    pub fn suspend(time: Duration) {
        SUSPENDED.set(SUSPENDED.get() + time);
    }

    pub(super) fn look() {
        FOUND.set(SUSPENDED.get());
    }

    pub(super) fn found() -> Duration {
        FOUND.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_on_while_nobody_suspends_the_machine() {
        let (before, then) = (look(), Instant::now());
        let after = look();
        assert!(before <= after && after <= before + then.elapsed() + Duration::from_secs(3600));
        assert!(since(before) >= after - before);
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn what_the_boot_clock_has_more_than_at_first_is_the_time_of_suspends() {
        use super::machine::{UNIT, first, since};
        use rustix::time::ClockId;
        let clocks = |boot, awake| {
            move |clock| match clock {
                ClockId::Boottime => boot,
                ClockId::Monotonic => awake,
                other => unreachable!("{other:?}"),
            }
        };
        let first = first(clocks(7_000_000, 2_000_000));
        let minute = 60_000_000_000;
        assert_eq!(since(first, clocks(7_000_000 + minute, 2_000_000 + minute)), 0);
        assert_eq!(since(first, clocks(7_000_000 + minute, 2_000_000)), minute);
        assert_eq!(
            since(first, clocks(7_000_000 + UNIT - 1, 2_000_000)),
            0,
            "between two readings"
        );
        assert_eq!(since(first, clocks(7_000_000, 2_000_000 + minute)), 0);
    }
}
