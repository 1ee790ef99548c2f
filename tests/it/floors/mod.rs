//! The floors of `src/`: each folder imports only from folders below it, and no imports run in a circle.
//!
//! The test reads every file of `src/`, resolves each import through the re-exports to the file that has what is imported,
//! and judges the arrows between files. It reads the code of every feature at once, because it knows no `cfg` but `test`.
//! CONTRIBUTING.md says where a new feature goes, design.md draws the floors.

mod made_up;
mod page;
mod scan;
mod tree;

use scan::tokens;
use std::collections::{BTreeMap, BTreeSet};
use tree::{File, Tree};

/// The folders of `src/`, each of which imports only from those before it. Then the files at the root, and the test seam.
const FLOORS: [&str; 8] = [
    "types",
    "protocol",
    "observe",
    "state",
    "transport",
    "engine",
    "API",
    "testing",
];

/// What the floor `state` leaves to others: to do anything, and to know the time.
const NOT_IN_STATE: [&str; 16] = [
    "Instant::now",
    "SystemTime",
    "sleep",
    "timeout",
    "interval",
    "spawn",
    "Wire",
    "redis::aio",
    "std::net",
    "std::fs",
    "std::io",
    "std::thread",
    "std::process",
    "std::env",
    "tokio::net",
    "tokio::fs",
];

/// The floor `protocol` is commands out, values in: nothing of it waits, sends or knows the time.
const NOT_IN_PROTOCOL: [&str; 11] = [
    "tokio",
    "async",
    "await",
    "Instant",
    "SystemTime::now",
    "redis::aio",
    "std::net",
    "std::fs",
    "std::io",
    "std::thread",
    "std::process",
];

/// Commands outside of `src/protocol`: where, which, and why they are no part of the protocol.
const COMMANDS: [(&str, &str, &str); 8] = [
    (
        "src/transport/server.rs",
        "HELLO",
        "asks a server what it is, before any script",
    ),
    (
        "src/transport/server.rs",
        "CLIENT",
        "names the connection for operators",
    ),
    ("src/transport/server.rs", "SETNAME", "the same command"),
    (
        "src/transport/subscription.rs",
        "PING",
        "asks whether a connection lives",
    ),
    (
        "src/transport/wire.rs",
        "ASKING",
        "lets a call in where a slot is being moved",
    ),
    (
        "src/transport/cluster/table.rs",
        "CLUSTER",
        "asks a node which node has which slot",
    ),
    (
        "src/transport/cluster/table.rs",
        "INFO",
        "the same, and what its epoch is",
    ),
    ("src/transport/cluster/table.rs", "SLOTS", "the same command"),
];

/// On which floor a module is.
fn floor(module: &[String]) -> usize {
    let first = module.first().map_or("API", String::as_str);
    let found = FLOORS.iter().position(|floor| *floor == first);
    found.unwrap_or_else(|| FLOORS.iter().position(|floor| *floor == "API").unwrap_or(0))
}

/// A module with all that is in its folder: `src/transport/link.rs` and `src/transport/link/` are one room.
fn room(module: &[String]) -> &[String] {
    let depth = if floor(module) < FLOORS.len() - 2 { 2 } else { 1 };
    &module[..module.len().min(depth)]
}

fn upward(tree: &Tree) -> Vec<String> {
    let arrows = tree
        .arrows()
        .into_iter()
        .filter(|arrow| floor(&arrow.to) > floor(&arrow.from));
    let said = arrows.map(|arrow| {
        format!(
            "{}: `{}` is of {}. The floor {:?} imports only from floors below it: move what both need down, or hand it in.",
            arrow.place,
            arrow.said,
            tree.name(&arrow.to),
            FLOORS[floor(&arrow.from)],
        )
    });
    said.collect()
}

/// Imports that run in a circle, between rooms of one floor.
fn circles(tree: &Tree) -> Vec<String> {
    let arrows: Vec<_> = tree
        .arrows()
        .into_iter()
        .filter(|arrow| room(&arrow.from) != room(&arrow.to) && floor(&arrow.from) == floor(&arrow.to))
        // A test imports what it tests, and may replace what that imports.
        .filter(|arrow| !tree.is_of_tests(&arrow.from) && !tree.is_of_tests(&arrow.to))
        .collect();
    let mut next: BTreeMap<&[String], BTreeSet<&[String]>> = BTreeMap::new();
    for arrow in &arrows {
        next.entry(room(&arrow.from)).or_default().insert(room(&arrow.to));
    }
    let reaches = |from: &[String], to: &[String]| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(room) = open.pop() {
            if room == to {
                return true;
            }
            if seen.insert(room) {
                open.extend(next.get(room).into_iter().flatten());
            }
        }
        false
    };
    let back = arrows
        .iter()
        .filter(|arrow| reaches(room(&arrow.to), room(&arrow.from)));
    let said = back.map(|arrow| {
        format!(
            "{}: `{}` is of {}, which needs this file in its turn. Of two files that need each other's, one has to be above: move \
             what both need to a third.",
            arrow.place,
            arrow.said,
            tree.name(&arrow.to),
        )
    });
    said.collect()
}

/// Where a floor does what it leaves to others.
fn forbidden(tree: &Tree, floor: &str, words: &[&str]) -> Vec<String> {
    let mut said = Vec::new();
    for (_, file) in on(tree, floor) {
        for words in words {
            let wanted = tokens(words);
            let found = file.scan.tokens.windows(wanted.len()).filter(|window| {
                let mut pairs = window.iter().zip(&wanted);
                pairs.all(|(token, wanted)| token.text == wanted.text)
            });
            said.extend(found.map(|window| {
                format!(
                    "{}:{}: `{words}` in the floor {floor:?}, which does no I/O and reads no clock: take the value, or the function \
                     that gives it, as an argument.",
                    file.path, window[0].line
                )
            }));
        }
        for path in &file.scan.paths {
            let path_text = path.segments.join("::");
            let is_time = path.import.is_some() && path_text.starts_with("tokio::time::");
            if floor == "state" && is_time && path_text != "tokio::time::Instant" {
                said.push(format!(
                    "{}:{}: `{path_text}`: of tokio's time this floor knows only Instant.",
                    file.path, path.line
                ));
            }
        }
    }
    said
}

/// The files of a floor, but for those that only tests have.
fn on<'a>(tree: &'a Tree, wanted: &str) -> impl Iterator<Item = (&'a Vec<String>, &'a File)> {
    let wanted = FLOORS.iter().position(|floor| *floor == wanted);
    let files = tree.files.iter().filter(|(_, file)| !file.is_of_tests);
    files.filter(move |(module, _)| Some(floor(module)) == wanted)
}

/// Commands and scripts that are composed outside of `src/protocol`, but for `allowed`; and what is allowed in vain.
fn commands(tree: &Tree, allowed: &[(&str, &str, &str)]) -> Vec<String> {
    let (mut said, mut used) = (Vec::new(), BTreeSet::new());
    for (module, file) in &tree.files {
        if module.first().is_some_and(|first| first == "protocol") || file.is_of_tests {
            continue;
        }
        for ([before, bracket], text, line) in &file.scan.literals {
            let place = format!("{}:{line}", file.path);
            if text.ends_with(".lua") {
                said.push(format!(
                    "{place}: {text:?}: the scripts are known in src/protocol/script.rs only."
                ));
            }
            let is_argument = bracket == "(" && matches!(before.as_str(), "arg" | "cmd");
            let is_command = text.len() > 1 && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b' ');
            if !is_argument || !is_command {
                continue;
            }
            let known = allowed
                .iter()
                .position(|(path, command, _)| file.path.starts_with(path) && command == text);
            match known {
                Some(known) => _ = used.insert(known),
                None => said.push(format!(
                    "{place}: the command {text:?}: src/protocol alone knows commands and their arguments. Make it there, or add it \
                     to COMMANDS in tests/it/floors/mod.rs, with the reason."
                )),
            }
        }
    }
    let in_vain = (0..allowed.len()).filter(|at| !used.contains(at));
    said.extend(in_vain.map(|at| {
        format!(
            "COMMANDS of tests/it/floors/mod.rs: {:?} is not there any more.",
            allowed[at]
        )
    }));
    said
}

#[track_caller]
fn none(of: &str, found: &[String]) {
    assert!(found.is_empty(), "{} {of}:\n{}", found.len(), found.join("\n"));
}

#[test]
fn no_floor_imports_from_a_floor_above() {
    none("imports go upward", &upward(&Tree::real()));
}

#[test]
fn no_imports_run_in_a_circle() {
    none("imports run in a circle", &circles(&Tree::real()));
}

#[test]
fn the_state_does_no_io_and_reads_no_clock() {
    let tree = Tree::real();
    assert!(on(&tree, "state").count() > 3, "the floor is empty");
    none(
        "actions in the floor of the state",
        &forbidden(&tree, "state", &NOT_IN_STATE),
    );
}

#[test]
fn the_protocol_is_commands_out_and_values_in() {
    let tree = Tree::real();
    assert!(on(&tree, "protocol").count() > 5, "the floor is empty");
    none(
        "actions in the floor of the protocol",
        &forbidden(&tree, "protocol", &NOT_IN_PROTOCOL),
    );
}

#[test]
fn the_protocol_alone_knows_commands_and_scripts() {
    none("commands outside of the protocol", &commands(&Tree::real(), &COMMANDS));
}
