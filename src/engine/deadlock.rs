//! Deadlocks: part of the watchdog, which looks for circles of owners that wait for each other.
//!
//! No caller's future takes part, so a future that nobody polls is found and told as well, and waiters' futures do not
//! grow. Work begins when a named owner has waited for a whole time-out: the client notes what the owner waits for, and
//! looks from its lock along the notes of the holders. All waiters of one lock share a look, because they wait for the
//! same holders. [`crate::state::waits`] says what a circle is, and why two readings prove it.

use super::session::{Notes, Session};
use crate::protocol::key::Lock;
use crate::protocol::name::RequestName;
use crate::protocol::snapshot::Snapshot;
use crate::protocol::waits::{self, Note};
use crate::state::NamedOwners;
use crate::state::claim::EndedBy;
use crate::state::request::Request;
use crate::state::waits::{Edge, Graph, MOST_HOLDERS, Wait};
use crate::transport::link::Lane;
use crate::types::deadlock::Blocked;
use crate::types::error::is_transient;
use crate::types::limits::{MOST_LEASE, call_limit};
use crate::types::owner::Owner;
use futures::stream::{self, StreamExt as _};
use redis::{Cmd, RedisError};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The most waits that one look follows.
const MOST_WAITS: usize = 64;
/// Looks at 1, 2, 4, ... time-outs; from here on every so many. The note is written as often.
const LONGEST_PAUSE: u32 = 64;
/// A note lasts at least so long.
const LEAST_NOTE: Duration = Duration::from_secs(60);
/// The notes that are written at the same time.
const AT_ONCE: usize = 32;
/// The looks without a reply after which a round ends, and the waits without one after which a look ends. Each wait takes
/// the time limit of a call.
const MOST_MISSES: usize = 8;

/// What the search reads: the server, or the world of a test.
pub(super) trait Reader {
    /// Who holds the lock, and whether the request waits there. `None`: it does not, or the lock is not followed.
    async fn wait(&self, lock: &Arc<Lock>, request: &str) -> Result<Option<Wait>, RedisError>;
    /// What these owners have noted, and why a note could not be read.
    async fn notes(&self, owners: &[String]) -> (Vec<Note>, Option<RedisError>);
    /// Whether other locks may be read although one was not, for that reason: a node of a cluster is away.
    fn has_others(&self, error: &RedisError) -> bool;
}

/// Looks for deadlocks, for ever.
pub(super) async fn find_deadlocks(session: &Session) {
    let Some(period) = session.deadlock_timeout else { return };
    let mut detector = Detector {
        session,
        period,
        rounds: HashMap::new(),
        missed: HashMap::new(),
    };
    loop {
        session.shared.owner_waits.notified().await;
        loop {
            sleep(period).await;
            match detector.round().await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if is_transient(&error) => tracing::debug!(%error, "no look for deadlocks"),
                // For lack of a right, or of memory, which may come back.
                Err(error) => {
                    tracing::warn!(%error, "the server refuses what a look for deadlocks needs: looking again later");
                    sleep(period.saturating_mul(LONGEST_PAUSE)).await;
                }
            }
        }
    }
}

/// An owner, and the key and the command of its note.
type ToSend = (String, (String, Cmd));

/// By owner, the holds that its users have.
type Holds<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

struct Detector<'a> {
    session: &'a Session,
    period: Duration,
    /// For how many whole time-outs each request of a named owner has waited.
    rounds: HashMap<u64, u32>,
    /// The requests whose look is to be repeated, and how often it has had no reply.
    missed: HashMap<u64, u32>,
}

impl Detector<'_> {
    /// Notes and looks for what is due. Returns whether any named owner waits.
    async fn round(&mut self) -> Result<bool, RedisError> {
        let NamedOwners { waiting, held } = self.session.shared.registry.of_named_owners();
        // A request that came since the last round has not waited for a whole time-out.
        let next = |number| self.rounds.get(number).map_or(0, |rounds| rounds.saturating_add(1));
        self.rounds = waiting
            .iter()
            .map(|request| (request.number, next(&request.number)))
            .collect();
        let mut holds: Holds<'_> = BTreeMap::new();
        for request in &held {
            if let Some(owner) = waits::named_owner(&request.name) {
                holds.entry(owner).or_default().insert(&request.name);
            }
        }
        let mut by_owner: BTreeMap<&str, Vec<&Arc<Request>>> = BTreeMap::new();
        let mut by_lock: BTreeMap<&Arc<str>, Vec<&Arc<Request>>> = BTreeMap::new();
        for request in waiting.iter().filter(|request| self.rounds[&request.number] > 0) {
            if let Some(owner) = waits::named_owner(&request.name) {
                by_owner.entry(owner).or_default().push(request);
                by_lock.entry(&request.lock.state).or_default().push(request);
            }
        }
        let due = self.due(by_lock.into_values().collect());
        self.note(&by_owner, &holds).await?;
        self.look_at_all(&due, &holds).await?;
        Ok(!waiting.is_empty())
    }

    /// The locks to look from in this round, by the requests that wait there. A lock without a reply is due again, after
    /// pauses that double.
    fn due<'a>(&mut self, mut locks: Vec<Vec<&'a Arc<Request>>>) -> Vec<Vec<&'a Arc<Request>>> {
        let is_due = |request: &&Arc<Request>| {
            let rounds = self.rounds[&request.number];
            let missed = self.missed.get(&request.number);
            is_look_due(rounds) || missed.is_some_and(|misses| is_repeat_due(rounds, *misses))
        };
        locks.retain(|requests| requests.iter().any(is_due));
        let misses = |request: &&Arc<Request>| self.missed.get(&request.number).copied().unwrap_or_default();
        // First those that have had a reply, because the others may keep the round waiting.
        locks.sort_by_key(|requests| requests.iter().map(misses).max());
        let due: Vec<_> = locks
            .iter()
            .flatten()
            .map(|request| (request.number, misses(request)))
            .collect();
        self.missed.retain(|number, _| self.rounds.contains_key(number));
        self.missed.extend(due);
        locks
    }

    /// A lock that cannot be read hides its own circles, and no others.
    async fn look_at_all(&mut self, locks: &[Vec<&Arc<Request>>], holds: &Holds<'_>) -> Result<(), RedisError> {
        let mut without_reply = 0;
        for requests in locks {
            match self.look(requests, holds).await {
                Err(error) if is_transient(&error) => {
                    for request in requests {
                        *self.missed.entry(request.number).or_default() += 1;
                    }
                    without_reply += 1;
                    if without_reply == MOST_MISSES || !self.session.has_others(&error) {
                        return Err(error);
                    }
                    continue;
                }
                Err(error) => tracing::warn!(%error, "no look for deadlocks at a lock"),
                Ok(()) => {}
            }
            for request in requests {
                self.missed.remove(&request.number);
            }
        }
        Ok(())
    }

    /// Writes the notes of owners that wait, and deletes those of owners that wait no more.
    async fn note(&self, waiting: &BTreeMap<&str, Vec<&Arc<Request>>>, holds: &Holds<'_>) -> Result<(), RedisError> {
        let sent = self.session.send_all(self.to_note(waiting, holds)).await;
        // What failed to be written is written again. A note that could not be deleted expires.
        let is_sent = |owner: &str| sent.as_ref().is_ok_and(|failed| !failed.contains(owner));
        self.session
            .notes()
            .retain(|owner, _| is_sent(owner) && waiting.contains_key(owner.as_str()));
        sent.map(drop)
    }

    /// The commands for that.
    fn to_note(&self, waiting: &BTreeMap<&str, Vec<&Arc<Request>>>, holds: &Holds<'_>) -> Vec<ToSend> {
        let prefix = &self.session.shared.prefix;
        // A note outlives the time until it is written again, also where rounds take much longer than their period.
        let lasts = self.period.saturating_mul(2 * LONGEST_PAUSE);
        let lasts = lasts.clamp(LEAST_NOTE, MOST_LEASE);
        // An owner that has a note may begin to wait for another lock too.
        let is_due = |request: &&Arc<Request>| {
            let rounds = self.rounds[&request.number];
            rounds == 1 || rounds.is_multiple_of(LONGEST_PAUSE)
        };
        let mut notes = self.session.notes();
        let over = notes.keys().filter(|owner| !waiting.contains_key(owner.as_str()));
        let mut commands: Vec<_> = over
            .map(|owner| (owner.clone(), waits::forget(prefix, owner)))
            .collect();
        for (owner, requests) in waiting {
            let held: Vec<&str> = holds.get(owner).into_iter().flatten().copied().collect();
            // Or it may have taken a lock that was free, or left one.
            let is_noted = notes.get(*owner).is_some_and(|noted| *noted == held);
            if !is_noted || requests.iter().any(is_due) {
                let waits = requests
                    .iter()
                    .map(|request| (request.name.as_str(), &*request.lock.state));
                let note = waits::note(prefix, owner, waits, held.iter().copied(), lasts);
                commands.push(((*owner).to_owned(), note));
                // Before it is sent, so that a client that ends meanwhile deletes it.
                notes.insert((*owner).to_owned(), held.into_iter().map(str::to_owned).collect());
            }
        }
        commands
    }

    /// Looks from one lock, for all requests that wait there. `holds`: the holds of their owners.
    async fn look(&self, requests: &[&Arc<Request>], holds: &Holds<'_>) -> Result<(), RedisError> {
        let Some(first) = requests.first() else { return Ok(()) };
        let seen = self.session.look(&first.lock, &first.name).await?;
        let mine = requests.iter().filter_map(|request| {
            let ticket = request.claim().waiting_ticket()?;
            Some((*request, Wait::new(&request.lock, &request.name, ticket, &seen)?))
        });
        let mine: Vec<_> = mine.collect();
        let waits: Vec<_> = mine.iter().map(|(_, wait)| wait).collect();
        let (mut graph, unread) = graph_of(self.session, &waits).await?;
        for (_, wait) in &mine {
            let holds = holds.get(wait.owner.as_str()).into_iter().flatten();
            graph.tell(&wait.request, holds.map(|hold| (*hold).to_owned()));
        }
        for (request, wait) in &mine {
            if let Some(circle) = graph.circle(wait)
                && is_still(self.session, &circle).await?
            {
                self.tell(request, &circle).await;
            }
        }
        unread.map_or(Ok(()), Err)
    }

    /// Ends the wait of the youngest request of a circle.
    async fn tell(&self, request: &Arc<Request>, circle: &[Edge<'_>]) {
        let session = self.session;
        let names = circle.iter().filter_map(|edge| RequestName::read(&edge.wait.request));
        let clients = session.introductions(names.map(|name| name.client)).await;
        let blocked = circle.iter().filter_map(|Edge { wait, .. }| {
            let client = clients.get(RequestName::read(&wait.request)?.client)?.clone();
            let (owner, lock) = (Owner::of_name(&wait.owner)?, wait.lock.name.to_string());
            Some(Blocked::new(owner, client, lock, wait.mode(), wait.waited))
        });
        let circle: Arc<[Blocked]> = blocked.collect();
        let told = request.change(|claim| claim.is_waiting() && claim.end(EndedBy::Deadlocked(Arc::clone(&circle))));
        if !told {
            return;
        }
        tracing::warn!(lock = %request.lock.name, request = request.name, owners = circle.len(), "deadlock");
        request.changed.notify_waiters();
        // Without the user's help, whose future may not be polled. The next circle is judged without this wait.
        if session.shared.release(Arc::clone(request)).is_ok() {
            let _ = timeout(
                call_limit(session.shared.lease),
                session.shared.registry.out_of(request),
            )
            .await;
        }
    }
}

fn is_look_due(rounds: u32) -> bool {
    rounds.is_power_of_two() && rounds < LONGEST_PAUSE || rounds.is_multiple_of(LONGEST_PAUSE)
}

fn is_repeat_due(rounds: u32, misses: u32) -> bool {
    rounds.is_multiple_of(2_u32.saturating_pow(misses).min(LONGEST_PAUSE))
}

/// The first reading: all waits that are older than the youngest of these, as far as holders and notes lead from them.
/// And why it had to leave a wait out.
async fn graph_of(reader: &impl Reader, mine: &[&Wait]) -> Result<(Graph, Option<RedisError>), RedisError> {
    let (mut graph, mut unread, mut misses) = (Graph::default(), None, 0);
    let Some(youngest) = mine
        .iter()
        .copied()
        .reduce(|a, b| if a.is_older_than(b) { b } else { a })
    else {
        return Ok((graph, unread));
    };
    let mut asked = BTreeSet::new();
    let mut open: Vec<String> = Vec::new();
    let holders = mine.iter().flat_map(|wait| wait.holding_owners());
    open.extend(
        holders
            .filter(|owner| asked.insert((*owner).to_owned()))
            .map(str::to_owned),
    );
    while !open.is_empty() && graph.len() < MOST_WAITS {
        let (notes, why) = reader.notes(&std::mem::take(&mut open)).await;
        unread = unread.or(why);
        let noted = notes.into_iter().flat_map(|Note { waits, mut holds }| {
            for (request, _) in &waits {
                graph.tell(request, holds.drain(..));
            }
            waits
        });
        for (request, lock) in noted.collect::<Vec<_>>() {
            let wait = match reader.wait(&lock, &request).await {
                Ok(Some(wait)) => wait,
                Ok(None) => continue,
                Err(error) if reader.has_others(&error) => {
                    misses += 1;
                    unread = Some(error);
                    if misses == MOST_MISSES {
                        return Ok((graph, unread));
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            if wait.is_older_than(youngest) && graph.len() < MOST_WAITS {
                let holders = wait.holding_owners();
                open.extend(
                    holders
                        .filter(|owner| asked.insert((*owner).to_owned()))
                        .map(str::to_owned),
                );
                graph.add(wait);
            }
        }
    }
    Ok((graph, unread))
}

/// The second reading: whether each edge is still there, in the order of the first reading.
async fn is_still(reader: &impl Reader, circle: &[Edge<'_>]) -> Result<bool, RedisError> {
    for edge in circle {
        let later = reader.wait(&edge.wait.lock, &edge.wait.request).await?;
        if !edge.is_in(later.as_ref()) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Session {
    pub(super) fn notes(&self) -> MutexGuard<'_, Notes> {
        // No code that can panic runs while it is locked.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes the notes of this client's owners: nobody waits any more.
    pub(super) async fn forget_notes(&self) -> Result<(), RedisError> {
        let notes = std::mem::take(&mut *self.notes());
        let forget = |owner: &String| (owner.clone(), waits::forget(&self.shared.prefix, owner));
        self.send_all(notes.keys().map(forget).collect()).await.map(drop)
    }

    /// Returns the owners whose commands had no reply. The other nodes of a cluster get theirs all the same.
    async fn send_all(&self, commands: Vec<ToSend>) -> Result<BTreeSet<String>, RedisError> {
        let limit = call_limit(self.shared.lease);
        let send = |(owner, (key, command)): ToSend| async move {
            let call = self.route.command(Lane::Background, limit, &key, &command);
            (owner, call.await)
        };
        let mut sent = stream::iter(commands.into_iter().map(send)).buffer_unordered(AT_ONCE);
        let mut failed = BTreeSet::new();
        while let Some((owner, reply)) = sent.next().await {
            match reply {
                Ok(_) => {}
                Err(error) if self.has_others(&error) => _ = failed.insert(owner),
                Err(error) => return Err(error),
            }
        }
        Ok(failed)
    }

    async fn look(&self, lock: &Lock, request: &str) -> Result<Snapshot, RedisError> {
        self.call(lock, self.shared.lease).look(request, MOST_HOLDERS).await
    }
}

impl Reader for Session {
    async fn wait(&self, lock: &Arc<Lock>, request: &str) -> Result<Option<Wait>, RedisError> {
        let seen = self.look(lock, request).await?;
        Ok(Wait::read(lock, request, &seen))
    }

    async fn notes(&self, owners: &[String]) -> (Vec<Note>, Option<RedisError>) {
        let prefix = &self.shared.prefix;
        let keys: Vec<_> = owners.iter().map(|owner| waits::key_of(prefix, owner)).collect();
        let (texts, why) = self
            .route
            .texts(Lane::Background, call_limit(self.shared.lease), &keys)
            .await;
        let noted = owners.iter().zip(texts);
        let notes = noted.filter_map(|(owner, text)| Some(waits::read(prefix, owner, &text?)));
        (notes.collect(), why)
    }

    fn has_others(&self, error: &RedisError) -> bool {
        is_transient(error) && self.route.is_cluster()
    }
}

#[cfg(test)]
mod tests;
