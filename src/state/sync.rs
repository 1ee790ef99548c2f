//! What threads meet at. Under `--cfg fairlock_loom` loom replaces it, and the tests in `state/loom` go through all
//! interleavings: see `make loom`.

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
