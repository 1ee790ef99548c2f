//! The scripts in `lua` pass the suite, and the suite notices when one is changed.

use super::scripts::{Scripts, composition, library, lua, read, suite};
use super::{Publish, is_modern, run_scripts};
use crate::server::Server;

#[tokio::test]
async fn the_scripts_pass_the_suite() {
    let server = Server::start().await;
    let mut ways = vec![(Scripts::released(false), Publish::Plainly)];
    if is_modern(&server).await {
        ways.push((Scripts::released(true), Publish::Sharded));
        let functions = Scripts::functions(&server).await;
        ways.push((Scripts(functions.0.clone()), Publish::Plainly));
        ways.push((functions, Publish::Sharded));
    }
    for (scripts, publish) in ways {
        let passed = run_scripts(&server, &server.url(), &scripts, publish, "").await;
        println!("{} scenarios passed", passed.unwrap_or_else(|why| panic!("{why}")));
    }
}

#[tokio::test]
async fn the_suite_goes_red_when_a_script_is_changed() {
    let server = Server::start().await;
    let (exponents, mut passed) = (writes_exponents(&server).await, Vec::new());
    // The file, what stands there, what is put in its place, and which scenarios notice.
    for (file, from, to, only) in read::<Vec<(String, String, String, String)>>(&suite().join("mutants.json")) {
        assert!(lua(&file).contains(&from), "{file} has no {from:?} any more");
        // Without exponents the change changes nothing.
        if !exponents && file == "status.lua" && is_of_a_score(&from) {
            continue;
        }
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
            // Nobody would make a mistake that the first call reports.
            Err(why) if why.contains("Error compiling script") || why.contains("nonexistent global variable") => {
                panic!("{from:?} -> {to:?} is no script: {why}")
            }
            Err(why) => println!("{from:?} -> {to:?}: {}", why.chars().take(160).collect::<String>()),
        }
    }
    assert!(passed.is_empty(), "nothing noticed {passed:#?}");
}

/// Whether the server writes a great score with an exponent, as servers before 7.2 do.
async fn writes_exponents(server: &Server) -> bool {
    let script = "redis.call('ZADD', KEYS[1], '123456789012345678', 'a') \
        local score = redis.call('ZSCORE', KEYS[1], 'a') redis.call('DEL', KEYS[1]) return score";
    let script = redis::Script::new(script);
    let score: String = script
        .key("score")
        .invoke_async(&mut server.redis().await)
        .await
        .unwrap();
    score.contains('e')
}

/// Whether that part of a script writes a score.
fn is_of_a_score(part: &str) -> bool {
    ["holding[i + 1]", "queue[i + 1]", "'ZSCORE'"]
        .iter()
        .any(|score| part.contains(score))
}

#[test]
fn the_page_composes_the_scripts_as_the_suite_does() {
    let page = include_str!("../../../PROTOCOL.md");
    for (name, script) in composition().scripts {
        let flags = match script.flags.as_str() {
            "" => String::new(),
            flags => format!("`{flags}` "),
        };
        let row = format!("| {name} | `{}` | {flags}|", script.files.join("` `"));
        assert!(page.contains(&row), "PROTOCOL.md has no {row}");
    }
}

#[test]
fn the_suite_composes_the_library_as_the_tests_do() {
    assert_eq!(library(), fairlock_support::scripts::library());
}
