//! Grants that count only when replicas have them.

use crate::client::check_duration;
use crate::error::{Error, is_transient};
use crate::guard::Guard;
use crate::keeper::settle;
use crate::key::shown;
use crate::link::Backoff;
use redis::{Cmd, RedisError, Value};
use std::time::Duration;
use tokio::time::Instant;

/// How many replicas have to have a grant, and how long that may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replication {
    pub(crate) replicas: usize,
    pub(crate) timeout: Duration,
    /// On their disks, and on the master's.
    pub(crate) on_disk: bool,
}

impl Replication {
    pub(crate) fn check(&self, lock: &str) -> Result<(), Error> {
        let (least, most) = (Duration::from_millis(1), Duration::from_secs(3600));
        check_duration(lock, "timeout of replication", self.timeout, least, most)
    }

    pub(crate) fn command(&self) -> Cmd {
        let mut wait;
        if self.on_disk {
            wait = redis::cmd("WAITAOF");
            wait.arg(1);
        } else {
            wait = redis::cmd("WAIT");
        }
        // Checked to be at most an hour.
        wait.arg(self.replicas).arg(self.timeout.as_millis() as u64);
        wait
    }

    /// So many replicas have it. Of WAITAOF, whose answer has two numbers, none if the master itself has not.
    pub(crate) fn reached(&self, reply: Value) -> Result<usize, RedisError> {
        if !self.on_disk {
            return Ok(redis::from_redis_value(reply)?);
        }
        let (master, replicas): (usize, usize) = redis::from_redis_value(reply)?;
        Ok(if master > 0 { replicas } else { 0 })
    }
}

impl<M> Guard<M> {
    /// The guard, if enough replicas know of its hold. Otherwise it is withdrawn. `None`: the hold was lost meanwhile,
    /// before its user had it.
    pub(crate) async fn if_replicated(self, wish: Replication) -> Result<Option<Self>, Error> {
        let failure = match self.confirmed(wish).await {
            Ok(true) => return Ok(Some(self)),
            Ok(false) => return Ok(None),
            Err(failure) => failure,
        };
        // Not left to the background: whoever asks again finds it gone. Otherwise its lease has ended by then.
        if let Err(error) = self.release().await {
            tracing::debug!(%error, "a grant that was withdrawn");
        }
        Err(failure)
    }

    async fn confirmed(&self, wish: Replication) -> Result<bool, Error> {
        let request = self.request();
        let lease = request.claim().lease();
        let begun = Instant::now();
        let mut backoff = Backoff::new();
        loop {
            let sent = Instant::now();
            let call = self.client().call(&request.lock, lease);
            match call.confirm(&request.name, lease, wish).await {
                Ok((standing, reached)) => {
                    settle(request, sent, Instant::now(), lease, standing);
                    if !self.is_held() {
                        return Ok(false);
                    }
                    if reached >= wish.replicas {
                        return Ok(true);
                    }
                    if begun.elapsed() >= wish.timeout {
                        return Err(Error::NotReplicated {
                            lock: shown(&request.lock.name),
                            wanted: wish.replicas,
                            reached,
                            timeout: wish.timeout,
                        });
                    }
                }
                Err(error) if is_transient(&error) && begun.elapsed() < wish.timeout => backoff.pause().await,
                Err(error) => return Err(Error::of_server(&request.lock.name, error)),
            }
            if !self.is_held() {
                return Ok(false);
            }
        }
    }
}
