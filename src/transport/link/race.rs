//! How the connection is kept up: when it is lost, and when it is silent.
//!
//! What is sent into a silent network is sent again by TCP, at intervals that double: long after the network is well
//! again. So a link does not rely on one connection, nor on one attempt to make one. While calls wait for an answer over
//! a silent connection, the link tries to make another one beside it, by attempts that begin at short intervals. The first
//! connection that is made replaces the silent one; a sign of life of that one ends the race.
//!
//! The intervals are half of the shortest time limit of the calls at first. They grow with the silence, up to a
//! second: a server that is down, or does not answer, is asked for a bounded number of connections.

use super::super::backoff::Backoff;
use super::{Connection, Link, State};
use crate::observe::Outage;
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

/// Attempts that are under way at once. The oldest has all the time that a connection may take; the others are young.
const ATTEMPTS: usize = 4;

const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Link {
    /// So quickly a silence has to be noticed.
    pub(super) fn note_limit(&self, limit: Duration) {
        let limit = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        if limit < self.shortest_limit_us.load(Ordering::Relaxed) {
            self.shortest_limit_us.fetch_min(limit, Ordering::Relaxed);
        }
    }

    /// Between the beginnings of two attempts.
    fn pause(&self, since: Instant) -> Duration {
        let limit = Duration::from_micros(self.shortest_limit_us.load(Ordering::Relaxed));
        (since.elapsed() / 8).max(limit / 2).min(LONGEST_PAUSE)
    }

    /// Says when the connection was lost (`false`) and has been made (`true`), by another one's replacing it too. Never ends.
    pub(super) async fn keep_up(&self, is_up: impl Fn(bool)) {
        let mut was_up = matches!(self.side().state, State::Up(_));
        let mut backoff = Backoff::new();
        for generation in 1.. {
            let since = Instant::now();
            let silent = self.until_doubted().await;
            let begun = Instant::now();
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
                // Whoever waits for an answer over it need not wait on: it is asked for again.
                silent.pulse.replace();
            }
            if let Some(outage) = outage {
                outage.end();
            }
            was_up = true;
            is_up(true);
        }
    }

    /// Waits until there is no connection, though somebody needs one, or until the one that there is, which it hands back,
    /// is silent.
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

    /// Waits until a connection is given up, and gives it up when it ends.
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

    /// Makes a connection beside one that is silent. `None`: that one has spoken.
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

    /// Makes a connection, by attempts of which some may be under way at once: what the network swallowed of one may
    /// come late, or never, when the next one is through already.
    async fn race(&self, generation: u64, begun: Instant) -> Connection {
        let mut backoff = Backoff::new();
        let mut attempts = VecDeque::new();
        loop {
            attempts.push_back(Box::pin(self.new_connection(generation)));
            if attempts.len() > ATTEMPTS {
                // The oldest may be about to succeed, where connecting takes long.
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

    /// The reason that callers are told.
    fn is_still_down(&self, error: RedisError) {
        let mut side = self.side();
        if matches!(side.state, State::Down(_)) {
            side.state = State::Down(error);
        }
    }
}

/// The first outcome, in the order of the attempts, which is taken out of them.
fn poll_any<F: Future + Unpin>(attempts: &mut VecDeque<F>, context: &mut Context<'_>) -> Poll<F::Output> {
    for nth in 0..attempts.len() {
        if let Poll::Ready(outcome) = pin!(&mut attempts[nth]).poll(context) {
            attempts.remove(nth);
            return Poll::Ready(outcome);
        }
    }
    Poll::Pending
}
