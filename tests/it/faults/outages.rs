//! A server that is frozen or refuses for a while: a hold lives if its lease does.

use super::{Line, lost};
use crate::lateness::{in_time, promise};
use crate::observe::{client, ms, until_free};
use crate::server::{Server, eventually};
use crate::users::write;
use fairlock::{Error, LostReason};
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_server_frozen_for_less_than_the_lease_loses_nobody() {
    in_time(async || {
        let server = Server::start().await;
        let client = client(server.url(), ms(6000)).await;
        let held = client.rw_lock("a").write().acquire_fair().await.unwrap();
        let line = Line::up(&server, &[&client], "a", 3).await;
        tokio::time::sleep(ms(1000)).await;
        server.freeze();
        tokio::time::sleep(ms(2500)).await;
        server.thaw();
        let before = server.script_calls().await;
        eventually("it renews again", async || server.script_calls().await >= before + 4).await;
        assert!(held.is_held());
        held.release().await.unwrap();
        assert_eq!(line.through().await.0, [0, 1, 2]);
        until_free(&server, "a").await;
    })
    .await;
}

#[tokio::test]
async fn holders_of_a_server_frozen_for_longer_than_the_lease_know_of_their_loss_before_it_thaws() {
    in_time(async || {
        let server = Server::start().await;
        let (a, b) = (
            client(server.url(), ms(1000)).await,
            client(server.url(), ms(1000)).await,
        );
        let held = a.rw_lock("a").write().acquire_fair().await.unwrap();
        let line = Line::up(&server, &[&a, &b], "a", 4).await;
        server.freeze();
        assert_eq!(lost(&held).await, LostReason::LeaseExpired);
        tokio::time::sleep(ms(1000)).await;
        server.thaw();
        let (mut order, tokens) = line.through().await;
        promise(tokens.iter().all(|token| *token > held.fencing_token()), "tokens grow");
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3]);
        assert!(matches!(held.release().await, Err(Error::Lost { .. })));
        until_free(&server, "a").await;
    })
    .await;
}

#[tokio::test]
async fn a_server_frozen_over_two_renewals_but_less_than_the_lease_costs_no_hold() {
    in_time(async || {
        let server = Server::start().await;
        let client = client(server.url(), ms(9000)).await;
        let held = client.rw_lock("a").write().acquire_fair().await.unwrap();
        // Renewals are due after 3 and 6 s and are given up after another second.
        tokio::time::sleep(ms(2500)).await;
        server.freeze();
        tokio::time::sleep(ms(4700)).await;
        server.thaw();
        tokio::time::sleep(ms(3000)).await;
        assert!(held.is_held(), "{:?}", held.lost().await);
    })
    .await;
}

#[tokio::test]
async fn a_hold_survives_an_outage_that_ends_before_its_lease() {
    in_time(async || {
        let lease = Duration::from_secs(6);
        let server = Server::start().await;
        let guard = write(&client(server.url(), lease).await.rw_lock("a")).await;
        // From here on: a renewal that is sent less than its time limit before the thaw is answered.
        let begun = Instant::now();
        let until = |ms| tokio::time::sleep_until((begun + Duration::from_millis(ms)).into());
        // It is renewed at 2 s: that fails, and so does the next time, at 4 s. The lease goes on until 6 s.
        until(1500).await;
        server.freeze();
        until(5300).await;
        server.thaw();
        let lost = tokio::time::timeout(Duration::from_secs(3), guard.lost()).await;
        assert!(lost.is_err(), "lost: {lost:?}");
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_hold_survives_refusals_that_end_before_its_lease() {
    in_time(async || {
        let server = Server::start().await;
        let mut redis = server.redis().await;
        let client = client(server.url(), Duration::from_secs(6)).await;
        let guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
        let begun = Instant::now();
        let until = |ms| tokio::time::sleep_until((begun + Duration::from_millis(ms)).into());
        // No connection is lost, and none is made again. The renewals of 2 s and of 4 s fail.
        until(1500).await;
        let mut rules = async |rules: &[&str]| {
            let mut command = redis::cmd("ACL");
            command.arg("SETUSER").arg("default").arg(rules);
            command.exec_async(&mut redis).await.unwrap();
        };
        rules(&["-@scripting"]).await;
        until(5000).await;
        rules(&["+@scripting"]).await;
        let lost = tokio::time::timeout(Duration::from_secs(3), guard.lost()).await;
        assert!(lost.is_err(), "lost: {lost:?}");
        guard.release().await.unwrap();
    })
    .await;
}
