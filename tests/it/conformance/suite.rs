//! The scripts in `lua` pass the suite, and the suite notices when one is changed.

use super::{Composition, Publish, Scripts, is_modern, read, run_scripts, suite};
use crate::server::Server;
use std::collections::BTreeMap;
use std::path::Path;

#[tokio::test]
async fn the_scripts_pass_the_suite() {
    let server = Server::start().await;
    let mut ways = vec![(false, Publish::Plainly)];
    if is_modern(&server).await {
        ways.push((true, Publish::Sharded));
    }
    for (flagged, publish) in ways {
        let passed = run_scripts(&server, &server.url(), &Scripts::released(flagged), publish, "").await;
        println!("{} scenarios passed", passed.unwrap_or_else(|why| panic!("{why}")));
    }
}

#[tokio::test]
async fn the_suite_goes_red_when_a_script_is_changed() {
    let server = Server::start().await;
    let mut passed = Vec::new();
    // The file, what stands there, what is put in its place, and which scenarios notice.
    for (file, from, to, only) in read::<Vec<(String, String, String, String)>>(&suite().join("mutants.json")) {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua").join(&file)).unwrap();
        assert!(text.contains(&from), "{file} has no {from:?} any more");
        let change = |name: &str, text: String| match name == file {
            true => text.replacen(&from, &to, 1),
            false => text,
        };
        match run_scripts(
            &server,
            &server.url(),
            &Scripts::new(false, change),
            Publish::Plainly,
            &only,
        )
        .await
        {
            Ok(_) => passed.push((file, from, to)),
            Err(why) => println!("{from:?} -> {to:?}: {}", why.chars().take(160).collect::<String>()),
        }
    }
    assert!(passed.is_empty(), "nothing noticed {passed:#?}");
}

#[test]
fn the_page_composes_the_scripts_as_the_suite_does() {
    let page = include_str!("../../../PROTOCOL.md");
    for (name, script) in read::<BTreeMap<String, Composition>>(&suite().join("scripts.json")) {
        let flags = match script.flags.as_str() {
            "" => String::new(),
            flags => format!("`{flags}` "),
        };
        let row = format!("| {name} | `{}` | {flags}|", script.files.join("` `"));
        assert!(page.contains(&row), "PROTOCOL.md has no {row}");
    }
}
