//! The server in memory, as users' tests meet it, and the library on it. One program, so that it is built once.

mod network;
mod quorum;
mod readme;
mod server;
mod suspended;
mod watching;
