//! What a recorder of metrics is told of a quorum.

use super::{Fleet, key};
use crate::observability::metrics::Recorded;
use crate::server::{eventually, soon};
use std::time::Duration;

#[tokio::test]
async fn a_server_that_was_never_reached_is_counted_until_it_is() {
    let recorded = Recorded::here();
    let mut fleet = Fleet::start(3).await;
    fleet.0[2].kill();
    let quorum = fleet.quorum_by(Fleet::builder()).await;
    recorded.is(&[("unreached ", 1), ("quorum_servers ", 3)]);
    fleet.0[2].start_again().await;
    recorded.until("unreached ", 0).await;
    assert_eq!((quorum.reached(), quorum.servers()), (3, 3));
    drop(quorum);
    recorded.until("quorum_servers ", 0).await;
}

#[tokio::test]
async fn a_hold_of_three_servers_is_one_hold_and_the_vote_that_one_of_them_loses_is_counted() {
    let recorded = Recorded::here();
    let mut fleet = Fleet::start(3).await;
    let quorum = fleet.quorum().await;
    let guard = quorum.rw_lock("x").write().acquire_fair().await.unwrap();
    eventually("all votes", async || guard.votes() == 3).await;
    recorded.is(&[
        ("held write", 1),
        ("grants_total write reply", 1),
        ("votes_lost_total write", 0),
    ]);
    fleet.0[0].kill();
    fleet.0[0].start_again().await;
    recorded.until("votes_lost_total write", 1).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    recorded.is(&[
        ("held write", 0),
        ("waiting write", 0),
        ("acquisitions_total write granted", 1),
        ("hold_seconds write released", 1),
        ("votes_lost_total write", 1),
    ]);
}

#[tokio::test]
async fn the_losses_of_a_quorums_holds_are_counted() {
    let recorded = Recorded::here();
    let fleet = Fleet::start(3).await;
    let quorum = fleet.quorum().await;
    let bounded = quorum.rw_lock("x").write().max_hold(Duration::from_millis(50));
    let _kept = bounded.acquire_fair().await.unwrap();
    recorded.until("lost_total write max_hold", 1).await;
    recorded.is(&[("held write", 0)]);
    // At a majority the hold is gone, and its release finds that out.
    let guard = quorum.rw_lock("y").write().acquire_fair().await.unwrap();
    eventually("all votes", async || guard.votes() == 3).await;
    for at in [0, 1] {
        let mut lose = redis::cmd("DEL");
        lose.arg(key("y"));
        lose.exec_async(&mut fleet.0[at].redis().await).await.unwrap();
    }
    soon("the release", guard.release()).await.expect_err("it was lost");
    recorded.is(&[("lost_total write unknown_to_server", 1), ("held write", 0)]);
}
