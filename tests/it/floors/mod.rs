//! The floors of `src/`: each folder imports only from folders below it, and no imports run in a circle.
//!
//! `scan` reads every file of `src/` and draws an arrow from the file that imports to the file that has what is imported.
//! A rule is a function from all files to what is wrong. Each rule is tried on sources that are made up, too, because a rule
//! that finds nothing may be blind. CONTRIBUTING.md says where a new feature goes, design.md draws the floors.

mod design;
mod scan;

use scan::{Arrow, Tree, paths};
use std::collections::BTreeSet;
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// The folders of `src/`, each of which imports only from those before it. Then the files at the root, and the test seam.
const FLOORS: &str = "types protocol observe state transport engine API quorum testing";

/// What acts or tells the time.
const NOT_IN_STATE: &str = "clock Instant::now elapsed SystemTime::now spawn redis::aio std::net std::fs std::io std::thread \
    std::process std::env sleep timeout interval Wire";
/// The protocol does not wait, either. Its `timeout` is a word of a reply.
const NOT_IN_PROTOCOL: &str = "clock Instant SystemTime::now spawn redis::aio std::net std::fs std::io std::thread \
    std::process std::env tokio async await";
/// What tells the time or waits for one by another clock than the client's, which counts for how long the machine was suspended.
const OTHER_CLOCKS: &str = "Instant::now elapsed sleep_until timeout_at";
/// What the state may have of tokio: to wait until it is called, and a time that it was given.
const TOKIO_IN_STATE: [&str; 3] = ["tokio::select", "tokio::sync", "tokio::time::Instant"];

/// Commands outside of the protocol. They ask what a server or a connection is, or where a slot lies, or subscribe where the
/// redis crate does not do it: over the wires of tests.
const COMMANDS: &str = "transport::cluster::table: CLUSTER, transport::cluster::table: INFO, transport::cluster::table: SLOTS, \
    transport::server: CLIENT, transport::server: HELLO, transport::server: SELECT, transport::server: SETNAME, transport::subscription: PING, \
    transport::wire: ASKING, transport::wire: SUBSCRIBE";

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// All files below a folder with such an extension.
fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in read_dir(folder).expect("a folder") {
        match entry.expect("an entry").path() {
            path if path.is_dir() => files.extend(self::files(&path, extensions)),
            path if extensions.iter().any(|end| path.extension() == Some(end.as_ref())) => files.push(path),
            _ => {}
        }
    }
    files
}

fn real() -> Tree {
    let src = Path::new(ROOT).join("src");
    let source = |file: PathBuf| {
        let name = file.strip_prefix(&src).expect("in src").to_string_lossy().into_owned();
        (name, read_to_string(&file).expect("a source"))
    };
    let tree = Tree::new(files(&src, &["rs"]).into_iter().map(source));
    assert!(FLOORS.split(' ').all(|floor| !on(&tree, floor).is_empty()));
    tree
}

/// On which floor a module is.
fn floor(module: &str) -> (usize, &'static str) {
    let is = |name: &str| FLOORS.split(' ').enumerate().find(|(_, floor)| *floor == name);
    let first = module.split("::").next().unwrap_or_default();
    is(first).or(is("API")).expect("a floor")
}

/// A module with all that is in its folder: `src/transport/link.rs` and `src/transport/link/` are one room.
fn room(module: &str) -> String {
    let parts = module.split("::").take(2 - usize::from(floor(module).0 > 5));
    Vec::from_iter(parts).join("::")
}

/// The modules of a floor and their code, but for what only tests have.
fn on<'a>(tree: &'a Tree, wanted: &str) -> Vec<(&'a str, &'a str)> {
    let files = tree.0.iter().map(|(module, (code, _))| (&module[..], &code[..]));
    let is_on = |module: &str| floor(module).1 == wanted && !tree.is_of_tests(module);
    files.filter(|(module, _)| is_on(module)).collect()
}

fn said((from, to, path): &Arrow) -> String {
    format!("{from}: {path} is of {to}")
}

/// Imports that go upward.
fn upward(tree: &Tree) -> Vec<String> {
    let mut arrows = tree.arrows();
    arrows.retain(|(from, to, _)| floor(to) > floor(from));
    arrows.iter().map(said).collect()
}

/// Imports that run in a circle, between rooms of one floor. A test imports what it tests, so its file does not count.
fn circles(tree: &Tree) -> Vec<String> {
    let mut arrows = tree.arrows();
    arrows.retain(|(from, to, _)| room(from) != room(to) && floor(from) == floor(to));
    arrows.retain(|(from, to, _)| !tree.is_of_tests(from) && !tree.is_of_tests(to));
    let is_in_circle = |(from, to, _): &&Arrow| {
        let (mut needed, mut open) = (BTreeSet::new(), vec![room(to)]);
        while let Some(next) = open.pop() {
            if needed.insert(next.clone()) {
                let others = arrows.iter().filter(|(from, ..)| room(from) == next);
                open.extend(others.map(|(_, to, _)| room(to)));
            }
        }
        needed.contains(&room(from))
    };
    arrows.iter().filter(is_in_circle).map(said).collect()
}

/// Where a floor does what it leaves to others.
fn forbidden(tree: &Tree, wanted: &str, words: &str) -> Vec<String> {
    let mut said = Vec::new();
    for (module, code) in on(tree, wanted) {
        for path in paths(code).into_iter().map(|path| path.text) {
            let has = |word: &str| format!("::{path}::").contains(&format!("::{word}::"));
            let is_known = TOKIO_IN_STATE.iter().any(|known| path.starts_with(known));
            if words.split_whitespace().any(has) || path.starts_with("tokio::") && !is_known {
                said.push(format!("{module}: {path}"));
            }
        }
    }
    said
}

/// Where the time is told by another clock than the client's.
fn other_clocks(tree: &Tree) -> Vec<String> {
    let mut said = Vec::new();
    // A rule of its own forbids the state to wait for a time.
    let floors = FLOORS.split(' ').filter(|floor| *floor != "state");
    let modules = floors.flat_map(|floor| on(tree, floor));
    for (module, code) in modules.filter(|(module, _)| *module != "types::clock") {
        for path in paths(code).into_iter().map(|path| path.text) {
            let is = |word: &str| format!("::{path}").ends_with(&format!("::{word}"));
            if OTHER_CLOCKS.split_whitespace().any(is) && !path.starts_with("clock::") {
                said.push(format!("{module}: {path}"));
            }
        }
    }
    said
}

/// Commands and scripts that are composed outside of the protocol.
fn commands(tree: &Tree) -> String {
    let mut found = BTreeSet::new();
    for floor in FLOORS.split(' ').filter(|floor| *floor != "protocol") {
        for (module, code) in on(tree, floor) {
            let calls = code.split("arg(\"").flat_map(|part| part.split("cmd(\"")).skip(1);
            let commands = calls.filter_map(|rest| Some(rest.split_once('"')?.0));
            let script = code.contains(".lua\"").then_some("a script");
            found.extend(commands.chain(script).map(|what| format!("{module}: {what}")));
        }
    }
    Vec::from_iter(found).join(", ")
}

/// Sources that are made up, one a line.
fn made_up(sources: &str) -> Tree {
    Tree::new(sources.lines().filter_map(|line| line.trim().split_once(": ")))
}

/// The modules in which something was found.
fn places(found: Vec<String>) -> String {
    let places = found.iter().filter_map(|said| said.split(": ").next());
    Vec::from_iter(places).join(" ")
}

#[test]
fn no_import_goes_upward_however_it_is_written() {
    assert_eq!(upward(&real()), [""; 0]);
    let others = r#"lib.rs: pub use client::Client; pub mod testing;
        engine/mod.rs: pub(crate) mod call; pub(crate) use call::Call;
        engine/call.rs: pub(crate) struct Call;
        client.rs: use crate::engine::{self, Call}; use crate::state::Claim; pub struct Client;
        testing.rs: use crate::client::Client;
        state/mod.rs: mod claim; pub(crate) use claim::Claim;
        types/mod.rs: #[doc = "[x]: crate::engine::Call"] mod x; // use crate::engine::Call;"#;
    let right = r##"state/claim.rs: use crate::types::{X, y::{Z,},}; use super::Claim; /* crate::Client */ fn f<'a>(_: &'a str)
        state/table.rs: r#"" crate::Client "#; '"'; '\''; crate::types::f(); "\\\" crate::Client";"##;
    assert_eq!(places(upward(&made_up(&format!("{others}\n{right}")))), "");
    let wrong = r##"use crate::engine::Call;
        use crate::{types::X, engine::{call::Call}};
        use super::super::engine as e;
        use crate::{Client};
        fn f() { crate::engine::call::g() }
        fn f() { '"'; r#"""#; crate::engine::call::g() }
        #[cfg(feature = "cluster")] fn f(_: &super::super::client::Client) {}
        #[cfg(test)] mod tests { use crate::client::Client; }
        mod inside { use super::super::super::engine::Call; }
        fn f() { crate::testing::g() }"##;
    for wrong in wrong.lines() {
        let tree = made_up(&format!("{others}\nstate/claim.rs: {wrong}"));
        assert_eq!(places(upward(&tree)), "state::claim", "{wrong}");
    }
}

#[test]
fn no_imports_run_in_a_circle_even_through_re_exports() {
    let of = |c| {
        let others = "state/mod.rs: mod a; mod b; mod c; pub(crate) use a::A; pub(crate) use b::B;
            state/a.rs: use super::B; mod parts; use parts::P;
            state/a/parts.rs: use super::A;
            state/b.rs: use crate::state::c::C; #[cfg(test)] mod tests;
            state/b/tests.rs: use crate::state::a::A;";
        places(circles(&made_up(&format!("{others}\nstate/c.rs: {c}"))))
    };
    assert_eq!(of("pub(crate) struct C; mod inside { use super::C; }"), "");
    assert_eq!(of("use super::{A};"), "state::a state::b state::c");
    let by_name = of("use crate::state as s; fn f() { s::a::g() }");
    assert_eq!(by_name, "state::a state::b state::c");
    let api = made_up("client.rs: use crate::guard::Guard;\nguard.rs: use crate::client::Client;");
    assert_eq!(places(circles(&api)), "client guard");
    assert_eq!(circles(&real()), [""; 0]);
}

#[test]
fn the_state_and_the_protocol_do_no_io_and_read_no_clock() {
    assert_eq!(forbidden(&real(), "state", NOT_IN_STATE), [""; 0]);
    assert_eq!(forbidden(&real(), "protocol", NOT_IN_PROTOCOL), [""; 0]);
    let of = |floor, words, source: &str| {
        let tests = format!("{floor}/a/tests.rs: Instant::now()");
        places(forbidden(
            &made_up(&format!("{floor}/a.rs: {source}\n{tests}")),
            floor,
            words,
        ))
    };
    let right =
        "use tokio::{time::Instant, sync::Notify}; #[cfg(test)] mod tests; #[cfg(all(test, x))] mod c { sleep }";
    assert_eq!(of("state", NOT_IN_STATE, right), "");
    assert_eq!(of("state", NOT_IN_STATE, "mod tests;"), "state::a::tests");
    for wrong in "Instant::now() | use tokio::time::sleep_until; | use std::{fs}; | #[cfg(x)] sleep".split(" | ") {
        let found = of("state", NOT_IN_STATE, &format!("#[cfg(test)] mod tests; {wrong}"));
        assert_eq!(found, "state::a", "{wrong}");
    }
    assert_eq!(
        of("state", NOT_IN_PROTOCOL, "async fn f() {} #[cfg(test)] mod tests;"),
        "state::a"
    );
}

#[test]
fn one_clock_tells_the_time() {
    assert_eq!(other_clocks(&real()), [""; 0]);
    let of = |source: &str| {
        places(other_clocks(&made_up(&format!(
            "engine/a.rs: {source}\ntypes/clock.rs: Instant::now()"
        ))))
    };
    assert_eq!(
        of("clock::now(); clock::sleep_until(at); timeout(limit, call); sleep(pause)"),
        ""
    );
    for wrong in
        "Instant::now() | begun.elapsed() | use tokio::time::{sleep_until}; | tokio::time::timeout_at(at, call)"
            .split(" | ")
    {
        assert_eq!(of(wrong), "engine::a", "{wrong}");
    }
}

#[test]
fn the_protocol_alone_knows_commands_and_scripts() {
    assert_eq!(commands(&real()), COMMANDS);
    let tree = r#"protocol/key.rs: redis::cmd("GET")
        transport/link.rs: redis::cmd("PING"); cmd.arg("EVAL").arg("text")
        engine/call.rs: include_str!("../../lua/lock.lua")"#;
    let wanted = "engine::call: a script, transport::link: EVAL, transport::link: PING";
    assert_eq!(commands(&made_up(tree)), wanted);
}
