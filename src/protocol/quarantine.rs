//! The commands by which the clients of a prefix notice that their server has restarted: they keep its run id in one
//! key.

use super::hello::Dialect;
use redis::{Cmd, Value};

/// The prefix of the locks that several servers keep, so that nobody mixes them up with those of one server.
pub(crate) fn prefix_of_quorum(prefix: &str) -> String {
    format!("{prefix}.q")
}

/// The key in which the clients of a quorum keep what they must agree on.
pub(crate) fn stamp_key(prefix: &str) -> String {
    format!("{prefix}:quorum")
}

const LIFE: &str = include_str!("../../lua/life.lua");

pub(crate) fn key(prefix: &str) -> String {
    format!("{prefix}:life")
}

pub(crate) fn info() -> Cmd {
    let mut info = redis::cmd("INFO");
    info.arg("server");
    info
}

/// The run id in the reply to [`info`].
pub(crate) fn run_id(info: &str) -> Option<&str> {
    info.lines()
        .find_map(|line| line.strip_prefix("run_id:"))
        .map(str::trim)
}

/// The command whose reply tells for how many milliseconds the clients have known this run of the server.
///
/// `stamp`: a key and a text. The script refuses a server whose key has another text.
pub(crate) fn age(dialect: Dialect, key: &str, run_id: &str, stamp: Option<(&str, &str)>) -> Cmd {
    let script = match dialect {
        Dialect::Plain => LIFE.to_owned(),
        Dialect::Flags => format!("#!lua flags=allow-oom\n{LIFE}"),
    };
    let mut eval = redis::cmd("EVAL");
    match stamp {
        None => eval.arg(script).arg(1).arg(key).arg(run_id),
        Some((stamp_key, stamp)) => eval.arg(script).arg(2).arg(key).arg(stamp_key).arg(run_id).arg(stamp),
    };
    eval
}

/// Reads the reply to [`age`]. `None`: no script answers so.
pub(crate) fn read_age(reply: &Value) -> Option<u64> {
    match reply {
        Value::Int(age) => u64::try_from(*age).ok(),
        _ => None,
    }
}
