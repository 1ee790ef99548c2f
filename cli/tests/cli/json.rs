//! `--json`: the documents are as docs/json.md shows them.

use crate::command::{Cli, ended};
use crate::scene::{client, queue, spoil};
use fairlock_support::server::{Server, soon};
use serde_json::Value;
use std::collections::BTreeSet;
use tokio::io::{AsyncBufReadExt, BufReader};

const PAGE: &str = include_str!("../../../docs/json.md");

/// The example of a subcommand.
fn example(subcommand: &str) -> Value {
    let heading = format!("## `fairlock {subcommand} ");
    let section = PAGE.split(&heading).nth(1).unwrap_or_else(|| panic!("{subcommand}"));
    let fenced = section
        .split("```json\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    serde_json::from_str(fenced.expect("an example")).unwrap_or_else(|error| panic!("{subcommand}: {error}"))
}

/// Fails unless both have the same keys and types at each place. `null` is of every type, and an empty list of every list.
fn assert_alike(at: &str, shown: &Value, printed: &Value) {
    match (shown, printed) {
        (Value::Null, _) | (_, Value::Null) => {}
        (Value::Object(shown), Value::Object(printed)) => {
            let keys = |object: &serde_json::Map<String, Value>| object.keys().cloned().collect::<BTreeSet<_>>();
            assert_eq!(keys(shown), keys(printed), "{at}");
            for (key, shown) in shown {
                assert_alike(&format!("{at}.{key}"), shown, &printed[key]);
            }
        }
        (Value::Array(shown), Value::Array(printed)) => {
            // The kinds of a list's items stand in an order of their own on the page.
            for printed in printed.iter().filter(|_| !shown.is_empty()) {
                let keys = |value: &Value| {
                    value
                        .as_object()
                        .map(|object| object.keys().cloned().collect::<BTreeSet<_>>())
                };
                let alike = shown.iter().find(|shown| keys(shown) == keys(printed));
                let alike = alike.unwrap_or_else(|| panic!("{at}: no item of the page is like {printed}"));
                assert_alike(&format!("{at}[]"), alike, printed);
            }
        }
        _ => assert_eq!(
            std::mem::discriminant(shown),
            std::mem::discriminant(printed),
            "{at}: {shown} and {printed}"
        ),
    }
}

#[test]
fn a_key_that_is_missing_or_of_another_type_is_no_likeness() {
    let differ = |shown: &str, printed: &str| {
        let [shown, printed] = [shown, printed].map(|text| serde_json::from_str::<Value>(text).unwrap());
        std::panic::catch_unwind(|| assert_alike("", &shown, &printed)).is_err()
    };
    assert!(differ(r#"{"a": 1}"#, r#"{"a": 1, "b": 2}"#));
    assert!(differ(r#"{"a": 1, "b": 2}"#, r#"{"a": 1}"#));
    assert!(differ(r#"[{"a": 1}]"#, r#"[{"a": "1"}]"#));
    assert!(!differ(r#"[{"a": 1}, {"b": null}]"#, r#"[{"b": 1}, {"a": 2}]"#));
}

#[tokio::test]
async fn every_document_is_as_the_page_shows_it() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (_, clients) = queue(&server, "a").await;
    let blamed = client(&server, "blamed").await;
    let _guard = blamed.rw_lock("b").write().acquire_fair().await.unwrap();
    tokio::spawn(clients[0].rw_lock("b").write().acquire_fair());
    server.until_queued("b", 1).await;
    for arguments in [
        &["show", "a"][..],
        &["top"],
        &["blockers", "a"],
        &["blockers", "auditing"],
        &["doctor"],
    ] {
        let mut printed = cli.json(arguments).await;
        if arguments == ["blockers", "a"] {
            assert_alike("lock", &example("show"), &printed["lock"].take());
        }
        assert_alike(arguments[0], &example(arguments[0]), &printed);
    }
    let leading = clients[0].election("leader:a").campaign().await.unwrap();
    assert_alike("leader", &example("leader"), &cli.json(&["leader", "leader:a"]).await);
    drop(leading);
    let evicted = cli.json(&["evict", "a", "billing", "--yes"]).await;
    assert_alike("evict", &example("evict"), &evicted);
    spoil(&server, "fairlock:{odd}").await;
    let listed = cli.run(&["ls", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap_or_else(|error| panic!("{error}: {listed:?}"));
    assert_eq!(listed[0]["lock"], "odd", "{listed}");
    assert_alike("ls", &example("ls"), &listed);
}

#[tokio::test]
async fn every_event_is_as_the_page_shows_it() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let watched = client(&server, "watched").await;
    let mut child = cli.command(&["watch", "--json"]).spawn().unwrap();
    let mut ready = BufReader::new(child.stderr.take().unwrap()).lines();
    soon("it listens", ready.next_line()).await.unwrap().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let asking = tokio::spawn(async move {
        loop {
            watched
                .rw_lock("a")
                .write()
                .acquire_fair()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    let line = soon("an event", lines.next_line()).await.unwrap().unwrap();
    assert_alike("watch", &example("watch"), &serde_json::from_str(&line).unwrap());
    asking.abort();
    child.start_kill().unwrap();
    ended(child).await;
}

#[tokio::test]
async fn every_subcommand_with_json_has_an_example() {
    let cli = Cli::at("redis://127.0.0.1:1".to_owned());
    let help = cli.says(&["--help"]).await;
    let commands = help
        .split("Commands:")
        .nth(1)
        .and_then(|rest| rest.split("\n\n").next())
        .unwrap();
    let mut number = 0;
    for line in commands
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
    {
        let name = line.split_whitespace().next().unwrap();
        if cli.says(&[name, "--help"]).await.contains("--json") {
            example(name);
            number += 1;
        }
    }
    assert_eq!(number, PAGE.matches("\n## `fairlock ").count());
}
