//! The quorum: a client of several servers, and how it connects.

use super::lock::QuorumLock;
use super::members::{Members, Plan};
use crate::engine::runtime;
use crate::observe::{self, Unreached};
use crate::protocol::key::{self, Lock};
use crate::protocol::quarantine::prefix_of_quorum;
use crate::protocol::server_time;
use crate::target::{IntoServer, Server};
use crate::transport::link::Lane;
use crate::transport::quarantine::is_seated_twice;
use crate::transport::route::Target;
use crate::types::error::{Error, is_transient};
use crate::types::limits::{DEFAULT_LEASE, LEAST_LEASE, MOST_LEASE, call_limit, check_duration};
use futures::future::join_all;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A client of several servers that know nothing of each other. Its locks outlive the loss of any minority of them.
///
/// Every lock is kept by all servers, and held while a majority keeps it. So two of three servers may not be down at the
/// same time, nor three of five. Servers that are down when the client connects take part as soon as they can be reached. A
/// restarted server takes part after the longest lease, because it may have forgotten holds. **The first use of new
/// servers waits for the longest lease too**, because nobody can tell a new server from one that has lost its data.
///
/// The guide [`quorum`](crate::guide::quorum) says when to use this, and when a single server with replicas is better.
///
/// ```no_run
/// # async fn example() -> Result<(), fairlock::Error> {
/// use std::time::Duration;
///
/// let quorum = fairlock::Quorum::builder("billing")
///     .longest_lease(Duration::from_secs(30))
///     .connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
///     .await?;
/// let guard = quorum.rw_lock("invoice:42").write().acquire_fair().await?;
/// println!("token {}, kept by {} servers", guard.fencing_token().await?, guard.votes());
/// guard.release().await
/// # }
/// ```
#[derive(Clone)]
pub struct Quorum {
    members: Arc<Members>,
}

impl Quorum {
    /// Returns a builder for a quorum of that name. The servers keep the name, and a server belongs to one quorum only. A
    /// name has 1 to 128 printable ASCII characters and no blanks; with another one `connect` returns
    /// [`Error::InvalidQuorum`].
    pub fn builder(name: impl Into<String>) -> QuorumBuilder {
        QuorumBuilder {
            name: name.into(),
            longest_lease: Duration::from_secs(30),
            lease: None,
            label: None,
            prefix: "fairlock".to_owned(),
        }
    }

    /// Returns the lock of that name, without I/O. It has nothing to do with the lock of that name in a
    /// [`Client`](crate::Client) of one of the servers.
    #[must_use]
    pub fn rw_lock(&self, name: impl AsRef<str>) -> QuorumLock {
        let lock = Lock::new(&self.members.prefix, name.as_ref().into());
        QuorumLock::new(Arc::clone(&self.members), Arc::new(lock))
    }

    /// How many servers the quorum has.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.members.servers.len()
    }

    /// How many of the servers this client has reached at least once.
    #[must_use]
    pub fn reached(&self) -> usize {
        let servers = &self.members.servers;
        servers.iter().filter(|member| member.handle().is_some()).count()
    }

    /// Leaves every queue, releases every hold and ends the background tasks, at all servers: see
    /// [`Client::shutdown`](crate::Client::shutdown).
    ///
    /// # Cancel safety
    /// After the first poll the client releases everything in the background, also if you drop the future.
    pub async fn shutdown(&self) {
        let timers = runtime::check_timers().is_ok();
        self.members.close();
        let handles = self.members.servers.iter().filter_map(|member| member.handle());
        let _: Vec<()> = join_all(handles.map(|handle| handle.session.shut_down(timers))).await;
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum")
            .field("name", &self.members.name)
            .field("servers", &self.members.servers.len())
            .field("prefix", &self.members.prefix)
            .finish_non_exhaustive()
    }
}

/// Settings of a [`Quorum`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until connect is called"]
pub struct QuorumBuilder {
    name: String,
    longest_lease: Duration,
    lease: Option<Duration>,
    label: Option<String>,
    prefix: String,
}

impl QuorumBuilder {
    /// Sets the longest lease of any request of any client: 30 s unless set, at least 100 ms, at most a year. All clients
    /// of the quorum must set the same. For that long a restarted server does not vote.
    pub fn longest_lease(mut self, longest_lease: Duration) -> Self {
        self.longest_lease = longest_lease;
        self
    }

    /// Sets the lease of requests that do not set their own: the shorter one of 10 s and the longest lease unless set.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Names this process: see [`ClientBuilder::label`](crate::ClientBuilder::label).
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets the beginning of every key and channel: `fairlock` unless set. The keys of quorums begin with this prefix and
    /// `.q`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Connects to 3, 5, 7 or 9 servers. A majority must answer; the client goes on connecting to the others. Tasks run on
    /// the current tokio runtime.
    ///
    /// # Cancel safety
    /// If you drop the future, the client closes its connections.
    ///
    /// # Errors
    /// [`Error::Connect`] if no majority can be reached, or a server refuses: its login, its rights, or because it belongs
    /// to another quorum. [`Error::InvalidQuorum`] if the number of servers is another one, two addresses lead to one
    /// server, one of them is a cluster or a master that Sentinel names, or the servers' clocks are as far apart as the
    /// longest lease. [`Error::InvalidDuration`],
    /// [`Error::InvalidPrefix`], [`Error::InvalidLabel`], [`Error::Runtime`] as for
    /// [`ClientBuilder::connect`](crate::ClientBuilder::connect).
    pub async fn connect(self, servers: impl IntoIterator<Item = impl IntoServer>) -> Result<Quorum, Error> {
        runtime::check_timers()?;
        observe::begin();
        let longest_lease = self.longest_lease;
        key::check_label(self.label.as_deref())?;
        check_duration("", "longest_lease", longest_lease, LEAST_LEASE, MOST_LEASE)?;
        let lease = self.lease.unwrap_or(DEFAULT_LEASE.min(longest_lease));
        check_duration("", "lease", lease, LEAST_LEASE, longest_lease)?;
        let prefix = prefix_of_quorum(&self.prefix);
        key::check_prefix(&prefix)?;
        let quorum = self.name.clone();
        let refuse = |why: String| {
            let quorum = quorum.clone();
            Error::InvalidQuorum { quorum, why }
        };
        key::check_label(Some(&self.name)).map_err(|_| refuse("its name must be like a label".to_owned()))?;
        let targets = targets(servers)?;
        if !matches!(targets.len(), 3 | 5 | 7 | 9) {
            return Err(refuse(format!(
                "it has {} servers, and not 3, 5, 7 or 9",
                targets.len()
            )));
        }
        if targets.iter().any(Target::is_cluster) {
            return Err(refuse("one of its servers is a cluster".to_owned()));
        }
        // In a partition some clients would count the votes of the former master and others those of the next one.
        if targets.iter().any(Target::is_of_sentinel) {
            let why = "one of its servers is a master that Sentinel names; name each server itself";
            return Err(refuse(why.to_owned()));
        }
        if targets.iter().any(Target::needs_io) {
            runtime::check_io()?;
        }
        let plan = Plan {
            name: self.name,
            prefix,
            lease,
            longest_lease,
            label: self.label,
        };
        let members = Members::new(plan, targets);
        connect_all(&members).await?;
        check_clocks(clocks_apart(&members).await, longest_lease).map_err(refuse)?;
        tracing::info!(quorum = members.name, servers = members.servers.len(), "connected");
        Ok(Quorum { members })
    }
}

fn targets(servers: impl IntoIterator<Item = impl IntoServer>) -> Result<Vec<Target>, Error> {
    let server = |server: Result<Server, redis::RedisError>| match server {
        Ok(Server(target)) => Ok(target),
        Err(source) => Err(Error::of_connect("a server of the quorum".into(), source)),
    };
    servers.into_iter().map(IntoServer::into_server).map(server).collect()
}

/// Tries each server once. Those that are away are tried again in the background.
async fn connect_all(members: &Arc<Members>) -> Result<(), Error> {
    let connected = join_all((0..members.servers.len()).map(|at| members.connect(at))).await;
    let reached = connected.iter().filter(|connected| connected.is_ok()).count();
    for (at, failed) in connected.into_iter().enumerate() {
        let Err(source) = failed else { continue };
        if is_seated_twice(&source) {
            let (quorum, why) = (members.name.clone(), source.to_string());
            return Err(Error::InvalidQuorum { quorum, why });
        }
        if reached < members.majority() || !is_transient(&source) {
            return Err(Error::of_connect(members.servers[at].address.clone(), source));
        }
        let unreached = Unreached::begin(&members.servers[at].address, &source);
        members.spawn(Members::connect_later(Arc::downgrade(members), at, unreached));
    }
    Ok(())
}

/// A server that has lost its counter may give a smaller token if its clock is so far behind.
fn check_clocks(apart: Option<Duration>, longest_lease: Duration) -> Result<(), String> {
    match apart.filter(|apart| *apart >= longest_lease) {
        Some(apart) => Err(format!("the clocks of its servers are {apart:?} apart")),
        None => Ok(()),
    }
}

/// How far the clocks of the servers are apart, as far as they tell. A lost counter goes on by the clock.
async fn clocks_apart(members: &Members) -> Option<Duration> {
    let limit = call_limit(members.lease);
    let clocks = members.servers.iter().map(|member| async move {
        let session = &member.handle()?.session;
        let reply = session
            .route
            .command(Lane::Users, limit, "", &server_time::ask())
            .await
            .ok()?;
        server_time::read(reply).ok()
    });
    apart(&join_all(clocks).await)
}

fn apart(clocks_ms: &[Option<u64>]) -> Option<Duration> {
    let told = clocks_ms.iter().flatten();
    let apart = told.clone().max()? - told.min()?;
    Some(Duration::from_millis(apart))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_may_be_less_than_the_longest_lease_apart() {
        let longest = Duration::from_secs(30);
        for (clocks, is_refused) in [
            (&[Some(1_760_000_000_000), Some(1_760_000_029_999), None][..], false),
            (
                &[
                    Some(1_760_000_030_000),
                    Some(1_760_000_000_000),
                    Some(1_760_000_001_000),
                ],
                true,
            ),
            (&[None, None, Some(5)], false),
            (&[None, None, None], false),
        ] {
            let checked = check_clocks(apart(clocks), longest);
            assert_eq!(checked.is_err(), is_refused, "{clocks:?}");
        }
    }
}
