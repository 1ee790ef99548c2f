//! Elections: of all candidates one leads at a time. The leader is who holds the write lock of the election's name.

use crate::guard::WriteGuard;
use crate::protocol::event::{Event, EventKind};
use crate::protocol::name::RequestName;
use crate::protocol::order::AskForStatus;
use crate::protocol::snapshot::Snapshot;
use crate::rw_lock::RwLock;
use crate::types::client_info::ClientInfo;
use crate::types::error::{Error, LostReason};
use crate::types::mode::Mode;
use crate::types::owner::Owner;
use crate::types::token::FencingToken;
use crate::watch::{Seen, Watch};
use futures::stream::{self, StreamExt as _};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};
use tokio_stream::Stream;

/// What is read to find the leader. Its own read holds stand beside it.
const HOLDERS: AskForStatus<'static> = AskForStatus {
    first: 0,
    waiters: 0,
    holders: 1000,
    place_of: None,
};

/// An election with a name: see [`Client::election`](crate::Client::election).
///
/// Candidates campaign and lead in the order in which they came. A leader leads until it resigns or is lost. When the
/// leader's process dies, the next candidate leads one lease later at the latest. The [guide](crate::guide::election) has
/// more.
///
/// The election is the write lock of its name: `client.rw_lock(name)` is the same lock, and its status, events and
/// eviction work as ever.
#[derive(Clone, Debug)]
pub struct Election {
    lock: RwLock,
    lease: Option<Duration>,
}

impl Election {
    pub(crate) fn new(lock: RwLock) -> Self {
        Self { lock, lease: None }
    }

    /// The election's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Sets the lease of this candidate: how long the others wait for the next leader if this process dies as the
    /// leader. The default is the client's lease; at least 100 ms, at most a year.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Waits until this candidate leads.
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client) -> Result<(), fairlock::Error> {
    /// let leading = client.election("leader:scheduler").campaign().await?;
    /// println!("term {}", leading.term());
    /// leading.while_leading(async { /* schedule */ }).await?;
    /// leading.resign().await
    /// # }
    /// ```
    ///
    /// # Fairness
    /// That of [`Acquire::acquire_fair`](crate::Acquire::acquire_fair): first come, first served. Each call is a
    /// candidate of its own. In an [`Owner::scope`] all calls are one candidate, which may lead several times at once.
    ///
    /// # Cancel safety
    /// If you drop the future, the candidate withdraws, in the background.
    ///
    /// # Errors
    /// Those of [`Acquire::acquire_fair`](crate::Acquire::acquire_fair).
    pub async fn campaign(&self) -> Result<Leading, Error> {
        let candidate = self.lock.write();
        let candidate = match self.lease {
            Some(lease) => candidate.lease(lease),
            None => candidate,
        };
        candidate.acquire_fair().await.map(Leading)
    }

    /// Who leads at this moment, by one reading of the server. `None`: nobody.
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client) -> Result<(), fairlock::Error> {
    /// match client.election("leader:scheduler").leader().await? {
    ///     Some(leader) => println!("{} leads in term {}", leader.client, leader.term),
    ///     None => println!("nobody leads"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// The call changes nothing.
    ///
    /// # Errors
    /// Those of [`RwLock::status`].
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let leader = leader_in(&Box::pin(self.lock.snapshot(&HOLDERS)).await?);
        Ok(match leader {
            Some(leader) => Some(introduced(leader, &self.lock).await),
            None => None,
        })
    }

    /// Streams who leads: first who leads now, then each change, with vacancies as `None`.
    ///
    /// An item is an error while the server is away, or refuses the subscription. The stream goes on after it: the next
    /// item tells again who leads. The stream ends when the client is shut down, or its runtime ends.
    ///
    /// A change is told within milliseconds. If its event is lost, the change is told within half a minute; so is the
    /// vacancy after a leader's process died and nobody campaigns. A term that is over by the time the stream reads it
    /// may be left out.
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client) -> Result<(), fairlock::Error> {
    /// let mut leaders = client.election("leader:scheduler").observe().await?;
    /// while let Some(leader) = leaders.next().await {
    ///     match leader? {
    ///         Some(leader) => println!("{} leads in term {}", leader.client, leader.term),
    ///         None => println!("nobody leads"),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// After a drop of the future or of the stream the client unsubscribes within seconds.
    ///
    /// # Errors
    /// Those of [`RwLock::events`].
    pub async fn observe(&self) -> Result<Leaders, Error> {
        let watch = Watch::begin(self.lock.clone(), HOLDERS).await?;
        let observer = Observer {
            watch,
            leader: None,
            term: 0,
            told: None,
        };
        Ok(Leaders {
            leaders: Box::pin(stream::unfold(observer, Observer::next).fuse()),
        })
    }
}

/// A term as the leader. A drop resigns in the background.
#[derive(Debug)]
#[must_use = "a leader that is dropped resigns"]
pub struct Leading(WriteGuard);

impl Leading {
    /// The number of the term. Terms only grow, but not by one. Send it to the resource with every write: a resource
    /// that refuses smaller numbers refuses former leaders. See [`FencingToken`].
    #[must_use]
    pub fn term(&self) -> FencingToken {
        self.0.fencing_token()
    }

    /// The owner by which this term's [`Leader`] is known to others.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.0.owner()
    }

    /// Whether this process certainly still leads, without I/O: see [`Guard::is_held`](crate::Guard::is_held).
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.0.is_held()
    }

    /// Resolves when the term is lost, and returns the reason: see [`Guard::lost`](crate::Guard::lost).
    ///
    /// # Cancel safety
    /// You may drop the future and call again at any time.
    pub async fn lost(&self) -> LostReason {
        self.0.lost().await
    }

    /// Resolves when another candidate campaigns: see [`Guard::contended`](crate::Guard::contended).
    ///
    /// # Cancel safety
    /// You may drop the future and call again.
    ///
    /// # Errors
    /// Those of [`Guard::contended`](crate::Guard::contended).
    pub async fn contended(&self) -> Result<(), Error> {
        self.0.contended().await
    }

    /// Runs a job while this process leads. If the term is lost first, `while_leading` drops the job.
    ///
    /// # Cancel safety
    /// If you drop the future, the job is dropped and this process still leads.
    ///
    /// # Errors
    /// [`Error::Lost`] if the term was lost before the job was done.
    pub async fn while_leading<F: Future>(&self, job: F) -> Result<F::Output, Error> {
        self.0.while_held(job).await
    }

    /// Ends the term and waits for the server's confirmation. By then the next candidate leads.
    ///
    /// # Cancel safety
    /// If you drop the future at any point, the client resigns all the same, in the background.
    ///
    /// # Errors
    /// Those of [`Guard::release`](crate::Guard::release).
    pub async fn resign(self) -> Result<(), Error> {
        self.0.release().await
    }
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Leader {
    /// The owner of the leader's hold: that of its [`Leading::owner`].
    pub owner: Owner,
    /// The leader's client, with its label.
    pub client: ClientInfo,
    /// The number of the term.
    pub term: FencingToken,
    /// When the term began, by the server's clock. The value is off by a microsecond or more after that clock was
    /// stepped.
    pub since: SystemTime,
}

impl Leader {
    fn new(owner: Owner, client: &str, term: FencingToken) -> Self {
        Self {
            owner,
            client: ClientInfo::read(client, None),
            term,
            // A token is the time in microseconds, or a little more.
            since: SystemTime::UNIX_EPOCH + Duration::from_micros(term.get()),
        }
    }
}

/// Who leads, as a stream: see [`Election::observe`].
#[must_use = "changes are dropped if nobody reads the stream"]
pub struct Leaders {
    leaders: Pin<Box<dyn Stream<Item = Told> + Send>>,
}

type Told = Result<Option<Leader>, Error>;

impl Leaders {
    /// Waits for the next change, as `StreamExt::next` does, and returns `None` when the stream has ended.
    ///
    /// # Cancel safety
    /// You may drop the future and call again: the stream skips nothing.
    ///
    /// # Errors
    /// See [`Election::observe`].
    pub async fn next(&mut self) -> Option<Result<Option<Leader>, Error>> {
        tokio_stream::StreamExt::next(self).await
    }
}

impl Stream for Leaders {
    type Item = Told;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.leaders.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for Leaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaders").finish_non_exhaustive()
    }
}

struct Observer {
    watch: Watch,
    leader: Option<Leader>,
    /// The greatest token so far: events up to it are old.
    term: u64,
    /// The term that the stream told last, or the vacancy. `None`: nothing, or an error.
    told: Option<Option<FencingToken>>,
}

impl Observer {
    async fn next(mut self) -> Option<(Told, Self)> {
        loop {
            match self.watch.next().await? {
                Ok(Seen::Status(now)) => self.on_status(&now),
                Ok(Seen::Event(event)) if !self.on_event(&event) => continue,
                Ok(Seen::Event(_)) => {}
                Err(error) => {
                    self.told = None;
                    return Some((Err(error), self));
                }
            }
            let term = self.leader.as_ref().map(|leader| leader.term);
            if self.told != Some(term) {
                if let Some(leader) = self.leader.take() {
                    self.leader = Some(introduced(leader, self.watch.lock()).await);
                }
                self.told = Some(term);
                return Some((Ok(self.leader.clone()), self));
            }
        }
    }

    fn on_status(&mut self, now: &Snapshot) {
        self.term = self.term.max(now.raw.token);
        self.leader = leader_in(now);
    }

    /// Returns whether the event tells who leads now.
    fn on_event(&mut self, event: &Event) -> bool {
        use EventKind::{Evicted, Expired, Granted, Released};
        match (event.kind, event.mode, event.token) {
            // A quarantine holds the lock, and nobody leads.
            _ if event.owner.is_nobody() => false,
            (Granted, Mode::Write, Some(token)) if token.get() > self.term => {
                self.term = token.get();
                self.leader = Some(Leader::new(event.owner, &event.client_id, token));
                true
            }
            // The next leader's grant may follow, and an owner may lead twice: the status knows.
            (Released | Expired | Evicted, Mode::Write, _) => {
                if self.leader.as_ref().is_some_and(|leader| leader.owner == event.owner) {
                    self.watch.look_now();
                }
                false
            }
            _ => false,
        }
    }
}

/// The writer whose lease lasts. A quarantine is none.
fn leader_in(now: &Snapshot) -> Option<Leader> {
    let mut holders = now
        .holders
        .iter()
        .filter(|holder| holder.deadline_ms > now.now_us / 1000);
    holders.find_map(|holder| {
        let name = RequestName::read(&holder.request).filter(|name| name.mode == Mode::Write)?;
        let owner = name.owner().filter(|owner| !owner.is_nobody())?;
        Some(Leader::new(owner, name.client, FencingToken::new(holder.token)))
    })
}

async fn introduced(leader: Leader, lock: &RwLock) -> Leader {
    let client = Box::pin(lock.introduction(&leader.client.id)).await;
    Leader { client, ..leader }
}
