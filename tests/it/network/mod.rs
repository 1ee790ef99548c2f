//! The network between a client and its server: silence, a pulled cable, TLS.

#[cfg(target_os = "linux")]
mod netns;
mod silence;
#[cfg(feature = "tls-rustls")]
mod tls;
