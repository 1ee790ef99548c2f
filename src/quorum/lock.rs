//! The lock of a quorum, as users name it.

use super::acquire::QuorumAcquire;
use super::members::{Member, Members};
use super::rules;
use super::status::{QuorumServer, QuorumStatus};
use crate::engine::runtime;
use crate::protocol::key::Lock;
use crate::rw_lock::RwLock;
use crate::types::error::{Error, disconnected};
use crate::types::mode::{Policy, Read, Write};
use crate::types::owner::Owner;
use futures::future::join_all;
use std::fmt;
use std::sync::Arc;

/// A fair read/write lock with a name, kept by all servers of a [`Quorum`](crate::Quorum).
///
/// This is a handle: creating and cloning it does no I/O. Not every method of [`RwLock`] exists here: see the table in the
/// guide [`quorum`](crate::guide::quorum#what-does-not-exist).
#[derive(Clone)]
pub struct QuorumLock {
    members: Arc<Members>,
    lock: Arc<Lock>,
    owner: Option<Owner>,
    policy: Policy,
}

impl QuorumLock {
    pub(super) fn new(members: Arc<Members>, lock: Arc<Lock>) -> Self {
        Self {
            members,
            lock,
            owner: None,
            policy: Policy::Fifo,
        }
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.lock.name
    }

    /// Returns a request to write. The client sends nothing before you await an acquire method of [`QuorumAcquire`].
    pub fn write(&self) -> QuorumAcquire<Write> {
        self.request()
    }

    /// Returns a request to read, beside other readers. The client sends nothing before you await an acquire method of
    /// [`QuorumAcquire`].
    pub fn read(&self) -> QuorumAcquire<Read> {
        self.request()
    }

    /// Returns the same lock for this owner, whose requests reenter what it holds: see [`Owner`].
    #[must_use]
    pub fn with_owner(&self, owner: &Owner) -> Self {
        Self {
            owner: Some(*owner),
            ..self.clone()
        }
    }

    /// Returns the same lock with another policy. Every user of the lock must choose the same policy.
    #[must_use]
    pub fn policy(&self, policy: Policy) -> Self {
        Self { policy, ..self.clone() }
    }

    /// Reads the state of the lock at each server: who holds it at a majority, and what each server says. It never writes.
    ///
    /// # Cancel safety
    /// The call changes nothing.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no majority answers, [`Error::Server`] if so many servers refuse; [`Error::Shutdown`],
    /// [`Error::Runtime`] or [`Error::InvalidName`].
    pub async fn status(&self) -> Result<QuorumStatus, Error> {
        runtime::check_timers()?;
        self.lock.check_name()?;
        let lock = self.lock.name.to_string();
        if self.members.is_closed() {
            return Err(Error::Shutdown { lock });
        }
        let servers = join_all(self.members.servers.iter().map(|member| self.status_at(member))).await;
        let status = QuorumStatus::of(servers);
        let answers = status.servers.iter().filter(|server| server.status.is_ok()).count();
        if answers >= self.members.majority() {
            return Ok(status);
        }
        let spare = status.servers.len() - self.members.majority();
        let failed = status.servers.into_iter().filter_map(|server| server.status.err());
        Err(rules::failure(failed.collect(), spare).unwrap_or(Error::Shutdown { lock }))
    }

    async fn status_at(&self, member: &Member) -> QuorumServer {
        let status = match member.handle() {
            Some(handle) => RwLock::new(Arc::clone(handle), Arc::clone(&self.lock)).status().await,
            None => {
                let away = disconnected("the server was never reached");
                Err(Error::of_server(&self.lock.name, away))
            }
        };
        QuorumServer {
            address: member.address.clone(),
            status,
        }
    }

    fn request<M>(&self) -> QuorumAcquire<M> {
        let (members, lock) = (Arc::clone(&self.members), Arc::clone(&self.lock));
        QuorumAcquire::new(members, lock, self.owner, self.policy)
    }
}

impl fmt::Debug for QuorumLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumLock")
            .field("name", &self.lock.name)
            .field("owner", &self.owner)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
