//! The table of slots: which node owns which slot. The client reads it again whenever it may be wrong.

use super::super::backend::Backend;
use super::super::backoff::Backoff;
use super::super::server::{Connected, Purpose};
use super::node::{Address, Node};
use super::{Cluster, Owners, SLOTS, Topology, Watch, locked, no_seeds};
use crate::protocol::hello::Dialect;
use crate::protocol::reply::malformed;
use crate::types::clock;
use crate::types::random;
use crate::types::timers::CONNECT_TIMEOUT;
use futures::stream::FuturesUnordered;
use redis::{ConnectionAddr, ErrorKind, RedisError, Value};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt;

/// The shortest pause between two readings of the table.
const TABLE_AT_MOST_EVERY: Duration = Duration::from_millis(50);
/// While a node is out of reach or the cluster is down, the client reads the table about this often, because callers
/// wait for the node that takes over.
const TABLE_AT_LEAST_EVERY: Duration = Duration::from_millis(300);
/// A node that no other has replaced by then may never be replaced.
const LONG_TROUBLE: Duration = Duration::from_secs(60);
const TABLE_IN_LONG_TROUBLE: Duration = Duration::from_secs(2);
/// After this long without trouble the next trouble is a new one.
const QUIET: Duration = Duration::from_secs(1);
/// The number of nodes asked at a time, how long one may take, and how long the others may take after the first.
const ASKED_AT_ONCE: usize = 3;
const TABLE_TIMEOUT: Duration = Duration::from_millis(500);
const TABLE_GRACE: Duration = Duration::from_millis(50);
/// The table of slots.
pub(super) struct Table {
    epoch: u64,
    /// First and last slot, and their owner.
    ranges: Vec<(u16, u16, Address)>,
    nodes: BTreeSet<Address>,
}

impl Cluster {
    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        locked(&self.topology).owners[usize::from(slot)].clone()
    }

    pub(super) fn backend(&self, address: &Address) -> Result<Backend, RedisError> {
        // Every seed has the same settings: target.rs checks that.
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
        Backend::of(&redis::Client::open(settings.set_addr(addr))?)
    }

    fn node_in(&self, topology: &mut Topology, address: Address) -> Result<Arc<Node>, RedisError> {
        if let Some(node) = topology.nodes.get(&address) {
            return Ok(Arc::clone(node));
        }
        let backend = self.backend(&address)?;
        let node = Arc::new(Node::new(address.clone(), backend, self.label.clone()));
        if topology.closed {
            node.link.close();
        }
        topology.nodes.insert(address, Arc::clone(&node));
        topology.new.push(Arc::clone(&node));
        self.new_nodes.notify_one();
        Ok(node)
    }

    /// Calls `with` on the node to which an error points.
    pub(super) fn redirect<T>(&self, error: &RedisError, from: &Node, with: impl FnOnce(Arc<Node>) -> T) -> Option<T> {
        let (target, _) = error.redirect_node()?;
        let mut address = Address::parse(target)?;
        if address.host.is_empty() {
            address.host.clone_from(&from.address.host);
        }
        let node = self.node_in(&mut locked(&self.topology), address).ok()?;
        Some(with(node))
    }

    /// The slot belongs to that node now.
    pub(super) fn own(&self, slot: u16, node: Arc<Node>) {
        node.becomes_owner();
        let former = locked(&self.topology).owners[usize::from(slot)].replace(Arc::clone(&node));
        if former.is_none_or(|former| !Arc::ptr_eq(&former, &node)) {
            node.look();
        }
    }

    pub(super) async fn read_table(&self) -> Result<Table, RedisError> {
        let mut known: Vec<_> = locked(&self.topology).known.iter().cloned().collect();
        let seeds = self.seeds.iter().filter_map(Address::of);
        let mut seeds: Vec<_> = seeds.filter(|seed| !known.contains(seed)).collect();
        shuffle(&mut known);
        shuffle(&mut seeds);
        let mut failure = no_seeds();
        // A seed may belong to another cluster by now.
        for some in known.chunks(ASKED_AT_ONCE).chain(seeds.chunks(ASKED_AT_ONCE)) {
            let mut answers: FuturesUnordered<_> = some.iter().map(|address| self.ask_for_table(address)).collect();
            let mut best: Option<Table> = None;
            let mut until = clock::now() + CONNECT_TIMEOUT;
            while let Ok(Some(answer)) = timeout(until.saturating_duration_since(clock::now()), answers.next()).await {
                match answer {
                    Ok(table) => {
                        if best.as_ref().is_none_or(|best| best.epoch < table.epoch) {
                            best = Some(table);
                        }
                        until = until.min(clock::now() + TABLE_GRACE);
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

    /// Over a connection of its own, because the others may hang.
    async fn ask_for_table(&self, address: &Address) -> Result<Table, RedisError> {
        let Connected { mut wire, dialect, .. } = self.backend(address)?.connect(None, Purpose::Pushes, None).await?;
        if dialect == Dialect::Plain {
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
        let table = read_slots(&slots, &address.host, epoch).ok_or_else(|| malformed(&slots))?;
        // A removed node runs on and keeps its epoch, so it must not speak for the cluster.
        if table.ranges.is_empty() {
            return Err(RedisError::from((
                ErrorKind::InvalidClientConfig,
                "no slots",
                format!("the node {address} knows of none"),
            )));
        }
        Ok(table)
    }

    /// Returns the slots that have another owner now.
    pub(super) fn adopt(&self, table: &Table) -> Result<BTreeSet<u16>, RedisError> {
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
        let owner = |owners: &Owners, slot: u16| owners[usize::from(slot)].as_ref().map(Arc::as_ptr);
        let moved = |slot: &u16| owner(&owners, *slot) != owner(&topology.owners, *slot);
        let changed = (0..SLOTS as u16).filter(moved).collect();
        topology.owners = owners;
        topology.known.clone_from(&table.nodes);
        topology
            .nodes
            .retain(|address, node| node.stays(owning.contains(address)));
        for node in topology.nodes.values() {
            node.look();
        }
        Ok(changed)
    }

    pub(super) async fn keep_table(&self) {
        let mut pace = Pace::new();
        loop {
            // Nothing else checks those.
            self.forget_idle(|owner| owner.is_none());
            if !self.is_in_trouble() {
                let since = clock::now();
                self.stale.notified().await;
                if clock::since(since) > QUIET {
                    pace = Pace::new();
                }
            }
            match self.read_table().await.and_then(|table| self.adopt(&table)) {
                Ok(changed) if changed.is_empty() => {}
                Ok(changed) => {
                    self.recheck(&changed);
                    pace = Pace::new();
                }
                Err(error) => tracing::warn!(%error, "no node of the cluster says which has which slots"),
            }
            pace.pause().await;
        }
    }

    /// Whether a needed node is out of reach, so that another one may take over at any time.
    fn is_in_trouble(&self) -> bool {
        let watches = locked(&self.watches);
        let topology = locked(&self.topology);
        let nobodys = |watch: &Watch| topology.owners[usize::from(watch.slot)].is_none();
        topology.nodes.values().any(|node| node.is_doubtful()) || watches.values().any(nobodys)
    }
}

/// The pauses between readings, which grow while a reading brings nothing new, because callers of a cluster that is
/// down report all the time.
struct Pace {
    backoff: Backoff,
    begun: Instant,
}

impl Pace {
    fn new() -> Self {
        Self {
            backoff: Backoff::up_to(TABLE_AT_LEAST_EVERY),
            begun: clock::now(),
        }
    }

    async fn pause(&mut self) {
        sleep(TABLE_AT_MOST_EVERY).await;
        self.backoff.pause().await;
        if clock::since(self.begun) > LONG_TROUBLE {
            sleep(TABLE_IN_LONG_TROUBLE).await;
        }
    }
}

fn shuffle(addresses: &mut [Address]) {
    for last in (1..addresses.len()).rev() {
        addresses.swap(last, (random::number() % (last as u64 + 1)) as usize);
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
        // A node does not know its own host.
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

/// A key's slot: CRC16 (XMODEM) of the text between its first `{` and the next `}`, or of the whole key.
pub(super) fn slot_of(key: &str) -> u16 {
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
