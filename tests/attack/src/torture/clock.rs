//! The clock that all processes of this machine share, and a server's clock that can be stepped.

use super::admin::Admin;
use crate::Failure;
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

/// Fails unless the server's clock is so far from the true one. A server without the library has the true time.
pub async fn shows(admin: &mut Admin, offset_ms: i64) -> Result<(), Failure> {
    // The file of the clock has whole milliseconds, and the library rounds.
    const ROUNDED_US: i64 = 1000;
    let offset_us = offset_ms * 1000;
    let least = true_us().cast_signed() + offset_us - ROUNDED_US;
    let (seconds, us): (i64, i64) = admin.call(&["TIME"]).await?;
    let shown = seconds * 1_000_000 + us;
    let most = true_us().cast_signed() + offset_us + ROUNDED_US;
    if (least..=most).contains(&shown) {
        return Ok(());
    }
    Err(format!("the clock was stepped by {offset_ms} ms and shows {shown}, not {least} to {most}").into())
}

fn us(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_nsec.cast_unsigned() / 1000
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlock_support::server::Server;

    #[tokio::test]
    async fn a_server_that_ignores_its_clock_is_found() {
        let plain = Server::start().await;
        let mut admin = Admin::new(plain.url());
        shows(&mut admin, 0).await.expect("the true time");
        for offset_ms in [-50, 50] {
            assert!(shows(&mut admin, offset_ms).await.is_err(), "{offset_ms}");
        }
        let Some(clock) = FakeClock::find(plain.dir().join("clock")) else {
            println!("SKIPPED: no libfaketime here, so no clock is stepped");
            return;
        };
        let program = clock.command(&fairlock_support::server::program());
        let stepped = Server::start_program(&program, &[]).await;
        let mut admin = Admin::new(stepped.url());
        for offset_ms in [0, 50, 8000, -700] {
            clock.step(offset_ms).expect("a step");
            shows(&mut admin, offset_ms).await.expect("the stepped time");
        }
    }
}
