//! The locks of a server, each with its status, in the order in which operators want to see them.

use crate::outcome::{Failure, Status};
use crate::quorum::merge::Votes;
use crate::quorum::{Fleet, Target};
use crate::server::ServerArgs;
use crate::text::safe;
use fairlock::redis::{ErrorKind, ServerErrorKind};
use fairlock::{Client, Error};
use futures::stream::StreamExt;

/// The command asks for the status of so many locks at a time.
const AT_ONCE: usize = 64;

/// A lock and its status.
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) status: fairlock::Status,
    /// Of a quorum.
    pub(crate) votes: Option<Votes>,
}

impl Found {
    pub(crate) fn in_use(&self) -> bool {
        self.status.holding + self.status.waiting > 0
    }

    /// The busiest first.
    pub(crate) fn order(&self, other: &Self) -> std::cmp::Ordering {
        let busy = |found: &Self| (found.status.waiting, found.status.holding);
        busy(other).cmp(&busy(self)).then_with(|| self.name.cmp(&other.name))
    }
}

/// The way to the locks: of one server, or of the servers of a quorum.
pub(crate) enum Eye<'a> {
    One(&'a ServerArgs, Client),
    Several(Fleet<'a>),
}

impl<'a> Eye<'a> {
    pub(crate) async fn open(target: &'a Target) -> Result<Self, Failure> {
        Ok(match target {
            Target::One(server) => Self::One(server, server.client().await?),
            Target::Several(servers) => Self::Several(Fleet::open(servers).await?),
        })
    }

    /// Finds all locks whose names match, in no particular order. The second list says what could not be seen, and why.
    pub(crate) async fn find(&self, pattern: Option<&str>) -> Result<(Vec<Found>, Vec<String>), Failure> {
        match self {
            Self::One(server, client) => find(server, client, pattern).await,
            Self::Several(fleet) => fleet.find(pattern).await,
        }
    }

    /// The status of one lock. Of a quorum also what each server says.
    pub(crate) async fn status(&self, name: &str) -> Result<(Found, Vec<Result<fairlock::Status, String>>), Failure> {
        match self {
            Self::One(_, client) => {
                let found = Found {
                    name: name.to_owned(),
                    status: client.rw_lock(name).status().await?,
                    votes: None,
                };
                Ok((found, Vec::new()))
            }
            Self::Several(fleet) => fleet.status(name).await,
        }
    }

    /// Fails if no server knows the lock. A lock stays known for a minute after its last lease.
    pub(crate) async fn must_exist(&self, name: &str) -> Result<(), Failure> {
        let (exists, prefix) = match self {
            Self::One(server, client) => (client.rw_lock(name).exists().await?, server.prefix.as_str()),
            Self::Several(fleet) => (fleet.knows(name).await, fleet.prefix()),
        };
        match exists {
            true => Ok(()),
            false => {
                let (prefix, name) = (safe(prefix), safe(name));
                let message =
                    format!("no such lock under prefix {prefix}: {name} (never used, or unused for a minute)");
                Err(Failure::new(Status::NO_LOCK, message))
            }
        }
    }

    /// Whether all servers answered when they were connected to.
    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Self::One(..) => true,
            Self::Several(fleet) => fleet.complaints().is_empty(),
        }
    }

    pub(crate) async fn shutdown(&self) {
        match self {
            Self::One(_, client) => client.shutdown().await,
            Self::Several(fleet) => fleet.shutdown().await,
        }
    }
}

/// Finds all locks whose names match, in no particular order. The second list says which locks have no status, and why.
pub(crate) async fn find(
    server: &ServerArgs,
    client: &Client,
    pattern: Option<&str>,
) -> Result<(Vec<Found>, Vec<String>), Failure> {
    let names = client.locks(pattern.unwrap_or("*"));
    let mut looks = names.map(|name| look(server, client, name)).buffer_unordered(AT_ONCE);
    let (mut found, mut complaints) = (Vec::new(), Vec::new());
    while let Some(looked) = looks.next().await {
        match looked? {
            Ok(lock) => found.push(lock),
            Err(complaint) => complaints.push(complaint),
        }
    }
    Ok((found, complaints))
}

/// The inner error is about one lock, such as one with a key of another kind: the others should be shown all the same.
async fn look(
    server: &ServerArgs,
    client: &Client,
    name: Result<String, Error>,
) -> Result<Result<Found, String>, Failure> {
    let name = match name {
        Ok(name) => name,
        Err(error @ Error::ForeignKey { .. }) => return Ok(Err(error.to_string())),
        Err(Error::Server { source, .. }) if source.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => {
            return Err(server.refused("cannot look for locks, for which its user needs +scan", &source));
        }
        Err(error) => return Err(error.into()),
    };
    match client.rw_lock(name.as_str()).status().await {
        Ok(status) => Ok(Ok(Found {
            name,
            status,
            votes: None,
        })),
        Err(error @ Error::Server { .. }) => Ok(Err(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// Adds the waiters that the status does not list: it lists a thousand.
pub(crate) async fn complete(client: &Client, found: &mut Found) -> Result<(), Failure> {
    let lock = client.rw_lock(found.name.as_str());
    while found.status.waiters.len() < found.status.waiting {
        let more = lock.status_from(found.status.waiters.len()).await?;
        if more.waiters.is_empty() {
            break;
        }
        found.status.waiters.extend(more.waiters);
    }
    Ok(())
}
