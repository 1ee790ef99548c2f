//! The client: one per process, shared by all of its locks.

use crate::engine::runtime;
use crate::engine::session::{Handle, Settings};
use crate::engine::tasks;
use crate::events::Events;
use crate::locks::Locks;
use crate::observe;
use crate::protocol::key::{self, Lock};
use crate::protocol::replication::Replication;
use crate::rw_lock::RwLock;
use crate::target::{IntoServer, Server};
use crate::types::error::Error;
use crate::types::limits::{DEFAULT_LEASE, LEAST_LEASE, MOST_LEASE, check_duration, check_lease};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A connection to the server that keeps the locks. One per process is enough; clones share it.
///
/// It has two connections, one for commands and one that listens (in a cluster at most two to each master; with Sentinel
/// a few to the sentinels besides), and a few background tasks on the tokio runtime where it was connected. They renew what is held and what waits, and make connections again that were lost. They
/// end when the last of `Client`, [`RwLock`], guards and acquisitions is gone, after everything that was dropped has
/// been released; [`shutdown`](Client::shutdown) waits for that.
///
/// If that runtime ends first, nothing is renewed or released any more. Waiting and later calls fail at once with
/// [`Error::Unavailable`], streams of events end with that error, and holds are lost with their leases.
///
/// Calls may be made on other tokio runtimes too. Each needs timers: see [`Error::Runtime`].
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
    /// Takes a URL (`redis://`, `unix://`, and `rediss://` with the feature `tls-rustls`) or a [`redis::Client`]; with
    /// the feature `cluster` a list of nodes, each a URL or a [`redis::ConnectionInfo`]; with the feature `sentinel` a
    /// `redis::sentinel::SentinelClient`.
    ///
    /// # Cancel safety
    /// Dropped, it closes its connections again.
    ///
    /// # Errors
    /// [`Error::Connect`] if the server cannot be reached within two seconds, refuses the login, or refuses to
    /// subscribe. A replica will do for reading: what writes is an [`Error::Server`] there.
    pub async fn connect(server: impl IntoServer) -> Result<Self, Error> {
        Self::builder().connect(server).await
    }

    /// A client with other settings.
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
            quarantine: None,
        }
    }

    /// The lock of that name. Does no I/O; all locks of one name are the same lock, in all processes.
    ///
    /// A name has 1 to 1024 bytes, any of them; another one is refused when the lock is acquired.
    #[must_use]
    pub fn rw_lock(&self, name: impl Into<Arc<str>>) -> RwLock {
        let lock = Lock::new(&self.handle.shared().prefix, name.into());
        RwLock::new(Arc::clone(&self.handle), Arc::new(lock))
    }

    /// What happens to all locks under this client's prefix from now on: see [`RwLock::events`].
    ///
    /// A user with ACL rules needs `&PREFIX:{*}:events` for it, letter for letter: a wider rule does not allow a pattern.
    ///
    /// # Cancel safety
    /// That of [`RwLock::events`].
    ///
    /// # Errors
    /// Those of [`RwLock::events`], and [`Error::Unsupported`] on a cluster: its nodes know channels, no patterns.
    pub async fn events(&self) -> Result<Events, Error> {
        runtime::check_timers()?;
        if self.handle.session.is_closed() {
            return Err(Error::Shutdown { lock: "*".to_owned() });
        }
        Events::of_all(Arc::clone(&self.handle)).await
    }

    /// The names of the locks under this client's prefix that exist and match a pattern, in no particular order.
    ///
    /// A lock exists from its first use until 30 to 60 seconds after its last lease, held or not. In a pattern `*` stands
    /// for any text, `?` for one character, `[ab]` for one of these, and a backslash takes the next character literally.
    /// Outside of brackets `}` and `%` may stand in a pattern too.
    ///
    /// The stream brings each name once. It brings every lock that exists the whole time; a lock that comes or goes
    /// meanwhile may be missing. In a cluster the stream goes through all masters, and a lock whose slot moves meanwhile
    /// may be missing too.
    ///
    /// **Cost.** The server has no list of its locks. The stream steps through all keys of the database by `SCAN`, 1,000
    /// keys a call, and asks for the next keys only when it is polled. So it is for operators, not for every request of a
    /// service. The user needs `+scan`, which shows the names of other users' keys too. The stream keeps all names that it
    /// has brought.
    ///
    /// ```no_run
    /// # async fn example(client: fairlock::Client) -> Result<(), fairlock::Error> {
    /// use fairlock::Error;
    /// use tokio_stream::StreamExt; // or futures::StreamExt
    ///
    /// let mut locks = client.locks("invoice:*");
    /// while let Some(name) = locks.next().await {
    ///     match name {
    ///         Ok(name) => println!("{name}: {} wait", client.rw_lock(name.as_str()).status().await?.waiting),
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

    /// Leaves every queue, releases every hold and ends the background tasks. Guards that still exist report
    /// [`Error::Lost`], acquisitions under way fail with [`Error::Shutdown`], streams of events end; the same goes for all
    /// clones.
    ///
    /// Call it before the process exits: what was dropped just before might otherwise not be released any more, and the
    /// next one would wait for the lease.
    ///
    /// Waits until the server has confirmed, at most about three seconds; what it did not confirm ends with its lease. On
    /// a runtime without timers it does not wait: the client's tasks release everything in the background.
    ///
    /// # Cancel safety
    /// From its first poll on the background releases what there is, also if the future is dropped or not polled again. Then
    /// the connections stay until the last handle, guard or acquisition of the client is gone.
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
    quarantine: Option<Duration>,
}

impl ClientBuilder {
    /// The lease of requests that do not set their own: 10 s unless set, at least 100 ms, at most a year.
    ///
    /// It is renewed at a third of it. It is how long others wait for a process that died while it held the lock. A hold
    /// survives every silence of the network that ends a quarter of a lease before the hold's proof does. So 39 % of the
    /// lease is always safe: see [`leases`](crate::guide::leases).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// A name for this process, such as its pod: shown by [`RwLock::status`], and as the name of its connections in the
    /// server's `CLIENT LIST`. 1 to 128 characters, printable ASCII without spaces, as Redis wants it.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// What every key and channel begins with: `fairlock` unless set. Clients with different prefixes do not see
    /// each other's locks. 1 to 128 bytes, without braces.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// A grant counts only when so many replicas of the server have it, within that time: a replica that takes over
    /// then knows of the hold, if the one that is chosen is among them. Otherwise the grant is withdrawn, which the
    /// server has confirmed or the lease has ended by the time when the caller sees [`Error::NotReplicated`].
    ///
    /// Each acquisition, upgrade included, takes a renewal and a `WAIT` more, over a further connection; those that wait
    /// at the same time share one. What comes later, renewals, releases and downgrades, is not waited for. The
    /// time is 1 ms to an hour and may take up to three times as long when others wait too; the lease is renewed meanwhile.
    /// Redis and Valkey replicate asynchronously all the same: choose at least as many replicas as may be lost at once,
    /// and fence the resource. 0 replicas: none is waited for, which is the default.
    pub fn wait_for_replicas(mut self, replicas: usize, timeout: Duration) -> Self {
        self.replication = Replication::in_memory(replicas, timeout);
        self
    }

    /// Like [`wait_for_replicas`](Self::wait_for_replicas), and the grant must have been written to disk (`fsync` of the
    /// append-only file) there and on the server itself. 0 replicas: only on the server itself, so that its restart
    /// forgets no hold.
    ///
    /// It needs `WAITAOF` (Redis 7.2, Valkey 7.2 or later) and `appendonly yes`; without, acquiring fails with
    /// [`Error::Server`].
    pub fn wait_for_disks(mut self, replicas: usize, timeout: Duration) -> Self {
        self.replication = Some(Replication {
            replicas,
            timeout,
            on_disk: true,
        });
        self
    }

    /// After the server began anew, as a process that was started again or a replica that took over, nobody enters for
    /// this long a lock that looks free: it may have been forgotten, and its former holder may not know yet. Give it the
    /// longest lease that any client uses; requests queue meanwhile, and tries find the lock busy.
    ///
    /// All clients of a prefix should set it alike. They recognise a new server by its run id, which they keep in one key,
    /// `PREFIX:life`, so the first use of an empty server is in quarantine too. Holds that the server still knows go on,
    /// and who waits behind them enters. Needs the right to `INFO`. Not for clusters. None unless set; at most a year.
    pub fn quarantine(mut self, longest_lease: Duration) -> Self {
        self.quarantine = Some(longest_lease);
        self
    }

    /// Makes both connections and starts the background tasks on the current tokio runtime.
    ///
    /// # Cancel safety
    /// Dropped, it closes its connections again.
    ///
    /// # Errors
    /// [`Error::Connect`] as in [`Client::connect`]; [`Error::InvalidDuration`], [`Error::InvalidPrefix`] and
    /// [`Error::InvalidLabel`] for settings that cannot be; [`Error::Runtime`] outside of a tokio runtime with timers and
    /// I/O.
    pub async fn connect(self, server: impl IntoServer) -> Result<Client, Error> {
        runtime::check_timers()?;
        observe::begin();
        key::check_prefix(&self.prefix)?;
        check_lease("", self.lease)?;
        key::check_label(self.label.as_deref())?;
        if let Some(replication) = self.replication {
            replication.check("")?;
        }
        if let Some(quarantine) = self.quarantine {
            check_duration("", "quarantine", quarantine, LEAST_LEASE, MOST_LEASE)?;
        }
        let Server(target) = server
            .into_server()
            .map_err(|source| Error::of_connect("the server".into(), source))?;
        if target.needs_io() {
            runtime::check_io()?;
        }
        if self.quarantine.is_some() && target.is_cluster() {
            return Err(Error::Unsupported {
                lock: "*".to_owned(),
                what: "quarantine",
                remedy: "in a cluster nothing says for all slots when a node has restarted; use wait_for_replicas",
            });
        }
        let address = target.address();
        let settings = Settings {
            lease: self.lease,
            prefix: self.prefix,
            label: self.label,
            replication: self.replication,
            quarantine: self.quarantine,
        };
        let handle = tasks::connect(&target, settings)
            .await
            .map_err(|source| Error::of_connect(address.clone(), source))?;
        tracing::info!(server = %address, client = %handle.shared().id, "connected");
        Ok(Client { handle })
    }
}
