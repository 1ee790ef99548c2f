//! instructions: what an operation costs in instructions, user space only, in the server and in the client's process. The
//! counts do not swing with the machine, so a change of some percent is seen in one run, and the figures of two commits can
//! be compared.
//!
//! What is sent comes from the client of this tree. A renewal cannot be asked for, so its command is read from MONITOR and
//! sent again: nothing here knows the arguments of the scripts.

use crate::counter::{Counter, Method};
use crate::env::{Env, connect, connection, listening};
use crate::monitor::{self, Monitor};
use crate::p1::Plain;
use crate::report::Report;
use crate::{instructions_client, instructions_floor, kinds};
use fairlock::{Client, ReadGuard, WriteGuard};
use fairlock_support::server::{PATIENCE, Server, eventually};
use redis::aio::MultiplexedConnection;
use redis::{AsyncTypedCommands, Cmd, Script};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Few will do, because they differ by about 1 %.
pub const ROUNDS: usize = 5;

pub const READERS: usize = 1000;
const WAITERS: usize = 100;
/// No renewal comes while it is measured.
const LONG: Duration = Duration::from_secs(3600);
/// The client renews at a third, and no window is that long: its calls may take a second each, in a server that is 50 times
/// slower on a machine that is busy.
const RENEWED: Duration = Duration::from_secs(45);
/// How often a window is measured again into which other calls came.
const TRIES: usize = 5;

pub async fn run(env: &Env, report: &mut Report) {
    let Some(method) = Method::find().await else {
        eprintln!("instructions: not measured. perf cannot count here, and valgrind is not installed");
        return;
    };
    let mut server = Counted::start(env, method).await;
    let mut rows = Rows::default();
    // Before any client renews.
    instructions_floor::measure(&mut server, env, &mut Rows::default()).await;
    for _ in env.some_rounds(&format!("floors of the server, by {}", method.name()), ROUNDS) {
        instructions_floor::measure(&mut server, env, &mut rows).await;
    }
    let waits = Renewals::prepare(&server).await;
    // Not counted: the memory of a new server and of its Lua still grows, which changes the figures by up to a fifth.
    Rows::default().round(&mut server, env, &waits).await;
    for _ in env.some_rounds(&format!("instructions of the server, by {}", method.name()), ROUNDS) {
        rows.round(&mut server, env, &waits).await;
    }
    for (key, what, values) in &rows.0 {
        let unit = format!("thousand instructions of the server ({}): {what}", method.name());
        report.beside(&format!("instructions_{key}"), &unit, values);
    }
    instructions_client::run(env, method, report).await;
}

/// What was measured in each round: key, what it is, thousands of instructions.
#[derive(Default)]
pub struct Rows(Vec<(&'static str, &'static str, Vec<f64>)>);

impl Rows {
    pub fn add(&mut self, key: &'static str, what: &'static str, value: f64) {
        match self.0.iter_mut().find(|(of, ..)| *of == key) {
            Some((.., values)) => values.push(value),
            None => self.0.push((key, what, vec![value])),
        }
    }

    async fn round(&mut self, server: &mut Counted, env: &Env, waits: &Renewals) {
        self.floors(server, env).await;
        self.grants(server, env).await;
        waits.measure(server, env, self).await;
        kinds::instructions(server, env, self).await;
    }

    /// The least that comparable commands cost.
    async fn floors(&mut self, server: &mut Counted, env: &Env) {
        let url = server.server.url();
        let mut plain = Plain::new(connection(&url).await, "instructions-plain");
        plain.cycle().await;
        let cost = server.each(env.times(1000), 1, async |n| {
            for _ in 0..n {
                plain.cycle().await;
            }
        });
        self.add("floor_set", "SET NX PX + checked DEL by a script", cost.await);

        let mut redis = connection(&url).await;
        let empty = Script::new("#!lua\nreturn 1");
        let mut call = empty.prepare_invoke();
        let call = call.key("instructions-a").key("instructions-b").key("instructions-c");
        let _: i64 = call.invoke_async(&mut redis).await.expect("a reply");
        let cost = server.each(env.times(1000), 2, async |n| {
            for _ in 0..2 * n {
                let _: i64 = call.invoke_async(&mut redis).await.expect("a reply");
            }
        });
        self.add("floor_two_scripts", "two empty scripts with 3 KEYS", cost.await);

        let (heard, mut pushes) = mpsc::unbounded_channel();
        let mut subscription = listening(&url, move |push| drop(heard.send(push.kind))).await;
        subscription
            .subscribe("instructions-publish")
            .await
            .expect("subscribed");
        let publish = Script::new("#!lua\nreturn redis.call('PUBLISH', KEYS[1], ARGV[1])");
        let mut call = publish.prepare_invoke();
        let call = call.key("instructions-publish").arg("1760400000123456");
        let _: i64 = call.invoke_async(&mut redis).await.expect("a reply");
        let cost = server.each(env.times(1000), 1, async |n| {
            for _ in 0..n {
                let reached: i64 = call.invoke_async(&mut redis).await.expect("a reply");
                assert_eq!(reached, 1);
                pushes.recv().await.expect("a push");
            }
        });
        self.add("floor_publish", "one script that publishes to one client", cost.await);
    }

    async fn grants(&mut self, server: &mut Counted, env: &Env) {
        let [a, b] = [connect(&server.server.url()).await, connect(&server.server.url()).await];
        // The server is to know the scripts: the first call of one is sent twice.
        hand_over(&mut server.redis, [&a, &b], 2).await;
        let lock = a.rw_lock("instructions-cycle");
        let cost = server.each(env.times(400), 2, async |n| {
            for _ in 0..n {
                let guard = lock.write().lease(LONG).acquire_fair().await.expect("granted");
                guard.release().await.expect("released");
            }
        });
        self.add("cycle", "acquire + release of a free write lock", cost.await);

        let mut redis = server.redis.clone();
        let look = server.each(env.times(1000), 0, async |n| {
            for _ in 0..n {
                redis.zcard(queue(HANDED)).await.expect("a reply");
            }
        });
        let look = look.await;
        let (n, mut looks) = (env.times(200), 0);
        let cost = server.each(n, 2, async |n| looks = hand_over(&mut redis, [&a, &b], n).await);
        let cost = cost.await - look * looks as f64 / n as f64;
        self.add(
            "hand_over",
            "the acquire that queues + the release that hands over",
            cost,
        );

        let mut release = None;
        for _ in 0..TRIES {
            release = crowd(server, &a, &b).await;
            if release.is_some() {
                break;
            }
        }
        let crowd = release.expect("nothing but the release was executed") / READERS as f64;
        self.add(
            "crowd",
            "of a release that lets 1,000 readers in, for each of them",
            crowd,
        );
    }
}

const HANDED: &str = "instructions-handed";

fn queue(lock: &str) -> String {
    format!("fairlock:{{{lock}}}:q")
}

/// Two writers take turns, and each is queued before the other releases: `n` grants by hand-over. The first acquire and the
/// last release come on top, also for `n` = 0. Returns how often this has looked at the queue.
async fn hand_over(redis: &mut MultiplexedConnection, clients: [&Client; 2], n: usize) -> usize {
    let locks = clients.map(|client| client.rw_lock(HANDED));
    let acquire = |turn: usize| locks[turn % 2].write().lease(LONG).acquire_fair();
    let mut looks = 0;
    let mut held: WriteGuard = acquire(0).await.expect("granted");
    for turn in 1..=n {
        let waiter = tokio::spawn(acquire(turn));
        loop {
            // Mostly long enough for the server, so that one look will do.
            tokio::time::sleep(Duration::from_millis(5)).await;
            looks += 1;
            if redis.zcard(queue(HANDED)).await.expect("a reply") > 0 {
                break;
            }
        }
        held.release().await.expect("released");
        held = waiter.await.expect("the waiter").expect("granted");
    }
    held.release().await.expect("released");
    looks
}

/// Thousands of instructions of one release behind which 1,000 readers wait.
/// `None`: something else was executed meanwhile.
async fn crowd(server: &mut Counted, writer: &Client, readers: &Client) -> Option<f64> {
    const LOCK: &str = "instructions-crowd";
    let guard = writer
        .rw_lock(LOCK)
        .write()
        .lease(LONG)
        .acquire_fair()
        .await
        .expect("granted");
    let (entered, mut inside) = mpsc::unbounded_channel::<ReadGuard>();
    let mut waiting = JoinSet::new();
    for _ in 0..READERS {
        let acquire = readers.rw_lock(LOCK).read().lease(LONG).acquire_fair();
        let entered = entered.clone();
        waiting.spawn(async move { entered.send(acquire.await.expect("granted")).expect("somebody counts") });
    }
    server.server.until_queued(LOCK, READERS).await;
    // Answered after all that the client sent before: so its waiters know that they wait. A thousand scripts before it may
    // take longer than a call may.
    let lock = readers.rw_lock(LOCK);
    eventually("the server has caught up", async || lock.status().await.is_ok()).await;
    let mut guards = Vec::new();
    let (count, executed) = server
        .window(async || {
            guard.release().await.expect("released");
            while guards.len() < READERS {
                guards.push(inside.recv().await.expect("a reader"));
            }
        })
        .await;
    for guard in guards {
        guard.release().await.expect("released");
    }
    (executed == 1).then_some(count / 1e3)
}

/// A client that holds one lock and waits for another one a hundred times; and its renewals of both.
struct Renewals {
    calls: [(&'static str, &'static str, Cmd, usize); 2],
    // Dropped with this, they end the hold and the waiting.
    _held: [WriteGuard; 2],
    _waiters: JoinSet<()>,
}

impl Renewals {
    async fn prepare(server: &Counted) -> Self {
        const HELD: &str = "instructions-held";
        const WAITED: &str = "instructions-waited";
        let url = server.server.url();
        let [client, holder] = [connect(&url).await, connect(&url).await];
        let others = holder.rw_lock(WAITED).write().lease(LONG).acquire_fair();
        let others = others.await.expect("granted");
        let own = client.rw_lock(HELD).write().lease(RENEWED).acquire_fair();
        let own = own.await.expect("granted");
        let mut waiters = JoinSet::new();
        for _ in 0..WAITERS {
            let acquire = client.rw_lock(WAITED).write().lease(RENEWED).acquire_fair();
            waiters.spawn(async move { drop(acquire.await.expect("the lock is never free")) });
        }
        server.server.until_queued(WAITED, WAITERS).await;

        let mut monitor = Monitor::start(&server.server).await;
        let mut seen = Vec::new();
        let begun = Instant::now();
        let calls = loop {
            assert!(begun.elapsed() < PATIENCE, "the client renews: {seen:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
            seen.extend(monitor.until_now(&server.server).await);
            if let (Some(one), Some(all)) = (renewal(&seen, HELD, 1), renewal(&seen, WAITED, WAITERS)) {
                break [
                    ("renewal", "renewal of one hold", one, 1),
                    (
                        "renewal_waiter",
                        "renewal of 100 waiters in one call, for each",
                        all,
                        WAITERS,
                    ),
                ];
            }
        };
        monitor.end(&server.server).await;
        Self {
            calls,
            _held: [others, own],
            _waiters: waiters,
        }
    }

    async fn measure(&self, server: &mut Counted, env: &Env, rows: &mut Rows) {
        let mut redis = server.redis.clone();
        for (key, what, call, requests) in &self.calls {
            let replies = async |n| {
                for _ in 0..n {
                    let reply: Vec<i64> = call.query_async(&mut redis).await.expect("a reply");
                    assert!(reply.len() >= *requests, "each stands somehow: {reply:?}");
                }
            };
            let cost = server
                .each(env.times(400).div_ceil(*requests).max(10), 1, replies)
                .await;
            rows.add(key, what, cost / *requests as f64);
        }
    }
}

/// The first call for a lock that names at least so many requests.
fn renewal(lines: &[String], lock: &str, requests: usize) -> Option<Cmd> {
    let of_lock = lines.iter().filter(|line| line.contains(&format!("{{{lock}}}")));
    let mut calls = of_lock.filter_map(|line| monitor::command(line));
    let call = calls.find(|arguments| arguments[0].eq_ignore_ascii_case("FCALL") && arguments.len() > requests)?;
    assert!(
        !call.iter().any(|text| text.contains('\\')),
        "MONITOR has escaped some: {call:?}"
    );
    let mut cmd = Cmd::new();
    cmd.arg(call);
    Some(cmd)
}

/// A server whose instructions are counted.
pub struct Counted {
    pub server: Server,
    counter: Counter,
    redis: MultiplexedConnection,
}

impl Counted {
    async fn start(env: &Env, method: Method) -> Self {
        let mut counter = Counter::new(method);
        // Less that the server does by the clock.
        let args = ["--hz", "1", "--dynamic-hz", "no", "--activerehashing", "no"];
        let server = Server::start_program(&counter.program(&env.program), &args).await;
        let mut redis = connection(&server.url()).await;
        counter.attach(crate::lua::info(&mut redis, "process_id").await as u32);
        Self { server, counter, redis }
    }

    /// Thousands of instructions of one of `n` operations, which are so many scripts each: the difference of `n` of them
    /// and none.
    pub async fn each(&mut self, n: usize, scripts: u64, mut work: impl AsyncFnMut(usize)) -> f64 {
        let mut others = Vec::new();
        for _ in 0..TRIES {
            let (nothing, executed) = self.window(async || work(0).await).await;
            let (count, executed_then) = self.window(async || work(n).await).await;
            if executed_then - executed == scripts * n as u64 {
                return (count - nothing) / n as f64 / 1e3;
            }
            // A client has renewed meanwhile, or has sent something twice.
            others.push([executed, executed_then]);
        }
        panic!("{n} operations of {scripts} scripts, but the server executed {others:?}");
    }

    /// The instructions, and the scripts that were executed.
    pub async fn window(&mut self, work: impl AsyncFnOnce()) -> (f64, u64) {
        let before = self.server.script_calls().await;
        let (count, ()) = self.counter.window(work).await;
        (count, self.server.script_calls().await - before)
    }
}
