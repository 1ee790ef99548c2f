//! The files, functions and tests that design.md names exist, and the lock that it shows is as a server has it.

use super::{FLOORS, ROOT, files};
use crate::server::Server;
use fairlock_support::packed::Packed;
use std::fs::read_to_string;
use std::path::Path;

const PAGE: &str = include_str!("../../../design.md");

/// The blocks of a page that begin with such a line.
fn blocks<'a>(page: &'a str, fence: &'a str) -> impl Iterator<Item = &'a str> {
    page.split(fence).skip(1).filter_map(|rest| rest.split("```").next())
}

/// Files of the figures that do not exist, and functions that the file before them does not have. A line tells its floor, or
/// goes on with the floor before.
fn missing(page: &str) -> Vec<&str> {
    let (mut missing, mut floor, mut source) = (Vec::new(), "", String::new());
    for line in blocks(page, "```text\n").flat_map(str::lines) {
        let is_begun = |floor: &&str| line.starts_with(&format!("  {floor} "));
        floor = FLOORS.split(' ').find(is_begun).unwrap_or(floor);
        for word in line.split_whitespace().map(|word| word.trim_end_matches([':', ','])) {
            let mut folders = [format!("src/{floor}"), "src".to_owned()].into_iter();
            let file =
                folders.find_map(|folder| Some(Path::new(ROOT).join(folder).join(word)).filter(|file| file.exists()));
            let is_there = if let Some(name) = word.strip_suffix("()") {
                ["(", "<"]
                    .iter()
                    .any(|next| source.contains(&format!("fn {name}{next}")))
            } else if word.ends_with(".rs") || word.len() > 1 && word.ends_with('/') {
                source = file
                    .as_ref()
                    .and_then(|file| read_to_string(file).ok())
                    .unwrap_or_default();
                file.is_some()
            } else {
                true
            };
            if !is_there {
                missing.push(word);
            }
        }
    }
    missing
}

/// Lines of figures that are wider than a page shows.
fn wide(page: &str) -> Vec<&str> {
    let lines = blocks(page, "```text\n").flat_map(str::lines);
    lines.filter(|line| line.chars().count() > 100).collect()
}

/// The invariants that name no test and no conformance scenario, or one that does not exist.
fn unproven(page: &str) -> Vec<usize> {
    let folders =
        ["tests/it", "tests/attack", "tests/conformance", "src", "cli"].map(|folder| Path::new(ROOT).join(folder));
    let sources = folders.iter().flat_map(|folder| files(folder, &["rs", "json"]));
    let tests: String = sources.filter_map(|source| read_to_string(source).ok()).collect();
    let (_, part) = page.split_once("\n## Invariants\n").expect("the invariants");
    let part = part.split("\n## ").next().unwrap_or_default();
    let part = part.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut wrong = Vec::new();
    for number in 1..=11 {
        let item = part.split_once(&format!(" {number}. ")).map_or("", |(_, rest)| rest);
        let item = item.split(&format!(" {}. ", number + 1)).next().unwrap_or_default();
        // A test's name, or the title of a scenario.
        let is_name = |name: &&str| name.matches(['_', ' ']).count() > 2;
        let mut names = item.split('`').skip(1).step_by(2).filter(is_name).peekable();
        let has = |name: &str| tests.contains(&format!("fn {name}(")) || tests.contains(&format!("\"{name}\""));
        if names.peek().is_none() || !names.all(has) {
            wrong.push(number);
        }
    }
    wrong
}

#[test]
fn the_design_is_short_and_names_what_exists() {
    assert!(PAGE.lines().count() <= 250, "move what is not the design to docs/");
    assert_eq!(missing(PAGE), [""; 0]);
    assert_eq!(wide(PAGE), [""; 0]);
    assert_eq!(unproven(PAGE), [0; 0]);
    // The rules see what is gone.
    assert_eq!(missing(&PAGE.replace("5 route.rs", "5 road.rs")), ["road.rs", "call()"]);
    assert_eq!(
        missing(&PAGE.replace("route.rs call()", "route.rs ask()")),
        ["ask()"; 2]
    );
    let is_wide = wide(&PAGE.replace("5 route.rs", &"5 route.rs".repeat(10))).len();
    assert_eq!(is_wide, 1);
    assert_eq!(unproven(&PAGE.replace("names_used_once", "no_such_name")), [6]);
}

#[tokio::test]
async fn the_lock_that_the_design_looks_at_is_what_a_server_has() {
    let server = Server::start().await;
    let mut connection = server.redis().await;
    // A number of the clock differs from run to run, so only its digits are counted.
    let without_time = |value: &str| match value.parse() {
        Ok(1_000_000_000_000_u64..) => format!("{} digits", value.len()),
        _ => value.to_owned(),
    };
    let between = |text: &str, from: &str, to: &str| -> String {
        let rest = text.split_once(from).expect(from).1;
        rest.split_once(to).expect(to).0.to_owned()
    };
    let script = blocks(PAGE, "```sh\n").next().expect("the commands");
    let mut lua = String::new();
    for part in between(script, "cat ", " >").split(' ') {
        lua += &read_to_string(format!("{ROOT}/lua/{part}")).expect("a part of the script");
    }
    let keys = between(script, "acquire.lua '", " ,").replace(['\\', '\''], " ");
    let keys: Vec<_> = keys.split_whitespace().collect();
    for request in between(script, " in ", ";").split(' ') {
        let arguments = between(script, " , ", "\ndone")
            .replace("$request", request)
            .replace('\'', "");
        let arguments: Vec<_> = arguments.split(' ').collect();
        let mut eval = redis::cmd("EVAL");
        eval.arg(&lua).arg(keys.len()).arg(&keys).arg(arguments);
        let _: redis::Value = eval.query_async(&mut connection).await.expect("an acquire");
    }
    let mut figures = blocks(PAGE, "```text\n");
    let figure = figures
        .find(|figure| figure.starts_with("redis-cli "))
        .unwrap_or_default();
    let shown: Vec<_> = figure.split("redis-cli ").skip(1).collect();
    assert_eq!(shown.len(), 3, "{shown:?}");
    for shown in shown {
        let (command, lines) = shown.split_once('\n').expect("a command");
        let words: Vec<_> = command.split(' ').map(|word| word.trim_matches('\'')).collect();
        let mut found = match words[0] {
            "HGET" => {
                let state = Packed::of(&mut connection, words[1]).await;
                assert_eq!(
                    (state.reads, state.sole, state.more, state.up),
                    (0, false, false, false)
                );
                let numbers = [
                    ("writes", u64::from(state.writes)),
                    ("waiting", u64::from(state.waiting)),
                    ("seq", state.seq),
                    ("token", state.token),
                    ("first", state.first),
                    ("near", state.near),
                ];
                let mut found: Vec<_> = numbers
                    .map(|(name, n)| [name.into(), without_time(&n.to_string())])
                    .into();
                found.push(["holder".into(), state.holder]);
                found
            }
            _ => {
                // A flat list of texts in every version of the protocol.
                let mut eval = redis::cmd("EVAL");
                eval.arg("return redis.call(unpack(ARGV))").arg(0).arg(words);
                let reply: Vec<String> = eval.query_async(&mut connection).await.expect("a reply");
                let pairs = reply.chunks(2);
                pairs.map(|pair| [pair[0].clone(), without_time(&pair[1])]).collect()
            }
        };
        let words = lines.lines().map(|line| line.split_whitespace().take(2));
        let mut told: Vec<Vec<_>> = words.map(|words| words.map(without_time).collect()).collect();
        // Leases that end in the same millisecond are in the order of their names.
        if !command.contains(":q'") {
            found.sort();
            told.sort();
        }
        assert_eq!(told, found, "design.md, {command}");
    }
}
