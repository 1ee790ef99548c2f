//! What users may pass in: names, durations, URLs; and the errors that say what was wrong and what to do.

mod connecting;
mod durations;
mod names;
mod refusals;
mod rights;

use crate::server::{Server, eventually, soon};
use crate::users::passes;
use fairlock::{Client, Error, RwLock};
use std::time::Duration;

async fn client(server: &Server) -> Client {
    Client::connect(server.url()).await.expect("the server is up")
}

async fn run(server: &Server, command: &[&str]) -> redis::Value {
    let mut cmd = redis::cmd(command[0]);
    cmd.arg(&command[1..])
        .query_async(&mut server.redis().await)
        .await
        .expect("a command of the test's own")
}

/// An error as its user sees it: it names the lock, and says what to do.
fn assert_helpful(error: &Error, lock: &str, remedy: &str) {
    let text = error.to_string();
    assert!(text.contains(lock), "no {lock:?} in: {text}");
    assert!(text.contains(remedy), "no {remedy:?} in: {text}");
}

/// Fails to connect: says why and what to do, and never the password.
async fn refused(url: &str, remedy: &str) -> Error {
    let error = soon("an answer", Client::connect(url)).await.expect_err(url);
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains(remedy), "no {remedy:?} in: {error}");
    for shown in [error.to_string(), format!("{error:?}"), format!("{error:#?}")] {
        assert!(!shown.contains("s3cret"), "the password is shown: {shown}");
    }
    error
}

/// Two such clients see the same lock.
async fn assert_connects(server: &Server, url: &str) {
    let (here, there) = tokio::join!(Client::connect(url), Client::connect(url));
    let (here, there) = (here.unwrap().rw_lock("a"), there.unwrap().rw_lock("a"));
    let guard = here.write().acquire_fair().await.unwrap();
    let waiter = tokio::spawn(there.write().acquire_fair());
    eventually("a queue", async || run_all(server).await == 3 + 2).await;
    guard.release().await.unwrap();
    passes("the hand-over", waiter).await;
}

/// Keys in all databases.
async fn run_all(server: &Server) -> usize {
    let text = format!("{:?}", run(server, &["INFO", "keyspace"]).await);
    text.split("keys=")
        .skip(1)
        .map(|rest| rest.split(',').next().unwrap().parse::<usize>().unwrap())
        .sum()
}

/// Everything that a request can be answered with by a server that refuses it.
async fn assert_refused(lock: &RwLock, remedy: &str) {
    let results = [
        soon("an answer", lock.write().acquire_fair()).await.map(drop),
        soon("an answer", lock.read().try_acquire()).await.map(drop),
        soon("an answer", lock.read().try_acquire_for(Duration::from_secs(60)))
            .await
            .map(drop),
    ];
    for result in results {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Server { .. }), "{error:?}");
        assert_helpful(&error, lock.name(), remedy);
    }
}
