//! A user of the server without a right: each error names the rights to give, and those are enough.

use super::{assert_connects, assert_helpful, assert_refused, refused, run};
use crate::server::{Server, soon};
use fairlock::Client;
use std::time::Duration;

/// Takes rights from the user whose client is connected, or gives them.
async fn rights(server: &Server, rules: &[&str]) {
    let mut command = vec!["ACL", "SETUSER", "app", "on", ">s3cret"];
    command.extend(rules);
    run(server, &command).await;
}

const ALL: [&str; 5] = ["resetkeys", "resetchannels", "~fairlock:*", "&fairlock:*", "+@all"];

async fn as_user(server: &Server) -> Client {
    rights(server, &ALL).await;
    let url = format!("redis://app:s3cret@127.0.0.1:{}", server.port());
    Client::builder()
        .lease(Duration::from_secs(3))
        .connect(url)
        .await
        .expect("a login with all rights")
}

#[tokio::test]
async fn a_user_without_the_rights_is_refused_with_the_rights_to_give_and_nothing_is_written() {
    let server = Server::start().await;
    let lock = as_user(&server).await.rw_lock("the lock");
    let reads_only: &[&str] = match server.is_before_7().await {
        true => &["resetkeys"],
        false => &["resetkeys", "%R~fairlock:*"],
    };
    for rules in [
        &["-@scripting"][..],
        &["resetkeys"],
        &["resetkeys", "~fairlock:{the?lock}"],
        reads_only,
    ] {
        rights(&server, &ALL).await;
        rights(&server, rules).await;
        assert_refused(&lock, "let the client's ACL user run").await;
        assert!(server.keys().await.is_empty(), "{rules:?}");
    }
    rights(&server, &ALL).await;
    lock.write().acquire_fair().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_user_without_a_command_that_the_scripts_call_is_told_which_rights_to_give() {
    let server = Server::start().await;
    let lock = as_user(&server).await.rw_lock("the lock");
    // Redis 7 words this differently when a script does what its user may not.
    for rules in [&["-hset"][..], &["-hget"], &["-time"], &["-@write"]] {
        rights(&server, &ALL).await;
        rights(&server, rules).await;
        assert_refused(&lock, "let the client's ACL user run").await;
        assert!(server.keys().await.is_empty(), "{rules:?}");
    }
}

#[tokio::test]
async fn a_user_that_may_not_subscribe_cannot_connect() {
    let server = Server::start().await;
    for rules in [&["resetchannels"][..], &["-subscribe"], &["-@pubsub"]] {
        rights(&server, &ALL).await;
        rights(&server, rules).await;
        let url = format!("redis://app:s3cret@127.0.0.1:{}", server.port());
        refused(&url, "let the client's ACL user run").await;
    }
}

#[tokio::test]
async fn rights_named_by_the_remedy_are_enough() {
    let server = Server::start().await;
    let list = "-@all +@connection +@scripting +@pubsub +@hash +@sortedset +@string +exists \
                +expire +pexpireat +del +time";
    let channels = ["resetchannels", "&fairlock:*", "&fairlock:{*}:events"];
    let rules: Vec<_> = list.split(' ').chain(["~fairlock:*"]).chain(channels).collect();
    rights(&server, &rules).await;
    let url = format!("redis://app:s3cret@127.0.0.1:{}", server.port());
    assert_connects(&server, &url).await;
}

#[tokio::test]
async fn a_grant_whose_message_is_refused_is_learned_by_renewal() {
    let server = Server::start().await;
    let client = as_user(&server).await;
    let lock = client.rw_lock("the lock");
    for rules in [&["-publish"][..], &["resetchannels"]] {
        rights(&server, &ALL).await;
        let guard = lock.write().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(lock.write().acquire_fair());
        server.until_queued("the lock", 1).await;
        // Channels that are taken away end the subscriptions to them.
        rights(&server, rules).await;
        guard.release().await.unwrap();
        let next = soon("the grant", waiter).await.unwrap().unwrap();
        assert!(next.is_held(), "{rules:?}");
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_user_that_is_deleted_while_it_waits_learns_what_to_do() {
    let server = Server::start().await;
    let lock = as_user(&server).await.rw_lock("the lock");
    let guard = lock.write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(lock.read().acquire_fair());
    server.until_queued("the lock", 1).await;
    rights(&server, &["-@all"]).await;
    let error = soon("the waiter told", waiter).await.unwrap().unwrap_err();
    assert_helpful(&error, "the lock", "let the client's ACL user run");
    soon("the hold lost", guard.lost()).await;
}

#[tokio::test]
async fn a_user_that_may_not_choose_a_database_is_told_which_rights_to_give() {
    let server = Server::start().await;
    rights(&server, &ALL).await;
    rights(&server, &["-select"]).await;
    let url = format!("redis://app:s3cret@127.0.0.1:{}/3", server.port());
    refused(&url, "let the client's ACL user run").await;
}
