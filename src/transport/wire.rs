//! A wire: one connection, and what can be sent over it. `server.rs` makes wires.
//! In a simulation a wire leads to no server.

#[cfg(feature = "__testing")]
use super::simulated::Connection;
#[cfg(feature = "cluster")]
use crate::protocol::reply::malformed;
use crate::state::subscribers::Topic;
use crate::types::error::timed_out;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, PushInfo, RedisError, Value};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::unconstrained;
use tokio::time::timeout;

/// The callback for pushes. It runs on the connection's own task, so nothing stands between the socket and the waiter.
pub(crate) type OnPush = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// One connection. It closes when its last clone is dropped.
#[derive(Clone)]
pub(crate) enum Wire {
    Redis(MultiplexedConnection),
    #[cfg(feature = "__testing")]
    Simulated(Arc<dyn Connection>),
}

impl Wire {
    /// Sends a command. A server's error reply comes as a value.
    pub(crate) async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        match self {
            Self::Redis(connection) => at_once(pin!(connection.send_packed_command(command))).await,
            #[cfg(feature = "__testing")]
            Self::Simulated(connection) => connection.send(command).await,
        }
    }

    /// Sends a command to a node that does not own the command's slot yet.
    #[cfg(feature = "cluster")]
    pub(crate) async fn send_asking(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let mut pair = redis::pipe();
        pair.cmd("ASKING").add_command(command.clone());
        match self {
            // In one piece, so that no other command comes between the two.
            Self::Redis(connection) => {
                let mut replies = at_once(pin!(connection.send_packed_commands(&pair, 0, 2))).await?;
                replies.pop().ok_or_else(|| malformed(&Value::Nil))
            }
            #[cfg(feature = "__testing")]
            Self::Simulated(_) => Err(unsupported()),
        }
    }

    /// Sends a command and waits at most `limit` for its reply.
    pub(crate) async fn answer(&mut self, limit: Duration, command: &Cmd) -> Result<Value, RedisError> {
        let reply = timeout(limit, self.send(command)).await;
        reply.unwrap_or_else(|_| Err(timed_out()))?.extract_error()
    }

    pub(crate) async fn subscribe(&mut self, channels: &[&str]) -> Result<(), RedisError> {
        match self {
            Self::Redis(connection) => connection.subscribe(channels).await,
            #[cfg(feature = "__testing")]
            Self::Simulated(connection) => connection
                .send(redis::cmd("SUBSCRIBE").arg(channels))
                .await?
                .extract_error()
                .map(drop),
        }
    }

    /// Subscribes to a channel of events, or to a pattern of them.
    pub(crate) async fn follow(&mut self, topic: &Topic) -> Result<(), RedisError> {
        match (self, topic) {
            (Self::Redis(connection), Topic::Channel(channel)) => connection.subscribe(channel).await,
            (Self::Redis(connection), Topic::Pattern(pattern)) => connection.psubscribe(pattern).await,
            #[cfg(feature = "__testing")]
            (Self::Simulated(connection), topic) => change(connection, "SUBSCRIBE", topic).await,
        }
    }

    pub(crate) async fn unfollow(&mut self, topic: &Topic) -> Result<(), RedisError> {
        match (self, topic) {
            (Self::Redis(connection), Topic::Channel(channel)) => connection.unsubscribe(channel).await,
            (Self::Redis(connection), Topic::Pattern(pattern)) => connection.punsubscribe(pattern).await,
            #[cfg(feature = "__testing")]
            (Self::Simulated(connection), topic) => change(connection, "UNSUBSCRIBE", topic).await,
        }
    }
}

/// Sends a command by its first poll. The redis crate's channel would refuse that poll, although it has room, if the
/// caller's task has used up its budget, because tokio makes each task yield after 128 steps.
async fn at_once<T>(mut sending: Pin<&mut impl Future<Output = T>>) -> T {
    let mut first = true;
    poll_fn(|context| match std::mem::take(&mut first) {
        true => pin!(unconstrained(sending.as_mut())).poll(context),
        false => sending.as_mut().poll(context),
    })
    .await
}

/// Subscribes to a topic, or unsubscribes from it.
#[cfg(feature = "__testing")]
async fn change(connection: &Arc<dyn Connection>, what: &str, topic: &Topic) -> Result<(), RedisError> {
    let (name, topic) = match topic {
        Topic::Channel(channel) => (what.to_owned(), channel),
        Topic::Pattern(pattern) => (format!("P{what}"), pattern),
    };
    let reply = connection.send(redis::cmd(&name).arg(topic)).await?;
    reply.extract_error().map(drop)
}

/// The simulation has no clusters.
#[cfg(all(feature = "__testing", feature = "cluster"))]
fn unsupported() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::Unsupported).into()
}
