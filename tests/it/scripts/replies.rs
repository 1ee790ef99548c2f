//! What acquire and release answer on a lock of one or two requests, and what they leave in the state.

use super::lock;
use crate::lua::{LEASE_MS, ask};

#[tokio::test]
async fn a_free_lock_keeps_its_only_lease_in_the_hash_until_a_second_request_comes() {
    let (_server, lock) = lock().await;
    let token = lock.acquire("w1:1").await.token();
    let state = lock.state().await;
    assert_eq!([state.packed.seq, state.packed.token, state.packed.first], [token; 3]);
    let (sole, deadline) = state.sole().expect("a sole request");
    assert_eq!(sole, "w1:1");
    assert!((state.now_ms + LEASE_MS - 90_000..=state.now_ms + LEASE_MS).contains(&deadline));

    let (got, next_ms, seq) = lock.ask(ask("r2:1")).await;
    assert_eq!(got.ticket(), seq);
    assert!(seq > token);
    assert!((1..=LEASE_MS as i64).contains(&next_ms), "{next_ms}");
    let state = lock.state().await;
    assert_eq!(state.sole(), None);
    assert_eq!(state.leases.len(), 2);
    assert_eq!(state.leases.get("w1:1"), Some(&deadline), "spreading moves no deadline");
}

#[tokio::test]
async fn readers_that_waited_get_a_new_token_and_the_phase_goes_on() {
    let (_server, lock) = lock().await;
    let first = lock.acquire("r1:1").await.token();
    assert_eq!(lock.acquire("r2:1").await.token(), first, "readers share a phase");
    let ticket = lock.acquire("w3:1").await.ticket();
    lock.acquire_all(&["r4:1", "r5:1"]).await;
    assert_eq!(lock.release(&["w3:1"]).await.1, [1]);
    let state = lock.state().await;
    assert_eq!(state.holding(), ["r1:1", "r2:1", "r4:1", "r5:1"]);
    assert!(
        state.packed.token > ticket,
        "greater than what they were told while they waited"
    );
    assert_eq!(state.packed.first, first, "nobody wrote in between");
    assert_eq!(
        lock.release_told(&["r1:1"]).await.1,
        [first as i64],
        "a reader is told the first"
    );
    lock.release(&["r2:1", "r4:1", "r5:1"]).await;
    assert!(lock.acquire("r6:1").await.token() > state.packed.token, "another phase");
}
