//! Whether locks exist: the commands that look for the keys of their states, and what servers reply to them.

use crate::key::{self, Lock};
use crate::wire::malformed;
use redis::{Cmd, RedisError, Value};

/// Keys that one SCAN looks at: about a tenth of a millisecond of the server's time.
const KEYS_PER_SCAN: usize = 1000;

/// One step through the keys of a server.
#[derive(Debug)]
pub(crate) struct Page {
    /// Where the next step begins. `None`: this step was the last one.
    pub(crate) next: Option<u64>,
    /// Keys of hashes that match the pattern.
    pub(crate) keys: Vec<Vec<u8>>,
}

/// A step of the search for locks whose names match a pattern. The first step begins at 0.
pub(crate) fn scan(cmd: &mut Cmd, prefix: &str, names: &str, cursor: u64) {
    cmd.arg("SCAN").arg(cursor);
    cmd.arg("MATCH").arg(key::state_pattern(prefix, names));
    cmd.arg("COUNT").arg(KEYS_PER_SCAN).arg("TYPE").arg("hash");
}

pub(crate) fn read_page(reply: Value) -> Result<Page, RedisError> {
    let (cursor, keys) = redis::from_redis_value::<(u64, Vec<Vec<u8>>)>(reply)?;
    let next = (cursor != 0).then_some(cursor);
    Ok(Page { next, keys })
}

/// Reads the field that every state has from the first grant until its keys expire.
pub(crate) fn look_for(cmd: &mut Cmd, lock: &Lock) {
    cmd.arg("HMGET").arg(&*lock.state).arg("seq");
}

pub(crate) fn read_existence(reply: &Value) -> Result<bool, RedisError> {
    match reply {
        Value::Array(fields) => match fields.as_slice() {
            [Value::Nil] => Ok(false),
            [Value::BulkString(_)] => Ok(true),
            _ => Err(malformed(reply)),
        },
        _ => Err(malformed(reply)),
    }
}
