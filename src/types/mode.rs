//! How a request acquires the lock: its mode, the lock's policy, how long the caller waits, and what told it of the
//! grant.

use std::fmt;
use std::time::Duration;
use tokio::time::Instant;

/// Whether a request shares the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Mode {
    /// A reader shares the lock with other readers.
    Read,
    /// A writer holds the lock alone.
    Write,
}

impl Mode {
    /// Returns `read` or `write`: the word in spans, in labels of metrics and in serde's form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The mode of a [`ReadGuard`](crate::ReadGuard), as a type.
#[derive(Debug)]
pub struct Read;

/// The mode of a [`WriteGuard`](crate::WriteGuard), as a type.
#[derive(Debug)]
pub struct Write;

/// What a [`PermitGuard`](crate::PermitGuard) holds, as a type: some permits of a [`Semaphore`](crate::Semaphore).
#[derive(Debug)]
pub struct Permits;

/// [`Read`], [`Write`] or [`Permits`].
pub trait Access: sealed::Sealed + Send + Sync + 'static {
    /// The mode as a value. Who holds permits reads.
    const MODE: Mode;
    /// The word in spans and in the labels of metrics.
    const LABEL: &'static str = Self::MODE.as_str();
}

impl Access for Read {
    const MODE: Mode = Mode::Read;
}

impl Access for Write {
    const MODE: Mode = Mode::Write;
}

impl Access for Permits {
    const MODE: Mode = Mode::Read;
    const LABEL: &'static str = "permits";
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Read {}
    impl Sealed for super::Write {}
    impl Sealed for super::Permits {}
}

/// Which waiters enter first. The policy is a property of the lock: users with another policy get
/// [`Error::PolicyMismatch`](crate::Error::PolicyMismatch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Policy {
    /// First come, first served. Nobody starves.
    #[default]
    Fifo,
    /// A waiting writer overtakes all waiting readers, and no new reader overtakes it. Writers among themselves keep
    /// their order. Readers starve while writers keep coming.
    WriterFirst,
    /// Readers enter whenever no writer is inside. Writers starve while readers keep coming.
    ReaderFirst,
    /// First come, first served, and at most so many readers at a time:
    /// [`RwLock::max_readers`](crate::RwLock::max_readers), [`Client::semaphore`](crate::Client::semaphore).
    Bounded,
}

impl Policy {
    /// Returns the word in serde's form, such as `writer_first`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::WriterFirst => "writer_first",
            Self::ReaderFirst => "reader_first",
            Self::Bounded => "bounded",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a request says of its lock: the policy, and how many permits the readers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) policy: Policy,
    /// Counts under [`Policy::Bounded`] only.
    pub(crate) limit: u32,
}

impl Admission {
    pub(crate) const FIFO: Self = Self {
        policy: Policy::Fifo,
        limit: 0,
    };

    pub(crate) const fn bounded(limit: u32) -> Self {
        Self {
            policy: Policy::Bounded,
            limit,
        }
    }
}

/// How long a caller waits for its grant.
#[derive(Clone, Copy)]
pub(crate) enum When {
    Now,
    Within(Duration),
    InTurn,
}

impl When {
    /// What is left when the caller has waited so long.
    pub(crate) fn after(self, waited: Duration) -> Self {
        match self {
            Self::Within(limit) => Self::Within(limit.saturating_sub(waited)),
            when => when,
        }
    }
}

/// All that a guard is made of, in one answer: a crowd would ask for each part a thousand times at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    /// The number by which the request had stood in the order of its server.
    pub(crate) place: u64,
    /// When it was certain.
    pub(crate) at: Instant,
    pub(crate) via: GrantVia,
    /// When the last message about it came.
    pub(crate) heard: Option<Instant>,
}

/// What told this client of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantVia {
    Reply,
    Message,
    /// A renewal: the message was lost or is late.
    Renewal,
}

impl GrantVia {
    /// The word in fields of spans and labels of metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Reply => "reply",
            Self::Message => "message",
            Self::Renewal => "renewal",
        }
    }
}
