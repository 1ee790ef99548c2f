//! The scripts as functions of the server: where they are used, and that nothing depends on them.

#[cfg(feature = "cluster")]
mod cluster;
mod versions;

use crate::lateness::in_time;
use crate::server::{Server, connected, eventually, soon};
use fairlock::{Client, RwLock};
use fairlock_support::scripts;
use futures::future::join_all;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// No renewal comes while a test runs, unless the test says so.
const LONG: Duration = Duration::from_secs(600);

async fn lock(url: String) -> RwLock {
    connected(Client::builder().lease(LONG), url).await.rw_lock("a")
}

async fn cycle(lock: &RwLock) {
    let guard = soon("the guard", lock.write().acquire_fair()).await.unwrap();
    soon("the release", guard.release()).await.unwrap();
}

/// Calls that the server executed as functions, and as scripts.
async fn executed(server: &Server) -> (u64, u64) {
    let functions = server.executed("fcall").await;
    (functions, server.script_calls().await - functions)
}

async fn has_functions(server: &Server) -> bool {
    let has = !server.is_before_7().await;
    if !has {
        println!("skipped: the server has no functions");
    }
    has
}

async fn run(server: &Server, words: &[&str]) -> redis::Value {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let reply = command.query_async(&mut server.redis().await).await;
    reply.unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

#[tokio::test]
async fn from_7_on_every_call_is_of_a_function_and_before_of_a_script() {
    let server = Server::start().await;
    let lock = lock(server.url()).await;
    cycle(&lock).await;
    lock.status().await.unwrap();
    let expected = match server.is_before_7().await {
        true => (0, 3),
        false => (3, 0),
    };
    assert_eq!(executed(&server).await, expected);
}

#[tokio::test]
async fn a_library_that_another_client_has_loaded_is_used() {
    let server = Server::start().await;
    if !has_functions(&server).await {
        return;
    }
    let (name, text) = scripts::library();
    let loaded: String = redis::from_redis_value(run(&server, &["FUNCTION", "LOAD", &text]).await).unwrap();
    assert_eq!(loaded, name, "the text by which every client names it");
    cycle(&lock(server.url()).await).await;
    assert_eq!(executed(&server).await, (2, 0));
}

#[tokio::test]
async fn a_user_without_the_rights_to_functions_calls_the_scripts() {
    let server = Server::start().await;
    if !has_functions(&server).await {
        return;
    }
    // The library is there: a user may be allowed to load it and not to call it, or the other way round.
    cycle(&lock(server.url()).await).await;
    for (n, rule) in ["-function", "-function|load", "-fcall"].into_iter().enumerate() {
        let user = format!("user{n}");
        let rules = ["ACL", "SETUSER", &user, "on", ">pass", "~*", "&*", "+@all", rule];
        run(&server, &rules).await;
        let before = executed(&server).await;
        let lock = lock(format!("redis://{user}:pass@127.0.0.1:{}", server.port())).await;
        cycle(&lock).await;
        cycle(&lock).await;
        let after = executed(&server).await;
        assert_eq!((after.0 - before.0, after.1 - before.1), (0, 4), "{rule}");
    }
}

#[tokio::test]
async fn a_right_that_is_taken_away_costs_no_call() {
    let server = Server::start().await;
    if !has_functions(&server).await {
        return;
    }
    let lock = lock(server.url()).await;
    cycle(&lock).await;
    run(&server, &["ACL", "SETUSER", "default", "-fcall"]).await;
    cycle(&lock).await;
    assert_eq!(executed(&server).await, (2, 2));
}

#[tokio::test]
async fn functions_that_are_flushed_under_load_cost_no_call_and_come_back() {
    in_time(async || {
        let server = Server::start().await;
        if !has_functions(&server).await {
            return;
        }
        let clients = join_all((0..4).map(|_| lock(server.url()))).await;
        let flushed = AtomicBool::new(false);
        let work = clients.iter().map(async |lock| {
            while !flushed.load(Ordering::Relaxed) {
                cycle(lock).await;
            }
        });
        let flush = async {
            for _ in 0..20 {
                let before = executed(&server).await.0;
                run(&server, &["FUNCTION", "FLUSH"]).await;
                eventually("functions are called again", async || {
                    executed(&server).await.0 > before + 20
                })
                .await;
            }
            flushed.store(true, Ordering::Relaxed);
        };
        futures::join!(join_all(work), flush);
    })
    .await;
}

#[tokio::test]
async fn a_call_of_a_lost_function_is_executed_once_by_the_scripts_text() {
    let server = Server::start().await;
    if !has_functions(&server).await {
        return;
    }
    let lock = lock(server.url()).await;
    run(&server, &["FUNCTION", "FLUSH"]).await;
    let guard = lock.write().acquire_fair().await.unwrap();
    assert_eq!(executed(&server).await, (0, 1));
    // The client loads the library again without a further call of its user.
    let (name, _) = scripts::library();
    eventually("the library is back", async || {
        let list = format!("{:?}", run(&server, &["FUNCTION", "LIST"]).await);
        list.contains(&name)
    })
    .await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_restarted_without_its_functions_gets_them_with_the_next_connection() {
    let mut server = Server::start().await;
    if !has_functions(&server).await {
        return;
    }
    let lock = lock(server.url()).await;
    cycle(&lock).await;
    server.kill();
    server.start_again().await;
    cycle(&lock).await;
    assert_eq!(executed(&server).await, (2, 0));
}
