//! p9: what a waiter costs the server and its client in memory, and what is left of a lock that nobody uses any more.

use crate::env::{Env, connect, connection};
use crate::lua::{Lua, info};
use crate::memory::Counted;
use crate::report::{Goal, Report};
use fairlock::{Client, Error, Owner, RwLock, WriteGuard};
use fairlock_support::server::Server;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

const WAITERS: usize = 10_000;
const LEASE: Duration = Duration::from_secs(600);

pub async fn run(env: &Env, retention: Retention, report: &mut Report) {
    let mut rounds = Vec::new();
    let (count, times) = if env.quick { (2000, 1) } else { (WAITERS, 3) };
    for round in 0..times {
        eprintln!("p9 memory of {count} waiters: round {}/{times}", round + 1);
        rounds.push(Waiting::measure(env, count, false).await);
    }
    let named = Waiting::measure(env, count, true).await;
    let of = |what: fn(&Waiting) -> f64| rounds.iter().map(what).collect::<Vec<f64>>();
    let title = "bytes of the lock's keys in the server per waiter";
    report.row("p9", title, Goal::AtMost(250.0), &of(|waiting| waiting.keys));
    report.beside(
        "p9_server",
        "bytes of the server's used_memory per waiter",
        &of(|waiting| waiting.server),
    );
    report.beside(
        "p9_named",
        "bytes of the keys per waiter with an owner of its own",
        &[named.keys],
    );
    report.beside(
        "p9_client",
        "bytes in the client per waiter, its task included",
        &of(|waiting| waiting.client),
    );
    report.beside(
        "p9_client_future",
        "bytes of these are the future's own",
        &of(|waiting| waiting.future),
    );
    report.beside(
        "p9_client_left",
        "bytes in the client per waiter that is gone",
        &of(|waiting| waiting.left),
    );
    let (held, connection) = resident(env, count).await;
    report.beside(
        "p9_held",
        "bytes of the server's used_memory per lock that is held",
        &[held],
    );
    report.beside(
        "p9_connection",
        "bytes of the server's used_memory per idle connection",
        &[connection],
    );
    let left = retention.keys_left(env.quick).await;
    let title = if env.quick {
        "keys whose TTL will not take them in time after the last use"
    } else {
        "keys left after retention"
    };
    report.row("p9_keys_left", title, Goal::AtMost(0.0), &[left]);
}

/// Per waiter, in bytes.
struct Waiting {
    keys: f64,
    server: f64,
    client: f64,
    future: f64,
    left: f64,
}

impl Waiting {
    async fn measure(env: &Env, waiters: usize, named: bool) -> Self {
        const LOCK: &str = "p9";
        let server = env.another_server().await;
        let mut redis = connection(&server.url()).await;
        let mut lua = Lua::new(&server.url()).await;
        let (holder, client) = (connect(&server.url()).await, connect(&server.url()).await);
        let guard = holder
            .rw_lock(LOCK)
            .write()
            .lease(LEASE)
            .acquire_fair()
            .await
            .expect("granted");
        // Everything that is made once has been made, and connections' buffers have had to do with crowds.
        crowd(&client, LOCK, waiters, named, &server).await.end(&server).await;
        let (keys, used) = (lua.memory(LOCK).await, info(&mut redis, "used_memory").await);
        let counted = Counted::begin();
        let crowd = crowd(&client, LOCK, waiters, named, &server).await;
        let bytes = counted.bytes();
        let per = |bytes: f64| bytes / waiters as f64;
        let keys = per(lua.memory(LOCK).await - keys);
        let server_bytes = per(info(&mut redis, "used_memory").await - used);
        let future = crowd.future as f64;
        crowd.end(&server).await;
        let left = per(counted.bytes());
        drop(counted);
        guard.release().await.expect("released");
        Self {
            keys,
            server: server_bytes,
            client: per(bytes),
            future,
            left,
        }
    }
}

/// Bytes of the server for a lock that somebody holds and nobody wants, and for a connection.
async fn resident(env: &Env, count: usize) -> (f64, f64) {
    let server = env.another_server().await;
    let mut redis = connection(&server.url()).await;
    let client = connect(&server.url()).await;
    drop(
        client
            .rw_lock("first")
            .write()
            .lease(LEASE)
            .acquire_fair()
            .await
            .expect("granted"),
    );
    let used = info(&mut redis, "used_memory").await;
    let mut guards = Vec::with_capacity(count);
    for n in 0..count {
        let lock = client.rw_lock(format!("resident:{n:06}"));
        guards.push(lock.write().lease(LEASE).acquire_fair().await.expect("granted"));
    }
    let held = (info(&mut redis, "used_memory").await - used) / count as f64;
    let used = info(&mut redis, "used_memory").await;
    let mut connections = Vec::new();
    for _ in 0..count / 10 {
        connections.push(connection(&server.url()).await);
    }
    let each = (info(&mut redis, "used_memory").await - used) / connections.len() as f64;
    client.shutdown().await;
    (held, each)
}

struct Crowd {
    tasks: Vec<JoinHandle<Result<WriteGuard, Error>>>,
    future: usize,
    lock: RwLock,
}

/// So many tasks of one client, all in the queue, and all knowing it.
async fn crowd(client: &Client, lock: &str, waiters: usize, named: bool, server: &Server) -> Crowd {
    let lock = client.rw_lock(lock);
    let mut future = 0;
    let mut tasks = Vec::with_capacity(waiters);
    for _ in 0..waiters {
        let own = if named {
            lock.with_owner(&Owner::new())
        } else {
            lock.clone()
        };
        let acquire = own.write().lease(LEASE).acquire_fair();
        future = size_of_val(&acquire);
        // As it is: a future around it would hold it twice.
        tasks.push(tokio::spawn(acquire));
    }
    server.until_queued(lock.name(), waiters).await;
    lock.status().await.expect("a status");
    Crowd { tasks, future, lock }
}

impl Crowd {
    async fn end(self, server: &Server) {
        for task in &self.tasks {
            task.abort();
        }
        for task in self.tasks {
            let ended = task.await.expect_err("aborted while it waited");
            assert!(ended.is_cancelled(), "{ended}");
        }
        server.until_queued(self.lock.name(), 0).await;
        self.lock.status().await.expect("a status");
    }
}

/// Locks of a server of their own that were used in many ways and are used no more. It begins before the other rows,
/// which go on while it waits.
pub struct Retention {
    server: Server,
    unused_since: Instant,
}

impl Retention {
    const LEASE: Duration = Duration::from_millis(500);
    /// Twice RETENTION of lua/lock.lua, after the last deadline; and a second for a busy server.
    const TIME: Duration = Duration::from_secs(61);

    pub async fn begin(env: &Env) -> Self {
        let server = env.another_server().await;
        let client = connect(&server.url()).await;
        let events = client.events().await.expect("events");
        for n in 0..50 {
            let lock = client.rw_lock(format!("used-{n}"));
            let (write, read) = (|| lock.write().lease(Self::LEASE), || lock.read().lease(Self::LEASE));
            let first = write().acquire_fair().await.expect("granted");
            assert!(read().try_acquire().await.expect("an answer").is_none());
            let late = write().try_acquire_for(Duration::from_millis(1)).await;
            assert!(late.expect("an answer").is_none());
            let (write, read) = (write(), read());
            let next = tokio::spawn(async move { drop(write.acquire_fair().await.expect("granted")) });
            let reader = tokio::spawn(async move { read.acquire_fair().await.expect("granted").release().await });
            if n % 2 == 0 {
                first.release().await.expect("released");
            } else {
                drop(first);
            }
            next.await.expect("a waiter");
            reader.await.expect("a waiter").expect("released");
        }
        drop(events);
        client.shutdown().await;
        let unused_since = Instant::now();
        Self { server, unused_since }
    }

    async fn keys_left(self, quick: bool) -> f64 {
        let mut redis = self.server.redis().await;
        let bound = Self::TIME + Self::LEASE;
        if !quick {
            let over = self.unused_since + bound;
            eprintln!(
                "p9 retention: {} s to go",
                over.saturating_duration_since(Instant::now()).as_secs()
            );
            sleep_until(over).await;
        }
        // Unlike DBSIZE it leaves out what has expired and has not been collected.
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut redis).await.expect("KEYS");
        if !quick {
            return keys.len() as f64;
        }
        // With many rounds of the rows before this one, a quick run comes late, too.
        let outlive = self.unused_since.elapsed() < Self::TIME / 2;
        assert!(
            !keys.is_empty() || !outlive,
            "the locks' states outlive their use for a while"
        );
        let mut left = 0.0;
        for key in keys {
            let ttl: i64 = redis::cmd("PTTL")
                .arg(&key)
                .query_async(&mut redis)
                .await
                .expect("PTTL");
            // -1: none. -2: gone meanwhile.
            if ttl == -1 || ttl > bound.as_millis() as i64 {
                left += 1.0;
            }
        }
        left
    }
}
