//! CLOCK_MONOTONIC: one clock for all processes of a machine, so what one reads another may subtract.

use rustix::time::{ClockId, clock_gettime};
use std::thread::sleep;
use std::time::Duration;
use tokio::task::spawn_blocking;

/// Microseconds.
pub fn now() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

/// By a thread, because tokio's timer counts whole milliseconds and rounds up.
pub async fn sleep_exactly(time: Duration) {
    if !time.is_zero() {
        let slept = spawn_blocking(move || sleep(time)).await;
        slept.expect("a thread that sleeps");
    }
}
