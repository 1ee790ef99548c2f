//! The connections of the simulated processes.

use super::super::process::{Process, pausable};
use super::{BoxFuture, WireState, World};
use fairlock::testing;
use fairlock::testing::OnPush;
use redis::{Cmd, RedisError, Value};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

/// A process's way to the server.
pub struct Net {
    pub world: Arc<World>,
    pub process: Arc<Process>,
}

pub(super) struct Wire {
    pub(super) world: Arc<World>,
    pub(super) id: u64,
}

pub(super) fn io(kind: ErrorKind) -> RedisError {
    std::io::Error::from(kind).into()
}

impl testing::Network for Net {
    fn connect(&self, on_push: Option<OnPush>) -> BoxFuture<Result<Arc<dyn testing::Connection>, RedisError>> {
        let (world, process) = (Arc::clone(&self.world), Arc::clone(&self.process));
        Box::pin(async move {
            let delay = world.core().delay();
            sleep(delay).await;
            let mut core = world.core();
            let now = Instant::now();
            if core.down_until.is_some_and(|until| until > now) || process.is_killed() {
                return Err(io(ErrorKind::ConnectionRefused));
            }
            let id = core.number();
            let state = WireState {
                process,
                on_push,
                channels: Vec::new(),
                last_arrival: now,
                last_delivery: now,
                stalled_until: None,
                silent: false,
                pending: BTreeMap::new(),
            };
            core.wires.insert(id, state);
            drop(core);
            Ok(Arc::new(Wire { world, id }) as Arc<dyn testing::Connection>)
        })
    }

    fn spawn(&self, task: BoxFuture<()>) -> AbortHandle {
        let task = tokio::spawn(pausable(Arc::clone(&self.process), task));
        self.process.keep(task.abort_handle());
        task.abort_handle()
    }
}

impl Wire {
    pub(super) fn call(&self, command: Vec<Vec<u8>>) -> BoxFuture<Result<Value, RedisError>> {
        let reply = self.world.core().send(self.id, command);
        self.world.planned.notify_one();
        Box::pin(async move {
            let Some(reply) = reply else {
                return Err(io(ErrorKind::BrokenPipe));
            };
            reply.await.map_err(|_| io(ErrorKind::ConnectionReset))
        })
    }
}

impl testing::Connection for Wire {
    fn send(&self, command: &Cmd) -> BoxFuture<Result<Value, RedisError>> {
        let words = command.args_iter().map(|word| match word {
            redis::Arg::Simple(bytes) => bytes.to_vec(),
            _ => Vec::new(),
        });
        self.call(words.collect())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // A panic elsewhere has ended the run.
        if let Ok(mut core) = self.world.core.lock() {
            core.wires.remove(&self.id);
        }
    }
}
