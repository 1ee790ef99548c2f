//! The quarantine: how long a restarted server grants no lock that looks free, because it may have forgotten the
//! holder.

use super::wire::Wire;
use crate::protocol::hello::Dialect;
use crate::protocol::quarantine::{age, info, key, read_age, run_id, stamp_key};
use crate::protocol::reply::malformed;
use crate::types::clock;
use crate::types::timers::CONNECT_TIMEOUT;
use redis::{ErrorKind, RedisError, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Clone, Debug)]
pub(crate) struct Quarantine {
    /// The key in which the clients of a prefix keep which server they saw last, and since when.
    key: String,
    lasts: Duration,
    seat: Option<Seat>,
    stamp_key: String,
    /// Earlier than every call of the client.
    made: Instant,
}

/// One server's seat in a quorum.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) number: usize,
    /// What all clients of the quorum must agree on.
    pub(crate) stamp: Arc<str>,
    /// The run ids of the servers in the seats.
    pub(crate) taken: Arc<Mutex<BTreeMap<usize, String>>>,
}

/// Two addresses of a quorum lead to one server.
const TWICE: &str = "two addresses of the quorum lead to one server";

pub(crate) fn is_seated_twice(error: &RedisError) -> bool {
    error.kind() == ErrorKind::InvalidClientConfig && error.to_string().contains(TWICE)
}

impl Seat {
    /// Refuses a server that has another seat already, because its vote would count twice. A seat keeps its server until it
    /// gets another one. So two running servers that exchange their addresses are both refused: nobody can tell that from an
    /// address that leads to the wrong server.
    fn take(&self, run: &str) -> Result<(), RedisError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken
            .iter()
            .any(|(number, other)| *number != self.number && other == run)
        {
            return Err(RedisError::from((ErrorKind::InvalidClientConfig, TWICE)));
        }
        taken.insert(self.number, run.to_owned());
        Ok(())
    }

    /// Whether that server has the seat. The calls of the client decide that.
    pub(crate) fn is_of(&self, run: &str) -> bool {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.get(&self.number).is_some_and(|seated| seated == run)
    }
}

/// The run id of the server to which the wire leads.
pub(crate) async fn run_of(wire: &mut Wire) -> Result<String, RedisError> {
    let info: String = redis::from_redis_value(wire.answer(CONNECT_TIMEOUT, &info()).await?)?;
    let run = run_id(&info).map(str::to_owned);
    run.ok_or_else(|| malformed(&Value::SimpleString(info)))
}

impl Quarantine {
    pub(crate) fn seat(&self) -> Option<Seat> {
        self.seat.clone()
    }

    pub(crate) fn new(prefix: &str, lasts: Duration, seat: Option<Seat>) -> Self {
        Self {
            key: key(prefix),
            lasts,
            seat,
            stamp_key: stamp_key(prefix),
            made: clock::now(),
        }
    }

    /// Returns until when that server is or was in quarantine.
    pub(crate) async fn of_server(&self, wire: &mut Wire, dialect: Dialect) -> Result<Instant, RedisError> {
        let run = &*run_of(wire).await?;
        let stamp = self.seat.as_ref().map(|seat| (self.stamp_key.as_str(), &*seat.stamp));
        let reply = wire
            .answer(CONNECT_TIMEOUT, &age(dialect, &self.key, run, stamp))
            .await?;
        let age = read_age(&reply).ok_or_else(|| malformed(&reply))?;
        // Last: a server that refuses must not take the seat from the one to which the calls go.
        if let Some(seat) = &self.seat {
            seat.take(run)?;
        }
        let (age, now) = (Duration::from_millis(age), clock::now());
        if let Some(left) = self.lasts.checked_sub(age) {
            tracing::warn!(
                ?left,
                "the server has restarted: no lock that looks free is granted meanwhile"
            );
        }
        Ok(self.end(now, age))
    }

    /// On some systems an instant cannot be earlier than the start of the machine. Earlier than all calls will do.
    fn end(&self, now: Instant, age: Duration) -> Instant {
        (now + self.lasts).checked_sub(age).unwrap_or(self.made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarantine_that_ended_before_any_instant_ended_before_all_calls() {
        let quarantine = Quarantine::new("p", Duration::from_secs(30), None);
        let call = clock::now();
        assert_eq!(
            quarantine.end(call, Duration::from_secs(10)),
            call + Duration::from_secs(20)
        );
        // Farther back than instants go here too.
        assert!(quarantine.end(call, Duration::MAX) <= call);
    }
}
