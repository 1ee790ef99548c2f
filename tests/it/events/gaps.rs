//! A stream that misses something says so, and goes on.

use super::{client, lines, pass, passed, until_heard};
use crate::server::{Server, soon};
use fairlock::{Client, Error, Events, RwLock};
use redis::aio::MultiplexedConnection;

/// Commands of the test's own that kill every connection that listens.
pub(super) async fn kill_subscriptions(redis: &mut MultiplexedConnection) {
    let killed: u64 = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "pubsub"])
        .query_async(redis)
        .await
        .unwrap();
    assert!(killed > 0);
}

#[tokio::test]
async fn a_stream_that_is_read_too_slowly_says_so_and_goes_on_and_others_miss_nothing() {
    const PASSES: usize = 700;
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    let (mut slow, mut fast) = (lock.events().await.unwrap(), lock.events().await.unwrap());
    let reading = tokio::spawn(async move {
        let lines = lines(&mut fast, 2 * PASSES).await;
        (lines, fast)
    });
    let mut expected = Vec::new();
    for _ in 0..PASSES {
        expected.extend(passed(pass(&lock).await));
    }
    let (seen, mut fast) = reading.await.unwrap();
    assert_eq!(seen, expected);
    let missed = soon("an item", slow.next()).await.unwrap();
    assert!(
        matches!(&missed, Err(Error::EventsMissed { lock, why, .. }) if lock == "a" && why.contains("slowly")),
        "{missed:?}"
    );
    // The latest 1,024 are still there.
    assert_eq!(lines(&mut slow, 1024).await, expected[2 * PASSES - 1024..]);
    let more = passed(pass(&lock).await);
    assert_eq!(lines(&mut slow, 2).await, more);
    assert_eq!(lines(&mut fast, 2).await, more);
}

/// Reads on until an error.
async fn gap(events: &mut Events) -> Error {
    loop {
        if let Err(error) = events.next().await.expect("a stream without end") {
            return error;
        }
    }
}

/// Two streams of one client, which hear of this user's doings.
async fn two_streams(listening: &Client, acting: &RwLock) -> [Events; 2] {
    let mut streams = [
        listening.rw_lock("a").events().await.unwrap(),
        listening.events().await.unwrap(),
    ];
    for events in &mut streams {
        until_heard(events, acting).await;
    }
    streams
}

async fn until_gaps(streams: &mut [Events; 2]) {
    for (events, name) in streams.iter_mut().zip(["a", ""]) {
        let missed = soon("the gap", gap(events)).await;
        assert!(
            matches!(&missed, Error::EventsMissed { lock, why, .. } if lock == name && why.contains("connection")),
            "{missed}"
        );
    }
}

#[tokio::test]
async fn a_stream_whose_connection_is_killed_says_so_and_goes_on() {
    let server = Server::start().await;
    let (listening, acting) = (client(&server).await, client(&server).await.rw_lock("a"));
    let mut streams = two_streams(&listening, &acting).await;
    let mut redis = server.redis().await;
    for _ in 0..3 {
        kill_subscriptions(&mut redis).await;
        until_gaps(&mut streams).await;
        for events in &mut streams {
            until_heard(events, &acting).await;
        }
    }
}

#[tokio::test]
async fn what_follows_a_gap_is_complete() {
    const ROUNDS: usize = 20;
    let server = Server::start().await;
    let (listening, acting) = (client(&server).await, client(&server).await.rw_lock("a"));
    let mut streams = two_streams(&listening, &acting).await;
    let mut redis = server.redis().await;
    for round in 0..ROUNDS {
        kill_subscriptions(&mut redis).await;
        until_gaps(&mut streams).await;
        // The promise. So there is no waiting here.
        let expected = passed(pass(&acting).await);
        for events in &mut streams {
            assert_eq!(lines(events, 2).await, expected, "round {round}");
        }
    }
}
