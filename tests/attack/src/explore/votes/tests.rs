use super::*;
use fairlock::testing::{Rule, break_rule};

fn cast(name: &str) -> Cast {
    CASTS.into_iter().find(|cast| cast.name == name).expect("a cast")
}

#[test]
fn every_short_sequence_of_a_quorum_keeps_its_promises() {
    for (name, depth, is_all) in [
        ("race", 40, true),
        ("slow", 40, true),
        ("leave", 40, true),
        ("cut", 12, false),
        ("restart", 9, false),
        ("tokens", 10, false),
        ("time", 8, false),
        ("three", 11, false),
        ("readers", 9, false),
    ] {
        let found = explore(cast(name), depth, |_| {}).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        println!("{name}: {found}");
        assert_eq!(found.is_all, is_all, "{name}: {found}");
        assert!(found.transitions > 5_000 && found.ends >= 10, "{name}: {found}");
    }
}

#[test]
fn a_broken_rule_of_a_quorum_is_named() {
    let broken = [
        (Rule::Majority, "race", 4, "hold at the same time"),
        (Rule::GivingUp, "race", 8, "lost its hold"),
        (Rule::Holders, "race", 12, "has the votes of servers"),
        (Rule::Places, "three", 13, "has the votes of servers"),
        (Rule::Quarantine, "restart", 12, "hold at the same time"),
        (Rule::Tokens, "tokens", 12, "tokens do not grow"),
        (Rule::Announcing, "tokens", 14, "tokens do not grow"),
    ];
    for (rule, name, depth, named) in broken {
        break_rule(Some(rule));
        let found = explore(cast(name), depth, |_| {});
        break_rule(None);
        let wrong = found.expect_err(&format!("{rule:?} was not noticed"));
        println!("{rule:?}, {name}, {wrong}");
        assert!(wrong.wrong.contains(named), "{rule:?}: {wrong}");
    }
}
