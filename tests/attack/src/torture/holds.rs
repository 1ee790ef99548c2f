//! Rounds of permits, of several locks in one guard, and of holds with a least time.

use super::clock::now_us;
use super::task::Task;
use super::workload::Workload;
use fairlock::{Error, Mode};
use futures::FutureExt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The permits of each semaphore.
pub const PERMITS: u32 = 5;

/// Locks that are taken together.
pub const SEVERAL: u64 = 4;

impl Task {
    /// Some permits, at times all of them by a writer.
    pub async fn permits(&mut self) -> Result<(), Error> {
        let name = Workload::Permits.lock(0);
        let semaphore = self.client.semaphore(name.as_str(), PERMITS);
        let stay = Duration::from_micros(self.random.u64(..4000));
        if self.random.u64(..100) < 3 {
            let guard = self.enter(semaphore.rw_lock().write()).await?;
            self.hold(&name, &guard).stay(&guard, stay).await;
            return guard.release().await;
        }
        let permits = self.random.u32(1..=PERMITS);
        let asked = semaphore.permits(permits);
        let limit = Duration::from_micros(self.random.u64(..15_000));
        let guard = match self.random.u64(..5) {
            0 => self.entered(asked.try_acquire()).await?,
            1 => self.entered(asked.try_acquire_for(limit)).await?,
            2 => timeout(limit, self.enter(asked)).await.ok().transpose()?,
            _ => Some(self.enter(asked).await?),
        };
        if let Some(guard) = guard {
            let mut hold = self.hold(&name, &guard);
            hold.of_permits(permits);
            hold.stay(&guard, stay).await;
            drop(hold);
            match self.random.u64(..10) {
                0 => drop(guard),
                _ => guard.release().await?,
            }
        }
        self.pause(4).await;
        Ok(())
    }

    /// Two or three locks in one guard, in whatever order they come to mind.
    pub async fn several(&mut self) -> Result<(), Error> {
        let mut asked = self.client.all();
        let mut modes: [Option<Mode>; SEVERAL as usize] = Default::default();
        for _ in 0..self.random.u64(2..=3) {
            let number = self.random.u64(..SEVERAL);
            let lock = self.client.rw_lock(Workload::Several.lock(number));
            let mode = &mut modes[number as usize];
            if self.random.u64(..100) < 60 {
                asked = asked.write(&lock);
                *mode = Some(Mode::Write);
            } else {
                asked = asked.read(&lock);
                mode.get_or_insert(Mode::Read);
            }
        }
        let limit = Duration::from_micros(self.random.u64(..30_000));
        let fair = |asked: fairlock::AcquireAll| asked.acquire_fair().map(|all| all.map(Some));
        let guard = match self.random.u64(..6) {
            0 => self.entered(asked.try_acquire()).await?,
            1 => self.entered(asked.try_acquire_for(limit)).await?,
            2 => {
                let asked = timeout(limit, self.entered(fair(asked))).await;
                asked.ok().transpose()?.flatten()
            }
            _ => self.entered(fair(asked)).await?,
        };
        if let Some(guard) = guard {
            let locks = (0..SEVERAL)
                .zip(modes)
                .filter_map(|(number, mode)| Some((number, mode?)));
            let mut holds = Vec::new();
            for (number, mode) in locks {
                let name = Workload::Several.lock(number);
                match guard.fencing_token(&self.client.rw_lock(name.as_str())) {
                    Some(token) => holds.push(self.hold_part(&name, mode, guard.owner(), token)),
                    None => self
                        .reporter
                        .wrong(format!("{name} is not in the guard of several locks")),
                }
            }
            let end = now_us() + self.random.u64(..4000);
            loop {
                // Each looks at the whole guard: it is held only if all are.
                let mut held = true;
                for hold in &mut holds {
                    held &= hold.look_by(|| guard.is_held());
                }
                if now_us() >= end || !held {
                    break;
                }
                sleep(Duration::from_millis(1)).await;
            }
            drop(holds);
            match self.random.u64(..10) {
                0 => drop(guard),
                _ => guard.release().await?,
            }
        }
        self.pause(4).await;
        Ok(())
    }

    /// A hold that others see for its least time, whenever its user leaves it.
    pub async fn least(&mut self) -> Result<(), Error> {
        let name = Workload::Least.lock(0);
        let least = Duration::from_millis(self.random.u64(10..600));
        let asked = self.client.rw_lock(name.as_str()).write().hold_at_least(least);
        // The time counts from the poll that brings the guard.
        let mut polled = 0;
        let guard = {
            let mut asking = pin!(self.enter(asked));
            poll_fn(|context| {
                polled = now_us();
                asking.as_mut().poll(context)
            })
            .await?
        };
        let mut hold = self.hold(&name, &guard);
        let stay = least.mul_f64(self.random.f64() * 1.5);
        hold.stay(&guard, stay).await;
        match self.random.u64(..3) {
            0 => drop(guard),
            _ => guard.release().await?,
        }
        let end = polled + least.as_micros() as u64;
        sleep(Duration::from_micros(end.saturating_sub(now_us()))).await;
        hold.lasts_until(end);
        Ok(())
    }
}
