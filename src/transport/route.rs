//! The route: where a call goes and where its grants come from, the one server or the cluster's node that has the lock.

use super::backend::Backend;
#[cfg(feature = "cluster")]
use super::cluster::{Cluster, Node};
use super::link::{BackgroundSlots, How, Lane, Link};
use super::listener::Listener;
use super::quarantine::Quarantine;
use super::subscription::Subscription;
use crate::protocol::channel::Channel;
use crate::protocol::lookup;
use crate::protocol::order::Order;
use crate::protocol::replication::{Reached, Replication};
use crate::protocol::reply::{malformed, text};
use crate::state::request::Request;
use crate::state::shared::Shared;
#[cfg(feature = "cluster")]
use crate::types::boxed::boxed;
use crate::types::clock;
use redis::{Cmd, RedisError, Value};
use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// What a client connects to.
#[derive(Clone)]
pub(crate) enum Target {
    Server(Backend),
    /// Nodes of a cluster. Every node has their settings.
    #[cfg(feature = "cluster")]
    Cluster(Arc<[redis::ConnectionInfo]>),
}

impl Target {
    /// For errors and logs.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Server(backend) => backend.address(),
            #[cfg(feature = "cluster")]
            Self::Cluster(seeds) => {
                let seeds: Vec<_> = seeds.iter().map(|seed| seed.addr().to_string()).collect();
                format!("the cluster at {}", seeds.join(", "))
            }
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        !matches!(self, Self::Server(_))
    }

    /// Whether another server may take over its place.
    pub(crate) fn is_of_sentinel(&self) -> bool {
        match self {
            #[cfg(feature = "sentinel")]
            Self::Server(Backend::Sentinel(_)) => true,
            _ => false,
        }
    }

    /// Whether the connections are sockets.
    pub(crate) fn needs_io(&self) -> bool {
        match self {
            #[cfg(feature = "__testing")]
            Self::Server(Backend::Simulated(_)) => false,
            _ => true,
        }
    }

    /// How the scripts publish grants.
    pub(crate) fn channel(&self) -> Channel {
        match self {
            Self::Server(_) => Channel::OfClient,
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => Channel::InSlot,
        }
    }

    /// Runs one of the client's own tasks.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        match self {
            #[cfg(feature = "__testing")]
            Self::Server(Backend::Simulated(network)) => network.spawn(Box::pin(task)),
            _ => tokio::spawn(task).abort_handle(),
        }
    }
}

pub(crate) enum Route {
    Server(Box<Single>),
    #[cfg(feature = "cluster")]
    Cluster(Box<Cluster>),
}

/// A server that has keys of its own.
pub(crate) enum Master {
    /// The one server.
    Sole,
    #[cfg(feature = "cluster")]
    Node(Arc<Node>),
}

/// The two connections to a single server.
pub(crate) struct Single {
    link: Link,
    listener: Listener,
    /// The first subscription, until the client's task takes it.
    subscription: Mutex<Option<Subscription>>,
    shared: Arc<Shared>,
}

impl Route {
    pub(crate) async fn connect(
        target: &Target,
        shared: &Arc<Shared>,
        label: Option<String>,
        quarantine: Option<Quarantine>,
    ) -> Result<Self, RedisError> {
        match target {
            Target::Server(backend) => {
                let seat = quarantine.as_ref().and_then(Quarantine::seat);
                let listener = Listener::new(backend.clone(), label.clone(), Arc::clone(shared), seat);
                let link = Link::connect(backend.clone(), label, quarantine).await?;
                let subscription = Mutex::new(Some(listener.subscribe().await?));
                Ok(Self::Server(Box::new(Single {
                    link,
                    listener,
                    subscription,
                    shared: Arc::clone(shared),
                })))
            }
            #[cfg(feature = "cluster")]
            Target::Cluster(seeds) => {
                let cluster = Cluster::connect(Arc::clone(seeds), Arc::clone(shared), label);
                cluster.await.map(Box::new).map(Self::Cluster)
            }
        }
    }

    /// Whether keys lie on several servers.
    pub(crate) fn is_cluster(&self) -> bool {
        !matches!(self, Self::Server(_))
    }

    /// Keeps all connections up. Never ends.
    pub(crate) async fn run(&self) {
        match self {
            // In a box: the future of a client's whole work is long.
            Self::Server(single) => Box::pin(single.run()).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => Box::pin(cluster.run()).await,
        }
    }

    /// Sends what `order` makes for the server that has `key`: see [`Link::call`].
    pub(crate) async fn call(&self, how: &How, key: &str, order: &Order<'_>) -> Result<Value, RedisError> {
        match self {
            Self::Server(single) => {
                let _ = key;
                single.link.call(how, order).await
            }
            #[cfg(feature = "cluster")]
            // In a box, because it is long and a part of users' futures.
            Self::Cluster(cluster) => boxed(|| cluster.call(how, key, order)).await,
        }
    }

    /// Sends a command that is not a script.
    pub(crate) async fn command(
        &self,
        lane: Lane,
        limit: Duration,
        key: &str,
        command: &Cmd,
    ) -> Result<Value, RedisError> {
        let how = How::plainly(lane, limit);
        self.call(&how, key, &Order::command(command, &AtomicBool::new(false)))
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
        command: &Cmd,
    ) -> Result<Value, RedisError> {
        match (self, master) {
            #[cfg(feature = "cluster")]
            (Self::Cluster(cluster), Master::Node(node)) => {
                let sent = AtomicBool::new(false);
                let how = How::plainly(lane, limit);
                cluster.call_node(node, &how, &Order::command(command, &sent)).await
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
            Self::Server(single) => {
                let _ = key;
                single.link.confirm(limit, wish, renew).await
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.confirm(limit, key, wish, renew).await,
        }
    }

    /// Reads the texts under keys, which may be on any node. `None`: there is none, or it cannot be read. And why one cannot.
    pub(crate) async fn texts(
        &self,
        lane: Lane,
        limit: Duration,
        keys: &[String],
    ) -> (Vec<Option<String>>, Option<RedisError>) {
        let owned = |found: &Value| text(found).map(str::to_owned);
        match self {
            Self::Server(_) => {
                let get = lookup::get_all(keys);
                let why = match self.command(lane, limit, "", &get).await {
                    Ok(Value::Array(found)) if found.len() == keys.len() => {
                        return (found.iter().map(owned).collect(), None);
                    }
                    Ok(reply) => malformed(&reply),
                    Err(error) => error,
                };
                (vec![None; keys.len()], Some(why))
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => {
                let replies = keys.iter().map(|key| async move {
                    let get = lookup::get(key);
                    self.command(lane, limit, key, &get).await
                });
                let mut why = None;
                let mut read = |reply: Result<Value, RedisError>| match reply {
                    Ok(reply) => owned(&reply),
                    Err(error) => {
                        why = Some(error);
                        None
                    }
                };
                let replies = futures::future::join_all(replies).await;
                (replies.into_iter().map(&mut read).collect(), why)
            }
        }
    }

    /// A call sent at that time told that the request waits: subscribes to its grant.
    pub(crate) fn listen_for(&self, request: &Request, sent: Instant) {
        match self {
            // On one server one subscription brings the grants of all locks.
            Self::Server(_) => {
                let _ = (request, sent);
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                if request.claim().is_waiting() {
                    cluster.watch(&request.lock, sent);
                }
            }
        }
    }

    /// The slots for background calls about `key`. They are by server, so that a server without replies takes no slots
    /// of others.
    pub(crate) fn background(&self, key: &str) -> Arc<BackgroundSlots> {
        match self {
            Self::Server(single) => {
                let _ = key;
                single.link.background()
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.background(key),
        }
    }

    /// See [`Link::trusted_from`]. A cluster has no quarantine.
    pub(crate) fn trusted_from(&self, now: Instant) -> Option<Instant> {
        match self {
            Self::Server(single) => single.link.trusted_from(now),
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => None,
        }
    }

    /// Tells the callers in line that their calls will not be sent.
    pub(crate) fn turn_away(&self) {
        match self {
            Self::Server(single) => single.link.turn_away(),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.turn_away(),
        }
    }

    /// Closes all connections for ever.
    pub(crate) fn close(&self) {
        match self {
            Self::Server(single) => {
                single.link.close();
                // It is still there if the client's task never ran.
                drop(single.take_subscription());
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.close(),
        }
    }
}

impl Single {
    fn take_subscription(&self) -> Option<Subscription> {
        self.subscription.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn run(&self) {
        // Taken once, because a client has one task that runs this.
        let Some(subscription) = self.take_subscription() else {
            return;
        };
        let moved = Notify::new();
        // After a reconnect the server may have forgotten holds, or be another one.
        let recheck = |is_up| {
            if is_up {
                self.shared.registry.recheck(clock::now(), |_| true);
                moved.notify_one();
            }
        };
        futures::join!(
            self.link.run(recheck),
            self.listener.run(subscription, &self.link, &moved),
            self.link.watch()
        );
    }
}
