//! CLOCK_MONOTONIC: one clock for all processes of a machine, so what one reads another may subtract.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds.
pub fn now() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}
