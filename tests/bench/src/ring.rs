//! The least that a hot lock costs that is handed from process to process: a token that goes around. Each process adds itself
//! to a sorted set and waits for a message; when that comes, it calls a script that publishes to the next process, and
//! begins again. There is no state, no lease and no decision.

use crate::clock;
use crate::env::{Env, connection, listening};
use crate::hot;
use crate::worker::{Line, Worker};
use fairlock_support::server::PATIENCE;
use redis::{AsyncTypedCommands, PushKind, Script, from_redis_value};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

const QUEUE: &str = "p4-ring-queue";

pub struct Ring {
    workers: Vec<Worker>,
}

fn channel(place: usize) -> String {
    format!("p4-ring:{place}")
}

impl Ring {
    pub async fn new(env: &Env, processes: usize) -> Self {
        let mut workers = Vec::new();
        for place in 0..processes {
            let mut worker = env.worker("ring").await;
            worker.say(&format!("{place} {}", (place + 1) % processes)).await;
            assert_eq!(worker.hear().await, "ready");
            workers.push(worker);
        }
        Self { workers }
    }

    /// How often the token changes hands within that time.
    pub async fn turns(&mut self, env: &Env, length: Duration) -> usize {
        let (from, until) = hot::span(length);
        for worker in &mut self.workers {
            worker.say(&format!("{from} {until}")).await;
            assert_eq!(worker.hear().await, "waiting");
        }
        env.server
            .redis()
            .await
            .publish(channel(0), from.to_string())
            .await
            .expect("a reply");
        let mut sum = 0;
        for worker in &mut self.workers {
            sum += worker.hear().await.parse::<usize>().expect("a number");
        }
        sum
    }
}

/// A process of the ring.
pub async fn worker(url: &str, line: &mut Line) {
    let places = line.hear().await.expect("the places");
    let (place, next) = places.split_once(' ').expect("two places");
    let next = channel(next.parse().expect("a number"));
    let (sender, mut tokens) = mpsc::unbounded_channel::<String>();
    let mut subscription = listening(url, move |push| {
        if push.kind == PushKind::Message {
            let token = push.data.into_iter().nth(1).expect("a message");
            // Nobody listens when this process ends.
            let _ = sender.send(from_redis_value(token).expect("text"));
        }
    })
    .await;
    let own = channel(place.parse().expect("a number"));
    subscription.subscribe(own).await.expect("subscribed");
    let mut redis = connection(url).await;
    let pass = Script::new("redis.call('SET', KEYS[1], ARGV[1]) return redis.call('PUBLISH', KEYS[1], ARGV[1])");
    let wait = Script::new("return redis.call('ZADD', KEYS[1], 1, ARGV[1])");
    line.say("ready").await;
    while let Some(job) = line.hear().await {
        // The token's name is the time from which its turns count: one of an earlier job is none.
        let (name, until) = job.split_once(' ').expect("a span");
        let (from, until): (f64, f64) = (name.parse().expect("a time"), until.parse().expect("a time"));
        let mut turns = 0;
        line.say("waiting").await;
        loop {
            let call: Result<i64, _> = wait.key(QUEUE).arg(place).invoke_async(&mut redis).await;
            call.expect("a reply");
            while timeout(PATIENCE, tokens.recv())
                .await
                .expect("the token comes")
                .as_deref()
                != Some(name)
            {}
            let now = clock::now();
            let call: Result<i64, _> = pass.key(&next).arg(name).invoke_async(&mut redis).await;
            call.expect("a reply");
            if now >= until {
                break;
            }
            turns += usize::from(now >= from);
        }
        line.say(&turns.to_string()).await;
    }
}
