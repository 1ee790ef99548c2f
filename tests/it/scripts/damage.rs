//! Keys and fields that are lost, wrong or of another type.

use super::{lock, lose};
use crate::lua::{ACQUIRE, Ask, Got, Lock, RELEASE, RENEW, ask};
use crate::server::Server;

#[tokio::test]
async fn a_hold_that_only_the_leases_remember_leaves_no_trace_when_it_asks_again_in_vain() {
    let (_server, mut lock) = lock().await;
    lock.acquire_all(&["r1:1", "r2:1"]).await;
    lock.audited = false; // it is damaged
    lock.run("DEL", &[&lock.keys[0]]).await;
    lock.acquire("w3:1").await.token();
    assert_eq!(lock.attempt("r1:1").await, Got::Busy);
    assert_eq!(lock.state().await.deadline("r1:1"), None);
}

/// Two readers inside, a writer and a reader waiting: all three keys exist.
async fn damaged(lose: &[&str]) -> (Server, Lock, u64) {
    let (server, mut lock) = lock().await;
    lock.acquire_all(&["r1:1", "r2:1:x", "w3:1:y", "r4:1"]).await;
    let seq = lock.state().await.number("seq");
    lock.audited = false;
    let keys: Vec<_> = lose.iter().map(|suffix| format!("{}{suffix}", lock.keys[0])).collect();
    for key in &keys {
        lock.run("DEL", &[key]).await;
    }
    (server, lock, seq)
}

/// Everybody asks again, with the old tickets where they had one, and all is well.
async fn works_again(lock: &mut Lock, seq: u64) {
    let state = lock.state().await;
    assert!(
        state.leases.is_empty() && state.queue.is_empty() && state.field("mode").is_none(),
        "{state:?}"
    );
    lock.audited = true;
    let token = lock.acquire("w5:1").await.token();
    assert!(token > seq, "{token} after {seq}");
    lock.acquire("w3:2:y").await.ticket();
    lock.release(&["w5:1"]).await;
    lock.release(&["w3:2:y"]).await;
}

#[tokio::test]
async fn when_a_key_is_lost_a_renewal_answers_unknown_to_all_and_starts_over() {
    for lose in [
        &[""][..],
        &[":queue"],
        &[":leases"],
        &["", ":leases"],
        &["", ":queue"],
        &[":queue", ":leases"],
    ] {
        let (_server, mut lock, seq) = damaged(lose).await;
        let (_, standings) = lock.renew(&["r1:1", "r2:1:x", "w3:1:y", "r4:1"]).await;
        assert_eq!(standings, [-1; 4], "{lose:?}");
        if !lose.contains(&"") {
            assert!(lock.state().await.number("seq") >= seq, "{lose:?}");
        }
        works_again(&mut lock, seq).await;
    }
}

#[tokio::test]
async fn when_all_keys_are_lost_everybody_is_unknown_and_tokens_still_grow() {
    let (server, mut lock, seq) = damaged(&["", ":queue", ":leases"]).await;
    assert_eq!(lock.renew(&["r1:1", "w3:1:y"]).await, (-1, vec![-1, -1]));
    assert!(server.keys().await.is_empty());
    works_again(&mut lock, seq).await;
}

#[tokio::test]
async fn a_renewal_of_one_waiter_is_enough_to_notice_a_loss() {
    for lose in ["", ":queue", ":leases"] {
        let (_server, lock, _) = damaged(&[lose]).await;
        // Somebody who came after the loss, and holds or waits.
        lock.acquire("w6:1").await;
        let mut unknown = false;
        for _ in 0..3 {
            unknown |= lock.renew(&["w3:1:y"]).await.1 == [-1];
        }
        assert!(unknown, "{lose:?}");
        assert!(lock.state().await.queue.is_empty(), "{lose:?}");
    }
}

#[tokio::test]
async fn when_the_leases_are_lost_and_nobody_waits_a_try_enters() {
    let server = Server::start().await;
    let lock = Lock::new(&server, "a").await;
    lock.acquire_all(&["r1:1", "r2:1"]).await;
    let before = lock.state().await.number("seq");
    lock.run("DEL", &[&lock.keys[2]]).await;
    assert!(lock.attempt("w3:1").await.token() > before);
    assert_eq!(lock.renew(&["r1:1", "r2:1"]).await.1, [-1, -1]);
}

#[tokio::test]
async fn wrong_counts_are_noticed_by_a_renewal() {
    for (field, value) in [("rcount", "1"), ("rcount", "3"), ("wcount", "1"), ("rcount", "0")] {
        let (_server, mut lock, seq) = damaged(&[]).await;
        lock.run("HSET", &[&lock.keys[0], field, value]).await;
        let (next_ms, standings) = lock.renew(&["r1:1", "r4:1"]).await;
        assert_eq!((next_ms, standings), (-1, vec![-1, -1]), "{field}={value}");
        assert!(lock.state().await.number("seq") >= seq);
        works_again(&mut lock, seq).await;
    }
}

#[tokio::test]
async fn a_lock_that_starts_over_keeps_its_policy() {
    let (_server, mut lock) = lock().await;
    let asks = |request| Ask {
        policy: "w",
        ..ask(request)
    };
    lock.ask(asks("w1:1")).await;
    lock.ask(asks("w2:1")).await;
    lock.audited = false;
    lock.run("DEL", &[&lock.keys[1]]).await;
    assert_eq!(lock.renew(&["w2:1"]).await.1, [-1]);
    lock.audited = true;
    assert_eq!(lock.acquire("w3:1").await, Got::OtherPolicy(b'w'));
    lock.ask(asks("w2:2")).await.0.token();
}

#[tokio::test]
async fn a_release_after_a_loss_breaks_nothing() {
    for lose in ["", ":queue", ":leases"] {
        let (_server, mut lock, seq) = damaged(&[lose]).await;
        lock.release(&["r1:1"]).await;
        lock.release(&["w3:1:y", "r2:1:x"]).await;
        lock.renew(&["r4:1"]).await;
        let state = lock.state().await;
        if state.holding() == ["r4:1"] {
            assert_eq!(state.number("rcount"), 1);
            lock.release(&["r4:1"]).await;
        }
        works_again(&mut lock, seq).await;
    }
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_and_nothing_is_half_written() {
    let requests: [&[&str]; 3] = [&[], &["w1:1"], &["r1:1", "w2:1", "r3:1"]];
    for (foreign, before) in (0..3).flat_map(|key| requests.map(|before| (key, before))) {
        let (_server, mut lock) = lock().await;
        lock.acquire_all(before).await;
        lock.audited = false;
        lock.run("SET", &[&lock.keys[foreign], "somebody else's", "PX", "600000"])
            .await;
        let dump = lock.dump().await;
        let acquire = Lock::args_of(&ask("w9:1"));
        let renew = |request: &str| vec![request.to_owned(), "60000".to_owned()];
        let calls = [
            (ACQUIRE, acquire),
            (RENEW, renew("w9:1")),
            (RENEW, Vec::new()),
            (RENEW, renew(before.last().unwrap_or(&"w9:1"))),
            (RELEASE, vec!["w9:1".to_owned(), "w9:2".to_owned()]),
            (
                RELEASE,
                before
                    .iter()
                    .map(|r| (*r).to_owned())
                    .chain(["w9:3".to_owned()])
                    .collect(),
            ),
        ];
        for (script, args) in calls {
            match lock.call(script, &args).await {
                Err(error) => {
                    // Redis 6.2 has it in the text only.
                    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
                    assert_eq!(
                        lock.dump().await,
                        dump,
                        "key {foreign}, after {before:?}, {args:?}: half-written"
                    );
                }
                // A lock that has one request at most needs only its hash.
                Ok(_) => {
                    assert!(
                        foreign != 0 && before.len() < 2,
                        "key {foreign}, after {before:?}, {args:?}"
                    );
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn when_the_hash_is_lost_somebody_who_only_looks_starts_over_without_an_error() {
    let (_server, mut lock) = lock().await;
    lock.acquire_all(&["r1:1", "r2:1"]).await;
    lock.audited = false;
    lock.run("DEL", &[&lock.keys[0]]).await;
    for requests in [&[][..], &["w9:9"]] {
        let (next_ms, standings) = lock.renew(requests).await;
        assert_eq!((next_ms, standings), (-1, vec![-1; requests.len()]));
    }
    assert_eq!(lock.renew(&["r1:1"]).await.1, [-1]);
}

#[tokio::test]
async fn a_hash_that_is_lost_takes_its_queue_along_whoever_notices() {
    let asks = |request| Ask {
        policy: "w",
        ..ask(request)
    };
    for notices in 0..3 {
        let (_server, mut lock) = lock().await;
        lock.ask(asks("w1:1")).await;
        lock.ask(asks("w2:1")).await;
        lock.audited = false;
        lock.run("DEL", &[&lock.keys[0]]).await;
        match notices {
            0 => drop(lock.renew(&[]).await),
            1 => drop(lock.renew(&["w1:1"]).await),
            _ => assert_eq!(lock.release(&["w1:1", "w2:1"]).await.1, [0, 1]),
        }
        lock.audited = true;
        assert_eq!(lock.renew(&["w2:1"]).await.1, [-1]);
        lock.ask(asks("w3:1")).await.0.token();
        let ttl = lock.state().await.ttl;
        assert!(ttl[0] > 0, "{ttl:?}");
    }
}

#[tokio::test]
async fn a_lock_in_quarantine_with_a_queue_of_another_type_is_left_as_it_is() {
    let (_server, mut lock) = lock().await;
    lock.audited = false;
    lock.run("SET", &[&lock.keys[1], "somebody else's", "PX", "600000"])
        .await;
    let dump = lock.dump().await;
    let mut args = Lock::args_of(&ask("w9:1"));
    args.push("60000".to_owned());
    let error = lock.call(ACQUIRE, &args).await.unwrap_err();
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    assert_eq!(lock.dump().await, dump);
}

#[tokio::test]
async fn of_each_single_loss_that_ends_a_hold_its_next_renewal_tells() {
    let cases: [(&[&str], &[&str]); 4] = [
        (&["w1:1"], &["the state", "sole", "mode", "writer", "wcount", "t:1:1"]),
        (&["r1:1"], &["the state", "sole", "mode", "rcount", "r:1:1", "t:1:1"]),
        (
            &["w1:1", "w2:1:x", "r3:1"],
            &[
                "the state",
                "the queue",
                "the leases",
                "mode",
                "writer",
                "wcount",
                "seq",
                "t:1:1",
            ],
        ),
        (
            &["r1:1", "r4:1", "w2:1:x", "r3:1"],
            &[
                "the state",
                "the queue",
                "the leases",
                "mode",
                "rcount",
                "seq",
                "r:1:1",
                "t:1:1",
            ],
        ),
    ];
    for (requests, losses) in cases {
        for what in losses {
            let (_server, mut lock) = lock().await;
            lock.acquire_all(requests).await;
            lock.audited = false;
            lose(&lock, what).await;
            assert_eq!(
                lock.renew(&["r1:1", "w1:1"]).await.1,
                [-1, -1],
                "{requests:?} without {what}"
            );
            // Who has lost releases; then everybody else renews, and either knows that it lost too or goes on.
            lock.release(&requests[..1]).await;
            let told = lock.renew(requests).await.1;
            let unknown = requests.iter().zip(&told).filter(|(_, told)| **told == -1);
            let unknown: Vec<_> = unknown.map(|(request, _)| *request).collect();
            lock.release(&unknown).await;
            lock.renew(&[]).await;
            lock.audited = true;
            lock.release(requests).await;
            lock.attempt("w9:1").await.token();
        }
    }
}

#[tokio::test]
async fn what_a_single_loss_does_not_end_goes_on_and_keeps_others_out() {
    let cases: [(&[&str], &[&str]); 2] = [
        (&["w1:1"], &["seq", "keep", "cap"]),
        (&["w1:1", "w2:1:x", "r3:1"], &["keep", "cap", "q:x"]),
    ];
    for (requests, losses) in cases {
        for what in losses {
            let (_server, mut lock) = lock().await;
            let token = lock.acquire(requests[0]).await.token() as i64;
            lock.acquire_all(requests).await;
            lock.audited = false;
            lose(&lock, what).await;
            assert_eq!(lock.renew(&["w1:1"]).await.1, [token], "without {what}");
            assert_eq!(lock.attempt("w9:1").await, Got::Busy, "without {what}");
            assert_eq!(lock.release_told(&["w1:1"]).await.1, [token], "without {what}");
        }
    }
}

#[tokio::test]
async fn a_lone_hold_goes_on_beside_keys_of_another_type_and_nobody_else_enters() {
    for foreign in [1, 2] {
        let (_server, mut lock) = lock().await;
        let token = lock.acquire("w1:1").await.token() as i64;
        lock.audited = false;
        lock.run("SET", &[&lock.keys[foreign], "somebody else's"]).await;
        for _ in 0..3 {
            assert_eq!(lock.renew(&["w1:1"]).await.1, [token]);
            let refused = lock.call(ACQUIRE, &Lock::args_of(&ask("w2:1"))).await.unwrap_err();
            assert!(refused.to_string().contains("WRONGTYPE"), "{refused}");
        }
        lock.run("DEL", &[&lock.keys[foreign]]).await;
        assert_eq!(lock.attempt("w2:2").await, Got::Busy);
        assert_eq!(lock.release_told(&["w1:1"]).await.1, [token]);
    }
}
