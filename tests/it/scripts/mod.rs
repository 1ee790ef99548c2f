//! Every script by itself: its contract, what a second sending does, and what it leaves in the keys. What is call and
//! reply stands in `tests/conformance/scenarios`, where every client runs it.

mod batches;
mod damage;
mod expiry;
mod keys;
mod model;
mod operator;
mod order;
mod orphans;
mod owners;
mod replies;
mod tokens;
mod twice;

use crate::lua::{DOWNGRADE, Got, LEASE_MS, Lock};
use crate::server::Server;
use redis::Value;

async fn lock() -> (Server, Lock) {
    let server = Server::start().await;
    let lock = Lock::new(&server, "a").await;
    (server, lock)
}

fn names(mode: char, client: &str, numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|n| format!("{mode}{client}:{n}")).collect()
}

/// A walk through waiting, granting, reentry, upgrade and leaving; every script is sent `times` times.
async fn walk(lock: &Lock, times: usize) -> Vec<String> {
    let mut story = Vec::new();
    let steps = [
        "w1:1:a", "r1:2:a", "r2:1", "r2:2", "w3:1:c", "r4:1", "-w1:1:a", "r5:1:e", "-r1:2:a", "-r2:1", "w5:9:e",
        "-r2:2", "-w3:1:c", "r6:1", "w5:2:e", "-r4:1", "r6:2:e", "-r5:1:e", "-r6:2:e", "-r6:1", "-w5:2:e", "-w5:9:e",
    ];
    for step in steps {
        let mut first = None;
        for _ in 0..times {
            let answer = match step.strip_prefix('-') {
                Some(request) => format!("{:?}", lock.release(&[request]).await.1),
                None => match lock.acquire(step).await {
                    Got::Granted(_) => "granted".to_owned(),
                    Got::Queued(_) => "queued".to_owned(),
                    other => format!("{other:?}"),
                },
            };
            // A release says "unknown" afterwards; everything else says the same again.
            match &first {
                Some(_) if step.starts_with('-') => assert_eq!(answer, "[0]", "{step}"),
                Some(first) => assert_eq!(answer, *first, "{step}"),
                None => first = Some(answer),
            }
        }
        let state = lock.state().await;
        let mut hash = state.hash.clone();
        hash.retain(|field, _| !field.starts_with("t:") && !["seq", "keep", "sole"].contains(&field.as_str()));
        story.push(format!(
            "{step} {first:?} {:?} {:?} {hash:?}",
            state.holding(),
            state.waiting()
        ));
    }
    story
}

/// What comes on a channel.
async fn pubsub(server: &Server, channel: &str) -> redis::aio::PubSubStream {
    let client = redis::Client::open(server.url()).unwrap();
    let (mut sink, stream) = client.get_async_pubsub().await.unwrap().split();
    sink.subscribe(channel).await.unwrap();
    // Dropped, it would end the connection.
    std::mem::forget(sink);
    stream
}

async fn downgraded(lock: &Lock, from: &str, to: &str) -> Vec<i64> {
    let args = [from, to, &LEASE_MS.to_string()].map(str::to_owned);
    lock.call(DOWNGRADE, &args).await.unwrap()
}

/// Takes away one key, or one field of the hash.
async fn lose(lock: &Lock, what: &str) {
    let [state, queue, leases] = &lock.keys;
    let lost = match what {
        "the state" => lock.run("DEL", &[state]).await,
        "the queue" => lock.run("DEL", &[queue]).await,
        "the leases" => lock.run("DEL", &[leases]).await,
        field => lock.run("HDEL", &[state, field]).await,
    };
    assert_eq!(lost, Value::Int(1), "there was no {what}");
}
