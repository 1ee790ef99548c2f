//! A fair read/write lock over Redis and Valkey. Requests enter in the order in which they arrive, and the server hands
//! the lock over: nobody polls.
//!
//! Several processes share a resource that one may change or many may read, and they share a server. The first request
//! enters first, readers next to each other enter together, and a waiter gets a message when it holds the lock.
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
//! // An exclusive lock: earlier requests have entered before.
//! let guard = invoice.write().acquire_fair().await?;
//! println!("token {}", guard.fencing_token());
//! guard.release().await?;
//!
//! // A shared lock: other readers may hold it too. Waits at most five seconds.
//! match invoice.read().try_acquire_for(Duration::from_secs(5)).await? {
//!     Some(guard) => guard.while_held(async { /* read */ }).await?,
//!     None => println!("not within five seconds"),
//! }
//! # Ok(()) }
//! ```
//!
//! # What it does
//!
//! Waiting readers and writers stand in one queue in the server and enter strictly in order. One atomic script ends a
//! hold and grants the lock to the next waiter, whose client gets a message by pub/sub. A waiter sends only renewals of
//! its lease, together with all other waiters of its process.
//!
//! Every hold and every place in the queue has a *lease*: a deadline on the server's clock, which the client renews in
//! the background. A process that dies costs the others at most one lease, however many places it had. A guard knows of
//! its loss before the server gives the lock to anybody else. The exceptions, such as a server that lost its data, are
//! [listed](guide::failures). The [glossary](guide::glossary) has all terms.
//!
//! # Where to look
//!
//! | you want to | look at |
//! |---|---|
//! | connect | [`Client::connect`], [`ClientBuilder`] |
//! | acquire a lock | [`RwLock::write`], [`RwLock::read`], then [`Acquire::acquire_fair`] |
//! | not wait, or wait for a limited time | [`Acquire::try_acquire`], [`Acquire::try_acquire_for`] |
//! | not queue behind too many | [`Acquire::max_queue`] |
//! | know how far your turn is | [`Acquire::enqueue`], [`Acquire::enqueue_for`], [`Queued::place`] |
//! | let in so many at a time | [`Client::semaphore`], [`RwLock::max_readers`] |
//! | run a job under the lock | [`RwLock::with_write`], [`RwLock::with_read`] |
//! | know whether you still hold the lock | [`Guard::while_held`], [`Guard::is_held`], [`Guard::lost`] |
//! | refuse a late writer | [`Guard::fencing_token`] |
//! | release | [`Guard::release`], or drop the guard |
//! | acquire it again in a function that you call | [`Owner`], [`RwLock::with_owner`] |
//! | hold several locks at once, without deadlocks | [`Client::all`] |
//! | write what you have read | [`ReadGuard::upgrade`], [`WriteGuard::downgrade`] |
//! | bound a hold | [`Acquire::max_hold`] |
//! | run a job once on many hosts, or limit a rate | [`Acquire::hold_at_least`] |
//! | keep others out for a while after a loss | [`ClientBuilder::lock_delay`] |
//! | hear of a deadlock | [`Error::Deadlock`], [`ClientBuilder::deadlock_timeout`] |
//! | yield when others wait | [`Guard::contended`] |
//! | elect a leader | [`Client::election`], [`Election`] |
//! | let writers or readers first | [`Policy`] |
//! | see who blocks whom | [`RwLock::status`], [`RwLock::events`], [`RwLock::evict`] |
//! | find locks | [`Client::locks`], [`RwLock::exists`] |
//! | outlive the loss of a server | [`Quorum`] |
//! | end in order | [`Client::shutdown`] |
//!
//! The guides are: [programs](guide::programs), [the life of a request](guide::life), [glossary](guide::glossary),
//! [choosing leases](guide::leases),
//! [what happens in each failure](guide::failures), [cancellation](guide::cancellation), [owners across
//! processes](guide::owners), [semaphores](guide::semaphores), [several locks](guide::several_locks),
//! [deadlocks](guide::deadlocks), [leader election](guide::election), [tuning](guide::tuning), [coming from Redisson,
//! redsync, rslock](guide::migration), [clusters](guide::cluster), [fail-over](guide::failover), [a majority of
//! servers](guide::quorum), [scale](guide::scale), [beside other locks](guide::comparison), [questions](guide::faq),
//! [observing](guide::observing), [the command](guide::command), [its JSON](guide::json), [inside the
//! client](guide::client), [the scripts](guide::scripts), [tests of your own program](guide::testing). [`guide`] says
//! what each of them answers. The page [`design`] says how fairlock works.
//!
//! # When to use it, and when not
//!
//! Use fairlock where several processes share a resource and a Redis or Valkey server (6.2 or later), and where the
//! order matters: under contention, with many readers and few writers, with long waits.
//!
//! * Within one process use [`tokio::sync::RwLock`], which needs no network.
//! * For rows of one SQL database use the database's locks, which end with the transaction.
//! * For one change of a value in Redis use a command or a script, which is atomic.
//! * If nobody ever waits and the order does not matter, use `SET NX` with a random token, which does less. A free
//!   lock takes 1.1<!-- bench p1 --> times as long here.
//! * Where two holders at once would be a disaster, let the resource check the [`FencingToken`]. No lock with a lease
//!   can prevent that a paused process wakes up late, and Redis' replication can lose a grant in a fail-over.
//! * If the lock must survive the loss of any one machine, use a [`Quorum`] of independent servers. If in addition no clock
//!   may matter, use a system with consensus.
//!
//! # Cancellation
//!
//! You can drop every future at any point. If you drop an acquisition, the request leaves the queue. If the server
//! granted the lock at that moment, the client hands the lock over. If you drop a guard or an unfinished release, the
//! client releases in the background. A guide lists [each method](guide::cancellation).
//!
//! # Features
//!
//! No feature is on by default.
//!
//! | feature | adds |
//! |---|---|
//! | `tls-rustls` | `rediss://` URLs, with certificates checked against the system's. To connect by one makes *ring* the process's provider of rustls, unless the program has installed another one before |
//! | `cluster` | a list of nodes: Redis Cluster, 7 or later; all but the quarantine and the stream of all locks' events |
//! | `sentinel` | `redis::sentinel::SentinelClient`: the master that Sentinel names |
//! | `blocking` | the lock for threads: the module `blocking` |
//! | `serde` | `Serialize` and `Deserialize` for tokens, owners, [`Status`], [`Event`] and what they are made of |
//! | `metrics` | metrics, to the recorder that the program installs: see [`observe`] |
//!
//! The command `fairlock`, for scripts and operators, is the crate `fairlock-cli`: `cargo install fairlock-cli`.
//!
//! Rust 1.88 or later, tokio. [`Events`], [`Leaders`] and [`Locks`] have `next`, and are `futures::Stream`s.

// On docs.rs items say which feature they need.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod types;

mod protocol;

pub mod observe;

mod state;

mod transport;

mod engine;

mod acquire;
mod all;
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod contended;
mod election;
mod events;
mod guard;
pub mod guide;
mod locks;
mod queued;
mod rw_lock;
mod semaphore;
mod status;
mod target;
mod upgrade;
mod watch;

mod quorum;

#[cfg(feature = "__testing")]
#[doc(hidden)]
pub mod testing;

/// What the command `fairlock` of this version needs besides. It is not part of the API.
#[doc(hidden)]
pub mod __cli {
    pub use crate::types::remedy::{remedy, without_arguments};
}

/// The client library, in the version whose types this crate takes.
pub use redis;
/// The identities of owners, in the version whose types this crate takes.
pub use uuid;

pub use acquire::Acquire;
pub use all::{AcquireAll, AllGuard};
pub use client::{Client, ClientBuilder};
pub use election::{Election, Leader, Leaders, Leading};
pub use events::Events;
pub use guard::{Guard, PermitGuard, ReadGuard, WriteGuard};
pub use locks::Locks;
pub use protocol::event::{Event, EventKind};
pub use protocol::snapshot::RawState;
pub use queued::{Place, Queued};
pub use quorum::{
    Quorum, QuorumAcquire, QuorumBuilder, QuorumGuard, QuorumHolder, QuorumLock, QuorumReadGuard, QuorumServer,
    QuorumStatus, QuorumWriteGuard,
};
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;
pub use status::{Holder, Status, Waiter};
#[cfg(feature = "cluster")]
pub use target::IntoNode;
pub use target::IntoServer;
pub use types::client_info::ClientInfo;
pub use types::deadlock::Blocked;
pub use types::error::{Error, LostReason};
pub use types::mode::{Access, Mode, Permits, Policy, Read, Write};
pub use types::owner::Owner;
pub use types::rights;
pub use types::token::FencingToken;

#[doc = "[glossary]: crate::guide::glossary"]
#[doc = "[failover]: crate::guide::failover"]
#[doc = "[quorum]: crate::guide::quorum"]
#[doc = "[scripts]: crate::guide::scripts\n\n"]
#[doc = include_str!("../design.md")]
pub mod design {}

/// The program at the head of the README compiles.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
