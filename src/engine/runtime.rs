//! Whether the caller's tokio runtime can serve a call: every call needs timers, and connecting needs I/O too.
//!
//! tokio panics without timers or I/O, and has no query for them. So this module makes a timer or a socket and catches
//! the panic. That costs some nanoseconds. Where something is missing, the panic hook runs too.

use crate::types::error::Error;
use std::net::{Ipv4Addr, UdpSocket};
use std::panic::catch_unwind;
use std::time::Duration;
use tokio::runtime::Handle;

/// Fails where the caller's runtime has no timers.
pub(crate) fn check_timers() -> Result<(), Error> {
    // `try_current` does not panic: calls outside of any runtime are the common misuse.
    if Handle::try_current().is_err() {
        let lacks = "there is no tokio runtime here";
        return Err(Error::Runtime { lacks });
    }
    let timer = || drop(tokio::time::sleep(Duration::ZERO));
    catch_unwind(timer).map_err(|_| Error::Runtime {
        lacks: "this tokio runtime has no timers",
    })
}

/// Fails where the caller's runtime has no I/O.
pub(crate) fn check_io() -> Result<(), Error> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| {
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    // A host without that address or without free ports tells nothing about the runtime.
    let Ok(socket) = socket else { return Ok(()) };
    match catch_unwind(|| tokio::net::UdpSocket::from_std(socket).map(drop)) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::Runtime {
            lacks: "this tokio runtime has no I/O",
        }),
    }
}
