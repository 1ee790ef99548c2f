//! How the command ends: exit statuses, and what is said on the way. Nobody who closes our output makes us panic.

use fairlock::Error;
use std::io::{self, Write as _};

/// An exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u8);

impl Status {
    pub(crate) const OK: Self = Self(0);
    /// What was looked for is not there, or something is wrong.
    pub(crate) const NO: Self = Self(1);
    // The rest as in sysexits.h, like flock(1): EX_USAGE, EX_NOINPUT, EX_UNAVAILABLE, EX_SOFTWARE, EX_TEMPFAIL, EX_PROTOCOL.
    pub(crate) const USAGE: Self = Self(64);
    /// The lock that was named does not exist.
    pub(crate) const NO_LOCK: Self = Self(66);
    pub(crate) const UNAVAILABLE: Self = Self(69);
    pub(crate) const BROKEN: Self = Self(70);
    pub(crate) const BUSY: Self = Self(75);
    pub(crate) const LOST: Self = Self(76);

    /// As a shell shows that a signal ended a command.
    pub(crate) fn of_signal(signal: i32) -> Self {
        Self(u8::try_from(128 + signal).unwrap_or(u8::MAX))
    }
}

pub(crate) type Outcome = Result<Status, Failure>;

/// Why the command cannot go on. An empty message: there is nobody to tell.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, message }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Status::USAGE, message)
    }

    pub(crate) fn signal(signal: i32) -> Self {
        Self::new(Status::of_signal(signal), "")
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::Lost { .. } => Status::LOST,
            Error::InvalidName { .. }
            | Error::InvalidPrefix { .. }
            | Error::InvalidLabel { .. }
            | Error::InvalidDuration { .. }
            | Error::InvalidOwner { .. }
            | Error::PolicyMismatch { .. } => Status::USAGE,
            _ => Status::UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

/// Writes data to stdout, at once.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| match error.kind() {
        // As if SIGPIPE had ended us.
        io::ErrorKind::BrokenPipe => Failure::signal(13),
        _ => Failure::new(Status::BROKEN, format!("cannot write: {error}")),
    })
}

/// Says something to whoever runs the command.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "fairlock: {text}");
}
