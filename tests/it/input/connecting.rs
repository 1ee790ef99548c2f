//! URLs, logins, databases and sockets.

use super::{assert_connects, refused, run, run_all};
use crate::server::{Server, eventually, free_port, soon};
use crate::users::write;
use fairlock::{Client, Error};

#[tokio::test]
async fn a_url_that_cannot_be_is_refused() {
    for url in [
        "",
        "redis",
        "http://:s3cret@127.0.0.1/",
        "redis://:s3cret@127.0.0.1:port",
        "redis://:s3cret@127.0.0.1:99999",
    ] {
        refused(url, "check the URL").await;
    }
    for url in [
        "redis://:s3cret@127.0.0.1/three",
        "redis://:s3cret@",
        "redis://u:s3cret@:1",
    ] {
        refused(url, "check").await;
    }
}

#[tokio::test]
async fn an_unreachable_server_is_an_error_that_names_it() {
    let port = free_port();
    let error = refused(&format!("redis://:s3cret@127.0.0.1:{port}"), "up and reachable").await;
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");

    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let error = refused(&format!("redis://:s3cret@127.0.0.1:{port}"), "up and reachable").await;
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");

    let error = refused("unix:///nowhere/socket?pass=s3cret", "up and reachable").await;
    assert!(error.to_string().contains("/nowhere/socket"), "{error}");
}

#[tokio::test]
async fn a_login_that_is_refused_is_told_apart() {
    let server = Server::start_with(&["--requirepass", "right"]).await;
    let port = server.port();
    for login in ["", ":s3cret@", "nobody:s3cret@", "default:s3cret@"] {
        refused(&format!("redis://{login}127.0.0.1:{port}"), "check user and password").await;
    }
    let client = Client::connect(format!("redis://:right@127.0.0.1:{port}"))
        .await
        .unwrap();
    write(&client.rw_lock("a")).await.release().await.unwrap();
}

#[tokio::test]
async fn users_databases_and_sockets_in_the_url_work() {
    let server = Server::start().await;
    run(
        &server,
        &[
            "ACL",
            "SETUSER",
            "app",
            "on",
            ">p%w@:/",
            "~fairlock:*",
            "resetchannels",
            "&fairlock:*",
            "+@all",
        ],
    )
    .await;
    let (port, socket) = (server.port(), server.socket());
    let socket = socket.display();
    for url in [
        format!("redis://app:p%25w%40%3A%2F@127.0.0.1:{port}"),
        format!("redis://127.0.0.1:{port}/3"),
        format!("redis://app:p%25w%40%3A%2F@localhost:{port}/2"),
        format!("redis://127.0.0.1:{port}/?protocol=resp3"),
        format!("unix://{socket}"),
        format!("redis+unix://{socket}?db=4"),
    ] {
        assert_connects(&server, &url).await;
        run(&server, &["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn a_redis_client_may_be_given_instead_of_a_url() {
    let server = Server::start().await;
    let given = redis::Client::open(format!("{}/5", server.url())).unwrap();
    let client = Client::connect(given).await.unwrap();
    let _guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
    assert!(server.keys().await.is_empty(), "database 0");
    assert_eq!(run_all(&server).await, 1 + 1, "the lock's and the client's");
}

#[tokio::test]
async fn an_unknown_database_is_told_to_be_chosen_again() {
    let server = Server::start().await;
    refused(&format!("{}/99", server.url()), "database number").await;
}

/// As it does to every call, and like those this passes.
#[tokio::test]
async fn a_server_that_is_busy_with_a_script_says_so_whatever_the_database() {
    let server = Server::start().await;
    run(&server, &["CONFIG", "SET", "lua-time-limit", "50"]).await;
    let mut other = server.redis().await;
    let endless = tokio::spawn(async move {
        let mut eval = redis::cmd("EVAL");
        eval.arg("while true do end").arg(0).exec_async(&mut other).await
    });
    let mut asking = server.redis().await;
    eventually("the server is busy", async || {
        let reply = redis::cmd("ECHO").arg("x").exec_async(&mut asking.clone()).await;
        reply.is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
    for database in ["", "/3"] {
        let url = format!("redis://127.0.0.1:{}{database}", server.port());
        let Err(Error::Connect { source, .. }) = Client::connect(url).await else {
            panic!("connected to a busy server")
        };
        assert_eq!(source.code(), Some("BUSY"), "{source}");
    }
    redis::cmd("SCRIPT").arg("KILL").exec_async(&mut asking).await.unwrap();
    assert!(soon("its end", endless).await.unwrap().is_err());
    assert_connects(&server, &format!("redis://127.0.0.1:{}/3", server.port())).await;
}
