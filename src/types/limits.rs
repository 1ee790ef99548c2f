//! The bounds of durations and numbers, and the errors for durations outside of them.

use super::error::Error;
use super::mode::{Admission, Policy};
use std::time::Duration;

pub(crate) const LEAST_LEASE: Duration = Duration::from_millis(100);
pub(crate) const MOST_LEASE: Duration = Duration::from_secs(365 * 24 * 3600);
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(10);

/// How long a named owner waits before the client looks for a deadlock.
pub(crate) const DEADLOCK_TIMEOUT: Duration = Duration::from_secs(1);
pub(crate) const LEAST_DEADLOCK_TIMEOUT: Duration = Duration::from_millis(10);

/// No ticket, token or time in microseconds is larger. Every integer up to here is a double. Time reaches it in the
/// year 2255.
pub(crate) const MOST_NUMBER: u64 = 1 << 53;

/// No lock has more permits. Sums of weights stay far below what four bytes hold.
pub(crate) const MOST_PERMITS: u32 = 1_000_000_000;

/// How long a call may take. Several calls fit into a third of the lease, the time between two renewals.
pub(crate) fn call_limit(lease: Duration) -> Duration {
    (lease / 6).clamp(Duration::from_millis(50), Duration::from_secs(1))
}

pub(crate) fn check_lease(lock: &str, lease: Duration) -> Result<(), Error> {
    check_duration(lock, "lease", lease, LEAST_LEASE, MOST_LEASE)
}

pub(crate) fn check_max_hold(lock: &str, max_hold: Duration) -> Result<(), Error> {
    check_duration(lock, "max_hold", max_hold, Duration::from_millis(1), Duration::MAX)
}

pub(crate) fn check_lock_delay(lock: &str, delay: Duration) -> Result<(), Error> {
    check_duration(lock, "lock_delay", delay, Duration::ZERO, MOST_LEASE)
}

/// The permits that a request asks for, and those that there are.
pub(crate) fn check_permits(lock: &str, admission: Admission, weight: u32) -> Result<(), Error> {
    if admission.policy != Policy::Bounded {
        return Ok(());
    }
    let check = |what, given, most| match given {
        1.. if given <= most => Ok(()),
        _ => Err(Error::InvalidPermits {
            lock: lock.to_owned(),
            what,
            given,
            most,
        }),
    };
    check("limit", admission.limit, MOST_PERMITS)?;
    check("number of permits", weight, admission.limit)
}

pub(crate) fn check_duration(
    lock: &str,
    what: &'static str,
    given: Duration,
    least: Duration,
    most: Duration,
) -> Result<(), Error> {
    if (least..=most).contains(&given) {
        return Ok(());
    }
    Err(Error::InvalidDuration {
        lock: lock.to_owned(),
        what,
        given,
        least,
        most,
    })
}
