//! The client's half of `instructions`: a process that does nothing but cycles of a free lock, beside the same process that
//! sends as many scripts, with the same arguments, over a plain connection.

use crate::counter::{Counter, Method};
use crate::env::{Env, connect, connection};
use crate::instructions::ROUNDS;
use crate::monitor::{self, Monitor};
use crate::report::Report;
use crate::worker::{Line, Worker, this_program};
use redis::Cmd;
use std::time::Duration;

const LOCK: &str = "instructions-client";
/// No renewal comes while it is measured.
const LONG: Duration = Duration::from_secs(3600);

pub async fn run(env: &Env, method: Method, report: &mut Report) {
    let mut counter = Counter::new(method);
    let mut worker = Worker::start_program(&counter.program(&this_program()), "cycles", &env.server.url()).await;
    counter.attach(worker.pid());
    assert_eq!(worker.hear().await, "ready");
    let sent = sent(env, &mut worker).await;
    obeyed(&mut worker, &format!("learn {}", serde_json::json!(sent))).await;
    let sides = [
        ("client", "lock", "acquire + release of a free write lock"),
        (
            "client_floor",
            "floor",
            "two trivial scripts with the same arguments, without fairlock",
        ),
    ];
    let n = env.times(1000);
    let mut costs = sides.map(|_| Vec::new());
    for _ in env.some_rounds(&format!("instructions of the client, by {}", method.name()), ROUNDS) {
        for ((_, side, _), costs) in sides.iter().zip(&mut costs) {
            let (nothing, ()) = counter
                .window(async || obeyed(&mut worker, &format!("{side} 0")).await)
                .await;
            let (count, ()) = counter
                .window(async || obeyed(&mut worker, &format!("{side} {n}")).await)
                .await;
            costs.push((count - nothing) / n as f64 / 1e3);
        }
    }
    for ((key, _, what), costs) in sides.iter().zip(&costs) {
        let unit = format!("thousand instructions of the client ({}): {what}", method.name());
        report.beside(&format!("instructions_{key}"), &unit, costs);
    }
}

async fn obeyed(worker: &mut Worker, order: &str) {
    worker.say(order).await;
    assert_eq!(worker.hear().await, "done");
}

/// The arguments of the scripts of one cycle, after the script's hash.
async fn sent(env: &Env, worker: &mut Worker) -> Vec<Vec<String>> {
    // The first call of a script is sent twice.
    obeyed(worker, "lock 1").await;
    let mut monitor = Monitor::start(&env.server).await;
    obeyed(worker, "lock 1").await;
    let lines = monitor.until_now(&env.server).await;
    let of_lock = lines.iter().filter(|line| line.contains(&format!("{{{LOCK}}}")));
    let calls = of_lock.filter_map(|line| monitor::command(line));
    let sent: Vec<Vec<String>> = calls
        .map(|call| call[2..].iter().map(|&text| text.to_owned()).collect())
        .collect();
    assert_eq!(sent.len(), 2, "an acquire and a release: {sent:?}");
    sent
}

/// The process that is counted.
pub async fn worker(url: &str, line: &mut Line) {
    let client = connect(url).await;
    let lock = client.rw_lock(LOCK);
    let mut redis = connection(url).await;
    let hash: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg("#!lua\nreturn 1795391740557101")
        .query_async(&mut redis)
        .await
        .expect("the script compiles");
    let mut sent: Vec<Vec<String>> = Vec::new();
    line.say("ready").await;
    while let Some(order) = line.hear().await {
        let (what, how) = order.split_once(' ').expect("an order");
        if what == "learn" {
            sent = serde_json::from_str(how).expect("arguments");
            line.say("done").await;
            continue;
        }
        for _ in 0..how.parse().expect("a number") {
            if what == "lock" {
                let guard = lock.write().lease(LONG).acquire_fair().await.expect("granted");
                guard.release().await.expect("released");
                continue;
            }
            for arguments in &sent {
                let mut call = Cmd::new();
                call.arg("EVALSHA").arg(&hash).arg(arguments);
                let _: i64 = call.query_async(&mut redis).await.expect("a reply");
            }
        }
        line.say("done").await;
    }
}
