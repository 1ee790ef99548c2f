//! The pulse: whether a connection lives, by its signs of life and by the calls that wait for replies.

use crate::types::error::{demoted, timed_out};
use redis::RedisError;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;

/// After so many calls in a row without a reply, the connection counts as dead.
const TIMEOUTS_BEFORE_RECONNECT: u32 = 2;

/// A time limit ends after so many checks in a row without a sign of life.
const LOOKS: u32 = 4;

/// After so many of them the link tries another connection beside it.
const LOOKS_OF_DOUBT: u32 = LOOKS / 2;

/// A connection's signs of life: messages, and replies to any call.
///
/// Replies come in the order of the calls, so a reply to an earlier call means that ours is still to come.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    beats: AtomicU64,
    /// The number of calls in a row that reached their time limits.
    unanswered: AtomicU32,
    /// Says that a call has waited for half of its limit without a sign of life.
    is_silent: AtomicBool,
    silent: Notify,
    spoken: Notify,
    /// Says that the connection leads to the wrong server, whose replies no longer count.
    outdated: AtomicBool,
    /// Says that another connection has replaced this one.
    replaced: AtomicBool,
    over: Notify,
}

impl Pulse {
    pub(crate) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
        if self.is_silent.load(Ordering::Relaxed) && self.is_silent.swap(false, Ordering::Relaxed) {
            self.spoken.notify_one();
        }
    }

    /// Waits until a call has waited for half of its limit without a sign of life. For one task only.
    pub(crate) async fn silent(&self) {
        while !self.is_silent.load(Ordering::Relaxed) {
            self.silent.notified().await;
        }
    }

    /// Waits until a silent connection shows a sign of life. For one task only.
    pub(crate) async fn spoken(&self) {
        while self.is_silent.load(Ordering::Relaxed) {
            self.spoken.notified().await;
        }
    }

    fn doubt(&self) {
        if !self.is_silent.swap(true, Ordering::Relaxed) {
            self.silent.notify_one();
        }
    }

    /// Returns the reply, unless the connection is silent for `limit` before that.
    ///
    /// Silence counts only the time in which this process could have received something. The pulse checks several
    /// times, and a late check of a frozen or starved process counts no more than a timely one, because the reply may
    /// already lie in the socket.
    pub(crate) async fn answer<T>(
        &self,
        limit: Duration,
        reply: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        let mut reply = pin!(reply);
        let mut heard = self.beats.load(Ordering::Relaxed);
        let mut silent = 0;
        while silent < LOOKS {
            if let Ok(reply) = timeout(limit / LOOKS, &mut reply).await {
                return reply;
            }
            let beats = self.beats.load(Ordering::Relaxed);
            silent = if beats == heard { silent + 1 } else { 0 };
            heard = beats;
            if self.replaced.load(Ordering::Relaxed) {
                break;
            }
            if silent == LOOKS_OF_DOUBT {
                self.doubt();
            }
        }
        Err(timed_out())
    }

    /// Returns the reply, unless the connection leads to the wrong server by then, or another one has replaced it.
    pub(crate) async fn unless_over<T>(
        &self,
        reply: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        // Created before the check, so that no later sign is missed.
        let over = self.over.notified();
        if self.outdated.load(Ordering::Relaxed) || self.replaced.load(Ordering::Relaxed) {
            return Err(self.why_over());
        }
        tokio::select! {
            biased;
            () = over => Err(self.why_over()),
            reply = reply => reply,
        }
    }

    fn why_over(&self) -> RedisError {
        if self.outdated.load(Ordering::Relaxed) {
            demoted()
        } else {
            timed_out()
        }
    }

    /// Another connection has replaced this one, so nobody need wait for it any more.
    pub(crate) fn replace(&self) {
        self.replaced.store(true, Ordering::Relaxed);
        self.over.notify_waiters();
    }

    /// The connection leads to the wrong server from now on.
    pub(crate) fn outdate(&self) {
        self.outdated.store(true, Ordering::Relaxed);
        self.over.notify_waiters();
    }

    pub(crate) fn answered(&self) {
        self.beat();
        // All callers share the counter, so write to it only where it changes.
        if self.unanswered.load(Ordering::Relaxed) != 0 {
            self.unanswered.store(0, Ordering::Relaxed);
        }
    }

    /// A call reached its time limit. Returns whether the connection is dead by that.
    pub(crate) fn missed(&self) -> bool {
        self.unanswered.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS_BEFORE_RECONNECT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;
    use tokio::task::yield_now;
    use tokio::time::sleep;

    const LIMIT: Duration = Duration::from_millis(200);

    async fn reply(of: oneshot::Receiver<()>) -> Result<(), RedisError> {
        of.await.map_err(|_| timed_out())
    }

    #[tokio::test]
    async fn a_call_is_given_up_when_its_connection_is_silent() {
        let pulse = Pulse::default();
        let silence = pulse.answer(LIMIT, std::future::pending::<Result<(), _>>());
        let error = silence.await.expect_err("nobody answers");
        assert!(error.is_timeout(), "{error}");
        assert!(!pulse.missed() && pulse.missed());
        pulse.answered();
        assert!(!pulse.missed(), "in a row");
    }

    #[tokio::test]
    async fn replies_to_others_are_no_silence() {
        let pulse = Pulse::default();
        let (line, ours) = oneshot::channel();
        let others = async {
            for _ in 0..20 {
                sleep(LIMIT / 8).await;
                pulse.beat();
            }
            line.send(())
        };
        let (replied, _) = tokio::join!(pulse.answer(LIMIT, reply(ours)), others);
        replied.expect("the reply, after more than two limits");
    }

    #[tokio::test]
    async fn time_in_which_the_process_did_not_run_is_no_silence() {
        let pulse = Pulse::default();
        let (socket, ours) = oneshot::channel();
        let frozen = async {
            std::thread::sleep(LIMIT * 2);
            // The task that takes the reply from the socket runs only now, beside other tasks.
            for _ in 0..20 {
                yield_now().await;
            }
            socket.send(())
        };
        let (replied, _) = tokio::join!(pulse.answer(LIMIT, reply(ours)), frozen);
        replied.expect("the reply");
    }
}
