//! The clock that all processes of this machine share, and a server's clock that can be stepped.

pub use fairlock_support::clock::FakeClock;
use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC in us: the same in the workers and in their parent.
pub fn now_us() -> u64 {
    us(ClockId::Monotonic)
}

/// The time of day, as an honest server has it.
pub fn true_us() -> u64 {
    us(ClockId::Realtime)
}

fn us(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_nsec.cast_unsigned() / 1000
}
