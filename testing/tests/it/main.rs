//! The server in memory, as users' tests meet it, and the library on it. One program, so that it is built once.

mod network;
mod quorum;
mod readme;
mod server;
mod suspended;
mod watching;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Polls it once.
async fn once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}
