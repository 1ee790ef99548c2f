//! Names of keys and channels. All keys of one lock lie in one slot of a cluster.

use crate::types::error::{Error, shown};
use std::borrow::Cow;
use std::sync::Arc;

/// The client refuses longer names, because every command and message about a lock carries its name.
pub(crate) const MAX_NAME_BYTES: usize = 1024;

/// A lock as the client knows it: its name and its keys.
#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) name: Arc<str>,
    pub(crate) state: Arc<str>,
    pub(crate) queue: String,
    pub(crate) leases: String,
}

impl Lock {
    pub(crate) fn new(prefix: &str, name: Arc<str>) -> Self {
        let state = format!("{prefix}:{{{}}}", escape(&name));
        Self::of_key(state, name)
    }

    /// The lock whose state lies under a key, as a message names it.
    pub(crate) fn of_key(state: String, name: Arc<str>) -> Self {
        Self {
            queue: format!("{state}:q"),
            leases: format!("{state}:l"),
            state: state.into(),
            name,
        }
    }

    pub(crate) fn check_name(&self) -> Result<(), Error> {
        let why = match self.name.len() {
            0 => "it is empty; give the lock a name of at least one character",
            n if n > MAX_NAME_BYTES => "it is longer than 1024 bytes; use a digest of it",
            _ => return Ok(()),
        };
        Err(Error::InvalidName {
            lock: shown(&self.name),
            why,
        })
    }
}

/// Whether a lock's state may lie under this key.
pub(crate) fn is_state(prefix: &str, key: &str) -> bool {
    escaped_name(prefix, key).is_some()
}

/// The name of the lock whose state lies under a key.
pub(crate) fn name_of_state(prefix: &str, key: &str) -> Option<String> {
    let name = escaped_name(prefix, key)?;
    Some(name.replace("%7D", "}").replace("%25", "%"))
}

fn escaped_name<'a>(prefix: &str, key: &'a str) -> Option<&'a str> {
    let name = key.strip_prefix(prefix)?.strip_prefix(":{")?.strip_suffix('}')?;
    (!name.contains('}')).then_some(name)
}

/// A cluster hashes the text between the first `{` and the next `}`, so a name's own `}` must not end it.
fn escape(name: &str) -> Cow<'_, str> {
    if name.contains(['%', '}']) {
        Cow::Owned(name.replace('%', "%25").replace('}', "%7D"))
    } else {
        Cow::Borrowed(name)
    }
}

/// The beginning of every client's channel.
pub(crate) fn channel_base(prefix: &str) -> String {
    format!("{prefix}:c:")
}

/// The channel on which clients announce that they listen to events.
pub(crate) fn audience_channel(prefix: &str) -> String {
    format!("{prefix}:listen")
}

/// The kinds of channels of a single server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelKind {
    Grants,
    Events,
    Announcements,
}

pub(crate) fn kind_of_channel(prefix: &str, channel: &str) -> ChannelKind {
    let rest = channel.strip_prefix(prefix);
    if rest.is_some_and(|rest| rest.starts_with(":c:")) {
        ChannelKind::Grants
    } else if channel.ends_with(":events") {
        ChannelKind::Events
    } else {
        ChannelKind::Announcements
    }
}

/// The channel of a lock's events.
pub(crate) fn event_channel(state: &str) -> String {
    format!("{state}:events")
}

#[cfg(feature = "cluster")]
pub(crate) fn is_event_channel(channel: &str) -> bool {
    channel.ends_with("}:events")
}

/// The pattern of all locks' events under a prefix.
pub(crate) fn event_pattern(prefix: &str) -> String {
    literal(prefix) + ":{*}:events"
}

/// The pattern of the states of all locks under a prefix whose names match a pattern.
pub(crate) fn state_pattern(prefix: &str, names: &str) -> String {
    format!("{}:{{{}}}", literal(prefix), escape(names))
}

/// A pattern in which every character of a text stands for itself.
fn literal(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// The name of the lock whose events come on a channel.
pub(crate) fn name_of_event_channel(prefix: &str, channel: &str) -> Option<String> {
    name_of_state(prefix, channel.strip_suffix(":events")?)
}

/// The key of a client's introduction.
pub(crate) fn introduction(prefix: &str, client: &str) -> String {
    format!("{prefix}:client:{client}")
}

/// The key of the note that tells what an owner waits for.
pub(crate) fn waits(prefix: &str, owner: &str) -> String {
    format!("{prefix}:waits:{owner}")
}

pub(crate) fn check_prefix(prefix: &str) -> Result<(), Error> {
    if prefix.is_empty() || prefix.len() > 128 || prefix.contains(['{', '}']) {
        return Err(Error::InvalidPrefix { prefix: shown(prefix) });
    }
    Ok(())
}

pub(crate) fn check_label(label: Option<&str>) -> Result<(), Error> {
    match label {
        Some(label) if !(1..=128).contains(&label.len()) || !label.bytes().all(|b| b.is_ascii_graphic()) => {
            Err(Error::InvalidLabel { label: shown(label) })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(name: &str) -> Lock {
        Lock::new("fairlock", name.into())
    }

    /// The part of a key that Redis Cluster hashes.
    fn hash_tag(key: &str) -> &str {
        key.split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'))
            .map(|(tag, _)| tag)
            .filter(|tag| !tag.is_empty())
            .unwrap_or(key)
    }

    #[test]
    fn plain_names_stay_readable() {
        assert_eq!(&*lock("invoice:42").state, "fairlock:{invoice:42}");
        assert_eq!(lock("invoice:42").leases, "fairlock:{invoice:42}:l");
    }

    #[test]
    fn all_keys_of_any_name_share_one_hash_tag() {
        for name in ["a", "}", "{", "{}", "}{", "a}b", "%7D", "\0", " ", "}:q"] {
            let lock = lock(name);
            assert_eq!(hash_tag(&lock.state), hash_tag(&lock.queue), "{name:?}");
            assert_eq!(hash_tag(&lock.state), hash_tag(&lock.leases), "{name:?}");
        }
    }

    #[test]
    fn a_name_survives_its_event_channel() {
        for name in ["a", "}", "%7D", "%257D", "{}", "a}:events"] {
            let channel = event_channel(&lock(name).state);
            assert_eq!(name_of_event_channel("fairlock", &channel).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_name_survives_the_key_of_its_state_and_other_keys_name_no_lock() {
        for name in ["a:1", "}", "}%7D", "%257D", "{}"] {
            assert_eq!(name_of_state("fairlock", &lock(name).state).as_deref(), Some(name));
        }
        for key in ["fairlock:{a}:q", "fairlock:{a}}", "other:{a}", "fairlock:client:1"] {
            assert_eq!(name_of_state("fairlock", key), None, "{key}");
        }
    }

    #[test]
    fn a_pattern_of_states_takes_the_prefix_literally_and_names_as_they_are_stored() {
        assert_eq!(state_pattern("fairlock", "job:*"), "fairlock:{job:*}");
        assert_eq!(state_pattern("o[t]*", "%}?"), "o\\[t\\]\\*:{%25%7D?}");
    }

    #[test]
    fn different_names_never_share_a_key() {
        let names = ["a", "a}:q", "a%7D:q", "a:q", "{a", "a}", "%", "%25"];
        let mut keys: Vec<_> = names
            .iter()
            .map(|n| lock(n))
            .flat_map(|l| [l.state.to_string(), l.queue, l.leases])
            .collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), names.len() * 3);
    }
}
