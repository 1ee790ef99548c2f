//! One call lets in 1024 at most: what continues a batch, and what it is told by.

use super::{lock, lose, names, pubsub};
use crate::lua::{Got, Lock};
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
    let expected = (0..100).map(|n| format!("rb3:{n} {}", state.number(&format!("t:b3:{n}"))));
    assert_eq!(
        message,
        format!("{}\n{}", expected.collect::<Vec<_>>().join(" "), lock.keys[0])
    );
}

/// A lock before which so many readers wait, and then a writer. The first batch has entered.
async fn first_batch(readers: u32) -> (Server, Lock) {
    let (server, lock) = lock().await;
    lock.acquire("w1:1").await;
    lock.fill(&names('r', "2", 0..readers)).await;
    lock.fill(&["w3:1".to_owned()]).await;
    assert_eq!(lock.release(&["w1:1"]).await, (0, vec![2]), "there is more to do");
    assert_eq!(lock.state().await.holding().len(), 1024);
    (server, lock)
}

#[tokio::test]
async fn a_batch_that_stopped_at_its_limit_is_continued_by_a_renewal_of_nothing() {
    let (_server, lock) = first_batch(2500).await;
    assert_eq!(lock.renew(&[]).await.0, 0);
    assert_eq!(lock.state().await.holding().len(), 2048);
    assert_ne!(lock.renew(&[]).await.0, 0);
    let state = lock.state().await;
    assert_eq!((state.holding().len(), state.waiting()), (2500, vec!["w3:1"]));
    assert_eq!(state.field("more"), None);
}

#[tokio::test]
async fn a_batch_that_stopped_at_its_limit_is_continued_by_any_acquire_which_passes_nobody() {
    let (_server, lock) = first_batch(3500).await;
    assert_eq!(lock.attempt("r4:1").await, Got::Busy);
    assert_eq!(lock.state().await.holding().len(), 2048);
    lock.acquire("r4:2").await.ticket();
    assert_eq!(lock.state().await.holding().len(), 3072);
    lock.acquire("w4:3").await.ticket();
    let state = lock.state().await;
    assert_eq!(
        (state.holding().len(), state.waiting()),
        (3500, vec!["w3:1", "r4:2", "w4:3"])
    );
}

#[tokio::test]
async fn a_batch_that_stopped_at_its_limit_is_continued_by_any_release() {
    let (_server, lock) = first_batch(1100).await;
    assert_eq!(lock.release(&["r2:0"]).await.1, [2]);
    let state = lock.state().await;
    assert_eq!((state.holding().len(), state.waiting()), (1099, vec!["w3:1"]));
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

#[tokio::test]
async fn a_batch_whose_mark_was_lost_is_continued_by_renewals() {
    let (_server, mut lock) = first_batch(2500).await;
    lock.audited = false;
    lose(&lock, "more").await;
    assert_eq!(lock.renew(&[]).await.0, 0);
    lock.renew(&[]).await;
    let state = lock.state().await;
    assert_eq!((state.holding().len(), state.waiting()), (2500, vec!["w3:1"]));
}
