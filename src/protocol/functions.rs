//! The library of functions: the seven scripts as a server from 7 on keeps them.
//!
//! `lock.lua` runs once, when the server loads the library, and not in each call, so a function costs the server less than
//! the same script. Each client loads the library over each new command connection. The server may refuse, and may lose the
//! library at any time; then the client calls the scripts instead.

use super::reply::text;
use super::script::{LOCK, SOURCES};
use crate::types::error::{is_of_replica, is_transient};
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use std::sync::LazyLock;

struct Library {
    /// With a hash of the scripts, so that clients of several versions share a server.
    name: String,
    text: String,
    /// Their names, in the order of the scripts.
    functions: [String; 7],
}

static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let own = SOURCES.map(|source| source.text.to_owned());
    #[cfg(feature = "__testing")]
    if let Some(changed) = super::script::replaced::texts() {
        // Each function has a `lock.lua` of its own, because a test may have changed that too.
        return Library::of("", changed);
    }
    Library::of(LOCK, own)
});

impl Library {
    fn of(shared: &str, own: [String; 7]) -> Self {
        let texts = shared.to_owned() + &own.concat();
        let name = format!("fairlock_{}", &redis::Script::new(&texts).get_hash()[..16]);
        let functions = SOURCES.map(|source| format!("{name}_{}", source.name));
        let mut text = format!("#!lua name={name}\n{shared}");
        for ((function, source), own) in functions.iter().zip(SOURCES).zip(own) {
            let flags = match source.flags {
                "" => String::new(),
                flag => format!("'{flag}'"),
            };
            text += &format!("redis.register_function{{function_name='{function}',flags={{{flags}}},");
            text += &format!("callback=function(KEYS, ARGV)\n{own}end}}\n");
        }
        Self { name, text, functions }
    }
}

/// The name of the function that does what the script of that number does.
pub(super) fn name_of(script: usize) -> &'static str {
    &LIBRARY.functions[script]
}

/// Whether a connection's server has the functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Functions {
    /// The server refuses them: it is too old, or its user has no right to them.
    Refused,
    /// The server has lost them, or could not take them at that moment: load them again.
    Missing,
    Loaded,
}

/// The command that loads the library.
pub(crate) fn load() -> Cmd {
    let mut load = redis::cmd("FUNCTION");
    load.arg("LOAD").arg(&LIBRARY.text);
    load
}

/// Reads the reply to [`load`].
pub(crate) fn read_loaded(reply: &Result<Value, RedisError>) -> Functions {
    match reply {
        Ok(name) if text(name) == Some(&LIBRARY.name) => Functions::Loaded,
        Err(error) if says(error, "library '") && says(error, "already exists") => Functions::Loaded,
        // For as long as it is one, and a new master gets a new connection.
        Err(error) if is_of_replica(error) => Functions::Refused,
        Err(error) if is_transient(error) => Functions::Missing,
        _ => Functions::Refused,
    }
}

/// What the error of a call of a function says of the functions. `None`: the error is the call's own.
pub(super) fn read_refusal(error: &RedisError) -> Option<Functions> {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::ResponseError) if says(error, "function not found") => {
            Some(Functions::Missing)
        }
        // The server names the command, because the user may not run it or the server has renamed it.
        ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::ResponseError) if says(error, "'fcall'") => {
            Some(Functions::Refused)
        }
        _ => None,
    }
}

fn says(error: &RedisError, words: &str) -> bool {
    let detail = error.detail().unwrap_or_default();
    error.kind() != ErrorKind::Io && detail.to_ascii_lowercase().contains(words)
}

/// The seam by which tests read the library.
#[cfg(feature = "__testing")]
pub(crate) mod seen {
    /// Returns the library of functions as it is sent: its name and its text.
    pub fn library() -> (&'static str, &'static str) {
        (&super::LIBRARY.name, &super::LIBRARY.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &str) -> RedisError {
        let reply = redis::parse_redis_value(format!("-{words}\r\n").as_bytes());
        reply.and_then(Value::extract_error).expect_err("an error reply")
    }

    #[test]
    fn a_library_that_is_there_already_is_loaded() {
        let loaded = |reply| read_loaded(&reply);
        assert_eq!(
            loaded(Ok(Value::BulkString(LIBRARY.name.clone().into()))),
            Functions::Loaded
        );
        assert_eq!(loaded(Ok(Value::Okay)), Functions::Refused, "no such server");
        assert_eq!(
            loaded(Err(said("ERR Library 'fairlock_0' already exists"))),
            Functions::Loaded
        );
        assert_eq!(loaded(Err(said("LOADING Redis is loading"))), Functions::Missing);
        for words in [
            "ERR unknown command 'FUNCTION', with args",
            "NOPERM this user has no permissions",
            "OOM command not",
            "READONLY You can't write against a read only replica.",
            "ERR Function fairlock_0_acquire already exists",
        ] {
            assert_eq!(loaded(Err(said(words))), Functions::Refused, "{words}");
        }
    }

    #[test]
    fn only_a_refusal_of_the_call_itself_concerns_the_functions() {
        let refused = [
            ("ERR Function not found", Some(Functions::Missing)),
            (
                "NOPERM this user has no permissions to run the 'fcall' command",
                Some(Functions::Refused),
            ),
            (
                "ERR unknown command 'FCALL', with args beginning with:",
                Some(Functions::Refused),
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                None,
            ),
            ("OOM command not allowed when used memory > 'maxmemory'.", None),
            ("WRONGTYPE Operation against a key", None),
        ];
        for (words, expected) in refused {
            assert_eq!(read_refusal(&said(words)), expected, "{words}");
        }
    }
}
