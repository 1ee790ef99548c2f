//! The floors of `src/`: each folder imports only from folders below it, and no imports run in a circle.
//!
//! `scan` reads every file of `src/` and draws an arrow from the file that imports to the file that has what is imported.
//! A rule is a function from all files to what is wrong. Each rule is tried on sources that are made up, too, because a rule
//! that finds nothing may be blind. CONTRIBUTING.md says where a new feature goes, design.md draws the floors.

mod design;
mod scan;

use scan::{Tree, code, paths, without_tests};
use std::collections::BTreeSet;
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// The folders of `src/`, each of which imports only from those before it. Then the files at the root, and the test seam.
const FLOORS: &str = "types protocol observe state transport engine API testing";

/// What neither the state nor the protocol has: all that acts or tells the time.
const ACTIONS: &str = "Instant::now elapsed SystemTime::now spawn redis::aio \
    std::net std::fs std::io std::thread std::process std::env";
const NOT_IN_STATE: &str = "sleep timeout interval Wire";
const NOT_IN_PROTOCOL: &str = "tokio async await Instant";
/// What the state may have of tokio: to wait until it is called, and a time that it was given.
const TOKIO_IN_STATE: [&str; 3] = ["tokio::select", "tokio::sync", "tokio::time::Instant"];

/// Commands outside of the protocol, by module, that ask what a server or a connection is, or where a slot lies.
const COMMANDS: [(&str, &str); 4] = [
    ("transport::server", "HELLO CLIENT SETNAME"),
    ("transport::subscription", "PING"),
    ("transport::wire", "ASKING"),
    ("transport::cluster::table", "CLUSTER SLOTS INFO"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below a folder with such an extension.
fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let entries = read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let (folders, mut files): (Vec<_>, Vec<_>) = entries
        .map(|entry| entry.expect("an entry").path())
        .partition(|path| path.is_dir());
    files.retain(|file| extensions.iter().any(|end| file.extension() == Some(end.as_ref())));
    files.extend(folders.iter().flat_map(|folder| self::files(folder, extensions)));
    files
}

fn real() -> Tree {
    let src = root().join("src");
    let source = |file: PathBuf| {
        let name = file.strip_prefix(&src).expect("in src").to_string_lossy().into_owned();
        (name, read_to_string(&file).expect("a source"))
    };
    let tree = Tree::new(files(&src, &["rs"]).into_iter().map(source));
    for floor in FLOORS.split(' ').filter(|floor| *floor != "testing") {
        assert!(on(&tree, floor).len() > 1, "the floor {floor} is empty");
    }
    tree
}

/// On which floor a module is.
fn floor(module: &str) -> (usize, &'static str) {
    let is = |name: &str| FLOORS.split(' ').enumerate().find(|(_, floor)| *floor == name);
    is(module.split("::").next().unwrap_or_default())
        .or(is("API"))
        .expect("a floor")
}

/// A module with all that is in its folder: `src/transport/link.rs` and `src/transport/link/` are one room.
fn room(module: &str) -> String {
    let depth = if matches!(floor(module).1, "API" | "testing") {
        1
    } else {
        2
    };
    module.split("::").take(depth).collect::<Vec<_>>().join("::")
}

/// The modules of a floor and their code, but for what only tests have.
fn on<'a>(tree: &'a Tree, wanted: &str) -> Vec<(&'a str, String)> {
    let files = tree
        .0
        .iter()
        .filter(|(module, _)| floor(module).1 == wanted && !tree.is_of_tests(module));
    files
        .map(|(module, file)| (module.as_str(), without_tests(&code(&file.source, true))))
        .collect()
}

fn upward(tree: &Tree) -> Vec<String> {
    let arrows = tree
        .arrows()
        .into_iter()
        .filter(|arrow| floor(&arrow.to) > floor(&arrow.from));
    arrows
        .map(|arrow| format!("{}: {} goes up to {:?}", arrow.from, arrow.path, floor(&arrow.to).1))
        .collect()
}

/// Imports that run in a circle, between rooms of one floor. A test imports what it tests, so its file does not count.
fn circles(tree: &Tree) -> Vec<String> {
    let mut arrows = tree.arrows();
    arrows.retain(|arrow| room(&arrow.from) != room(&arrow.to) && floor(&arrow.from) == floor(&arrow.to));
    arrows.retain(|arrow| !tree.is_of_tests(&arrow.from) && !tree.is_of_tests(&arrow.to));
    let rooms: Vec<_> = arrows
        .iter()
        .map(|arrow| (room(&arrow.from), room(&arrow.to)))
        .collect();
    // All rooms that a room needs, directly or not.
    let needs = |from| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(room) = open.pop() {
            if seen.insert(room) {
                open.extend(rooms.iter().filter(|(from, _)| from == room).map(|(_, to)| to));
            }
        }
        seen
    };
    let back = arrows
        .iter()
        .zip(&rooms)
        .filter(|(_, (from, to))| needs(to).contains(from));
    back.map(|(arrow, (_, to))| format!("{}: {} is of {to}, which needs it in its turn", arrow.from, arrow.path))
        .collect()
}

/// Where a floor does what it leaves to others.
fn forbidden(tree: &Tree, wanted: &str, words: &[&str]) -> Vec<String> {
    let mut said = Vec::new();
    for (module, text) in on(tree, wanted) {
        for path in paths(&code(&text, false)) {
            let has = |word: &str| format!("::{}::", path.text).contains(&format!("::{word}::"));
            let is_tokio =
                path.text.starts_with("tokio::") && !TOKIO_IN_STATE.iter().any(|known| path.text.starts_with(known));
            if is_tokio || words.iter().flat_map(|words| words.split_whitespace()).any(has) {
                said.push(format!("{module}: {}", path.text));
            }
        }
    }
    said
}

/// Commands and scripts that are composed outside of the protocol, but for those allowed; and what is allowed in vain.
fn commands(tree: &Tree, allowed: &[(&str, &str)]) -> Vec<String> {
    let allowed = allowed
        .iter()
        .flat_map(|(module, words)| words.split(' ').map(|word| (*module, word.to_owned())));
    let allowed: BTreeSet<_> = allowed.collect();
    let (mut used, mut said) = (BTreeSet::new(), Vec::new());
    for (module, text) in FLOORS
        .split(' ')
        .filter(|floor| *floor != "protocol")
        .flat_map(|floor| on(tree, floor))
    {
        let calls = ["arg(\"", "cmd(\""]
            .into_iter()
            .flat_map(|call| text.split(call).skip(1));
        let commands = calls.filter_map(|rest| rest.split('"').next());
        let commands = commands
            .filter(|text| text.len() > 1 && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b' '));
        used.extend(commands.map(|command| (module, command.to_owned())));
        said.extend(
            text.contains(".lua\"")
                .then(|| format!("{module}: the text of a script")),
        );
    }
    said.extend(
        used.symmetric_difference(&allowed)
            .map(|(module, command)| format!("{module}: {command}, or COMMANDS")),
    );
    said
}

#[track_caller]
fn none(found: &[String]) {
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn imports_go_downward_and_never_in_a_circle() {
    none(&upward(&real()));
    none(&circles(&real()));
}

#[test]
fn the_state_and_the_protocol_do_no_io_and_read_no_clock() {
    none(&forbidden(&real(), "state", &[ACTIONS, NOT_IN_STATE]));
    none(&forbidden(&real(), "protocol", &[ACTIONS, NOT_IN_PROTOCOL]));
}

#[test]
fn the_protocol_alone_knows_commands_and_scripts() {
    none(&commands(&real(), &COMMANDS));
}

/// The modules in which something was found.
fn places(found: &[String]) -> String {
    found
        .iter()
        .filter_map(|said| said.split(": ").next())
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn an_upward_import_is_found_however_it_is_written() {
    let found = |source| {
        places(&upward(&Tree::new([
            ("lib.rs", "pub use client::Client; pub mod testing;"),
            ("engine/mod.rs", "pub(crate) mod call; pub(crate) use call::Call;"),
            ("engine/call.rs", "pub(crate) struct Call;"),
            (
                "client.rs",
                "use crate::engine::{self, Call}; use crate::state::Claim; pub struct Client;",
            ),
            ("testing.rs", "use crate::client::Client;"),
            ("state/mod.rs", "mod claim; pub(crate) use claim::Claim;"),
            ("state/claim.rs", source),
            (
                "types/mod.rs",
                "// use crate::engine::Call;\n#[doc = \"[x]: crate::engine::Call\"] mod x;",
            ),
        ])))
    };
    let right = r###"use crate::types::{X, y::{Z,},}; use super::Claim; use redis::Value; /* crate::Client */ fn f<'a>(_: &'a str)
        { r#"" crate::Client "#; '"'; '\''; crate::types::f(); "\\\" crate::Client"; }"###;
    assert_eq!(found(right), "");
    for wrong in [
        "use crate::engine::Call;",
        "use crate::{types::X, engine::{call::Call}};",
        "use super::super::engine as e;",
        "use crate::{Client};",
        "fn f() { crate::engine::call::g() }",
        "fn f() { '\"'; r#\"\"\"#; crate::engine::call::g() }",
        "#[cfg(feature = \"cluster\")] fn f(_: &super::super::client::Client) {}",
        "#[cfg(test)] mod tests { use crate::client::Client; }",
        "mod inside { use super::super::super::engine::Call; }",
        "fn f() { crate::testing::g() }",
    ] {
        assert_eq!(found(wrong), "state::claim", "{wrong}");
    }
}

#[test]
fn a_circle_is_found_through_re_exports_and_third_files() {
    let of = |c| {
        places(&circles(&Tree::new([
            (
                "state/mod.rs",
                "mod a; mod b; mod c; pub(crate) use a::A; pub(crate) use b::B;",
            ),
            ("state/a.rs", "use super::B; mod parts; use parts::P;"),
            ("state/a/parts.rs", "use super::A;"),
            ("state/b.rs", "use crate::state::c::C; #[cfg(test)] mod tests;"),
            ("state/b/tests.rs", "use crate::state::a::A;"),
            ("state/c.rs", c),
        ])))
    };
    assert_eq!(of("pub(crate) struct C;"), "");
    assert_eq!(of("use super::{A};"), "state::a state::b state::c");
    assert_eq!(
        of("use crate::state as s; fn f() { s::a::g() }"),
        "state::a state::b state::c"
    );
    let api = [
        ("client.rs", "use crate::guard::Guard;"),
        ("guard.rs", "use crate::client::Client;"),
    ];
    assert_eq!(places(&circles(&Tree::new(api))), "client guard");
}

#[test]
fn io_and_clocks_are_found_unless_tests_have_them() {
    let of = |floor, words: &[&str], source| {
        let files = [
            (format!("{floor}/a.rs"), source),
            (format!("{floor}/a/tests.rs"), "Instant::now()".to_owned()),
        ];
        places(&forbidden(&Tree::new(files), floor, words))
    };
    let state = |source: &str| {
        of(
            "state",
            &[ACTIONS, NOT_IN_STATE],
            format!("#[cfg(test)] mod tests; {source}"),
        )
    };
    assert_eq!(
        state("use tokio::{time::Instant, sync::Notify}; #[cfg(all(test, x))] #[path] mod c { sleep }"),
        ""
    );
    for wrong in [
        "Instant::now()",
        "use tokio::time::sleep_until;",
        "use std::{fs};",
        "tokio::spawn(x)",
        "#[cfg(x)] fn f() { sleep }",
    ] {
        assert_eq!(state(wrong), "state::a", "{wrong}");
    }
    assert_eq!(
        of("state", &[ACTIONS, NOT_IN_STATE], "mod tests;".to_owned()),
        "state::a::tests"
    );
    let protocol = [ACTIONS, NOT_IN_PROTOCOL];
    assert_eq!(
        of(
            "protocol",
            &protocol,
            "#[cfg(test)] mod tests; use tokio::sync::Notify;".to_owned()
        ),
        "protocol::a"
    );
}

#[test]
fn a_command_outside_of_the_protocol_is_found() {
    let found = commands(
        &Tree::new([
            ("protocol/key.rs", "redis::cmd(\"GET\")"),
            (
                "transport/link.rs",
                "redis::cmd(\"PING\"); cmd.arg(\"EVAL\").arg(\"text\")",
            ),
            ("engine/call.rs", "include_str!(\"../../lua/lock.lua\")"),
        ]),
        &[("transport::link", "PING WAIT")],
    );
    assert_eq!(found.len(), 3, "{found:?}");
    for (found, wanted) in found
        .iter()
        .zip(["engine::call: ", "transport::link: EVAL", "transport::link: WAIT"])
    {
        assert!(found.starts_with(wanted), "{found}");
    }
}
