//! Every script by itself: its contract, what a second sending does, and what it leaves in the keys.

use crate::lua::{ACQUIRE, Ask, DOWNGRADE, EVICT, Got, LEASE_MS, Lock, PAST, RELEASE, RENEW, ask, owner_of, writes};
use crate::server::{Server, eventually, patient, soon};
use futures::StreamExt;
use redis::Value;

async fn lock() -> (Server, Lock) {
    let server = Server::start().await;
    let lock = Lock::new(&server, "a").await;
    (server, lock)
}

fn names(mode: char, client: &str, numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|n| format!("{mode}{client}:{n}")).collect()
}

// ---- one lock, nobody else

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
async fn numbers_of_16_digits_survive_exactly_and_grow() {
    let (_server, lock) = lock().await;
    let mut last = 0;
    for n in 0..20 {
        let request = format!("w1:{n}");
        let token = lock.acquire(&request).await.token();
        assert!(token > last && token > 1_000_000_000_000_000, "{token} after {last}");
        assert_eq!(lock.state().await.field("t:1:".to_owned().as_str()), None);
        assert_eq!(lock.state().await.number(&format!("t:1:{n}")), token);
        assert_eq!(lock.renew(&[&request]).await.1, [token as i64]);
        lock.release(&[&request]).await;
        last = token;
    }
}

#[tokio::test]
async fn tokens_count_on_when_the_clock_is_behind_and_stay_exact_near_the_limit() {
    let (_server, lock) = lock().await;
    // 2^51 and some: as far as the bands leave room, and later than the clock.
    let ahead = 2_251_799_813_685_301_u64;
    lock.run("HSET", &[&lock.keys[0], "seq", &ahead.to_string()]).await;
    lock.run("PEXPIRE", &[&lock.keys[0], "60000"]).await;
    for n in 1..=5 {
        let request = format!("w1:{n}");
        assert_eq!(lock.acquire(&request).await.token(), ahead + n);
        lock.release(&[&request]).await;
    }
    lock.acquire("w1:6").await;
    assert_eq!(lock.acquire("w1:7").await.ticket(), ahead + 7);
    assert_eq!(lock.acquire("w1:7").await.ticket(), ahead + 7, "told again");
}

// ---- sent twice

/// A walk through waiting, granting, reentry, upgrade and leaving; every script is sent `times` times.
async fn walk(lock: &Lock, times: usize) -> Vec<String> {
    let mut story = Vec::new();
    let steps = [
        "w1:1:a", "r1:2:a", "r2:1", "r2:2", "w3:1:c", "r4:1", "-w1:1:a", "r5:1:e", "-r1:2:a", "-r2:1", "w5:9:e",
        "-r2:2", "-w3:1:c", "r6:1", "w5:2:e", "-r4:1", "r6:2:e", "-r5:1:e", "-r6:2:e", "-r6:1", "-w5:2:e", "-w5:9:e",
    ];
    for step in steps {
        let mut first = None;
        for _ in 0..times {
            let answer = match step.strip_prefix('-') {
                Some(request) => format!("{:?}", lock.release(&[request]).await.1),
                None => match lock.acquire(step).await {
                    Got::Granted(_) => "granted".to_owned(),
                    Got::Queued(_) => "queued".to_owned(),
                    other => format!("{other:?}"),
                },
            };
            // A release says "unknown" afterwards; everything else says the same again.
            match &first {
                Some(_) if step.starts_with('-') => assert_eq!(answer, "[0]", "{step}"),
                Some(first) => assert_eq!(answer, *first, "{step}"),
                None => first = Some(answer),
            }
        }
        let state = lock.state().await;
        let mut hash = state.hash.clone();
        hash.retain(|field, _| !field.starts_with("t:") && !["seq", "keep", "sole"].contains(&field.as_str()));
        story.push(format!(
            "{step} {first:?} {:?} {:?} {hash:?}",
            state.holding(),
            state.waiting()
        ));
    }
    story
}

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

// ---- order

#[tokio::test]
async fn readers_and_writers_enter_in_the_order_in_which_they_asked() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w0:1", "r1:1", "r2:1", "w3:1", "w4:1", "r5:1"])
        .await;
    let turns: [(&[&str], &[&str]); 5] = [
        (&["w0:1"], &["r1:1", "r2:1"]),
        (&["r2:1"], &["r1:1"]),
        (&["r1:1"], &["w3:1"]),
        (&["w3:1"], &["w4:1"]),
        (&["w4:1"], &["r5:1"]),
    ];
    let mut last = 0;
    for (leaving, inside) in turns {
        lock.release(leaving).await;
        let state = lock.state().await;
        assert_eq!(state.holding(), inside);
        if inside.len() == 2 || writes(inside[0]) {
            for request in inside {
                let token = state.number(&format!("t:{}", owner_of(request)));
                assert!(token > last, "{request}: {token} after {last}");
                last = token;
            }
        }
    }
}

#[tokio::test]
async fn a_reader_never_passes_a_waiting_writer() {
    let (_server, lock) = lock().await;
    lock.acquire("r1:1").await;
    lock.acquire("w2:1").await.ticket();
    lock.acquire("r3:1").await.ticket();
    assert_eq!(lock.attempt("r4:1").await, Got::Busy);
}

#[tokio::test]
async fn a_try_that_is_refused_leaves_nothing_behind() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["r1:1", "w2:1"]).await;
    let before = lock.dump().await;
    for request in ["r3:1", "w3:2", "r3:3:x", "w3:4:x"] {
        assert_eq!(lock.attempt(request).await, Got::Busy);
        assert!(lock.renew_for(&[], 0).await.1.is_empty());
    }
    assert_eq!(lock.dump().await, before);
}

#[tokio::test]
async fn readers_behind_a_writer_that_cancels_enter_at_once() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["r1:1", "w2:1", "r3:1", "r4:1", "w5:1", "r6:1"])
        .await;
    assert_eq!(lock.release(&["w2:1"]).await.1, [1]);
    assert_eq!(lock.state().await.holding(), ["r1:1", "r3:1", "r4:1"]);
    lock.release(&["w5:1"]).await;
    assert_eq!(lock.state().await.holding(), ["r1:1", "r3:1", "r4:1", "r6:1"]);
}

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

/// What comes on a channel.
async fn pubsub(server: &Server, channel: &str) -> redis::aio::PubSubStream {
    let client = redis::Client::open(server.url()).unwrap();
    let (mut sink, stream) = client.get_async_pubsub().await.unwrap().split();
    sink.subscribe(channel).await.unwrap();
    // Dropped, it would end the connection.
    std::mem::forget(sink);
    stream
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

// ---- owners

#[tokio::test]
async fn an_owner_may_nest_any_modes_and_leave_in_any_order() {
    let (_server, lock) = lock().await;
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for modes in ["rrr", "rrw", "rwr", "rww", "wrr", "wrw", "wwr", "www"] {
        for order in orders {
            let requests: Vec<_> = modes
                .chars()
                .enumerate()
                .map(|(n, mode)| format!("{mode}1:{n}:me"))
                .collect();
            let mut last = 0;
            for (n, request) in requests.iter().enumerate() {
                // A second one waits from the beginning: reentry passes it.
                if n == 1 {
                    lock.acquire("w2:1").await.ticket();
                }
                let token = lock.acquire(request).await.token();
                let upgrades = n > 0 && writes(request) && requests[..n].iter().all(|r| !writes(r));
                assert!(
                    n == 0 || (token == last) != upgrades && token >= last,
                    "{modes}: {token} after {last}"
                );
                last = token;
            }
            for (left, n) in order.into_iter().enumerate() {
                assert_eq!(lock.state().await.waiting(), ["w2:1"], "{modes} {order:?} {left}");
                assert_eq!(lock.release(&[&requests[n]]).await.1, [2]);
            }
            assert_eq!(lock.state().await.holding(), ["w2:1"]);
            lock.release(&["w2:1"]).await;
        }
    }
}

#[tokio::test]
async fn a_writer_that_leaves_while_its_owner_still_reads_lets_the_readers_at_the_head_in() {
    let (_server, lock) = lock().await;
    let token = lock.acquire("w1:1:me").await.token();
    assert_eq!(lock.acquire("r1:2:me").await.token(), token);
    lock.acquire_all(&["r2:1", "r3:1", "w4:1", "r5:1"]).await;
    lock.release(&["w1:1:me"]).await;
    let state = lock.state().await;
    assert_eq!(state.field("mode"), Some("read"));
    assert_eq!(state.holding(), ["r1:2:me", "r2:1", "r3:1"]);
    assert_eq!(state.number("t:me"), token);
}

#[tokio::test]
async fn the_only_reader_upgrades_in_place_past_those_who_wait_and_gets_a_new_token() {
    let (_server, lock) = lock().await;
    let reading = lock.acquire("r1:1:me").await.token();
    lock.acquire("w2:1").await.ticket();
    let writing = lock.attempt("w1:2:me").await.token();
    assert!(writing > reading);
    lock.release(&["r1:1:me"]).await;
    assert_eq!(lock.state().await.holding(), ["w1:2:me"]);
    lock.release(&["w1:2:me"]).await;
    assert_eq!(lock.state().await.holding(), ["w2:1"]);
}

#[tokio::test]
async fn an_upgrade_waits_at_the_very_front_until_the_other_readers_left() {
    for policy in ["", "w", "r"] {
        let (_server, lock) = lock().await;
        let asks = |request| Ask { policy, ..ask(request) };
        for request in ["r1:1:me", "r2:1", "w3:1", "w1:2:me", "r4:1"] {
            lock.ask(asks(request)).await;
        }
        let state = lock.state().await;
        assert_eq!(state.waiting()[0], "w1:2:me", "{policy:?}");
        assert!(state.waiting().contains(&"r4:1"), "newcomers wait: {policy:?}");
        let now = Ask {
            only_now: true,
            ..asks("r5:1")
        };
        assert_eq!(lock.ask(now).await.0, Got::Busy, "{policy:?}");
        lock.release(&["r2:1"]).await;
        assert_eq!(lock.state().await.holding(), ["r1:1:me", "w1:2:me"], "{policy:?}");
    }
}

#[tokio::test]
async fn of_two_upgraders_the_second_gets_a_conflict_until_the_first_gave_up() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["r1:1:a", "r2:1:b", "w1:2:a"]).await;
    assert_eq!(lock.acquire("w2:2:b").await, Got::Conflict);
    assert_eq!(lock.attempt("w2:2:b").await, Got::Conflict);
    assert_eq!(lock.state().await.waiting(), ["w1:2:a"]);
    lock.release(&["w1:2:a"]).await;
    lock.acquire("w2:3:b").await.ticket();
    assert_eq!(lock.acquire("w1:3:a").await, Got::Conflict);
    lock.die(&["w2:3:b"]).await;
    lock.acquire("w1:4:a").await.ticket();
}

#[tokio::test]
async fn an_owner_that_waits_is_refused_a_second_place_of_either_mode() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "w2:1:me"]).await;
    for request in ["w2:2:me", "r2:3:me", "w9:9:me"] {
        assert_eq!(lock.acquire(request).await, Got::OwnerWaits);
        assert_eq!(lock.attempt(request).await, Got::OwnerWaits);
    }
    lock.release(&["w2:1:me"]).await;
    lock.acquire("r2:4:me").await.ticket();
    lock.release(&["w1:1"]).await;
    assert_eq!(
        lock.acquire("r2:5:me").await.token(),
        lock.state().await.number("t:me"),
        "inside, it reenters"
    );
}

// ---- policies

async fn order_under(policy: &str) -> Vec<String> {
    let (_server, lock) = lock().await;
    for request in ["w0:1", "r1:1", "w2:1", "r3:1", "w4:1", "r5:1"] {
        lock.ask(Ask { policy, ..ask(request) }).await;
    }
    lock.state().await.queue
}

#[tokio::test]
async fn a_policy_puts_one_mode_first_and_keeps_the_order_within_each() {
    assert_eq!(order_under("").await, ["r1:1", "w2:1", "r3:1", "w4:1", "r5:1"]);
    assert_eq!(order_under("w").await, ["w2:1", "w4:1", "r1:1", "r3:1", "r5:1"]);
    assert_eq!(order_under("r").await, ["r1:1", "r3:1", "r5:1", "w2:1", "w4:1"]);
}

#[tokio::test]
async fn under_reader_first_a_reader_passes_a_waiting_writer_but_not_a_writer_inside() {
    let (_server, lock) = lock().await;
    let asks = |request| Ask {
        policy: "r",
        ..ask(request)
    };
    lock.ask(asks("r1:1")).await;
    lock.ask(asks("w2:1")).await.0.ticket();
    lock.ask(asks("r3:1")).await.0.token();
    lock.release(&["r1:1", "r3:1"]).await;
    assert_eq!(lock.state().await.holding(), ["w2:1"]);
    lock.ask(asks("r4:1")).await.0.ticket();
}

#[tokio::test]
async fn another_policy_than_the_stored_one_is_refused_and_named() {
    for (stored, other, code) in [("", "w", 0), ("w", "", b'w'), ("r", "w", b'r')] {
        let (_server, lock) = lock().await;
        lock.ask(Ask {
            policy: stored,
            ..ask("w1:1")
        })
        .await;
        for held in [true, false] {
            let (got, ..) = lock
                .ask(Ask {
                    policy: other,
                    ..ask("r2:1")
                })
                .await;
            assert_eq!(got, Got::OtherPolicy(code), "{stored:?} {other:?}");
            if held {
                lock.release(&["w1:1"]).await;
            }
        }
        lock.ask(Ask {
            policy: stored,
            ..ask("w1:2")
        })
        .await
        .0
        .token();
    }
}

#[tokio::test]
async fn an_old_ticket_restores_the_place_in_the_queue() {
    for policy in ["", "w", "r"] {
        let (_server, lock) = lock().await;
        let asks = |request| Ask { policy, ..ask(request) };
        lock.ask(asks("w0:1")).await;
        let ticket = lock.ask(asks("w1:1")).await.0.ticket();
        for request in ["r2:1", "w3:1"] {
            lock.ask(asks(request)).await;
        }
        let before = lock.state().await.queue;
        lock.release(&["w1:1"]).await;
        let again = Ask {
            ticket: Some(ticket),
            ..asks("w1:2")
        };
        for _ in 0..2 {
            assert_eq!(lock.ask(again).await.0, Got::Queued(ticket));
        }
        let after: Vec<_> = lock
            .state()
            .await
            .queue
            .iter()
            .map(|r| r.replace("1:2", "1:1"))
            .collect();
        assert_eq!(after, before, "{policy:?}");
    }
}

#[tokio::test]
async fn an_old_ticket_enters_before_younger_waiters_if_the_holders_let_it_in() {
    let (_server, lock) = lock().await;
    lock.acquire("w0:1").await;
    let ticket = lock.acquire("r1:1").await.ticket();
    lock.acquire("w2:1").await;
    lock.release(&["r1:1"]).await;
    lock.release(&["w0:1"]).await;
    lock.release(&["w2:1"]).await;
    lock.acquire_all(&["r3:1", "w4:1"]).await;
    lock.ask(Ask {
        ticket: Some(ticket),
        ..ask("r1:2")
    })
    .await
    .0
    .token();
    lock.acquire("r5:1").await.ticket();
}

// ---- expiry

#[tokio::test]
async fn a_dead_holder_makes_way_for_a_newcomer() {
    let (_server, lock) = lock().await;
    for (dead, next) in [("w1:1", "w2:1"), ("r1:2", "w2:2"), ("w1:3:me", "r2:3")] {
        let token = lock.acquire(dead).await.token();
        lock.die(&[dead]).await;
        assert!(lock.attempt(next).await.token() > token);
        assert_eq!(lock.renew(&[dead]).await.1, [-1]);
        assert_eq!(lock.release(&[dead]).await.1, [0]);
        assert_eq!(lock.state().await.holding(), [next]);
        lock.release(&[next]).await;
    }
}

#[tokio::test]
async fn a_dead_holder_makes_way_for_who_waits_when_anybody_renews() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "r2:1", "w3:1"]).await;
    lock.die(&["w1:1"]).await;
    let (_, standings) = lock.renew(&["w3:1", "r2:1"]).await;
    assert_eq!(standings[0], 0);
    assert_eq!(standings[1], lock.state().await.number("t:2:1") as i64);
}

#[tokio::test]
async fn the_dead_at_the_head_are_skipped_however_many_they_are() {
    for (mode, dead) in [('w', 3), ('w', 199), ('w', 700), ('r', 700), ('r', 2500)] {
        let (_server, lock) = lock().await;
        lock.acquire("w1:1").await;
        let waiters = names(mode, "2", 0..dead);
        lock.fill(&waiters).await;
        lock.acquire("r3:1").await.ticket();
        let (leases, mut die) = (lock.keys[2].clone(), redis::pipe());
        for request in &waiters {
            die.cmd("ZADD").arg(&leases).arg("XX").arg(PAST).arg(request).ignore();
        }
        die.exec_async(&mut lock.redis.clone()).await.unwrap();
        let (mut next_ms, _) = lock.release(&["w1:1"]).await;
        let mut calls = 1;
        while next_ms == 0 {
            let holding = lock.state().await.holding().join(" ");
            assert!(["", "r3:1"].contains(&holding.as_str()), "the dead got in: {holding}");
            next_ms = lock.renew(&[]).await.0;
            calls += 1;
        }
        assert!(calls <= 2 + dead / 200, "{calls} calls for {dead}");
        assert_eq!(calls > 1, dead > 200, "at most 200 expire in one call");
        let state = lock.state().await;
        assert_eq!((state.holding(), state.waiting().len()), (vec!["r3:1"], 0));
    }
}

#[tokio::test]
async fn a_newcomer_does_not_pass_who_waits_behind_more_dead_than_one_call_can_skip() {
    let (_server, lock) = lock().await;
    lock.acquire("w1:1").await;
    let dead = names('w', "2", 0..2500);
    lock.fill(&dead).await;
    lock.acquire("w3:1").await.ticket();
    let (leases, mut die) = (lock.keys[2].clone(), redis::pipe());
    for request in &dead {
        die.cmd("ZADD").arg(&leases).arg("XX").arg(PAST).arg(request).ignore();
    }
    die.exec_async(&mut lock.redis.clone()).await.unwrap();
    let (mut next_ms, _) = lock.release(&["w1:1"]).await;
    assert_eq!(
        (next_ms, lock.state().await.holding().len()),
        (0, 0),
        "nobody is in, and somebody waits"
    );
    lock.acquire("w4:1").await.ticket();
    while next_ms == 0 {
        next_ms = lock.renew(&[]).await.0;
    }
    let state = lock.state().await;
    assert_eq!((state.holding(), state.waiting()), (vec!["w3:1"], vec!["w4:1"]));
}

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

#[tokio::test]
async fn a_release_grants_to_nobody_who_is_dead_and_leaves_no_trace_of_him() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "w2:1:x", "r3:1", "r4:1", "w5:1"]).await;
    lock.die(&["w2:1:x", "r4:1"]).await;
    lock.release(&["w1:1"]).await;
    let state = lock.state().await;
    assert_eq!((state.holding(), state.waiting()), (vec!["r3:1"], vec!["w5:1"]));
    assert_eq!(state.leases.len(), 2);
}

#[tokio::test]
async fn the_last_one_to_leave_does_not_wait_for_the_dead_behind_it() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "r2:1", "w3:1:x"]).await;
    lock.die(&["r2:1", "w3:1:x"]).await;
    lock.release(&["w1:1"]).await;
    let state = lock.state().await;
    assert!(
        state.holding().is_empty() && state.leases.is_empty() && state.queue.is_empty(),
        "{state:?}"
    );
}

#[tokio::test]
async fn what_comes_late_still_counts_if_nobody_took_over() {
    let (_server, lock) = lock().await;
    let token = lock.acquire("w1:1").await.token() as i64;
    lock.die(&["w1:1"]).await;
    assert_eq!(lock.renew(&["w1:1"]).await.1, [token], "a sole holder");
    lock.acquire("w2:1").await;
    lock.die(&["w1:1"]).await;
    assert_eq!(lock.renew(&["w1:1"]).await.1, [token], "before one that waits");
    lock.die(&["w1:1"]).await;
    assert_eq!(lock.acquire("w1:1").await, Got::Granted(token as u64), "asking again");
    lock.die(&["w2:1"]).await;
    assert_eq!(lock.renew(&["w2:1"]).await.1, [0], "a waiter");
    lock.die(&["w1:1"]).await;
    assert_eq!(lock.release(&["w1:1"]).await.1, [2], "a release");
    assert_eq!(lock.state().await.holding(), ["w2:1"]);
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
async fn a_dead_reader_goes_within_its_own_lease_though_another_renews() {
    let (_server, lock) = lock().await;
    lock.ask(Ask {
        lease_ms: 300,
        ..ask("r1:1")
    })
    .await;
    lock.acquire_all(&["r2:1", "w3:1"]).await;
    eventually("the dead reader gone", async || {
        lock.renew(&["r2:1", "w3:1"]).await;
        lock.state().await.holding() == ["r2:1"]
    })
    .await;
    lock.release(&["r2:1"]).await;
    assert_eq!(lock.state().await.holding(), ["w3:1"]);
}

#[tokio::test]
async fn a_short_lease_never_shortens_a_long_one() {
    let (_server, lock) = lock().await;
    lock.ask(Ask {
        lease_ms: LEASE_MS,
        ..ask("r1:1")
    })
    .await;
    let (got, next_ms, _) = lock
        .ask(Ask {
            lease_ms: 200,
            ..ask("w2:1")
        })
        .await;
    got.ticket();
    assert!(next_ms <= 200, "{next_ms}");
    eventually("the short one gone", async || {
        let (next_ms, _) = lock.renew(&[]).await;
        lock.state().await.waiting().is_empty() && next_ms > 1000
    })
    .await;
    assert_eq!(lock.state().await.holding(), ["r1:1"]);
    assert_eq!(
        lock.ask(Ask {
            lease_ms: 200,
            only_now: true,
            ..ask("w2:2")
        })
        .await
        .0,
        Got::Busy
    );
    assert_eq!(lock.state().await.number("cap"), LEASE_MS);
}

#[tokio::test]
async fn the_keys_outlive_a_lease_that_came_after_shorter_ones() {
    let (_server, lock) = lock().await;
    lock.ask(Ask {
        lease_ms: 200,
        ..ask("r1:1")
    })
    .await;
    lock.ask(Ask {
        lease_ms: 200,
        ..ask("w2:1")
    })
    .await;
    lock.renew_for(&["w2:1"], 300_000).await;
    let ttl = lock.state().await.ttl;
    assert!(ttl.iter().all(|ttl| *ttl > 300_000), "{ttl:?}");
}

#[tokio::test]
async fn a_pulled_back_clock_leaves_no_deadline_farther_than_the_longest_lease() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "w2:1", "w3:1"]).await;
    let hours_ahead = lock.state().await.now_ms + 7_200_000;
    lock.set_deadline("w1:1", hours_ahead).await;
    lock.set_deadline("w2:1", hours_ahead).await;
    let (next_ms, _) = lock.renew_for(&["w3:1"], LEASE_MS).await;
    assert!(next_ms <= LEASE_MS as i64);
    let state = lock.state().await;
    for request in ["w1:1", "w2:1", "w3:1"] {
        assert!(
            state.deadline(request) <= Some(state.now_ms + LEASE_MS),
            "{request}: {state:?}"
        );
    }
}

#[tokio::test]
async fn a_pulled_back_clock_keeps_no_crowd_alive_for_longer_than_a_lease() {
    let (_server, lock) = lock().await;
    let dead: Vec<_> = (1..450).map(|n| format!("w1:{n}")).collect();
    lock.fill(&dead).await;
    lock.acquire("w2:1").await.ticket();
    let hours_ahead = lock.state().await.now_ms + 7_200_000;
    for request in &dead {
        lock.set_deadline(request, hours_ahead).await;
    }
    let (mut next_ms, _) = lock.renew(&["w2:1"]).await;
    let mut calls = 1;
    while next_ms == 0 {
        (next_ms, _) = lock.renew(&[]).await;
        calls += 1;
    }
    assert_eq!(calls, 3, "200 a call, and it says when there is more");
    let state = lock.state().await;
    let last = dead.iter().filter_map(|request| state.deadline(request)).max();
    assert!(last <= Some(state.now_ms + LEASE_MS), "{last:?}");
}

#[tokio::test]
async fn a_pulled_back_clock_is_noticed_too_when_the_dead_holder_was_alone() {
    let (_server, lock) = lock().await;
    lock.acquire("w1:1").await;
    let hours_ahead = lock.state().await.now_ms + 7_200_000;
    lock.set_deadline("w1:1", hours_ahead).await;
    lock.acquire("w2:1").await.ticket();
    lock.renew(&["w2:1"]).await;
    assert!(lock.state().await.deadline("w1:1") < Some(hours_ahead - 3_600_000));
}

// ---- damage

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

// ---- keys

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
    lock.run("HSET", &[a, "rcount", "7"]).await;
    let lock = Lock { audited: false, ..lock };
    assert_eq!(lock.renew(&["r3:1"]).await.1, [-1]);
    // A message that is refused is no error to a script.
    let denied = owner.run("ACL", &["LOG"]).await;
    assert_eq!(denied, Value::Array(Vec::new()));
}

// ---- cost

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

// ---- found by tests/attack: the model beside the scripts

async fn downgraded(lock: &Lock, from: &str, to: &str) -> Vec<i64> {
    let args = [from, to, &LEASE_MS.to_string()].map(str::to_owned);
    lock.call(DOWNGRADE, &args).await.unwrap()
}

#[tokio::test]
async fn a_downgrade_of_the_only_request_left_leaves_leases_that_expire() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "r2:1"]).await;
    lock.release(&["r2:1"]).await;
    downgraded(&lock, "w1:1", "r1:2:1:1").await;
    let ttl = lock.state().await.ttl;
    assert!(ttl[2] > 0, "{ttl:?}");
}

#[tokio::test]
async fn a_newcomer_behind_nobody_but_the_dead_leaves_leases_that_expire() {
    let (_server, lock) = lock().await;
    lock.acquire("w1:1").await;
    // One call expires 200, and then drops the rest from the head.
    let dead = names('w', "2", 0..250);
    lock.fill(&dead).await;
    let mut die = redis::pipe();
    for request in dead.iter().map(String::as_str).chain(["w1:1"]) {
        die.cmd("ZADD")
            .arg(&lock.keys[2])
            .arg("XX")
            .arg(PAST)
            .arg(request)
            .ignore();
    }
    die.exec_async(&mut lock.redis.clone()).await.unwrap();
    lock.attempt("w3:1").await.token();
    let ttl = lock.state().await.ttl;
    assert!(ttl[2] > 0, "{ttl:?}");
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

/// The owner `x` writes by `w3:3:x`, while its `w3:1:x` waits behind `w2:1`.
async fn overtaken() -> (Server, Lock) {
    let (server, lock) = lock().await;
    let asks = |request| Ask {
        policy: "r",
        ..ask(request)
    };
    for request in ["r1:1", "w2:1", "w3:1:x", "r3:2:x"] {
        lock.ask(asks(request)).await;
    }
    lock.release(&["r1:1"]).await;
    // The only reader is let past both who wait, one of which is its own.
    lock.ask(asks("w3:3:x")).await.0.token();
    (server, lock)
}

#[tokio::test]
async fn a_request_that_its_owner_overtook_leaves_the_queue_and_not_the_lock() {
    let (_server, lock) = overtaken().await;
    assert_eq!(lock.release(&["w3:1:x"]).await.1, [1]);
    let state = lock.state().await;
    assert_eq!(state.field("writer"), Some("x"), "it writes on: {state:?}");
    assert_eq!(lock.release(&["w3:3:x"]).await.1, [2]);
}

#[tokio::test]
async fn an_orphan_of_a_downgraded_writer_ends_without_its_reader() {
    let (_server, lock) = lock().await;
    lock.acquire("w1:1").await;
    downgraded(&lock, "w1:1", "r1:2:1:1").await;
    lock.acquire("r2:1").await.token();
    lock.acquire("r3:1").await.token();
    // Sent long ago, and executed now.
    lock.acquire("w1:1").await.ticket();
    // A call begins with reading what its first request's owner holds: here that is another.
    assert_eq!(lock.release(&["r3:1", "w1:1", "r1:2:1:1"]).await.1, [2, 1, 2]);
    let state = lock.state().await;
    assert_eq!((state.holding(), state.field("rcount")), (vec!["r2:1"], Some("1")));
}

#[tokio::test]
async fn an_orphan_that_ends_in_the_call_of_its_owner_leaves_it_its_token() {
    let (_server, mut lock) = lock().await;
    let asks = |request| Ask {
        policy: "w",
        ..ask(request)
    };
    lock.ask(asks("w1:1")).await;
    // The reader's was sent long ago, and is executed now.
    for request in ["r3:1", "w3:3:3:1"] {
        lock.ask(asks(request)).await.0.ticket();
    }
    // It could enter beside its own writer, which the audit takes for a head that was left out.
    lock.audited = false;
    lock.release(&["w1:1"]).await;
    let token = lock.state().await.number("t:3:1");
    lock.die(&["r3:1"]).await;
    assert_eq!(lock.ask(asks("w3:3:3:1")).await.0, Got::Granted(token));
    assert_eq!(lock.state().await.field("wcount"), Some("1"));
}

#[tokio::test]
async fn an_orphan_that_upgrades_ends_with_the_read_hold_of_its_owner() {
    let (_server, lock) = lock().await;
    lock.acquire("w1:1").await.token();
    downgraded(&lock, "w1:1", "r1:2:1:1").await;
    lock.acquire("r2:1").await.token();
    // Sent long ago, and executed now: its owner reads, so it is an upgrade.
    lock.acquire("w1:1").await.ticket();
    assert_eq!(lock.release(&["r1:2:1:1"]).await.1, [2]);
    assert_eq!(lock.release(&["r2:1"]).await.1, [2]);
    assert!(lock.state().await.leases.is_empty());
    lock.acquire("r3:1").await.token();
    lock.acquire("r4:1").await.token();
    lock.acquire("w3:2:3:1").await.ticket();
}

#[tokio::test]
async fn an_orphan_that_waits_is_released_and_not_its_owners_other_hold() {
    let (_server, mut lock) = lock().await;
    let asks = |request| Ask {
        policy: "w",
        ..ask(request)
    };
    lock.ask(asks("w2:1")).await;
    // The reader's was sent long ago, and is executed now.
    for request in ["r1:7", "w1:8:1:7", "w4:1"] {
        lock.ask(asks(request)).await.0.ticket();
    }
    assert_eq!(lock.release(&["w2:1"]).await.1, [2]);
    assert_eq!(lock.state().await.holding(), ["w1:8:1:7"]);
    downgraded(&lock, "w1:8:1:7", "r1:9:1:7").await;
    assert_eq!(lock.release(&["r1:7"]).await.1, [1]);
    let state = lock.state().await;
    assert_eq!((state.holding(), state.waiting()), (vec!["r1:9:1:7"], vec!["w4:1"]));
    // The same when its lease ends.
    lock.ask(asks("r1:7")).await.0.token();
    lock.die(&["r1:7"]).await;
    lock.audited = false;
    lock.renew(&[]).await;
    assert!(lock.state().await.holding().contains(&"r1:9:1:7"));
}

#[tokio::test]
async fn a_downgrade_of_a_request_that_waits_leaves_what_its_owner_holds() {
    let (_server, lock) = overtaken().await;
    assert_eq!(downgraded(&lock, "w3:1:x", "r3:4:x").await[1], -1);
    assert_eq!(lock.state().await.field("writer"), Some("x"));
    assert_eq!(lock.release(&["w3:1:x", "w3:3:x"]).await.1, [1, 2]);
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
async fn a_new_ticket_is_behind_an_old_one_that_is_ahead_of_the_clock() {
    let (_server, lock) = lock().await;
    let seq = lock.acquire("r1:1").await.token();
    let ahead = Ask {
        ticket: Some(seq + 60_000_000),
        ..ask("w2:1")
    };
    assert_eq!(lock.ask(ahead).await.0, Got::Queued(seq + 60_000_000));
    assert!(lock.acquire("r3:1").await.ticket() > seq + 60_000_000);
    lock.release(&["r1:1"]).await;
    assert_eq!(lock.state().await.holding(), ["w2:1"]);
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

// ---- found by a model that was made from PROTOCOL.md

#[tokio::test]
async fn an_orphan_that_is_let_in_beside_its_owners_other_hold_is_counted_with_it() {
    let (_server, lock) = lock().await;
    let asks = |request| Ask {
        policy: "w",
        ..ask(request)
    };
    lock.ask(asks("w0:1")).await;
    // Sent long ago, and executed now.
    for request in ["r1:7", "w1:8:1:7", "w5:1"] {
        lock.ask(asks(request)).await.0.ticket();
    }
    lock.release(&["w0:1"]).await;
    downgraded(&lock, "w1:8:1:7", "r1:9:1:7").await;
    // The script that lets the orphan in is about somebody else.
    lock.release(&["w5:1"]).await;
    let state = lock.state().await;
    assert_eq!(state.holding(), ["r1:7", "r1:9:1:7"]);
    assert_eq!(state.field("r:1:7"), Some("2"));
    assert_eq!(lock.release(&["r1:7", "r1:9:1:7"]).await.1, [2, 2]);
}

/// Two readers, one of which waits to write, and a writer of a named owner; then the queue is lost.
async fn without_its_queue() -> (Server, Lock) {
    let (server, mut lock) = lock().await;
    lock.acquire_all(&["r1:1:a", "r2:1:b", "w1:2:a", "w3:1:c"]).await;
    lock.audited = false;
    lock.run("DEL", &[&lock.keys[1]]).await;
    (server, lock)
}

#[tokio::test]
async fn when_the_queue_is_lost_nobody_is_told_that_he_waits_there() {
    let (_server, lock) = without_its_queue().await;
    lock.acquire("w3:2:c").await.ticket();
    lock.acquire("w2:2:b").await.ticket();
    let (_server, lock) = without_its_queue().await;
    assert_eq!(lock.release(&["w1:2:a", "w3:1:c"]).await.1, [0, 0]);
    let fields = lock.state().await.hash;
    assert!(!fields.keys().any(|field| field.starts_with("q:")), "{fields:?}");
    lock.acquire("w2:2:b").await.ticket();
    lock.acquire("w3:2:c").await.ticket();
}

#[tokio::test]
async fn an_upgrade_that_is_sent_again_after_the_queue_was_lost_does_not_hold_beside_readers() {
    let (_server, lock) = without_its_queue().await;
    lock.acquire("w1:2:a").await.ticket();
    // One whose owner does what it asks for, by another request.
    let (_server, mut lock) = overtaken().await;
    lock.audited = false;
    let token = lock.state().await.number("t:x");
    lock.run("DEL", &[&lock.keys[1]]).await;
    let again = Ask {
        policy: "r",
        ..ask("w3:1:x")
    };
    assert!(lock.ask(again).await.0.token() > token, "everybody else has lost");
    assert_eq!(lock.state().await.holding(), ["w3:1:x"]);
}

#[tokio::test]
async fn owners_are_evicted_by_their_very_name() {
    let (_server, lock) = lock().await;
    for owner in ["a[b", "a[bc]", "back\\slash", "*", "?", "[^a]"] {
        let request = format!("r1:1:{owner}");
        lock.acquire_all(&["r2:1:ab", "r2:2:b", "r2:3", &request]).await;
        let owner = [owner.to_owned()];
        assert_eq!(lock.call(EVICT, &owner).await.unwrap()[1], 1, "{owner:?}");
        assert_eq!(lock.call(EVICT, &owner).await.unwrap()[1], 0, "{owner:?}");
        assert_eq!(lock.state().await.holding(), ["r2:1:ab", "r2:2:b", "r2:3"]);
    }
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

#[tokio::test]
async fn an_owner_that_waits_is_told_by_which_request_if_it_is_of_the_same_client() {
    let (_server, lock) = lock().await;
    lock.acquire_all(&["w1:1", "w2:17:me"]).await;
    for (request, number) in [("r2:18:me", 17), ("r3:1:me", 0), ("w2f:1:me", 0)] {
        let reply = lock.call(ACQUIRE, &Lock::args_of(&ask(request))).await.unwrap();
        assert_eq!(reply[..2], [-2, number], "{request}");
    }
}

#[tokio::test]
async fn a_token_is_greater_than_an_old_ticket_that_is_ahead_of_the_clock() {
    for held in [&[][..], &["r1:1"], &["r1:1", "w1:2"]] {
        let (_server, lock) = lock().await;
        lock.acquire("r9:1").await;
        lock.release(&["r9:1"]).await;
        lock.acquire_all(held).await;
        let ticket = lock.state().await.number("seq") + 60_000_000;
        let again = Ask {
            ticket: Some(ticket),
            ..ask("r2:1")
        };
        match lock.ask(again).await.0 {
            Got::Granted(token) => assert!(token > ticket, "{token} for {ticket}, {held:?}"),
            waits => assert_eq!(waits, Got::Queued(ticket)),
        }
    }
}

#[tokio::test]
async fn a_hold_that_was_interrupted_is_told_a_greater_token_than_its_own() {
    for (request, alone) in [("r1:1", true), ("w1:1", true), ("r1:1:x", false), ("w1:1:x", false)] {
        let (_server, lock) = lock().await;
        let token = lock.acquire(request).await.token() as i64;
        lock.run("DEL", &[&lock.keys[0], &lock.keys[1], &lock.keys[2]]).await;
        lock.acquire("w2:1").await.token();
        lock.release(&["w2:1"]).await;
        // Sent long ago, and executed now.
        lock.acquire(request).await.token();
        if !alone {
            lock.acquire("r1:2:x").await.token();
        }
        let (_, told) = lock.renew(&[request]).await;
        assert!(told[0] > token, "{request}: {told:?} after {token}");
        assert_eq!(lock.release_told(&[request]).await.1, told, "{request}");
    }
}

#[tokio::test]
async fn a_read_hold_is_told_with_which_token_its_owner_came_in_whatever_its_owner_does_since() {
    let (_server, lock) = lock().await;
    let came = lock.acquire("r1:1").await.token() as i64;
    let wrote = lock.acquire("w1:2:1:1").await.token() as i64;
    assert!(wrote > came);
    assert_eq!(lock.renew(&["r1:1", "w1:2:1:1"]).await.1, [came, wrote]);
    // It reenters with the token by which it writes, and that is no interruption either.
    assert_eq!(lock.acquire("r1:3:1:1").await.token() as i64, wrote);
    assert_eq!(lock.renew(&["r1:3:1:1"]).await.1, [came]);
    assert_eq!(downgraded(&lock, "w1:2:1:1", "r1:4:1:1").await[1], wrote);
    let again = lock.acquire("w1:5:1:1").await.token() as i64;
    assert!(again > wrote);
    assert_eq!(
        lock.renew(&["r1:1", "r1:3:1:1", "r1:4:1:1", "w1:5:1:1"]).await.1,
        [came, came, came, again]
    );
    let all = ["w1:5:1:1", "r1:3:1:1", "r1:4:1:1", "r1:1"];
    let told: Vec<_> = [again, came, came, came].into();
    for (request, told) in all.into_iter().zip(told) {
        assert_eq!(lock.release_told(&[request]).await.1, [told], "{request}");
    }
    assert!(!lock.state().await.hash.keys().any(|field| field.starts_with("f:")));
}

#[tokio::test]
async fn an_upgrade_ends_with_the_last_read_hold_of_its_owner_and_is_told_so() {
    for ends in ["released", "expired", "evicted", "both released"] {
        let (server, lock) = lock().await;
        let mut listening = pubsub(&server, "fairlock:c:1").await;
        lock.acquire_all(&["r1:1:a", "r1:2:a", "r2:1", "w1:3:a", "r4:1"]).await;
        lock.release(&["r1:1:a"]).await;
        assert_eq!(lock.state().await.waiting(), ["w1:3:a", "r4:1"], "it reads on");
        match ends {
            "released" => assert_eq!(lock.release(&["r1:2:a"]).await.1, [2]),
            "both released" => assert_eq!(lock.release(&["r1:2:a", "w1:3:a"]).await.1, [2, 0]),
            "evicted" => assert_eq!(lock.call(EVICT, &["a".to_owned()]).await.unwrap()[1], 2),
            _ => {
                lock.die(&["r1:2:a"]).await;
                lock.renew(&[]).await;
            }
        }
        let state = lock.state().await;
        // It holds up nobody, and the next upgrade is not in conflict with it.
        assert_eq!(
            (state.holding(), state.waiting()),
            (vec!["r2:1", "r4:1"], vec![]),
            "{ends}"
        );
        assert_eq!(lock.renew(&["w1:3:a"]).await.1, [-1]);
        lock.acquire("w2:2:2:1").await.ticket();
        let message: String = soon("a message", listening.next())
            .await
            .expect("a message")
            .get_payload()
            .unwrap();
        let told = if ends == "evicted" { "w1:3:a 0" } else { "w1:3:a 1" };
        assert!(message.contains(told), "{ends}: {message}");
    }
}

// ---- single losses: what docs/failures.md says of them

/// Takes away one key, or one field of the hash.
async fn lose(lock: &Lock, what: &str) {
    let [state, queue, leases] = &lock.keys;
    let lost = match what {
        "the state" => lock.run("DEL", &[state]).await,
        "the queue" => lock.run("DEL", &[queue]).await,
        "the leases" => lock.run("DEL", &[leases]).await,
        field => lock.run("HDEL", &[state, field]).await,
    };
    assert_eq!(lost, Value::Int(1), "there was no {what}");
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
async fn a_batch_whose_mark_was_lost_is_continued_by_renewals() {
    let (_server, mut lock) = first_batch(2500).await;
    lock.audited = false;
    lose(&lock, "more").await;
    assert_eq!(lock.renew(&[]).await.0, 0);
    lock.renew(&[]).await;
    let state = lock.state().await;
    assert_eq!((state.holding().len(), state.waiting()), (2500, vec!["w3:1"]));
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
