//! The command by which a server says how many of its replicas have a grant, and its reply.

use crate::types::error::Error;
use crate::types::limits::check_duration;
use redis::{Cmd, RedisError, Value};
use std::time::Duration;

/// How many replicas must have a grant, and within what time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replication {
    pub(crate) replicas: usize,
    pub(crate) timeout: Duration,
    /// The grant must be on their disks, and on the master's.
    pub(crate) on_disk: bool,
}

impl Replication {
    /// `None`: the grant needs no replica.
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
        // The builder has checked that the time is at most an hour.
        wait.arg(self.replicas).arg(self.timeout.as_millis() as u64);
        wait
    }

    pub(crate) fn is_met(&self, reached: Reached) -> bool {
        reached.master && reached.replicas >= self.replicas
    }

    /// Reads the reply to `command`. WAITAOF replies with two numbers.
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

/// The servers that had a grant when the server replied.
#[derive(Clone, Copy)]
pub(crate) struct Reached {
    pub(crate) replicas: usize,
    /// Whether the master has the grant on disk, if disks are asked for.
    pub(crate) master: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_that_is_to_be_on_disks_is_to_be_on_the_masters_too() {
        let wish = |on_disk| Replication {
            replicas: 1,
            timeout: Duration::from_secs(1),
            on_disk,
        };
        for (master, replicas, is_met) in [(1, 1, true), (1, 2, true), (1, 0, false), (0, 1, false), (0, 0, false)] {
            let reply = Value::Array(vec![Value::Int(master), Value::Int(replicas)]);
            let reached = wish(true).reached(reply).unwrap();
            assert_eq!(wish(true).is_met(reached), is_met, "{master} {replicas}");
        }
        for (replicas, is_met) in [(0, false), (1, true)] {
            let reached = wish(false).reached(Value::Int(replicas)).unwrap();
            assert_eq!(wish(false).is_met(reached), is_met, "{replicas}");
        }
    }
}
