//! Faults between a client and a healthy lock: lost messages, lost replies, broken connections, outages, load.

mod connections;
#[cfg(target_os = "linux")]
mod descriptors;
#[cfg(target_os = "linux")]
mod disk;
mod load;
mod messages;
mod outages;
mod replies;
mod restarts;

use crate::observe::{LONG, client, ms};
use crate::proxy::Proxy;
use crate::server::{Server, soon};
use fairlock::{Client, FencingToken, LostReason};
use futures::future::join_all;
use std::sync::{Arc, Mutex};
use tokio::task::JoinHandle;

/// Writers that came one after the other. Each releases as soon as it is in.
struct Line {
    waiters: Vec<JoinHandle<FencingToken>>,
    entered: Arc<Mutex<Vec<usize>>>,
}

impl Line {
    async fn up(server: &Server, clients: &[&Client], name: &str, n: usize) -> Self {
        let entered = Arc::new(Mutex::new(Vec::new()));
        let mut waiters = Vec::new();
        for i in 0..n {
            let (lock, entered) = (clients[i % clients.len()].rw_lock(name), Arc::clone(&entered));
            waiters.push(tokio::spawn(async move {
                let guard = lock.write().acquire_fair().await.unwrap();
                entered.lock().unwrap().push(i);
                let token = guard.fencing_token();
                guard.release().await.unwrap();
                token
            }));
            server.until_queued(name, i + 1).await;
        }
        Self { waiters, entered }
    }

    /// Waits until all have been in; gives the order in which they were, and their tokens.
    async fn through(self) -> (Vec<usize>, Vec<FencingToken>) {
        let waiters = join_all(self.waiters);
        let tokens = soon("everybody gets in", waiters).await;
        let tokens = tokens.into_iter().map(Result::unwrap).collect();
        let order = std::mem::take(&mut *self.entered.lock().unwrap());
        (order, tokens)
    }
}

/// A server, one client next to it and one behind a proxy.
pub struct Setting {
    pub server: Server,
    pub proxy: Proxy,
    pub far: Client,
    pub near: Client,
}

impl Setting {
    pub async fn new(far_lease: u64) -> Self {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let (far, near) = (
            client(proxy.url(), ms(far_lease)).await,
            client(server.url(), LONG).await,
        );
        Self {
            server,
            proxy,
            far,
            near,
        }
    }
}

async fn lost(guard: &fairlock::WriteGuard) -> LostReason {
    soon("it is lost", guard.lost()).await
}
