//! From one process to another: a lock that is released here and entered there, and the least that Redis needs to tell
//! another process something.

use crate::bare::Bare;
use crate::clock;
use crate::env::{Env, connect, connection, listening};
use crate::least_client::LeastWaits;
use crate::raw::{Functions, Raw};
use crate::worker::{Line, Worker};
use fairlock::RwLock;
use fairlock_support::server::PATIENCE;
use redis::aio::MultiplexedConnection;
use redis::{AsyncTypedCommands, PushKind, Script};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::time::timeout;

const LOCK: &str = "p3";
const QUEUE: &str = "fairlock:{p3}:q";
const FLOOR: &str = "p3-floor";
const FLOOR_QUEUE: &str = "p3-floor-queue";

/// This process's end of both.
pub struct Handover {
    worker: Worker,
    redis: MultiplexedConnection,
    publish: Script,
    bare: Bare,
    raws: Vec<Raw>,
    /// What the least client calls.
    least: Raw,
    lock: RwLock,
}

impl Handover {
    pub async fn new(env: &Env) -> Self {
        let client = connect(&env.server.url()).await;
        let mut worker = env.worker("handover").await;
        assert_eq!(worker.hear().await, "ready");
        let publish = Script::new("redis.call('SET', KEYS[1], ARGV[1]) return redis.call('PUBLISH', KEYS[1], ARGV[1])");
        let mut raws = Vec::new();
        for functions in Functions::ALL {
            raws.push(Raw::new(env.connection().await, functions).await.of(LOCK).await);
        }
        Self {
            worker,
            redis: env.connection().await,
            publish,
            bare: Bare::new(env.connection().await).of(LOCK).await,
            raws,
            least: Raw::new(env.connection().await, Functions::Shared)
                .await
                .of("p3-least")
                .await,
            lock: client.rw_lock(LOCK),
        }
    }

    /// Microseconds from the call of release until the guard is in hand in the other process, which is in the queue
    /// before.
    pub async fn lock(&mut self) -> f64 {
        let guard = self.lock.write().acquire_fair().await.expect("granted");
        self.worker.say("lock").await;
        self.until_queued(QUEUE).await;
        let released = clock::now();
        guard.release().await.expect("released");
        self.heard().await - released
    }

    /// Microseconds from the call of one EVALSHA that publishes until the push has arrived in the other process, which
    /// made itself known in the same way as a waiter.
    pub async fn floor(&mut self) -> f64 {
        self.worker.say("floor").await;
        self.until_queued(FLOOR_QUEUE).await;
        let called = clock::now();
        let mut call = self.publish.prepare_invoke();
        let call = call.key(FLOOR).arg("1760400000123456");
        let heard: i64 = call.invoke_async(&mut self.redis).await.expect("a reply");
        assert_eq!(heard, 1);
        let arrived = self.heard().await;
        self.redis.del(FLOOR_QUEUE).await.expect("a reply");
        arrived - called
    }

    /// The same, of a script that has the commands of a hand-over and no reasons for them.
    pub async fn bare(&mut self) -> f64 {
        self.bare.contend().await;
        self.worker.say("floor").await;
        self.until_queued(FLOOR_QUEUE).await;
        let called = clock::now();
        self.bare.hand_over(FLOOR).await;
        let arrived = self.heard().await;
        self.redis.del(FLOOR_QUEUE).await.expect("a reply");
        arrived - called
    }

    /// The same, of a script of ours or of the least one.
    pub async fn raw(&mut self, functions: usize) -> f64 {
        self.raws[functions].contend().await;
        self.worker.say("floor").await;
        self.until_queued(FLOOR_QUEUE).await;
        let called = clock::now();
        self.raws[functions].hand_over().await;
        let arrived = self.heard().await;
        self.redis.del(FLOOR_QUEUE).await.expect("a reply");
        self.raws[functions].leave().await;
        arrived - called
    }

    /// The same of the functions that share the state, until a task of the least client has the guard.
    pub async fn least_client(&mut self) -> f64 {
        self.least.contend().await;
        self.worker.say(&format!("least {}", self.least.number())).await;
        self.until_queued(FLOOR_QUEUE).await;
        let called = clock::now();
        timeout(PATIENCE, self.least.hand_over()).await.expect("a reply");
        let arrived = self.heard().await;
        self.redis.del(FLOOR_QUEUE).await.expect("a reply");
        self.least.leave().await;
        arrived - called
    }

    async fn until_queued(&mut self, queue: &str) {
        let begun = Instant::now();
        while self.redis.zcard(queue).await.expect("a reply") == 0 {
            assert!(begun.elapsed() < PATIENCE, "nobody came to {queue}");
        }
        // Time for the other process to read its reply and to sleep. Not a pause: this one shall be as awake for both.
        for _ in 0..3 {
            self.redis.zcard(queue).await.expect("a reply");
        }
    }

    async fn heard(&mut self) -> f64 {
        self.worker.hear().await.parse().expect("a time")
    }
}

/// The other process.
pub async fn worker(url: &str, line: &mut Line) {
    let client = connect(url).await;
    let lock = client.rw_lock(LOCK);
    let (sender, mut arrivals) = mpsc::unbounded_channel();
    let waits = LeastWaits::default();
    let (awaited, by_least_client) = (waits.clone(), Arc::new(AtomicBool::new(false)));
    let least_waits = Arc::clone(&by_least_client);
    let mut subscription = listening(url, move |push| {
        if push.kind != PushKind::Message {
            return;
        }
        if least_waits.load(Ordering::Relaxed) {
            return awaited.on_push(&push);
        }
        // Nobody listens when this process ends.
        let _ = sender.send(clock::now());
    })
    .await;
    for channel in [FLOOR.to_owned()].into_iter().chain(Functions::ALL.map(Raw::channel)) {
        subscription.subscribe(channel).await.expect("subscribed");
    }
    let mut redis = connection(url).await;
    line.say("ready").await;
    while let Some(job) = line.hear().await {
        let at = if job == "lock" {
            let guard = lock.write().acquire_fair().await.expect("granted");
            let at = clock::now();
            guard.release().await.expect("released");
            at
        } else if let Some(number) = job.strip_prefix("least ") {
            by_least_client.store(true, Ordering::Relaxed);
            let asked = async {
                redis.zadd(FLOOR_QUEUE, "waiter", 1).await.expect("a reply");
            };
            let guard = waits.wait(number.parse().expect("a number"), asked).await;
            let at = clock::now();
            drop(guard);
            by_least_client.store(false, Ordering::Relaxed);
            at
        } else {
            redis.zadd(FLOOR_QUEUE, "waiter", 1).await.expect("a reply");
            arrivals.recv().await.expect("a push")
        };
        line.say(&at.to_string()).await;
    }
}
