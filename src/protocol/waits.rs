//! Notes of waits: what an owner waits for, for those who look for a deadlock.
//!
//! A note is the text under `PREFIX:waits:OWNER`, and expires. It has one entry for each wait of the owner's process:
//! `REQUEST LENGTH KEY`, with the key of the lock's state and its length in bytes, one entry directly behind the other. A
//! note is a hint: whoever reads it asks the lock whether the request waits. An entry with the length 0 and no key names
//! a hold that its user has. The server may know others of the same client, which end without the owner: those that their
//! users have left, and late copies of calls.

use super::key::{self, Lock};
use super::name::RequestName;
use redis::Cmd;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// An owner has one wait, or a few, and some holds. What else stands in a note is not believed.
const MOST: usize = 64;

pub(crate) use super::key::waits as key_of;

/// What an owner has noted.
#[derive(Debug, Default)]
pub(crate) struct Note {
    /// The requests that wait, and their locks.
    pub(crate) waits: Vec<(String, Arc<Lock>)>,
    /// The holds that their users have.
    pub(crate) holds: Vec<String>,
}

/// Returns the key of an owner's note, and the command that writes the note. `waits`: requests with the keys of their
/// locks. `holds`: the holds that their users have.
pub(crate) fn note<'a>(
    prefix: &str,
    owner: &str,
    waits: impl Iterator<Item = (&'a str, &'a str)>,
    holds: impl Iterator<Item = &'a str>,
    lasts: Duration,
) -> (String, Cmd) {
    let mut text = String::new();
    for (request, state) in waits.chain(holds.map(|request| (request, ""))).take(MOST) {
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

/// Reads an owner's note. Others can write notes too, so what is not of the owner or of the prefix is left out.
pub(crate) fn read(prefix: &str, owner: &str, mut text: &str) -> Note {
    let mut note = Note::default();
    while let Some((request, state, rest)) = entry(text).filter(|_| note.waits.len() + note.holds.len() < MOST) {
        text = rest;
        if named_owner(request) != Some(owner) {
            continue;
        }
        if state.is_empty() {
            note.holds.push(request.to_owned());
        } else if let Some(name) = key::name_of_state(prefix, state) {
            let lock = Lock::of_key(state.to_owned(), name.into());
            note.waits.push((request.to_owned(), Arc::new(lock)));
        }
    }
    note
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
        let holds = ["w0a:5:me", "w0a:6:you"].into_iter();
        let (key, set) = note(
            "p",
            "me",
            requests.into_iter().zip(states),
            holds,
            Duration::from_secs(9),
        );
        assert_eq!(key, "p:waits:me");
        let arg = set.args_iter().nth(2);
        let Some(redis::Arg::Simple(text)) = arg else {
            unreachable!("a text")
        };
        let text = std::str::from_utf8(text).expect("UTF-8");
        let read = |owner| -> Vec<(String, String)> {
            let waits = super::read("p", owner, text).waits.into_iter();
            waits.map(|(request, lock)| (request, lock.name.to_string())).collect()
        };
        let expected = [("w0a:1:me", "a"), ("r0a:2:me", "b 7 ä\n")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(read("me"), expected);
        assert_eq!(read("them"), []);
        assert_eq!(super::read("p", "me", text).holds, ["w0a:5:me"]);
        for broken in ["", "w0a:1:me", "w0a:1:me 5", "w0a:1:me 99 p:{a}", "w0a:1:me x p:{a}"] {
            let Note { waits, holds } = super::read("p", "me", broken);
            assert!(waits.is_empty() && holds.is_empty(), "{broken:?}");
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
