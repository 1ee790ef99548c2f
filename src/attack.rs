//! What `tests/attack` needs to see and to replace; compiled only for it.

use redis::{Cmd, PushInfo, RedisError, Value};
use std::cell::Cell;
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
