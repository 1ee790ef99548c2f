//! The timers that several files share, and their lengths. `limits.rs` and `state/claim.rs` have the times that follow from a
//! lease.
//!
//! | timer | begins | what its end does |
//! |---|---|---|
//! | [`CONNECT_TIMEOUT`] | an attempt to connect, to subscribe, to greet | the attempt fails |
//! | `call_limit` of a lease | the client sends a call; each sign of life of its connection | two in a row: the client closes the connection |
//! | [`PING_INTERVAL`], [`PING_TIMEOUT`] | a subscription is up; a ping is sent | a ping; two without reply: the client reconnects |
//! | a third of a lease | a renewal's reply | the watchdog renews |
//! | [`RETRY_PAUSE`], [`UNDER_WAY_PAUSE`] | a renewal failed, or its predecessor is under way | the watchdog checks again |
//! | the proof of a hold | the client sends a call that is answered | the hold is lost |
//! | [`INTRODUCED_EVERY`], [`ANNOUNCED_EVERY`] | an introduction, an announcement | the next one |
//! | [`LOOK_AGAIN_AFTER`], [`LOOK_EVERY`] | a watch has begun or its status failed; it has read the status | a watch reads the status |
//! | [`GRACE`], [`FOLLOW_UP_PATIENCE`] | a script found grants that nobody heard | the watchdog checks the lock; it stops checking |
//! | [`SHUTDOWN_PATIENCE`] | a shutdown | the rest is left to the leases |

use std::time::Duration;

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(1);
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(1);
pub(crate) const PINGS_BEFORE_RECONNECT: u32 = 2;

/// How often a client introduces itself. Its key lasts three times as long.
pub(crate) const INTRODUCED_EVERY: Duration = Duration::from_secs(30);

/// How often a listener to events announces itself, and for how long others believe it.
pub(crate) const ANNOUNCED_EVERY: Duration = Duration::from_secs(3);
pub(crate) const BELIEVED_FOR: Duration = Duration::from_secs(10);

/// When a watch reads the status again: until then everybody has heard that it listens, and no event is missing.
pub(crate) const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often a watch reads the status whatever the events say.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(30);

/// When to repeat a failed renewal: soon, because the lease runs on. A call to a server that does not reply takes its
/// time anyway.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// When to check a lock again whose earlier calls are under way.
pub(crate) const UNDER_WAY_PAUSE: Duration = Duration::from_millis(20);

/// How long a grant lasts that nobody heard of: see *Unheard grants* in PROTOCOL.md.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// How long a client without waiters checks a lock whose leases end soon. Where all leases are short this never becomes
/// otherwise, and then the waiters' own renewals come soon enough.
pub(crate) const FOLLOW_UP_PATIENCE: Duration = Duration::from_secs(60);

/// How long `shutdown` waits for its releases to be confirmed: one reconnect. What is left expires with its lease.
pub(crate) const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(3);
