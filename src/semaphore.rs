//! The semaphore: a lock without a writer, whose readers share a number of permits.

use crate::acquire::Acquire;
use crate::events::Events;
use crate::rw_lock::RwLock;
use crate::status::Status;
use crate::types::error::Error;
use crate::types::mode::Permits;

/// A fair semaphore with a name: all its users together have at most so many permits at a time.
///
/// This is a handle: creating and cloning it does no I/O. [`Client::semaphore`](crate::Client::semaphore) makes one, and
/// [`guide::semaphores`](crate::guide::semaphores) says more.
///
/// ```no_run
/// # async fn example(client: fairlock::Client) -> Result<(), fairlock::Error> {
/// let gpus = client.semaphore("gpu", 4);
/// let two = gpus.permits(2).acquire_fair().await?; // waits for its turn; a guard like any other
/// println!("{} of 4", two.permits());
/// two.release().await
/// # }
/// ```
///
/// # Fairness
/// First come, first served, whatever the sizes. A request that does not fit yet waits, and no later and smaller one
/// overtakes it. So a big request never starves, and permits may lie idle while it waits.
///
/// # The limit
/// Each acquisition names the limit. The one that the server executed last counts: a smaller limit takes no permit away, and
/// a greater one lets waiters in at once. During a rolling deployment with a new limit the two alternate, and there are never
/// more permits out than the greater one. If the limit fell below a waiting request, that one enters when nobody else is
/// inside.
#[derive(Clone, Debug)]
pub struct Semaphore {
    lock: RwLock,
    limit: u32,
}

impl Semaphore {
    pub(crate) fn new(lock: RwLock, limit: u32) -> Self {
        let lock = lock.max_readers(limit);
        Self { lock, limit }
    }

    /// The semaphore's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// How many permits this handle asks for in all. [`status`](Self::status) tells the server's number.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns a request for so many permits at once, at least 1 and at most the limit; otherwise the acquire methods fail
    /// with [`Error::InvalidPermits`]. The client sends nothing before you await one of them.
    pub fn permits(&self, permits: u32) -> Acquire<Permits> {
        self.lock.permits(permits)
    }

    /// The same lock as a read/write lock: a reader takes one permit, and a writer enters when all permits are back. So
    /// `rw_lock().write()` drains the semaphore, for example for maintenance. The lock also has [`evict`](RwLock::evict),
    /// [`exists`](RwLock::exists) and [`status_from`](RwLock::status_from).
    #[must_use]
    pub fn rw_lock(&self) -> &RwLock {
        &self.lock
    }

    /// Reads the state at this moment: the limit, the permits that are taken, who has how many, and who waits. See
    /// [`RwLock::status`].
    ///
    /// # Cancel safety
    /// The call changes nothing.
    ///
    /// # Errors
    /// Those of [`RwLock::status`].
    pub async fn status(&self) -> Result<Status, Error> {
        self.lock.status().await
    }

    /// Streams what happens to the semaphore from now on. See [`RwLock::events`].
    ///
    /// # Cancel safety
    /// After a drop the client unsubscribes within seconds.
    ///
    /// # Errors
    /// Those of [`RwLock::events`].
    pub async fn events(&self) -> Result<Events, Error> {
        self.lock.events().await
    }
}
