//! One lock as its user sees it: entering, leaving, and futures that are dropped or left on the way.

#[cfg(feature = "blocking")]
mod blocking;
pub(crate) mod cancellation;
mod charts;
mod contended;
mod mutex;
mod polled;
mod rw_lock;
mod scoped;
mod search;
mod shutdown;

use crate::server::{Server, connected};
use fairlock::{Client, Error};
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(60);

async fn client(server: &Server) -> Client {
    let builder = Client::builder().lease(LEASE);
    connected(builder, server.url()).await
}

fn is_lost<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Lost { .. }))
}
