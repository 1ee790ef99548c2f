//! A cluster: which node has which lock, a command connection to each used node, and a subscription to each node whose
//! locks have waiters. `docs/cluster.md` says why this is not the redis crate's cluster client.

mod listen;
mod node;
mod table;

use super::backoff::Backoff;
use super::link::{BackgroundSlots, How, Sending};
use crate::protocol::key::Lock;
use crate::protocol::order::Order;
use crate::protocol::replication::{Reached, Replication};
use crate::state::shared::Shared;
use crate::types::clock;
use crate::types::error::{is_of_replica, is_refusal, is_transient};
use futures::stream::FuturesUnordered;
pub(crate) use node::Node;
use node::{Address, left};
use redis::{ConnectionInfo, ErrorKind, RedisError, ServerErrorKind, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use table::slot_of;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_stream::StreamExt;

const SLOTS: usize = 16384;

/// The number of redirections that one call follows without a pause.
const QUICK_HOPS: u32 = 3;

type Owners = Vec<Option<Arc<Node>>>;

struct Topology {
    owners: Owners,
    nodes: HashMap<Address, Arc<Node>>,
    /// The nodes that the client may ask for the table: all known ones, replicas too.
    known: BTreeSet<Address>,
    /// Nodes without a running task.
    new: Vec<Arc<Node>>,
    closed: bool,
}

/// A lock that has waiters, or had some a moment ago.
struct Watch {
    slot: u16,
    /// Since when its messages come, and from which node. `None`: no subscription.
    heard: Option<(Instant, Arc<Node>)>,
    idle: Option<Instant>,
}

pub(crate) struct Cluster {
    /// The seeds. Every node has their settings.
    seeds: Arc<[ConnectionInfo]>,
    shared: Arc<Shared>,
    label: Option<String>,
    topology: Mutex<Topology>,
    watches: Mutex<BTreeMap<Arc<str>, Watch>>,
    /// Wakes the task that reads the table, because it may be wrong.
    stale: Notify,
    new_nodes: Notify,
    /// For calls about slots without an owner.
    unowned: Arc<BackgroundSlots>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that can panic runs while one of them is locked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Searches for a node that replies, and checks what it can do. The client makes its lasting connections when it
    /// needs them.
    pub(crate) async fn connect(
        seeds: Arc<[ConnectionInfo]>,
        shared: Arc<Shared>,
        label: Option<String>,
    ) -> Result<Self, RedisError> {
        let known = seeds.iter().filter_map(Address::of).collect();
        let cluster = Self {
            seeds,
            shared,
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

    pub(crate) async fn call(&self, how: &How, key: &str, order: &Order<'_>) -> Result<Value, RedisError> {
        // A node that is away may have a successor, so do not wait for it.
        let patience = how.limit;
        let slot = slot_of(key);
        let begun = clock::now();
        let mut backoff = Backoff::new();
        let mut hops = 0;
        let mut asked: Option<Arc<Node>> = None;
        loop {
            let sending = if asked.is_some() {
                Sending::Asking
            } else {
                Sending::Plainly
            };
            let how = How {
                sending,
                patience,
                ..*how
            };
            let error = match asked.take().or_else(|| self.owner(slot)) {
                None => no_owner(slot),
                // Another node has its slots by now.
                Some(node) if node.link.is_closed() && !locked(&self.topology).closed => left(),
                Some(node) => match node.call(&self.stale, &how, order).await {
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
                        _ if is_refusal(&error) && !is_of_replica(&error) => return Err(error),
                        // The node may have executed it, although it has lost its slots meanwhile. Only the caller
                        // knows what the reply to a second sending means: for a release "unknown" then does not mean
                        // lost.
                        _ => {
                            self.stale.notify_one();
                            return Err(error);
                        }
                    },
                },
            };
            // No node has executed it so far.
            order.sent.store(false, Ordering::Relaxed);
            if asked.is_none() && error.kind() != ErrorKind::Server(ServerErrorKind::TryAgain) {
                self.stale.notify_one();
            }
            if clock::since(begun) >= how.limit {
                return Err(error);
            }
            hops += 1;
            if hops > QUICK_HOPS {
                backoff.pause().await;
            }
        }
    }

    /// The nodes that own slots, each once.
    pub(crate) fn masters(&self) -> Result<Vec<Arc<Node>>, RedisError> {
        let topology = locked(&self.topology);
        let mut masters: Vec<Arc<Node>> = Vec::new();
        for (slot, owner) in topology.owners.iter().enumerate() {
            let owner = owner.as_ref().ok_or_else(|| no_owner(slot as u16))?;
            if !masters.iter().any(|known| Arc::ptr_eq(known, owner)) {
                masters.push(Arc::clone(owner));
            }
        }
        Ok(masters)
    }

    /// One attempt, on that node: the call is about no slot, so no node can redirect it.
    pub(crate) async fn call_node(&self, node: &Node, how: &How, order: &Order<'_>) -> Result<Value, RedisError> {
        node.call(&self.stale, how, order).await
    }

    /// Makes one attempt. The caller that waits for replicas repeats it.
    pub(crate) async fn confirm(
        &self,
        limit: Duration,
        key: &str,
        wish: Replication,
        renew: &Order<'_>,
    ) -> Result<(Value, Reached), RedisError> {
        let slot = slot_of(key);
        let node = self.owner(slot).ok_or_else(|| no_owner(slot))?;
        let confirmed = node.link.confirm(limit, wish, renew).await;
        if confirmed.as_ref().is_err_and(is_transient) {
            self.stale.notify_one();
        }
        confirmed
    }

    pub(crate) fn background(&self, key: &str) -> Arc<BackgroundSlots> {
        let owner = self.owner(slot_of(key));
        owner.map_or_else(|| Arc::clone(&self.unowned), |node| node.link.background())
    }

    pub(crate) fn turn_away(&self) {
        for node in locked(&self.topology).nodes.values() {
            node.link.turn_away();
        }
    }

    pub(crate) fn close(&self) {
        let mut topology = locked(&self.topology);
        topology.closed = true;
        for node in topology.nodes.values() {
            node.link.close();
        }
    }

    /// A request waits, since a call that was sent at that time: subscribes to the lock's grants, if the client has not
    /// done so.
    pub(crate) fn watch(&self, lock: &Lock, sent: Instant) {
        let mut watches = locked(&self.watches);
        if let Some(watch) = watches.get_mut(&lock.state) {
            watch.idle = None;
            let missed = watch.heard.as_ref().is_some_and(|(since, _)| *since > sent);
            drop(watches);
            if missed {
                self.shared.registry.resync_locks([&lock.state], clock::now());
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
            node.look_at(&lock.state);
        }
    }

    /// Keeps the connections up and the table right. Never ends.
    pub(crate) async fn run(&self) {
        let mut nodes = FuturesUnordered::new();
        let mut others = pin!(async { futures::join!(self.keep_table(), self.keep_introduced(), self.keep_events()) });
        loop {
            let new = std::mem::take(&mut locked(&self.topology).new);
            nodes.extend(new.into_iter().map(|node| self.run_node(node)));
            tokio::select! {
                biased;
                () = self.new_nodes.notified() => {}
                Some(()) = nodes.next(), if !nodes.is_empty() => {}
                _ = &mut others => {}
            }
        }
    }

    /// These slots have another owner, or their owner restarted: it may have forgotten holds.
    fn recheck(&self, slots: &BTreeSet<u16>) {
        let concerns = |lock: &str| slots.contains(&slot_of(lock));
        self.shared.registry.recheck(clock::now(), concerns);
    }

    fn slots_of(&self, node: &Arc<Node>) -> BTreeSet<u16> {
        let topology = locked(&self.topology);
        (0..SLOTS as u16).filter(|slot| topology.has(node, *slot)).collect()
    }

    async fn run_node(&self, node: Arc<Node>) {
        let recheck = |is_up| match is_up {
            true => self.recheck(&self.slots_of(&node)),
            // Another node may take over.
            false => self.stale.notify_one(),
        };
        tokio::select! {
            biased;
            () = node.left() => {}
            () = node.link.run(recheck) => {}
            () = self.listen(&node) => {}
        }
        tracing::info!(node = %node.address, "it has no slots any more");
    }
}

impl Topology {
    fn has(&self, node: &Arc<Node>, slot: u16) -> bool {
        let owner = self.owners[usize::from(slot)].as_ref();
        owner.is_some_and(|owner| Arc::ptr_eq(owner, node))
    }
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
