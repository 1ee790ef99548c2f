//! A cluster: three masters and three replicas, as processes of the test. Each test prints what it saw; run it with
//! `cargo test --features cluster --test it -- cluster --nocapture`.

mod events;
mod moves;
mod partial;
mod queues;
mod tables;

use crate::observe::LONG;
use crate::server::{eventually, soon};
use fairlock::{Client, Error, WriteGuard};
use fairlock_support::cluster::Cluster;
use std::time::Instant;
use tokio::task::JoinHandle;

/// A lock on the first master that one client holds and another waits for.
struct Parked {
    cluster: Cluster,
    name: String,
    slot: u16,
    guard: WriteGuard,
    waiter: JoinHandle<Result<WriteGuard, Error>>,
    clients: [Client; 2],
}

impl Parked {
    async fn new() -> Self {
        let cluster = Cluster::start().await;
        let name = cluster.lock_on(0).await;
        let slot = cluster.slot(&name).await;
        let clients = [cluster.client(LONG).await, cluster.client(LONG).await];
        let guard = clients[0].rw_lock(&*name).write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(clients[1].rw_lock(&*name).write().acquire_fair());
        eventually("it waits and listens", async || {
            cluster.nodes[0].queued(&name).await == 1 && cluster.channels().await == 1
        })
        .await;
        Self {
            cluster,
            name,
            slot,
            guard,
            waiter,
            clients,
        }
    }

    /// Waits until another node has the lock, as that node sees it.
    async fn until_moved_to(&self, node: usize) {
        eventually("the slot has moved", async || {
            self.cluster.owner(self.slot, &self.cluster.nodes[node]).await == Some(node)
        })
        .await;
    }

    /// The guard is released, and the waiter enters. Nothing but a message or what follows a lost connection can tell
    /// it: its next renewal is minutes away.
    async fn handed_over(self, what: &str, begun: Instant) -> (Cluster, String, [Client; 2]) {
        let (token, released) = (self.guard.fencing_token(), Instant::now());
        soon("the release", self.guard.release()).await.unwrap();
        let confirmed = Instant::now();
        let guard = soon("the grant", self.waiter).await.unwrap().unwrap();
        println!(
            "{what}: {:?} until the slot was served again, then release {:?}, grant after it {:?}",
            released - begun,
            confirmed - released,
            confirmed.elapsed(),
        );
        assert!(guard.fencing_token() > token);
        guard.release().await.unwrap();
        (self.cluster, self.name, self.clients)
    }
}
