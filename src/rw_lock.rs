//! The lock, as users name it: a handle that makes requests and reads the state.

use crate::acquire::Acquire;
use crate::engine::follow_up::follow_up;
use crate::engine::runtime;
use crate::engine::session::{Handle, Session};
use crate::events::Events;
use crate::guard::{Guard, ReadGuard, WriteGuard};
use crate::protocol::key::Lock;
use crate::protocol::lookup;
use crate::protocol::order::AskForStatus;
use crate::protocol::snapshot::Snapshot;
use crate::status::{self, Status};
use crate::transport::link::Lane;
use crate::types::client_info::ClientInfo;
use crate::types::error::{Error, disconnected};
use crate::types::limits::call_limit;
use crate::types::mode::{Access, Admission, Permits, Policy, Read, Write};
use crate::types::owner::Owner;
use std::fmt;
use std::sync::Arc;

/// A fair read/write lock with a name. All clients of the same server share it.
///
/// This is a handle: creating and cloning it does no I/O. The handle keeps its [`Client`](crate::Client)'s tasks alive.
///
/// Readers share the lock, and a writer holds it alone. Requests enter in the order in which they arrive. So a reader
/// that asks after a writer enters after that writer. Readers next to each other in the queue enter together. Nobody
/// starves.
#[derive(Clone)]
pub struct RwLock {
    handle: Arc<Handle>,
    lock: Arc<Lock>,
    owner: Option<Owner>,
    admission: Admission,
}

impl RwLock {
    pub(crate) fn new(handle: Arc<Handle>, lock: Arc<Lock>) -> Self {
        Self {
            handle,
            lock,
            owner: None,
            admission: Admission::FIFO,
        }
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.lock.name
    }

    /// Returns a request to write. The client sends nothing before you await an acquire method of [`Acquire`].
    pub fn write(&self) -> Acquire<Write> {
        self.request()
    }

    /// Returns a request to read, beside other readers. The client sends nothing before you await an acquire method of
    /// [`Acquire`].
    pub fn read(&self) -> Acquire<Read> {
        self.request()
    }

    /// Waits for the lock, runs a job that writes, and releases the lock. The job gets the guard, for the
    /// [`fencing_token`](crate::Guard::fencing_token).
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// let written = lock.with_write(async |guard| guard.fencing_token().get()).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Fairness and cancel safety
    /// Those of [`acquire_fair`](Acquire::acquire_fair) and [`while_held`](crate::Guard::while_held). If you drop the
    /// future, the job is dropped and the client releases the lock in the background.
    ///
    /// # Errors
    /// Those of [`acquire_fair`](Acquire::acquire_fair): the job has not begun. [`Error::Lost`] also if the lock was lost
    /// before the job was done, which drops the job at its next await, or if the release found that it had been lost. Then
    /// the job's value is dropped too, because others may have been inside. A release that the server does not confirm is
    /// no error: the job was done under the lock, and the client releases the lock in the background.
    pub async fn with_write<T>(&self, job: impl AsyncFnOnce(&WriteGuard) -> T) -> Result<T, Error> {
        with(self.write(), job).await
    }

    /// Waits for the lock, runs a job that reads, and releases the lock: as [`with_write`](Self::with_write), beside
    /// other readers.
    ///
    /// # Errors
    /// Those of [`with_write`](Self::with_write).
    pub async fn with_read<T>(&self, job: impl AsyncFnOnce(&ReadGuard) -> T) -> Result<T, Error> {
        with(self.read(), job).await
    }

    /// Returns the same lock for this owner, whose requests reenter what it holds: see [`Owner`].
    #[must_use]
    pub fn with_owner(&self, owner: &Owner) -> Self {
        Self {
            owner: Some(*owner),
            ..self.clone()
        }
    }

    /// Returns the same lock with another policy. Every user of the lock must choose the same policy. Others get
    /// [`Error::PolicyMismatch`] while the lock is in use and for about a minute after.
    #[must_use]
    pub fn policy(&self, policy: Policy) -> Self {
        let admission = Admission {
            policy,
            ..self.admission
        };
        Self {
            admission,
            ..self.clone()
        }
    }

    /// Returns the same lock with at most so many readers at a time, 1 to 1,000,000,000. The policy is
    /// [`Policy::Bounded`], so every user of the lock must name a bound. An owner that reads several times counts once. A
    /// writer still holds the lock alone.
    ///
    /// The lock has the bound that was asked for last. A smaller one ends no hold, and a greater one lets waiters in at
    /// once. A reader who does not fit waits, and nobody overtakes it. [`Semaphore`](crate::Semaphore) is the same lock for
    /// requests of different sizes.
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client) -> Result<(), fairlock::Error> {
    /// let config = client.rw_lock("config").max_readers(8);
    /// let reading = config.read().acquire_fair().await?; // beside at most seven others
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn max_readers(&self, readers: u32) -> Self {
        Self {
            admission: Admission::bounded(readers),
            ..self.clone()
        }
    }

    /// Reads the state of the lock at this moment: who holds it and who waits, in order. It never writes.
    ///
    /// The status lists at most 1,000 waiters from the head; [`status_from`](Self::status_from) lists later ones. The
    /// server reads all requests of the lock, so do not call this in a loop where thousands wait.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// for holder in lock.status().await?.holders {
    ///     println!("{} by {} for {:?}", holder.owner, holder.client, holder.held_for);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// The call changes nothing.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Server`], [`Error::Shutdown`], [`Error::Runtime`] or [`Error::InvalidName`].
    pub async fn status(&self) -> Result<Status, Error> {
        self.status_from(0).await
    }

    /// Reads the status with the waiters from that position on.
    ///
    /// # Cancel safety
    /// The call changes nothing.
    ///
    /// # Errors
    /// Those of [`status`](Self::status).
    pub async fn status_from(&self, first: usize) -> Result<Status, Error> {
        runtime::check_timers()?;
        let (status, _) = status::read(self.session()?, &self.lock, first, None).await?;
        Ok(status)
    }

    /// Reads the state with at most so many holders and waiters.
    pub(crate) async fn snapshot(&self, ask: &AskForStatus<'_>) -> Result<Snapshot, Error> {
        runtime::check_timers()?;
        let session = self.session()?;
        let call = session.call(&self.lock, session.shared.lease);
        let snapshot = call.status(ask).await;
        snapshot.map_err(|error| Error::of_server(&self.lock.name, error))
    }

    /// How a client introduced itself, as far as the server tells.
    pub(crate) async fn introduction(&self, client: &str) -> ClientInfo {
        let mut clients = self.handle.session.introductions(std::iter::once(client)).await;
        let known = clients.remove(client);
        known.unwrap_or_else(|| ClientInfo::read(client, None))
    }

    /// Why no event comes any more.
    pub(crate) fn ended(&self) -> Error {
        match self.session() {
            Err(error) => error,
            Ok(_) => Error::of_server(&self.lock.name, disconnected("the server refused to subscribe again")),
        }
    }

    /// Whether the server knows the lock: from its first use until 30 to 60 seconds after its last lease, held or not.
    ///
    /// [`status`](Self::status) cannot tell a lock that is free from a name that nobody uses. This can, by one `HMGET`.
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client) -> Result<(), fairlock::Error> {
    /// if !client.rw_lock("invioce:42").exists().await? {
    ///     println!("nobody uses that lock: is the name right?");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// The call changes nothing.
    ///
    /// # Errors
    /// Those of [`status`](Self::status).
    pub async fn exists(&self) -> Result<bool, Error> {
        runtime::check_timers()?;
        let session = self.session()?;
        let limit = call_limit(session.shared.lease);
        let look = lookup::look_for(&self.lock);
        let call = session.route.command(Lane::Users, limit, &self.lock.state, &look);
        let reply = session.shared.registry.unless_ended(call).await;
        let exists = reply.and_then(|reply| lookup::read_existence(&reply));
        exists.map_err(|error| Error::of_server(&self.lock.name, error))
    }

    /// Evicts an owner, with all its holds and waits of this lock. Eviction is the operator's last resort against an
    /// owner that renews its hold and does not release. Returns the number of its requests. The waiters behind them
    /// move up in the same step.
    ///
    /// The owner's guards report [`Error::Lost`] with [`LostReason::Evicted`](crate::LostReason::Evicted) when the
    /// message reaches them, or with `UnknownToServer` at the next renewal. **Until then the owner believes that it
    /// holds the lock**, while others are already inside: only the fencing token separates them. A waiter that misses
    /// the message asks again.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// if let Some(holder) = lock.status().await?.holders.first() {
    ///     lock.evict(&holder.owner).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// After a drop the eviction may or may not have happened. Call it again.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Server`], [`Error::Shutdown`], [`Error::Runtime`] or [`Error::InvalidName`].
    pub async fn evict(&self, owner: &Owner) -> Result<usize, Error> {
        runtime::check_timers()?;
        let session = self.session()?;
        let call = session.call(&self.lock, session.shared.lease);
        let evicted = call.evict(&owner.name()).await;
        let (number, next) = evicted.map_err(|error| Error::of_server(&self.lock.name, error))?;
        follow_up(session, &self.lock, next);
        tracing::warn!(lock = %self.lock.name, %owner, requests = number, "evicted");
        Ok(number)
    }

    /// Streams what happens to this lock from now on, in the server's order: see [`Event`](crate::Event).
    ///
    /// The lock's users learn that somebody listens, and start to publish, so the events of the first milliseconds may
    /// be missing (not in a cluster). Events cost nothing while nobody listens. An item is an error when the stream
    /// missed events, because you read too slowly or the connection was lost. The stream goes on after it.
    ///
    /// ```no_run
    /// # async fn example(lock: fairlock::RwLock) -> Result<(), fairlock::Error> {
    /// let mut events = lock.events().await?;
    /// while let Some(event) = events.next().await {
    ///     match event {
    ///         Ok(event) => println!("{:?} by {}", event.kind, event.owner),
    ///         Err(missed) => eprintln!("{missed}"),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// After a drop the client unsubscribes within seconds.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the subscription is not confirmed within two seconds, [`Error::Server`] if it is
    /// refused, [`Error::Shutdown`], [`Error::Runtime`] or [`Error::InvalidName`].
    pub async fn events(&self) -> Result<Events, Error> {
        runtime::check_timers()?;
        self.session()?;
        Events::of_lock(Arc::clone(&self.handle), &self.lock).await
    }

    /// The runtime of the client's tasks has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.handle.shared().registry.has_ended()
    }

    pub(crate) fn is_of(&self, handle: &Arc<Handle>) -> bool {
        Arc::ptr_eq(&self.handle, handle)
    }

    /// Whether requests say the same of the lock by either handle.
    pub(crate) fn is_admitted_as(&self, other: &Self) -> bool {
        self.admission == other.admission
    }

    pub(crate) fn owner(&self) -> Option<Owner> {
        self.owner
    }

    fn session(&self) -> Result<&Arc<Session>, Error> {
        self.lock.check_name()?;
        if self.handle.session.is_closed() {
            return Err(Error::Shutdown {
                lock: self.lock.name.to_string(),
            });
        }
        Ok(&self.handle.session)
    }

    /// A request for so many permits of the lock as a semaphore.
    pub(crate) fn permits(&self, permits: u32) -> Acquire<Permits> {
        self.request().weighing(permits)
    }

    fn request<M>(&self) -> Acquire<M> {
        Acquire::new(
            Arc::clone(&self.handle),
            Arc::clone(&self.lock),
            self.owner,
            self.admission,
        )
    }
}

async fn with<M: Access, T>(request: Acquire<M>, job: impl AsyncFnOnce(&Guard<M>) -> T) -> Result<T, Error> {
    let guard = request.acquire_fair().await?;
    let done = guard.while_held(job(&guard)).await?;
    match guard.release().await {
        Err(lost @ Error::Lost { .. }) => Err(lost),
        // The job was done under the lock, whatever the release met: its value is not to be taken for a failure.
        Err(error) => {
            tracing::debug!(%error, "the job is done, and the release is not confirmed");
            Ok(done)
        }
        Ok(()) => Ok(done),
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("name", &self.lock.name)
            .field("owner", &self.owner)
            .field("admission", &self.admission)
            .finish_non_exhaustive()
    }
}
