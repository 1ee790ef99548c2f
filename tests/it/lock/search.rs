//! Finding locks: `Client::locks` and `RwLock::exists`.

use crate::acl::login;
use crate::server::{Server, connected, soon};
use fairlock::{Client, Error};
#[cfg(feature = "cluster")]
use fairlock_support::cluster::Cluster;
use futures::FutureExt;
use redis::Cmd;
use std::time::Duration;
use tokio_stream::StreamExt;

/// So long that nothing expires in a test.
const LONG: Duration = Duration::from_secs(600);
/// More locks than one step of the search finds.
const MANY: usize = 2500;

async fn client(server: &Server, prefix: &str) -> Client {
    connected(Client::builder().prefix(prefix).lease(LONG), server.url()).await
}

/// Holds each of these locks for a moment: they exist after it.
async fn use_each(client: &Client, names: &[&str]) {
    for name in names {
        let guard = client.rw_lock(*name).write().acquire_fair().await.unwrap();
        guard.release().await.unwrap();
    }
}

async fn run(server: &Server, command: &Cmd) {
    command.exec_async(&mut server.redis().await).await.unwrap();
}

async fn found(client: &Client, pattern: &str) -> Vec<String> {
    let names: Result<Vec<_>, _> = client.locks(pattern).collect().await;
    let mut names = names.unwrap();
    names.sort();
    names
}

#[tokio::test]
async fn the_stream_brings_the_names_that_match_under_the_clients_prefix() {
    let server = Server::start().await;
    let ours = client(&server, "o[t]*er").await;
    use_each(
        &ours,
        &["invoice:1", "invoice:22", "catalogue", "}", "%7D", "a*b", "axb"],
    )
    .await;
    use_each(&client(&server, "oter").await, &["invoice:3"]).await;
    assert_eq!(found(&ours, "invoice:*").await, ["invoice:1", "invoice:22"]);
    assert_eq!(found(&ours, "invoice:?").await, ["invoice:1"]);
    assert_eq!(found(&ours, "[cx]atalogue").await, ["catalogue"]);
    assert_eq!(found(&ours, "}").await, ["}"]);
    assert_eq!(found(&ours, "%7D").await, ["%7D"]);
    assert_eq!(found(&ours, "a\\*b").await, ["a*b"]);
    assert_eq!(found(&ours, "*").await.len(), 7);
    assert_eq!(found(&client(&server, "*").await, "*").await, [""; 0]);
}

#[tokio::test]
async fn each_of_many_names_comes_once_also_if_the_reader_drops_its_reads() {
    let server = Server::start().await;
    let client = client(&server, "fairlock").await;
    let mut pipe = redis::pipe();
    for n in 0..MANY {
        pipe.hset(format!("fairlock:{{lock {n}}}"), "s", 1).ignore();
    }
    pipe.exec_async(&mut server.redis().await).await.unwrap();
    let mut locks = client.locks("*");
    let mut names = Vec::new();
    let mut dropped = 0;
    loop {
        // One poll: the reply to a step cannot have come by then.
        let name = match locks.next().now_or_never() {
            Some(name) => name,
            None => {
                dropped += 1;
                soon("a name", locks.next()).await
            }
        };
        match name {
            Some(name) => names.push(name.unwrap()),
            None => break,
        }
    }
    assert!(dropped > 2, "{dropped} reads were dropped");
    // A reader may ask once more.
    assert!(locks.next().await.is_none());
    assert_eq!(names.len(), MANY);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), MANY);
}

#[tokio::test]
async fn a_key_that_cannot_be_a_locks_is_an_error_and_the_stream_goes_on() {
    let server = Server::start().await;
    let client = client(&server, "fairlock").await;
    let not_utf8 = b"fairlock:{\xff}".to_vec();
    use_each(&client, &["a", "b"]).await;
    run(&server, redis::cmd("HSET").arg(&not_utf8).arg("x").arg("y")).await;
    // Of another kind.
    run(&server, redis::cmd("HSET").arg("fairlock:hash").arg("x").arg("y")).await;
    let items: Vec<_> = client.locks("*").collect().await;
    assert_eq!(items.len(), 3, "{items:?}");
    let foreign: Vec<_> = items.iter().filter_map(|item| item.as_ref().err()).collect();
    assert!(
        matches!(foreign[..], [Error::ForeignKey { key, .. }] if *key == not_utf8),
        "{foreign:?}"
    );
    assert!(foreign[0].to_string().contains("\\xff"), "{}", foreign[0]);
}

#[tokio::test]
async fn a_key_of_another_type_under_a_locks_name_is_found_and_its_status_is_an_error() {
    let server = Server::start().await;
    let client = client(&server, "fairlock").await;
    use_each(&client, &["a", "z"]).await;
    run(&server, redis::cmd("SET").arg("fairlock:{text}").arg("x")).await;
    assert_eq!(found(&client, "*").await, ["a", "text", "z"]);
    let status = client.rw_lock("text").status().await;
    // Redis 6.2 tells the code of an error in a script only in its text.
    assert!(
        matches!(&status, Err(Error::Server { source, .. }) if source.to_string().contains("WRONGTYPE")),
        "{status:?}"
    );
}

#[tokio::test]
async fn the_stream_ends_after_an_error_of_the_server() {
    let server = Server::start().await;
    let rules = ["on", ">SECRET", "~fairlock:*", "&*", "+@all", "-scan"].map(str::to_owned);
    let url = login(&server, "app", &rules).await;
    let mut locks = connected(Client::builder(), url).await.locks("*");
    let error = soon("a refusal", locks.next()).await.unwrap().unwrap_err();
    assert!(
        matches!(&error, Error::Server { .. }) && error.to_string().contains("+scan"),
        "{error}"
    );
    assert!(soon("the end", locks.next()).await.is_none());
}

#[tokio::test]
async fn a_client_that_was_shut_down_finds_nothing() {
    let server = Server::start().await;
    let client = client(&server, "fairlock").await;
    use_each(&client, &["a"]).await;
    let mut locks = client.locks("*");
    client.shutdown().await;
    let item = locks.next().await;
    assert!(matches!(item, Some(Err(Error::Shutdown { .. }))), "{item:?}");
    assert!(locks.next().await.is_none());
    let exists = client.rw_lock("a").exists().await;
    assert!(matches!(exists, Err(Error::Shutdown { .. })), "{exists:?}");
}

#[tokio::test]
async fn a_lock_exists_from_its_first_use_also_while_it_is_free() {
    let server = Server::start().await;
    let client = client(&server, "fairlock").await;
    let lock = client.rw_lock("a }b");
    assert!(!lock.exists().await.unwrap());
    let guard = lock.read().acquire_fair().await.unwrap();
    assert!(lock.exists().await.unwrap());
    guard.release().await.unwrap();
    assert!(lock.exists().await.unwrap());
    assert_eq!(lock.status().await.unwrap().mode, None);
    run(&server, redis::cmd("SET").arg("fairlock:{text}").arg("x")).await;
    let other = client.rw_lock("text").exists().await;
    assert!(
        matches!(&other, Err(Error::Server { source, .. }) if source.code() == Some("WRONGTYPE")),
        "{other:?}"
    );
    let nameless = client.rw_lock("").exists().await;
    assert!(matches!(nameless, Err(Error::InvalidName { .. })), "{nameless:?}");
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn in_a_cluster_the_stream_goes_through_all_masters_and_fails_rather_than_leave_one_out() {
    let mut cluster = Cluster::of(3, 0).await;
    let client = cluster.client(LONG).await;
    let mut names = Vec::new();
    for node in 0..3 {
        names.extend(cluster.locks_on(node, 2).await);
    }
    use_each(&client, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    names.sort();
    assert_eq!(found(&client, "*").await, names);
    cluster.nodes[1].kill();
    let items: Vec<_> = soon("the end", client.locks("*").collect()).await;
    assert!(
        matches!(items.last(), Some(Err(Error::Unavailable { .. }))),
        "one master is away: {items:?}"
    );
}
