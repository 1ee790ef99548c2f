//! The runtimes of tokio: which kinds will do, what works outside of one, and what the end of one does.

mod ended;
mod handles;
mod kinds;
mod outside;

use crate::server::{Server, connected, eventually, soon};
use fairlock::{Client, Error, Owner, RwLock, WriteGuard};
use std::pin::Pin;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

const LEASE: Duration = Duration::from_secs(2);

/// So long that nothing in a test becomes free by expiry.
const LONG: Duration = Duration::from_secs(600);

fn multi_thread() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

async fn client(server: &Server, lease: Duration) -> Client {
    let builder = Client::builder().lease(lease);
    connected(builder, server.url()).await
}

async fn write(lock: &RwLock) -> WriteGuard {
    soon("to write", lock.write().acquire_fair()).await.expect("the lock")
}

async fn until_closed(server: &Server) {
    eventually("all connections closed", async || server.connections().await == 0).await;
}

/// A runtime in a thread of its own, which ends when it is told to: what lives there is dropped.
struct Elsewhere {
    runtime: Option<Runtime>,
}

impl Elsewhere {
    fn new() -> Self {
        Self {
            runtime: Some(multi_thread()),
        }
    }

    async fn client(&self, server: &Server, lease: Duration) -> Client {
        let (builder, url) = (Client::builder().lease(lease), server.url());
        let runtime = self.runtime.as_ref().expect("it lives");
        runtime
            .spawn(async move { connected(builder, url).await })
            .await
            .unwrap()
    }

    fn end(&mut self) {
        self.runtime.take().expect("it lives").shutdown_background();
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// Every public async function that can say that it failed, by its name.
async fn calls_that_can_fail(server: &Server) -> Vec<(&'static str, Answer)> {
    fn call<T>(
        name: &'static str,
        call: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> (&'static str, Answer) {
        (name, Box::pin(async move { call.await.map(drop) }))
    }
    let client = client(server, LONG).await;
    let lock = client.rw_lock("free");
    let (released, downgraded) = (write(&client.rw_lock("r")).await, write(&client.rw_lock("d")).await);
    let readers = client.rw_lock("u");
    let (upgraded, tried) = (
        readers.read().acquire_fair().await.unwrap(),
        readers.read().acquire_fair().await.unwrap(),
    );
    let [a, b, c, d, f, g, h] = [(); 7].map(|()| lock.clone());
    let [e, i] = [(); 2].map(|()| client.clone());
    let [semaphore, counted] = [(); 2].map(|()| client.semaphore("s", 1));
    let together = client.all().write(&client.rw_lock("t")).acquire_fair();
    let together = together.await.unwrap();
    let all = || client.all().write(&lock);
    let held = write(&client.rw_lock("h")).await;
    let queued = client.rw_lock("q").write().enqueue().await.unwrap();
    // Made here, and awaited elsewhere.
    let entered = client.rw_lock("e").write().enqueue_for(LONG).await.unwrap();
    let waiting = client.rw_lock("h").write().enqueue_for(LONG).await.unwrap();
    let kept = client.rw_lock("k").write().hold_at_least(LONG).enqueue().await.unwrap();
    let awaited = client.all().write(&client.rw_lock("i")).acquire_fair().await.unwrap();
    let [candidate, asked, observed] = ["c", "c", "c"].map(|name| client.election(name));
    let [leading, resigning] = ["l", "m"].map(|name| client.election(name));
    let (leading, resigning) = (leading.campaign().await.unwrap(), resigning.campaign().await.unwrap());
    vec![
        call("connect", Client::connect(server.url())),
        call("connect", Client::builder().connect(server.url())),
        call("events", async move { e.events().await }),
        call("events", async move { a.events().await }),
        call("status", async move { b.status().await }),
        call("status_from", async move { c.status_from(1).await }),
        call("exists", async move { f.exists().await }),
        call("client_info", async move { i.client_info("0a").await }),
        call("evict", async move { d.evict(&Owner::new()).await }),
        call("acquire_fair", lock.write().acquire_fair()),
        call("try_acquire", lock.write().try_acquire()),
        call("try_acquire_for", lock.write().try_acquire_for(LONG)),
        call("enqueue", lock.write().enqueue()),
        call("enqueue_for", lock.write().enqueue_for(LONG)),
        call("Queued", entered),
        call("Queued", waiting),
        call("Queued", kept),
        call("place", async move { queued.place().await }),
        call("events", async move { semaphore.events().await }),
        call("status", async move { counted.status().await }),
        call("with_write", async move { g.with_write(async |_| ()).await }),
        call("with_read", async move { h.with_read(async |_| ()).await }),
        call("acquire_fair", all().acquire_fair()),
        call("try_acquire", all().try_acquire()),
        call("try_acquire_for", all().try_acquire_for(LONG)),
        call("release", together.release()),
        call("contended", async move { held.contended().await }),
        call("contended", async move { leading.contended().await }),
        call("contended", async move { awaited.contended().await }),
        call("campaign", async move { candidate.campaign().await }),
        call("leader", async move { asked.leader().await }),
        call("observe", async move { observed.observe().await }),
        call("resign", resigning.resign()),
        call("upgrade", async move { upgraded.upgrade().await }),
        call("try_upgrade", async move { tried.try_upgrade().await }),
        call("release", released.release()),
        call("downgrade", downgraded.downgrade()),
    ]
}
