//! Every script may be sent twice.

use super::{lock, walk};
use crate::lua::Lock;
use crate::server::Server;

#[tokio::test]
async fn sending_everything_three_times_has_the_effect_of_sending_it_once() {
    let server = Server::start().await;
    let once = walk(&Lock::new(&server, "once").await, 1).await;
    let thrice = walk(&Lock::new(&server, "thrice").await, 3).await;
    assert_eq!(once, thrice);
}

#[tokio::test]
async fn sending_again_answers_with_the_same_number_and_renews_the_lease() {
    let (_server, lock) = lock().await;
    let token = lock.acquire("w1:1").await;
    let ticket = lock.acquire("w2:1").await;
    let soon = lock.state().await.now_ms + 10_000;
    for _ in 0..2 {
        for (request, answer) in [("w1:1", token), ("w2:1", ticket)] {
            lock.set_deadline(request, soon).await;
            assert_eq!(lock.acquire(request).await, answer);
            assert_eq!(lock.attempt(request).await, answer, "also when sent as a try");
            assert!(lock.state().await.deadline(request) > Some(soon + 10_000), "{request}");
        }
    }
}

#[tokio::test]
async fn sending_an_acquire_again_after_its_release_is_a_new_request() {
    let (_server, lock) = lock().await;
    let first = lock.acquire("w1:1").await.token();
    lock.release(&["w1:1"]).await;
    assert!(lock.acquire("w1:1").await.token() > first);
}
