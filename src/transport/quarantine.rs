//! The quarantine: how long a restarted server grants no lock that looks free, because it may have forgotten the
//! holder.

use super::wire::Wire;
use crate::protocol::hello::Dialect;
use crate::protocol::quarantine::{age, info, key, read_age, run_id};
use crate::protocol::reply::malformed;
use crate::types::timers::CONNECT_TIMEOUT;
use redis::{RedisError, Value};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Clone, Debug)]
pub(crate) struct Quarantine {
    /// The key in which the clients of a prefix keep which server they saw last, and since when.
    key: String,
    lasts: Duration,
}

impl Quarantine {
    pub(crate) fn new(prefix: &str, lasts: Duration) -> Self {
        let key = key(prefix);
        Self { key, lasts }
    }

    /// Returns until when that server is in quarantine.
    pub(crate) async fn of_server(&self, wire: &mut Wire, dialect: Dialect) -> Result<Option<Instant>, RedisError> {
        let info: String = redis::from_redis_value(wire.answer(CONNECT_TIMEOUT, &info()).await?)?;
        let run = run_id(&info).ok_or_else(|| malformed(&Value::SimpleString(info.clone())))?;
        let reply = wire.answer(CONNECT_TIMEOUT, &age(dialect, &self.key, run)).await?;
        let age = read_age(&reply).ok_or_else(|| malformed(&reply))?;
        let left = self.lasts.checked_sub(Duration::from_millis(age));
        if let Some(left) = left {
            tracing::warn!(
                ?left,
                "the server has restarted: no lock that looks free is granted meanwhile"
            );
        }
        Ok(left.map(|left| Instant::now() + left))
    }
}
