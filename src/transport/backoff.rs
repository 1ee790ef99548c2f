//! Backoff: pauses between attempts, which grow and differ between clients.

use crate::types::clock;
use crate::types::random;
use redis::RedisError;
use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Repeats an attempt until it succeeds, at intervals that grow to a second and differ between clients.
pub(crate) async fn retrying<T, F>(mut attempt: impl FnMut() -> F, mut failed: impl FnMut(RedisError)) -> T
where
    F: Future<Output = Result<T, RedisError>>,
{
    let mut backoff = Backoff::new();
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => failed(error),
        }
        backoff.pause().await;
    }
}

/// Pauses from 5 ms up to a second or the given maximum, each between half and the whole of its length.
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self::up_to(Duration::from_secs(1))
    }

    pub(crate) fn up_to(longest: Duration) -> Self {
        let next = Duration::from_millis(10);
        Self { next, longest }
    }

    /// Pauses before a restart, if the last one did not live long.
    pub(crate) async fn after(&mut self, since: Instant) {
        if clock::since(since) < self.longest {
            self.pause().await;
        } else {
            *self = Self::up_to(self.longest);
        }
    }

    /// Bounds the next pause.
    pub(crate) async fn pause_at_most(&mut self, longest: Duration) {
        self.next = self.next.min(longest);
        self.pause().await;
    }

    pub(crate) async fn pause(&mut self) {
        let share = (random::number() & 0xff) as u32;
        sleep(self.next / 2 + self.next / 2 * share / 256).await;
        self.next = (self.next * 2).min(self.longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_does_not_last_is_begun_anew_less_and_less_often() {
        let ms = Duration::from_millis;
        let (mut backoff, begun) = (Backoff::up_to(ms(40)), Instant::now());
        for _ in 0..10 {
            backoff.after(Instant::now()).await;
        }
        assert!(begun.elapsed() > ms(150), "{:?}", begun.elapsed());
        backoff.after(begun).await;
        assert_eq!(backoff.next, Backoff::new().next, "that lasted");
    }
}
