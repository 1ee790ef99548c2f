//! `fairlock ls`: which locks are in use.

use crate::command::{Cli, said};
use crate::scene::{HOSTILE, LONG, client, pool, queue, spoil};
use fairlock::Client;
use fairlock_support::server::{Server, connected, eventually};
use serde_json::Value;
use std::time::Duration;

#[tokio::test]
async fn lists_locks_in_use_the_busiest_first() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let nothing = cli.run(&["ls"]).await;
    assert_eq!((nothing.status, nothing.stdout.as_str()), (0, ""), "{nothing:?}");
    assert_eq!(cli.json(&["ls"]).await, serde_json::json!([]));

    let (_, clients) = queue(&server, "invoice:42").await;
    let reading = clients[0].rw_lock("catalog").read();
    let _reading = reading.acquire_fair().await.unwrap();
    let free = clients[0].rw_lock("free").write().acquire_fair().await.unwrap();
    free.release().await.unwrap();
    let text = cli.says(&["ls"]).await;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        said(lines[0], &["LOCK", "MODE", "HOLDING", "WAITING", "HELD BY"]),
        "{text}"
    );
    assert!(
        said(lines[1], &["invoice:42 ", "write ", "1 ", "2 ", "billing "]),
        "{text}"
    );
    assert!(said(lines[2], &["catalog ", "read ", "1 ", "0 ", "billing "]), "{text}");
    assert!(cli.says(&["ls", "--all"]).await.contains("free"));
    assert!(!cli.says(&["ls", "invoice:*"]).await.contains("catalog"));

    let locks = cli.json(&["ls"]).await;
    assert_eq!(locks[0]["lock"], "invoice:42");
    assert_eq!((&locks[0]["holding"], &locks[0]["waiting"]), (&1.into(), &2.into()));
    assert_eq!(locks[0]["holder"]["client"]["label"], "billing");
    assert_eq!(locks[1]["longest_wait_ms"], Value::Null);
}

#[tokio::test]
async fn tells_how_many_permits_of_a_semaphore_are_taken() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let _clients = pool(&server, "gpu").await;
    let text = cli.says(&["ls"]).await;
    assert!(said(&text, &["gpu ", "read 3/4 ", "1 ", "1 ", "training "]), "{text}");
    let lock = &cli.json(&["ls"]).await[0];
    assert_eq!((&lock["limit"], &lock["used"]), (&4.into(), &3.into()));
}

#[tokio::test]
async fn names_the_oldest_of_several_holders_to_people_and_programs() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let old = client(&server, "old").await;
    let held = old.rw_lock("a").read().acquire_fair().await.unwrap();
    // The server's clock has to go on.
    let held_for = async || old.rw_lock("a").status().await.unwrap().holders[0].held_for;
    eventually("time passes", async || held_for().await > Duration::ZERO).await;
    // Its lease ends first: so it comes first in the status.
    let young = connected(Client::builder().label("young").lease(LONG / 2), server.url()).await;
    let _guard = young.rw_lock("a").read().acquire_fair().await.unwrap();
    let status = old.rw_lock("a").status().await.unwrap();
    assert_eq!(status.holders[0].client.label.as_deref(), Some("young"));
    assert_eq!(cli.json(&["ls"]).await[0]["holder"]["client"]["label"], "old");
    assert!(cli.says(&["ls"]).await.contains(" old "));
    drop(held);
}

#[tokio::test]
async fn sees_other_prefixes_only_when_told_to() {
    let server = Server::start().await;
    let builder = Client::builder().prefix("o[t]*her").lease(LONG);
    let client = connected(builder, server.url()).await;
    let _guard = client.rw_lock("a").write().acquire_fair().await.unwrap();
    let cli = Cli::of(&server);
    assert_eq!(cli.says(&["ls"]).await, "");
    assert!(cli.says(&["ls", "--prefix", "o[t]*her"]).await.contains("a "));
    assert_eq!(cli.says(&["ls", "--prefix", "*"]).await, "");
}

#[tokio::test]
async fn hostile_names_are_found_and_printed_without_anything_that_a_terminal_acts_on() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (owner, _clients) = queue(&server, HOSTILE).await;
    let mut redis = server.redis().await;
    let not_utf8 = b"fairlock:{\xff\x1b[2J}";
    let set: Result<(), _> = redis::cmd("HSET")
        .arg(not_utf8)
        .arg("a")
        .arg("b")
        .query_async(&mut redis)
        .await;
    set.unwrap();
    assert_eq!(cli.json(&["ls"]).await[0]["lock"], HOSTILE);
    let owner = owner.to_string();
    for arguments in [
        &["ls"][..],
        &["show", HOSTILE],
        &["blockers", "mailing"],
        &["top", "--once"],
        &["evict", HOSTILE, &owner, "--yes"],
        &["evict", HOSTILE, &owner, "--yes"],
        &["evict", HOSTILE, HOSTILE],
        &["blockers", HOSTILE],
        &["show", ""],
        &["man", HOSTILE],
    ] {
        let ended = cli.run(arguments).await;
        for text in [&ended.stdout, &ended.stderr] {
            let acted_on = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
            assert!(!text.contains(acted_on), "{arguments:?}: {ended:?}");
        }
    }
    let listed = cli.run(&["ls"]).await;
    assert!(said(&listed.stderr, &["\\xff", "not UTF-8"]), "{listed:?}");
}

#[tokio::test]
async fn whoever_looks_in_vain_is_told_under_which_prefix() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let ended = cli.run(&["ls"]).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (0, ""));
    assert!(said(&ended.stderr, &["no lock", "under prefix fairlock"]), "{ended:?}");
    let ended = cli.run(&["ls", "--prefix", "team", "b*"]).await;
    assert!(
        said(&ended.stderr, &["no lock", "under prefix team", "b*"]),
        "{ended:?}"
    );
    let ended = cli.run(&["blockers", "billing", "--prefix", "team"]).await;
    assert_eq!(ended.status, 1);
    assert!(
        said(&ended.stderr, &["billing is no lock", "under prefix team"]),
        "{ended:?}"
    );
    assert!(
        cli.says(&["top", "--once", "--prefix", "team"])
            .await
            .contains("prefix team")
    );
    let holder = client(&server, "holder").await;
    let _held = holder.rw_lock("a").write().acquire_fair().await.unwrap();
    assert!(said(&cli.says(&["ls"]).await, &["LOCK (prefix fairlock)", "\na "]));
}

#[tokio::test]
async fn a_lock_that_cannot_be_read_is_the_first_line_and_says_why_and_all_others_are_there() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (_, _clients) = queue(&server, "busy").await;
    spoil(&server, "fairlock:{text}").await;
    let listed = cli.run(&["ls"]).await;
    let lines: Vec<_> = listed.stdout.lines().collect();
    assert_eq!((listed.status, lines.len()), (69, 3), "{listed:?}");
    assert!(
        said(lines[1], &["text ", "error ", "- ", "- ", "- ", "- ", "WRONGTYPE"]),
        "{listed:?}"
    );
    assert!(said(lines[2], &["busy ", "write ", "billing "]), "{listed:?}");
    assert!(listed.stderr.contains("1 of 2 locks could not be read"), "{listed:?}");

    let programs = cli.run(&["ls", "--json"]).await;
    let locks: Value = serde_json::from_str(&programs.stdout).unwrap();
    let keys = |at: usize| locks[at].as_object().unwrap().keys().map(String::as_str).collect();
    let of_error: Vec<&str> = keys(0);
    assert_eq!((programs.status, of_error), (69, vec!["error", "lock"]), "{locks}");
    assert_eq!((&locks[0]["lock"], &locks[1]["lock"]), (&"text".into(), &"busy".into()));
    assert!(locks[0]["error"].as_str().unwrap().contains("WRONGTYPE"), "{locks}");
    assert_eq!(locks[1].get("error"), None, "{locks}");

    // Whether it waits for that lock too is not known.
    let chain = cli.run(&["blockers", "auditing"]).await;
    assert_eq!(chain.status, 0, "{chain:?}");
    assert!(said(&chain.stderr, &["text: ", "WRONGTYPE"]), "{chain:?}");
    assert_eq!(cli.json(&["blockers", "auditing"]).await["unread"][0]["lock"], "text");
    assert_eq!(cli.run(&["blockers", "nobody"]).await.status, 69);
}
