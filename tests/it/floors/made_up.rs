//! The rules on sources that are made up: each rule finds what it is there for, and nothing else.

use super::*;

fn made_up(sources: &[(&str, &str)]) -> Tree {
    Tree::new(
        sources
            .iter()
            .map(|(path, source)| ((*path).to_owned(), (*source).to_owned())),
    )
}

/// The places of what was found.
fn places(found: &[String]) -> Vec<&str> {
    found
        .iter()
        .map(|said| said.split(": ").next().unwrap_or_default())
        .collect()
}

#[test]
fn an_upward_import_is_found_however_it_is_written() {
    let lib = (
        "lib.rs",
        "mod types; mod state; mod engine; mod client; pub use client::Client;",
    );
    let others = [
        ("engine/mod.rs", "pub(crate) mod call; pub(crate) use call::Call;"),
        ("engine/call.rs", "pub(crate) struct Call;"),
        (
            "client.rs",
            "use crate::engine::{self, Call}; use crate::state::Claim; pub struct Client;",
        ),
        ("state/mod.rs", "mod claim; pub(crate) use claim::Claim;"),
        (
            "types/mod.rs",
            "// use crate::engine::Call;\n#[doc = \"[x]: crate::engine::Call\"] mod x;",
        ),
    ];
    let found = |source: &str| {
        let claim = ("state/claim.rs", source);
        let sources: Vec<_> = [lib, claim].into_iter().chain(others).collect();
        upward(&made_up(&sources)).join("\n")
    };
    assert_eq!(found("use crate::types::X; use super::Claim; use redis::Value;"), "");
    for wrong in [
        "\nuse crate::engine::Call;",
        "\nuse crate::{types::X, engine::{call::Call}};",
        "\nuse super::super::engine as e;",
        "\nuse crate::Client;",
        "\nfn f() { crate::engine::call::g() }",
        "\n#[cfg(feature = \"cluster\")] fn f(_: &super::super::client::Client) {}",
        "\n#[cfg(test)] mod tests { use crate::client::Client; }",
        "\nmod inside { use super::super::super::engine::Call; }",
    ] {
        let said = found(wrong);
        assert!(said.starts_with("src/state/claim.rs:2: "), "{wrong:?}: {said:?}");
        assert_eq!(said.lines().count(), 1, "{wrong:?}: {said}");
    }
}

#[test]
fn the_test_seam_is_imported_by_nobody() {
    let tree = made_up(&[
        ("lib.rs", "pub mod testing; mod client;"),
        ("testing.rs", "use crate::client::Client;"),
        ("client.rs", "fn f() { crate::testing::g() }"),
    ]);
    assert_eq!(places(&upward(&tree)), ["src/client.rs:1"]);
}

#[test]
fn a_circle_is_found_through_re_exports_and_third_files() {
    let of = |c: &str| {
        circles(&made_up(&[
            (
                "state/mod.rs",
                "mod a; mod b; mod c; pub(crate) use a::A; pub(crate) use b::B;",
            ),
            ("state/a.rs", "use super::B;\nmod parts; use parts::P;"),
            ("state/a/parts.rs", "use super::A;"),
            ("state/b.rs", "use crate::state::c::C;"),
            ("state/c.rs", c),
        ]))
    };
    assert_eq!(places(&of("pub(crate) struct C;")), Vec::<&str>::new());
    let found = of("\nuse super::{A};");
    assert_eq!(
        places(&found),
        ["src/state/a.rs:1", "src/state/b.rs:1", "src/state/c.rs:2"]
    );
    // By a module that is in scope.
    let found = of("use super::a;\nfn f() { a::g() }");
    assert!(places(&found).contains(&"src/state/c.rs:1"), "{found:?}");
}

#[test]
fn a_clock_in_the_state_is_found_unless_tests_have_it() {
    let of = |source: &str| {
        let tree = made_up(&[
            ("state/claim.rs", source),
            ("state/claim/tests.rs", "fn f() { Instant::now() }"),
        ]);
        forbidden(&tree, "state", &NOT_IN_STATE)
    };
    assert_eq!(
        places(&of("use tokio::time::Instant; #[cfg(test)] mod tests;")),
        Vec::<&str>::new()
    );
    assert_eq!(
        places(&of("#[cfg(test)] mod tests;\nfn f() { Instant :: now() }")),
        ["src/state/claim.rs:2"]
    );
    assert_eq!(
        places(&of("#[cfg(test)] mod tests;\nuse tokio::time::sleep_until;")),
        ["src/state/claim.rs:2"]
    );
    assert_eq!(places(&of("mod tests;")), ["src/state/claim/tests.rs:1"]);
}

#[test]
fn a_command_outside_of_the_protocol_is_found() {
    let tree = made_up(&[
        ("protocol/key.rs", "redis::cmd(\"GET\")"),
        (
            "transport/link.rs",
            "redis::cmd(\"PING\");\ncmd.arg(\"EVAL\").arg(\"text\")",
        ),
        ("engine/call.rs", "include_str!(\"../../lua/lock.lua\")"),
    ]);
    let ping = ("src/transport/link.rs", "PING", "whether the connection lives");
    assert_eq!(
        places(&commands(&tree, &[ping])),
        ["src/engine/call.rs:1", "src/transport/link.rs:2"]
    );
    let gone = ("src/transport/link.rs", "WAIT", "gone");
    let found = commands(&tree, &[ping, gone]);
    assert!(found.last().is_some_and(|said| said.contains("WAIT")), "{found:?}");
}
