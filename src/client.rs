//! The client: a process has one, and all of its locks share it.

use crate::all::AcquireAll;
use crate::election::Election;
use crate::engine::runtime;
use crate::engine::session::{Handle, Settings};
use crate::engine::tasks;
use crate::events::Events;
use crate::locks::Locks;
use crate::observe;
use crate::protocol::key::{self, Lock};
use crate::protocol::replication::Replication;
use crate::rw_lock::RwLock;
use crate::semaphore::Semaphore;
use crate::state::shared::Identity;
use crate::target::{IntoServer, Server};
use crate::types::client_info::ClientInfo;
use crate::types::error::{ALL_LOCKS, Error};
use crate::types::limits::{
    DEADLOCK_TIMEOUT, DEFAULT_LEASE, LEAST_DEADLOCK_TIMEOUT, LEAST_LEASE, MOST_LEASE, check_duration, check_lease,
    check_lock_delay,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A connection to the server that keeps the locks. A process needs only one `Client`; clones share it.
///
/// A client has two connections, one for commands and one for subscriptions, and a third one once it waits for replicas.
/// In a cluster it has as many to each master at most; with Sentinel it has a few more to the sentinels. Background tasks
/// run on the tokio runtime on which the client connected. They renew holders and waiters, and they reconnect. The tasks
/// end when the last `Client`, [`RwLock`], guard and acquisition is gone and everything that was dropped is released.
/// [`shutdown`](Client::shutdown) waits for that.
///
/// If that runtime ends first, nothing renews or releases any more. Waiting and later calls fail at once with
/// [`Error::Unavailable`], streams of events end with that error, and holds are lost with their leases.
///
/// Other tokio runtimes may make calls too. Each of them needs timers: see [`Error::Runtime`].
///
/// ```no_run
/// # async fn example() -> Result<(), fairlock::Error> {
/// let client = fairlock::Client::connect("redis://127.0.0.1:6379").await?;
/// let guard = client.rw_lock("invoice:42").write().acquire_fair().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    pub(crate) handle: Arc<Handle>,
}

impl Client {
    /// Connects with the defaults: see [`ClientBuilder`].
    ///
    /// The server is a URL (`redis://`, `unix://`, and `rediss://` with the feature `tls-rustls`) or a
    /// [`redis::Client`]. With the feature `cluster` it may be a list of nodes, each a URL or a
    /// [`redis::ConnectionInfo`]; with the feature `sentinel` a `redis::sentinel::SentinelClient`.
    ///
    /// # Cancel safety
    /// If you drop the future, the client closes its connections.
    ///
    /// # Errors
    /// [`Error::Connect`] if the server cannot be reached within two seconds, refuses the login, or refuses to
    /// subscribe. A replica serves reads only: the first call that writes fails there with [`Error::Server`]. From then on
    /// all calls fail with [`Error::Unavailable`], until the address leads to a master. [`Error::Runtime`] outside of a
    /// tokio runtime with I/O and timers.
    pub async fn connect(server: impl IntoServer) -> Result<Self, Error> {
        Self::builder().connect(server).await
    }

    /// Returns a builder for a client with other settings.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), fairlock::Error> {
    /// use fairlock::Client;
    /// use std::time::Duration;
    ///
    /// let client = Client::builder()
    ///     .lease(Duration::from_secs(5))
    ///     .label("billing-7f9c")
    ///     .prefix("shop")
    ///     .connect("redis://127.0.0.1:6379")
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            lease: DEFAULT_LEASE,
            prefix: "fairlock".to_owned(),
            label: None,
            replication: None,
            lock_delay: Duration::ZERO,
            quarantine: None,
            deadlock_timeout: DEADLOCK_TIMEOUT,
        }
    }

    /// Returns the lock of that name, without I/O. All locks of one name are the same lock, in all processes.
    ///
    /// A name has 1 to 1024 bytes. A lock with another name cannot be acquired.
    #[must_use]
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        let lock = Lock::new(&self.handle.shared().prefix, name.as_ref().into());
        RwLock::new(Arc::clone(&self.handle), Arc::new(lock))
    }

    /// Returns the election of that name, without I/O: of all candidates one leads at a time. See [`Election`].
    ///
    /// The election is the lock of that name. So choose names that no lock has, such as `leader:scheduler`.
    #[must_use]
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.rw_lock(name))
    }

    /// Returns a request for several locks at once, without I/O. Requests for several locks at once cannot deadlock:
    /// the client acquires them in the order of their names.
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client) -> Result<(), fairlock::Error> {
    /// let (from, to) = (client.rw_lock("account:7"), client.rw_lock("account:3"));
    /// let all = client.all().write(&from).write(&to).acquire_fair().await?;
    /// all.while_held(async { /* move the money, in one transaction */ }).await?;
    /// // The money has moved. A release that fails does not undo that.
    /// if let Err(error) = all.release().await {
    ///     eprintln!("{error}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// The guide [`several_locks`](crate::guide::several_locks) says more.
    pub fn all(&self) -> AcquireAll {
        AcquireAll::new(Arc::clone(&self.handle))
    }

    /// Returns the semaphore of that name with so many permits, 1 to 1,000,000,000, without I/O: see [`Semaphore`].
    ///
    /// A semaphore is a lock: it shares its name, its policy [`Policy::Bounded`](crate::Policy::Bounded) and its keys with
    /// [`rw_lock`](Self::rw_lock)`(name).`[`max_readers`](RwLock::max_readers)`(permits)`. Other locks of that name are
    /// refused with [`Error::PolicyMismatch`].
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        Semaphore::new(self.rw_lock(name), permits)
    }

    /// Streams what happens to all locks under this client's prefix from now on: see [`RwLock::events`].
    ///
    /// A user with ACL rules needs `&PREFIX:{*}:events`, letter for letter, because a wider rule does not allow a
    /// pattern.
    ///
    /// # Cancel safety
    /// The same as for [`RwLock::events`].
    ///
    /// # Errors
    /// Those of [`RwLock::events`], and [`Error::Unsupported`] on a cluster, whose nodes know no patterns of channels.
    pub async fn events(&self) -> Result<Events, Error> {
        runtime::check_timers()?;
        if self.handle.session.is_closed() {
            return Err(Error::Shutdown {
                lock: ALL_LOCKS.to_owned(),
            });
        }
        Events::of_all(Arc::clone(&self.handle)).await
    }

    /// Reads who a client is, by the id that an [`Event`](crate::Event) has: what [`RwLock::status`] tells of holders and
    /// waiters. `None`: the server knows no such client, because it has ended, or has not introduced itself.
    ///
    /// # Cancel safety
    /// The call changes nothing.
    ///
    /// # Errors
    /// Those of [`RwLock::status`]; they name no lock.
    pub async fn client_info(&self, id: &str) -> Result<Option<ClientInfo>, Error> {
        runtime::check_timers()?;
        let session = &self.handle.session;
        if session.is_closed() {
            return Err(Error::Shutdown {
                lock: ALL_LOCKS.to_owned(),
            });
        }
        let introduction = session.introduction(id).await;
        introduction.map_err(|error| Error::of_server(ALL_LOCKS, error))
    }

    /// The names of the locks under this client's prefix that exist and match a pattern, in no particular order.
    ///
    /// A lock exists from its first use until 30 to 60 seconds after its last lease, held or not. In a pattern `*` stands
    /// for any text, `?` for one byte, `[ab]` for one of these, and a backslash takes the next character literally.
    /// Outside of brackets `}` and `%` may stand in a pattern too. For `?` each of these two counts as three bytes.
    ///
    /// The stream brings each name once. It brings every lock that exists the whole time; a lock that comes or goes
    /// meanwhile may be missing. A key of another type under a lock's name counts as a lock, because nobody can acquire that
    /// lock: its status is an error (WRONGTYPE). So do not end at one lock that cannot be read, if you want to see the
    /// others. In a cluster the stream goes through all masters. A lock may also be missing if its slot
    /// moves, the server restarts, or another server takes over meanwhile, because a SCAN goes on in one process only.
    ///
    /// **Cost.** The server has no list of its locks. The stream steps through all keys of the database by `SCAN`, 1,000
    /// keys a call, and asks for the next keys only when it is polled. So it is for operators, not for every request of a
    /// service. The user needs `+scan`, which shows the names of other users' keys too. The stream keeps all names that it
    /// has brought.
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client) -> Result<(), fairlock::Error> {
    /// use fairlock::Error;
    /// let mut locks = client.locks("invoice:*");
    /// while let Some(name) = locks.next().await {
    ///     match name {
    ///         Ok(name) => match client.rw_lock(name.as_str()).status().await {
    ///             Ok(status) => println!("{name}: {} wait", status.waiting),
    ///             Err(error) => eprintln!("{error}"),
    ///         },
    ///         Err(foreign @ Error::ForeignKey { .. }) => eprintln!("{foreign}"),
    ///         Err(error) => return Err(error),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// `cargo run --example locks` shows it.
    ///
    /// # Cancel safety
    /// A dropped `next` loses no name: the stream keeps the call under way. The stream changes nothing on the server and
    /// can be dropped at any time.
    ///
    /// # Errors
    /// An item is [`Error::ForeignKey`] for a key that looks like a lock's and cannot be one; the stream goes on after it.
    /// After any other error the stream ends: [`Error::Unavailable`], [`Error::Server`], [`Error::Shutdown`] or
    /// [`Error::Runtime`].
    pub fn locks(&self, pattern: impl Into<String>) -> Locks {
        Locks::new(Arc::clone(&self.handle), pattern.into())
    }

    /// Leaves every queue, releases every hold and ends the background tasks. Existing guards report [`Error::Lost`],
    /// acquisitions under way fail with [`Error::Shutdown`], streams of events end. This holds for all clones.
    ///
    /// Call `shutdown` before the process exits. Otherwise a release of a guard that was dropped just before may get
    /// lost, and the next waiter waits for the lease.
    ///
    /// The call waits until the server has confirmed, at most about five seconds, and not for what the server refuses for
    /// good. What the server did not confirm ends with its lease. On a runtime without timers the call does not wait: the
    /// client's tasks release everything in the background. A hold whose [least time](crate::Acquire::hold_at_least) is not
    /// over stays with the server for the rest.
    ///
    /// # Cancel safety
    /// After the first poll the client releases everything in the background, also if you drop the future or never poll
    /// it again. Then the connections stay until the last handle, guard or acquisition of the client is gone.
    pub async fn shutdown(&self) {
        let timers = runtime::check_timers();
        if let Err(error) = &timers {
            tracing::warn!(%error, "the shutdown does not wait for its releases");
        }
        self.handle.session.shut_down(timers.is_ok()).await;
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.handle.shared();
        f.debug_struct("Client")
            .field("id", &format_args!("{}", shared.id))
            .field("prefix", &shared.prefix)
            .field("lease", &shared.lease)
            .finish_non_exhaustive()
    }
}

/// Settings of a [`Client`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until connect is called"]
pub struct ClientBuilder {
    lease: Duration,
    prefix: String,
    label: Option<String>,
    replication: Option<Replication>,
    lock_delay: Duration,
    quarantine: Option<Duration>,
    deadlock_timeout: Duration,
}

impl ClientBuilder {
    /// Sets the lease of requests that do not set their own: 10 s unless set, at least 100 ms, at most a year.
    ///
    /// The client renews every third of the lease. Others wait at most a lease for a process that died while it held
    /// the lock. A hold survives every silence of the network that ends a quarter of a lease before the hold's proof
    /// does. So a silence of 39 % of the lease is always safe: see [`leases`](crate::guide::leases).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Names this process, for example by its pod. [`RwLock::status`] and the server's `CLIENT LIST` show the label. A
    /// label has 1 to 128 characters, printable ASCII without spaces, as Redis requires.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets the beginning of every key and channel: `fairlock` unless set. Clients with different prefixes do not see
    /// each other's locks. A prefix has 1 to 128 bytes, without braces.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Makes a grant count only when so many replicas have it within that time. If one of these replicas takes over, it
    /// knows of the hold. Otherwise the client withdraws the grant and the caller gets [`Error::NotReplicated`]. By
    /// then the server has confirmed the withdrawal, or the lease has ended.
    ///
    /// Each acquisition and upgrade then costs a further renewal and a `WAIT` over another connection; acquisitions at
    /// the same time share one `WAIT`. Later renewals, releases and downgrades do not wait for replicas. The time is 1
    /// ms to an hour. It may take two seconds longer for each other number of replicas, or time below a second, that
    /// requests of this client wait for; the client renews the lease meanwhile. Redis and Valkey still replicate asynchronously. So choose at least
    /// as many replicas as may be lost at once, and fence the resource. With 0 replicas, the default, the client waits
    /// for none.
    pub fn wait_for_replicas(mut self, replicas: usize, timeout: Duration) -> Self {
        self.replication = Replication::in_memory(replicas, timeout);
        self
    }

    /// Like [`wait_for_replicas`](Self::wait_for_replicas), and the grant must be on disk (`fsync` of the append-only
    /// file) on the replicas and on the server itself. With 0 replicas it must be on the server's own disk, so that its
    /// restart forgets no hold.
    ///
    /// This needs `WAITAOF` (Redis 7.2, Valkey 7.2 or later) and `appendonly yes`. Without them acquiring fails with
    /// [`Error::Server`].
    pub fn wait_for_disks(mut self, replicas: usize, timeout: Duration) -> Self {
        self.replication = Some(Replication {
            replicas,
            timeout,
            on_disk: true,
        });
        self
    }

    /// Sets how long others stay outside after a holder lost the lock, for resources that cannot check a
    /// [`FencingToken`](crate::FencingToken). There is no delay unless set; at most a year.
    ///
    /// The client asks the server for leases that are longer by the delay, and does not count on it. So for this time
    /// after [`Guard::lost`](crate::Guard::lost) nobody enters. What a holder began while
    /// [`is_held`](crate::Guard::is_held) was true, and what ends within the delay, is over by then.
    ///
    /// Release and drop hand over at once, and an eviction does too. A hold that ends by its lease or its `max_hold` keeps
    /// others out for the delay, even if its guard is dropped meanwhile. A crash costs the others the lease and the delay.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
        self
    }

    /// Refuses locks that look free for this long after the server restarted or a replica took over, because the server
    /// may have forgotten a holder that does not know yet. Set the longest lease that any client uses. The client adds its
    /// own [`lock_delay`](Self::lock_delay). If a request sets a longer delay, or
    /// [`hold_at_least`](crate::Acquire::hold_at_least) exceeds the lease, set the longest of these. Meanwhile
    /// requests queue, and tries find the lock busy.
    ///
    /// All clients of a prefix should set the same quarantine. They recognise a new server by its run id, which they
    /// keep in the key `PREFIX:life`, so the first use of an empty server is in quarantine too. Holds that the server
    /// still knows go on, and the waiters behind them enter. The user needs the right to `INFO`. A cluster has no
    /// quarantine. There is none unless set; at least 100 ms, at most a year.
    pub fn quarantine(mut self, longest_lease: Duration) -> Self {
        self.quarantine = Some(longest_lease);
        self
    }

    /// Sets how long a named [`Owner`](crate::Owner) waits before the client looks for a deadlock: 1 s unless set, at
    /// least 10 ms. [`Duration::MAX`] switches the search off.
    ///
    /// The first look comes after one to two time-outs, the next ones after 2, 4, ... up to every 64 time-outs. The
    /// youngest owner of a circle gets [`Error::Deadlock`]. Only circles whose owners' clients all search are found. The
    /// page [`deadlocks`](crate::guide::deadlocks) says what is found, and what the search costs.
    pub fn deadlock_timeout(mut self, timeout: Duration) -> Self {
        self.deadlock_timeout = timeout;
        self
    }

    /// Connects, and starts the background tasks on the current tokio runtime.
    ///
    /// # Cancel safety
    /// If you drop the future, the client closes its connections.
    ///
    /// # Errors
    /// [`Error::Connect`] as in [`Client::connect`]; [`Error::InvalidDuration`], [`Error::InvalidPrefix`] and
    /// [`Error::InvalidLabel`] for impossible settings; [`Error::Runtime`] outside of a tokio runtime with timers and
    /// I/O; [`Error::Unsupported`] for a [`quarantine`](Self::quarantine) on a cluster.
    pub async fn connect(self, server: impl IntoServer) -> Result<Client, Error> {
        runtime::check_timers()?;
        observe::begin();
        key::check_prefix(&self.prefix)?;
        check_lease("", self.lease)?;
        check_lock_delay("", self.lock_delay)?;
        key::check_label(self.label.as_deref())?;
        if let Some(replication) = self.replication {
            replication.check("")?;
        }
        if let Some(quarantine) = self.quarantine {
            check_duration("", "quarantine", quarantine, LEAST_LEASE, MOST_LEASE)?;
        }
        check_duration(
            "",
            "deadlock_timeout",
            self.deadlock_timeout,
            LEAST_DEADLOCK_TIMEOUT,
            Duration::MAX,
        )?;
        let Server(target) = server
            .into_server()
            .map_err(|source| Error::of_connect("the server".into(), source))?;
        if target.needs_io() {
            runtime::check_io()?;
        }
        if self.quarantine.is_some() && target.is_cluster() {
            return Err(Error::Unsupported {
                lock: ALL_LOCKS.to_owned(),
                what: "quarantine",
                remedy: "in a cluster nothing says for all slots when a node has restarted; use wait_for_replicas",
            });
        }
        let address = target.address();
        let settings = Settings {
            identity: Identity::new(),
            lease: self.lease,
            prefix: self.prefix,
            label: self.label,
            replication: self.replication,
            lock_delay: self.lock_delay,
            quarantine: self.quarantine.map(|lease| lease + self.lock_delay),
            seat: None,
            deadlock_timeout: (self.deadlock_timeout < Duration::MAX).then_some(self.deadlock_timeout),
        };
        // In a box: connecting happens once, and its future is long.
        let handle = Box::pin(tasks::connect(&target, settings))
            .await
            .map_err(|source| Error::of_connect(address.clone(), source))?;
        tracing::info!(server = %address, client = %handle.shared().id, "connected");
        Ok(Client { handle })
    }
}
