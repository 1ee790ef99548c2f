//! A fair read/write lock over Redis and Valkey: first come first served, handed over rather than polled for.
//!
//! ```no_run
//! use fairlock::Client;
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), fairlock::Error> {
//! let client = Client::connect("redis://127.0.0.1:6379").await?; // one per process
//! let invoice = client.rw_lock("invoice:42");
//!
//! // Alone. Whoever asked earlier has been here before.
//! let guard = invoice.write().acquire_fair().await?;
//! println!("token {}", guard.fencing_token());
//! guard.release().await?;
//!
//! // Together with other readers; at most five seconds in the queue.
//! match invoice.read().try_acquire_for(Duration::from_secs(5)).await? {
//!     Some(guard) => guard.while_held(async { /* read */ }).await?,
//!     None => println!("not within five seconds"),
//! }
//! # Ok(()) }
//! ```
//!
//! # What it does
//!
//! Waiters, readers and writers alike, stand in one queue in the server and enter strictly in order; readers next to
//! each other enter together. The script that frees the lock grants it, in the same atomic step, to whoever is next,
//! and tells them by pub/sub. Nobody polls: a task that waits costs a renewal of its lease now and then, sent together
//! with all others of its process.
//!
//! Every hold and every place in the queue has a lease, on the server's clock, renewed in the background. A process
//! that dies costs the others at most one lease, however many places it had. A holder that is cut off learns from its
//! guard that it lost the lock before anybody else gets it.
//!
//! # When to use it, and when not
//!
//! Use it where several processes share something and a Redis or Valkey server (6.2 or later) is at hand, and waiting
//! in turn matters: under contention, with many readers and few writers, with long waits.
//!
//! * Within one process use [`tokio::sync::RwLock`]: it needs no network.
//! * For rows of one SQL database use its own locks: they end with the transaction.
//! * Where two holders at once would be a disaster, let the resource check the [`FencingToken`]: no lock with a lease
//!   can exclude that a paused process wakes up late, and Redis' replication can lose a grant in a failover.
//!
//! # Choosing a lease
//!
//! The lease ([`ClientBuilder::lease`], [`Acquire::lease`]; 10 s unless set) has nothing to do with how long work takes:
//! it is renewed at a third of it for as long as the guard lives. It is how long others wait for a process that died,
//! and how long a process may be frozen or cut off from the server without losing the lock. To bound the work itself
//! use [`Acquire::max_hold`].
//!
//! # Cancellation
//!
//! Every future can be dropped at any point. Dropping an acquisition leaves the queue; if the lock was granted at that
//! moment, the grant is passed on. Dropping a guard, or a release that has not been answered, releases in the
//! background.
//!
//! # Features
//!
//! * `tls-rustls`: `rediss://` URLs.
//! * `metrics`: see [`observe`].
//!
//! # Watching it
//!
//! It has spans, events and metrics: see [`observe`].
//!
//! # How it works
//!
//! See [`design`]: the state in Redis, the scripts, the client, the invariants, the bounds, and what is not promised.

mod acquire;
#[cfg(feature = "attack")]
#[doc(hidden)]
pub mod attack;
mod attempt;
mod claim;
mod client;
#[cfg(feature = "cluster")]
mod cluster;
mod error;
mod event;
mod guard;
mod keeper;
mod key;
mod link;
#[cfg(all(test, fairlock_loom))]
mod loom_models;
mod metrics;
mod notify;
pub mod observe;
mod owner;
mod random;
mod registry;
mod requests;
mod route;
mod rw_lock;
mod script;
#[cfg(feature = "sentinel")]
mod sentinel;
mod status;
mod sync;
mod token;
mod wire;

/// The client library, in the version whose types this crate takes.
pub use redis;

pub use acquire::{Access, Acquire, Mode, Read, Write};
pub use client::{Client, ClientBuilder, IntoServer};
pub use error::{Error, LostReason};
pub use event::{Event, EventKind, Events};
pub use guard::{Guard, ReadGuard, WriteGuard};
pub use owner::Owner;
pub use rw_lock::{Policy, RwLock};
pub use status::{ClientInfo, Holder, Status, Waiter};
pub use token::FencingToken;

#[doc = include_str!("../design.md")]
pub mod design {}

/// The program at the head of the README compiles.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
