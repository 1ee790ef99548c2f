//! What an operator sees: the status of a lock, spans and warnings, metrics, and the dashboard made of them.

#[cfg(feature = "metrics")]
pub mod metrics;
mod ops;
#[cfg(feature = "metrics")]
mod secrets;
mod spans;
pub mod status;
#[cfg(feature = "serde")]
mod stored;
