//! Another server takes over: masters that become replicas, replicas that wait, quarantine, and Sentinel.

pub mod demotion;
mod quarantine;
mod replicas;
mod rolled_back;
#[cfg(feature = "sentinel")]
mod sentinel;
#[cfg(target_os = "linux")]
mod skewed;
