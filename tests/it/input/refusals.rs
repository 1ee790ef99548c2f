//! What a server or a lock refuses: each error names the lock and says what to do.

use super::{assert_helpful, assert_refused, client, run};
use crate::lateness::in_time;
use crate::server::{Server, soon};
use crate::users::{self, LEASE};
use fairlock::{Error, Owner, Policy};
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_key_of_another_type_under_the_locks_name_is_an_error_and_is_left_alone() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("the lock");
    run(&server, &["SET", "fairlock:{the lock}", "somebody else's"]).await;
    assert_refused(&lock, "a key of another kind lies under the lock's name").await;
    assert_eq!(server.keys().await, ["fairlock:{the lock}"]);
    run(&server, &["DEL", "fairlock:{the lock}"]).await;
    assert!(lock.write().try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn when_memory_is_exhausted_new_requests_are_refused_but_holds_stay_and_are_handed_over() {
    in_time(async || {
        let server = Server::start().await;
        if server.is_before_7().await {
            println!("skipped: before Redis 7 no script writes without memory");
            return;
        }
        let client = users::client(server.url(), LEASE).await;
        let lock = client.rw_lock("the lock");
        let guard = lock.write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(lock.write().acquire_fair());
        server.until_queued("the lock", 1).await;
        run(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
        assert_refused(&lock, "raise maxmemory").await;
        assert_refused(&client.rw_lock("another lock"), "raise maxmemory").await;
        assert!(
            server
                .keys()
                .await
                .iter()
                .all(|key| key.starts_with("fairlock:{the lock}"))
        );

        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            assert!(guard.is_held(), "renewed for three leases");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        guard.release().await.unwrap();
        let next = soon("the hand-over", waiter).await.unwrap().unwrap();
        next.release().await.unwrap();
        run(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
        assert!(lock.write().try_acquire().await.unwrap().is_some());
    })
    .await;
}

#[tokio::test]
async fn every_refusal_of_an_owner_or_a_policy_names_the_lock_and_says_what_to_do() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("the lock");
    let (a, b) = (lock.with_owner(&Owner::new()), lock.with_owner(&Owner::new()));
    let anonymous = lock.write().acquire_fair().await.unwrap();
    let nobody: Owner = "00000000-0000-0000-0000-000000000000".parse().unwrap();
    for owner in [anonymous.owner(), nobody] {
        let error = lock.with_owner(&owner).read().try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::InvalidOwner { .. }), "{error:?}");
        assert_helpful(&error, "the lock", "Owner::new()");
    }
    anonymous.release().await.unwrap();

    let _held = (
        a.read().acquire_fair().await.unwrap(),
        b.read().acquire_fair().await.unwrap(),
    );
    let waiting = tokio::spawn(a.write().acquire_fair());
    server.until_queued("the lock", 1).await;
    let error = a.write().acquire_fair().await.unwrap_err();
    assert!(matches!(error, Error::OwnerWaiting { .. }), "{error:?}");
    assert_helpful(&error, "the lock", "an Owner of its own");
    let error = b.write().acquire_fair().await.unwrap_err();
    assert!(matches!(error, Error::UpgradeConflict { .. }), "{error:?}");
    assert_helpful(&error, "the lock", "release this read hold");
    let error = lock.policy(Policy::WriterFirst).read().try_acquire().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::PolicyMismatch {
                stored: Policy::Fifo,
                ..
            }
        ),
        "{error:?}"
    );
    assert_helpful(&error, "the lock", "use that");
    waiting.abort();
}

#[tokio::test]
async fn every_way_to_end_without_the_lock_names_it_and_says_what_to_do() {
    let mut server = Server::start().await;
    let client = users::client(server.url(), LEASE).await;
    let lock = client.rw_lock("the lock");
    let guard = lock.write().acquire_fair().await.unwrap();
    server.kill();
    let error = soon("an answer", client.rw_lock("another").write().acquire_fair())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_helpful(&error, "another", "up and reachable");
    soon("the loss", guard.lost()).await;
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    assert_helpful(&error, "the lock", "acquire it again");
    soon("the end", client.shutdown()).await;
    let error = lock.write().try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Shutdown { .. }), "{error:?}");
    assert_helpful(&error, "the lock", "connect a new one");
}
