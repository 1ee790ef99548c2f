//! design.md is drawn from the sources, so what it says of them must be there: files and tests. And it shows a lock as
//! a server has it.

use super::{FLOORS, files, root};
use crate::server::Server;
use std::fs::read_to_string;

fn design() -> String {
    read_to_string(root().join("design.md")).expect("design.md")
}

/// The figures and the commands of the page whose blocks begin with such a line.
fn blocks<'a>(page: &'a str, fence: &'a str) -> impl Iterator<Item = &'a str> {
    page.split(fence).skip(1).filter_map(|rest| rest.split("```").next())
}

/// Files of the figures that do not exist. A line tells its floor, or goes on with the floor before.
fn missing(page: &str) -> Vec<&str> {
    let (mut missing, mut floor) = (Vec::new(), "");
    for line in blocks(page, "```text\n").flat_map(str::lines) {
        floor = FLOORS
            .split(' ')
            .find(|floor| line.starts_with(&format!("  {floor} ")))
            .unwrap_or(floor);
        for word in line.split_whitespace().map(|word| word.trim_end_matches([':', ','])) {
            let mut folders = [format!("src/{floor}"), "src".to_owned()].into_iter();
            let is_file = word.ends_with(".rs") || word.len() > 1 && word.ends_with('/');
            if is_file && !folders.any(|folder| root().join(folder).join(word).exists()) {
                missing.push(word);
            }
        }
    }
    missing
}

/// The invariants that name no test and no conformance scenario, or one that does not exist.
fn unproven(page: &str) -> Vec<String> {
    let folders = ["tests/it", "tests/attack", "tests/conformance", "src", "cli"].map(|folder| root().join(folder));
    let sources = folders.iter().flat_map(|folder| files(folder, &["rs", "json"]));
    let tests: String = sources
        .map(|source| read_to_string(source).expect("a source"))
        .collect();
    let part = page
        .split("\n## ")
        .find(|part| part.starts_with("Invariants\n"))
        .expect("the invariants");
    let part = part.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut wrong = Vec::new();
    for number in 1..=11 {
        let item = part.split_once(&format!(" {number}. ")).map_or("", |(_, rest)| rest);
        let item = item.split(&format!(" {}. ", number + 1)).next().unwrap_or_default();
        // The last words in backticks: a test's name, or the title of a scenario.
        let name = item.rsplit('`').nth(1).unwrap_or_default();
        let found = [format!("fn {name}("), format!("\"scenario\": \"{name}\"")];
        if !found.iter().any(|found| tests.contains(found)) {
            wrong.push(format!("{number}: {name:?}"));
        }
    }
    wrong
}

#[test]
fn the_design_is_short_and_names_what_exists() {
    let page = design();
    let lines = page.lines().count();
    assert!(
        lines <= 250,
        "design.md has {lines} lines: move what is not the design to docs/"
    );
    assert_eq!(missing(&page), [""; 0]);
    assert_eq!(unproven(&page), [""; 0]);
    // The rules see what is gone.
    assert_eq!(missing(&page.replace("5 route.rs", "5 road.rs")), ["road.rs"]);
    let renamed = page.replace("`names_used_once_leave_keys_that_expire`", "`no_such_test`");
    assert_eq!(unproven(&renamed), ["6: \"no_such_test\""]);
}

/// A number of the clock differs from run to run, so only its digits are counted.
fn without_time(value: &str) -> String {
    let is_time = value.len() > 12 && value.bytes().all(|digit| digit.is_ascii_digit());
    if is_time {
        format!("{} digits", value.len())
    } else {
        value.to_owned()
    }
}

#[tokio::test]
async fn the_lock_that_the_design_looks_at_is_what_a_server_has() {
    let page = design();
    let server = Server::start().await;
    let mut connection = server.redis().await;
    let between = |text: &str, from: &str, to: &str| -> String {
        let rest = text.split_once(from).expect(from).1;
        rest.split_once(to).expect(to).0.to_owned()
    };
    let script = blocks(&page, "```sh\n").next().expect("the commands");
    let parts = between(script, "cat ", " >");
    let parts = parts
        .split(' ')
        .map(|part| read_to_string(root().join("lua").join(part)).expect("a part of the script"));
    let lua: String = parts.collect();
    let call = between(script, "/tmp/acquire.lua '", "done").replace(['\\', '\''], " ");
    let (keys, _) = call.split_once(',').expect("arguments");
    let keys: Vec<_> = keys.split_whitespace().collect();
    let arguments = between(script, " , ", "\ndone");
    for request in between(script, " in ", ";").split(' ') {
        let arguments = arguments
            .split(' ')
            .map(|word| word.trim_matches('\'').replace("$request", request));
        let mut eval = redis::cmd("EVAL");
        eval.arg(&lua)
            .arg(keys.len())
            .arg(&keys)
            .arg(arguments.collect::<Vec<_>>());
        let _: Vec<i64> = eval.query_async(&mut connection).await.expect("an acquire");
    }
    let figure = blocks(&page, "```text\n")
        .find(|figure| figure.starts_with("redis-cli "))
        .expect("the figure");
    let shown: Vec<_> = figure.split("redis-cli ").skip(1).collect();
    assert_eq!(shown.len(), 3, "{shown:?}");
    for shown in shown {
        let (command, lines) = shown.split_once('\n').expect("a command");
        let words: Vec<_> = command.split(' ').map(|word| word.trim_matches('\'')).collect();
        // A flat list of texts in every version of the protocol.
        let mut eval = redis::cmd("EVAL");
        eval.arg("return redis.call(unpack(ARGV))").arg(0).arg(words);
        let reply: Vec<String> = eval.query_async(&mut connection).await.expect("a reply");
        let mut found: Vec<_> = reply
            .chunks(2)
            .map(|pair| [pair[0].clone(), without_time(&pair[1])])
            .collect();
        let told = lines
            .lines()
            .map(|line| line.split_whitespace().take(2).map(without_time).collect::<Vec<_>>());
        let mut told: Vec<_> = told.collect();
        // Leases that end in the same millisecond are in the order of their names.
        if !command.contains(":queue") {
            found.sort();
            told.sort();
        }
        assert_eq!(told, found, "design.md, {command}");
    }
}
