//! A `run` under another `run`. The inner one waits for a lock, and the outer one keeps its locks until the inner one has
//! ended. So a wait without limit for the same lock would never end. The variable `FAIRLOCK_HELD` tells the inner one what
//! the outer ones hold.

use crate::outcome::Failure;
use crate::text::safe;
use fairlock::{Client, Error, Owner};
use serde_json::{Value, json};

const VARIABLE: &str = "FAIRLOCK_HELD";

/// What the outer commands hold, as JSON.
fn inherited() -> Vec<Value> {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    // Whatever else stands there tells nothing.
    serde_json::from_str(&text).unwrap_or_default()
}

/// The variable for a command under these locks. `owner`: `None` of a quorum.
pub(crate) fn variable(prefix: &str, locks: &[&str], owner: Option<Owner>) -> (&'static str, String) {
    let owner = owner.map(|owner| owner.to_string());
    let own = locks
        .iter()
        .map(|lock| json!({"prefix": prefix, "lock": lock, "owner": owner}));
    let all: Vec<Value> = inherited().into_iter().chain(own).collect();
    (VARIABLE, Value::from(all).to_string())
}

/// Fails if an outer command holds one of these locks. The server confirms that, because a process that outlived its outer
/// command still has the variable.
pub(crate) async fn refuse(client: &Client, prefix: &str, locks: &[&str]) -> Result<(), Failure> {
    for (lock, owner) in held_outside(prefix, locks) {
        let Some(owner) = owner else { continue };
        let status = match client.rw_lock(lock).status().await {
            Ok(status) => status,
            // Whoever may not read the status waits as before.
            Err(Error::Server { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let holds = |holder: &fairlock::Holder| holder.owner == owner && holder.expired_for.is_none();
        if status.holders.iter().any(holds) {
            return Err(waits_for_itself(lock));
        }
    }
    Ok(())
}

/// The same of a quorum, whose guards do not tell their owners.
pub(crate) fn refuse_of_quorum(prefix: &str, locks: &[&str]) -> Result<(), Failure> {
    match held_outside(prefix, locks).find(|(_, owner)| owner.is_none()) {
        Some((lock, _)) => Err(waits_for_itself(lock)),
        None => Ok(()),
    }
}

fn held_outside<'a>(prefix: &str, locks: &'a [&str]) -> impl Iterator<Item = (&'a str, Option<Owner>)> {
    let inherited = inherited();
    let outside = locks.iter().flat_map(move |lock| {
        let same = |held: &&Value| held["prefix"] == prefix && held["lock"] == *lock;
        let owners = inherited
            .iter()
            .filter(same)
            .map(|held| held["owner"].as_str()?.parse().ok());
        owners.map(|owner| (*lock, owner)).collect::<Vec<_>>()
    });
    outside.collect::<Vec<_>>().into_iter()
}

fn waits_for_itself(lock: &str) -> Failure {
    let lock = safe(lock);
    Failure::usage(format!(
        "this command already runs under {lock}, and would wait for itself for ever: leave the inner fairlock out, take \
         another lock, or limit the wait by --wait or --no-wait"
    ))
}
