//! What a program can see of the locks that it uses: spans and events by [`tracing`], metrics by the crate `metrics`.
//!
//! A program that installs a subscriber or a recorder sees them. A program without one pays next to nothing.
//! [`RwLock::status`](crate::RwLock::status) and [`RwLock::events`](crate::RwLock::events) show all processes.
//!
//! # Spans
//!
//! Both spans have the level `DEBUG`. All targets begin with `fairlock`.
//!
//! | span | from, to | fields | recorded at its end |
//! |---|---|---|---|
//! | `acquire` | first poll, guard or other outcome | `lock`, `mode`; of a semaphore `permits` | `outcome`, `wait_us`; with a guard `token`, `source` |
//! | `hold` | guard, end of the hold | `lock`, `mode`, `token`; of a semaphore `permits` | `outcome`, `hold_us`; if it was lost `reason` |
//!
//! An upgrade is an acquisition to write. `acquire` is entered while its future is polled. `hold` is never entered,
//! because it is nobody's context. Its parent is the span in which the lock was acquired, which thus stays open as long
//! as the hold. The position in the queue is no field, because it would cost a command: see
//! [`RwLock::status`](crate::RwLock::status).
//!
//! # Events
//!
//! | level | message | fields |
//! |---|---|---|
//! | `WARN` | `hold lost` (`DEBUG` if by a shutdown) | `lock`, `mode`, `token`, `reason` |
//! | `WARN` | `connection lost` | `connection`, `error`; in a cluster `node` |
//! | `INFO` | `reconnected` | `connection`, `outage_ms` |
//! | `WARN` | `renewal failed` | `lock`, `requests`, `error` |
//! | `WARN` | `place in the queue lost ...; asking again`, in the span `acquire` | `lock` |
//! | `WARN` | `left to their leases`: releases that the server did not confirm | `lock`, `requests`, `error` |
//! | `WARN` | `evicted`, by this process | `lock`, `owner`, `requests` |
//! | `WARN` | `a server of the quorum is away`, when the client connects | `server`, `error` |
//! | `INFO` | `a server of the quorum was reached`, later | `server`, `outage_ms` |
//! | `WARN` | `vote lost; asking the server again`: a majority keeps the hold | `lock`, `mode`, `server` |
//! | `WARN` | `the client's runtime has ended`: waits fail, holds end with their leases | |
//! | `WARN` | `deadlock`: a request of this client ends with that error | `lock`, `request`, `owners` |
//! | `WARN` | `the server has restarted`: the quarantine begins | `left` |
//! | `WARN` | `the server refuses the subscription`: grants come by renewals alone, and streams end | `error` |
//! | `WARN` | `the server refuses to bring events` | `error` |
//! | `WARN` | `the server refuses to bring grants`, in a cluster: waits for the lock end with that error | `lock`, `error` |
//! | `WARN` | `the server refuses what a look for deadlocks needs` | `error` |
//! | `WARN` | `no sentinel to listen to`: the client asks all sentinels again and again | `error` |
//! | `WARN` | `connection silent, replaced` | `connection` |
//! | `WARN` | `the server does not vote`, when a client of a quorum connects | `server`, `error` |
//! | `INFO` | `connected` | `server`, `client`; of a quorum `quorum`, `servers` |
//! | `INFO` | `client shut down` | `client` |
//! | `DEBUG` | `acquired`, `not acquired`, in the span `acquire` | as recorded in the span |
//! | `DEBUG` | `hold ended`, in the span `hold` | as recorded in the span |
//! | `TRACE` | `renewed` | `lock`, `requests` |
//!
//! There are other events, for the developers of this crate. While the subscription is lost, the client learns of
//! grants by renewals.
//!
//! # Metrics
//!
//! The feature `metrics` sends metrics to the recorder that the program installs, by the facade `metrics` 0.24. A recorder
//! of another version of it sees nothing. Each metric is of one process: sum them over processes. `mode` is `read`,
//! `write` or `permits`. Names of locks are no labels. Install the recorder before the first client connects: then all
//! counters and gauges begin at zero.
//!
//! | metric | kind | labels | meaning |
//! |---|---|---|---|
//! | `fairlock_waiting` | gauge | `mode` | acquisitions under way: asking, or in the queue |
//! | `fairlock_held` | gauge | `mode` | guards whose hold is not over |
//! | `fairlock_disconnected` | gauge | `connection` | lost connections that the client has not replaced yet |
//! | `fairlock_wait_seconds` | histogram | `mode`, `outcome` | time of an acquisition, whatever its outcome |
//! | `fairlock_hold_seconds` | histogram | `mode`, `outcome` | time of a hold, with its release's confirmation |
//! | `fairlock_handover_seconds` | histogram | `mode` | from the arrival of a grant's message to the guard: what this process adds to a hand-over |
//! | `fairlock_acquisitions_total` | counter | `mode`, `outcome` | acquisitions that ended |
//! | `fairlock_grants_total` | counter | `mode`, `source` | guards handed out, by what told of the grant |
//! | `fairlock_requeued_total` | counter | `mode` | places in the queue that were lost and asked for again: the process was frozen, or the server lost its data |
//! | `fairlock_lost_total` | counter | `mode`, `reason` | holds that were lost |
//! | `fairlock_renewals_total` | counter | `outcome` | calls that renew all that is due of one lock: `ok`, `failed` |
//! | `fairlock_reconnects_total` | counter | `connection` | reconnects after a lost connection |
//! | `fairlock_unreached` | gauge | | servers of a [`Quorum`](crate::Quorum) that the client has never reached |
//! | `fairlock_quorum_servers` | gauge | | servers of the quorums that this process uses, whether they are there or not |
//! | `fairlock_votes_lost_total` | counter | `mode` | servers that lost a hold of a quorum which a majority kept |
//!
//! * `outcome` of an acquisition: `granted`, `busy`, `timeout`, `cancelled` (its future was dropped; an upgrade also if this
//!   process knew before the server's reply that its read hold was lost), `conflict` (of two
//!   upgrades), `deadlock`, `queue_full` (`max_queue`), `refused` (another policy, or an owner that waits already),
//!   `evicted`, `lost` (of an upgrade: the server says that its read hold was lost), `unavailable`, `server_error` (too few replicas
//!   too), `shutdown`.
//! * `outcome` of a hold: `released`, `dropped` (its guard; it is released in the background), `downgraded`, `lost`.
//! * `reason`: `lease_expired`, `unknown_to_server`, `max_hold`, `shutdown`, `evicted`.
//! * `source`: `reply` (the lock was free), `message`, and `renewal`: the message did not come, or came later. Other than
//!   after a lost subscription this should be rare.
//! * `connection`: `command`, `subscription`; in a cluster those to all nodes.
//!
//! A [`Quorum`](crate::Quorum) has one record for each acquisition and each hold, whatever the number of servers: both spans,
//! and all metrics with the label `mode`. `source` is `reply` or `message`, and there is no hand-over time, because the hold
//! begins with the last of several messages. Connections, reconnects and renewals count at each server, so one server that
//! is down shows as a `fairlock_disconnected` of 2 in each process. That is no outage: compare it with
//! `fairlock_quorum_servers`, as the alerts in `ops` do. With a growing `fairlock_votes_lost_total` the next loss of a server
//! may cost holds.
//!
//! A lost hold counts as over when this process knows of the loss, even while its guard still exists. Times range from
//! a tenth of a millisecond (a hand-over) to minutes (a queue): give the recorder buckets to match. The repository has
//! alerts and a dashboard in `ops`, and an exporter in `examples/services`.

mod metrics;

use crate::protocol::key::Lock;
use crate::types::clock;
use crate::types::error::{Error, LostReason};
use crate::types::mode::{Access, Grant, GrantVia, Mode, Permits, Read, When, Write};
use metrics::{Labels, One};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::Span;
use tracing::field::Empty;

const LABELS: Labels = Labels {
    modes: &[Read::LABEL, Write::LABEL, Permits::LABEL],
    outcomes: &[
        Outcome::Granted.label(),
        Outcome::Busy.label(),
        Outcome::Timeout.label(),
        Outcome::Cancelled.label(),
        Outcome::Conflict.label(),
        Outcome::Deadlock.label(),
        Outcome::QueueFull.label(),
        Outcome::Refused.label(),
        Outcome::Evicted.label(),
        Outcome::Lost.label(),
        Outcome::Unavailable.label(),
        Outcome::ServerError.label(),
        Outcome::Shutdown.label(),
    ],
    sources: &[
        GrantVia::Reply.label(),
        GrantVia::Message.label(),
        GrantVia::Renewal.label(),
    ],
    reasons: &[
        LostReason::LeaseExpired.as_str(),
        LostReason::UnknownToServer.as_str(),
        LostReason::MaxHold.as_str(),
        LostReason::Shutdown.as_str(),
        LostReason::Evicted.as_str(),
    ],
    connections: &[Outage::COMMAND, Outage::SUBSCRIPTION],
    renewals: &RENEWALS,
};

const RENEWALS: [&str; 2] = ["failed", "ok"];

/// Describes all metrics to the recorder.
pub(crate) fn begin() {
    metrics::begin(&LABELS);
}

pub(crate) fn renewal(answered: bool) {
    metrics::renewal(RENEWALS[usize::from(answered)]);
}

/// How an acquisition ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Granted,
    Busy,
    Timeout,
    Cancelled,
    Conflict,
    Deadlock,
    QueueFull,
    Refused,
    Evicted,
    Lost,
    Unavailable,
    ServerError,
    Shutdown,
}

impl Outcome {
    fn of(error: &Error) -> Self {
        match error {
            Error::UpgradeConflict { .. } => Self::Conflict,
            Error::Deadlock { .. } => Self::Deadlock,
            Error::QueueFull { .. } => Self::QueueFull,
            Error::OwnerWaiting { .. } | Error::PolicyMismatch { .. } => Self::Refused,
            Error::Lost {
                reason: LostReason::Evicted,
                ..
            } => Self::Evicted,
            Error::Lost { .. } => Self::Lost,
            Error::Unavailable { .. } => Self::Unavailable,
            Error::Shutdown { .. } => Self::Shutdown,
            _ => Self::ServerError,
        }
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Busy => "busy",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Conflict => "conflict",
            Self::Deadlock => "deadlock",
            Self::QueueFull => "queue_full",
            Self::Refused => "refused",
            Self::Evicted => "evicted",
            Self::Lost => "lost",
            Self::Unavailable => "unavailable",
            Self::ServerError => "server_error",
            Self::Shutdown => "shutdown",
        }
    }
}

/// An acquisition, from its first poll to its outcome. A record that is dropped before counts as cancelled.
pub(crate) struct Wait {
    pub(crate) span: Span,
    mode: &'static str,
    pub(crate) begun: Instant,
    /// When it ended, if that is known before its record is dropped.
    ended: Option<Instant>,
    outcome: Outcome,
    /// The outcome if there is no guard.
    without: Outcome,
    _waiting: One,
}

impl Wait {
    /// Boxed, so that users' futures are small.
    pub(crate) fn begin(lock: &Lock, mode: &'static str, permits: Option<u32>, when: When) -> Box<Self> {
        let span = tracing::debug_span!(
            "acquire",
            lock = %lock.name,
            mode,
            permits,
            outcome = Empty,
            wait_us = Empty,
            token = Empty,
            source = Empty,
        );
        Box::new(Self {
            span,
            mode,
            begun: clock::now(),
            ended: None,
            outcome: Outcome::Cancelled,
            without: match when {
                When::Within(_) => Outcome::Timeout,
                When::Now | When::InTurn => Outcome::Busy,
            },
            _waiting: One::waiting(mode),
        })
    }

    pub(crate) fn requeued(&self, lock: &Lock) {
        tracing::warn!(
            lock = %lock.name,
            "place in the queue lost while the process or the server was away; asking again"
        );
        metrics::requeued(self.mode);
    }

    pub(crate) fn granted(mut self, grant: Grant) {
        let Grant {
            token, at, via, heard, ..
        } = grant;
        self.outcome = Outcome::Granted;
        self.ended = Some(at);
        self.span.record("token", token).record("source", via.label());
        metrics::granted(self.mode, via.label());
        if let Some(heard) = heard.filter(|_| via == GrantVia::Message) {
            metrics::handed_over(self.mode, at.saturating_duration_since(heard));
        }
    }

    /// Notes an outcome without a guard, and returns what it was given.
    pub(crate) fn noted<T>(&mut self, outcome: Result<Option<T>, Error>) -> Result<Option<T>, Error> {
        match &outcome {
            Ok(Some(_)) => {}
            Ok(None) => self.outcome = self.without,
            Err(error) => self.outcome = Outcome::of(error),
        }
        outcome
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let ended = self.ended.unwrap_or_else(clock::now);
        let (waited, outcome) = (ended.saturating_duration_since(self.begun), self.outcome.label());
        metrics::waited(self.mode, outcome, waited);
        let wait_us = micros(waited);
        self.span.record("outcome", outcome).record("wait_us", wait_us);
        let message = if self.outcome == Outcome::Granted {
            "acquired"
        } else {
            "not acquired"
        };
        tracing::debug!(parent: &self.span, outcome, wait_us, "{message}");
    }
}

/// How a hold ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HoldEnd {
    Released,
    Dropped,
    Downgraded,
    Lost(LostReason),
}

/// A hold, from its guard to its end; kept with the claim, which knows when it is over. Dropped without more ado, its
/// guard was, or a release that was not confirmed.
#[derive(Debug)]
pub(crate) struct Hold {
    span: Span,
    lock: Arc<Lock>,
    mode: &'static str,
    token: u64,
    pub(crate) begun: Instant,
    end: HoldEnd,
    _held: One,
}

impl Hold {
    pub(crate) fn begin(
        now: Instant,
        lock: Arc<Lock>,
        mode: &'static str,
        permits: Option<u32>,
        token: u64,
    ) -> Box<Self> {
        let span = tracing::debug_span!(
            "hold",
            lock = %lock.name,
            mode,
            permits,
            token,
            outcome = Empty,
            hold_us = Empty,
            reason = Empty,
        );
        Box::new(Self {
            span,
            lock,
            mode,
            token,
            begun: now,
            end: HoldEnd::Dropped,
            _held: One::held(mode),
        })
    }

    pub(crate) fn end(mut self, end: HoldEnd) {
        self.end = end;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let (mode, held) = (self.mode, clock::since(self.begun));
        let (lock, token, hold_us) = (&self.lock.name, self.token, micros(held));
        let outcome = match self.end {
            HoldEnd::Released => "released",
            HoldEnd::Dropped => "dropped",
            HoldEnd::Downgraded => "downgraded",
            HoldEnd::Lost(_) => "lost",
        };
        metrics::held(mode, outcome, held);
        self.span.record("outcome", outcome).record("hold_us", hold_us);
        if let HoldEnd::Lost(why) = self.end {
            let reason = why.as_str();
            self.span.record("reason", reason);
            metrics::lost(mode, reason);
            if why == LostReason::Shutdown {
                tracing::debug!(%lock, mode, token, reason, "hold lost");
            } else {
                tracing::warn!(%lock, mode, token, reason, "hold lost");
            }
        }
        tracing::debug!(parent: &self.span, outcome, hold_us, "hold ended");
    }
}

/// One of a client's connections is lost, and the client has not reconnected yet.
pub(crate) struct Outage {
    connection: &'static str,
    begun: Instant,
    _disconnected: One,
}

impl Outage {
    pub(crate) const COMMAND: &str = "command";
    pub(crate) const SUBSCRIPTION: &str = "subscription";

    pub(crate) fn begin(connection: &'static str) -> Self {
        Self {
            connection,
            begun: clock::now(),
            _disconnected: One::disconnected(connection),
        }
    }

    /// The client has reconnected. An outage that is only dropped ended otherwise: nobody needs the connection any
    /// more.
    pub(crate) fn end(self) {
        metrics::reconnected(self.connection);
        let (connection, outage_ms) = (self.connection, micros(clock::since(self.begun)) / 1000);
        tracing::info!(connection, outage_ms, "reconnected");
    }
}

/// The servers of a quorum, while its client exists.
pub(crate) struct QuorumServers(#[expect(dead_code, reason = "kept until it is dropped")] Vec<One>);

impl QuorumServers {
    pub(crate) fn begin(servers: usize) -> Self {
        Self((0..servers).map(|_| One::quorum_server()).collect())
    }
}

/// A server of a quorum that the client has never reached.
pub(crate) struct Unreached {
    server: String,
    begun: Instant,
    _unreached: One,
}

impl Unreached {
    pub(crate) fn begin(server: &str, error: &dyn std::fmt::Display) -> Self {
        tracing::warn!(server, %error, "a server of the quorum is away");
        Self {
            server: server.to_owned(),
            begun: clock::now(),
            _unreached: One::unreached(),
        }
    }

    pub(crate) fn end(self) {
        let (server, outage_ms) = (&self.server, micros(clock::since(self.begun)) / 1000);
        tracing::info!(server, outage_ms, "a server of the quorum was reached");
    }
}

/// A server lost a hold that a majority keeps, and the client asks it again.
pub(crate) fn vote_lost(lock: &Lock, mode: Mode, server: &str) {
    let mode = match mode {
        Mode::Read => Read::LABEL,
        Mode::Write => Write::LABEL,
    };
    tracing::warn!(lock = %lock.name, mode, server, "vote lost; asking the server again");
    metrics::vote_lost(mode);
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_metric_is_explained_above() {
        let page = include_str!("mod.rs");
        let names = include_str!("metrics.rs")
            .split('"')
            .filter(|text| text.starts_with("fairlock_"));
        let mut count = 0;
        for name in names {
            assert!(
                page.contains(&format!("//! | `{name}` |")),
                "{name} is not in the table"
            );
            count += 1;
        }
        assert!(count > 9, "only {count} metrics found");
    }
}
