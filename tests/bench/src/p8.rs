//! p8: a writer leaves, and the 1,000 readers behind it are all in.

use crate::clock;
use crate::crowd::Crowd;
use crate::env::{Env, connect, connection, listening};
use crate::least_client::LeastCrowd;
use crate::lua::{Lua, Spent};
use crate::report::{Goal, Report, median};
use fairlock::Client;
use fairlock_support::server::Server;
use redis::aio::MultiplexedConnection;
use redis::{PushKind, Script};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

const READERS: usize = 1000;
/// Renewals would be scripts too.
const LEASE: Duration = Duration::from_secs(600);

pub async fn run(env: &Env, report: &mut Report) {
    let server = env.another_server().await;
    // It is to know the scripts: the first call of one is sent twice.
    Lua::new(&server.url()).await;
    let writer = connect(&server.url()).await;
    let mut crowds = Vec::new();
    for (clients, key) in [(1, "p8"), (10, "p8_clients")] {
        let mut of = Vec::new();
        for _ in 0..clients {
            of.push(connect(&server.url()).await);
        }
        crowds.push((key, of, Vec::new(), Vec::new(), Vec::new()));
    }
    let mut redis = connection(&server.url()).await;
    let mut push = Push::new(&server).await;
    let (mut floors, mut scripts) = (Vec::new(), Vec::new());
    let (mut wakes, mut least) = (Vec::new(), Vec::new());
    let mut least_crowd = LeastCrowd::new(&server).await;
    let mut least_clients = Vec::new();
    for _ in env.rounds("p8 1,000 readers behind a writer") {
        let mut floor = Vec::new();
        for (_, readers, times, server_us, _) in &mut crowds {
            for _ in 0..env.times(100) {
                floor.push(push.once(&mut redis).await);
            }
            let (mut took, mut spent_us) = (Vec::new(), Vec::new());
            for _ in 0..env.times(5) {
                let (us, spent) = enter_all(&server, &writer, readers, &mut redis).await;
                took.push(us);
                spent_us.push(spent.us);
                scripts.push(spent.calls);
            }
            times.push(median(&took));
            server_us.push(median(&spent_us));
        }
        let floor = median(&floor);
        let mut least_us = Vec::new();
        for _ in 0..env.times(5) {
            least_us.push(least_crowd.enter_all(&server, READERS as u64).await);
        }
        least_clients.push(median(&least_us) / floor);
        for (_, _, times, _, ratios) in &mut crowds {
            ratios.push(times.last().expect("just measured") / floor);
        }
        let wake = median(&[wake_all().await, wake_all().await, wake_all().await]);
        least.push((crowds[0].3.last().expect("just measured") + wake) / floor);
        wakes.push(wake);
        floors.push(floor);
    }
    let (_, _, times, server_us, ratios) = &crowds[0];
    let title = "release until the last of 1,000 readers is in / one push";
    report.row("p8", title, Goal::AtMost(25.0), ratios);
    let title = "scripts until the last of 1,000 readers is in";
    report.row("p8_scripts", title, Goal::AtMost(1.0), &scripts);
    report.beside("p8_floor", "us: EVALSHA that publishes until the push", &floors);
    report.beside("p8_us", "us", times);
    report.beside("p8_server_us", "us of that in the server's script", server_us);
    report.beside("p8_wake_us", "us: to wake 1,000 tasks, which do nothing", &wakes);
    report.beside("p8_least", "the two together / one push", &least);
    report.beside(
        "p8_least_client",
        "our functions, and the least client whose 1,000 readers enter / one push",
        &least_clients,
    );
    let (key, _, times, server_us, ratios) = &crowds[1];
    report.beside(key, "the readers are of 10 clients", ratios);
    report.beside("p8_clients_us", "us", times);
    report.beside("p8_clients_server_us", "us of that in the server's script", server_us);
}

/// Microseconds from the release until the last has its guard, and the scripts that ran.
async fn enter_all(server: &Server, a: &Client, b: &[Client], redis: &mut MultiplexedConnection) -> (f64, Spent) {
    const LOCK: &str = "p8";
    let guard = a
        .rw_lock(LOCK)
        .write()
        .lease(LEASE)
        .acquire_fair()
        .await
        .expect("granted");
    let (mut crowd, member) = Crowd::new();
    let mut readers = JoinSet::new();
    for n in 0..READERS {
        let acquire = b[n % b.len()].rw_lock(LOCK).read().lease(LEASE).acquire_fair();
        let member = member.clone();
        readers.spawn(async move {
            let guard = acquire.await.expect("granted");
            member.stay().await;
            guard.release().await.expect("released");
        });
    }
    server.until_queued(LOCK, READERS).await;
    for client in b {
        // Answered after all that the client sent before: so its waiters know that they wait.
        client.rw_lock(LOCK).status().await.expect("a status");
    }
    let before = Spent::so_far(redis).await;
    let released = clock::now();
    guard.release().await.expect("released");
    let last = crowd.last(READERS).await;
    let spent = Spent::so_far(redis).await.since(before);
    crowd.leave();
    while let Some(reader) = readers.join_next().await {
        reader.expect("a reader");
    }
    (last - released, spent)
}

/// What the client cannot do without: microseconds until as many tasks of a runtime have been woken and have looked at
/// the clock.
async fn wake_all() -> f64 {
    let (mut crowd, member) = Crowd::new();
    let mut wakers = Vec::new();
    for _ in 0..READERS {
        let (waker, wakes) = oneshot::channel::<()>();
        let member = member.clone();
        tokio::spawn(async move {
            wakes.await.expect("woken");
            member.stay().await;
        });
        wakers.push(waker);
    }
    // All have been polled once: they are in the runtime's queues before this task is.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    // As the connection's task does.
    let waking = tokio::spawn(async move {
        let begun = clock::now();
        for waker in wakers {
            waker.send(()).expect("a task waits");
        }
        begun
    });
    let last = crowd.last(READERS).await;
    crowd.leave();
    last - waking.await.expect("it ended")
}

/// The floor: a script that writes and publishes, until what it published arrives on another connection.
struct Push {
    arrived: mpsc::UnboundedReceiver<f64>,
    script: Script,
    _connection: MultiplexedConnection,
}

impl Push {
    async fn new(server: &Server) -> Self {
        let (sender, arrived) = mpsc::unbounded_channel();
        let mut connection = listening(&server.url(), move |push| {
            if push.kind == PushKind::Message {
                // Nobody waits for it any more when the row is over.
                let _ = sender.send(clock::now());
            }
        })
        .await;
        connection.subscribe("floor").await.expect("subscribed");
        let script = Script::new("redis.call('SET', KEYS[1], ARGV[1]) return redis.call('PUBLISH', 'floor', ARGV[1])");
        Self {
            arrived,
            script,
            _connection: connection,
        }
    }

    async fn once(&mut self, redis: &mut MultiplexedConnection) -> f64 {
        let begun = clock::now();
        let mut call = self.script.prepare_invoke();
        let call = call.key("floor").arg("1760400000123456");
        let (heard, arrived) = tokio::join!(call.invoke_async::<i64>(redis), self.arrived.recv());
        assert_eq!(heard.expect("a reply"), 1);
        arrived.expect("a push") - begun
    }
}
