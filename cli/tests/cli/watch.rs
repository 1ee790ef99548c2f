//! `fairlock watch`

use crate::command::{Cli, ended, said};
use crate::scene::client;
use fairlock_support::server::{Server, soon};
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

#[tokio::test]
async fn prints_events_as_they_come_until_it_is_interrupted() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let client = client(&server, "watched").await;
    for (arguments, json) in [(&["watch", "a"][..], false), (&["watch", "--json"], true)] {
        let mut child = cli.command(arguments).spawn().unwrap();
        let mut ready = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = soon("it listens", ready.next_line()).await.unwrap().unwrap();
        assert!(line.contains("watching"), "{line}");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Its announcement may reach the client a moment later, also between a grant and the release.
        let mut tokens = Vec::new();
        let granted = loop {
            let guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
            tokens.push(guard.fencing_token().to_string());
            guard.release().await.unwrap();
            let line = tokio::time::timeout(Duration::from_millis(200), lines.next_line());
            let Ok(line) = line.await else { continue };
            let line = line.unwrap().unwrap();
            if !line.contains("released") {
                // The line may be late, and a later grant have been made meanwhile.
                assert!(tokens.iter().any(|token| line.contains(token)), "{line}");
                break line;
            }
        };
        if json {
            let event: Value = serde_json::from_str(&granted).unwrap();
            assert_eq!(
                (&event["event"], &event["mode"], &event["lock"]),
                (&"granted".into(), &"write".into(), &"a".into())
            );
        } else {
            assert!(
                said(&granted, &["granted", "write", "a", "owner", "token"]),
                "{granted}"
            );
        }
        let next = soon("the release", lines.next_line()).await.unwrap().unwrap();
        assert!(next.contains("released"), "{next} after {granted}");
        let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let mut rest = String::new();
        soon("the end", lines.get_mut().read_to_string(&mut rest))
            .await
            .unwrap();
        assert_eq!(ended(child).await.status, 130);
    }
}

#[tokio::test]
async fn fails_when_the_server_refuses_to_bring_further_events() {
    let server = Server::start().await;
    let cli = Cli {
        url: format!("redis://app:s3cret@127.0.0.1:{}", server.port()),
    };
    let mut redis = server.redis().await;
    let mut channels = async |rules: &[&str]| {
        let mut command = redis::cmd("ACL");
        command.arg(&["SETUSER", "app", "on", ">s3cret", "~fairlock:*", "+@all"]);
        let set: Result<(), _> = command.arg(rules).query_async(&mut redis).await;
        set.unwrap();
    };
    channels(&["resetchannels", "&fairlock:*", "&fairlock:{*}:events"]).await;
    let mut child = cli.command(&["watch"]).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said_first = String::new();
    soon("it listens", stderr.read_line(&mut said_first)).await.unwrap();
    assert!(said_first.contains("watching all locks"), "{said_first}");
    // The server ends the connections that use what is not allowed any more.
    channels(&["resetchannels", "&fairlock:*"]).await;
    let ended = ended(child).await;
    let mut text = String::new();
    stderr.read_to_string(&mut text).await.unwrap();
    assert_eq!(ended.status, 69, "{text}");
    assert!(said(&text, &["no more", "refused", "channels"]), "{text}");
}
