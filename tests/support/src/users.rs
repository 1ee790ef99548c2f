//! Users of a lock, as several tests need them: clients, holds, waiters, and what the server counts of them.

use crate::server::{Server, connected, eventually, soon};
use fairlock::{Access, Acquire, Client, Error, FencingToken, Guard, Owner, ReadGuard, RwLock, WriteGuard};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Short enough to wait for its end, long enough for a busy machine.
pub const LEASE: Duration = Duration::from_secs(1);
/// Its third is longer than any test waits: nothing comes about by expiry or by a renewal.
pub const LONG: Duration = Duration::from_secs(600);

pub async fn client(url: impl AsRef<str>, lease: Duration) -> Client {
    let builder = Client::builder().lease(lease);
    connected(builder, url.as_ref()).await
}

/// The lock "a", of a client of its own.
pub async fn user(server: &Server, lease: Duration) -> RwLock {
    client(server.url(), lease).await.rw_lock("a")
}

pub async fn read(lock: &RwLock) -> ReadGuard {
    soon("to read", lock.read().acquire_fair()).await.expect("the lock")
}

pub async fn write(lock: &RwLock) -> WriteGuard {
    soon("to write", lock.write().acquire_fair()).await.expect("the lock")
}

pub async fn downgrade(writing: WriteGuard) -> ReadGuard {
    soon("the downgrade", writing.downgrade()).await.expect("a read hold")
}

/// A request that waits in a task of its own enters, and leaves.
pub async fn passes<M: Access>(what: &str, waiter: JoinHandle<Result<Guard<M>, Error>>) {
    let guard = soon(what, waiter).await.expect("no panic").expect("the lock");
    guard.release().await.expect("a confirmation");
}

/// A request that waits in a task of its own. Dropped, it leaves the queue.
pub struct Waiting<M>(JoinHandle<Result<Guard<M>, Error>>);

impl<M: Access> Waiting<M> {
    pub fn entered(&self) -> bool {
        self.0.is_finished()
    }

    pub async fn enters(mut self) -> Guard<M> {
        let entered = soon("its turn", &mut self.0).await;
        entered.expect("no panic").expect("the lock")
    }

    pub async fn fails(mut self) -> Error {
        let entered = soon("a refusal", &mut self.0).await;
        entered.expect("no panic").expect_err("an error")
    }

    /// Its future is dropped before this returns.
    pub async fn cancel(mut self) {
        self.0.abort();
        let cancelled = (&mut self.0).await;
        assert!(cancelled.is_err(), "it had entered: {cancelled:?}");
    }
}

impl<M> Drop for Waiting<M> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Asks for the lock "a" and waits until it is the `place`th in its queue, from 1.
pub async fn queued<M: Access>(server: &Server, acquire: Acquire<M>, place: usize) -> Waiting<M> {
    waiting(server, acquire.acquire_fair(), place).await
}

/// The same for any future of a guard.
pub async fn waiting<M: Access>(
    server: &Server,
    asking: impl Future<Output = Result<Guard<M>, Error>> + Send + 'static,
    place: usize,
) -> Waiting<M> {
    let task = tokio::spawn(asking);
    eventually(&format!("{place} queued"), async || {
        assert!(!task.is_finished(), "it did not have to wait");
        server.queued("a").await == place
    })
    .await;
    Waiting(task)
}

/// The hash of a lock, but for what outlives its holders.
pub async fn state(server: &Server, lock: &str) -> BTreeMap<String, String> {
    let mut state: BTreeMap<String, String> = redis::cmd("HGETALL")
        .arg(format!("fairlock:{{{lock}}}"))
        .query_async(&mut server.redis().await)
        .await
        .expect("HGETALL");
    for field in ["seq", "keep", "cap", "policy", "sole"] {
        state.remove(field);
    }
    // With which token somebody came in who has upgraded since: that is told by renewals.
    state.retain(|field, _| !field.starts_with("f:"));
    state
}

/// The hash when this owner, and nobody else, is inside so often.
pub fn held_by(owner: &Owner, reads: usize, writes: usize, token: FencingToken) -> BTreeMap<String, String> {
    let name = owner.uuid().simple().to_string();
    let mut state = BTreeMap::new();
    let mut put = |field: String, value: String| state.insert(field, value);
    if writes > 0 {
        put("mode".into(), "write".into());
        put("writer".into(), name.clone());
        put("wcount".into(), writes.to_string());
    } else if reads > 0 {
        put("mode".into(), "read".into());
    }
    if reads > 0 {
        put("rcount".into(), reads.to_string());
        put(format!("r:{name}"), reads.to_string());
    }
    if reads + writes > 0 {
        put(format!("t:{name}"), token.to_string());
    }
    state
}
