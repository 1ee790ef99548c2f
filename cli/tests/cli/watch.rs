//! `fairlock watch`

#[cfg(target_os = "linux")]
use crate::command::full_pipe;
use crate::command::{Cli, ended, said};
use crate::scene::client;
use fairlock::Owner;
use fairlock_support::server::{Server, eventually, soon};
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
async fn brings_only_the_events_of_whom_it_is_told_by_prefixes() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (wanted, other) = (client(&server, "billing-7f9c").await, client(&server, "mailing").await);
    let own = Owner::new();
    let beginning = own.to_string()[..13].to_uppercase();
    let host = wanted_host(&server, &wanted).await;
    for filter in [
        &["--label", "billing-"][..],
        &["--owner", &beginning],
        &["--host", &host[..1], "--label", "bill", "--owner", &beginning[..1]],
    ] {
        let arguments = [&["watch", "--json"], filter].concat();
        let mut child = cli.command(&arguments).spawn().unwrap();
        let mut ready = BufReader::new(child.stderr.take().unwrap()).lines();
        soon("it listens", ready.next_line()).await.unwrap().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The announcement may reach a client a moment later.
        let mut events = Vec::new();
        while events.len() < 4 {
            for lock in [other.rw_lock("a"), wanted.rw_lock("a").with_owner(&own)] {
                lock.write().acquire_fair().await.unwrap().release().await.unwrap();
            }
            let line = tokio::time::timeout(Duration::from_millis(200), lines.next_line());
            if let Ok(line) = line.await {
                events.push(serde_json::from_str::<Value>(&line.unwrap().unwrap()).unwrap());
            }
        }
        for event in &events {
            assert_eq!(
                (&event["label"], &event["owner"], &event["host"]),
                (&"billing-7f9c".into(), &own.to_string().into(), &host.as_str().into()),
                "{filter:?}"
            );
        }
        child.start_kill().unwrap();
        ended(child).await;
    }
    let nobody = ["watch", "--label", "nobody", "--host", &host];
    let mut child = cli.command(&nobody).spawn().unwrap();
    let mut ready = BufReader::new(child.stderr.take().unwrap()).lines();
    soon("it listens", ready.next_line()).await.unwrap().unwrap();
    for _ in 0..20 {
        wanted
            .rw_lock("a")
            .write()
            .acquire_fair()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(ended(child).await.stdout, "");
}

#[tokio::test]
async fn of_a_lock_it_knows_those_who_held_it_when_it_began_though_they_end() {
    let server = Server::start().await;
    let client = client(&server, "billing-7f9c").await;
    let lock = client.rw_lock("a");
    let mut guard = lock.write().acquire_fair().await.unwrap();
    let id = lock.status().await.unwrap().holders[0].client.id.clone();
    let mut child = Cli::of(&server).command(&["watch", "a"]).spawn().unwrap();
    let mut ready = BufReader::new(child.stderr.take().unwrap()).lines();
    soon("it listens", ready.next_line()).await.unwrap().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // Its announcement may reach the client a moment later.
    let line = loop {
        // As a client does that ends.
        let mut end = redis::cmd("DEL");
        let () = end
            .arg(format!("fairlock:client:{id}"))
            .query_async(&mut server.redis().await)
            .await
            .unwrap();
        guard.release().await.unwrap();
        let line = tokio::time::timeout(Duration::from_millis(200), lines.next_line());
        if let Ok(line) = line.await {
            break line.unwrap().unwrap();
        }
        guard = lock.write().acquire_fair().await.unwrap();
    };
    assert!(line.contains("  billing-7f9c "), "{line}");
    child.start_kill().unwrap();
    ended(child).await;
}

/// The host of a client, as its status tells it.
async fn wanted_host(server: &Server, client: &fairlock::Client) -> String {
    let lock = client.rw_lock("host");
    let guard = lock.write().acquire_fair().await.unwrap();
    fairlock_support::server::eventually("it has introduced itself", async || {
        lock.status().await.unwrap().holders[0].client.host.is_some()
    })
    .await;
    let status = Cli::of(server).json(&["show", "host"]).await;
    guard.release().await.unwrap();
    status["holders"][0]["client"]["host"].as_str().unwrap().to_owned()
}

/// Which channels the user `app` may use from now on.
async fn channels(server: &Server, allowed: &[&str]) {
    let mut command = redis::cmd("ACL");
    command.arg(&[
        "SETUSER",
        "app",
        "on",
        ">s3cret",
        "~fairlock:*",
        "+@all",
        "resetchannels",
    ]);
    let set: Result<(), _> = command.arg(allowed).query_async(&mut server.redis().await).await;
    set.unwrap();
}

/// The command as that user, who may use all channels at first.
async fn limited(server: &Server) -> Cli {
    channels(server, &["&fairlock:*", "&fairlock:{*}:events"]).await;
    Cli {
        url: format!("redis://app:s3cret@127.0.0.1:{}", server.port()),
    }
}

#[cfg(target_os = "linux")]
async fn ends_by_term(child: tokio::process::Child) {
    let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(ended(child).await.status, 128 + 15);
}

#[tokio::test]
async fn fails_when_the_server_refuses_to_bring_further_events() {
    let server = Server::start().await;
    let cli = limited(&server).await;
    let mut child = cli.command(&["watch"]).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said_first = String::new();
    soon("it listens", stderr.read_line(&mut said_first)).await.unwrap();
    assert!(said_first.contains("watching all locks"), "{said_first}");
    // The server ends the connections that use what is not allowed any more.
    channels(&server, &["&fairlock:*"]).await;
    let ended = ended(child).await;
    let mut text = String::new();
    stderr.read_to_string(&mut text).await.unwrap();
    assert_eq!(ended.status, 69, "{text}");
    assert!(said(&text, &["refuses", "channels"]), "{text}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_signal_ends_it_also_where_nobody_reads_what_it_prints() {
    let server = Server::start().await;
    let (cli, client) = (Cli::of(&server), client(&server, "watched").await);
    let (stdout, _unread) = full_pipe().await;
    let mut child = cli.command(&["watch", "a"]).stdout(stdout).spawn().unwrap();
    let mut ready = BufReader::new(child.stderr.take().unwrap()).lines();
    soon("it listens", ready.next_line()).await.unwrap().unwrap();
    // What this stream is told the command was told before it.
    let mut events = client.rw_lock("a").events().await.unwrap();
    for _ in 0..3 {
        client
            .rw_lock("a")
            .write()
            .acquire_fair()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        soon("an event", events.next()).await.unwrap().unwrap();
    }
    ends_by_term(child).await;
}

/// Whether a process has a handler for TERM.
#[cfg(target_os = "linux")]
fn handles_term(child: &tokio::process::Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id().unwrap())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (15 - 1) & 1 == 1
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_signal_ends_it_also_where_nobody_reads_what_it_complains_of() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (stderr, _unread) = full_pipe().await;
    let child = cli.command(&["watch", "a"]).stderr(stderr).spawn().unwrap();
    // The next thing that it does is to say that it listens.
    eventually("it expects signals", async || handles_term(&child)).await;
    ends_by_term(child).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_signal_ends_it_also_where_nobody_reads_that_the_server_refuses() {
    let server = Server::start().await;
    let cli = limited(&server).await;
    let (stderr, _unread) = full_pipe().await;
    let mut child = cli.command(&["leader", "--watch", "a"]).stderr(stderr).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    soon("nobody leads", lines.next_line()).await.unwrap().unwrap();
    // The server ends the connections that use what is not allowed any more.
    channels(&server, &["&fairlock:c:*", "&fairlock:listen"]).await;
    // Its complaint about that keeps it from nothing else.
    let refused = async || server.errors("NOPERM").await > 0;
    eventually("it has asked for the channel again", refused).await;
    ends_by_term(child).await;
}
