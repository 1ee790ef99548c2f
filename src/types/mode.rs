//! How a request acquires the lock: its mode, the lock's policy, how long the caller waits, and what told it of the
//! grant.

use std::time::Duration;

/// Whether a request shares the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A reader shares the lock with other readers.
    Read,
    /// A writer holds the lock alone.
    Write,
}

impl Mode {
    /// The word in fields of spans and labels of metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The mode of a [`ReadGuard`](crate::ReadGuard), as a type.
#[derive(Debug)]
pub struct Read;

/// The mode of a [`WriteGuard`](crate::WriteGuard), as a type.
#[derive(Debug)]
pub struct Write;

/// [`Read`] or [`Write`].
pub trait Access: sealed::Sealed + Send + Sync + 'static {
    /// The mode as a value.
    const MODE: Mode;
}

impl Access for Read {
    const MODE: Mode = Mode::Read;
}

impl Access for Write {
    const MODE: Mode = Mode::Write;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Read {}
    impl Sealed for super::Write {}
}

/// Which waiters enter first. The policy is a property of the lock: users with another policy get
/// [`Error::PolicyMismatch`](crate::Error::PolicyMismatch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Policy {
    /// First come, first served. Nobody starves.
    #[default]
    Fifo,
    /// A waiting writer overtakes all waiting readers, and no new reader overtakes it. Writers among themselves keep
    /// their order. Readers starve while writers keep coming.
    WriterFirst,
    /// Readers enter whenever no writer is inside. Writers starve while readers keep coming.
    ReaderFirst,
}

/// How long a caller waits for its grant.
#[derive(Clone, Copy)]
pub(crate) enum When {
    Now,
    Within(Duration),
    InTurn,
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
