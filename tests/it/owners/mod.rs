//! Owners: one identity, any number of requests, in any number of processes.

mod nesting;
mod processes;
mod scope;
mod sharing;

use crate::users::{read, write};
use fairlock::{FencingToken, Mode, ReadGuard, RwLock, WriteGuard};

enum Hold {
    Read(ReadGuard),
    Write(WriteGuard),
}

impl Hold {
    async fn of(lock: &RwLock, mode: Mode) -> Self {
        match mode {
            Mode::Read => Self::Read(read(lock).await),
            Mode::Write => Self::Write(write(lock).await),
        }
    }

    fn mode(&self) -> Mode {
        match self {
            Self::Read(_) => Mode::Read,
            Self::Write(_) => Mode::Write,
        }
    }

    fn token(&self) -> FencingToken {
        match self {
            Self::Read(guard) => guard.fencing_token(),
            Self::Write(guard) => guard.fencing_token(),
        }
    }

    fn is_held(&self) -> bool {
        match self {
            Self::Read(guard) => guard.is_held(),
            Self::Write(guard) => guard.is_held(),
        }
    }

    async fn release(self) {
        let released = match self {
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
        };
        released.expect("it is held");
    }
}
