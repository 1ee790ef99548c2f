//! Names of locks, requests and owners: there and back, and no two alike.

use fairlock::Owner;
use fairlock::testing::{Words, event_channel, is_state, keys, lets_through, name_of_event_channel, owner_name, parse};

/// What Redis Cluster hashes of a key.
fn hash_tag(key: &str) -> &str {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key)
}

fn owner(name: &str) {
    let value = redis::Value::BulkString(name.into());
    let Some(shown) = parse(Words::Owner, &value) else {
        return;
    };
    let uuid = shown.trim_start_matches("Owner(").trim_end_matches(')');
    let owner: Owner = uuid.parse().expect("an owner shows its UUID");
    let again = parse(Words::Owner, &redis::Value::BulkString(owner_name(owner).into()));
    assert_eq!(again, Some(shown), "{name:?}");
}

pub fn check(bytes: &[u8]) {
    if let Ok(id) = bytes.try_into().map(uuid::Uuid::from_bytes) {
        let named = Owner::from_uuid(id);
        assert_eq!(named.to_string().parse(), Ok(named));
        owner(&owner_name(named));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (prefix, name) = text.split_once('\n').unwrap_or(("fairlock", text));
    owner(name);
    parse(Words::Request, &redis::Value::BulkString(name.into()));
    let [prefix_is_fine, _] = lets_through(prefix, Some(name));
    if !prefix_is_fine {
        return;
    }
    let keys = keys(prefix, name);
    assert!(is_state(prefix, &keys[0]));
    assert!(!is_state(prefix, &keys[1]) && !is_state(prefix, &keys[2]), "{keys:?}");
    assert_eq!(
        name_of_event_channel(prefix, &event_channel(prefix, name)).as_deref(),
        Some(name)
    );
    if !name.is_empty() {
        assert!(keys.iter().all(|key| hash_tag(key) == hash_tag(&keys[0])), "{keys:?}");
    }
}
