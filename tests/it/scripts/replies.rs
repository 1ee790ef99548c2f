//! What acquire, release and renew answer on a lock of one or two requests.

use super::lock;
use crate::lua::{ACQUIRE, DOWNGRADE, LEASE_MS, Lock, PAST, ask, owner_of};
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

#[tokio::test]
async fn release_says_who_held_who_waited_and_who_is_unknown() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "r2:1", "w3:1"]).await;
    assert_eq!(lock.release(&["w3:1", "w9:9", "w1:1"]).await.1, [1, 0, 2]);
    assert_eq!(lock.state().await.holding(), ["r2:1"]);
    assert_eq!(lock.release(&["w3:1", "w9:9", "w1:1"]).await.1, [0, 0, 0]);
    assert_eq!(lock.release(&["r2:1"]).await, (-1, vec![2]));
}

#[tokio::test]
async fn renew_says_who_holds_with_which_token_who_waits_and_who_is_unknown() {
    let (_server, lock) = lock().await;
    let token = lock.acquire("w1:1").await.token();
    assert_eq!(lock.renew(&["w1:1"]).await, (-1, vec![token as i64]));
    lock.acquire("r2:1").await;
    let (next_ms, standings) = lock.renew(&["r2:1", "w9:9", "w1:1"]).await;
    assert_eq!(standings, [0, -1, token as i64]);
    assert!((1..=LEASE_MS as i64).contains(&next_ms), "{next_ms}");
}

#[tokio::test]
async fn a_sole_lease_is_renewed_and_released_where_it_is() {
    let (_server, lock) = lock().await;
    lock.acquire("r1:1").await;
    lock.set_deadline("r1:1", PAST).await;
    lock.renew(&["r1:1"]).await;
    let state = lock.state().await;
    assert!(
        state.sole().is_some_and(|(_, at)| at > state.now_ms + LEASE_MS / 2),
        "{state:?}"
    );
    assert_eq!(lock.release(&["r1:1"]).await, (-1, vec![2]));
    assert_eq!(lock.release(&["r1:1"]).await, (-1, vec![0]));
}

#[tokio::test]
async fn foreign_and_late_calls_change_nothing_and_say_so() {
    let (_server, lock) = lock().await;
    lock.acquire("w1:1").await;
    lock.die(&["w1:1"]).await;
    lock.acquire_all(&["r2:1:x", "w3:1"]).await;
    let before = lock.dump().await;
    // Expired and taken over; never there; another mode, number or owner of one that holds or waits.
    for request in ["w1:1", "w9:9", "w2:1:x", "r2:1", "r2:10:x", "r3:1", "w3:1:x", "w3:11"] {
        assert_eq!(lock.release(&[request]).await.1, [0], "{request}");
        assert_eq!(lock.renew(&[request]).await.1, [-1], "{request}");
        assert_eq!(lock.dump().await, before, "{request}");
    }
}

#[tokio::test]
async fn calls_about_a_lock_that_nobody_has_make_no_keys() {
    let (server, lock) = lock().await;
    assert_eq!(lock.renew(&["w1:1", "r1:2:x"]).await, (-1, vec![-1, -1]));
    assert_eq!(lock.renew(&[]).await, (-1, vec![]));
    assert_eq!(lock.release(&["w1:1", "r1:2:x"]).await, (-1, vec![0, 0]));
    assert_eq!(lock.release(&["w1:1"]).await, (-1, vec![0]));
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn a_name_that_is_none_is_refused_before_anything_is_written() {
    let (_server, lock) = lock().await;
    let names = [
        "",
        "w",
        "w1",
        "w1:",
        "w1:x",
        "q1:1",
        "wxyz:1",
        "w1:1:",
        "w1:1x",
        "w1:1:a b",
        "w1:1:a\nb",
        ":1:a",
        "w 1:1",
    ];
    for held in [false, true] {
        if held {
            lock.acquire_all(&["w2:1", "w3:1"]).await;
        }
        let dump = lock.dump().await;
        for name in names {
            let refused = lock.call(ACQUIRE, &Lock::args_of(&ask(name))).await.unwrap_err();
            assert!(refused.to_string().contains("not the name of a request"), "{refused}");
            let args = ["w2:1", name, "60000"].map(str::to_owned);
            lock.call(DOWNGRADE, &args).await.unwrap_err();
            assert_eq!(lock.release(&[name]).await.1, [0]);
            assert_eq!(lock.renew(&[name]).await.1, [-1]);
            assert_eq!(lock.dump().await, dump, "{name:?}");
        }
    }
}
