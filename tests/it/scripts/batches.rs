//! One call lets in 1024 at most: what continues a batch, and what it is told by.

use super::{lock, names};
use crate::server::{Server, soon};
use futures::StreamExt;

#[tokio::test]
async fn one_release_lets_a_thousand_readers_in_with_one_message_a_client() {
    let (server, lock) = lock().await;
    let mut listening = pubsub(&server, "fairlock:c:b3").await;
    lock.acquire("w1:1").await;
    for client in 0..10 {
        lock.fill(&names('r', &format!("b{client}"), 0..100)).await;
    }
    let before = server.calls("publish").await;
    lock.release(&["w1:1"]).await;
    assert_eq!(server.calls("publish").await - before, 10);
    let state = lock.state().await;
    assert_eq!((state.holding().len(), state.waiting().len()), (1000, 0));

    let message: String = soon("a message", listening.next())
        .await
        .expect("a message")
        .get_payload()
        .unwrap();
    let readers = names('r', "b3", 0..100).join(" ");
    let token = state.packed.token;
    assert_eq!(
        message,
        format!("{token} {readers}\n{}", lock.keys[0]),
        "one token for all"
    );
}

#[tokio::test]
async fn a_batch_of_exactly_the_limit_leaves_a_lock_that_works() {
    let (_server, lock) = lock().await;
    lock.acquire("w1:1").await;
    let readers = names('r', "2", 0..1024);
    lock.fill(&readers).await;
    lock.release(&["w1:1"]).await;
    lock.acquire("r3:1").await.token();
    let all: Vec<_> = readers.iter().map(String::as_str).chain(["r3:1"]).collect();
    lock.release(&all).await;
    lock.acquire("w4:1").await.token();
    lock.release(&["w4:1"]).await;
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
