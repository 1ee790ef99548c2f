//! A server that has begun anew: it may have forgotten who holds what, and who held it may not know yet.

use crate::script::Dialect;
use crate::wire::{CONNECT_TIMEOUT, Wire, malformed};
use redis::{RedisError, Value};
use std::time::Duration;
use tokio::time::Instant;

/// How long a server that begins anew lets nobody into a lock that looks free.
#[derive(Clone, Debug)]
pub(crate) struct Quarantine {
    /// Where the clients of a prefix keep which server they have seen last, and since when.
    key: String,
    lasts: Duration,
}

const LIFE: &str = include_str!("../lua/life.lua");

impl Quarantine {
    pub(crate) fn new(prefix: &str, lasts: Duration) -> Self {
        let key = format!("{prefix}:life");
        Self { key, lasts }
    }

    /// Until when that server is in quarantine.
    pub(crate) async fn of_server(&self, wire: &mut Wire, dialect: Dialect) -> Result<Option<Instant>, RedisError> {
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let info: String = redis::from_redis_value(wire.answer(CONNECT_TIMEOUT, &info).await?)?;
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        let run = run.ok_or_else(|| malformed(&Value::SimpleString(info.clone())))?;
        let script = match dialect {
            Dialect::Plain => LIFE.to_owned(),
            Dialect::Flags => format!("#!lua flags=allow-oom\n{LIFE}"),
        };
        let mut eval = redis::cmd("EVAL");
        eval.arg(script).arg(1).arg(&self.key).arg(run.trim());
        let age: u64 = redis::from_redis_value(wire.answer(CONNECT_TIMEOUT, &eval).await?)?;
        let left = self.lasts.checked_sub(Duration::from_millis(age));
        if let Some(left) = left {
            tracing::warn!(
                ?left,
                "the server has begun anew: no lock that looks free is granted meanwhile"
            );
        }
        Ok(left.map(|left| Instant::now() + left))
    }
}
