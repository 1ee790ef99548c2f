//! The seam for tests: what `tests/attack` and others need to see and to replace. Each part of the seam lies in the
//! floor that it replaces.

use crate::protocol::name::RequestName;
use crate::protocol::snapshot::Snapshot;
use crate::protocol::{event, hello, key, message, reply};
use crate::quorum::QuorumGuard;
use crate::state::request::Heard;
use crate::transport::listener;
use crate::types::clock;
use std::collections::HashMap;

pub use crate::protocol::functions::seen::library;
pub use crate::protocol::script::replaced::{scripts, transform_scripts};
pub use crate::quorum::rules::seam::{Rule, break_rule};
pub use crate::quorum::tally::seam::{Order, Voter};
pub use crate::transport::simulated::{Connection, Network, OnPush};
pub use crate::types::clock::machine::suspend;
pub use crate::types::random::seeded::seed;

/// The servers whose votes a guard counts, by their numbers from 0 on.
pub fn voters<M>(guard: &QuorumGuard<M>) -> Vec<usize> {
    guard.voters()
}

/// The kinds of text that [`parse`] reads.
#[derive(Clone, Copy, Debug)]
pub enum Words {
    /// The reply of acquire, to a request that may queue.
    Acquire,
    /// The reply of acquire, to a request that may not queue.
    Try,
    /// The reply of release, about so many requests.
    Release(usize),
    /// The reply of renew, about so many requests: to read and to write by turns.
    Renew(usize),
    /// The reply of downgrade.
    Downgrade,
    /// The reply of evict.
    Evict,
    /// The reply of status.
    Status,
    /// The reply to HELLO.
    Hello,
    /// A message on a client's channel.
    Message,
    /// A message on a channel of events.
    Events,
    /// A client's introduction.
    Introduction,
    /// The name of a request.
    Request,
    /// The name of an owner.
    Owner,
}

/// Returns the `Debug` text of what the client reads, or `None` if it refuses the text.
pub fn parse(words: Words, value: &redis::Value) -> Option<String> {
    fn shown<T: std::fmt::Debug, E>(result: Result<T, E>) -> Option<String> {
        Some(format!("{:?}", result.ok()?))
    }
    let bytes = match value {
        redis::Value::BulkString(bytes) => bytes.as_slice(),
        _ => &[],
    };
    let text = std::str::from_utf8(bytes).ok();
    match words {
        Words::Acquire => shown(reply::Acquired::read(value, false)),
        Words::Try => shown(reply::Acquired::read(value, true)),
        Words::Release(asked) => shown(reply::read_released(value, asked)),
        Words::Renew(asked) => {
            let requests = ["r0a:1", "w0a:2"].into_iter().cycle().take(asked).collect::<Vec<_>>();
            shown(reply::read_renewed(value, requests.into_iter()))
        }
        Words::Downgrade => shown(reply::read_downgraded(value)),
        Words::Evict => shown(reply::read_evicted(value)),
        Words::Status => {
            let snapshot = Snapshot::read(value)?;
            let status = crate::Status::of(&snapshot, 0, &HashMap::new());
            Some(format!("{snapshot:?} {status:?}"))
        }
        Words::Hello => {
            let hello = hello::Hello::read(value);
            Some(format!("{:?} {}", hello::Dialect::of(&hello.version), hello.role))
        }
        Words::Message => shown(message::read_message(bytes).ok_or(())),
        Words::Events => Some(format!("{:?}", event::read_events("a", text?))),
        Words::Introduction => {
            let info = crate::ClientInfo::read("0a", text);
            Some(format!("{info:?} {info}"))
        }
        Words::Request => {
            let name = RequestName::read(text?)?;
            Some(format!("{:?}", (name.mode, name.client, name.owner()?)))
        }
        Words::Owner => shown(crate::Owner::of_name(text?).ok_or(())),
    }
}

/// Gives the client a push, as if its subscription had brought it.
pub fn push(client: &crate::Client, push: &redis::PushInfo) {
    let always = || Heard {
        at: clock::now(),
        since: None,
    };
    listener::on_push(client.handle.shared(), push, always);
}

/// Returns the keys of a lock: state, queue, leases.
pub fn keys(prefix: &str, name: &str) -> [String; 3] {
    let lock = key::Lock::new(prefix, name.into());
    [lock.state.to_string(), lock.queue, lock.leases]
}

/// Returns the channel of a lock's events.
pub fn event_channel(prefix: &str, name: &str) -> String {
    key::event_channel(&key::Lock::new(prefix, name.into()).state)
}

/// See [`event_channel`].
pub fn name_of_event_channel(prefix: &str, channel: &str) -> Option<String> {
    key::name_of_event_channel(prefix, channel)
}

/// Whether a message may name this key.
pub fn is_state(prefix: &str, key: &str) -> bool {
    key::is_state(prefix, key)
}

/// Whether the client accepts a prefix and a label.
pub fn lets_through(prefix: &str, label: Option<&str>) -> [bool; 2] {
    [key::check_prefix(prefix).is_ok(), key::check_label(label).is_ok()]
}

/// An owner's name in Redis.
pub fn owner_name(owner: crate::Owner) -> String {
    owner.name()
}

/// Returns an error as a user sees it.
pub fn error(lock: &str, source: redis::RedisError) -> crate::Error {
    crate::Error::of_server(lock, source)
}
