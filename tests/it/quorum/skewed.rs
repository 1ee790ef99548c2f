//! Servers with clocks of their own.

use super::connecting::why;
use super::{Fleet, LEASE};
use crate::server::{Server, program, soon};
use fairlock::Error;
use fairlock_support::clock::FakeClock;

#[tokio::test]
async fn servers_whose_clocks_are_a_longest_lease_apart_make_no_quorum() {
    let mut fleet = Fleet::start(2).await;
    let Some(clock) = FakeClock::find(fleet.0[0].dir().join("clock")) else {
        println!("skipped: no libfaketime; `make clock` gets it");
        return;
    };
    fleet
        .0
        .push(Server::start_program(&clock.command(&program()), &[]).await);
    let ahead_ms = i64::try_from(LEASE.as_millis()).unwrap();
    // Some ms pass between the replies.
    clock.step(ahead_ms / 2).unwrap();
    fleet.quorum_by(Fleet::builder()).await;
    clock.step(ahead_ms * 2).unwrap();
    let answer = async {
        loop {
            match Fleet::builder().connect(fleet.urls()).await {
                Err(Error::Connect { source, .. }) if source.is_timeout() => {}
                answer => return answer,
            }
        }
    };
    let apart = soon("an answer", answer).await;
    assert!(matches!(apart, Err(Error::InvalidQuorum { .. })), "{apart:?}");
    assert!(why(apart).contains("the clocks of its servers"));
}
