//! How the command ends: its exit statuses and its last message. A closed output ends the command and never panics.

use crate::text::{self, safe_lines};
use fairlock::{Error, Policy};
use std::io::{self, Write as _};

/// An exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u8);

impl Status {
    pub(crate) const OK: Self = Self(0);
    /// There is no such owner or waiter, or doctor found something wrong.
    pub(crate) const NO: Self = Self(1);
    // The others are those of sysexits.h: EX_USAGE, EX_NOINPUT, EX_UNAVAILABLE, EX_SOFTWARE, EX_TEMPFAIL, EX_PROTOCOL.
    pub(crate) const USAGE: Self = Self(64);
    /// The named lock does not exist.
    pub(crate) const NO_LOCK: Self = Self(66);
    pub(crate) const UNAVAILABLE: Self = Self(69);
    pub(crate) const BROKEN: Self = Self(70);
    pub(crate) const BUSY: Self = Self(75);
    pub(crate) const LOST: Self = Self(76);

    /// The status by which a shell shows that a signal ended a command.
    pub(crate) fn of_signal(signal: i32) -> Self {
        Self(u8::try_from(128 + signal).unwrap_or(u8::MAX))
    }
}

pub(crate) type Outcome = Result<Status, Failure>;

/// Why the command cannot go on. With an empty message the command ends silently.
#[derive(Clone, Debug)]
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
            Error::QueueFull { .. } | Error::Deadlock { .. } => Status::BUSY,
            Error::InvalidName { .. }
            | Error::InvalidPrefix { .. }
            | Error::InvalidLabel { .. }
            | Error::InvalidDuration { .. }
            | Error::InvalidOwner { .. }
            | Error::InvalidPermits { .. }
            | Error::InvalidQuorum { .. }
            | Error::PolicyMismatch { .. }
            | Error::NotTogether { .. }
            | Error::Unsupported { .. } => Status::USAGE,
            _ => Status::UNAVAILABLE,
        };
        Self::new(status, told(&error))
    }
}

/// The library's words, but a policy as the command line has it.
fn told(error: &Error) -> String {
    let Error::PolicyMismatch { lock, stored, .. } = error else {
        return error.to_string();
    };
    let policy = text::policy(*stored);
    match stored {
        Policy::Bounded => format!(
            "lock {lock:?} is in use with a bound on its readers, as --semaphore sets it; use that, or wait until nobody \
             has used it for a minute"
        ),
        _ => format!(
            "lock {lock:?} is in use with the policy {policy} and without a bound on its readers; use that, or wait until \
             nobody has used it for a minute"
        ),
    }
}

/// Writes to stdout and flushes.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| match error.kind() {
        // The status of a process that SIGPIPE ended.
        io::ErrorKind::BrokenPipe => Failure::signal(13),
        _ => Failure::new(Status::BROKEN, format!("cannot write: {error}")),
    })
}

/// The same, until a signal comes: whoever reads the output may have stopped, and then the write never ends.
pub(crate) async fn say_until(interrupted: impl Future<Output = i32>, text: String) -> Result<(), Failure> {
    tokio::select! {
        signal = interrupted => Err(Failure::signal(signal)),
        said = tokio::task::spawn_blocking(move || say(&text)) => {
            // This fails only if `say` panics or the runtime ends.
            said.unwrap_or_else(|error| Err(Failure::new(Status::BROKEN, format!("cannot write: {error}"))))
        }
    }
}

/// The same for a message on stderr.
pub(crate) async fn complain_until(interrupted: impl Future<Output = i32>, text: String) -> Result<(), Failure> {
    tokio::select! {
        signal = interrupted => Err(Failure::signal(signal)),
        // This fails only if `complain` panics or the runtime ends.
        _ = tokio::task::spawn_blocking(move || complain(&text)) => Ok(()),
    }
}

/// The same for why a command ends. The signals are still listened to, and whoever wrote the message later would not hear
/// them.
pub(crate) async fn report_until(interrupted: impl Future<Output = i32>, outcome: Outcome) -> Outcome {
    match outcome {
        // A signal has no message, and must not be waited for again.
        Err(failure) if !failure.message.is_empty() => {
            complain_until(interrupted, failure.message).await?;
            Err(Failure::new(failure.status, ""))
        }
        outcome => outcome,
    }
}

/// Writes a message to stderr. It may have words of a server, so nothing in it acts on the terminal.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "fairlock: {}", safe_lines(text));
}
