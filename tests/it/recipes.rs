//! The recipes of SECURITY.md and the rights that errors name: everything that says which rights are needed says what
//! `fairlock::rights` does. cli/tests runs every command as each of these users.

use crate::acl::{evict, login, rights_for, rules, serve, serve_with};
use crate::server::{Server, soon};
use fairlock::rights::{Role, Task};
use redis::{ErrorKind, RedisError, ServerErrorKind};
use std::collections::BTreeSet;

fn remedy() -> &'static str {
    fairlock::__cli::remedy(&RedisError::from((
        ErrorKind::Server(ServerErrorKind::NoPerm),
        "denied",
    )))
}

/// The words that are rights for commands.
fn rights_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| c.is_whitespace() || matches!(c, '`' | ',' | ';' | ':' | '.'));
    words.filter(|word| word.starts_with('+')).map(str::to_owned).collect()
}

fn sorted(rules: &[String]) -> Vec<&String> {
    let mut rules: Vec<_> = rules.iter().collect();
    rules.sort();
    rules
}

#[test]
fn the_page_has_the_rules_of_the_list() {
    for &role in Role::ALL {
        let page = rules(role.name());
        let begin = ["on", ">SECRET", "resetkeys", "resetchannels", "-@all"];
        assert_eq!(page[..5], begin, "{}", role.name());
        let list = role.rules("fairlock");
        assert_eq!(sorted(&page[5..]), sorted(&list), "{}", role.name());
        let elsewhere = role.rules("team").join(" ");
        assert!(!elsewhere.contains("fairlock"), "{elsewhere}");
    }
    let page = include_str!("../../SECURITY.md");
    let (_, cluster) = page.split_once("In a **cluster**").expect("rules for a cluster");
    let (_, block) = cluster.split_once("ACL SETUSER service").expect("a block");
    let block = rights_in(block.split_once("```").expect("its end").0);
    let list = Task::Cluster.commands().iter().map(|command| format!("+{command}"));
    assert_eq!(block, list.collect());
    for (option, task) in [
        ("wait_for_replicas", Task::Replicas),
        ("wait_for_disks", Task::Disks),
        ("quarantine", Task::Quarantine),
    ] {
        let page: BTreeSet<_> = rights_for(option).into_iter().collect();
        let list = task.commands().iter().map(|command| format!("+{command}"));
        assert_eq!(page, list.collect(), "{option}");
    }
}

#[tokio::test]
async fn the_errors_remedy_and_the_guide_name_all_rights_of_the_list() {
    let (guide, _) = include_str!("../../docs/tuning.md")
        .split_once("**Rights.**")
        .and_then(|(_, text)| text.split_once("## "))
        .expect("a paragraph");
    let (remedy, guide) = (rights_in(remedy()), rights_in(guide));
    assert_eq!(guide, remedy);
    let server = Server::start().await;
    let mut redis = server.redis().await;
    let mut named = BTreeSet::new();
    for right in &remedy {
        let Some(category) = right.strip_prefix("+@") else {
            named.insert(right[1..].to_owned());
            continue;
        };
        let mut cat = redis::cmd("ACL");
        let commands: Vec<String> = cat.arg("CAT").arg(category).query_async(&mut redis).await.unwrap();
        named.extend(commands);
    }
    for &task in Task::ALL {
        if matches!(task, Task::Cluster | Task::Functions) && server.is_before_7().await {
            println!("skipped: {task:?} needs Redis 7");
            continue;
        }
        for command in task.commands() {
            // Redis 6.2 puts commands into categories, but not their parts.
            let whole = command.split('|').next().unwrap_or(command);
            assert!(named.contains(*command) || named.contains(whole), "{task:?}: {command}");
        }
    }
}

/// The rules that the error names, as somebody would copy them.
fn rules_of_the_remedy(further: &[&str]) -> Vec<String> {
    let (_, text) = remedy().split_once("run ").expect("rights");
    let (rights, rest) = text.split_once(" on keys ").expect("keys");
    let (places, _) = rest.split_once(" (").expect("places");
    let places = places.split(' ').filter(|word| word.starts_with(['~', '&']));
    let begin = ["on", ">SECRET", "resetkeys", "resetchannels", "-@all"];
    let words = begin.into_iter().chain(rights.split(' ')).chain(places);
    words.chain(further.iter().copied()).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_rights_that_an_error_names_suffice() {
    let server = Server::start_with(&["--appendonly", "yes"]).await;
    let url = login(&server, "broad", &rules_of_the_remedy(&[])).await;
    soon("a service", serve(&server, &url, "broad"))
        .await
        .expect("all rights");
    soon("an eviction", evict(&server, &url, "broad"))
        .await
        .expect("all rights");
    let mut known = redis::cmd("COMMAND");
    let known = known.arg("INFO").arg("waitaof");
    let known: Vec<redis::Value> = known.query_async(&mut server.redis().await).await.unwrap();
    for (option, right) in [
        ("quarantine", "+info"),
        ("wait_for_replicas", "+wait"),
        ("wait_for_disks", "+waitaof"),
    ] {
        assert!(remedy().contains(right), "{right}");
        if right == "+waitaof" && known == [redis::Value::Nil] {
            println!("skipped: the server has no {right}");
            continue;
        }
        let url = login(&server, option, &rules_of_the_remedy(&[right])).await;
        let served = soon("an answer", serve_with(option, &url, option)).await;
        served.unwrap_or_else(|error| panic!("{option}: {error}"));
    }
}
