//! p7: what 64 contenders get: how long they wait, in which order they enter, and how often.

use crate::contend::{Contended, Load, Passes, contend, handles, jain};
use crate::env::{Env, connect, listening};
use crate::peers::{Held, Kind, Locks, Mutex};
use crate::report::{Goal, Report, quantiles};
use redis::{PushKind, Value};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::mpsc;

pub const TASKS: usize = 64;
const HOLD: Duration = Duration::from_millis(1);

/// Of one lock, a number for each round.
#[derive(Default)]
struct Fairness {
    longest: Vec<f64>,
    jain: Vec<f64>,
    passed: Vec<f64>,
    mean_ms: Vec<f64>,
    waits: Vec<f64>,
}

impl Fairness {
    fn add(&mut self, passes: &Passes) {
        let waits = passes.waits();
        let mean = waits.iter().sum::<f64>() / waits.len() as f64;
        self.longest.push(waits.iter().copied().fold(0.0, f64::max) / mean);
        self.jain.push(jain(&passes.grants()));
        self.passed.push(passes.passed_by());
        self.mean_ms.push(mean / 1e3);
        self.waits.extend(waits.iter().map(|wait| wait / 1e3));
    }

    fn report(&self, report: &mut Report, key: &str) {
        report.beside(&format!("{key}_mean"), "ms: mean wait", &self.mean_ms);
        report.beside(
            &format!("{key}_passed"),
            "earlier callers passed per grant",
            &self.passed,
        );
        report.samples(&format!("{key}_waits"), quantiles(&self.waits, 200));
    }
}

pub async fn run(env: &Env, report: &mut Report) {
    let load = Load {
        time: Duration::from_millis(2000),
        hold: HOLD,
        reads: 0.0,
    };
    let busy = Load {
        time: load.time / 2,
        hold: Duration::ZERO,
        ..load
    };
    let mut all = Vec::new();
    for kind in Kind::ALL {
        all.push((kind, Locks::connect(kind, &env.server.url()).await, Fairness::default()));
    }
    let client = connect(&env.server.url()).await;
    let (mut no_hold, mut inversions) = (Fairness::default(), Vec::new());
    for _ in env.some_rounds("p7 64 contenders", 5) {
        for (kind, locks, fairness) in &mut all {
            // A type of key for each.
            let name = format!("p7-{}", kind.name());
            let contenders = (0..TASKS).map(|_| locks.mutex(&name)).collect();
            // Ours in full also when the others are only looked at: a few turns say nothing of who gets how many.
            let time = match kind {
                Kind::Fairlock => load.time,
                _ => Duration::from_millis(env.times(2000) as u64),
            };
            fairness.add(&contend(contenders, Load { time, ..load }).await);
        }
        no_hold.add(&contend(handles(&client, "p7", TASKS), busy).await);
        inversions.push(count_inversions(env, busy).await);
    }
    let ours = &all[0].2;
    let title = "64 contenders, 1 ms hold: longest wait / mean wait";
    report.row("p7", title, Goal::AtMost(2.0), &ours.longest);
    let title = "grants out of the order of tickets (no hold, by the server's events)";
    report.row("p7_inversions", title, Goal::AtMost(0.0), &inversions);
    let title = "Jain index of grants per contender";
    report.row("p7_jain", title, Goal::AtLeast(0.99), &ours.jain);
    ours.report(report, "p7");
    report.beside(
        "p7_no_hold",
        "longest wait / mean wait without a hold",
        &no_hold.longest,
    );
    report.beside("p7_no_hold_jain", "Jain index without a hold", &no_hold.jain);
    no_hold.report(report, "p7_no_hold");
    for (kind, _, fairness) in &all[1..] {
        let key = format!("p7_peer_{}", kind.name());
        report.beside(&key, "longest wait / mean wait", &fairness.longest);
        report.beside(&format!("{key}_jain"), "Jain index", &fairness.jain);
        fairness.report(report, &key);
    }
}

impl Contended for Mutex {
    type Guard = Held;

    async fn enter(&self, _write: bool) -> Held {
        self.acquire().await
    }

    async fn leave(held: Held) {
        held.release().await;
    }
}

/// The contenders are of four clients, and the server says in which order they queued and entered.
async fn count_inversions(env: &Env, load: Load) -> f64 {
    let lock = "p7-order";
    let server = env.another_server().await;
    let (sender, mut messages) = mpsc::unbounded_channel();
    let mut connection = listening(&server.url(), move |push| {
        if let (PushKind::Message, Some(Value::BulkString(text))) = (push.kind, push.data.last()) {
            // Nobody reads it any more when the row is over.
            drop(sender.send(String::from_utf8_lossy(text).into_owned()));
        }
    })
    .await;
    connection
        .subscribe(format!("fairlock:{{{lock}}}:events"))
        .await
        .expect("subscribed");
    // Its stream is not read: it would drop what comes too fast. It makes the clients publish, those that connect later
    // from the first script on.
    let listener = connect(&server.url()).await;
    let events = listener.rw_lock(lock).events().await.expect("events");
    let known = async || {
        let listeners: usize = redis::cmd("ZCARD")
            .arg("fairlock:listen")
            .query_async(&mut connection.clone())
            .await
            .expect("a reply");
        listeners > 0
    };
    fairlock_support::server::eventually("the listener is announced", known).await;
    let mut locks = Vec::new();
    for _ in 0..4 {
        let client = connect(&server.url()).await;
        locks.extend(handles(&client, lock, TASKS / 4));
    }
    let passes = contend(locks, load).await;
    let mut order = Order::default();
    while order.granted < passes.all.len() {
        order.hear(&messages.recv().await.expect("all grants are published"));
    }
    drop(events);
    order.inversions as f64
}

/// Who waits, in the order of their tickets.
#[derive(Default)]
struct Order {
    waiting: VecDeque<String>,
    granted: usize,
    inversions: usize,
}

impl Order {
    /// The events of one script.
    fn hear(&mut self, message: &str) {
        for event in message.lines().skip(1) {
            let mut words = event.split(' ');
            let (what, request) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let place = self.waiting.iter().position(|waiting| waiting == request);
            match what {
                "queued" => self.waiting.push_back(request.to_owned()),
                "granted" => {
                    self.granted += 1;
                    // Who enters without having queued passes everybody.
                    let passed = place.unwrap_or(self.waiting.len());
                    self.inversions += usize::from(passed > 0);
                }
                "released" => {}
                other => panic!("{other} in {message:?}: the machine is too busy for this lease"),
            }
            if what == "granted"
                && let Some(place) = place
            {
                self.waiting.remove(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_passes_others_counts_once() {
        let mut order = Order::default();
        order.hear("1\ngranted a 5");
        order.hear("2\nqueued b 0");
        order.hear("3\nqueued c 0");
        order.hear("4\nreleased a 0\ngranted b 6");
        assert_eq!((order.granted, order.inversions), (2, 0));
        order.hear("5\nqueued d 0");
        order.hear("6\nreleased b 0\ngranted d 7");
        assert_eq!((order.granted, order.inversions), (3, 1));
        // One that did not queue.
        order.hear("7\ngranted e 8");
        assert_eq!((order.granted, order.inversions), (4, 2));
        order.hear("8\ngranted c 9");
        assert_eq!((order.granted, order.inversions), (5, 2));
    }
}
