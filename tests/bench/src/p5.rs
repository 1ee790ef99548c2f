//! p5: what a contended grant costs in commands and in wake-ups. Counts, not times: MONITOR may slow the server down.

use crate::env::{Env, connect};
use crate::monitor::{self, Monitor};
use crate::report::{Goal, Report};
use fairlock::{Client, WriteGuard};
use fairlock_support::server::{Server, eventually};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

const TASKS: usize = 64;
const LOCK: &str = "p5";

pub async fn run(env: &Env, report: &mut Report) {
    // Of its own, so that all its commands are about this.
    let server = env.another_server().await;
    let client = connect(&server.url()).await;
    hot(&client, 2).await;
    let times = env.times(25);
    let mut counts = [const { Vec::new() }; 5];
    for _ in env.rounds("p5 commands and wake-ups") {
        let grants = (TASKS * times) as f64;
        let (commands, polls) = commands(&server, &client, times).await;
        let scripts = (commands.acquires + commands.releases) as f64 / grants;
        let woken = wakeups(&server, &client).await as f64 / TASKS as f64;
        let of_round = [
            scripts,
            commands.renewals as f64 / grants,
            commands.others as f64 / grants,
            polls as f64 / grants,
            woken,
        ];
        for (counts, count) in counts.iter_mut().zip(of_round) {
            counts.push(count);
        }
    }
    let [scripts, renewals, others, polls, woken] = &counts;
    report.row(
        "p5",
        "commands per contended grant, but for renewals",
        Goal::AtMost(2.0),
        scripts,
    );
    report.beside("p5_renewals", "per grant", renewals);
    report.beside("p5_others", "per grant: pings and the like", others);
    let title = "wake-ups per grant: polls of a waiter after it was queued";
    report.row("p5_wakeups", title, Goal::AtMost(1.0), woken);
    report.beside(
        "p5_polls",
        "of acquire's future per grant, the first and the reply's included",
        polls,
    );
}

/// All acquire and release so many times; says how often acquire's futures were polled.
async fn hot(client: &Client, times: usize) -> usize {
    let contender = |_| {
        let lock = client.rw_lock(LOCK);
        let polls = Arc::new(AtomicUsize::new(0));
        tokio::spawn(async move {
            for _ in 0..times {
                let guard = Counted::new(lock.write().acquire_fair(), &polls)
                    .await
                    .expect("granted");
                guard.release().await.expect("released");
            }
            polls.load(Ordering::Relaxed)
        })
    };
    let running: Vec<_> = (0..TASKS).map(contender).collect();
    let mut polls = 0;
    for task in running {
        polls += task.await.expect("a contender");
    }
    polls
}

/// What the server was sent meanwhile, and how often acquire's futures were polled.
async fn commands(server: &Server, client: &Client, times: usize) -> (Commands, usize) {
    let mut monitor = Monitor::start(server).await;
    let before = server.calls("fcall").await;
    let polls = hot(client, times).await;
    let after = server.calls("fcall").await;
    let mut commands = Commands::default();
    for line in monitor.until_now(server).await {
        commands.count(&line);
    }
    let scripts = commands.acquires + commands.releases + commands.renewals;
    assert_eq!(scripts as u64, after - before, "MONITOR and INFO count the same");
    (commands, polls)
}

/// How often the futures of waiters are polled from when all of them are queued and at rest until each has its guard.
/// A waiter that is woken by nothing but its grant is polled once.
async fn wakeups(server: &Server, client: &Client) -> usize {
    let lock = client.rw_lock(LOCK);
    let polls = Arc::new(AtomicUsize::new(0));
    let guard = lock.write().acquire_fair().await.expect("granted");
    let waiter = |_| {
        let acquire = lock.write().acquire_fair();
        let polls = Arc::clone(&polls);
        tokio::spawn(async move {
            let guard: WriteGuard = Counted::new(acquire, &polls).await.expect("granted");
            guard.release().await.expect("released");
        })
    };
    let waiters: Vec<_> = (0..TASKS).map(waiter).collect();
    server.until_queued(LOCK, TASKS).await;
    // Their replies are read before that of a later call, and what they woke runs soon.
    let fence = client.rw_lock("p5-fence");
    fence
        .write()
        .acquire_fair()
        .await
        .expect("granted")
        .release()
        .await
        .expect("released");
    eventually("the waiters are at rest", async || {
        let before = polls.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
        before == polls.load(Ordering::Relaxed)
    })
    .await;
    let before = polls.load(Ordering::Relaxed);
    guard.release().await.expect("released");
    for waiter in waiters {
        waiter.await.expect("a waiter");
    }
    polls.load(Ordering::Relaxed) - before
}

/// A future whose polls are counted.
struct Counted<'a, F> {
    future: Pin<Box<F>>,
    polls: &'a AtomicUsize,
}

impl<'a, F> Counted<'a, F> {
    fn new(future: F, polls: &'a AtomicUsize) -> Self {
        Self {
            future: Box::pin(future),
            polls,
        }
    }
}

impl<F: Future> Future for Counted<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.future.as_mut().poll(cx)
    }
}

#[derive(Debug, Default, PartialEq)]
struct Commands {
    acquires: usize,
    releases: usize,
    renewals: usize,
    others: usize,
}

impl Commands {
    /// A line of MONITOR.
    fn count(&mut self, line: &str) {
        let Some(arguments) = monitor::command(line) else {
            return;
        };
        let command = arguments[0].to_lowercase();
        let function = arguments.get(1).filter(|_| command == "fcall");
        match function.and_then(|name| name.rsplit('_').next()) {
            Some("acquire") => self.acquires += 1,
            Some("release") => self.releases += 1,
            Some("renew") => self.renewals += 1,
            // The bench's own.
            None if ["info", "echo", "hello", "client"].contains(&command.as_str()) => {}
            _ => self.others += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_monitor_are_told_apart() {
        let call = |function: &str, arguments: &str| {
            format!(r#"+1.5 [0 127.0.0.1:9] "FCALL" "fairlock_0f_{function}" "3" "k" "q" "l" "" {arguments}"#)
        };
        let mut commands = Commands::default();
        commands.count(&call("acquire", r#""wabc:1" "10000""#));
        commands.count(&call("release", r#""wabc:1""#));
        commands.count(&call("renew", r#""wabc:1" "10000""#));
        commands.count(&call("release", r#""wabc:1" "wabc:2""#));
        commands.count(r#"+1.5 [0 lua] "HGET" "k" "s""#);
        commands.count(r#"+1.5 [0 127.0.0.1:9] "PING""#);
        commands.count(r#"+1.5 [0 127.0.0.1:9] "info" "commandstats""#);
        let expected = Commands {
            acquires: 1,
            releases: 2,
            renewals: 1,
            others: 1,
        };
        assert_eq!(commands, expected);
    }
}
