//! A server whose disk is full: it refuses every write (MISCONF) until there is room.
//!
//! A limit on the size of files stands for the disk: the server's writes fail, and nobody else's do.

use crate::observe::{LONG, client, ms, until_free};
use crate::server::{Server, eventually, program, soon};
use fairlock::{Error, LostReason};
use fairlock_support::limits::{Resource, limit, without_signal_for_files};

async fn write(server: &Server) -> Result<(), redis::RedisError> {
    let mut set = redis::cmd("SET");
    set.arg("written").arg("x").exec_async(&mut server.redis().await).await
}

async fn start(args: &[&str]) -> Server {
    Server::start_program(&[without_signal_for_files(), vec![program()]].concat(), args).await
}

/// From its next write on, and for snapshots from the next one on.
async fn fills(server: &Server) {
    limit(server.pid(), Resource::Fsize, Some(0));
    eventually("writes are refused", async || {
        let _: Result<(), _> = redis::cmd("BGSAVE").exec_async(&mut server.redis().await).await;
        write(server).await.is_err_and(|error| error.code() == Some("MISCONF"))
    })
    .await;
}

async fn has_room(server: &Server) {
    limit(server.pid(), Resource::Fsize, None);
    eventually("writes succeed", async || {
        let _: Result<(), _> = redis::cmd("BGSAVE").exec_async(&mut server.redis().await).await;
        write(server).await.is_ok()
    })
    .await;
}

const LOG: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "everysec"];
const SNAPSHOTS: [&str; 3] = ["--save", "3600", "1"];

/// Nobody loses anything, and a release waits for room.
async fn holds_and_waits_last(mut server: Server, restarts: bool) {
    let (holder, other) = (client(server.url(), LONG).await, client(server.url(), LONG).await);
    let guard = holder.rw_lock("a").write().acquire_fair().await.unwrap();
    // Its renewals come every few seconds, and it outlives many that are refused.
    let waiter = tokio::spawn(other.rw_lock("a").write().lease(ms(15_000)).acquire_fair());
    server.until_queued("a", 1).await;
    fills(&server).await;
    let before = server.errors("MISCONF").await;
    eventually("the waiter's renewal is refused", async || {
        server.errors("MISCONF").await > before
    })
    .await;
    let refused = soon("an answer", other.rw_lock("b").write().try_acquire())
        .await
        .unwrap_err();
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
    assert!(refused.to_string().contains("MISCONF"), "{refused}");
    other.rw_lock("a").status().await.expect("who only reads needs no disk");
    let token = guard.fencing_token();
    let before = server.errors("MISCONF").await;
    let release = tokio::spawn(guard.release());
    eventually("the release is sent again and again", async || {
        server.errors("MISCONF").await > before + 3
    })
    .await;
    assert!(!release.is_finished() && !waiter.is_finished());
    has_room(&server).await;
    soon("the release", release).await.unwrap().unwrap();
    let next = soon("the grant", waiter).await.unwrap().unwrap();
    assert!(next.fencing_token() > token);
    if restarts {
        // What was written around the full disk is a file that the server can read.
        eventually("all is on the disk", async || {
            let info: String = redis::cmd("INFO")
                .arg("persistence")
                .query_async(&mut server.redis().await)
                .await
                .unwrap();
            info.contains("aof_last_write_status:ok") && info.contains("aof_pending_bio_fsync:0")
        })
        .await;
        tokio::time::sleep(ms(1_500)).await;
        server.kill();
        server.start_again().await;
    }
    soon("a release", next.release()).await.unwrap();
    until_free(&server, "a").await;
}

#[tokio::test]
async fn a_full_disk_under_the_append_only_file_costs_no_hold_and_no_place_within_the_lease() {
    holds_and_waits_last(start(&LOG).await, true).await;
}

#[tokio::test]
async fn a_full_disk_under_the_snapshots_costs_no_hold_and_no_place_within_the_lease() {
    holds_and_waits_last(start(&SNAPSHOTS).await, false).await;
}

#[tokio::test]
async fn a_disk_that_is_full_for_longer_than_the_lease_ends_holds_on_time_and_not_the_clients() {
    for args in [&LOG[..], &SNAPSHOTS] {
        let server = start(args).await;
        let lock = client(server.url(), ms(1_000)).await.rw_lock("a");
        let guard = lock.write().acquire_fair().await.unwrap();
        fills(&server).await;
        assert_eq!(soon("the loss", guard.lost()).await, LostReason::LeaseExpired);
        let refused = soon("an answer", lock.write().acquire_fair()).await.unwrap_err();
        assert!(refused.to_string().contains("MISCONF"), "{refused}");
        has_room(&server).await;
        let next = soon("a grant", async {
            loop {
                match lock.write().acquire_fair().await {
                    Ok(next) => return next,
                    // Its pause after the last refusal may be as long as its lease.
                    Err(error) => assert!(matches!(error, Error::Unavailable { .. }), "{error:?}"),
                }
            }
        })
        .await;
        assert!(next.fencing_token() > guard.fencing_token());
        soon("a release", next.release()).await.unwrap();
    }
}
