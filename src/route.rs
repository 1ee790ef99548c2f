//! Where a call goes: to the one server, or to the node of a cluster that has the lock.

#[cfg(feature = "cluster")]
use crate::cluster::{Cluster, Node};
use crate::link::{How, Lane, Link, Sending, Turns};
use crate::owner::ClientId;
use crate::quarantine::Quarantine;
use crate::replication::{Reached, Replication};
use crate::script::Order;
use crate::wire::{self, Backend};
use redis::{Cmd, RedisError, Value};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub(crate) enum Route {
    Server(Link),
    #[cfg(feature = "cluster")]
    Cluster(Cluster),
}

/// A server that has keys of its own.
pub(crate) enum Master {
    /// The one server.
    Sole,
    #[cfg(feature = "cluster")]
    Node(Arc<Node>),
}

impl Route {
    pub(crate) async fn connect(
        server: &Backend,
        id: ClientId,
        label: Option<String>,
        quarantine: Option<Quarantine>,
    ) -> Result<Self, RedisError> {
        match server {
            #[cfg(feature = "cluster")]
            Backend::Cluster(seeds) => Cluster::connect(Arc::clone(seeds), id, label).await.map(Self::Cluster),
            _ => {
                let _ = id;
                let link = Link::connect(server.clone(), label, quarantine);
                link.await.map(Self::Server)
            }
        }
    }

    /// Sends what `order` makes for the server that has `key`: see [`Link::call`].
    pub(crate) async fn call(&self, how: How, key: &str, order: &Order<'_>) -> Result<Value, RedisError> {
        match self {
            Self::Server(link) => {
                let _ = key;
                link.call(how, order).await
            }
            #[cfg(feature = "cluster")]
            // In a box: it is long, and part of what users' futures are made of.
            Self::Cluster(cluster) => Box::pin(cluster.call(how, key, order)).await,
        }
    }

    /// Sends a command of the server's own.
    pub(crate) async fn command(
        &self,
        lane: Lane,
        limit: Duration,
        key: &str,
        command: &(dyn Fn(&mut Cmd) + Sync),
    ) -> Result<Value, RedisError> {
        let how = How {
            lane,
            limit,
            patience: limit,
            sending: Sending::Plainly,
        };
        self.call(how, key, &Order::plain(command, &AtomicBool::new(false)))
            .await
    }

    /// All servers that have keys: the masters of a cluster, or the one server.
    pub(crate) fn masters(&self) -> Result<Vec<Master>, RedisError> {
        match self {
            Self::Server(_) => Ok(vec![Master::Sole]),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => Ok(cluster.masters()?.into_iter().map(Master::Node).collect()),
        }
    }

    /// Sends a command of the server's own to that master.
    pub(crate) async fn command_to(
        &self,
        master: &Master,
        lane: Lane,
        limit: Duration,
        command: &(dyn Fn(&mut Cmd) + Sync),
    ) -> Result<Value, RedisError> {
        match (self, master) {
            #[cfg(feature = "cluster")]
            (Self::Cluster(cluster), Master::Node(node)) => {
                let sent = AtomicBool::new(false);
                let how = How {
                    lane,
                    limit,
                    patience: limit,
                    sending: Sending::Plainly,
                };
                cluster.call_node(node, how, &Order::plain(command, &sent)).await
            }
            _ => self.command(lane, limit, "", command).await,
        }
    }

    /// Sends what `renew` makes for the server that has `key`, and asks how many replicas have what that wrote.
    pub(crate) async fn confirm(
        &self,
        limit: Duration,
        key: &str,
        wish: Replication,
        renew: &Order<'_>,
    ) -> Result<(Value, Reached), RedisError> {
        match self {
            Self::Server(link) => {
                let _ = key;
                link.confirm(limit, wish, renew).await
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.confirm(limit, key, wish, renew).await,
        }
    }

    /// What is stored under keys that may lie anywhere. `None`: nothing, or nothing that can be had.
    pub(crate) async fn texts(&self, limit: Duration, keys: &[String]) -> Vec<Option<String>> {
        match self {
            Self::Server(_) => {
                let get = |cmd: &mut Cmd| {
                    cmd.arg("MGET").arg(keys);
                };
                match self.command(Lane::Users, limit, "", &get).await {
                    Ok(Value::Array(found)) if found.len() == keys.len() => found.iter().map(text).collect(),
                    _ => vec![None; keys.len()],
                }
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => {
                let texts = keys.iter().map(|key| async move {
                    let get = |cmd: &mut Cmd| {
                        cmd.arg("GET").arg(key);
                    };
                    let reply = self.command(Lane::Users, limit, key, &get).await;
                    reply.ok().as_ref().and_then(text)
                });
                futures::future::join_all(texts).await
            }
        }
    }

    /// Turns of the background's calls about `key`: one server that does not answer must not cost others theirs.
    pub(crate) fn turns(&self, key: &str) -> Arc<Turns> {
        match self {
            Self::Server(link) => {
                let _ = key;
                link.turns()
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.turns(key),
        }
    }

    /// Whoever stands in line for being sent is told that it will not be.
    pub(crate) fn turn_away(&self) {
        match self {
            Self::Server(link) => link.turn_away(),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.turn_away(),
        }
    }

    /// Lets all connections go, for good.
    pub(crate) fn close(&self) {
        match self {
            Self::Server(link) => link.close(),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.close(),
        }
    }
}

fn text(found: &Value) -> Option<String> {
    wire::text(found).map(str::to_owned)
}
