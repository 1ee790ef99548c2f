//! p10: what a process pays for keeping what it has, holds and places in queues.

use crate::clock;
use crate::env::{Env, connect, connection};
use crate::lua::{Lua, Spent};
use crate::report::{Goal, Report};
use fairlock::{Client, WriteGuard};
use fairlock_support::server::Server;
use futures::stream::{self, StreamExt};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

const LEASE: Duration = Duration::from_secs(12);
/// Renewals come at a third of the lease.
const INTERVAL: Duration = Duration::from_secs(4);
/// Of those who only hold what others wait for: no renewal of theirs comes while it is measured.
const LONG: Duration = Duration::from_secs(3600);

pub async fn run(env: &Env, report: &mut Report) {
    let intervals = if env.quick { 1 } else { 3 };
    let cost = of_holds(env, 1000, intervals).await;
    cost.report(report, "p10_holds");
    let holds = cost.per_lock;
    let cost = of_waits(env, 10_000, 1000, intervals).await;
    cost.report(report, "p10_waits");
    let waits = cost.per_lock;
    let one_lock = of_waits(env, 10_000, 1, intervals).await;
    // Of each interval the worse of the two.
    let worse: Vec<f64> = holds.iter().zip(&waits).map(|(a, b)| a.max(*b)).collect();
    let title = "renewal commands per lock and interval: 1,000 holds; 10,000 waits for 1,000 locks";
    report.row("p10", title, Goal::AtMost(1.0), &worse);
    let title = "the same for 10,000 waits for one lock, 500 a command";
    report.row("p10_one_lock", title, Goal::AtMost(1.0), &one_lock.per_lock);
    one_lock.report(report, "p10_one_lock");
}

/// A number for each interval.
struct Cost {
    per_lock: Vec<f64>,
    per_second: Vec<f64>,
    /// Of one core, in percent.
    server: Vec<f64>,
    client: Vec<f64>,
}

impl Cost {
    /// Of what was asked for since `since`.
    async fn measure(server: &Server, what: &str, since: Instant, locks: usize, intervals: usize) -> Self {
        let mut redis = connection(&server.url()).await;
        let mut cost = Self {
            per_lock: Vec::new(),
            per_second: Vec::new(),
            server: Vec::new(),
            client: Vec::new(),
        };
        // What was asked for together is renewed together: from the middle of the silence between to the next.
        let begun = Instant::now() + INTERVAL.saturating_sub(since.elapsed()) / 2;
        sleep_until(begun).await;
        let (mut before, mut then, mut cpu) = (Spent::so_far(&mut redis).await, clock::now(), cpu_us());
        for n in 1..=intervals {
            eprintln!("p10 renewals of {what}: interval {n}/{intervals}");
            sleep_until(begun + INTERVAL * n as u32).await;
            let (spent, now, cpu_now) = (Spent::so_far(&mut redis).await, clock::now(), cpu_us());
            let (part, us) = (spent.since(before), now - then);
            cost.per_lock.push(part.calls / locks as f64);
            cost.per_second.push(part.calls / us * 1e6);
            cost.server.push(part.us / us * 100.0);
            cost.client.push((cpu_now - cpu) / us * 100.0);
            (before, then, cpu) = (spent, now, cpu_now);
        }
        cost
    }

    fn report(&self, report: &mut Report, key: &str) {
        report.beside(&format!("{key}_per_s"), "renewal commands per second", &self.per_second);
        report.beside(
            &format!("{key}_server"),
            "% of a core in the server's scripts",
            &self.server,
        );
        report.beside(
            &format!("{key}_client"),
            "% of a core in the client's process",
            &self.client,
        );
    }
}

/// It knows the scripts: the first calls of one are sent twice.
async fn another_server(env: &Env) -> Server {
    let server = env.another_server().await;
    Lua::new(&server.url()).await;
    server
}

async fn of_holds(env: &Env, locks: usize, intervals: usize) -> Cost {
    let server = another_server(env).await;
    let client = connect(&server.url()).await;
    let since = Instant::now();
    let guards = hold(&client, locks, LEASE).await;
    let cost = Cost::measure(&server, &format!("{locks} holds"), since, locks, intervals).await;
    assert!(
        guards.iter().all(WriteGuard::is_held),
        "a hold was lost: the machine is too busy"
    );
    cost
}

async fn of_waits(env: &Env, waits: usize, locks: usize, intervals: usize) -> Cost {
    let server = another_server(env).await;
    let (holder, client) = (connect(&server.url()).await, connect(&server.url()).await);
    let guards = hold(&holder, locks, LONG).await;
    let since = Instant::now();
    let mut waiters = JoinSet::new();
    for n in 0..waits {
        let acquire = client.rw_lock(name(n % locks)).write().lease(LEASE).acquire_fair();
        waiters.spawn(async move { drop(acquire.await.expect("the locks are never free")) });
    }
    for n in 0..locks {
        server.until_queued(&name(n), waits / locks).await;
    }
    let cost = Cost::measure(
        &server,
        &format!("{waits} waits for {locks} locks"),
        since,
        locks,
        intervals,
    )
    .await;
    assert!(waiters.try_join_next().is_none(), "nobody has entered");
    waiters.shutdown().await;
    drop(guards);
    cost
}

fn name(n: usize) -> String {
    format!("p10-{n}")
}

async fn hold(client: &Client, locks: usize, lease: Duration) -> Vec<WriteGuard> {
    let acquire = |n| client.rw_lock(name(n)).write().lease(lease).acquire_fair();
    let guards: Vec<_> = stream::iter(0..locks).map(acquire).buffer_unordered(64).collect().await;
    guards.into_iter().map(|guard| guard.expect("granted")).collect()
}

/// What this process has had of the cores.
fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}
