#![doc = include_str!("../README.md")]

mod connection;
mod glob;
mod keyspace;
#[doc(hidden)]
pub mod model;
#[doc(hidden)]
pub mod record;
#[doc(hidden)]
pub mod serving;
#[doc(hidden)]
pub mod status;
mod world;

use fairlock::testing::Network;
use fairlock::{Client, Error, IntoServer};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use world::World;

/// Makes clients on this thread find, from their next step on, that the machine was suspended for this time: a laptop was
/// shut, for example. Leases have run on and timers have not. The server in memory does not sleep and has seen nothing of
/// that time; [`Server::expire`] ends what would have ended meanwhile.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), fairlock::Error> {
/// # use std::time::Duration;
/// let server = fairlock_testing::Server::new();
/// let guard = server.client().await?.rw_lock("report").write().await?;
/// fairlock_testing::suspend(Duration::from_secs(3600));
/// assert!(!guard.is_held());
/// # Ok(()) }
/// ```
pub fn suspend(time: Duration) {
    fairlock::testing::suspend(time);
}

/// A server in memory, for tests.
///
/// Clients that connect to it are those of production: they queue, renew, time out, lose and release as on Redis. The
/// server replies at once and never fails by itself; the methods below make it fail. Its clock is tokio's, so in a test
/// with `start_paused = true` a lease ends as soon as everybody waits for it.
///
/// Clones are handles of the same server. The server's data live for as long as a handle or a connection.
#[derive(Clone)]
pub struct Server {
    world: Arc<Mutex<World>>,
}

impl Server {
    /// A server without data, which runs.
    pub fn new() -> Self {
        Self {
            world: Arc::new(Mutex::new(World::new())),
        }
    }

    /// Connects a client with default options.
    ///
    /// # Errors
    /// [`Error::Connect`] if the server was stopped or frozen; [`Error::Runtime`] outside of a tokio runtime.
    pub async fn client(&self) -> Result<Client, Error> {
        Client::connect(self.endpoint()).await
    }

    /// What to connect to, in place of a URL: for a builder with options of its own, a
    /// [`Quorum`](fairlock::Quorum) over several servers, or a [blocking](https://docs.rs/fairlock/latest/fairlock/blocking/) client.
    pub fn endpoint(&self) -> impl IntoServer + use<> {
        let network: Arc<dyn Network> = Arc::new(self.clone());
        network
    }

    /// Ends the leases of all who hold the lock, as if their time had come: the next waiters enter. The former holders
    /// learn it at their next renewal, a third of their lease later at most. Returns how many requests held.
    ///
    /// A lock is named as for [`Client::rw_lock`]. If clients of several prefixes use that name, all of these locks are
    /// meant.
    pub fn expire(&self, lock: &str) -> usize {
        self.world().expire(lock)
    }

    /// Forgets the lock, as if somebody had deleted its keys: nobody holds or waits any more. Former holders and waiters
    /// learn it at their next renewal. Returns whether the server knew the lock.
    pub fn forget(&self, lock: &str) -> bool {
        self.world().forget(lock)
    }

    /// Forgets everything, as FLUSHALL does.
    pub fn flush_all(&self) {
        self.world().flush_all();
    }

    /// Closes all connections. Clients open new ones.
    pub fn disconnect(&self) {
        self.world().disconnect();
    }

    /// Stops the server: it closes all connections and refuses new ones. Its data stay, and leases run on.
    pub fn stop(&self) {
        self.world().stop();
    }

    /// Starts the server again, with the data that it had, as a Redis that saves each change.
    pub fn start(&self) {
        self.world().start();
    }

    /// From now on the server takes commands and does not execute them, as a process that was stopped by a signal.
    pub fn freeze(&self) {
        self.world().freeze();
    }

    /// Lets the server go on: it executes what came meanwhile, in order.
    pub fn thaw(&self) {
        self.world().thaw();
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // A panic of the model is a bug that the panicking test shows already.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}
