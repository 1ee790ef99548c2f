//! A simulated network, which leads to no server: a simulation uses it instead of connections.

use redis::{Cmd, PushInfo, RedisError, Value};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::task::AbortHandle;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What a client can be connected to instead of a server.
pub trait Network: Send + Sync {
    /// Returns a new connection; with `on_push` it can subscribe.
    fn connect(&self, on_push: Option<OnPush>) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>>;

    /// Runs one of the client's own tasks.
    fn spawn(&self, task: BoxFuture<()>) -> AbortHandle;
}

/// The callback for pushes.
pub type OnPush = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// A connection that leads to no server. It closes when it is dropped.
pub trait Connection: Send + Sync {
    /// Sends a command, SUBSCRIBE and its kind among them. An error reply comes as a value.
    fn send(&self, command: &Cmd) -> BoxFuture<Result<Value, RedisError>>;
}
