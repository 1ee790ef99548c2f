//! Lookups: the commands that look for the keys of locks' states, and those that read texts.

use super::key::{self, Lock};
use super::reply::{malformed, text};
use redis::{Cmd, RedisError, Value};

/// Keys that one SCAN looks at: about a tenth of a millisecond of the server's time.
const KEYS_PER_SCAN: usize = 1000;

/// One step through the keys of a server.
#[derive(Debug)]
pub(crate) struct Page {
    /// Where the next step begins. `None`: this step was the last one.
    pub(crate) next: Option<u64>,
    /// Keys that match the pattern, whatever their type.
    pub(crate) keys: Vec<Vec<u8>>,
}

/// A step of the search for locks whose names match a pattern. The first step begins at 0.
pub(crate) fn scan(prefix: &str, names: &str, cursor: u64) -> Cmd {
    let mut cmd = redis::cmd("SCAN");
    cmd.arg(cursor);
    cmd.arg("MATCH").arg(key::state_pattern(prefix, names));
    cmd.arg("COUNT").arg(KEYS_PER_SCAN);
    cmd
}

pub(crate) fn read_page(reply: Value) -> Result<Page, RedisError> {
    let (cursor, keys) = redis::from_redis_value::<(u64, Vec<Vec<u8>>)>(reply)?;
    let next = (cursor != 0).then_some(cursor);
    Ok(Page { next, keys })
}

/// Reads the field that every state has from the first grant until its keys expire.
pub(crate) fn look_for(lock: &Lock) -> Cmd {
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(&*lock.state).arg("s");
    cmd
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

/// The command that asks one server for the texts under these keys.
pub(crate) fn get_all(keys: &[String]) -> Cmd {
    let mut get = redis::cmd("MGET");
    get.arg(keys);
    get
}

pub(crate) fn get(key: &str) -> Cmd {
    let mut get = redis::cmd("GET");
    get.arg(key);
    get
}

pub(crate) fn read_text(reply: &Value) -> Result<Option<&str>, RedisError> {
    match reply {
        Value::Nil => Ok(None),
        _ => text(reply).map(Some).ok_or_else(|| malformed(reply)),
    }
}
