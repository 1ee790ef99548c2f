//! design.md is drawn from the sources, so what it says of them must be there: files, functions, states, tests. And it shows
//! a lock as a server has it.

use super::FLOORS;
use super::tree::Tree;
use crate::server::Server;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// More lines than that nobody reads at once.
const MOST_LINES: usize = 250;
/// What a figure may need of a terminal.
const MOST_COLUMNS: usize = 100;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn design() -> String {
    read_to_string(root().join("design.md")).expect("design.md")
}

/// The lines of the figures, with their numbers.
fn figures(page: &str) -> Vec<(usize, &str)> {
    let mut is_inside = false;
    let mut lines = Vec::new();
    for (number, line) in page.lines().enumerate() {
        if line.starts_with("```") {
            is_inside = line == "```text";
        } else if is_inside {
            lines.push((number + 1, line));
        }
    }
    lines
}

/// The words of a line that could be names of files and functions.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|sign: char| !sign.is_ascii_alphanumeric() && !"_./-()".contains(sign));
    let words = words.map(|word| {
        let word = word.trim_start_matches('(').trim_end_matches('.');
        let is_call = word.ends_with("()");
        if is_call { word } else { word.trim_end_matches(')') }
    });
    words.filter(|word| !word.is_empty() && !word.starts_with('/'))
}

fn is_file(word: &str) -> bool {
    let name = Path::new(word).extension().and_then(|end| end.to_str());
    matches!(name, Some("rs" | "lua" | "md" | "toml")) || word.len() > 1 && word.ends_with('/')
}

/// Where a name may lie. In a figure the floor that its line begins with is a folder of `src/`.
fn found(word: &str, floor: &str) -> Option<PathBuf> {
    let folders = [
        "".to_owned(),
        "src/".to_owned(),
        "lua/".to_owned(),
        format!("src/{floor}/"),
    ];
    let mut paths = folders.iter().map(|folder| root().join(folder).join(word));
    paths.find(|path| path.exists())
}

#[test]
fn the_design_is_short_and_its_figures_fit_a_terminal() {
    let page = design();
    let lines = page.lines().count();
    assert!(
        lines <= MOST_LINES,
        "design.md has {lines} lines: move what is not the design to docs/"
    );
    for (number, line) in figures(&page) {
        let columns = line.chars().count();
        assert!(
            columns <= MOST_COLUMNS && line.is_ascii(),
            "design.md:{number}: {columns} columns, or no ASCII"
        );
    }
}

#[test]
fn files_and_functions_of_the_design_exist() {
    let (page, mut files, mut functions, mut floor) = (design(), 0, 0, String::new());
    let mut wrong = Vec::new();
    for (number, line) in page.lines().enumerate() {
        let first = words(line).next().unwrap_or_default();
        if line.is_empty() || FLOORS.contains(&first) {
            floor = first.to_owned();
        }
        let mut last = None;
        for word in words(line) {
            if is_file(word) {
                files += 1;
                last = found(word, &floor);
                if last.is_none() {
                    wrong.push(format!("design.md:{}: there is no {word}", number + 1));
                }
            } else if let (Some(function), Some(file)) = (word.strip_suffix("()"), &last)
                && file.is_file()
            {
                functions += 1;
                let source = read_to_string(file).expect("a source");
                if !source.contains(&format!("fn {function}(")) && !source.contains(&format!("fn {function}<")) {
                    wrong.push(format!(
                        "design.md:{}: {} has no {function}()",
                        number + 1,
                        file.display()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        files > 40 && functions > 10,
        "{files} files, {functions} functions: has their form changed?"
    );
}

#[test]
fn the_design_draws_the_floors_that_there_are() {
    let page = design();
    let drawn: Vec<_> = figures(&page)
        .iter()
        .skip_while(|(_, line)| !line.trim_start().starts_with("API "))
        .map(|(_, line)| words(line).next().unwrap_or_default())
        .filter(|first| FLOORS.contains(first))
        .take(FLOORS.len() - 1)
        .collect();
    let mut floors: Vec<_> = FLOORS.into_iter().filter(|floor| *floor != "testing").collect();
    floors.reverse();
    assert_eq!(drawn, floors);
    let folders: BTreeSet<_> = Tree::real()
        .files
        .keys()
        .filter(|module| module.len() > 1)
        .map(|module| module[0].clone())
        .collect();
    let known: BTreeSet<_> = floors
        .iter()
        .filter(|floor| **floor != "API")
        .map(|floor| (*floor).to_owned())
        .collect();
    assert_eq!(folders, known, "a folder of src/ is no floor, or a floor no folder");
}

/// The names of an enum's variants.
fn variants(source: &str, name: &str) -> Vec<String> {
    let body = source.split_once(&format!("enum {name} {{")).expect("the enum").1;
    let body = body.split_once("\n}").expect("its end").0;
    let lines = body
        .lines()
        .filter(|line| line.starts_with("    ") && !line.starts_with("     "));
    let names = lines.map(|line| {
        line.trim()
            .split(|sign: char| !sign.is_ascii_alphanumeric())
            .next()
            .unwrap_or_default()
    });
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[test]
fn the_states_and_events_of_a_request_are_those_of_the_design() {
    let (page, claim) = (
        design(),
        read_to_string(root().join("src/state/claim.rs")).expect("claim.rs"),
    );
    let (_, part) = page
        .split_once("\n## A request in the client")
        .expect("the part about states");
    let part = part.split("\n## ").next().unwrap_or_default();
    let phases = variants(&claim, "Phase");
    assert_eq!(phases.len(), 5, "{phases:?}");
    for phase in phases.iter().filter(|phase| *phase != "Over") {
        assert!(part.contains(&phase.to_uppercase()), "design.md does not draw {phase}");
    }
    for ended in variants(&claim, "EndedBy") {
        assert!(
            part.contains(&format!("`{ended}")),
            "design.md does not tell what ends a request as {ended}"
        );
    }
    let events = claim
        .match_indices("fn on_")
        .map(|(at, _)| claim[at + 3..].split('(').next().unwrap_or_default());
    let events: Vec<_> = events.chain(["expire", "poll_outcome"]).collect();
    assert!(events.len() >= 6, "{events:?}");
    for event in events {
        assert!(claim.contains(&format!("fn {event}(")), "claim.rs has no {event}");
        assert!(part.contains(event), "design.md does not tell of {event}");
    }
}

/// All sources of tests, those with unit tests, and the conformance scenarios.
fn tests() -> String {
    let folders = ["tests/it", "tests/attack", "tests/conformance", "src", "cli"];
    let (mut folders, mut all) = (folders.map(|folder| root().join(folder)).to_vec(), String::new());
    while let Some(folder) = folders.pop() {
        for entry in read_dir(folder).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            let end = path.extension().and_then(|end| end.to_str());
            if path.is_dir() {
                folders.push(path);
            } else if matches!(end, Some("rs" | "json")) {
                all.push_str(&read_to_string(&path).expect("a source"));
            }
        }
    }
    all
}

#[test]
fn every_invariant_of_the_design_has_a_test() {
    let (page, tests) = (design(), tests());
    let (_, part) = page.split_once("\n## Invariants\n").expect("the invariants");
    let part = part.split("\n## ").next().unwrap_or_default();
    for number in 1..=11 {
        let item = part.split_once(&format!("\n{number}. "));
        let (_, item) = item.unwrap_or_else(|| panic!("there is no invariant {number}"));
        let item = item.split(&format!("\n{}. ", number + 1)).next().unwrap_or_default();
        let item = item.split_whitespace().collect::<Vec<_>>().join(" ");
        // A test's name, or the title of a scenario.
        let is_name = |name: &&str| name.matches(['_', ' ']).count() > 2;
        let named: Vec<_> = item.split('`').skip(1).step_by(2).filter(is_name).collect();
        assert!(!named.is_empty(), "invariant {number} names no test");
        for name in named {
            let found = [format!("fn {name}("), format!("\"scenario\": \"{name}\"")];
            assert!(
                found.iter().any(|found| tests.contains(found)),
                "invariant {number}: there is no test {name:?}, and no scenario"
            );
        }
    }
}

/// The pages for people: at the root, in `docs/`, and of the folders that have one.
fn pages() -> Vec<PathBuf> {
    let folders = [
        "",
        "docs",
        "tests/attack",
        "tests/bench",
        "tests/conformance",
        "ops",
        "cli",
    ];
    let entries = folders
        .iter()
        .flat_map(|folder| read_dir(root().join(folder)).into_iter().flatten());
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect()
}

#[test]
fn files_that_the_pages_name_exist() {
    let (mut wrong, mut named) = (Vec::new(), 0);
    for page in pages().into_iter().filter(|page| !page.ends_with("CHANGELOG.md")) {
        let text = read_to_string(&page).expect("a page");
        for (number, line) in text.lines().enumerate() {
            let folders = ["src/", "tests/", "lua/", "docs/", "examples/", "cli/"];
            for word in words(line).filter(|word| is_file(word)) {
                // `src/main.rs` is the reader's own.
                if !folders.iter().any(|folder| word.starts_with(folder)) || word == "src/main.rs" {
                    continue;
                }
                named += 1;
                let beside = page.parent().expect("a folder").join(word);
                if !root().join(word).exists() && !beside.exists() {
                    wrong.push(format!("{}:{}: there is no {word}", page.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(named > 50, "{named} names: has their form changed?");
}

/// The headings of a page, as the fragments of links.
fn fragments(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter_map(|line| line.strip_prefix('#'));
    let slug = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text
            .chars()
            .filter(|sign| sign.is_alphanumeric() || " -_".contains(*sign));
        kept.map(|sign| if sign == ' ' { '-' } else { sign }).collect()
    };
    headings.map(slug).collect()
}

#[test]
fn links_to_headings_lead_to_headings() {
    let mut checked = 0;
    for page in pages() {
        let text = read_to_string(&page).expect("a page");
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let links = links.chain(
            text.lines()
                .filter_map(|line| line.strip_prefix('[')?.split_once("]: "))
                .map(|(_, to)| to),
        );
        for link in links.filter(|link| !link.contains("://")) {
            let Some((file, fragment)) = link
                .split_once('#')
                .filter(|(file, _)| file.is_empty() || file.ends_with(".md"))
            else {
                continue;
            };
            let target = if file.is_empty() {
                page.clone()
            } else {
                page.parent().expect("a folder").join(file)
            };
            let text = read_to_string(&target).unwrap_or_else(|_| panic!("{}: {link}", page.display()));
            assert!(
                fragments(&text).contains(fragment),
                "{}: {link} has no such heading",
                page.display()
            );
            checked += 1;
        }
    }
    assert!(checked > 0, "no link to a heading was found: has their form changed?");
}

/// What redis-cli shows, as the page says it: by command, then member and value.
fn shown(page: &str) -> BTreeMap<&str, Vec<(&str, &str)>> {
    let mut figures = page.split("```text\n").filter_map(|rest| rest.split("```").next());
    let figure = figures
        .find(|figure| figure.starts_with("redis-cli "))
        .expect("the figure");
    let (mut shown, mut command) = (BTreeMap::<_, Vec<_>>::new(), "");
    for line in figure.lines() {
        if let Some(asked) = line.strip_prefix("redis-cli ") {
            command = asked;
        } else if let [member, value, ..] = line.split_whitespace().collect::<Vec<_>>()[..] {
            shown.entry(command).or_default().push((member, value));
        }
    }
    shown
}

/// Numbers of the clock differ from run to run: how many digits they have does not.
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
    let (_, script) = page.split_once("```sh\n").expect("the commands");
    let script = script.split("```").next().unwrap_or_default();
    let files = script
        .split_once("cat ")
        .and_then(|(_, rest)| rest.split_once('>'))
        .expect("files")
        .0;
    let lua: String = files
        .split_whitespace()
        .map(|file| read_to_string(root().join("lua").join(file)).expect("a part of the script"))
        .collect();
    let requests = script
        .split_once(" in ")
        .and_then(|(_, rest)| rest.rsplit_once("; do"))
        .expect("requests")
        .0;
    let keys: Vec<_> = script.split('\'').skip(1).step_by(2).take(3).collect();
    let mut words = script.split_once(" , ").expect("arguments").1.split_whitespace();
    let server = Server::start().await;
    let mut connection = server.redis().await;
    for request in requests.split_whitespace() {
        let arguments = words.clone().take_while(|word| *word != "done");
        let mut eval = redis::cmd("EVAL");
        eval.arg(&lua).arg(keys.len()).arg(&keys);
        for argument in arguments {
            eval.arg(if argument == "$request" {
                request
            } else {
                argument.trim_matches('\'')
            });
        }
        let _: Vec<i64> = eval.query_async(&mut connection).await.expect("an acquire");
    }
    assert_eq!(words.next(), Some("PUBLISH"));
    let shown = shown(&page);
    assert_eq!(shown.len(), 3, "{shown:?}");
    for (command, lines) in shown {
        let reply: Vec<String> = redis::cmd("EVAL")
            // As a flat list of texts in every version of the protocol.
            .arg("return redis.call(unpack(ARGV))")
            .arg(0)
            .arg(
                command
                    .split_whitespace()
                    .map(|word| word.trim_matches('\''))
                    .collect::<Vec<_>>(),
            )
            .query_async(&mut connection)
            .await
            .expect("a reply");
        let mut found: Vec<_> = reply
            .chunks(2)
            .map(|pair| (pair[0].clone(), without_time(&pair[1])))
            .collect();
        let mut told: Vec<_> = lines
            .iter()
            .map(|(member, value)| ((*member).to_owned(), without_time(value)))
            .collect();
        // Leases that end in the same millisecond are in the order of their names.
        if !command.contains(":queue") {
            found.sort();
            told.sort();
        }
        assert_eq!(told, found, "design.md, {command}");
    }
}
