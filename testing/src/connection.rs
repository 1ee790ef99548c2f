//! The connections of clients. A command is executed when the client sends it, and its reply is there at once.

use crate::Server;
use crate::world::Sent;
use fairlock::testing::{Connection, Network, OnPush};
use redis::{Cmd, PushInfo, RedisError, Value};
use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::AbortHandle;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

fn broken(kind: ErrorKind) -> RedisError {
    std::io::Error::from(kind).into()
}

/// Pushes come on a task of their own, because the client must never hear one within its own call.
async fn deliver(mut pushes: UnboundedReceiver<PushInfo>, on_push: OnPush) {
    while let Some(push) = pushes.recv().await {
        on_push(push);
    }
}

impl Network for Server {
    fn connect(&self, on_push: Option<OnPush>) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>> {
        let server = self.clone();
        Box::pin(async move {
            let (sender, pushes) = unbounded_channel();
            let opened = server.world().connect(sender);
            let id = opened.ok_or_else(|| broken(ErrorKind::ConnectionRefused))?;
            if let Some(on_push) = on_push {
                tokio::spawn(deliver(pushes, on_push));
            }
            Ok(Arc::new(Wire { server, id }) as Arc<dyn Connection>)
        })
    }

    fn spawn(&self, task: BoxFuture<()>) -> AbortHandle {
        tokio::spawn(task).abort_handle()
    }
}

struct Wire {
    server: Server,
    id: u64,
}

impl Connection for Wire {
    fn send(&self, command: &Cmd) -> BoxFuture<Result<Value, RedisError>> {
        let words = command.args_iter().map(|word| match word {
            redis::Arg::Simple(bytes) => bytes.to_vec(),
            // The number of a cursor, which the client writes itself.
            _ => b"0".to_vec(),
        });
        let sent = self.server.world().send(self.id, words.collect());
        Box::pin(async move {
            match sent {
                Sent::Done(reply) => Ok(reply),
                Sent::Later(reply) => reply.await.map_err(|_| broken(ErrorKind::ConnectionReset)),
                Sent::Broken => Err(broken(ErrorKind::BrokenPipe)),
            }
        })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.server.world().close(self.id);
    }
}
