//! Notes of waits: what an owner waits for, for those who look for a deadlock.
//!
//! A note is the text under `PREFIX:waits:OWNER`, and expires. It has one entry for each wait of the owner's process:
//! `REQUEST LENGTH KEY`, with the key of the lock's state and its length in bytes, one entry directly behind the other. A
//! note is a hint: whoever reads it asks the lock whether the request waits.

use super::key::{self, Lock};
use super::name::RequestName;
use redis::Cmd;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// An owner has one wait, or a few. What else stands in a note is not believed.
const MOST: usize = 16;

pub(crate) use super::key::waits as key_of;

/// Returns the key of an owner's note, and the command that writes the note.
pub(crate) fn note<'a>(
    prefix: &str,
    owner: &str,
    waits: impl Iterator<Item = (&'a str, &'a str)>,
    lasts: Duration,
) -> (String, Cmd) {
    let mut text = String::new();
    for (request, state) in waits.take(MOST) {
        // Writing to a string does not fail.
        let _ = write!(text, "{request} {} {state}", state.len());
    }
    let key = key::waits(prefix, owner);
    let mut set = redis::cmd("SET");
    set.arg(&key).arg(text).arg("PX").arg(lasts.as_millis() as u64);
    (key, set)
}

/// Returns the key of an owner's note, and the command that deletes the note.
pub(crate) fn forget(prefix: &str, owner: &str) -> (String, Cmd) {
    let key = key::waits(prefix, owner);
    let mut delete = redis::cmd("DEL");
    delete.arg(&key);
    (key, delete)
}

/// Reads an owner's note: the requests of that owner, and their locks. Others can write notes too, so what is not of the
/// owner or of the prefix is left out.
pub(crate) fn read(prefix: &str, owner: &str, mut text: &str) -> Vec<(String, Arc<Lock>)> {
    let mut waits = Vec::new();
    while let Some((request, state, rest)) = entry(text).filter(|_| waits.len() < MOST) {
        text = rest;
        if named_owner(request) != Some(owner) {
            continue;
        }
        if let Some(name) = key::name_of_state(prefix, state) {
            let lock = Lock::of_key(state.to_owned(), name.into());
            waits.push((request.to_owned(), Arc::new(lock)));
        }
    }
    waits
}

fn entry(text: &str) -> Option<(&str, &str, &str)> {
    let (request, rest) = text.split_once(' ')?;
    let (length, rest) = rest.split_once(' ')?;
    let (state, rest) = rest.split_at_checked(length.parse().ok()?)?;
    Some((request, state, rest))
}

/// The owner that a request names, unless that is the owner of a single request.
pub(crate) fn named_owner(request: &str) -> Option<&str> {
    let owner = RequestName::read(request)?.named_owner?;
    (!owner.contains([':', '*'])).then_some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written_and_nothing_foreign_is() {
        let states = ["p:{a}", "p:{b 7 ä\n}", "q:{c}", "p:{d}"];
        let requests = ["w0a:1:me", "r0a:2:me", "w0a:3:me", "w0a:4:you"];
        let (key, set) = note("p", "me", requests.into_iter().zip(states), Duration::from_secs(9));
        assert_eq!(key, "p:waits:me");
        let arg = set.args_iter().nth(2);
        let Some(redis::Arg::Simple(text)) = arg else {
            unreachable!("a text")
        };
        let text = std::str::from_utf8(text).expect("UTF-8");
        let read = |owner| -> Vec<(String, String)> {
            let waits = super::read("p", owner, text).into_iter();
            waits.map(|(request, lock)| (request, lock.name.to_string())).collect()
        };
        let expected = [("w0a:1:me", "a"), ("r0a:2:me", "b 7 ä\n")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(read("me"), expected);
        assert_eq!(read("them"), []);
        for broken in ["", "w0a:1:me", "w0a:1:me 5", "w0a:1:me 99 p:{a}", "w0a:1:me x p:{a}"] {
            assert!(super::read("p", "me", broken).is_empty(), "{broken:?}");
        }
    }

    #[test]
    fn the_owner_of_a_single_request_is_not_named() {
        assert_eq!(named_owner("w0a:1:me"), Some("me"));
        for request in ["w0a:1", "w0a:2:0a:1", "r0a:1:*3", "nonsense"] {
            assert_eq!(named_owner(request), None, "{request}");
        }
    }
}
