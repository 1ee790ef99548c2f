//! One call of a script: the protocol encodes it, the route sends it, the protocol reads the reply. A call is repeated
//! only after NOSCRIPT, which means that the server executed nothing.

use crate::protocol::channel::Channel;
use crate::protocol::key::Lock;
use crate::protocol::order::{
    Ask, AskForStatus, AskToAcquire, AskToPlace, AskedLease, Order, ScriptCall, is_unknown_script,
};
use crate::protocol::replication::{Reached, Replication};
use crate::protocol::reply::{
    Acquired, Look, Standing, malformed, read_downgraded, read_evicted, read_released, read_renewed,
};
use crate::protocol::snapshot::Snapshot;
use crate::state::registry::Registry;
use crate::transport::link::{How, Lane};
use crate::transport::route::Route;
use crate::types::clock;
use crate::types::error::is_refusal;
use crate::types::timers::GRACE;
use redis::{RedisError, Value};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// One call of a script: its lock, and how long its reply may take.
pub(crate) struct Call<'a> {
    pub(crate) route: &'a Route,
    pub(crate) registry: &'a Registry,
    pub(crate) channel: Channel,
    pub(crate) lock: &'a Lock,
    pub(crate) limit: Duration,
    /// How long a user's call may wait before it is sent: at least `limit`.
    pub(crate) patience: Duration,
    /// Some client listens to events of this lock.
    pub(crate) listened: bool,
    /// Whether the call was sent, or was about to be.
    pub(crate) sent: AtomicBool,
}

impl Call<'_> {
    /// The same call, which keeps its place in line until then.
    pub(crate) fn patient_until(self, until: Instant) -> Self {
        let patience = until.saturating_duration_since(clock::now()).max(self.limit);
        Self { patience, ..self }
    }

    pub(crate) async fn acquire(&self, ask: &AskToAcquire<'_>) -> Result<(Acquired, Look), RedisError> {
        let reply = self.reply(Lane::Users, Ask::Acquire(ask)).await?;
        Acquired::read(&reply, ask.only_now)
    }

    /// Tells how each request stood until then, and when to look again.
    pub(crate) async fn release(&self, requests: &[&str]) -> Result<(Vec<Standing>, Look), RedisError> {
        let reply = self.reply(Lane::Users, Ask::Release(requests)).await?;
        let (stood, next) = read_released(&reply, requests.len())?;
        // Perhaps this was a copy, and the reply that was lost told when to look again.
        let next = next.or((stood == [Standing::Unknown]).then_some(GRACE));
        Ok((stood, next))
    }

    /// Tells how each request stands, and when to look again.
    pub(crate) async fn renew(&self, requests: &[(&str, AskedLease)]) -> Result<(Vec<Standing>, Look), RedisError> {
        let reply = self.reply(Lane::Background, Ask::Renew(requests)).await?;
        read_renewed(&reply, requests.iter().map(|(request, _)| *request))
    }

    /// Tells how a request stands on a server, when to look again, and how many of its replicas know that.
    pub(crate) async fn confirm(
        &self,
        request: &str,
        lease: Duration,
        wish: Replication,
    ) -> Result<(Standing, Look, Reached), RedisError> {
        let key = &self.lock.state;
        let renew = |whole| self.order(Ask::Confirm(request, lease), whole);
        let confirm = async {
            match self.route.confirm(self.limit, key, wish, &renew(false)).await {
                Err(error) if is_unknown_script(&error) => {
                    self.route.confirm(self.limit, key, wish, &renew(true)).await
                }
                other => other,
            }
        };
        let (renewed, reached) = self.registry.unless_ended(confirm).await?;
        let (standings, next) = read_renewed(&renewed, std::iter::once(request))?;
        let standing = standings.into_iter().next().unwrap_or(Standing::Unknown);
        Ok((standing, next, reached))
    }

    /// Tells a number if the owner now reads by `to`, and when to look again. `None`: the server does not know
    /// the write hold `from`.
    pub(crate) async fn downgrade(
        &self,
        from: &str,
        to: &str,
        lease: Duration,
    ) -> Result<(Option<u64>, Look), RedisError> {
        let reply = self.reply(Lane::Users, Ask::Downgrade { from, to, lease }).await?;
        read_downgraded(&reply)
    }

    /// Tells how many requests of the owner were evicted, and when to look again.
    pub(crate) async fn evict(&self, owner: &str) -> Result<(usize, Look), RedisError> {
        let reply = self.reply(Lane::Users, Ask::Evict(owner)).await?;
        read_evicted(&reply)
    }

    /// Tells how the request stands at its place, and when to look again.
    pub(crate) async fn place(&self, ask: &AskToPlace<'_>) -> Result<(Standing, Look), RedisError> {
        let reply = self.reply(Lane::Users, Ask::Place(ask)).await?;
        let (standings, next) = read_renewed(&reply, std::iter::once(ask.request))?;
        Ok((standings.into_iter().next().unwrap_or(Standing::Unknown), next))
    }

    /// Lists holders and waiters.
    pub(crate) async fn status(&self, ask: &AskForStatus<'_>) -> Result<Snapshot, RedisError> {
        self.snapshot(Lane::Users, ask).await
    }

    /// Tells who holds the lock, and the place of a request. One holder more than `most` is listed if there are more.
    pub(crate) async fn look(&self, request: &str, most: usize) -> Result<Snapshot, RedisError> {
        let ask = AskForStatus {
            first: 0,
            waiters: 0,
            holders: most + 1,
            place_of: Some(request),
        };
        self.snapshot(Lane::Background, &ask).await
    }

    async fn snapshot(&self, lane: Lane, ask: &AskForStatus<'_>) -> Result<Snapshot, RedisError> {
        let reply = self.reply(lane, Ask::Status(ask)).await?;
        Snapshot::read(&reply).ok_or_else(|| malformed(&reply))
    }

    /// Whether the server may have executed the call, after that error.
    pub(crate) fn may_be_done(&self, error: &RedisError) -> bool {
        self.sent.load(Ordering::Relaxed) && !is_refusal(error)
    }

    async fn reply(&self, lane: Lane, ask: Ask<'_>) -> Result<Value, RedisError> {
        let patience = match lane {
            Lane::Users => self.patience,
            // It asks for the rest of a time, which is another one later.
            Lane::Background => self.limit,
        };
        let how = How {
            patience,
            ..How::plainly(lane, self.limit)
        };
        let key = &self.lock.state;
        // Pinned here, because a future that is passed by value is copied.
        let call = pin!(async {
            match self.route.call(&how, key, &self.order(ask, false)).await {
                // EVAL fills the server's cache of scripts again, on this server only. In a box, because it is rare.
                Err(error) if is_unknown_script(&error) => {
                    self.sent.store(false, Ordering::Relaxed);
                    Box::pin(self.route.call(&how, key, &self.order(ask, true))).await
                }
                other => other,
            }
        });
        self.registry.unless_ended(call).await
    }

    fn order<'a>(&'a self, ask: Ask<'a>, whole: bool) -> Order<'a> {
        let call = ScriptCall {
            lock: self.lock,
            channel: self.channel,
            listened: self.listened,
            ask,
        };
        Order::script_call(call, whole, &self.sent)
    }
}
