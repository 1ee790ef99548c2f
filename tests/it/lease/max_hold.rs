//! The limit of a hold that its user sets.

use super::lost_because;
use crate::lateness::in_time;
use crate::observe::{LONG, View, client, ms};
use crate::server::{Server, soon};
use fairlock::LostReason;
use std::time::Instant;

#[tokio::test]
async fn renewals_never_move_a_deadline_beyond_max_hold() {
    in_time(async || {
        let server = Server::start().await;
        let client = client(server.url(), ms(1500)).await;
        let held = client
            .rw_lock("a")
            .write()
            .max_hold(ms(2500))
            .acquire_fair()
            .await
            .unwrap();
        let begun_ms = View::of(&server, "a").await.now_ms;
        let waiter = tokio::spawn(client.rw_lock("a").write().lease(LONG).acquire_fair());
        server.until_queued("a", 1).await;
        let name = View::of(&server, "a").await.leases[0].0.clone();
        while held.is_held() {
            let view = View::of(&server, "a").await;
            for (_, deadline) in view.leases.iter().filter(|(request, _)| *request == name) {
                // A renewal that is not cut, from 2000 ms on, leads beyond 3500 ms.
                assert!(*deadline <= begun_ms + 3000, "{} ms", deadline - begun_ms);
            }
            tokio::time::sleep(ms(10)).await;
        }
        assert_eq!(held.lost().await, LostReason::MaxHold);
        let _next = soon("the next enters", waiter).await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_hold_ends_at_max_hold_though_its_lease_is_longer() {
    let server = Server::start().await;
    let lock = client(server.url(), LONG).await.rw_lock("a");
    let begun = Instant::now();
    let held = lock.write().max_hold(ms(500)).acquire_fair().await.unwrap();
    let waiter = tokio::spawn(lock.write().acquire_fair());
    assert_eq!(soon("it is lost", held.lost()).await, LostReason::MaxHold);
    assert!(begun.elapsed() >= ms(450) && !held.is_held());
    let _next = soon("the next enters", waiter).await.unwrap().unwrap();
    assert_eq!(lost_because(&held.release().await), Some(LostReason::MaxHold));
}
