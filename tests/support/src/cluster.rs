//! A cluster of real servers, as processes of the test.

use crate::server::PATIENCE;
use crate::server::{Server, eventually};
use fairlock::{Client, ClientBuilder};
use futures::future::join_all;
use redis::Value;
use std::time::{Duration, Instant};

/// After so long without an answer a node is taken for failed by the others.
const NODE_TIMEOUT: &str = "1500";

/// A cluster whose nodes are killed when it is dropped.
pub struct Cluster {
    /// Masters first, then a replica of each.
    pub nodes: Vec<Server>,
    /// The ids of the nodes, in their order.
    pub ids: Vec<String>,
}

/// Sends a command to a node; panics if the node refuses it.
pub async fn ask<T: redis::FromRedisValue>(node: &Server, command: &[&str]) -> T {
    let mut cmd = redis::cmd(command[0]);
    cmd.arg(&command[1..]);
    let reply = cmd.query_async(&mut node.redis().await).await;
    reply.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// A client of a cluster that is up. Its connecting may take longer than the two seconds that it allows.
pub async fn connected(builder: ClientBuilder, seeds: &[String]) -> Client {
    let begun = Instant::now();
    loop {
        match builder.clone().connect(seeds.to_vec()).await {
            Ok(client) => return client,
            Err(error) if begun.elapsed() < PATIENCE => println!("once more: {error}"),
            Err(error) => panic!("the cluster is up, but: {error}"),
        }
    }
}

async fn start_node() -> Server {
    let cluster = ["--cluster-enabled", "yes", "--cluster-port", "0"];
    let timeout = [
        "--cluster-node-timeout",
        NODE_TIMEOUT,
        "--repl-diskless-sync-delay",
        "0",
    ];
    // A replica may take over whatever it has missed, and slots without a node stop no others.
    let lenient = [
        "--cluster-replica-validity-factor",
        "0",
        "--cluster-require-full-coverage",
        "no",
    ];
    Server::start_with(&[&cluster[..], &timeout, &lenient].concat()).await
}

impl Cluster {
    pub async fn start() -> Self {
        Self::of(3, 3).await
    }

    pub async fn of(masters: usize, replicas: usize) -> Self {
        let starting = (0..masters + replicas).map(|_| start_node());
        let nodes = join_all(starting).await;
        let ids = join_all(nodes.iter().map(|node| ask(node, &["CLUSTER", "MYID"]))).await;
        let cluster = Self { nodes, ids };
        cluster.join(masters).await;
        cluster
    }

    async fn join(&self, masters: usize) {
        let first = [self.nodes[0].port(), self.nodes[0].bus_port()].map(|port| port.to_string());
        for (i, node) in self.nodes.iter().enumerate() {
            let epoch = (i + 1).to_string();
            ask::<Value>(node, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
            if i < masters {
                let (from, to) = (i * 16384 / masters, (i + 1) * 16384 / masters - 1);
                let (from, to) = (from.to_string(), to.to_string());
                ask::<Value>(node, &["CLUSTER", "ADDSLOTSRANGE", &from, &to]).await;
            }
            if i > 0 {
                ask::<Value>(node, &["CLUSTER", "MEET", "127.0.0.1", &first[0], &first[1]]).await;
            }
        }
        let all = format!("cluster_known_nodes:{}", self.nodes.len());
        for node in &self.nodes {
            eventually("they have met", async || self.info(node).await.contains(&all)).await;
        }
        for (i, replica) in self.nodes.iter().enumerate().skip(masters) {
            let master = &self.ids[i - masters];
            eventually("it replicates", async || {
                let mut cmd = redis::cmd("CLUSTER");
                cmd.arg("REPLICATE").arg(master);
                cmd.query_async::<Value>(&mut replica.redis().await).await.is_ok()
            })
            .await;
        }
        for node in &self.nodes {
            eventually("the cluster is up", async || {
                let info: String = ask(node, &["INFO", "replication"]).await;
                (info.contains("role:master") || info.contains("master_link_status:up"))
                    && self.info(node).await.contains("cluster_state:ok")
                    && self.owners(node).await.len() == masters
                    && self.replicas(node).await == self.nodes.len() - masters
            })
            .await;
        }
    }

    pub async fn info(&self, node: &Server) -> String {
        ask(node, &["CLUSTER", "INFO"]).await
    }

    /// First slot, last slot and the owner's port of each range, as a node sees it.
    pub async fn owners(&self, node: &Server) -> Vec<(u16, u16, u16)> {
        let ranges: Vec<Vec<Value>> = ask(node, &["CLUSTER", "SLOTS"]).await;
        let range = |range: Vec<Value>| {
            let [Value::Int(first), Value::Int(last), Value::Array(owner), ..] = range.as_slice() else {
                panic!("a range: {range:?}")
            };
            let Value::Int(port) = owner[1] else {
                panic!("a port: {owner:?}")
            };
            (*first as u16, *last as u16, port as u16)
        };
        ranges.into_iter().map(range).collect()
    }

    pub async fn replicas(&self, node: &Server) -> usize {
        let ranges: Vec<Vec<Value>> = ask(node, &["CLUSTER", "SLOTS"]).await;
        ranges.iter().map(|range| range.len().saturating_sub(3)).sum()
    }

    pub async fn slot(&self, lock: &str) -> u16 {
        ask(&self.nodes[0], &["CLUSTER", "KEYSLOT", &format!("fairlock:{{{lock}}}")]).await
    }

    /// The node that has the lock, as the first of `of` sees it.
    pub async fn owner(&self, slot: u16, seen_by: &Server) -> Option<usize> {
        let owners = self.owners(seen_by).await;
        let (.., port) = owners.into_iter().find(|(from, to, _)| (*from..=*to).contains(&slot))?;
        self.nodes.iter().position(|node| node.port() == port)
    }

    /// A lock that lies on that node.
    pub async fn lock_on(&self, node: usize) -> String {
        self.locks_on(node, 1).await.remove(0)
    }

    pub async fn locks_on(&self, node: usize, count: usize) -> Vec<String> {
        let mut names = Vec::new();
        for i in 0..100_000 {
            let name = format!("lock {i}");
            // The first node may learn of an owner meanwhile.
            if self.owner(self.slot(&name).await, &self.nodes[0]).await == Some(node) {
                names.push(name);
            }
            if names.len() == count {
                return names;
            }
        }
        panic!("node {node} owns {} of {count} locks", names.len());
    }

    /// Where each node is.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    pub async fn client(&self, lease: Duration) -> Client {
        connected(Client::builder().lease(lease), &self.urls()).await
    }

    /// As `redis-cli --cluster reshard` does it.
    pub async fn migrate(&self, slot: u16, from: usize, to: usize) {
        let text = slot.to_string();
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        ask::<Value>(target, &["CLUSTER", "SETSLOT", &text, "IMPORTING", &self.ids[from]]).await;
        ask::<Value>(source, &["CLUSTER", "SETSLOT", &text, "MIGRATING", &self.ids[to]]).await;
        loop {
            let keys: Vec<String> = ask(source, &["CLUSTER", "GETKEYSINSLOT", &text, "100"]).await;
            if keys.is_empty() {
                break;
            }
            let port = target.port().to_string();
            let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            command.extend(keys.iter().map(String::as_str));
            ask::<Value>(source, &command).await;
        }
        for node in [to, from]
            .into_iter()
            .chain((0..3).filter(|node| ![from, to].contains(node)))
        {
            ask::<Value>(&self.nodes[node], &["CLUSTER", "SETSLOT", &text, "NODE", &self.ids[to]]).await;
        }
        // A heartbeat that was under way may set one back for a moment.
        for node in &self.nodes[..3] {
            eventually("all know", async || self.owner(slot, node).await == Some(to)).await;
        }
    }

    /// Nobody owns the slot any more.
    pub async fn disown(&self, slot: u16) {
        let text = slot.to_string();
        for node in &self.nodes {
            // A heartbeat that was under way may give it back to one for a moment.
            eventually("it is nobody's", async || {
                let mut delete = redis::cmd("CLUSTER");
                delete.arg("DELSLOTS").arg(&text);
                let _ = delete.query_async::<Value>(&mut node.redis().await).await;
                self.owner(slot, node).await.is_none()
            })
            .await;
        }
    }

    pub async fn channels(&self) -> usize {
        let each = self.nodes.iter().map(async |node| {
            let channels: Vec<String> = ask(node, &["PUBSUB", "SHARDCHANNELS"]).await;
            channels.len()
        });
        join_all(each).await.iter().sum()
    }

    pub async fn calls(&self, command: &str) -> u64 {
        join_all(self.nodes.iter().map(|node| node.calls(command)))
            .await
            .iter()
            .sum()
    }
}
