//! Parts of the messages of errors.

use super::{ALL_LOCKS, is_end_of_runtime};
use crate::types::mode::Policy;
use redis::RedisError;
use std::time::Duration;

/// Tells what a grant lacked, and what to do about it.
pub(super) fn short_of(reached: usize, wanted: usize) -> (String, &'static str) {
    if reached < wanted {
        let what = format!("reached {reached} of {wanted} replicas");
        (what, "check that the replicas are up and in step")
    } else {
        let what = "did not reach the server's own disk".to_owned();
        (what, "allow more time than the server's `appendfsync` may take")
    }
}

pub(super) fn with(policy: Policy) -> String {
    match policy {
        Policy::Bounded => "with a bound on its readers, as a semaphore or by max_readers".to_owned(),
        _ => format!("with the policy {policy:?} and without a bound on its readers"),
    }
}

/// Tells what to do about a missing reply.
pub(super) fn again(source: &RedisError) -> &'static str {
    match is_end_of_runtime(source) {
        true => "connect a new client, on a runtime that lives as long as it is used",
        false => "check that the server is up and reachable, then retry",
    }
}

pub(super) fn for_lock(lock: &str) -> String {
    match lock {
        "" => String::new(),
        lock => format!(" for lock {}", quoted(lock)),
    }
}

pub(super) fn range(least: &Duration, most: &Duration) -> String {
    match *most {
        Duration::MAX => format!("at least {least:?}"),
        _ => format!("between {least:?} and {most:?}"),
    }
}

/// A lock's name in a message.
pub(super) fn quoted(lock: &str) -> String {
    match lock {
        ALL_LOCKS => "*".to_owned(),
        lock => format!("{:?}", shown(lock)),
    }
}

/// Shortens a name for a message, because a name may be a mebibyte long.
pub(crate) fn shown(name: &str) -> String {
    const SHOWN_CHARS: usize = 80;
    match name.char_indices().nth(SHOWN_CHARS) {
        None => name.to_owned(),
        Some((end, _)) => format!("{}... ({} bytes)", &name[..end], name.len()),
    }
}
