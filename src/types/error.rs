//! Errors: what can go wrong, and what to do about it.

mod words;

pub(crate) use words::shown;

use super::deadlock::{Blocked, in_words};
use super::mode::Policy;
use super::owner::Owner;
use super::remedy::remedy;
use redis::{ErrorKind, RedisError, ServerErrorKind};
use std::fmt;
use std::time::Duration;
use words::{again, for_lock, quoted, range, short_of, with};

/// Why an operation failed. Each message names the lock and says what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock is no longer held. Others may use what it guarded: stop.
    #[non_exhaustive]
    #[error(
        "lock {name} was lost: {reason}; stop what it guards, if anything, and acquire it again",
        name = quoted(lock)
    )]
    Lost {
        /// The lock's name.
        lock: String,
        /// Why.
        reason: LostReason,
    },

    /// Some events of a lock did not reach the stream, because you read too slowly or the connection was lost. The next
    /// events are complete again. Read the status to catch up.
    #[non_exhaustive]
    #[error("events of {name} were missed: {why}; read the status to catch up", name = quoted(lock))]
    EventsMissed {
        /// The lock's name; empty for all locks of a client.
        lock: String,
        /// Why.
        why: &'static str,
    },

    /// The grant did not reach the wanted number of replicas in time. The client withdrew it: the lock is not held.
    #[non_exhaustive]
    #[error("a grant of lock {name} {} within {timeout:?} and was withdrawn; {}, then retry",
        short_of(*reached, *wanted).0, short_of(*reached, *wanted).1, name = quoted(lock))]
    NotReplicated {
        /// The lock's name.
        lock: String,
        /// The wanted number of replicas.
        wanted: usize,
        /// The number of replicas that had the grant. It may be the wanted number or more if only the server's own disk
        /// was late.
        reached: usize,
        /// The time that they had.
        timeout: Duration,
    },

    /// The owner reads and asks to write, while another reader already waits to write. One of them has to leave.
    #[non_exhaustive]
    #[error(
        "another reader of lock {name} is already waiting to write; release this read hold, then acquire to write",
        name = quoted(lock)
    )]
    UpgradeConflict {
        /// The lock's name.
        lock: String,
    },

    /// The owner already waits for this lock. Tasks that run side by side need an owner each.
    #[non_exhaustive]
    #[error(
        "this owner already waits for lock {name}; give each task that waits an Owner of its own",
        name = quoted(lock)
    )]
    OwnerWaiting {
        /// The lock's name.
        lock: String,
    },

    /// The owner waited in a circle of owners that wait for each other, as the youngest of them. The request has left the
    /// queue; the owner's holds stay. Release what the owner holds, or acquire in one order everywhere. See
    /// [`deadlocks`](crate::guide::deadlocks).
    #[non_exhaustive]
    #[error(
        "waiting for lock {name} would never end: {}; release what this owner holds, then retry",
        in_words(circle), name = quoted(lock))]
    Deadlock {
        /// The lock's name.
        lock: String,
        /// Each owner of the circle, with what it waits for. The first one is the owner of this request.
        circle: Vec<Blocked>,
    },

    /// This request did not queue. As many wait before it as [`Acquire::max_queue`](crate::Acquire::max_queue) allows.
    #[non_exhaustive]
    #[error("{waiting} already wait for lock {name}; retry later, or allow more by max_queue", name = quoted(lock))]
    QueueFull {
        /// The lock's name.
        lock: String,
        /// How many wait before it.
        waiting: usize,
    },

    /// Others use the lock with another policy. All users of a lock must name the same one. A semaphore, or a lock with
    /// [`max_readers`](crate::RwLock::max_readers), has the policy [`Policy::Bounded`].
    #[non_exhaustive]
    #[error(
        "lock {name} is in use {}; use that, or wait until nobody has used it for a minute", with(*stored),
        name = quoted(lock)
    )]
    PolicyMismatch {
        /// The lock's name.
        lock: String,
        /// The policy that the lock has.
        stored: Policy,
    },

    /// The locks cannot be acquired together, because their handles are of several clients or owners, or name one lock with two
    /// policies or bounds.
    #[non_exhaustive]
    #[error(
        "lock {name} cannot be acquired together with the others: {why}; use handles of one client and owner, and one policy \
         and bound for each lock", name = quoted(lock))]
    NotTogether {
        /// The first lock that does not go with those before it.
        lock: String,
        /// What is wrong with the handle.
        why: &'static str,
    },

    /// The name cannot be a lock's name.
    #[non_exhaustive]
    #[error("lock name {lock:?} is refused: {why}")]
    InvalidName {
        /// The name, or its beginning.
        lock: String,
        /// What is wrong with the name.
        why: &'static str,
    },

    /// The prefix cannot be used for keys.
    #[non_exhaustive]
    #[error("prefix {prefix:?} is refused: it must have 1 to 128 bytes and no braces")]
    InvalidPrefix {
        /// The prefix, or its beginning.
        prefix: String,
    },

    /// The label cannot be a connection's name.
    #[non_exhaustive]
    #[error("label {label:?} is refused: it must have 1 to 128 characters, printable ASCII without spaces")]
    InvalidLabel {
        /// The label, or its beginning.
        label: String,
    },

    /// The servers or the settings of a quorum cannot make one.
    #[non_exhaustive]
    #[error("quorum {quorum:?} is refused: {why}")]
    InvalidQuorum {
        /// The quorum's name.
        quorum: String,
        /// What is wrong.
        why: String,
    },

    /// A duration is outside of its bounds.
    #[non_exhaustive]
    #[error("{what} of {given:?}{} is refused: it must be {}", for_lock(.lock), range(.least, .most))]
    InvalidDuration {
        /// The lock's name; empty for the client's default.
        lock: String,
        /// Which duration.
        what: &'static str,
        /// What the caller asked for.
        given: Duration,
        /// The least possible value.
        least: Duration,
        /// The greatest possible value.
        most: Duration,
    },

    /// A semaphore or a bounded lock cannot have that limit, or a request cannot have so many permits of it.
    #[non_exhaustive]
    #[error("{what} {given} for lock {name} is refused: it must be between 1 and {most}", name = quoted(lock))]
    InvalidPermits {
        /// The lock's name.
        lock: String,
        /// Which number.
        what: &'static str,
        /// What the caller asked for.
        given: u32,
        /// The greatest possible value: for a request, the limit.
        most: u32,
    },

    /// The owner belongs to a request without a named owner, or is the nil UUID, which is nobody. Such an owner cannot
    /// acquire.
    #[non_exhaustive]
    #[error(
        "owner {owner} is that of a single request, or nobody, and cannot acquire lock {name}; make one by Owner::new()",
        name = quoted(lock)
    )]
    InvalidOwner {
        /// The lock's name.
        lock: String,
        /// The owner.
        owner: Owner,
    },

    /// The client could not connect: the server is unreachable, refuses the login, or lacks what the client needs.
    #[non_exhaustive]
    #[error("cannot connect to {server}: {source}; {remedy}")]
    Connect {
        /// The server's address, without its password.
        server: String,
        /// What to do.
        remedy: &'static str,
        /// What happened.
        source: RedisError,
    },

    /// The call cannot run here, because there is no tokio runtime or the runtime has no timers. Connecting needs a
    /// runtime with I/O too.
    #[non_exhaustive]
    #[error("{lacks}: call it within a tokio runtime that was built with enable_all()")]
    Runtime {
        /// What is missing.
        lacks: &'static str,
    },

    /// The server did not reply in time. It may have executed the request; then the client releases it in the
    /// background, or it ends with its lease. Or the runtime on which the client connected has ended.
    #[non_exhaustive]
    #[error("the server did not answer about lock {name}: {source}; {}", again(source), name = quoted(lock))]
    Unavailable {
        /// The lock's name.
        lock: String,
        /// What happened last.
        source: RedisError,
    },

    /// The server refuses what the lock needs.
    #[non_exhaustive]
    #[error("the server refuses to work on lock {name}: {source}; {remedy}", name = quoted(lock))]
    Server {
        /// The lock's name.
        lock: String,
        /// What to do.
        remedy: &'static str,
        /// What the server said.
        source: RedisError,
    },

    /// The client's servers cannot do what the caller asked for.
    #[non_exhaustive]
    #[error("{what} of lock {name} is not available: {remedy}", name = quoted(lock))]
    Unsupported {
        /// The lock's name; empty for all locks of a client.
        lock: String,
        /// What the caller asked for.
        what: &'static str,
        /// The reason, and what to do instead.
        remedy: &'static str,
    },

    /// A key that looks like a lock's cannot be one: the name in it is not UTF-8, empty, longer than 1,024 bytes, or not
    /// written as fairlock writes it.
    #[non_exhaustive]
    #[error(
        "the key {} cannot be a lock's: the name in it is not UTF-8, empty, longer than 1024 bytes or not escaped; delete the \
        key, or choose another prefix", shown(&key.escape_ascii().to_string())
    )]
    ForeignKey {
        /// The key.
        key: Vec<u8>,
    },

    /// The client was shut down.
    #[non_exhaustive]
    #[error("lock {name} cannot be acquired: the client was shut down; connect a new one", name = quoted(lock))]
    Shutdown {
        /// The lock's name.
        lock: String,
    },
}

/// Why a hold was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum LostReason {
    /// The client could not renew the hold in time: the process was frozen, its executor was blocked, or the server was
    /// out of reach, for longer than the lease.
    LeaseExpired,
    /// The server does not know the hold: the lease expired there, or the server lost its data.
    UnknownToServer,
    /// The hold reached its `max_hold`.
    MaxHold,
    /// The client was shut down.
    Shutdown,
    /// An operator evicted the owner: see [`RwLock::evict`](crate::RwLock::evict).
    Evicted,
}

impl LostReason {
    /// Returns the word in spans, in labels of metrics and in serde's form, such as `lease_expired`. `Display` is a sentence.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LeaseExpired => "lease_expired",
            Self::UnknownToServer => "unknown_to_server",
            Self::MaxHold => "max_hold",
            Self::Shutdown => "shutdown",
            Self::Evicted => "evicted",
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaseExpired => "it could not be renewed within its lease",
            Self::UnknownToServer => "the server does not know it any more",
            Self::MaxHold => "it reached its max_hold",
            Self::Shutdown => "its client was shut down",
            Self::Evicted => "an operator evicted its owner",
        })
    }
}

impl Error {
    /// Returns the name of the lock; of [`Error::InvalidName`] the beginning. `None`: the error concerns no lock, or all locks
    /// of a client.
    #[must_use]
    pub fn lock(&self) -> Option<&str> {
        match self {
            Self::Lost { lock, .. }
            | Self::NotReplicated { lock, .. }
            | Self::UpgradeConflict { lock }
            | Self::OwnerWaiting { lock }
            | Self::EventsMissed { lock, .. }
            | Self::InvalidDuration { lock, .. }
            | Self::Unsupported { lock, .. }
            | Self::Deadlock { lock, .. }
            | Self::QueueFull { lock, .. }
            | Self::PolicyMismatch { lock, .. }
            | Self::NotTogether { lock, .. }
            | Self::InvalidName { lock, .. }
            | Self::InvalidPermits { lock, .. }
            | Self::InvalidOwner { lock, .. }
            | Self::Unavailable { lock, .. }
            | Self::Server { lock, .. }
            | Self::Shutdown { lock } => Some(lock.as_str()).filter(|lock| *lock != ALL_LOCKS),
            Self::InvalidPrefix { .. }
            | Self::InvalidLabel { .. }
            | Self::InvalidQuorum { .. }
            | Self::Connect { .. }
            | Self::Runtime { .. }
            | Self::ForeignKey { .. } => None,
        }
    }

    pub(crate) fn of_server(lock: &str, source: RedisError) -> Self {
        let lock = lock.to_owned();
        if is_transient(&source) || is_end_of_runtime(&source) {
            return Self::Unavailable { lock, source };
        }
        Self::Server {
            lock,
            remedy: remedy(&source),
            source,
        }
    }

    pub(crate) fn of_connect(server: String, source: RedisError) -> Self {
        Self::Connect {
            server,
            remedy: remedy(&source),
            source,
        }
    }
}

/// In an error, where another one names its lock: no lock has an empty name.
pub(crate) const ALL_LOCKS: &str = "";

/// Whether the same call may succeed a little later, on this connection or on the next one.
pub(crate) fn is_transient(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || error.is_cluster_error()
        || is_of_replica(error)
        || error.kind() == ErrorKind::Server(ServerErrorKind::BusyLoading)
        || matches!(error.code(), Some("BUSY" | "NOREPLICAS" | "MISCONF"))
        || says(error, "-NOREPLICAS ")
        || says(error, "-MISCONF ")
}

/// Redis 6.2 puts the words of a command that failed into the error of its script.
fn says(error: &RedisError, words: &str) -> bool {
    error.detail().is_some_and(|detail| detail.contains(words))
}

pub(crate) fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// The server is not the master, or no longer. For callers it counts as away.
pub(crate) fn demoted() -> RedisError {
    disconnected("the server is not the master")
}

/// The connection ended, or there is none.
pub(crate) fn disconnected(why: &'static str) -> RedisError {
    std::io::Error::new(std::io::ErrorKind::ConnectionReset, why).into()
}

const RUNTIME_ENDED: &str = "the client's runtime has ended";

/// The runtime of the client's tasks has ended, so nothing renews or releases any more.
pub(crate) fn runtime_ended() -> RedisError {
    RedisError::from((ErrorKind::Client, RUNTIME_ENDED))
}

/// This error is never transient, because no other attempt can succeed.
fn is_end_of_runtime(error: &RedisError) -> bool {
    // Errors of the TLS configuration are of this kind too.
    error.kind() == ErrorKind::Client && error.to_string().contains(RUNTIME_ENDED)
}

/// Whether only a replica replies so. A WAIT has words of its own.
pub(crate) fn is_of_replica(error: &RedisError) -> bool {
    let is = |kind| error.kind() == ErrorKind::Server(kind);
    is(ServerErrorKind::ReadOnly)
        || is(ServerErrorKind::MasterDown)
        || error.code() == Some("UNBLOCKED")
        || says(error, "-READONLY ")
        || says(error, "cannot be used with replica instances")
}

/// Whether the server itself replied that it did nothing.
pub(crate) fn is_refusal(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// Whether a script refused to begin, or the server to begin a script: then there is nothing to release. A refusal in the
/// middle of a script may leave what it has written.
pub(crate) fn left_nothing(error: &RedisError) -> bool {
    let in_a_script = || ["user_script", "user_function"].iter().any(|words| says(error, words));
    error.code() == Some("LAYOUT") || error.code() == Some("NOPERM") && !in_a_script()
}

#[cfg(test)]
mod tests;
