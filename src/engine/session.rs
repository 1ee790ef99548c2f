//! A client at work: its shared state, its route to the servers, and its two tasks.
//!
//! The watchdog keeps the connections up and renews what is due. The releaser releases what was dropped. The tasks own
//! the session. Users own it by a [`Handle`], whose end closes the channel of releases: then the releaser empties the
//! channel and ends both tasks. So nothing that was dropped is forgotten.

use super::call::Call;
use crate::protocol::channel::Channel;
use crate::protocol::introduction::Introduction;
use crate::protocol::key::{self, Lock};
use crate::protocol::lookup;
use crate::protocol::replication::Replication;
use crate::state::request::Request;
use crate::state::shared::{Identity, Shared};
use crate::transport::link::Lane;
use crate::transport::quarantine::{Quarantine, Seat};
use crate::transport::route::{Route, Target};
use crate::types::client_info::ClientInfo;
use crate::types::clock;
use crate::types::error::is_transient;
use crate::types::limits::call_limit;
use crate::types::timers::{CONNECT_TIMEOUT, SHUTDOWN_PATIENCE};
use redis::RedisError;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Keeps a client's tasks alive: the last handle has the only sender of releases.
pub(crate) struct Handle {
    pub(crate) session: Arc<Session>,
    _releases: mpsc::UnboundedSender<Arc<Request>>,
}

pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) route: Route,
    pub(crate) replication: Option<Replication>,
    pub(crate) lock_delay: Duration,
    /// How long an owner waits before the client looks for a deadlock. `None`: the client never does.
    pub(super) deadlock_timeout: Option<Duration>,
    /// What the search for deadlocks has written about this client's owners.
    pub(super) notes: Mutex<Notes>,
    channel: Channel,
    tasks: Mutex<Vec<AbortHandle>>,
    /// Ends with the session, which its handles and its tasks own.
    #[cfg(feature = "blocking")]
    life: tokio::sync::watch::Sender<()>,
}

/// Ends the streams of events when it is dropped.
struct Streams<'a>(&'a Shared);

impl Drop for Streams<'_> {
    fn drop(&mut self) {
        self.0.subscribers.end();
    }
}

/// The owners that have a note of what they wait for, with the holds that it names.
pub(super) type Notes = BTreeMap<String, Vec<String>>;

/// Settings of a session, checked.
pub(crate) struct Settings {
    pub(crate) identity: Identity,
    pub(crate) lease: Duration,
    pub(crate) prefix: String,
    pub(crate) label: Option<String>,
    pub(crate) replication: Option<Replication>,
    pub(crate) lock_delay: Duration,
    pub(crate) quarantine: Option<Duration>,
    /// The server is one of several that keep the same locks.
    pub(crate) seat: Option<Seat>,
    pub(crate) deadlock_timeout: Option<Duration>,
}

impl Handle {
    pub(super) fn new(session: Arc<Session>, releases: mpsc::UnboundedSender<Arc<Request>>) -> Self {
        Self {
            session,
            _releases: releases,
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.session.shared
    }

    /// Has a request released, and waits until the server has confirmed that or the lease is over.
    pub(crate) async fn withdraw(&self, request: Arc<Request>) {
        self.shared().abandon(Arc::clone(&request), clock::now());
        self.shared().registry.out_of(&request).await;
    }
}

impl Session {
    /// Connects. What is dropped goes to `releases`.
    pub(super) async fn connect(
        target: &Target,
        settings: Settings,
        releases: &mpsc::UnboundedSender<Arc<Request>>,
    ) -> Result<Arc<Self>, RedisError> {
        let quarantine = settings
            .quarantine
            .map(|lasts| Quarantine::new(&settings.prefix, lasts, settings.seat));
        let channel = target.channel();
        let shared = Shared::new(settings.identity, settings.prefix, settings.lease, releases);
        let shared = Arc::new(shared);
        Ok(Arc::new(Self {
            route: Route::connect(target, &shared, settings.label, quarantine).await?,
            shared,
            replication: settings.replication,
            lock_delay: settings.lock_delay,
            deadlock_timeout: settings.deadlock_timeout,
            channel,
            notes: Mutex::default(),
            tasks: Mutex::default(),
            #[cfg(feature = "blocking")]
            life: tokio::sync::watch::Sender::new(()),
        }))
    }

    /// The client's tasks, which a shutdown ends.
    pub(super) fn keep(&self, tasks: Vec<AbortHandle>) {
        *self.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
    }

    pub(crate) fn call<'a>(&'a self, lock: &'a Lock, lease: Duration) -> Call<'a> {
        Call {
            route: &self.route,
            registry: &self.shared.registry,
            channel: self.channel,
            lock,
            limit: call_limit(lease),
            patience: call_limit(lease),
            listened: self.shared.subscribers.listens(&lock.state, clock::now),
            sent: AtomicBool::new(false),
        }
    }

    /// Resolves when the last handle and the client's tasks are gone.
    #[cfg(feature = "blocking")]
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + use<> {
        let mut life = self.life.subscribe();
        async move { _ = life.changed().await }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shared.registry.is_closed()
    }

    /// The introductions of these clients, as far as the server tells them.
    pub(crate) async fn introductions(&self, clients: impl Iterator<Item = &str>) -> HashMap<String, ClientInfo> {
        let ids: BTreeSet<&str> = clients.collect();
        if ids.is_empty() {
            return HashMap::new();
        }
        let keys: Vec<_> = ids
            .iter()
            .map(|id| key::introduction(&self.shared.prefix, id))
            .collect();
        let (texts, _) = self
            .route
            .texts(Lane::Users, call_limit(self.shared.lease), &keys)
            .await;
        let clients = ids.iter().zip(texts);
        clients
            .map(|(id, text)| ((*id).to_owned(), ClientInfo::read(id, text.as_deref())))
            .collect()
    }

    /// `None`: no client with that name has introduced itself, or it has ended.
    pub(crate) async fn introduction(&self, client: &str) -> Result<Option<ClientInfo>, RedisError> {
        let (shared, limit) = (&self.shared, call_limit(self.shared.lease));
        let key = key::introduction(&shared.prefix, client);
        let get = lookup::get(&key);
        let call = self.route.command(Lane::Users, limit, &key, &get);
        let reply = shared.registry.unless_ended(call).await?;
        let text = lookup::read_text(&reply)?;
        Ok(text.map(|text| ClientInfo::read(client, Some(text))))
    }

    /// Whether to repeat a call of the releaser after that error. What the server refuses is not repeated during a shutdown,
    /// which waits for these calls: nobody gives the user its rights meanwhile.
    pub(super) fn repeats(&self, error: &RedisError) -> bool {
        !self.shared.registry.has_ended() && (is_transient(error) || !self.is_closed())
    }

    /// Leaves every queue, releases every hold and ends the tasks. `wait`: the caller's runtime can wait for that.
    pub(crate) async fn shut_down(&self, wait: bool) {
        let shared = &self.shared;
        // Also if the caller drops this future.
        let streams = Streams(shared);
        // A look, as in the drop of a guard.
        let now = clock::now();
        let requests = shared.registry.close(now);
        self.route.turn_away();
        for request in &requests {
            shared.abandon(Arc::clone(request), now);
        }
        if !wait {
            return;
        }
        let released = async {
            for request in &requests {
                shared.registry.out_of(request).await;
            }
        };
        // One bound for all, because the locks of a server that is away wait for one another's slots.
        if timeout(SHUTDOWN_PATIENCE, released).await.is_err() {
            tracing::warn!("not all was released in time: left to the leases");
        }
        drop(streams);
        // The keys of many owners may lie on a node that is away.
        if timeout(CONNECT_TIMEOUT, self.bid_farewell()).await.is_err() {
            tracing::debug!("notes of waits stay until they expire");
        }
        self.stop();
        self.route.close();
        // The releaser is gone, so whoever still waits for it need not.
        for request in &requests {
            shared.registry.remove(request);
        }
        tracing::info!(client = %self.shared.id, "client shut down");
    }

    /// Deletes the notes and the introduction: nothing is left of a client that ends in order.
    pub(super) async fn bid_farewell(&self) {
        if let Err(error) = self.forget_notes().await {
            tracing::debug!(%error, "notes of waits stay until they expire");
        }
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
