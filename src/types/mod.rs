//! Values that every floor uses: errors, limits, modes, owners, tokens.
//!
//! Nothing here does I/O, knows Redis keys, or keeps state of a client.

pub(crate) mod boxed;
pub(crate) mod client_info;
pub(crate) mod clock;
pub(crate) mod deadlock;
pub(crate) mod error;
pub(crate) mod limits;
pub(crate) mod mode;
pub(crate) mod owner;
pub(crate) mod process;
pub(crate) mod random;
pub(crate) mod remedy;
pub mod rights;
pub(crate) mod timers;
pub(crate) mod token;
