//! Semaphores for threads.

use super::{Acquire, Background, Client, Guard};
use crate::Status;
use crate::types::error::Error;
use crate::types::mode::Permits;
use std::fmt;

/// A hold on some permits of a [`Semaphore`].
pub type PermitGuard = Guard<Permits>;

/// A semaphore with a name: see [`crate::Semaphore`].
#[derive(Clone)]
pub struct Semaphore {
    inner: crate::Semaphore,
    background: Background,
}

impl Client {
    /// Returns the semaphore of that name, without I/O: see [`crate::Client::semaphore`].
    ///
    /// ```no_run
    /// # fn example(client: fairlock::blocking::Client) -> Result<(), fairlock::Error> {
    /// let gpus = client.semaphore("gpus", 4);
    /// let two = gpus.permits(2).acquire_fair()?;
    /// assert_eq!(two.permits(), 2);
    /// two.release()
    /// # }
    /// ```
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        Semaphore {
            inner: self.inner.semaphore(name, permits),
            background: self.background.clone(),
        }
    }
}

impl Semaphore {
    /// Returns a request for so many permits at once: see [`crate::Semaphore::permits`].
    pub fn permits(&self, permits: u32) -> Acquire<Permits> {
        Acquire {
            inner: self.inner.permits(permits),
            background: self.background.clone(),
        }
    }

    /// Reads the state at this moment.
    ///
    /// # Errors
    /// Those of [`crate::Semaphore::status`].
    pub fn status(&self) -> Result<Status, Error> {
        self.background.block_on(self.inner.status())
    }

    /// The semaphore of the async API.
    #[must_use]
    pub fn inner(&self) -> &crate::Semaphore {
        &self.inner
    }
}

impl Guard<Permits> {
    /// How many permits it holds.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.inner().permits()
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
