//! The race: how the link keeps its connection up when it is lost, and when it is silent.
//!
//! TCP repeats what was sent into a silent network at intervals that double, so it may repeat long after the network
//! works again. So a link relies neither on one connection nor on one attempt to connect. While calls wait for replies
//! over a silent connection, the link starts attempts at short intervals to make another one beside it. The first new
//! connection replaces the silent one. A sign of life of the silent one ends the race.
//!
//! At first the intervals are half of the shortest time limit of the calls. They grow with the silence, up to a second,
//! so that a server that is down gets a bounded number of connects.

use super::super::backoff::Backoff;
use super::{Connection, Link, State};
use crate::observe::Outage;
use crate::types::clock;
use crate::types::error::{demoted, disconnected};
use redis::RedisError;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The bound of attempts at the same time. The oldest has all the time that a connection may take; the others are
/// young.
const ATTEMPTS: usize = 4;

const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Link {
    /// How quickly the link has to notice a silence.
    pub(super) fn note_limit(&self, limit: Duration) {
        let limit = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        if limit < self.shortest_limit_us.load(Ordering::Relaxed) {
            self.shortest_limit_us.fetch_min(limit, Ordering::Relaxed);
        }
    }

    /// The time between the starts of two attempts.
    fn pause(&self, since: Instant) -> Duration {
        let limit = Duration::from_micros(self.shortest_limit_us.load(Ordering::Relaxed));
        (clock::since(since) / 8).max(limit / 2).min(LONGEST_PAUSE)
    }

    /// Reports when the connection was lost (`false`) and is up (`true`), also when another one replaced it. Never
    /// ends.
    pub(super) async fn keep_up(&self, is_up: impl Fn(bool)) {
        let mut was_up = matches!(self.side().state, State::Up(_));
        let mut backoff = Backoff::new();
        for generation in 1.. {
            let since = clock::now();
            let silent = self.until_doubted().await;
            let begun = clock::now();
            let outage = was_up.then(|| Outage::begin(Outage::COMMAND));
            let connection = match &silent {
                Some(silent) => match self.beside(silent, generation, begun, &is_up).await {
                    Some(connection) => connection,
                    None => continue,
                },
                None => {
                    if was_up {
                        is_up(false);
                        backoff.after(since).await;
                    }
                    self.race(generation, begun).await
                }
            };
            self.shortest_limit_us.store(u64::MAX, Ordering::Relaxed);
            self.become_unless_closed(State::Up(Arc::new(connection)));
            if let Some(silent) = silent {
                // Callers that wait for a reply over it need not wait on: they send again.
                silent.pulse.replace();
            }
            if let Some(outage) = outage {
                outage.end();
            }
            was_up = true;
            is_up(true);
        }
    }

    /// Waits until a caller needs a connection and there is none, or until the present one is silent, and returns that
    /// one.
    async fn until_doubted(&self) -> Option<Arc<Connection>> {
        loop {
            let connection = match &self.side().state {
                State::Down(_) => return None,
                State::Up(connection) => Some(Arc::clone(connection)),
                State::Idle | State::Closed => None,
            };
            let Some(connection) = connection else {
                self.broken.notified().await;
                continue;
            };
            tokio::select! {
                biased;
                () = self.until_lost(&connection) => return None,
                () = connection.pulse.silent(), if self.doubts => return Some(connection),
            }
        }
    }

    /// Waits until the link closes a connection, and closes it when it ends.
    async fn until_lost(&self, connection: &Connection) {
        let is_up = || match &self.side().state {
            State::Up(now) => now.generation == connection.generation,
            _ => false,
        };
        while is_up() {
            let why = tokio::select! {
                biased;
                () = self.broken.notified() => continue,
                () = connection.ended.notified() => disconnected("the server closed the connection"),
                () = self.backend.outdated(connection.term) => {
                    connection.pulse.outdate();
                    demoted()
                }
            };
            self.give_up(connection.generation, &why);
        }
    }

    /// Connects beside a silent connection. `None`: that one showed a sign of life.
    async fn beside(
        &self,
        silent: &Connection,
        generation: u64,
        begun: Instant,
        is_up: &impl Fn(bool),
    ) -> Option<Connection> {
        tracing::debug!(connection = Outage::COMMAND, "silent: trying another one");
        let mut race = pin!(self.race(generation, begun));
        tokio::select! {
            biased;
            () = self.until_lost(silent) => {}
            () = silent.pulse.spoken() => return None,
            connection = &mut race => {
                tracing::warn!(connection = Outage::COMMAND, "connection silent, replaced");
                return Some(connection);
            }
        }
        is_up(false);
        Some(race.await)
    }

    /// Connects by several attempts at the same time, because the network may swallow one attempt while the next one
    /// succeeds.
    async fn race(&self, generation: u64, begun: Instant) -> Connection {
        let mut backoff = Backoff::new();
        let mut attempts = VecDeque::new();
        loop {
            attempts.push_back(Box::pin(self.new_connection(generation)));
            if attempts.len() > ATTEMPTS {
                // Where connecting takes long, the oldest may be about to succeed.
                attempts.remove(1);
            }
            let mut pause = pin!(sleep(self.pause(begun)));
            while !attempts.is_empty() {
                let outcome = tokio::select! {
                    biased;
                    outcome = poll_fn(|context| poll_any(&mut attempts, context)) => outcome,
                    () = &mut pause => break,
                };
                match outcome {
                    Ok(connection) => return connection,
                    Err(error) => self.is_still_down(error),
                }
            }
            if attempts.is_empty() {
                backoff.pause_at_most(self.pause(begun)).await;
            }
        }
    }

    /// The reason that callers get.
    fn is_still_down(&self, error: RedisError) {
        let mut side = self.side();
        if matches!(side.state, State::Down(_)) {
            side.state = State::Down(error);
        }
    }
}

/// Waits for the first outcome, in the order of the attempts, and removes that attempt.
fn poll_any<F: Future + Unpin>(attempts: &mut VecDeque<F>, context: &mut Context<'_>) -> Poll<F::Output> {
    for nth in 0..attempts.len() {
        if let Poll::Ready(outcome) = pin!(&mut attempts[nth]).poll(context) {
            attempts.remove(nth);
            return Poll::Ready(outcome);
        }
    }
    Poll::Pending
}
