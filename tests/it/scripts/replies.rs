//! What acquire, release and renew answer on a lock of one or two requests.

use super::lock;
use crate::lua::{LEASE_MS, Lock, ask, owner_of};
use crate::server::Server;

#[tokio::test]
async fn the_heads_of_acquire_and_release_do_what_the_whole_scripts_do() {
    let server = Server::start().await;
    for request in ["w1:1", "r1:1", "w1:1:x", "r1:1:x"] {
        let mut states = Vec::new();
        // The heads leave to the rest what somebody listens to.
        for listened in ["", "1"] {
            let mut lock = Lock::new(&server, &format!("{request}{listened}")).await;
            lock.listened = listened;
            // The first use sets the TTL, which the head does not.
            lock.acquire(request).await;
            lock.release(&[request]).await;
            let token = lock.acquire(request).await.token();
            let mut held = lock.state().await.hash;
            assert_eq!(
                held.remove(&format!("t:{}", owner_of(request))),
                Some(token.to_string())
            );
            assert_eq!(held.remove("seq"), Some(token.to_string()));
            let sole = held.remove("sole").expect("a sole request");
            assert!(sole.starts_with(&format!("{request} ")), "{sole}");
            held.remove("keep");
            assert_eq!(lock.release(&[request]).await, (-1, vec![2]));
            assert_eq!(lock.release(&[request]).await, (-1, vec![0]));
            let mut free = lock.state().await.hash;
            assert_eq!(free.remove("seq"), Some(token.to_string()));
            free.remove("keep");
            states.push((held, free));
        }
        assert_eq!(states[0], states[1], "{request}");
    }
}

#[tokio::test]
async fn a_free_lock_keeps_its_only_lease_in_the_hash_until_a_second_request_comes() {
    let (_server, lock) = lock().await;
    let (got, next_ms, seq) = lock.ask(ask("w1:1")).await;
    assert_eq!((got.token(), next_ms), (seq, -1));
    let state = lock.state().await;
    let (sole, deadline) = state.sole().expect("a sole request");
    assert_eq!(sole, "w1:1");
    assert!((state.now_ms + LEASE_MS - 90_000..=state.now_ms + LEASE_MS).contains(&deadline));

    let (got, next_ms, _) = lock.ask(ask("r2:1")).await;
    assert!(got.ticket() > seq);
    assert!((1..=LEASE_MS as i64).contains(&next_ms), "{next_ms}");
    let state = lock.state().await;
    assert_eq!(state.sole(), None);
    assert_eq!(state.leases.len(), 2);
    assert_eq!(state.leases.get("w1:1"), Some(&deadline), "spreading moves no deadline");
}
