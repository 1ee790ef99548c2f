//! A lock over several servers: exclusion, order, and what becomes of both when a minority of the servers fails.

mod cancellation;
mod connecting;
mod eviction;
mod faults;
#[cfg(feature = "metrics")]
mod metrics;
mod order;
mod outside;
mod races;
mod rights;
mod skewed;
mod storm;
mod tokens;

use crate::server::{Server, eventually, soon};
use fairlock::{Error, LostReason, Quorum, QuorumBuilder, QuorumLock};
use fairlock_support::packed::Packed;
use futures::future::join_all;
use std::time::Duration;
use tokio::task::JoinError;

/// Long enough for any test, however slow the machine is.
const LEASE: Duration = Duration::from_secs(600);

/// The prefix of a quorum's keys.
const PREFIX: &str = "fairlock.q";

/// The servers of a quorum.
struct Fleet(Vec<Server>);

impl Fleet {
    /// New servers that vote at once, as if their quarantine were over.
    async fn start(servers: usize) -> Self {
        let fleet = Self(join_all((0..servers).map(|_| Server::start())).await);
        for at in 0..servers {
            fleet.end_quarantine(at).await;
        }
        fleet
    }

    fn urls(&self) -> Vec<String> {
        self.0.iter().map(Server::url).collect()
    }

    fn builder() -> QuorumBuilder {
        Quorum::builder("test").longest_lease(LEASE).lease(LEASE)
    }

    /// A client that has reached all servers.
    async fn quorum(&self) -> Quorum {
        let quorum = self.quorum_by(Self::builder()).await;
        eventually("all servers", async || quorum.reached() == self.0.len()).await;
        quorum
    }

    async fn quorum_by(&self, builder: QuorumBuilder) -> Quorum {
        soon("a client", connected_to_a_majority(builder, self.urls())).await
    }

    async fn quorums<const N: usize>(&self) -> [Quorum; N] {
        let quorums: Vec<_> = join_all((0..N).map(|_| self.quorum())).await;
        quorums.try_into().expect("so many")
    }

    /// The server is in no quarantine any more for connections that come later. Ends the present ones.
    async fn end_quarantine(&self, at: usize) {
        let mut redis = self.0[at].redis().await;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut redis).await.unwrap();
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap();
        let mut set = redis::cmd("SET");
        set.arg(format!("{PREFIX}:life")).arg(format!("{} 1", run.trim()));
        set.exec_async(&mut redis).await.unwrap();
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
        kill.exec_async(&mut redis).await.unwrap();
    }

    /// The same for a server that has restarted: what its quarantine holds of a lock is over too.
    async fn let_vote_again(&self, at: usize, lock: &str) {
        self.end_quarantine(at).await;
        let mut redis = self.0[at].redis().await;
        let mut del = redis::cmd("DEL");
        del.arg(key(lock))
            .arg(format!("{}:q", key(lock)))
            .arg(format!("{}:l", key(lock)));
        del.exec_async(&mut redis).await.unwrap();
        // Then its clients look at once.
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("pubsub");
        kill.exec_async(&mut redis).await.unwrap();
    }

    /// What one server has of a lock.
    async fn state(&self, at: usize, lock: &str) -> Packed {
        Packed::of(&mut self.0[at].redis().await, &key(lock)).await
    }

    /// Waits until so many requests hold and wait at each of these servers.
    async fn until(&self, servers: impl IntoIterator<Item = usize> + Clone, lock: &str, holds: usize, waiting: u32) {
        for at in servers {
            eventually(&format!("{holds} hold and {waiting} wait at server {at}"), async || {
                let state = self.state(at, lock).await;
                state.holds() == holds && state.waiting == waiting
            })
            .await;
        }
    }

    fn all(&self) -> std::ops::Range<usize> {
        0..self.0.len()
    }
}

async fn connected_to_a_majority(builder: QuorumBuilder, urls: Vec<String>) -> Quorum {
    loop {
        match builder.clone().connect(urls.clone()).await {
            Ok(quorum) => return quorum,
            // These machines are slow at times.
            Err(Error::Connect { source, .. }) if source.is_timeout() => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn key(lock: &str) -> String {
    format!("{PREFIX}:{{{lock}}}")
}

/// A writer that waits in a task of its own.
fn write(lock: &QuorumLock) -> tokio::task::JoinHandle<fairlock::QuorumWriteGuard> {
    let request = lock.write();
    tokio::spawn(async move { request.acquire_fair().await.expect("a grant") })
}

fn read(lock: &QuorumLock) -> tokio::task::JoinHandle<fairlock::QuorumReadGuard> {
    let request = lock.read();
    tokio::spawn(async move { request.acquire_fair().await.expect("a grant") })
}

fn lost_because<T>(result: &Result<T, Error>) -> Option<LostReason> {
    match result {
        Err(Error::Lost { reason, .. }) => Some(*reason),
        _ => None,
    }
}

async fn entered<G>(what: &str, waiter: impl Future<Output = Result<G, JoinError>>) -> G {
    soon(what, waiter).await.expect("no panic")
}
