//! The question what time it is by a server.

use redis::{Cmd, RedisError, Value};

/// The command that tells a server's clock.
pub(crate) fn ask() -> Cmd {
    redis::cmd("TIME")
}

/// Reads the reply to [`ask`], in milliseconds.
pub(crate) fn read(reply: Value) -> Result<u64, RedisError> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(reply)?;
    Ok(seconds.saturating_mul(1000).saturating_add(micros / 1000))
}
