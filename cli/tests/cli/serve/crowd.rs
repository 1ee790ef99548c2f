//! Browsers that are many, slow or silent.

use super::Served;
use crate::command::Cli;
use fairlock_support::server::{Server, eventually, soon};
use futures::future::join_all;
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How many connections are served at a time.
const CONNECTIONS: usize = 128;

async fn get(served: &Served, stream: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", served.address);
    stream.write_all(request.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn a_connection_beyond_the_limit_is_served_when_another_one_ends() {
    let server = Server::start().await;
    let served = Served::start(&Cli::of(&server), &[]).await;
    let mut streams = Vec::new();
    for _ in 1..CONNECTIONS {
        streams.push(served.events("").await);
    }
    let mut last = TcpStream::connect(&served.address).await.unwrap();
    let mut answer = vec![0; 64 * 1024];
    let mut asked = async || {
        get(&served, &mut last, "/icon.svg").await;
        let read = soon("an answer over the last connection", last.read(&mut answer)).await;
        assert!(read.unwrap() > 0);
    };
    asked().await;
    let mut further = Vec::new();
    for _ in 0..10 {
        let mut stream = TcpStream::connect(&served.address).await.unwrap();
        get(&served, &mut stream, "/icon.svg").await;
        further.push(stream);
    }
    // While it answers these, it had time for the others.
    for _ in 0..100 {
        asked().await;
    }
    for stream in &further {
        let read = stream.try_read(&mut [0; 64]);
        assert_eq!(read.unwrap_err().kind(), ErrorKind::WouldBlock, "it was served");
    }
    drop(streams.pop());
    let read = soon("its turn", further[0].read(&mut [0; 64])).await.unwrap();
    assert!(read > 0);
}

#[tokio::test]
async fn many_browsers_cost_one_look_that_fails() {
    const INTERVAL: Duration = Duration::from_secs(2);
    let server = Server::start().await;
    let served = Served::start(&Cli::of(&server), &["--interval", "2s"]).await;
    let began = Instant::now();
    let mut acl = redis::cmd("ACL");
    let acl = acl.arg("SETUSER").arg("default").arg("-scan");
    acl.exec_async(&mut server.redis().await).await.unwrap();
    eventually("a look fails", async || served.get("/api/locks").await.status == 502).await;
    for answer in join_all((0..40).map(|_| served.get("/api/locks"))).await {
        assert_eq!(answer.status, 502, "{answer:?}");
    }
    let (looks, intervals) = (
        server.refused("scan").await,
        began.elapsed().as_secs() / INTERVAL.as_secs(),
    );
    assert!(
        (1..=1 + intervals).contains(&looks),
        "{looks} looks in {intervals} intervals"
    );
}

#[tokio::test]
async fn a_browser_that_does_not_ask_or_does_not_read_loses_its_connection() {
    let server = Server::start().await;
    let mut served = Served::start(&Cli::of(&server), &["--evict"]).await;
    let token = served.token().await;
    let host = &served.address;
    let silent = "";
    let half_a_head = format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-Slow: ");
    let idle = format!("GET /icon.svg HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let half_a_body =
        format!("POST /api/evict HTTP/1.1\r\nHost: {host}\r\nFairlock-Token: {token}\r\nContent-Length: 99\r\n\r\n{{");
    let ends = [silent, &half_a_head, &idle, &half_a_body].map(async |request| {
        let mut stream = TcpStream::connect(host).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        // What comes does not matter, only that it ends.
        let _ = soon(request, stream.read_to_end(&mut Vec::new())).await;
    });
    let deaf = async {
        let mut stream = TcpStream::connect(host).await.unwrap();
        let request = format!("GET /page.js HTTP/1.1\r\nHost: {host}\r\n\r\n");
        // Many answers, more than the buffers between the two take; nobody reads them.
        let asking = stream.write_all(request.repeat(5000).as_bytes()).await;
        eventually("the connection ends", async || {
            asking.is_err()
                || stream
                    .try_write(b"G")
                    .is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
        })
        .await;
    };
    futures::join!(join_all(ends), deaf);
    assert_eq!(served.get("/").await.status, 200);
}
