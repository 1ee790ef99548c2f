//! The recipes of SECURITY.md and the rights that errors name: everything that says which rights are needed says what
//! `fairlock::rights` does, and each user does with its rules what it is for, by every command of the command line.

use crate::acl::{evict, login, rights_for, rules, serve, serve_with};
use crate::cli::{Cli, Ended, said};
use crate::conformance;
use crate::lua::Lock;
use crate::server::{Server, soon};
use fairlock::rights::{Role, Task};
use redis::{ErrorKind, RedisError, ServerErrorKind};
use std::collections::BTreeSet;
use tokio::io::{AsyncBufReadExt, BufReader};

fn remedy() -> &'static str {
    fairlock::remedy(&RedisError::from((
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
    for role in Role::ALL {
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
    for task in Task::ALL {
        if task == Task::Cluster && server.is_before_7().await {
            println!("skipped: a cluster needs Redis 7");
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
    let all = rules_of_the_remedy(&["+scan", "+info"]);
    let cli = as_user(&server, "operator", &all).await;
    every_command(
        &server,
        &cli,
        &[&EVERYBODYS[..], &OPERATORS, &["run", "evict"]].concat(),
        &[],
    )
    .await;
}

async fn as_user(server: &Server, user: &str, rules: &[String]) -> Cli {
    Cli::at(login(server, user, rules).await)
}

const EVERYBODYS: [&str; 3] = ["show", "watch", "doctor"];
const OPERATORS: [&str; 3] = ["ls", "top", "blockers"];

/// Runs a command as that user. `watch` ends once it listens.
async fn run(server: &Server, cli: &Cli, command: &str) -> Ended {
    let lock = format!("lock-{}", uuid::Uuid::new_v4());
    let raw = Lock::new(server, &lock).await;
    raw.acquire_all(&["w000000000000001:1", "r000000000000002:1"]).await;
    let owner = cli_owner(server, &lock).await;
    let arguments: &[&str] = match command {
        "run" => &["run", "free", "--", "true"],
        "show" => &["show", &lock],
        "watch" => return watch(cli).await,
        "top" => &["top", "--once"],
        "blockers" => &["blockers", "000000000000002"],
        "evict" => &["evict", &lock, &owner, "--yes"],
        command => &[command],
    };
    cli.run(arguments).await
}

async fn cli_owner(server: &Server, lock: &str) -> String {
    Cli::of(server).owner_of(lock).await
}

async fn watch(cli: &Cli) -> Ended {
    let mut child = cli.command(&["watch"]).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    soon("its first word", stderr.read_line(&mut line)).await.unwrap();
    if line.contains("watching all locks") {
        let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }
    let mut ended = crate::cli::ended(child).await;
    if ended.status == 130 {
        ended.status = 0;
    }
    Ended { stderr: line, ..ended }
}

/// Each of the first ones succeeds, each of the others is refused for want of a right.
async fn every_command(server: &Server, cli: &Cli, allowed: &[&str], refused: &[&str]) {
    for command in allowed {
        let ended = run(server, cli, command).await;
        assert_eq!(ended.status, 0, "{command}: {ended:?}");
        assert!(!ended.stderr.contains("permission"), "{command}: {ended:?}");
    }
    for command in refused {
        let ended = run(server, cli, command).await;
        assert_eq!(ended.status, 69, "{command}: {ended:?}");
        assert!(said(&ended.stderr, &["+"]), "{command} names no right: {ended:?}");
    }
}

#[tokio::test]
async fn the_reader_runs_every_command_that_looks() {
    let server = Server::start().await;
    let mut all = rules("reader");
    let mut looks = [&OPERATORS[..], &["show"]].concat();
    if conformance::is_modern(&server).await {
        looks.extend(["watch", "doctor"]);
    } else {
        // As the page says: without rules in parentheses, and without events.
        let end = all.iter().position(|rule| rule == "(").expect("parentheses");
        all.truncate(end);
    }
    let cli = as_user(&server, "reader", &all).await;
    every_command(&server, &cli, &looks, &["run", "evict"]).await;
    let doctor = cli.run(&["doctor"]).await;
    assert!(
        said(
            &doctor.stdout,
            &["ok     server", "user reader may look at locks", "Fit to look"]
        ),
        "{doctor:?}"
    );
    assert!(!doctor.stdout.contains("ACL SETUSER reader +h"), "{doctor:?}");
    assert_eq!(cli.json(&["doctor"]).await["fit_for"], "looking");
}

#[tokio::test]
async fn the_service_runs_locks_and_looks_at_single_ones() {
    let server = Server::start().await;
    let cli = as_user(&server, "service", &rules("service")).await;
    let refused = [&OPERATORS[..], &["evict"]].concat();
    every_command(&server, &cli, &[&EVERYBODYS[..], &["run"]].concat(), &refused).await;
    assert_eq!(cli.json(&["doctor"]).await["fit_for"], "locking");
    let doctor = cli.says(&["doctor"]).await;
    assert!(
        said(&doctor, &["service has all that locks need", "+scan", "+zscan"]),
        "{doctor}"
    );
    let found = cli.run(&["ls"]).await;
    assert!(said(&found.stderr, &["needs +scan"]), "{found:?}");
}

#[tokio::test]
async fn the_evictor_runs_every_command() {
    let server = Server::start().await;
    let cli = as_user(&server, "evictor", &rules("evictor")).await;
    let all = [&EVERYBODYS[..], &OPERATORS, &["run", "evict"]].concat();
    every_command(&server, &cli, &all, &[]).await;
    let doctor = cli.json(&["doctor"]).await;
    assert_eq!(doctor["fit_for"], "locking", "{doctor}");
    let rights = doctor["findings"].as_array().unwrap().iter();
    let rights: Vec<_> = rights.filter(|finding| finding["about"] == "rights").collect();
    assert!(rights.len() == 1 && rights[0]["level"] == "ok", "{rights:?}");
}

#[tokio::test]
async fn operators_need_the_rights_to_find_and_to_inspect() {
    let server = Server::start().await;
    if !conformance::is_modern(&server).await {
        println!("skipped: the server has no rules in parentheses");
        return;
    }
    for role in ["reader", "evictor"] {
        for (right, commands) in [("+scan", &OPERATORS[..]), ("+info", &["doctor"])] {
            let mut rest = rules(role);
            assert!(rest.iter().any(|rule| rule == right), "{role} has no {right}");
            rest.retain(|rule| rule != right);
            let cli = as_user(&server, role, &rest).await;
            for command in commands {
                let ended = run(&server, &cli, command).await;
                let complains = ended.status != 0 || ended.stdout.contains("INFO was refused");
                assert!(complains, "{role} runs {command} without {right}: {ended:?}");
            }
        }
    }
}
