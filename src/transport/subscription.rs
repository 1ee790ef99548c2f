//! A subscription to a server, to a node of a cluster or to a sentinel. It sends pings and notices its end.

use super::pulse::Pulse;
use super::server::Connected;
use super::wire::{OnPush, Wire};
use crate::types::timers::{PING_TIMEOUT, PINGS_BEFORE_RECONNECT};
use redis::{PushInfo, PushKind, RedisError};
use std::future::Future;
use std::sync::Arc;
use tokio::sync::Notify;

pub(crate) struct Subscription {
    pub(crate) wire: Wire,
    /// Of the server: see [`Server::outdated`](super::server::Server::outdated).
    pub(crate) term: u64,
    pub(crate) of_replica: bool,
    pub(crate) pulse: Arc<Pulse>,
    ended: Arc<Notify>,
    /// Pings in a row without a reply.
    unanswered: u32,
}

/// What a push means for its subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Push {
    Heard,
    /// The server has ended the subscription.
    Ends,
}

impl Subscription {
    /// `connect` makes the connection. `on_push` runs on the connection's own task, so nothing stands between the
    /// socket and the waiter.
    pub(crate) async fn open<C: Future<Output = Result<Connected, RedisError>>>(
        connect: impl FnOnce(OnPush) -> C,
        on_push: impl Fn(PushInfo) -> Push + Send + Sync + 'static,
    ) -> Result<Self, RedisError> {
        let ended = Arc::new(Notify::new());
        let pulse = Arc::<Pulse>::default();
        let (over, alive) = (Arc::clone(&ended), Arc::clone(&pulse));
        let on_push = Arc::new(move |push: PushInfo| {
            alive.beat();
            if push.kind == PushKind::Disconnection || on_push(push) == Push::Ends {
                over.notify_one();
            }
        });
        let Connected {
            wire, term, of_replica, ..
        } = connect(on_push).await?;
        Ok(Self {
            wire,
            term,
            of_replica,
            pulse,
            ended,
            unanswered: 0,
        })
    }

    /// Waits until the connection has closed, or the server has ended the subscription.
    pub(crate) async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Sends a ping. `false`: there was no reply in time, and another ping may still have one.
    ///
    /// An error reply counts as life, because it came over this connection. Another connection would get the same reply,
    /// and the waiters would be deaf meanwhile.
    pub(crate) async fn ping(&mut self) -> Result<bool, RedisError> {
        let ping = redis::cmd("PING");
        match self.pulse.answer(PING_TIMEOUT, self.wire.send(&ping)).await {
            Ok(_) => {
                self.unanswered = 0;
                Ok(true)
            }
            Err(error) if error.is_timeout() && self.unanswered + 1 < PINGS_BEFORE_RECONNECT => {
                self.unanswered += 1;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
