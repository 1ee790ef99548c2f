//! Finding the locks of a server, which the library does not do: by their keys, `PREFIX:{NAME}` (see design.md).

use crate::outcome::{Failure, Status};
use crate::server::ServerArgs;
use crate::text::{safe, safe_bytes};
use fairlock::redis::aio::MultiplexedConnection;
use fairlock::redis::{ErrorKind, ServerErrorKind};
use fairlock::{Client, Error};
use futures::stream::{self, StreamExt};
use std::collections::BTreeSet;

/// Looks at so many locks at a time.
const AT_ONCE: usize = 64;

/// A lock and what it looks like.
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) status: fairlock::Status,
}

impl Found {
    pub(crate) fn in_use(&self) -> bool {
        self.status.holding + self.status.waiting > 0
    }

    /// The busiest first.
    pub(crate) fn order(&self, other: &Self) -> std::cmp::Ordering {
        let busy = |found: &Self| (found.status.waiting, found.status.holding);
        busy(other).cmp(&busy(self)).then_with(|| self.name.cmp(&other.name))
    }
}

/// Looks at all locks whose names match, in no particular order. Also says what could not be looked at.
pub(crate) async fn find(
    server: &ServerArgs,
    client: &Client,
    redis: &mut MultiplexedConnection,
    pattern: Option<&str>,
) -> Result<(Vec<Found>, Vec<String>), Failure> {
    let (names, mut complaints) = names(server, redis, pattern).await?;
    let looks = stream::iter(names).map(|name| async move {
        let status = client.rw_lock(name.as_str()).status().await;
        (name, status)
    });
    let mut looks = looks.buffer_unordered(AT_ONCE);
    let mut found = Vec::new();
    while let Some((name, status)) = looks.next().await {
        match status {
            Ok(status) => found.push(Found { name, status }),
            // One lock's trouble, such as a key of another kind, should not hide the others.
            Err(error @ (Error::Server { .. } | Error::InvalidName { .. })) => complaints.push(error.to_string()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok((found, complaints))
}

/// All waiters of a lock, not only the first thousand.
pub(crate) async fn complete(client: &Client, found: &mut Found) -> Result<(), Failure> {
    let lock = client.rw_lock(found.name.as_str());
    while found.status.waiters.len() < found.status.waiting {
        let more = lock.status_from(found.status.waiters.len()).await?;
        if more.waiters.is_empty() {
            break;
        }
        found.status.waiters.extend(more.waiters);
    }
    Ok(())
}

/// Says so if nothing of a lock is stored. The state of a lock stays for a minute after its last lease, also while the lock
/// is free.
pub(crate) async fn must_exist(server: &ServerArgs, name: &str) -> Result<(), Failure> {
    if exists(server, name).await? {
        return Ok(());
    }
    let (prefix, name) = (safe(&server.prefix), safe(name));
    let message = format!("no such lock under prefix {prefix}: {name} (never used, or unused for a minute)");
    Err(Failure::new(Status::NO_LOCK, message))
}

pub(crate) async fn exists(server: &ServerArgs, name: &str) -> Result<bool, Failure> {
    let key = format!("{}:{{{}}}", server.prefix, escaped_for_key(name));
    let mut seq = redis::cmd("HMGET");
    seq.arg(key).arg("seq");
    let (seq,) = seq
        .query_async::<(Option<String>,)>(&mut server.redis().await?)
        .await
        .map_err(|error| server.refused("cannot look for the lock", &error))?;
    Ok(seq.is_some())
}

/// As the library writes names into keys.
fn escaped_for_key(name: &str) -> String {
    name.replace('%', "%25").replace('}', "%7D")
}

async fn names(
    server: &ServerArgs,
    redis: &mut MultiplexedConnection,
    pattern: Option<&str>,
) -> Result<(BTreeSet<String>, Vec<String>), Failure> {
    let pattern = escaped_for_key(pattern.unwrap_or("*"));
    let glob = format!("{}:{{{pattern}}}", escaped(&server.prefix));
    let mut names = BTreeSet::new();
    let mut unreadable = BTreeSet::new();
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(&glob)
            .arg("COUNT")
            .arg(1000)
            .arg("TYPE")
            .arg("hash");
        let page = scan.query_async::<(u64, Vec<Vec<u8>>)>(redis).await;
        let (next, keys) = page.map_err(|error| {
            let denied = error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm);
            let what = match denied {
                true => "cannot look for locks, for which its user needs +scan",
                false => "cannot look for locks",
            };
            server.refused(what, &error)
        })?;
        for key in keys {
            match String::from_utf8(key) {
                Ok(key) => names.extend(name_of_key(&server.prefix, &key)),
                Err(error) => _ = unreadable.insert(error.into_bytes()),
            }
        }
        if next == 0 {
            break;
        }
        cursor = next;
    }
    let not_utf8 = |key: &Vec<u8>| format!("not UTF-8, hence no lock of ours: the key {}", safe_bytes(key));
    Ok((names, unreadable.iter().map(not_utf8).collect()))
}

fn name_of_key(prefix: &str, key: &str) -> Option<String> {
    let name = key.strip_prefix(prefix)?.strip_prefix(":{")?.strip_suffix('}')?;
    let ours = !name.is_empty() && !name.contains('}');
    ours.then(|| name.replace("%7D", "}").replace("%25", "%"))
}

/// A text of which every character stands for itself in a pattern.
fn escaped(text: &str) -> String {
    let special = |c| matches!(c, '*' | '?' | '[' | ']' | '\\');
    text.chars()
        .flat_map(|c| special(c).then_some('\\').into_iter().chain([c]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_keys_of_locks_only() {
        let name = |key| name_of_key("fairlock", key);
        assert_eq!(name("fairlock:{a:1}").as_deref(), Some("a:1"));
        assert_eq!(name("fairlock:{%7D%257D}").as_deref(), Some("}%7D"));
        for key in [
            "fairlock:{}",
            "fairlock:{a}:queue",
            "fairlock:{a}}",
            "other:{a}",
            "fairlock:client:1",
        ] {
            assert_eq!(name(key), None, "{key}");
        }
    }
}
