//! Mutexes and wake-ups for threads. Under `--cfg fairlock_loom` loom replaces them, and the tests in `state/loom` run
//! all interleavings: see `make loom`.

#[cfg(not(all(test, fairlock_loom)))]
pub(crate) use {
    std::sync::atomic::AtomicBool,
    std::sync::{Mutex, MutexGuard},
    tokio::sync::Notify,
};

#[cfg(all(test, fairlock_loom))]
pub(crate) use {
    super::loom::notify::Notify,
    ::loom::sync::atomic::AtomicBool,
    ::loom::sync::{Mutex, MutexGuard},
};
