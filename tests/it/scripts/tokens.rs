//! Tokens and tickets: exact, and always growing.

use super::{downgraded, lock};
use crate::lua::{Ask, Got, ask};

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
