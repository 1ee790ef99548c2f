//! A fair read/write lock over Redis and Valkey: first come first served, handed over rather than polled for.
//!
//! Several processes share something that one may change or many may look at, and have a server in common. Whoever asks
//! first enters first, readers next to each other enter together, and the one that waits is told when it is its turn.
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
//! Waiters, readers and writers alike, stand in one queue in the server and enter strictly in order. The script that
//! frees the lock grants it, in the same atomic step, to whoever is next, and tells them by pub/sub. Nobody polls: a task
//! that waits costs a renewal of its lease now and then, sent together with all others of its process.
//!
//! Every hold and every place in the queue has a lease, on the server's clock, renewed in the background. A process
//! that dies costs the others at most one lease, however many places it had. A holder that is cut off learns from its
//! guard that it lost the lock before anybody else gets it; the exceptions, such as a server that lost its data, are
//! [listed](guide::failures).
//!
//! # Where to look
//!
//! | you want to | look at |
//! |---|---|
//! | connect | [`Client::connect`], [`ClientBuilder`] |
//! | take a lock | [`RwLock::write`], [`RwLock::read`], then [`Acquire::acquire_fair`] |
//! | not wait, or not for long | [`Acquire::try_acquire`], [`Acquire::try_acquire_for`] |
//! | know that you have it still | [`Guard::while_held`], [`Guard::is_held`], [`Guard::lost`] |
//! | keep a late writer out | [`Guard::fencing_token`] |
//! | let go | [`Guard::release`], or drop the guard |
//! | take it again in a function that you call | [`Owner`], [`RwLock::with_owner`] |
//! | write what you have read | [`ReadGuard::upgrade`], [`WriteGuard::downgrade`] |
//! | bound a hold | [`Acquire::max_hold`] |
//! | let writers or readers first | [`Policy`] |
//! | see who blocks whom | [`RwLock::status`], [`RwLock::events`], [`RwLock::evict`] |
//! | find locks | [`Client::locks`], [`RwLock::exists`] |
//! | end in order | [`Client::shutdown`] |
//!
//! And the guides: [the life of a request](guide::life), [choosing leases](guide::leases),
//! [what happens in each failure](guide::failures), [cancellation](guide::cancellation),
//! [owners across processes](guide::owners), [tuning](guide::tuning),
//! [coming from Redisson, redsync, rslock](guide::migration), [questions](guide::faq), and how it is made: [`design`].
//!
//! # When to use it, and when not
//!
//! Use it where several processes share something and a Redis or Valkey server (6.2 or later) is at hand, and waiting
//! in turn matters: under contention, with many readers and few writers, with long waits.
//!
//! * Within one process use [`tokio::sync::RwLock`]: it needs no network.
//! * For rows of one SQL database use its own locks: they end with the transaction.
//! * For one change of a value in Redis use a command or a script: they are atomic.
//! * If nobody ever waits and order is all the same to you, `SET NX` with a random token does less and costs two thirds.
//! * Where two holders at once would be a disaster, let the resource check the [`FencingToken`]: no lock with a lease
//!   can exclude that a paused process wakes up late, and Redis' replication can lose a grant in a failover.
//! * If it has to survive the loss of any one machine without two holders, take a system with consensus.
//!
//! # Cancellation
//!
//! Every future can be dropped at any point. Dropping an acquisition leaves the queue; if the lock was granted at that
//! moment, the grant is passed on. Dropping a guard, or a release that has not been answered, releases in the
//! background. [For each method](guide::cancellation).
//!
//! # Features
//!
//! None is on unless you choose it.
//!
//! | feature | adds |
//! |---|---|
//! | `tls-rustls` | `rediss://` URLs, with certificates checked against the system's |
//! | `cluster` | a list of nodes: Redis Cluster, 7 or later; all but the quarantine and the stream of all locks' events |
//! | `sentinel` | `redis::sentinel::SentinelClient`: the master that Sentinel names |
//! | `metrics` | metrics, to the recorder that the program installs: see [`observe`] |
//!
//! The command `fairlock`, for scripts and operators, is the crate `fairlock-cli`: `cargo install fairlock-cli`.
//!
//! Rust 1.88 or later, tokio.

// On docs.rs items say which feature they need.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod types;

mod protocol;

pub mod observe;

mod state;

mod transport;

mod engine;

mod acquire;
mod client;
mod events;
mod guard;
pub mod guide;
mod locks;
mod rw_lock;
mod status;
mod target;
mod upgrade;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

/// The client library, in the version whose types this crate takes.
pub use redis;

pub use acquire::Acquire;
pub use client::{Client, ClientBuilder};
pub use events::Events;
pub use guard::{Guard, ReadGuard, WriteGuard};
pub use locks::Locks;
pub use protocol::event::{Event, EventKind};
pub use protocol::introduction::ClientInfo;
pub use rw_lock::RwLock;
pub use status::{Holder, Status, Waiter};
pub use target::IntoServer;
pub use types::error::{Error, LostReason};
pub use types::mode::{Access, Mode, Policy, Read, Write};
pub use types::owner::Owner;
pub use types::remedy::remedy;
pub use types::rights;
pub use types::token::FencingToken;

#[doc = "[client]: crate::guide::client"]
#[doc = "[cluster]: crate::guide::cluster"]
#[doc = "[failover]: crate::guide::failover"]
#[doc = "[scale]: crate::guide::scale"]
#[doc = "[fast]: crate::guide::fast_paths"]
#[doc = "[observing]: crate::guide::observing"]
#[doc = "[command]: crate::guide::command\n\n"]
#[doc = include_str!("../design.md")]
pub mod design {}

/// The program at the head of the README compiles.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
