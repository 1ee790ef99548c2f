//! Fencing tokens of a quorum grow, whatever servers they come from.

use super::Fleet;
use crate::server::{eventually, soon};
use fairlock::Owner;
use std::time::Duration;

impl Fleet {
    /// Moves a server's counter ahead, as if its clock had been.
    async fn advance(&self, at: usize, lock: &str, seq: u64) {
        let mut redis = self.0[at].redis().await;
        let mut eval = redis::cmd("EVAL");
        eval.arg("local s = redis.call('HGET', KEYS[1], 's') redis.call('HSET', KEYS[1], 's', string.sub(s, 1, 15) .. struct.pack('<d', ARGV[1]) .. string.sub(s, 24))");
        eval.arg(1).arg(super::key(lock)).arg(seq);
        eval.exec_async(&mut redis).await.unwrap();
    }
}

#[tokio::test]
async fn a_later_token_is_greater_over_every_majority() {
    let mut fleet = Fleet::start(3).await;
    // One server's counter is an hour ahead, as if its clock had been.
    let ahead = 3_600_000_000;
    let [a, b] = fleet.quorums().await;
    let warm = a.rw_lock("x").write().acquire_fair().await.unwrap();
    let first = warm.fencing_token().await.unwrap().get();
    warm.release().await.unwrap();
    fleet.until(fleet.all(), "x", 0, 0).await;
    fleet.advance(0, "x", first + ahead).await;
    // The majority is that server and the second one.
    fleet.0[2].freeze();
    let holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    let second = holder.fencing_token().await.unwrap().get();
    assert!(second > first + ahead);
    holder.release().await.unwrap();
    // The next majority is without that server.
    fleet.0[0].kill();
    fleet.0[2].thaw();
    let holder = b.rw_lock("x").write().acquire_fair().await.unwrap();
    let third = holder.fencing_token().await.unwrap().get();
    assert!(third > second, "{third} after {second}");
    drop(holder);
}

#[tokio::test]
async fn an_inner_hold_has_no_smaller_token_than_the_outer_one() {
    let mut fleet = Fleet::start(3).await;
    let a = fleet.quorum().await;
    let warm = a.rw_lock("x").write().acquire_fair().await.unwrap();
    let first = warm.fencing_token().await.unwrap().get();
    warm.release().await.unwrap();
    fleet.until(fleet.all(), "x", 0, 0).await;
    fleet.advance(0, "x", first + 3_600_000_000).await;
    let lock = a.rw_lock("x").with_owner(&Owner::new());
    // The majority is that server and the second one.
    fleet.0[2].freeze();
    let outer = lock.write().acquire_fair().await.unwrap();
    let before = outer.fencing_token().await.unwrap();
    fleet.0[2].thaw();
    // The next majority is without that server.
    fleet.0[0].kill();
    let inner = lock.write().acquire_fair().await.unwrap();
    let after = inner.fencing_token().await.unwrap();
    assert!(after >= before, "{after:?} after {before:?}");
    drop(outer);
    // The outer one is over, and has its token no more to lend.
    let third = lock.write().acquire_fair().await.unwrap();
    assert!(third.fencing_token().await.unwrap() >= after);
}

#[tokio::test]
async fn a_token_is_told_when_a_majority_knows_it() {
    let fleet = Fleet::start(3).await;
    let a = fleet.quorum().await;
    let holder = a.rw_lock("x").write().acquire_fair().await.unwrap();
    fleet.until(fleet.all(), "x", 1, 0).await;
    fleet.0[1].freeze();
    fleet.0[2].freeze();
    let before = fleet.0[0].script_calls().await;
    let token = tokio::spawn(async move { holder.fencing_token().await });
    eventually("one server knows it", async || fleet.0[0].script_calls().await > before).await;
    // Time for the client to tell too early.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!token.is_finished());
    fleet.0[1].thaw();
    let token = soon("two servers know it", token).await.unwrap();
    assert!(token.is_ok());
    fleet.0[2].thaw();
}
