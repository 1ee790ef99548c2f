//! The keys and channels that the scripts touch, and what the scripts cost.

use super::{lock, names, walk};
use crate::lua::Lock;
use crate::server::{Server, patient};
use redis::Value;

#[tokio::test]
async fn the_scripts_touch_their_three_keys_and_channels_only() {
    let (server, owner) = lock().await;
    let [a, b, c] = &owner.keys;
    let rules = [
        "SETUSER",
        "narrow",
        "on",
        ">pass",
        "+@all",
        "resetkeys",
        &format!("~{a}"),
        &format!("~{b}"),
        &format!("~{c}"),
        "resetchannels",
        "&fairlock:c:*",
    ];
    owner.run("ACL", &rules).await;
    owner.run("ACL", &["LOG", "RESET"]).await;
    let url = format!("redis://narrow:pass@127.0.0.1:{}", server.port());
    let client = redis::Client::open(url).unwrap();
    let lock = Lock::through(
        client
            .get_multiplexed_async_connection_with_config(&patient())
            .await
            .unwrap(),
        "a",
    );
    walk(&lock, 2).await;
    lock.acquire_all(&["w1:1", "w2:1", "r3:1"]).await;
    lock.die(&["w1:1", "w2:1"]).await;
    lock.renew(&["r3:1"]).await;
    lock.acquire("w4:1").await.ticket();
    lock.run("DEL", &[b]).await;
    let lock = Lock { audited: false, ..lock };
    assert_eq!(lock.renew(&["r3:1"]).await.1, [-1], "a lock that lost a key restarts");
    // A message that is refused is no error to a script.
    let denied = owner.run("ACL", &["LOG"]).await;
    assert_eq!(denied, Value::Array(Vec::new()));
}

async fn micros(server: &Server) -> u64 {
    let text: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(&mut server.redis().await)
        .await
        .unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_eval:"))
        .expect("EVAL was called");
    let usec = line
        .split(',')
        .find_map(|part| part.strip_prefix("usec="))
        .expect("usec");
    usec.parse().unwrap()
}

/// The server's time for each script before a queue of some length.
async fn cost(waiters: u32) -> [u64; 3] {
    let (server, mut lock) = lock().await;
    lock.acquire("w1:1").await;
    lock.fill(&names('w', "2", 0..waiters)).await;
    lock.audited = false;
    const ROUNDS: u64 = 200;
    let mut spent = [0; 3];
    for n in 0..ROUNDS {
        let request = format!("w3:{n}");
        let before = micros(&server).await;
        lock.acquire(&request).await.ticket();
        let acquired = micros(&server).await;
        assert_eq!(lock.renew(&[&request]).await.1, [0]);
        let renewed = micros(&server).await;
        assert_eq!(lock.release(&[&request]).await.1, [1]);
        let steps = [acquired - before, renewed - acquired, micros(&server).await - renewed];
        for (total, step) in spent.iter_mut().zip(steps) {
            *total += step;
        }
    }
    spent.map(|total| total / ROUNDS)
}

#[tokio::test]
async fn what_a_script_costs_before_10_and_before_10_000_waiters_is_printed() {
    for waiters in [10, 10_000] {
        let [acquire, renew, release] = cost(waiters).await;
        println!(
            "{waiters} waiters: acquire {acquire} us, renew {renew} us, release {release} us of the server's time"
        );
    }
}
