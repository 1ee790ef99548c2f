//! In a process of its own: others here change what the client sends.

use fairlock_attack::lua_world::Scripts;
use fairlock_attack::record::Script;
use fairlock_support::scripts;

#[test]
fn the_scripts_of_the_harness_are_those_that_the_client_sends() {
    let sent = fairlock::testing::scripts();
    let ours = scripts::ALL
        .iter()
        .map(|script| (script.name, [script.text.to_owned(), script.flagged()]));
    let sent = sent.map(|(name, texts)| (name, texts.map(str::to_owned)));
    assert_eq!(ours.collect::<Vec<_>>(), sent);
}

#[test]
fn the_scripts_compared_with_the_model_are_those_of_the_harness() {
    for script in Script::ALL {
        assert_eq!(Scripts::real().whole(script), scripts::named(script.name()).text);
    }
}

#[test]
fn the_suite_of_the_protocol_composes_the_same_scripts() {
    let suite = include_str!("../../conformance/scripts.json");
    let suite: serde_json::Value = serde_json::from_str(suite).expect("JSON");
    let suite = &suite["scripts"];
    assert_eq!(suite.as_object().expect("an object").len(), scripts::ALL.len());
    for script in scripts::ALL {
        let files: Vec<_> = script.files.iter().map(|(name, _)| *name).collect();
        let flags = script.flags.trim_start_matches(" flags=");
        assert_eq!(
            suite[script.name],
            serde_json::json!({ "files": files, "flags": flags })
        );
    }
}
