//! A `run` under another `run`. The inner one waits for a lock, and the outer one keeps its locks until the inner one has
//! ended. So a wait without limit for the same lock would never end. The variable `FAIRLOCK_HELD` tells the inner one what
//! the outer ones hold.

use crate::outcome::Failure;
use crate::text::safe;
use fairlock::{Client, Error, Holder, Owner, RwLock};
use serde_json::{Value, json};

const VARIABLE: &str = "FAIRLOCK_HELD";

/// What the outer commands hold, as JSON.
fn inherited() -> Vec<Value> {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    // Whatever else stands there tells nothing.
    serde_json::from_str(&text).unwrap_or_default()
}

/// By what an inner command knows the locks of an outer one.
pub(crate) enum By<'a> {
    Owner(Owner),
    /// The id of a client that holds nothing else. Permits that are held with locks have an owner of their own, which
    /// their guard does not tell.
    Client(&'a str),
    /// Of a quorum, whose guards do not tell their owners: the addresses of its servers.
    Servers(&'a [String]),
}

/// The variable for a command under these locks.
pub(crate) fn variable(prefix: &str, locks: &[&str], by: &By<'_>) -> (&'static str, String) {
    let own = locks.iter().map(|lock| match by {
        By::Owner(owner) => json!({"prefix": prefix, "lock": lock, "owner": owner.to_string()}),
        By::Client(client) => json!({"prefix": prefix, "lock": lock, "client": client}),
        By::Servers(servers) => json!({"prefix": prefix, "lock": lock, "servers": servers}),
    });
    let all: Vec<Value> = inherited().into_iter().chain(own).collect();
    (VARIABLE, Value::from(all).to_string())
}

/// The id of the client that holds a lock by this owner. `None`: its user may not read the status, or the lock is gone.
pub(crate) async fn client_of(owner: Owner, lock: &RwLock) -> Option<String> {
    let status = lock.status().await.ok()?;
    let holder = status.holders.into_iter().find(|holder| holder.owner == owner)?;
    Some(holder.client.id)
}

/// Fails if an outer command holds one of these locks. The server confirms that, because a process that outlived its outer
/// command still has the variable.
pub(crate) async fn refuse(client: &Client, prefix: &str, locks: &[&str]) -> Result<(), Failure> {
    for (lock, held) in held_outside(prefix, locks) {
        let owner = held["owner"].as_str().and_then(|owner| owner.parse::<Owner>().ok());
        let by_client = held["client"].as_str();
        if owner.is_none() && by_client.is_none() {
            continue;
        }
        let status = match client.rw_lock(lock).status().await {
            Ok(status) => status,
            // Whoever may not read the status waits as before.
            Err(Error::Server { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let is_named = |holder: &Holder| Some(holder.owner) == owner || Some(&*holder.client.id) == by_client;
        let holds = |holder: &Holder| is_named(holder) && holder.expired_for.is_none();
        if status.holders.iter().any(holds) {
            return Err(waits_for_itself(lock));
        }
    }
    Ok(())
}

/// The same of a quorum. Nobody confirms it, because no server knows the quorum's holders by what the variable has. One
/// common server is enough, because a server votes in one quorum of a prefix, and may have several names.
pub(crate) fn refuse_of_quorum(prefix: &str, locks: &[&str], servers: &[String]) -> Result<(), Failure> {
    let is_same = |held: &Value| {
        let outside = held["servers"].as_array().into_iter().flatten();
        let mut outside = outside.filter_map(Value::as_str);
        outside.any(|server| servers.iter().any(|own| own == server))
    };
    match held_outside(prefix, locks).into_iter().find(|(_, held)| is_same(held)) {
        Some((lock, _)) => Err(waits_for_itself(lock)),
        None => Ok(()),
    }
}

/// What the outer commands hold of these locks.
fn held_outside<'a>(prefix: &str, locks: &[&'a str]) -> Vec<(&'a str, Value)> {
    let all = inherited().into_iter().filter(|held| held["prefix"] == prefix);
    let named = all.filter_map(|held| {
        let lock = locks.iter().find(|lock| held["lock"] == **lock)?;
        Some((*lock, held))
    });
    named.collect()
}

fn waits_for_itself(lock: &str) -> Failure {
    let lock = safe(lock);
    Failure::usage(format!(
        "this command already runs under {lock}, and would wait for itself for ever: leave the inner fairlock out, take \
         another lock, or limit the wait by --wait or --no-wait"
    ))
}
