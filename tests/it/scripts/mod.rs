//! Every script by itself: its contract, what a second sending does, and what it leaves in the keys. What is call and
//! reply stands in `tests/conformance/scenarios`, where every client runs it.

mod batches;
mod expiry;
mod keys;
mod memory;
mod model;
mod owners;
mod replies;
mod status;
mod twice;
mod unheard;

use crate::lua::{Got, Lock};
use crate::server::Server;

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
        story.push(format!(
            "{step} {first:?} {:?} {:?} {:?}",
            state.holding(),
            state.waiting(),
            state.hash
        ));
    }
    story
}
