//! Other locks over Redis that a Rust user would otherwise take, each used as its README says.
//!
//! * `rslock` 0.10: Redlock, here with one server. `SET NX PX` and a checked DEL. Who finds the lock taken deletes what
//!   it may have set, pauses for a random time, and tries again.
//! * `rlock` 0.2: `SET NX PX`, a checked DEL, renewed by a task for each guard; polls. Its read/write lock prefers
//!   readers.
//! * `distkit` 0.7: likewise; its read/write lock prefers writers, and they enter in the order in which they came.
//!
//! distkit asks its timer before its first try too, and tokio's counts milliseconds: hence what a free lock costs there.
//!
//! None hands over: all poll, by default every 50 to 100 ms on average. What they document as tunable is tuned for low
//! latency: [`RETRY`] between two tries (rslock: a random whole number of milliseconds with that mean, and no end of
//! tries), and connections without Nagle's delay, which each takes from its user. All else is as it comes.

use crate::env::{connect, plain};
use distkit::DistkitRedisKey;
use fairlock::{Client, Quorum};
use redis::aio::ConnectionManager;
use rlock::AcquireOptions;
use std::sync::Arc;
use std::time::Duration;

/// Shorter pauses gain nothing: tokio's timer counts milliseconds.
pub const RETRY: Duration = Duration::from_millis(1);

/// fairlock's default too.
const LEASE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Fairlock,
    Rslock,
    Rlock,
    Distkit,
}

impl Kind {
    pub const PEERS: [Self; 3] = [Self::Rslock, Self::Rlock, Self::Distkit];
    pub const ALL: [Self; 4] = [Self::Fairlock, Self::Rslock, Self::Rlock, Self::Distkit];

    pub fn name(self) -> &'static str {
        match self {
            Self::Fairlock => "fairlock",
            Self::Rslock => "rslock",
            Self::Rlock => "rlock",
            Self::Distkit => "distkit",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What a process has of one of them.
#[derive(Clone)]
pub enum Locks {
    Fairlock(Client),
    Rslock(rslock::LockManager),
    Rlock(rlock::async_lock::RLock),
    Distkit(ConnectionManager),
    /// Over several servers: not one of [`Kind`].
    Quorum(Quorum),
}

impl Locks {
    pub async fn connect(kind: Kind, url: &str) -> Self {
        let managed = async || {
            plain(url, None)
                .get_connection_manager()
                .await
                .expect("the server answers")
        };
        match kind {
            Kind::Fairlock => Self::Fairlock(connect(url).await),
            Kind::Rslock => {
                let mut manager = rslock::LockManager::from_clients(vec![plain(url, None)]);
                manager.set_retry(u32::MAX, RETRY * 2 + Duration::from_millis(1));
                Self::Rslock(manager)
            }
            Kind::Rlock => {
                let locks = rlock::async_lock::RLock::with_connection_manager(managed().await).await;
                Self::Rlock(locks.expect("the server answers"))
            }
            Kind::Distkit => Self::Distkit(managed().await),
        }
    }

    /// One contender's handle of an exclusive lock.
    pub fn mutex(&self, name: &str) -> Mutex {
        match self {
            Self::Fairlock(client) => Mutex::Fairlock(client.rw_lock(name)),
            Self::Quorum(quorum) => Mutex::Quorum(quorum.rw_lock(name)),
            Self::Rslock(manager) => Mutex::Rslock(manager.clone(), name.to_owned()),
            Self::Rlock(locks) => Mutex::Rlock(locks.clone(), name.to_owned()),
            // Its owner is the handle.
            Self::Distkit(manager) => Mutex::Distkit(distkit::lock::Mutex::new(of_distkit(manager, name))),
        }
    }
}

pub enum Mutex {
    Fairlock(fairlock::RwLock),
    Quorum(fairlock::QuorumLock),
    Rslock(rslock::LockManager, String),
    Rlock(rlock::async_lock::RLock, String),
    Distkit(Arc<distkit::lock::Mutex>),
}

pub enum Held {
    Fairlock(fairlock::WriteGuard),
    Quorum(fairlock::QuorumGuard<fairlock::Write>),
    Rslock(rslock::LockGuard),
    Rlock(rlock::async_lock::RLockGuard),
    Distkit(distkit::lock::MutexGuard),
}

impl Mutex {
    pub async fn acquire(&self) -> Held {
        match self {
            Self::Fairlock(lock) => Held::Fairlock(lock.write().acquire_fair().await.expect("granted")),
            Self::Quorum(lock) => Held::Quorum(lock.write().acquire_fair().await.expect("granted")),
            Self::Rslock(manager, name) => Held::Rslock(manager.acquire(name.as_str(), LEASE).await.expect("granted")),
            Self::Rlock(locks, name) => {
                let guard = locks.acquire_mutex_with_options(name, of_rlock()).await;
                Held::Rlock(guard.expect("granted"))
            }
            Self::Distkit(lock) => Held::Distkit(lock.lock().await.expect("granted")),
        }
    }
}

impl Held {
    pub async fn release(self) {
        match self {
            Self::Fairlock(guard) => guard.release().await.expect("released"),
            Self::Quorum(guard) => guard.release().await.expect("released"),
            Self::Rslock(guard) => guard.release().await,
            Self::Rlock(mut guard) => guard.release().await.expect("released"),
            Self::Distkit(guard) => {
                guard.release().await.expect("released");
            }
        }
    }
}

pub fn of_rlock() -> AcquireOptions {
    let options = AcquireOptions::builder().ttl(LEASE).retry_interval(RETRY).build();
    options.expect("valid options")
}

pub fn of_distkit(manager: &ConnectionManager, name: &str) -> distkit::lock::LockOptions {
    let key = DistkitRedisKey::try_from(name.to_owned()).expect("a valid name");
    let options = distkit::lock::LockOptions::builder(key, manager.clone());
    options.ttl(LEASE).retry_interval(RETRY).build()
}
