//! Names of locks, owners and requests.

use super::{holds, text};
use fairlock::testing::{Words, parse};
use fairlock::{Owner, testing};
use proptest::prelude::*;

/// What Redis Cluster hashes of a key.
pub(super) fn hash_tag(key: &str) -> &str {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key)
}

#[test]
pub(super) fn every_name_has_keys_of_its_own_in_one_slot_and_is_read_back() {
    let name = || {
        prop_oneof![
            "\\PC{1,9}",
            "[a%25{}7D:]{1,6}",
            any::<String>().prop_filter("a name", |s| !s.is_empty())
        ]
    };
    holds((name(), name(), "[^{}]{1,9}"), |(one, other, prefix)| {
        let (keys, others) = (testing::keys(&prefix, &one), testing::keys(&prefix, &other));
        assert!(keys.iter().all(|key| hash_tag(key) == hash_tag(&keys[0])), "{keys:?}");
        let shared = keys.iter().any(|key| others.contains(key));
        assert_eq!(shared, one == other, "{keys:?} {others:?}");
        let channel = testing::event_channel(&prefix, &one);
        assert_eq!(
            testing::name_of_event_channel(&prefix, &channel),
            Some(one),
            "{channel:?}"
        );
        assert_eq!(
            keys.each_ref().map(|key| testing::is_state(&prefix, key)),
            [true, false, false],
            "{keys:?}"
        );
    });
}

#[test]
pub(super) fn a_prefix_or_label_that_would_break_keys_or_commands_is_refused() {
    holds("[ -~{}ä\n]{0,140}", |given| {
        let [prefix, label] = testing::lets_through(&given, Some(&given));
        assert_eq!(
            prefix,
            (1..=128).contains(&given.len()) && !given.contains(['{', '}']),
            "{given:?}"
        );
        let printable = given.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
        assert_eq!(label, (1..=128).contains(&given.len()) && printable, "{given:?}");
    });
}

pub(super) fn owner_of_name(name: &str) -> Option<Owner> {
    let shown = parse(Words::Owner, &text(name))?;
    let uuid = shown.strip_prefix("Owner(").and_then(|rest| rest.strip_suffix(')'));
    Some(uuid.expect("an owner").parse().expect("a UUID"))
}

#[test]
pub(super) fn owners_survive_their_names_and_no_two_share_one() {
    let name = prop_oneof![
        "[0-9a-f]{1,17}:[0-9]{1,20}",
        "[0-9a-f]{32}",
        "[+0-9a-f:-]{0,40}",
        any::<String>()
    ];
    holds((any::<u128>(), name), |(id, name)| {
        let owner = Owner::from_uuid(uuid::Uuid::from_u128(id));
        let unowned = owner.uuid().get_version_num() == 8;
        if !unowned || owner.uuid().get_variant() == uuid::Variant::RFC4122 {
            assert_eq!(owner_of_name(&testing::owner_name(owner)), Some(owner), "{owner}");
        }
        // Whatever is read has a name that is read alike.
        if let Some(owner) = owner_of_name(&name) {
            assert_eq!(owner_of_name(&testing::owner_name(owner)), Some(owner), "{name:?}");
            if let Some((client, number)) = name.split_once(':') {
                let client = u64::from_str_radix(client, 16).expect("a client's number");
                let number: u64 = number.parse().expect("a request's number");
                assert_eq!(
                    testing::owner_name(owner),
                    format!("{client:015x}:{number}"),
                    "of {name:?}"
                );
            }
        }
    });
}

#[test]
pub(super) fn a_request_has_a_mode_a_client_and_an_owner_or_is_refused() {
    let name = (
        "[rwx]?",
        "[0-9a-f]{0,16}",
        ":?[0-9]{0,21}",
        proptest::option::of("[0-9a-f]{32}"),
    );
    holds((name, any::<String>()), |((mode, client, number, owner), odd)| {
        let unowned = format!("{client}{number}");
        let owner_name = owner.clone().unwrap_or_else(|| unowned.clone());
        let name = owner
            .iter()
            .fold(format!("{mode}{unowned}"), |name, owner| format!("{name}:{owner}"));
        let read = parse(Words::Request, &text(name.clone()));
        let number = number.strip_prefix(':').and_then(|number| number.parse::<u64>().ok());
        match (mode.as_str(), number, owner_of_name(&owner_name)) {
            ("r" | "w", Some(_), Some(owner)) if !client.is_empty() => {
                let mode = if mode == "w" { "Write" } else { "Read" };
                assert_eq!(read, Some(format!("({mode}, {client:?}, {owner:?})")), "{name:?}");
            }
            _ => assert_eq!(read, None, "{name:?}"),
        }
        parse(Words::Request, &text(odd));
    });
}
