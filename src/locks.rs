//! The names of the locks that exist, as a stream.
//!
//! The server has no list of its locks, because such a list would cost every first use of a lock a write in a slot of its
//! own. So the stream steps through all keys by SCAN, on each master in turn. It keeps the names that it has brought,
//! because SCAN may bring a key twice.

use crate::engine::runtime;
use crate::engine::session::Handle;
use crate::protocol::key::{self, Lock};
use crate::protocol::lookup;
use crate::transport::link::Lane;
use crate::transport::route::Master;
use crate::types::error::{ALL_LOCKS, Error};
use crate::types::limits::call_limit;
use futures::stream::{self, StreamExt as _};
use redis::RedisError;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio_stream::Stream;

type Name = Result<String, Error>;

/// The names of the locks that exist: see [`Client::locks`](crate::Client::locks).
///
/// The stream keeps the client's tasks alive. The stream sends nothing before it is polled.
#[must_use = "a stream does nothing unless it is polled"]
pub struct Locks {
    names: Pin<Box<dyn Stream<Item = Name> + Send>>,
}

impl Locks {
    pub(crate) fn new(handle: Arc<Handle>, pattern: String) -> Self {
        let search = Search {
            handle,
            pattern,
            masters: None,
            cursor: 0,
            names: Names::default(),
        };
        Self {
            names: Box::pin(stream::unfold(search, Search::next).fuse()),
        }
    }

    /// Waits for the next name, as `StreamExt::next` does, and returns `None` when the stream has ended.
    ///
    /// # Cancel safety
    /// You may drop the future and call again: the stream skips nothing.
    ///
    /// # Errors
    /// See [`Client::locks`](crate::Client::locks).
    pub async fn next(&mut self) -> Option<Result<String, Error>> {
        tokio_stream::StreamExt::next(self).await
    }
}

impl Stream for Locks {
    type Item = Name;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.names.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").finish_non_exhaustive()
    }
}

struct Search {
    handle: Arc<Handle>,
    pattern: String,
    /// The masters that are still to be searched, the present one last. `None`: the search has not begun.
    masters: Option<Vec<Master>>,
    /// Where the next step on the present master begins.
    cursor: u64,
    names: Names,
}

impl Search {
    async fn next(mut self) -> Option<(Name, Self)> {
        loop {
            if let Some(name) = self.names.found.pop_front() {
                return Some((name, self));
            }
            match self.step().await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.masters = Some(Vec::new());
                    return Some((Err(error), self));
                }
            }
        }
    }

    /// Looks at the next keys. Returns false if there are none left.
    async fn step(&mut self) -> Result<bool, Error> {
        if self.masters.as_ref().is_some_and(Vec::is_empty) {
            return Ok(false);
        }
        runtime::check_timers()?;
        let session = &self.handle.session;
        let shared = self.handle.shared();
        if session.is_closed() {
            let lock = ALL_LOCKS.to_owned();
            return Err(Error::Shutdown { lock });
        }
        let failed = |error: RedisError| Error::of_server(ALL_LOCKS, error);
        let masters = match &mut self.masters {
            Some(masters) => masters,
            None => self.masters.insert(session.route.masters().map_err(failed)?),
        };
        let Some(master) = masters.last() else {
            return Ok(false);
        };
        let scan = lookup::scan(&shared.prefix, &self.pattern, self.cursor);
        let limit = call_limit(shared.lease);
        let call = session.route.command_to(master, Lane::Users, limit, &scan);
        let reply = shared.registry.unless_ended(call).await;
        let page = reply.and_then(lookup::read_page).map_err(failed)?;
        self.cursor = page.next.unwrap_or(0);
        if page.next.is_none() {
            masters.pop();
        }
        self.names.add(&shared.prefix, page.keys);
        Ok(true)
    }
}

/// Names in the order in which the search finds them, each once.
#[derive(Default)]
struct Names {
    /// What the stream has not brought yet.
    found: VecDeque<Name>,
    /// All keys so far: SCAN may bring a key again, above all while the server's table of keys grows.
    seen: HashSet<Vec<u8>>,
}

impl Names {
    fn add(&mut self, prefix: &str, keys: Vec<Vec<u8>>) {
        for key in keys {
            if !self.seen.contains(&key) {
                self.found.extend(name_of(prefix, &key));
                self.seen.insert(key);
            }
        }
    }
}

/// `None`: the key is not that of a lock's state.
fn name_of(prefix: &str, key: &[u8]) -> Option<Name> {
    let foreign = || Error::ForeignKey { key: key.to_vec() };
    let name = match std::str::from_utf8(key) {
        Ok(key) => key::name_of_state(prefix, key)?,
        Err(_) => return Some(Err(foreign())),
    };
    let lock = Lock::new(prefix, name.into());
    Some(match lock.check_name() {
        Ok(()) if lock.state.as_bytes() == key => Ok(lock.name.to_string()),
        _ => Err(foreign()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_scan_brings_again_brings_no_name_again() {
        let mut names = Names::default();
        for keys in [["{a}", "{b}"], ["{b}", "{c}"]] {
            let keys = keys.map(|key| format!("fairlock:{key}").into_bytes());
            names.add("fairlock", keys.into());
        }
        let found: Result<Vec<_>, _> = names.found.into_iter().collect();
        assert_eq!(found.ok(), Some(["a", "b", "c"].map(str::to_owned).into()));
    }

    #[test]
    fn keys_of_states_name_locks_and_keys_that_no_lock_can_have_are_errors() {
        let name = |key: &[u8]| name_of("fairlock", key);
        assert!(matches!(name(b"fairlock:{%7D%257D}"), Some(Ok(name)) if name == "}%7D"));
        assert!(name(b"fairlock:{a}:queue").is_none());
        let long = format!("fairlock:{{{}}}", "x".repeat(1025));
        let unescaped = b"fairlock:{%41}";
        for key in [&b"fairlock:{\xff}"[..], b"fairlock:{}", long.as_bytes(), unescaped] {
            assert!(matches!(name(key), Some(Err(Error::ForeignKey { .. }))), "{key:?}");
        }
        let error = name(b"fairlock:{\xff}")
            .and_then(Result::err)
            .map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.starts_with("the key fairlock:{\\xff} cannot be a lock's")));
    }
}
