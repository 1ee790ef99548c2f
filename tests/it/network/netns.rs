//! A server in a network namespace of its own, behind a cable that goes dead: no proxy that answers for the server, no
//! reset, silence. The test needs root and iproute2; it is skipped aloud without.

use crate::observe::{LONG, ms};
use crate::server::{connected, program, soon};
use fairlock::{Client, LostReason};
use fairlock_support::cable::Cable;
use std::time::Instant;

#[tokio::test]
async fn whoever_sits_behind_a_dead_cable_knows_of_its_loss_first_and_is_not_deaf_after() {
    let mut cable = match Cable::lay() {
        Ok(cable) => cable,
        Err(why) => return println!("skipped: {why}"),
    };
    let server = cable.server(&program()).await;
    let far = connected(Client::builder().lease(ms(3000)), cable.url(&server)).await;
    // The server's socket needs no cable.
    let socket = format!("redis+unix://{}", server.socket().display());
    let near = connected(Client::builder().lease(LONG), socket).await;

    let guard = far.rw_lock("a").write().acquire_fair().await.unwrap();
    let token = guard.fencing_token();
    let next = tokio::spawn(near.rw_lock("a").write().acquire_fair());
    // Nobody's lease ends while the other waits: its place is kept for minutes.
    let (near_b, far_b) = (near.rw_lock("b"), far.rw_lock("b"));
    let held = near_b.write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(far_b.write().lease(LONG).acquire_fair());
    while far_b.status().await.unwrap().waiters.is_empty()
        || near.rw_lock("a").status().await.unwrap().waiters.is_empty()
    {
        tokio::task::yield_now().await;
    }

    cable.forward(false).unwrap();
    let lost = async {
        let reason = guard.lost().await;
        (reason, Instant::now())
    };
    let entered = async {
        let guard = next.await.unwrap().unwrap();
        (guard, Instant::now())
    };
    let ((reason, lost), (next, entered)) = soon("the loss and the next", futures::future::join(lost, entered)).await;
    assert_eq!(reason, LostReason::LeaseExpired);
    assert!(lost <= entered, "two were inside for {:?}", lost - entered);
    assert!(next.fencing_token() > token);
    // Its grant is told to nobody.
    held.release().await.unwrap();
    assert!(!waiter.is_finished());
    cable.forward(true).unwrap();
    let late = soon("the grant that it missed", waiter).await.unwrap().unwrap();
    late.release().await.unwrap();
}
