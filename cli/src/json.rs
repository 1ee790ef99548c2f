//! What the commands print for programs. Durations are in milliseconds, times in the form of RFC 3339.

use crate::outcome::{Failure, say};
use crate::text;
use fairlock::{ClientInfo, Event, Holder, Mode, RawState, Status, Waiter};
use serde_json::{Value, json};
use std::time::Duration;

/// One document.
pub(crate) fn document(value: &Value) -> Result<(), Failure> {
    say(&format!("{value:#}\n"))
}

/// One of many, on a line.
pub(crate) fn line(value: &Value) -> String {
    format!("{value}\n")
}

pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn status(lock: &str, status: &Status) -> Value {
    json!({
        "lock": lock,
        "mode": status.mode.map(Mode::as_str),
        "expired": status.is_expired(),
        "policy": status.policy.as_str(),
        "limit": status.limit,
        "used": status.used,
        "holding": status.holding,
        "waiting": status.waiting,
        "holders": status.holders.iter().map(holder).collect::<Value>(),
        "waiters": status.waiters.iter().map(waiter).collect::<Value>(),
    })
}

/// The state as it lies in the server.
pub(crate) fn raw(raw: &RawState) -> Value {
    let numbers = text::raw(raw)
        .into_iter()
        .map(|(name, number)| (name.to_owned(), number.into()));
    let mut state: serde_json::Map<_, _> = numbers.collect();
    state.insert("holder".to_owned(), raw.holder.as_str().into());
    state.into()
}

pub(crate) fn holder(holder: &Holder) -> Value {
    json!({
        "owner": holder.owner.to_string(),
        "mode": holder.mode.as_str(),
        "permits": holder.permits,
        "holds": holder.holds,
        "token": holder.token.get(),
        "held_ms": ms(holder.held_for),
        "lease_left_ms": ms(holder.lease_left),
        "expired_for_ms": holder.expired_for.map(ms),
        "client": client(&holder.client),
    })
}

pub(crate) fn waiter(waiter: &Waiter) -> Value {
    json!({
        "owner": waiter.owner.to_string(),
        "mode": waiter.mode.as_str(),
        "permits": waiter.permits,
        "upgrade": waiter.upgrade,
        "position": waiter.position,
        "waited_ms": ms(waiter.waited),
        "lease_left_ms": ms(waiter.lease_left),
        "expired_for_ms": waiter.expired_for.map(ms),
        "client": client(&waiter.client),
    })
}

pub(crate) fn client(client: &ClientInfo) -> Value {
    json!({"id": client.id, "label": client.label, "process": client.process, "host": client.host})
}

/// `from`: its client, if that is known.
pub(crate) fn event(event: &Event, from: Option<&ClientInfo>) -> Value {
    json!({
        "at": humantime::format_rfc3339_micros(event.at).to_string(),
        "event": event.kind.as_str(),
        "lock": event.lock,
        "mode": event.mode.as_str(),
        "owner": event.owner.to_string(),
        "client": event.client_id,
        "label": from.and_then(|from| from.label.as_deref()),
        "process": from.and_then(|from| from.process),
        "host": from.and_then(|from| from.host.as_deref()),
        "token": event.token.map(u64::from),
    })
}
