//! The short ways to a lock: a request that is awaited itself, and a job that runs under the lock.

use super::{client, is_lost};
use crate::server::{Server, eventually, soon};
use fairlock::Owner;

#[tokio::test]
async fn a_request_can_be_awaited_itself() {
    let server = Server::start().await;
    let name = String::from("a");
    let lock = client(&server).await.rw_lock(&name);
    let guard = lock.write().await.unwrap();
    assert!(lock.read().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    let (one, two) = tokio::try_join!(lock.read().into_future(), lock.read().into_future()).unwrap();
    assert_eq!(one.fencing_token(), two.fencing_token());
}

#[tokio::test]
async fn a_job_runs_under_the_lock_and_the_lock_is_free_after_it() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    let probe = lock.clone();
    // Spawned, because such a future must be Send.
    let job = tokio::spawn(async move {
        let busy = async |_: &fairlock::WriteGuard| probe.read().try_acquire().await.unwrap().is_none();
        let written = probe.with_write(busy).await;
        let read = probe.with_read(async |guard| guard.fencing_token()).await;
        (written, read)
    });
    let (written, read) = job.await.unwrap();
    assert!(written.unwrap());
    read.unwrap();
    drop(lock.write().try_acquire().await.unwrap().expect("free"));
}

#[tokio::test]
async fn a_job_is_dropped_when_its_lock_is_lost() {
    let server = Server::start().await;
    let owner = Owner::new();
    let lock = client(&server).await.rw_lock("a").with_owner(&owner);
    let job = tokio::spawn({
        let lock = lock.clone();
        async move { lock.with_write(async |_| std::future::pending::<()>().await).await }
    });
    eventually("it holds", async || lock.status().await.unwrap().holding == 1).await;
    lock.evict(&owner).await.unwrap();
    assert!(is_lost(&soon("the job is dropped", job).await.unwrap()));
}

#[tokio::test]
async fn a_job_whose_lock_was_lost_unseen_has_no_result() {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    let forget = async |_: &fairlock::WriteGuard| {
        let mut redis = server.redis().await;
        redis::cmd("FLUSHALL").query_async::<()>(&mut redis).await.unwrap();
    };
    assert!(is_lost(&lock.with_write(forget).await));
}
