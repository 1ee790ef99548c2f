//! The clock by which leases, proofs and quarantines end.
//!
//! tokio reads `CLOCK_MONOTONIC`, which stands still while a machine is suspended. The leases at the server run on, so a
//! guard would believe in its hold after that. On Linux and Android this clock is `CLOCK_BOOTTIME`, which goes on. Elsewhere
//! it is tokio's, and nothing tells of a suspend. Nothing on any system tells that a hypervisor stopped a virtual machine
//! together with its clocks: then only a fencing token helps.
//!
//! Its times have tokio's type, and are ahead of tokio's own by what the machine was suspended. So nobody compares the two,
//! and who sleeps until such a time does it here.

use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How late a task that keeps watch notices that the machine was suspended: its timer stood still, too.
const NOTICED_WITHIN: Duration = Duration::from_secs(1);

pub(crate) fn now() -> Instant {
    machine::now()
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
        let left = at.saturating_duration_since(now());
        if left.is_zero() {
            return;
        }
        sleep(left.min(longest)).await;
    }
}

#[cfg(all(any(target_os = "linux", target_os = "android"), not(feature = "__testing")))]
mod machine {
    use rustix::time::{ClockId, clock_gettime};
    use std::sync::OnceLock;
    use std::time::Duration;
    use tokio::time::Instant;

    /// Two readings at the first call.
    pub(super) type First = OnceLock<(Instant, Duration)>;

    pub(super) fn now() -> Instant {
        static FIRST: First = First::new();
        after(&FIRST, read)
    }

    pub(super) fn after(first: &First, read: impl Fn(ClockId) -> Duration) -> Instant {
        let boot = read(ClockId::Boottime);
        let (at, first) = first.get_or_init(|| (Instant::now(), boot));
        *at + boot.saturating_sub(*first)
    }

    fn read(clock: ClockId) -> Duration {
        let time = clock_gettime(clock);
        let part = |part| u64::try_from(part).unwrap_or_default();
        Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", feature = "__testing")))]
mod machine {
    use tokio::time::Instant;

    pub(super) fn now() -> Instant {
        Instant::now()
    }
}

/// For tests: tokio's clock, which they pause, and a machine that was suspended, as far as this thread sees.
#[cfg(feature = "__testing")]
pub(crate) mod machine {
    use std::cell::Cell;
    use std::time::Duration;
    use tokio::time::Instant;

    thread_local! {
        static SUSPENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// Suspends the machine, as clients on this thread find: the time passes for leases, and not for timers.
    pub fn suspend(time: Duration) {
        SUSPENDED.set(SUSPENDED.get() + time);
    }

    pub(super) fn now() -> Instant {
        Instant::now() + SUSPENDED.get()
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android"), not(feature = "__testing")))]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_on_while_nobody_suspends_the_machine() {
        let (before, then) = (now(), Instant::now());
        let after = now();
        assert!(before <= after && after <= before + then.elapsed() + Duration::from_secs(3600));
        assert!(since(before) >= after - before);
    }

    #[test]
    fn the_clock_is_the_one_that_goes_on_over_suspends() {
        use super::machine::{First, after};
        use rustix::time::ClockId;
        let boot = |secs| {
            move |clock| match clock {
                ClockId::Boottime => Duration::from_secs(secs),
                other => unreachable!("{other:?}"),
            }
        };
        let first = First::new();
        let begun = after(&first, boot(7));
        assert_eq!(after(&first, boot(67)) - begun, Duration::from_secs(60));
        assert_eq!(after(&first, boot(6)), begun, "it never goes back");
    }
}
