//! The least that a lock over several servers costs that is handed on: a token that goes around tasks of one process. Each task
//! adds itself to a sorted set at every server, and waits until a majority of the servers has sent it the token. Then it has
//! every server publish the token to the next task, waits for a majority of replies, and begins again. There is no state, no
//! place, no lease and no decision.

use crate::clock;
use crate::env::{connection, listening};
use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{AsyncTypedCommands, PushKind, Script, ScriptInvocation, from_redis_value};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

const QUEUE: &str = "quorum-ring-queue";

/// One server sent the token, with this number of its turn.
type Tokens = mpsc::UnboundedReceiver<usize>;

fn channel(place: usize) -> String {
    format!("quorum-ring:{place}")
}

/// Turns per second of a token among so many tasks. Each holds it for that time.
pub async fn rate(urls: &[String], tasks: usize, hold: Duration, length: Duration) -> f64 {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..tasks).map(|_| mpsc::unbounded_channel()).unzip();
    let senders = Arc::new(senders);
    let listeners = join_all(urls.iter().map(|url| listener(url, Arc::clone(&senders)))).await;
    let mut servers = join_all(urls.iter().map(|url| connection(url))).await;
    let turns = Arc::new(AtomicUsize::new(0));
    let mut ring = JoinSet::new();
    for (place, tokens) in receivers.into_iter().enumerate() {
        let around = Around { place, tasks, hold };
        ring.spawn(go_round(servers.clone(), around, tokens, Arc::clone(&turns)));
    }
    for server in &mut servers {
        server.publish(channel(0), "0").await.expect("a reply");
    }
    let begun = Instant::now();
    sleep(length).await;
    let rate = turns.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
    ring.shutdown().await;
    drop(listeners);
    rate
}

/// Hands each token to the task of its channel.
async fn listener(url: &str, tasks: Arc<Vec<mpsc::UnboundedSender<usize>>>) -> MultiplexedConnection {
    let channels: Vec<String> = (0..tasks.len()).map(channel).collect();
    let mut listener = listening(url, move |push| {
        if push.kind != PushKind::Message {
            return;
        }
        let [channel, turn] = push.data.try_into().expect("a channel and a message");
        let channel: String = from_redis_value(channel).expect("text");
        let turn: String = from_redis_value(turn).expect("text");
        let place = channel.rsplit(':').next().and_then(|place| place.parse::<usize>().ok());
        // Nobody listens when the ring has ended.
        let _ = tasks[place.expect("a place")].send(turn.parse().expect("a number"));
    })
    .await;
    listener.subscribe(channels).await.expect("subscribed");
    listener
}

/// What one task does.
struct Around {
    place: usize,
    tasks: usize,
    hold: Duration,
}

async fn go_round(servers: Vec<MultiplexedConnection>, around: Around, mut tokens: Tokens, turns: Arc<AtomicUsize>) {
    let Around { place, tasks, hold } = around;
    let majority = servers.len() / 2 + 1;
    let pass = Script::new("redis.call('SET', KEYS[1], ARGV[1]) return redis.call('PUBLISH', KEYS[1], ARGV[1])");
    let wait = Script::new("return redis.call('ZADD', KEYS[1], 1, ARGV[1])");
    let mut turn = place;
    loop {
        everywhere(&servers, wait.key(QUEUE).arg(place), majority).await;
        let mut come = 0;
        while come < majority {
            // The token of an earlier turn comes from who is not of the majority.
            come += usize::from(tokens.recv().await.expect("the ring goes on") == turn);
        }
        turns.fetch_add(1, Ordering::Relaxed);
        clock::sleep_exactly(hold).await;
        let next = channel((place + 1) % tasks);
        everywhere(&servers, pass.key(next).arg(turn + 1), majority).await;
        turn += tasks;
    }
}

/// Calls every server, and waits for a majority of the replies. The other calls are sent, and nobody reads their replies.
async fn everywhere(servers: &[MultiplexedConnection], call: &ScriptInvocation<'_>, majority: usize) {
    let call = |server: &MultiplexedConnection| {
        let mut server = server.clone();
        async move { call.invoke_async::<i64>(&mut server).await.expect("a reply") }
    };
    let calls: FuturesUnordered<_> = servers.iter().map(call).collect();
    calls.take(majority).for_each(async |_| ()).await;
}
