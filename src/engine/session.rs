//! A client at work: what it shares, its route to the servers, and its two tasks.
//!
//! One task keeps the connections up and renews what is due; the other releases what was dropped. The tasks own the session;
//! users own it by a [`Handle`], whose end closes the channel of releases and thereby ends the tasks.

use super::call::Call;
use super::{release, renew};
use crate::protocol::channel::Channel;
use crate::protocol::introduction::{ClientInfo, Introduction};
use crate::protocol::key::{self, Lock};
use crate::protocol::name::RequestName;
use crate::protocol::replication::Replication;
use crate::protocol::snapshot::Snapshot;
use crate::state::request::Request;
use crate::state::shared::Shared;
use crate::transport::link::Lane;
use crate::transport::quarantine::Quarantine;
use crate::transport::route::{Route, Target};
use crate::types::error::runtime_ended;
use crate::types::limits::call_limit;
use crate::types::owner::ClientId;
use crate::types::timers::SHUTDOWN_PATIENCE;
use redis::RedisError;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

/// What keeps a client's tasks alive: when the last one goes, so does the only sender of releases.
pub(crate) struct Handle {
    pub(crate) session: Arc<Session>,
    _releases: mpsc::UnboundedSender<Arc<Request>>,
}

pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) route: Route,
    pub(crate) replication: Option<Replication>,
    channel: Channel,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// Settings of a session, checked.
pub(crate) struct Settings {
    pub(crate) lease: Duration,
    pub(crate) prefix: String,
    pub(crate) label: Option<String>,
    pub(crate) replication: Option<Replication>,
    pub(crate) quarantine: Option<Duration>,
}

/// Lives in the client's task. Dropped without a shutdown, it says that the runtime has ended, or that the last handle is
/// gone: then nobody listens.
struct Alive(Arc<Session>);

impl Drop for Alive {
    fn drop(&mut self) {
        let session = &self.0;
        if session.is_closed() {
            return;
        }
        if session.shared.registry.end() {
            tracing::warn!("the client's runtime has ended: waits fail, holds end with their leases");
        }
        session.shared.subscribers.fail(&runtime_ended());
        session.route.close();
    }
}

impl Handle {
    /// Connects, and starts the tasks on the current runtime.
    pub(crate) async fn connect(target: &Target, settings: Settings) -> Result<Arc<Self>, RedisError> {
        let (releases, dropped) = mpsc::unbounded_channel();
        let quarantine = settings
            .quarantine
            .map(|lasts| Quarantine::new(&settings.prefix, lasts));
        let channel = target.channel(&settings.prefix);
        let shared = Shared::new(ClientId::new(), settings.prefix, settings.lease, &releases);
        let shared = Arc::new(shared);
        let session = Arc::new(Session {
            route: Route::connect(target, &shared, settings.label, quarantine).await?,
            shared,
            replication: settings.replication,
            channel,
            tasks: Mutex::default(),
        });
        let keeper = target.spawn({
            let alive = Alive(Arc::clone(&session));
            async move {
                let session = &alive.0;
                futures::join!(session.route.run(), renew::renew_due(session));
            }
        });
        let releaser = target.spawn({
            let (session, keeper) = (Arc::clone(&session), keeper.clone());
            async move {
                release::release_dropped(&session, dropped).await;
                session.bid_farewell().await;
                keeper.abort();
            }
        });
        *session.tasks.lock().unwrap_or_else(PoisonError::into_inner) = vec![keeper, releaser];
        Ok(Arc::new(Self {
            session,
            _releases: releases,
        }))
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.session.shared
    }

    /// Has a request released, and waits until the server has confirmed that, or its lease is over.
    pub(crate) async fn withdraw(&self, request: Arc<Request>) {
        self.shared().abandon(Arc::clone(&request));
        self.shared().registry.out_of(&request).await;
    }
}

impl Session {
    pub(crate) fn call<'a>(&'a self, lock: &'a Lock, lease: Duration) -> Call<'a> {
        Call {
            route: &self.route,
            registry: &self.shared.registry,
            channel: &self.channel,
            lock,
            limit: call_limit(lease),
            patience: call_limit(lease),
            listened: self.shared.subscribers.listens(&lock.state, Instant::now),
            sent: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shared.registry.is_closed()
    }

    /// What the clients in a snapshot have said of themselves, where it can be had.
    pub(crate) async fn introductions(&self, snapshot: &Snapshot) -> HashMap<String, ClientInfo> {
        let requests = snapshot.holders.iter().map(|holder| &holder.request);
        let requests = requests.chain(snapshot.waiters.iter().map(|waiter| &waiter.request));
        let ids: BTreeSet<&str> = requests
            .filter_map(|request| RequestName::read(request))
            .map(|name| name.client)
            .collect();
        if ids.is_empty() {
            return HashMap::new();
        }
        let keys: Vec<_> = ids
            .iter()
            .map(|id| key::introduction(&self.shared.prefix, id))
            .collect();
        let texts = self.route.introductions(call_limit(self.shared.lease), &keys).await;
        let clients = ids.iter().zip(texts);
        clients
            .map(|(id, text)| ((*id).to_owned(), ClientInfo::read(id, text.as_deref())))
            .collect()
    }

    /// Leaves every queue, releases every hold and ends the tasks. `wait`: the caller's runtime can wait for that.
    pub(crate) async fn shut_down(&self, wait: bool) {
        let shared = &self.shared;
        let requests = shared.registry.close();
        self.route.turn_away();
        for request in &requests {
            shared.abandon(Arc::clone(request));
        }
        if !wait {
            return shared.subscribers.end();
        }
        let released = async {
            for request in &requests {
                shared.registry.out_of(request).await;
            }
        };
        // A bound for all: many locks of a server that is away would have their turns one after the other.
        if timeout(SHUTDOWN_PATIENCE, released).await.is_err() {
            tracing::warn!("not all was released in time: left to the leases");
        }
        shared.subscribers.end();
        self.bid_farewell().await;
        self.stop();
        self.route.close();
        tracing::info!("client shut down");
    }

    /// Nothing is left of a client that ends in order.
    async fn bid_farewell(&self) {
        let (key, delete) = Introduction::delete(&self.shared.prefix, self.shared.id);
        let limit = call_limit(self.shared.lease);
        let gone = self.route.command(Lane::Background, limit, &key, &delete);
        if let Err(error) = gone.await {
            tracing::debug!(%error, "the client's introduction stays until it expires");
        }
    }

    fn stop(&self) {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        for task in tasks.iter() {
            task.abort();
        }
    }
}
