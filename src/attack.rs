//! What `tests/attack` needs to see and to replace; compiled only for it.

use crate::{key, script, wire};
use redis::{Cmd, PushInfo, RedisError, Value};
use std::cell::Cell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use tokio::task::AbortHandle;

type Transform = Box<dyn Fn(&str, &str) -> String + Send + Sync>;

static TRANSFORM: OnceLock<Transform> = OnceLock::new();

/// From now on every script of this process is what `transform` makes of its name and its text. Returns false if that
/// was set before. To be called before the first client connects: a script is made once.
pub fn transform_scripts(transform: impl Fn(&str, &str) -> String + Send + Sync + 'static) -> bool {
    TRANSFORM.set(Box::new(transform)).is_ok()
}

pub(crate) fn transformed(name: &str, body: &str) -> String {
    TRANSFORM
        .get()
        .map_or_else(|| body.to_owned(), |transform| transform(name, body))
}

/// Every script as it is sent: its name, and its text for servers before Redis 7 and from then on.
pub fn scripts() -> [(&'static str, [&'static str; 2]); 6] {
    crate::script::all()
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What a client can be connected to instead of a server.
pub trait Network: Send + Sync {
    /// A new connection; with `on_push` it is one that listens.
    fn connect(&self, on_push: Option<OnPush>) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>>;

    /// Runs one of the client's own tasks.
    fn spawn(&self, task: BoxFuture<()>) -> AbortHandle;
}

/// Called with what the server sends unasked.
pub type OnPush = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// A connection that leads to no server. It closes when it is dropped.
pub trait Connection: Send + Sync {
    /// An error reply comes as a value.
    fn send(&self, command: &Cmd) -> BoxFuture<Result<Value, RedisError>>;

    /// Subscribes to channels.
    fn subscribe(&self, channels: &[&str]) -> BoxFuture<Result<(), RedisError>>;
}

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on the client's random numbers on this thread follow from the seed.
pub fn seed(seed: u64) {
    SEED.set(Some(seed));
}

/// The next number of splitmix64, which is good enough for jitter and names.
pub(crate) fn seeded_number() -> Option<u64> {
    let state = SEED.get()?.wrapping_add(0x9e37_79b9_7f4a_7c15);
    SEED.set(Some(state));
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    Some((mixed ^ (mixed >> 31)) & ((1 << 62) - 1))
}

/// Whose words [`parse`] reads.
#[derive(Clone, Copy, Debug)]
pub enum Words {
    /// The reply of acquire, to a request that may queue.
    Acquire,
    /// The reply of acquire, to one that may not.
    Try,
    /// The reply of release, about so many requests.
    Release(usize),
    /// The reply of renew, about so many requests.
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
    /// What a client says of itself.
    Introduction,
    /// The name of a request.
    Request,
    /// The name of an owner.
    Owner,
}

/// What the client makes of these words: its `Debug`, or `None` if it refuses them.
pub fn parse(words: Words, value: &redis::Value) -> Option<String> {
    fn shown<T: std::fmt::Debug, E>(result: Result<T, E>) -> Option<String> {
        Some(format!("{:?}", result.ok()?))
    }
    let bytes = match value {
        redis::Value::BulkString(bytes) => bytes.as_slice(),
        _ => &[],
    };
    let text = std::str::from_utf8(bytes).ok();
    let numbers = script::numbers(value.clone());
    match words {
        Words::Acquire => shown(script::Acquired::read(&numbers.ok()?, false)),
        Words::Try => shown(script::Acquired::read(&numbers.ok()?, true)),
        Words::Release(asked) => shown(script::read_released(&numbers.ok()?, asked)),
        Words::Renew(asked) => shown(script::read_renewed(&numbers.ok()?, asked)),
        Words::Downgrade => shown(script::read_downgraded(&numbers.ok()?)),
        Words::Evict => shown(script::read_evicted(&numbers.ok()?)),
        Words::Status => {
            let snapshot = script::Snapshot::read(value)?;
            let status = crate::Status::of(&snapshot, 0, &HashMap::new());
            Some(format!("{snapshot:?} {status:?}"))
        }
        Words::Hello => {
            let hello = wire::Hello::read(value);
            Some(format!("{:?} {}", script::Dialect::of(&hello.version), hello.role))
        }
        Words::Message => shown(script::read_message(bytes).ok_or(())),
        Words::Events => Some(format!("{:?}", crate::event::read_events("a", text?))),
        Words::Introduction => {
            let info = crate::ClientInfo::read("0a", text);
            Some(format!("{info:?} {info}"))
        }
        Words::Request => shown(script::read_name(text?).ok_or(())),
        Words::Owner => shown(crate::Owner::of_name(text?).ok_or(())),
    }
}

/// Has the client hear a push, as if its subscription connection had brought it.
pub fn push(client: &crate::Client, push: &redis::PushInfo) {
    client.hear(push);
}

/// The keys of a lock: state, queue, leases.
pub fn keys(prefix: &str, name: &str) -> [String; 3] {
    let lock = key::Lock::new(prefix, name.into());
    [lock.state.to_string(), lock.queue, lock.leases]
}

/// The channel of a lock's events, and which lock's events come on a channel.
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

/// Whether a prefix, a label is let through.
pub fn lets_through(prefix: &str, label: Option<&str>) -> [bool; 2] {
    [key::check_prefix(prefix).is_ok(), key::check_label(label).is_ok()]
}

/// An owner's name in Redis.
pub fn owner_name(owner: crate::Owner) -> String {
    owner.name()
}

/// An error as a user is told it.
pub fn error(lock: &str, source: redis::RedisError) -> crate::Error {
    crate::Error::of_server(lock, source)
}
