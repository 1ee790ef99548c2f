//! What a server says of itself when a client connects: the reply to HELLO, and which scripts it understands.

use super::reply::text;
use redis::Value;

/// The first line that a server accepts in a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Servers before Redis 7 know no flags.
    Plain,
    /// Later servers read flags in a `#!lua` line.
    Flags,
}

impl Dialect {
    /// The dialect of a server of that version.
    pub(crate) fn of(version: &str) -> Self {
        match version.split('.').next().and_then(|major| major.parse::<u32>().ok()) {
            Some(major) if major < 7 => Self::Plain,
            _ => Self::Flags,
        }
    }
}

/// What a server says of itself. A field is empty if the server leaves it out.
#[derive(Debug, Default)]
pub(crate) struct Hello {
    pub(crate) version: String,
    pub(crate) mode: String,
    pub(crate) role: String,
}

impl Hello {
    /// Reads the reply to HELLO: a map or, in RESP2, a list of pairs.
    pub(crate) fn read(reply: &Value) -> Self {
        let mut hello = Self::default();
        let mut note = |key: &Value, value: &Value| {
            let (Some(key), Some(value)) = (text(key), text(value)) else {
                return;
            };
            match key {
                "version" => hello.version = value.to_owned(),
                "mode" => hello.mode = value.to_owned(),
                "role" => hello.role = value.to_owned(),
                _ => {}
            }
        };
        match reply {
            Value::Map(pairs) => pairs.iter().for_each(|(key, value)| note(key, value)),
            Value::Array(items) => items.chunks_exact(2).for_each(|pair| note(&pair[0], &pair[1])),
            _ => {}
        }
        hello
    }

    /// Whether the server is a replica of one master, outside of a cluster.
    pub(crate) fn is_of_replica(&self) -> bool {
        // Dragonfly and Kvrocks use the former word.
        matches!(self.role.as_str(), "replica" | "slave") && self.mode != "cluster"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_say_that_they_are_replicas_in_two_words() {
        let text = |s: &str| Value::BulkString(s.into());
        let says = |role: &str, mode: &str| {
            let hello = ["role", role, "mode", mode].map(text).to_vec();
            Hello::read(&Value::Array(hello)).is_of_replica()
        };
        assert!(says("replica", "standalone") && says("slave", "standalone"));
        assert!(!says("master", "standalone") && !says("active-replica", "standalone"));
        assert!(!says("replica", "cluster"), "its table tells");
        assert!(!Hello::read(&Value::Nil).is_of_replica());
    }

    #[test]
    fn servers_before_7_get_scripts_without_flags() {
        assert_eq!(Dialect::of("6.2.14"), Dialect::Plain);
        assert_eq!(Dialect::of("7.0.15"), Dialect::Flags);
        assert_eq!(Dialect::of("10.0.0"), Dialect::Flags);
        assert_eq!(Dialect::of(""), Dialect::Flags);
    }
}
