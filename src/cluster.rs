//! A cluster: which node has which lock, a connection for commands to each node that is used, and one that listens to
//! each node on whose locks somebody waits. `design.md`, "Beyond one server", says why it is not the library's.

use crate::client::Inner;
use crate::key::{Lock, channel_base, introduction};
use crate::link::{Backoff, Lane, Link, Pulse, Sending, Turns};
use crate::notify::{INTRODUCED_EVERY, PING_INTERVAL, PING_TIMEOUT, PINGS_BEFORE_RECONNECT, Releases, on_grants};
use crate::owner::ClientId;
use crate::random;
use crate::script::Dialect;
use crate::status::ClientInfo;
use crate::wire::{Backend, CONNECT_TIMEOUT, Wire, malformed, timed_out};
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use redis::cluster::{ClusterClient, Connect};
use redis::{
    Cmd, ConnectionAddr, ConnectionInfo, ConnectionLike, ErrorKind, IntoConnectionInfo, PushInfo, PushKind, RedisError,
    ServerErrorKind, Value,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_stream::StreamExt;

const SLOTS: usize = 16384;

/// The table of slots is not read more often.
const TABLE_AT_MOST_EVERY: Duration = Duration::from_millis(50);
/// While a node cannot be reached it is read about as often as this: others wait for who takes over.
const TABLE_AT_LEAST_EVERY: Duration = Duration::from_millis(300);
/// A node that nobody has replaced by then may never be.
const LONG_TROUBLE: Duration = Duration::from_secs(60);
const TABLE_IN_LONG_TROUBLE: Duration = Duration::from_secs(2);
/// Nodes that are asked for it at a time, how long one may take, and how long the others may take after the first.
const ASKED_AT_ONCE: usize = 3;
const TABLE_TIMEOUT: Duration = Duration::from_millis(500);
const TABLE_GRACE: Duration = Duration::from_millis(50);

/// How long a channel is kept on which nobody waits.
const LINGER: Duration = Duration::from_secs(3);
/// How long a node is kept that has not owned a slot: one that takes over its first is asked before it owns it.
const NODE_LINGER: Duration = Duration::from_secs(10);
/// Subscriptions under way at once on a connection.
const SUBSCRIBED_AT_ONCE: usize = 256;
/// Redirections of one call without a pause.
const QUICK_HOPS: u32 = 3;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Address {
    host: String,
    port: u16,
}

struct Node {
    address: Address,
    backend: Backend,
    link: Link,
    born: Instant,
    /// It owns slots, or did.
    owned: AtomicBool,
    /// Calls that it has not answered for a while.
    silent: AtomicUsize,
    /// It owns no slot any more.
    gone: Notify,
    left: Notify,
    /// Locks that somebody has begun to wait for since its listener looked, and that it should look.
    fresh: Mutex<Vec<Arc<str>>>,
    wanted: Notify,
    /// Its listener should look at all locks.
    moved: AtomicBool,
    /// Its listener gets no answer.
    suspect: AtomicBool,
}

type Owners = Vec<Option<Arc<Node>>>;

struct Topology {
    owners: Owners,
    nodes: HashMap<Address, Arc<Node>>,
    /// Whoever may be asked for the table: all nodes that are known, replicas too.
    known: BTreeSet<Address>,
    /// Nodes that nobody runs yet.
    new: Vec<Arc<Node>>,
    closed: bool,
}

/// A lock that somebody waits for, or did a moment ago.
struct Watch {
    slot: u16,
    /// Since when its messages come, and from where; `None`: nobody listens.
    heard: Option<(Instant, Arc<Node>)>,
    idle: Option<Instant>,
}

pub(crate) struct Cluster {
    /// Their settings are those of every node.
    seeds: Arc<[ConnectionInfo]>,
    client: String,
    label: Option<String>,
    topology: Mutex<Topology>,
    watches: Mutex<BTreeMap<Arc<str>, Watch>>,
    /// The table may be wrong.
    stale: Notify,
    new_nodes: Notify,
    /// Turns of calls about slots that nobody owns.
    unowned: Arc<Turns>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic runs while one of them is locked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Looks for a node that answers, and at what it can do. Connections that stay are made when they are needed.
    pub(crate) async fn connect(
        seeds: Arc<[ConnectionInfo]>,
        id: ClientId,
        label: Option<String>,
    ) -> Result<Self, RedisError> {
        let known = seeds.iter().filter_map(Address::of).collect();
        let cluster = Self {
            seeds,
            client: id.to_string(),
            label,
            topology: Mutex::new(Topology {
                owners: vec![None; SLOTS],
                nodes: HashMap::new(),
                known,
                new: Vec::new(),
                closed: false,
            }),
            watches: Mutex::default(),
            stale: Notify::new(),
            new_nodes: Notify::new(),
            unowned: Arc::default(),
        };
        let table = cluster.read_table().await?;
        cluster.adopt(&table)?;
        Ok(cluster)
    }

    pub(crate) async fn call(
        &self,
        lane: Lane,
        limit: Duration,
        key: &str,
        command: impl Fn(Dialect) -> Cmd,
    ) -> Result<Value, RedisError> {
        let slot = slot_of(key);
        let begun = Instant::now();
        let mut backoff = Backoff::new();
        let mut hops = 0;
        let mut asked: Option<Arc<Node>> = None;
        loop {
            let sending = if asked.is_some() {
                Sending::Asking
            } else {
                Sending::Plainly
            };
            let error = match asked.take().or_else(|| self.owner(slot)) {
                None => no_owner(slot),
                Some(node) => match node.call(&self.stale, lane, limit, sending, &command).await {
                    Ok(reply) => return Ok(reply),
                    Err(error) => match error.kind() {
                        ErrorKind::Server(ServerErrorKind::Moved) => {
                            self.redirect(&error, &node, |at| self.own(slot, at));
                            error
                        }
                        ErrorKind::Server(ServerErrorKind::Ask) => {
                            asked = self.redirect(&error, &node, |at| at);
                            error
                        }
                        ErrorKind::Server(ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown) => {
                            hops += QUICK_HOPS;
                            error
                        }
                        // Its slots are elsewhere by now. What was sent may be sent again.
                        _ if node.link.is_closed() && !locked(&self.topology).closed => error,
                        ErrorKind::Server(_) | ErrorKind::Extension => return Err(error),
                        _ => {
                            self.stale.notify_one();
                            return Err(error);
                        }
                    },
                },
            };
            if asked.is_none() && error.kind() != ErrorKind::Server(ServerErrorKind::TryAgain) {
                self.stale.notify_one();
            }
            if begun.elapsed() >= limit {
                return Err(error);
            }
            hops += 1;
            if hops > QUICK_HOPS {
                backoff.pause().await;
            }
        }
    }

    pub(crate) fn turns(&self, key: &str) -> Arc<Turns> {
        let owner = self.owner(slot_of(key));
        owner.map_or_else(|| Arc::clone(&self.unowned), |node| node.link.turns())
    }

    pub(crate) fn close(&self) {
        let mut topology = locked(&self.topology);
        topology.closed = true;
        for node in topology.nodes.values() {
            node.link.close();
        }
    }

    /// Somebody waits, since a call that was sent then: listens to the lock's grants, if that is not done already.
    pub(crate) fn watch(&self, inner: &Inner, lock: &Lock, sent: Instant) {
        let mut watches = locked(&self.watches);
        if let Some(watch) = watches.get_mut(&lock.state) {
            watch.idle = None;
            let missed = watch.heard.as_ref().is_some_and(|(since, _)| *since > sent);
            drop(watches);
            if missed {
                inner.requests.resync_locks([&lock.state], Instant::now());
            }
            return;
        }
        let slot = slot_of(&lock.state);
        let watch = Watch {
            slot,
            heard: None,
            idle: None,
        };
        watches.insert(Arc::clone(&lock.state), watch);
        drop(watches);
        if let Some(node) = self.owner(slot) {
            locked(&node.fresh).push(Arc::clone(&lock.state));
            node.wanted.notify_one();
        }
    }

    /// Keeps the connections up and the table true. Never ends.
    pub(crate) async fn run(&self, inner: &Arc<Inner>, releases: &Releases) {
        let mut nodes = FuturesUnordered::new();
        let mut others = pin!(async { futures::join!(self.keep_table(), self.keep_introduced(inner)) });
        loop {
            let new = std::mem::take(&mut locked(&self.topology).new);
            nodes.extend(new.into_iter().map(|node| self.run_node(node, inner, releases)));
            tokio::select! {
                biased;
                () = self.new_nodes.notified() => {}
                Some(()) = nodes.next(), if !nodes.is_empty() => {}
                _ = &mut others => {}
            }
        }
    }

    async fn run_node(&self, node: Arc<Node>, inner: &Arc<Inner>, releases: &Releases) {
        tokio::select! {
            biased;
            () = node.gone.notified() => {}
            () = node.link.run() => {}
            () = self.listen(&node, inner, releases) => {}
        }
        tracing::info!(node = %node.address, "it has no slots any more");
    }
}

/// A call that a node has not answered for a while.
struct Silent<'a>(&'a Node);

impl<'a> Silent<'a> {
    fn of(node: &'a Node) -> Self {
        node.silent.fetch_add(1, Ordering::Relaxed);
        Self(node)
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        self.0.silent.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The table of slots.
struct Table {
    epoch: u64,
    /// First and last slot, and their owner.
    ranges: Vec<(u16, u16, Address)>,
    nodes: BTreeSet<Address>,
}

impl Cluster {
    fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        locked(&self.topology).owners[usize::from(slot)].clone()
    }

    fn backend(&self, address: &Address) -> Result<Backend, RedisError> {
        // Every seed has the same settings: the library checks that.
        let settings = self.seeds.first().ok_or_else(no_seeds)?.clone();
        let (host, port) = (address.host.clone(), address.port);
        let addr = match settings.addr().clone() {
            ConnectionAddr::TcpTls {
                insecure, tls_params, ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure,
                tls_params,
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Backend::redis(&redis::Client::open(settings.set_addr(addr))?)
    }

    fn node_in(&self, topology: &mut Topology, address: Address) -> Result<Arc<Node>, RedisError> {
        if let Some(node) = topology.nodes.get(&address) {
            return Ok(Arc::clone(node));
        }
        let backend = self.backend(&address)?;
        let node = Arc::new(Node {
            link: Link::idle(backend.clone(), self.label.clone()),
            backend,
            born: Instant::now(),
            owned: AtomicBool::new(false),
            silent: AtomicUsize::new(0),
            gone: Notify::new(),
            left: Notify::new(),
            fresh: Mutex::default(),
            wanted: Notify::new(),
            moved: AtomicBool::new(true),
            suspect: AtomicBool::new(false),
            address: address.clone(),
        });
        if topology.closed {
            node.link.close();
        }
        topology.nodes.insert(address, Arc::clone(&node));
        topology.new.push(Arc::clone(&node));
        self.new_nodes.notify_one();
        Ok(node)
    }

    /// Does something with the node to which an error points.
    fn redirect<T>(&self, error: &RedisError, from: &Node, with: impl FnOnce(Arc<Node>) -> T) -> Option<T> {
        let (target, _) = error.redirect_node()?;
        let mut address = Address::parse(target)?;
        if address.host.is_empty() {
            address.host.clone_from(&from.address.host);
        }
        let node = self.node_in(&mut locked(&self.topology), address).ok()?;
        Some(with(node))
    }

    /// The slot belongs to that node now.
    fn own(&self, slot: u16, node: Arc<Node>) {
        node.owned.store(true, Ordering::Relaxed);
        let former = locked(&self.topology).owners[usize::from(slot)].replace(Arc::clone(&node));
        if former.is_none_or(|former| !Arc::ptr_eq(&former, &node)) {
            node.look();
        }
    }

    async fn read_table(&self) -> Result<Table, RedisError> {
        let mut candidates: Vec<_> = locked(&self.topology).known.iter().cloned().collect();
        let seeds = self.seeds.iter().filter_map(Address::of);
        candidates.extend(seeds.filter(|seed| !locked(&self.topology).known.contains(seed)));
        for last in (1..candidates.len()).rev() {
            candidates.swap(last, (random::number() % (last as u64 + 1)) as usize);
        }
        let mut failure = no_seeds();
        for some in candidates.chunks(ASKED_AT_ONCE) {
            let mut answers: FuturesUnordered<_> = some.iter().map(|address| self.ask_for_table(address)).collect();
            let mut best: Option<Table> = None;
            let mut until = Instant::now() + CONNECT_TIMEOUT;
            while let Ok(Some(answer)) = timeout_at(until, answers.next()).await {
                match answer {
                    Ok(table) => {
                        if best.as_ref().is_none_or(|best| best.epoch < table.epoch) {
                            best = Some(table);
                        }
                        until = until.min(Instant::now() + TABLE_GRACE);
                    }
                    Err(error) => failure = error,
                }
            }
            if let Some(table) = best {
                return Ok(table);
            }
        }
        Err(failure)
    }

    /// Over a connection of its own: the others may hang.
    async fn ask_for_table(&self, address: &Address) -> Result<Table, RedisError> {
        let (mut wire, _) = self.backend(address)?.connect(None, None).await?;
        let hello = wire.answer(TABLE_TIMEOUT, &redis::cmd("HELLO")).await?;
        if Dialect::of_server(&hello) == Dialect::Plain {
            return Err(RedisError::from((
                ErrorKind::InvalidClientConfig,
                "no sharded pub/sub",
                format!("the node {address} is older than Redis 7"),
            )));
        }
        let mut info = redis::cmd("CLUSTER");
        info.arg("INFO");
        let info: String = redis::from_redis_value(wire.answer(TABLE_TIMEOUT, &info).await?)?;
        let epoch = info
            .lines()
            .find_map(|line| line.strip_prefix("cluster_current_epoch:"));
        let epoch = epoch.and_then(|epoch| epoch.trim().parse().ok()).unwrap_or(0);
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let slots = wire.answer(TABLE_TIMEOUT, &slots).await?;
        read_slots(&slots, &address.host, epoch).ok_or_else(|| malformed(&slots))
    }

    fn adopt(&self, table: &Table) -> Result<(), RedisError> {
        let mut topology = locked(&self.topology);
        let mut owners: Owners = vec![None; SLOTS];
        let mut owning = BTreeSet::new();
        for (first, last, address) in &table.ranges {
            let node = self.node_in(&mut topology, address.clone())?;
            owning.insert(address.clone());
            let range = usize::from(*first)..=usize::from(*last).min(SLOTS - 1);
            if let Some(owners) = owners.get_mut(range) {
                owners.fill(Some(node));
            }
        }
        topology.owners = owners;
        topology.known.clone_from(&table.nodes);
        topology.nodes.retain(|address, node| {
            let owns = owning.contains(address);
            let owned = node.owned.fetch_or(owns, Ordering::Relaxed);
            let stays = owns || (!owned && node.born.elapsed() < NODE_LINGER);
            if !stays {
                node.leave();
            }
            stays
        });
        for node in topology.nodes.values() {
            node.look();
        }
        Ok(())
    }

    async fn keep_table(&self) {
        loop {
            self.stale.notified().await;
            let begun = Instant::now();
            let mut backoff = Backoff::up_to(TABLE_AT_LEAST_EVERY);
            loop {
                if let Err(error) = self.read_table().await.and_then(|table| self.adopt(&table)) {
                    tracing::warn!(%error, "no node of the cluster says which has which slots");
                }
                sleep(TABLE_AT_MOST_EVERY).await;
                backoff.pause().await;
                if !self.is_in_trouble() {
                    break;
                }
                if begun.elapsed() > LONG_TROUBLE {
                    sleep(TABLE_IN_LONG_TROUBLE).await;
                }
            }
        }
    }

    /// Whether a node that is needed cannot be reached: another may take over any time.
    fn is_in_trouble(&self) -> bool {
        let watches = locked(&self.watches);
        let topology = locked(&self.topology);
        let nobodys = |watch: &Watch| topology.owners[usize::from(watch.slot)].is_none();
        topology.nodes.values().any(|node| node.is_doubtful()) || watches.values().any(nobodys)
    }

    /// An extra: failing is not fatal.
    async fn keep_introduced(&self, inner: &Inner) {
        let key = introduction(&inner.prefix, &self.client);
        let text = ClientInfo::introduction(self.label.as_deref());
        loop {
            let set = |_| {
                let mut set = redis::cmd("SET");
                set.arg(&key).arg(&text);
                set.arg("EX").arg(3 * INTRODUCED_EVERY.as_secs());
                set
            };
            if let Err(error) = self.call(Lane::Background, PING_TIMEOUT, &key, set).await {
                tracing::debug!(%error, "cannot say who this client is");
            }
            sleep(INTRODUCED_EVERY).await;
        }
    }
}

/// A connection that listens to one node.
struct Ear {
    wire: Wire,
    ended: Arc<Notify>,
    pulse: Arc<Pulse>,
    /// Channels whose end we asked for ourselves.
    letting_go: Arc<Mutex<BTreeSet<String>>>,
}

impl Cluster {
    /// Listens to a node while somebody waits for locks that it has. Never ends.
    async fn listen(&self, node: &Arc<Node>, inner: &Arc<Inner>, releases: &Releases) {
        let mut backoff = Backoff::new();
        loop {
            while self.awaited_at(node).is_empty() {
                node.suspect.store(false, Ordering::Relaxed);
                node.wanted.notified().await;
            }
            let heard = match self.open(node, inner, releases).await {
                Ok(ear) => self.hear(node, ear, inner).await,
                Err(error) => Err(error),
            };
            self.deafen(node);
            let Err(error) = heard else { continue };
            tracing::warn!(node = %node.address, %error, "subscription lost; grants are learned from renewals meanwhile");
            if !node.suspect.swap(true, Ordering::Relaxed) {
                backoff = Backoff::new();
            }
            self.stale.notify_one();
            backoff.pause().await;
        }
    }

    async fn open(&self, node: &Node, inner: &Arc<Inner>, releases: &Releases) -> Result<Ear, RedisError> {
        let ended = Arc::new(Notify::new());
        let pulse = Arc::<Pulse>::default();
        let letting_go = Arc::<Mutex<BTreeSet<String>>>::default();
        let on_push = {
            let (inner, releases) = (Arc::downgrade(inner), releases.clone());
            let (over, alive, ours) = (Arc::clone(&ended), Arc::clone(&pulse), Arc::clone(&letting_go));
            move |push: PushInfo| {
                alive.beat();
                match (&push.kind, push.data.as_slice()) {
                    (PushKind::SMessage, [_, Value::BulkString(payload)]) => {
                        if let Some(inner) = inner.upgrade() {
                            on_grants(&inner, &releases, payload);
                        }
                    }
                    (PushKind::SUnsubscribe, [Value::BulkString(channel), ..])
                        if std::str::from_utf8(channel).is_ok_and(|channel| locked(&ours).remove(channel)) => {}
                    // The slot has left the node. The library takes this for a reply if it waits for one.
                    (PushKind::SUnsubscribe | PushKind::Disconnection, _) => over.notify_one(),
                    _ => {}
                }
            }
        };
        let (wire, _) = node
            .backend
            .connect(self.label.as_deref(), Some(Arc::new(on_push)))
            .await?;
        Ok(Ear {
            wire,
            ended,
            pulse,
            letting_go,
        })
    }

    /// Follows what is awaited, until the connection is dead, or nobody waits any more.
    async fn hear(&self, node: &Arc<Node>, mut ear: Ear, inner: &Inner) -> Result<(), RedisError> {
        let mut followed = BTreeSet::new();
        let mut failures = 0;
        let mut ping_at = Instant::now() + PING_INTERVAL;
        node.moved.store(true, Ordering::Relaxed);
        loop {
            if node.moved.swap(false, Ordering::Relaxed) {
                let (new, gone) = self.changes(node, &followed, inner);
                self.follow(node, &ear, inner, &mut followed, new).await?;
                self.let_go(&ear, &mut followed, gone).await?;
            } else {
                let mut new = std::mem::take(&mut *locked(&node.fresh));
                new.retain(|lock| !followed.contains(lock));
                self.follow(node, &ear, inner, &mut followed, new).await?;
            }
            if followed.is_empty() && self.awaited_at(node).is_empty() {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = ear.ended.notified() => return Err(ended()),
                () = node.wanted.notified() => continue,
                () = sleep_until(ping_at) => {}
            }
            match ear.pulse.answer(PING_TIMEOUT, ear.wire.send(&redis::cmd("PING"))).await {
                Ok(_) => {
                    failures = 0;
                    node.suspect.store(false, Ordering::Relaxed);
                }
                // Another node may have the slots by now: no need to wait for the certainty.
                Err(error) if error.is_timeout() && failures + 1 < PINGS_BEFORE_RECONNECT => {
                    failures += 1;
                    node.suspect.store(true, Ordering::Relaxed);
                    self.stale.notify_one();
                }
                Err(error) => return Err(error),
            }
            ping_at = Instant::now() + PING_INTERVAL;
            node.moved.store(true, Ordering::Relaxed);
        }
    }

    fn channel(&self, lock: &str) -> String {
        channel_base(lock) + &self.client
    }

    async fn follow(
        &self,
        node: &Arc<Node>,
        ear: &Ear,
        inner: &Inner,
        followed: &mut BTreeSet<Arc<str>>,
        new: Vec<Arc<str>>,
    ) -> Result<(), RedisError> {
        for some in new.chunks(SUBSCRIBED_AT_ONCE) {
            let replies = some.iter().map(|lock| async {
                let mut subscribe = redis::cmd("SSUBSCRIBE");
                subscribe.arg(self.channel(lock));
                let mut wire = ear.wire.clone();
                let reply = ear.pulse.answer(CONNECT_TIMEOUT, wire.send(&subscribe)).await;
                reply.and_then(Value::extract_error)
            });
            let replies = join_all(replies).await;
            let now = Instant::now();
            let mut failure = None;
            let mut confirmed = Vec::new();
            for (lock, reply) in some.iter().zip(replies) {
                match reply {
                    Ok(_) => confirmed.push(Arc::clone(lock)),
                    Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) => {
                        self.redirect(&error, node, |at| self.own(slot_of(lock), at));
                        self.stale.notify_one();
                    }
                    Err(error) => failure = Some(error),
                }
            }
            let mut watches = locked(&self.watches);
            for lock in &confirmed {
                if let Some(watch) = watches.get_mut(lock) {
                    watch.heard = Some((now, Arc::clone(node)));
                }
            }
            drop(watches);
            // What was granted before is learned now.
            inner.requests.resync_locks(&confirmed, now);
            followed.extend(confirmed);
            if let Some(error) = failure {
                return Err(error);
            }
            node.suspect.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn let_go(
        &self,
        ear: &Ear,
        followed: &mut BTreeSet<Arc<str>>,
        gone: Vec<Arc<str>>,
    ) -> Result<(), RedisError> {
        for lock in gone {
            let channel = self.channel(&lock);
            let mut unsubscribe = redis::cmd("SUNSUBSCRIBE");
            unsubscribe.arg(&channel);
            locked(&ear.letting_go).insert(channel);
            followed.remove(&lock);
            let mut wire = ear.wire.clone();
            let reply = ear.pulse.answer(CONNECT_TIMEOUT, wire.send(&unsubscribe)).await;
            reply.and_then(Value::extract_error)?;
        }
        Ok(())
    }

    /// Locks of a node that somebody waits for and that it is not listened to about, and the other way round.
    fn changes(
        &self,
        node: &Arc<Node>,
        followed: &BTreeSet<Arc<str>>,
        inner: &Inner,
    ) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        let now = Instant::now();
        locked(&node.fresh).clear();
        let mut watches = locked(&self.watches);
        let topology = locked(&self.topology);
        let registry = inner.registry();
        let mut here = BTreeSet::new();
        watches.retain(|lock, watch| {
            if !topology.has(node, watch.slot) {
                return true;
            }
            if registry.is_awaited(lock) {
                watch.idle = None;
            } else if now - *watch.idle.get_or_insert(now) > LINGER {
                return false;
            }
            here.insert(Arc::clone(lock));
            true
        });
        let new = here.difference(followed).cloned().collect();
        let gone = followed.difference(&here).cloned().collect();
        (new, gone)
    }

    fn awaited_at(&self, node: &Arc<Node>) -> Vec<Arc<str>> {
        let watches = locked(&self.watches);
        let topology = locked(&self.topology);
        let here = watches.iter().filter(|(_, watch)| topology.has(node, watch.slot));
        here.map(|(lock, _)| Arc::clone(lock)).collect()
    }

    /// Nothing is heard from that node.
    fn deafen(&self, node: &Arc<Node>) {
        for watch in locked(&self.watches).values_mut() {
            if watch.heard.as_ref().is_some_and(|(_, by)| Arc::ptr_eq(by, node)) {
                watch.heard = None;
            }
        }
    }
}

impl Topology {
    fn has(&self, node: &Arc<Node>, slot: u16) -> bool {
        let owner = self.owners[usize::from(slot)].as_ref();
        owner.is_some_and(|owner| Arc::ptr_eq(owner, node))
    }
}

impl Node {
    /// Whether somebody waits for it in vain.
    fn is_doubtful(&self) -> bool {
        self.link.is_down() || self.suspect.load(Ordering::Relaxed) || self.silent.load(Ordering::Relaxed) > 0
    }

    /// Doubts the table when half of the limit is over.
    async fn call(
        &self,
        stale: &Notify,
        lane: Lane,
        limit: Duration,
        sending: Sending,
        command: &impl Fn(Dialect) -> Cmd,
    ) -> Result<Value, RedisError> {
        // Made before the look: what comes after it is not missed.
        let left = self.left.notified();
        if self.link.is_closed() {
            return Err(ended());
        }
        let mut call = pin!(self.link.call(lane, limit, sending, command));
        let mut left = pin!(left);
        tokio::select! {
            biased;
            reply = &mut call => return reply,
            () = &mut left => return Err(ended()),
            () = sleep(limit / 2) => {}
        }
        let _silent = Silent::of(self);
        stale.notify_one();
        tokio::select! {
            biased;
            reply = call => reply,
            () = left => Err(ended()),
        }
    }

    /// It owns no slot any more. Whoever waits for a reply of it need not wait on.
    fn leave(&self) {
        self.link.close();
        self.left.notify_waiters();
        self.gone.notify_one();
    }

    /// Has its listener look at what it has to listen to.
    fn look(&self) {
        self.moved.store(true, Ordering::Relaxed);
        self.wanted.notify_one();
    }
}

impl Address {
    fn of(info: &ConnectionInfo) -> Option<Self> {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => Some(Self {
                host: host.clone(),
                port: *port,
            }),
            _ => None,
        }
    }

    /// As MOVED and ASK have it: the host may be missing, and have colons in it.
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: port.parse().ok()?,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The reply to CLUSTER SLOTS: a list of first slot, last slot, owner, replicas; of each node its host, port and more.
/// Without a host it is that of the node that answers.
fn read_slots(reply: &Value, answering: &str, epoch: u64) -> Option<Table> {
    let address = |node: &Value| {
        let Value::Array(node) = node else { return None };
        let host = match node.first()? {
            Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
            Value::BulkString(_) | Value::Nil => answering.to_owned(),
            _ => return None,
        };
        let Value::Int(port) = node.get(1)? else { return None };
        let port = u16::try_from(*port).ok()?;
        // What a node does not know itself.
        (host != "?").then_some(Address { host, port })
    };
    let Value::Array(ranges) = reply else { return None };
    let mut table = Table {
        epoch,
        ranges: Vec::new(),
        nodes: BTreeSet::new(),
    };
    for range in ranges {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), owner, replicas @ ..] = range.as_slice() else {
            return None;
        };
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        table.nodes.extend(replicas.iter().filter_map(address));
        if let Some(owner) = address(owner) {
            table.nodes.insert(owner.clone());
            table.ranges.push((first, last, owner));
        }
    }
    Some(table)
}

/// A key's slot: CRC16 (XMODEM) of what lies between its first `{` and the next `}`, or of all of it.
fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    });
    crc % SLOTS as u16
}

fn no_owner(slot: u16) -> RedisError {
    io::Error::new(
        io::ErrorKind::NotConnected,
        format!("no node of the cluster owns slot {slot}"),
    )
    .into()
}

fn no_seeds() -> RedisError {
    io::Error::new(io::ErrorKind::NotConnected, "no node of the cluster is known").into()
}

fn ended() -> RedisError {
    io::Error::new(
        io::ErrorKind::ConnectionReset,
        "the node has left, or ended the subscription",
    )
    .into()
}

/// The addresses and settings in a client of the library's. They are private; but it hands them to whatever makes its
/// connections, and that can be chosen.
pub(crate) fn seeds_of(client: &ClusterClient) -> Result<Arc<[ConnectionInfo]>, RedisError> {
    SEEDS.take();
    let attempt = client.get_generic_connection::<Probe>();
    let seeds = SEEDS.take();
    match attempt {
        Err(error) if seeds.is_empty() => Err(error),
        _ => Ok(seeds.into()),
    }
}

thread_local! {
    static SEEDS: RefCell<Vec<ConnectionInfo>> = const { RefCell::new(Vec::new()) };
}

/// Takes note of where it should connect, and does not.
enum Probe {}

impl Connect for Probe {
    fn connect<T: IntoConnectionInfo>(info: T, _timeout: Option<Duration>) -> Result<Self, RedisError> {
        let info = info.into_connection_info()?;
        SEEDS.with_borrow_mut(|seeds| seeds.push(info));
        Err(timed_out())
    }

    fn send_packed_command(&mut self, _: &[u8]) -> Result<(), RedisError> {
        match *self {}
    }

    fn set_write_timeout(&self, _: Option<Duration>) -> Result<(), RedisError> {
        match *self {}
    }

    fn set_read_timeout(&self, _: Option<Duration>) -> Result<(), RedisError> {
        match *self {}
    }

    fn recv_response(&mut self) -> Result<Value, RedisError> {
        match *self {}
    }
}

impl ConnectionLike for Probe {
    fn req_packed_command(&mut self, _: &[u8]) -> Result<Value, RedisError> {
        match *self {}
    }

    fn req_packed_commands(&mut self, _: &[u8], _: usize, _: usize) -> Result<Vec<Value>, RedisError> {
        match *self {}
    }

    fn get_db(&self) -> i64 {
        match *self {}
    }

    fn check_connection(&mut self) -> bool {
        match *self {}
    }

    fn is_open(&self) -> bool {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot_of("123456789"), 0x31c3);
        assert_eq!(slot_of("fairlock:{123456789}:queue"), 0x31c3);
        assert_eq!(slot_of("a{}b"), slot_of("a{}b"));
        assert_ne!(slot_of("a{}b"), slot_of(""));
    }

    #[test]
    fn a_client_tells_its_settings_without_connecting() {
        let client = ClusterClient::new(["redis://user:secret@127.0.0.1:1", "redis://user:secret@[::1]:2"]).unwrap();
        let seeds = seeds_of(&client).unwrap();
        let addresses: Vec<_> = seeds.iter().filter_map(Address::of).map(|a| a.to_string()).collect();
        assert_eq!(addresses, ["127.0.0.1:1", "::1:2"]);
        assert!(
            seeds
                .iter()
                .all(|seed| seed.redis_settings().password() == Some("secret"))
        );
    }

    #[test]
    fn a_table_may_leave_out_hosts() {
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]);
        let text = |text: &str| Value::BulkString(text.into());
        let range =
            |first, last, nodes: Vec<Value>| Value::Array([vec![Value::Int(first), Value::Int(last)], nodes].concat());
        let reply = Value::Array(vec![
            range(0, 99, vec![node(Value::Nil, 1), node(text("b"), 2)]),
            range(100, 16383, vec![node(text("?"), 3)]),
        ]);
        let table = read_slots(&reply, "a", 7).unwrap();
        assert_eq!(table.ranges, [(0, 99, Address::parse("a:1").unwrap())]);
        assert_eq!(table.nodes.len(), 2);
        assert!(read_slots(&Value::Nil, "a", 7).is_none());
        assert_eq!(Address::parse("::1:6379").unwrap().host, "::1");
    }
}
