//! Grants that count only when replicas have them.

use crate::attempt::Attempt;
use crate::client::{Inner, check_duration};
use crate::error::{Error, is_transient};
use crate::keeper::settle;
use crate::key::shown;
use crate::link::Backoff;
use crate::registry::Request;
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
    /// `None`: of no replica.
    pub(crate) fn in_memory(replicas: usize, timeout: Duration) -> Option<Self> {
        (replicas > 0).then_some(Self {
            replicas,
            timeout,
            on_disk: false,
        })
    }

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

    /// The reply to `command`. That of WAITAOF has two numbers.
    pub(crate) fn reached(&self, reply: Value) -> Result<Reached, RedisError> {
        let (master, replicas): (usize, usize) = if self.on_disk {
            redis::from_redis_value(reply)?
        } else {
            (1, redis::from_redis_value(reply)?)
        };
        Ok(Reached {
            replicas,
            master: master > 0,
        })
    }
}

/// Who had a grant when the server was asked.
#[derive(Clone, Copy)]
pub(crate) struct Reached {
    replicas: usize,
    /// Not only in memory, if disks are asked for.
    master: bool,
}

/// Whether enough replicas know of a hold. If not, it is withdrawn. `false`: it was lost meanwhile, before its user had it.
pub(crate) async fn counts(attempt: &mut Attempt, wish: Replication) -> Result<bool, Error> {
    let counts = confirmed(attempt.inner(), attempt.request(), wish).await;
    if counts.is_err() {
        // By the time that its caller hears of it the server has confirmed, or the lease is over.
        attempt.withdraw().await;
    }
    counts
}

async fn confirmed(inner: &Inner, request: &Request, wish: Replication) -> Result<bool, Error> {
    let lease = request.claim().lease();
    let begun = Instant::now();
    let mut backoff = Backoff::new();
    while is_held(request) {
        let sent = Instant::now();
        match inner
            .call(&request.lock, lease)
            .confirm(&request.name, lease, wish)
            .await
        {
            Ok((standing, reached)) => {
                settle(request, sent, Instant::now(), lease, standing);
                if is_held(request) && reached.master && reached.replicas >= wish.replicas {
                    return Ok(true);
                }
                if is_held(request) && begun.elapsed() >= wish.timeout {
                    return Err(Error::NotReplicated {
                        lock: shown(&request.lock.name),
                        wanted: wish.replicas,
                        reached: reached.replicas,
                        timeout: wish.timeout,
                    });
                }
            }
            Err(error) if is_transient(&error) && begun.elapsed() < wish.timeout => backoff.pause().await,
            Err(error) => return Err(Error::of_server(&request.lock.name, error)),
        }
    }
    Ok(false)
}

fn is_held(request: &Request) -> bool {
    request.claim().held_until(Instant::now()).is_some()
}
