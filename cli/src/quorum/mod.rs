//! Several servers that are a quorum: a majority of them keeps each lock. Who runs a command under such a lock is a
//! [`Quorum`]. Who only looks, and who evicts, is a client of each server instead: that needs neither the quorum's name nor
//! a quarantine, and shows servers that do not vote.

pub(crate) mod merge;
pub(crate) mod run;
mod runs;
mod stamp;

use crate::evict::Evicted;
use crate::locks::{self, Findings, Found, Unread};
use crate::outcome::{Failure, Status};
use crate::server::ServerArgs;
use crate::text::{count, quoted};
use crate::url::Named;
use fairlock::{Client, Error, Owner, Quorum};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use merge::merged;
use runs::Runs;
use stamp::is_of_another_quorum;
pub(crate) use stamp::{Stamp, stamp};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long a command waits for further servers once a majority has answered.
const STRAGGLERS: Duration = Duration::from_secs(1);
/// How long a command waits until it tries again to connect to a server that was away, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The library's default.
const LONGEST_LEASE: Duration = Duration::from_secs(30);

/// What a command works on.
pub(crate) enum Target {
    One(ServerArgs),
    Several(Servers),
}

/// The servers of a quorum, each as a server of its own. Their prefix is that of a quorum's keys.
pub(crate) struct Servers {
    name: Option<String>,
    longest_lease: Option<Duration>,
    /// The prefix as users name it.
    prefix: String,
    pub(crate) each: Vec<ServerArgs>,
}

impl Target {
    pub(crate) fn of(args: &ServerArgs) -> Result<Self, Failure> {
        let urls = args.urls()?;
        match urls.len() {
            1 if args.quorum.is_none() && args.longest_lease.is_none() => return Ok(Self::One(args.clone())),
            3 | 5 | 7 | 9 => {}
            n => {
                let urls = count(n, "server is", "servers are");
                let what = format!("{urls} named, and a quorum has 3, 5, 7 or 9");
                return Err(Failure::usage(format!("{what}: repeat --url for each of them")));
            }
        }
        let keys = format!("{}.q", args.prefix);
        let each: Vec<_> = urls.into_iter().map(|url| args.at(url, keys.clone())).collect();
        let mut named = BTreeMap::new();
        for server in &each {
            let place = server.place()?;
            if place.named != Named::Server {
                let what = format!("several --url are a quorum, and {} is no single server", place.shown);
                let remedy = "name a cluster, or the sentinels of a master, by one URL with commas between the hosts";
                return Err(Failure::usage(format!("{what}: {remedy}")));
            }
            // Whatever the database: a server is lost with all of them.
            if let Some(other) = named.insert(place.hosts[0].addr().to_string(), place.shown.clone()) {
                return Err(named_twice(&other, &place.shown));
            }
        }
        Ok(Self::Several(Servers {
            each,
            name: args.quorum.clone(),
            longest_lease: args.longest_lease,
            prefix: args.prefix.clone(),
        }))
    }

    /// The single server, for a command that a quorum does not have. `command`: what to run at one server of the quorum,
    /// if that means anything.
    pub(crate) fn one(&self, why: &str, command: Option<&str>) -> Result<&ServerArgs, Failure> {
        let servers = match self {
            Self::One(server) => return Ok(server),
            Self::Several(servers) => servers,
        };
        let remedy = match command {
            None => "name a single server by --url, whose locks are other ones".to_owned(),
            Some(command) => {
                let prefix = quoted(&format!("{}.q", servers.prefix));
                format!("look at one server: fairlock --url URL --prefix {prefix} {command}")
            }
        };
        Err(Failure::usage(format!("{why}; {remedy}")))
    }

    /// The servers, as text.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::One(server) => server.shown(),
            Self::Several(servers) => servers.shown(),
        }
    }

    /// The prefix of the locks' keys.
    pub(crate) fn prefix(&self) -> &str {
        match self {
            Self::One(server) => &server.prefix,
            Self::Several(servers) => &servers.each[0].prefix,
        }
    }
}

/// The vote of that server would count twice.
fn named_twice(one: &str, other: &str) -> Failure {
    let what = "two addresses of the quorum lead to one server";
    Failure::usage(format!("{what}, {one} and {other}: name each server once"))
}

impl Servers {
    pub(crate) fn majority(&self) -> usize {
        self.each.len() / 2 + 1
    }

    /// Where each server is, without logins.
    fn addresses(&self) -> Result<Vec<String>, Failure> {
        let address = |server: &ServerArgs| {
            let place = server.place()?;
            Ok(format!("{}/{}", place.hosts[0].addr(), place.settings.db()))
        };
        self.each.iter().map(address).collect()
    }

    pub(crate) fn shown(&self) -> String {
        let all: Vec<_> = self.each.iter().map(ServerArgs::shown).collect();
        all.join(" ")
    }

    /// Fails unless so many servers are a majority.
    fn must_be_majority(&self, answers: usize, failures: &[String]) -> Result<(), Failure> {
        if answers >= self.majority() {
            return Ok(());
        }
        let mut message = format!(
            "{answers} of {} servers answer, and that is no majority",
            self.each.len()
        );
        failures.iter().for_each(|failure| message += &format!("\n{failure}"));
        Err(Failure::new(Status::UNAVAILABLE, message))
    }

    /// What the quorum's clients agree on: as the command line says, and what it leaves out as the servers keep it.
    async fn agreed(&self) -> Result<Stamp, Failure> {
        let servers = self.each.len();
        if let (Some(name), Some(longest_lease)) = (self.name.clone(), self.longest_lease) {
            return Ok(Stamp {
                name,
                servers,
                longest_lease,
            });
        }
        let kept = self.kept().await?;
        let name = self
            .name
            .clone()
            .or_else(|| kept.as_ref().map(|kept| kept.name.clone()));
        let name = name.ok_or_else(|| {
            let what = "these servers belong to no quorum yet";
            let remedy =
                "name it by --quorum NAME, and its longest lease by --longest-lease TIME, as all its clients do";
            Failure::usage(format!("{what}: {remedy}"))
        })?;
        let kept = kept.map(|kept| kept.longest_lease);
        let longest_lease = self.longest_lease.or(kept).unwrap_or(LONGEST_LEASE);
        Ok(Stamp {
            name,
            servers,
            longest_lease,
        })
    }

    /// What the servers keep, by one of those that answer. A majority must answer. If it keeps nothing, the others have a
    /// moment to say more. A server that is frozen answers nobody, and must not delay the command.
    async fn kept(&self) -> Result<Option<Stamp>, Failure> {
        let mut asking: FuturesUnordered<_> = self.each.iter().map(stamp).collect();
        let (mut answers, mut kept, mut failures) = (0, None, Vec::new());
        let mut patience = None;
        while answers < self.majority() || kept.is_none() {
            let next = asking.next();
            let next = match answers >= self.majority() {
                true => {
                    let until = *patience.get_or_insert_with(|| Instant::now() + STRAGGLERS);
                    timeout_at(until, next).await.unwrap_or_default()
                }
                false => next.await,
            };
            match next {
                None => break,
                Some(Ok(stamp)) => {
                    answers += 1;
                    kept = kept.or(stamp);
                }
                Some(Err(failure)) if failure.status == Status::USAGE => return Err(failure),
                Some(Err(failure)) => failures.push(first_line(&failure)),
            }
        }
        self.must_be_majority(answers, &failures)?;
        Ok(kept)
    }

    /// Whether the command line names another quorum.
    pub(crate) fn contradicts(&self, stamp: &Stamp) -> bool {
        self.name.as_ref().is_some_and(|name| *name != stamp.name)
            || self.longest_lease.is_some_and(|longest| longest != stamp.longest_lease)
    }

    /// A client of the quorum, for a lock with that lease. Without a lease, the library's default.
    pub(crate) async fn quorum(&self, lease: Option<Duration>, label: &str) -> Result<Quorum, Failure> {
        let stamp = self.agreed().await?;
        let clients: Result<Vec<_>, _> = self.each.iter().map(ServerArgs::redis_client).collect();
        let mut builder = Quorum::builder(stamp.name).longest_lease(stamp.longest_lease);
        if let Some(lease) = lease {
            builder = builder.lease(lease);
        }
        let connected = builder.label(label).prefix(&self.prefix).connect(clients?).await;
        connected.map_err(|error| match error {
            // No later try succeeds with what the command line says.
            Error::Connect { ref source, .. } if self.is_named() && is_of_another_quorum(source) => {
                Failure::usage(error.to_string())
            }
            error => error.into(),
        })
    }

    fn is_named(&self) -> bool {
        self.name.is_some() || self.longest_lease.is_some()
    }
}

/// A failure to reach a server says further on how to start one.
pub(crate) fn first_line(failure: &Failure) -> String {
    failure.message.lines().next().unwrap_or_default().to_owned()
}

/// A client of each server that answers. The fleet goes on to connect to the others, until it is dropped.
pub(crate) struct Fleet<'a> {
    servers: &'a Servers,
    members: Vec<Member>,
    /// Dropped, the set aborts its tasks.
    _connecting: JoinSet<()>,
}

/// The client of a server, or why there is none yet.
type Member = Arc<Mutex<Result<Client, String>>>;

impl<'a> Fleet<'a> {
    /// Connects to all servers. Fails unless a majority answers, because fewer show no lock for certain.
    pub(crate) async fn open(servers: &'a Servers) -> Result<Self, Failure> {
        let runs = Runs::default();
        let connect = |at: usize| {
            let runs = runs.clone();
            async move { (at, runs.client(&servers.each[at]).await) }
        };
        let mut connecting: FuturesUnordered<_> = (0..servers.each.len()).map(connect).collect();
        let mut clients: Vec<_> = servers.each.iter().map(late).map(Err).collect();
        let mut answers = 0;
        loop {
            let next = connecting.next();
            let next = match answers >= servers.majority() {
                true => timeout(STRAGGLERS, next).await.unwrap_or_default(),
                false => next.await,
            };
            let Some((at, client)) = next else { break };
            answers += usize::from(client.is_ok());
            clients[at] = match client {
                Err(failure) if failure.status == Status::USAGE => return Err(failure),
                client => client.map_err(|failure| first_line(&failure)),
            };
        }
        let mut background = JoinSet::new();
        let members: Vec<Member> = clients.into_iter().map(|client| Arc::new(Mutex::new(client))).collect();
        for (server, member) in servers.each.iter().zip(&members) {
            if locked(member).is_err() {
                background.spawn(keep_connecting(server.clone(), Arc::clone(member), runs.clone()));
            }
        }
        let fleet = Self {
            servers,
            members,
            _connecting: background,
        };
        servers.must_be_majority(answers, &fleet.complaints())?;
        Ok(fleet)
    }

    /// Which servers are away, and why.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let failures = self.members.iter().filter_map(|member| locked(member).clone().err());
        failures.collect()
    }

    fn reached(&self) -> impl Iterator<Item = (usize, &ServerArgs, Client)> {
        let members = self.members.iter().zip(&self.servers.each).enumerate();
        members.filter_map(|(at, (member, server))| Some((at, server, locked(member).clone().ok()?)))
    }

    /// A lock as a majority keeps it, and what each server says of it.
    pub(crate) async fn status(&self, name: &str) -> Result<(Found, Vec<Result<fairlock::Status, String>>), Failure> {
        let away = |member| locked(member).clone().err().unwrap_or_default();
        let mut all: Vec<_> = self.members.iter().map(|member| Err(away(member))).collect();
        let looks = self
            .reached()
            .map(|(at, _, client)| async move { (at, client.rw_lock(name).status().await) });
        for (at, status) in join_all(looks).await {
            all[at] = match status {
                Ok(status) => Ok(status),
                Err(error @ fairlock::Error::InvalidName { .. }) => return Err(error.into()),
                Err(error) => Err(error.to_string()),
            };
        }
        let failures: Vec<_> = all.iter().filter_map(|status| status.as_ref().err().cloned()).collect();
        self.servers.must_be_majority(all.len() - failures.len(), &failures)?;
        let statuses: Vec<_> = all.iter().filter_map(|status| status.as_ref().ok()).collect();
        let found = merged(name.to_owned(), &statuses, all.len());
        Ok((found.expect("a majority has answered"), all))
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.servers.each[0].prefix
    }

    pub(crate) fn shown(&self) -> impl Iterator<Item = String> {
        self.servers.each.iter().map(ServerArgs::shown)
    }

    /// All locks whose names match, each as a majority keeps it. A lock is read if a majority of the servers reads it.
    pub(crate) async fn find(&self, pattern: Option<&str>) -> Result<Findings, Failure> {
        let looks = self
            .reached()
            .map(|(_, server, client)| async move { (server, locks::find(server, &client, pattern).await) });
        let mut all = Findings {
            complaints: self.complaints(),
            ..Findings::default()
        };
        // Of each lock the statuses, and what the servers say that could not read it.
        let mut of_locks: BTreeMap<String, (Vec<fairlock::Status>, Vec<String>)> = BTreeMap::new();
        let mut answers = 0;
        for (server, looked) in join_all(looks).await {
            match looked {
                Ok(findings) => {
                    answers += 1;
                    all.complaints.extend(findings.complaints);
                    for lock in findings.found {
                        of_locks.entry(lock.name).or_default().0.push(lock.status);
                    }
                    for lock in findings.unread {
                        let why = format!("{}: {}", server.shown(), lock.why);
                        of_locks.entry(lock.name).or_default().1.push(why);
                    }
                }
                Err(failure) => all.complaints.push(first_line(&failure)),
            }
        }
        self.servers.must_be_majority(answers, &all.complaints)?;
        for (name, (statuses, failures)) in of_locks {
            if answers - failures.len() < self.servers.majority() {
                let why = failures.join("; ");
                all.unread.push(Unread { name, why });
                continue;
            }
            all.complaints.extend(failures);
            let statuses: Vec<_> = statuses.iter().collect();
            all.found.extend(merged(name, &statuses, self.servers.each.len()));
        }
        Ok(all)
    }

    /// Whether any server knows the lock.
    pub(crate) async fn knows(&self, name: &str) -> bool {
        let looks = self
            .reached()
            .map(|(_, _, client)| async move { client.rw_lock(name).exists().await });
        join_all(looks)
            .await
            .into_iter()
            .any(|known| known.is_ok_and(|known| known))
    }

    /// Evicts an owner at all servers.
    pub(crate) async fn evict(&self, name: &str, owner: &Owner) -> Result<Evicted, Failure> {
        let evictions = self.reached().map(|(_, server, client)| async move {
            let evicted = client.rw_lock(name).evict(owner).await;
            evicted.map_err(|error| format!("{}: {error}", server.shown()))
        });
        let (mut requests, mut failures, mut answers) = (0, self.complaints(), 0);
        for evicted in join_all(evictions).await {
            match evicted {
                Ok(number) => {
                    answers += 1;
                    // One request stands at all servers.
                    requests = requests.max(number);
                }
                Err(failure) => failures.push(failure),
            }
        }
        self.servers.must_be_majority(answers, &failures)?;
        failures.iter().for_each(|failure| crate::outcome::complain(failure));
        Ok(Evicted {
            requests,
            servers: Some((answers, self.servers.each.len())),
        })
    }

    pub(crate) async fn shutdown(&self) {
        let shutdowns = self
            .reached()
            .map(|(_, _, client)| async move { client.shutdown().await });
        join_all(shutdowns).await;
    }
}

fn late(server: &ServerArgs) -> String {
    format!("{} has not answered in time", server.shown())
}

fn locked(member: &Mutex<Result<Client, String>>) -> MutexGuard<'_, Result<Client, String>> {
    member.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects to a server that is away, at intervals that grow. From then on the client itself reconnects.
async fn keep_connecting(server: ServerArgs, member: Member, runs: Runs) {
    let mut pause = FIRST_PAUSE;
    loop {
        sleep(pause).await;
        pause = LONGEST_PAUSE.min(pause * 2);
        let client = runs.client(&server).await.map_err(|failure| first_line(&failure));
        let is_there = client.is_ok();
        *locked(&member) = client;
        if is_there {
            return;
        }
    }
}
