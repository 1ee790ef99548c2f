//! What the link knows of the scripts and functions that its server has: it teaches them, and loads lost functions again.

use super::super::backoff::Backoff;
use super::{Connection, Link, State};
use crate::protocol::functions;
use crate::protocol::order::Form;
use crate::types::timers::CONNECT_TIMEOUT;
use redis::{RedisError, Value};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;

impl Link {
    /// Takes in the error of a call, and returns it as the caller should get it.
    pub(super) fn on_error(&self, connection: &Connection, form: Form, error: RedisError) -> RedisError {
        let error = connection.known.on_error(form, error);
        if connection.known.lacks_functions() {
            self.without_functions.notify_one();
        }
        error
    }

    /// Loads the functions again when the server has lost them, or could not take them yet, such as a server that was
    /// loading its data. Never ends.
    pub(super) async fn keep_functions(&self) {
        let mut backoff = Backoff::new();
        loop {
            self.without_functions.notified().await;
            let connection = match &self.side().state {
                State::Up(connection) if connection.known.lacks_functions() => Arc::clone(connection),
                // Another connection loads them anew.
                _ => continue,
            };
            let reply = connection
                .wire
                .clone()
                .answer(CONNECT_TIMEOUT, &functions::load())
                .await;
            connection.known.set_functions(functions::read_loaded(&reply));
            if connection.known.lacks_functions() {
                backoff.pause().await;
                self.without_functions.notify_one();
            } else {
                backoff = Backoff::new();
            }
        }
    }
}

/// The reply to a call that teaches the server a script: later calls may rely on the script.
pub(super) async fn taught(
    connection: &Connection,
    form: Form,
    mut reply: Pin<&mut impl Future<Output = Result<Value, RedisError>>>,
) -> Result<Value, RedisError> {
    let Form::Text(_) = form else { return reply.await };
    let mut first = true;
    poll_fn(|context| {
        let reply = reply.as_mut().poll(context);
        if std::mem::take(&mut first) {
            connection.known.learn(form);
        }
        reply
    })
    .await
}
