//! Names of locks, prefixes and labels.

use super::{assert_helpful, client, run};
use crate::server::{Server, eventually, soon};
use crate::users::passes;
use fairlock::{Client, Error, RwLock};
use std::collections::BTreeSet;
use std::time::Duration;

/// Acquired, contended, handed over by one client to another, released: nothing stays.
async fn assert_works(here: &RwLock, there: &RwLock, server: &Server) {
    let guard = soon("acquire", here.write().acquire_fair()).await.unwrap();
    assert!(there.read().try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn(there.write().acquire_fair());
    let contended = async || server.keys().await.len() == 3;
    eventually("the three keys of a lock that is waited for", contended).await;
    guard.release().await.unwrap();
    let next = soon("the hand-over", waiter).await.unwrap().unwrap();
    assert!(next.is_held());
    next.release().await.unwrap();
    assert!(here.write().try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn any_name_of_1_to_1024_bytes_works_completely_and_lies_in_one_slot() {
    let names = [
        " ",
        "{",
        "}",
        "{}",
        "}{",
        "{a}b",
        "a}b{",
        "}:queue",
        "\0",
        "a\0b",
        "line\nline",
        "\r\n",
        "\"",
        "'",
        "\\",
        "%",
        "%7D",
        "%s",
        "*",
        "?[a]",
        "ümlaut",
        "鍵",
        "🔒",
        "\u{202e}",
        "a b",
        "fairlock:{a}",
        "../..",
        "\u{fffd}",
        "1",
        "-1",
        "nil",
        "$(x)",
    ];
    let (server, cluster) = tokio::join!(Server::start(), Server::start_with(&["--cluster-enabled", "yes"]));
    let (here, there) = (client(&server).await, client(&server).await);
    let kib = "k".repeat(1024);
    for name in names.into_iter().chain([kib.as_str()]) {
        let (here, there) = (here.rw_lock(name), there.rw_lock(name));
        assert_eq!(here.name(), name);
        let guard = here.read().acquire_fair().await.unwrap();
        let waiter = tokio::spawn(there.write().acquire_fair());
        eventually("three keys", async || server.keys().await.len() == 3).await;
        let mut slots = BTreeSet::new();
        for key in server.keys().await {
            slots.insert(format!("{:?}", run(&cluster, &["CLUSTER", "KEYSLOT", &key]).await));
        }
        assert_eq!(slots.len(), 1, "{name:?}");
        drop(guard);
        passes("the hand-over", waiter).await;
        assert_works(&here, &there, &server).await;
        run(&server, &["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn an_empty_name_and_one_of_more_than_1024_bytes_are_refused_before_anything_is_sent() {
    let server = Server::start().await;
    let client = client(&server).await;
    for (name, what) in [
        (String::new(), "at least one character"),
        ("k".repeat(1025), "use a digest"),
        ("ä".repeat(513), "use a digest"),
        ("k".repeat(1 << 20), "use a digest"),
    ] {
        let lock = client.rw_lock(name.as_str());
        let results = [
            lock.write().acquire_fair().await.map(|_| ()),
            lock.read().try_acquire().await.map(|_| ()),
            lock.read().try_acquire_for(Duration::from_secs(1)).await.map(|_| ()),
        ];
        for result in results {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::InvalidName { .. }), "{error}");
            assert_helpful(&error, name.get(..40.min(name.len())).unwrap_or_default(), what);
            assert!(error.to_string().len() < 400, "an error is not as long as the name");
        }
    }
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn locks_whose_names_look_alike_are_different_locks() {
    let server = Server::start().await;
    let client = client(&server).await;
    let mut held = Vec::new();
    for name in [
        "a", "A", "a ", " a", "{a}", "a}", "a%7D", "a:queue", "a}:queue", "a\0", "ä", "a\u{308}",
    ] {
        held.push(
            client
                .rw_lock(name)
                .write()
                .try_acquire()
                .await
                .unwrap()
                .unwrap_or_else(|| panic!("{name:?}")),
        );
    }
}

#[tokio::test]
async fn prefixes_and_labels_are_taken_as_they_are_or_refused() {
    let server = Server::start().await;
    let kib = "p".repeat(1 << 20);
    for prefix in ["", "a{b", "a}b", "{", &"p".repeat(129), &kib] {
        let error = Client::builder()
            .prefix(prefix)
            .connect(server.url())
            .await
            .unwrap_err();
        assert!(matches!(error, Error::InvalidPrefix { .. }), "{error}");
        assert_helpful(&error, "prefix", "1 to 128 bytes and no braces");
        assert!(error.to_string().len() < 400);
    }
    for label in ["", "a b", "a\nb", "a\0", "ä", &"l".repeat(129), &kib] {
        let error = Client::builder().label(label).connect(server.url()).await.unwrap_err();
        assert!(matches!(error, Error::InvalidLabel { .. }), "{error}");
        assert_helpful(&error, "label", "printable ASCII");
        assert!(error.to_string().len() < 400);
    }
    let client = Client::builder()
        .label("billing-7f9c")
        .prefix("my app\n%")
        .connect(server.url())
        .await
        .unwrap();
    let guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
    assert_eq!(server.keys().await, ["my app\n%:{a}"]);
    let list = format!("{:?}", run(&server, &["CLIENT", "LIST"]).await);
    assert_eq!(list.matches("name=billing-7f9c").count(), 2);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn clients_with_different_prefixes_have_different_locks() {
    let server = Server::start().await;
    let other = Client::builder().prefix("other").connect(server.url()).await.unwrap();
    let _here = client(&server).await.rw_lock("a").write().acquire_fair().await.unwrap();
    assert!(other.rw_lock("a").write().try_acquire().await.unwrap().is_some());
}
