//! The locks of a server, each with its status, in the order in which operators want to see them.

use crate::outcome::{Failure, Status, complain};
use crate::quorum::merge::Votes;
use crate::quorum::{Fleet, Target};
use crate::server::ServerArgs;
use crate::text::{count, safe};
use fairlock::redis::{ErrorKind, ServerErrorKind};
use fairlock::{Client, Error};
use futures::stream::StreamExt;
use serde_json::{Value, json};
use std::pin::pin;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The command asks for the status of so many locks at a time.
const AT_ONCE: usize = 64;
/// A reply that is later than this makes no other lock wait for its turn. So a node of a cluster that does not answer
/// delays a look by seconds, however many locks it has.
const SLOW: Duration = Duration::from_millis(100);
/// The slow ones count here.
const AT_ONCE_WITH_SLOW: usize = 1024;

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

/// A lock that exists, and whose status could not be read.
#[derive(Clone)]
pub(crate) struct Unread {
    pub(crate) name: String,
    pub(crate) why: String,
}

impl Unread {
    pub(crate) fn described(&self) -> Value {
        json!({"lock": self.name, "error": self.why})
    }
}

/// What a look at all locks brought.
#[derive(Default)]
pub(crate) struct Findings {
    /// In no particular order.
    pub(crate) found: Vec<Found>,
    /// In the order of their names.
    pub(crate) unread: Vec<Unread>,
    /// What else could not be seen, and why: keys that cannot be a lock's, and servers of a quorum.
    pub(crate) complaints: Vec<String>,
}

impl Findings {
    /// Whether the look saw this lock, or saw that it does not exist.
    pub(crate) fn has_read(&self, name: &str) -> bool {
        self.complaints.is_empty() && self.unread.iter().all(|unread| unread.name != name)
    }

    /// Says on stderr what could not be seen.
    pub(crate) fn complain(&self) {
        self.complaints.iter().for_each(|text| complain(text));
        if !self.unread.is_empty() {
            let all = count(self.found.len() + self.unread.len(), "lock", "locks");
            complain(&format!("{} of {all} could not be read", self.unread.len()));
        }
    }

    /// The exit status of a command that shows everything it could see.
    pub(crate) fn status(&self) -> Status {
        match self.unread.is_empty() {
            true => Status::OK,
            false => Status::UNAVAILABLE,
        }
    }

    /// Adds the waiters that the statuses do not list: a status lists a thousand. Returns the locks that cannot be read
    /// any more; they keep the waiters that they have.
    pub(crate) async fn complete(&mut self, client: &Client) -> Result<Vec<Unread>, Failure> {
        let mut unread = Vec::new();
        for lock in &mut self.found {
            match complete(client, lock).await {
                Ok(()) => {}
                Err(error @ (Error::Server { .. } | Error::Unavailable { .. })) => unread.push(Unread {
                    name: lock.name.clone(),
                    why: error.to_string(),
                }),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(unread)
    }
}

/// The way to the locks: of one server, or of the servers of a quorum.
pub(crate) enum Eye<'a> {
    One {
        server: &'a ServerArgs,
        client: Client,
        is_replica: bool,
    },
    Several(Fleet<'a>),
}

impl<'a> Eye<'a> {
    pub(crate) async fn open(target: &'a Target) -> Result<Self, Failure> {
        Ok(match target {
            Target::One(server) => {
                let (client, is_replica) = server.looker().await?;
                Self::One {
                    server,
                    client,
                    is_replica,
                }
            }
            Target::Several(servers) => Self::Several(Fleet::open(servers).await?),
        })
    }

    /// Why no events come. Clients publish them where a listener has made itself known, and at a replica it cannot.
    pub(crate) fn no_events(&self) -> Option<&'static str> {
        match self {
            Self::One { is_replica: true, .. } => Some("a replica brings no events: look at its master"),
            Self::One { .. } => None,
            Self::Several(_) => Some(crate::NO_EVENTS),
        }
    }

    /// Finds all locks whose names match.
    pub(crate) async fn find(&self, pattern: Option<&str>) -> Result<Findings, Failure> {
        match self {
            Self::One { server, client, .. } => find(server, client, pattern).await,
            Self::Several(fleet) => fleet.find(pattern).await,
        }
    }

    /// The status of one lock. Of a quorum also what each server says.
    pub(crate) async fn status(&self, name: &str) -> Result<(Found, Vec<Result<fairlock::Status, String>>), Failure> {
        match self {
            Self::One { client, .. } => {
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
            Self::One { server, client, .. } => (client.rw_lock(name).exists().await?, server.prefix.as_str()),
            Self::Several(fleet) => (fleet.knows(name).await, fleet.prefix()),
        };
        match exists {
            true => Ok(()),
            false => {
                let (prefix, name) = (safe(prefix), safe(name));
                let message = format!(
                    "no such lock under prefix {prefix}: {name} (never used, or forgotten a minute after its last lease)"
                );
                Err(Failure::new(Status::NO_LOCK, message))
            }
        }
    }

    pub(crate) async fn shutdown(&self) {
        match self {
            Self::One { client, .. } => client.shutdown().await,
            Self::Several(fleet) => fleet.shutdown().await,
        }
    }
}

/// Finds all locks whose names match. Fails if the search for names fails, or if no lock can be read and one of them
/// has no reply: then the server is away.
pub(crate) async fn find(server: &ServerArgs, client: &Client, pattern: Option<&str>) -> Result<Findings, Failure> {
    let names = client.locks(pattern.unwrap_or("*"));
    let turns = Semaphore::new(AT_ONCE);
    let mut looks = names
        .map(|name| look(server, client, name, &turns))
        .buffer_unordered(AT_ONCE_WITH_SLOW);
    let (mut findings, mut silence) = (Findings::default(), None);
    while let Some(looked) = looks.next().await {
        match looked? {
            Looked::Lock(lock) => findings.found.push(*lock),
            Looked::Refused(unread) => findings.unread.push(unread),
            Looked::Silent(unread) => {
                silence.get_or_insert_with(|| unread.why.clone());
                findings.unread.push(unread);
            }
            Looked::Foreign(complaint) => findings.complaints.push(complaint),
        }
    }
    match silence {
        Some(why) if findings.found.is_empty() => Err(Failure::new(Status::UNAVAILABLE, why)),
        _ => {
            findings.unread.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(findings)
        }
    }
}

/// What became of a name, or of a key that cannot be a lock's.
enum Looked {
    Lock(Box<Found>),
    /// The server replied that it cannot.
    Refused(Unread),
    /// No reply came in time.
    Silent(Unread),
    Foreign(String),
}

/// Reads the status of a lock. An error is about all locks.
async fn look(
    server: &ServerArgs,
    client: &Client,
    name: Result<String, Error>,
    turns: &Semaphore,
) -> Result<Looked, Failure> {
    let name = match name {
        Ok(name) => name,
        Err(error @ Error::ForeignKey { .. }) => return Ok(Looked::Foreign(error.to_string())),
        Err(Error::Server { source, .. }) if source.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => {
            return Err(server.refused("cannot look for locks, for which its user needs +scan", &source));
        }
        Err(error) => return Err(error.into()),
    };
    let lock = client.rw_lock(name.as_str());
    let turn = turns.acquire().await;
    let mut status = pin!(lock.status());
    let status = match timeout(SLOW, &mut status).await {
        Ok(status) => status,
        Err(_) => {
            drop(turn);
            status.await
        }
    };
    match status {
        Ok(status) => Ok(Looked::Lock(Box::new(Found {
            name,
            status,
            votes: None,
        }))),
        Err(error @ Error::Server { .. }) => Ok(Looked::Refused(Unread {
            name,
            why: error.to_string(),
        })),
        Err(error @ Error::Unavailable { .. }) => Ok(Looked::Silent(Unread {
            name,
            why: error.to_string(),
        })),
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn complete(client: &Client, found: &mut Found) -> Result<(), Error> {
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
