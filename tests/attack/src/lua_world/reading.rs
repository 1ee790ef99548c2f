//! What the wrapped script answered, read: reply, keys, messages, events, status.

use super::{Kept, Seen};
use crate::model::{Packed, View};
use crate::record::{Note, Script, What, told};
use redis::Value;

pub(super) fn seen(value: &Value, key: &str, script: Script) -> Result<Seen, String> {
    let strange = || format!("the wrapper answered {}", shown(value));
    let Value::Array(parts) = value else {
        return Err(strange());
    };
    let [reply, published, expired, status, kept, expiries @ ..] = parts.as_slice() else {
        return Err(strange());
    };
    let mut seen = Seen {
        bare: matches!(reply, Value::Int(_)),
        reply: numbers_of(reply, script).ok_or_else(|| format!("reply {}", shown(reply)))?,
        ..Seen::default()
    };
    let channel_of_clients = format!("{}c:", key.split('{').next().unwrap_or_default());
    for which in numbers(expired).ok_or_else(strange)? {
        seen.expired[which as usize - 1] = true;
    }
    for item in items(published) {
        let Some((channel, payload)) = pairs(item).next() else {
            return Err(format!("published {}", shown(item)));
        };
        if let Some(client) = channel.strip_prefix(&channel_of_clients) {
            seen.messages.push((client.to_owned(), payload.to_owned()));
        } else if channel == format!("{key}:events") && seen.events.is_none() {
            seen.events = Some(events(payload)?);
        } else {
            return Err(format!("published to {channel}: {payload}"));
        }
    }
    if !matches!(status, Value::Nil) {
        let strange = || format!("status: {}", shown(status));
        seen.view = Some(view(status).ok_or_else(strange)?);
        if let Some(of_one) = items(status).get(9) {
            seen.place = Some(place(of_one).ok_or_else(strange)?);
        }
    }
    let expiries: Vec<i64> = expiries.iter().filter_map(number).collect();
    let expiries: [i64; 3] = expiries.try_into().map_err(|_| strange())?;
    seen.expiries = expiries.map(|at| match at {
        -2 => None,
        at => Some(u64::try_from(at).ok()),
    });
    if let [hash, queue, leases] = items(kept) {
        let words = [hash, queue, leases].map(|key| items(key).iter().map(bytes).collect());
        seen.kept = Some(Kept { words, expiries });
    }
    Ok(seen)
}

pub(super) fn events(payload: &str) -> Result<(u64, Vec<Note>), String> {
    let read = || {
        let (time, lines) = payload.split_once('\n')?;
        let notes = lines.split('\n').map(read_note);
        Some((time.parse().ok()?, notes.collect::<Option<_>>()?))
    };
    read().ok_or_else(|| format!("events {payload:?}"))
}

fn read_note(line: &str) -> Option<Note> {
    let mut words = line.split(' ');
    let note = Note {
        what: What::of_name(words.next()?)?,
        request: words.next()?.to_owned(),
        token: words.next()?.parse().ok()?,
    };
    words.next().is_none().then_some(note)
}

/// A reply of `status` in which everybody is listed.
fn view(status: &Value) -> Option<View> {
    let [
        _now,
        mode,
        policy,
        writes,
        holding,
        waiting,
        holders,
        waiters,
        state,
        ..,
    ] = items(status)
    else {
        return None;
    };
    let view = View {
        mode: text(mode).to_owned(),
        policy: text(policy).to_owned(),
        writes: text(writes).parse().ok()?,
        holders: items(holders)
            .chunks(4)
            .map(|of| {
                let number = |at: usize| text(of.get(at)?).parse().ok();
                Some((text(&of[0]).to_owned(), (number(1)?, number(2)?, number(3)?)))
            })
            .collect::<Option<_>>()?,
        waiters: items(waiters)
            .chunks(3)
            .map(|of| {
                Some((
                    text(&of[0]).to_owned(),
                    text(of.get(1)?).parse().ok()?,
                    text(of.get(2)?).parse().ok()?,
                ))
            })
            .collect::<Option<_>>()?,
        packed: packed(items(state))?,
    };
    let all = text(holding).parse() == Ok(view.holders.len()) && text(waiting).parse() == Ok(view.waiters.len());
    all.then_some(view)
}

fn packed(state: &[Value]) -> Option<Packed> {
    let number = |at: usize| text(state.get(at)?).parse::<u64>().ok();
    Some(Packed {
        seq: number(0)?,
        token: number(1)?,
        first: number(2)?,
        near_ms: number(3)?,
        keep_ms: number(4)?,
        cap_ms: number(5)?,
        reads: number(6)?,
        writes: number(7)?,
        waiting: number(8)?,
        sole: number(9)? == 1,
        more: number(10)? == 1,
        up: number(11)? == 1,
        holder: text(state.get(12)?).to_owned(),
        limit: number(13)?,
        used: number(14)?,
    })
}

/// Rank and score of a request, if it waits.
fn place(of_one: &Value) -> Option<Option<(u64, i64)>> {
    match items(of_one) {
        [] => Some(None),
        [rank, score] => Some(Some((text(rank).parse().ok()?, text(score).parse().ok()?))),
        _ => None,
    }
}

/// A reply as the model has it.
pub fn numbers_of(reply: &Value, script: Script) -> Option<Vec<i64>> {
    match (script, number(reply)) {
        (_, None) => numbers(reply),
        (Script::Acquire, Some(0 | 2..)) | (Script::Release, Some(0..)) => Some(told(script, vec![number(reply)?])),
        _ => None,
    }
}

fn number(value: &Value) -> Option<i64> {
    if let Value::Int(n) = value { Some(*n) } else { None }
}

fn numbers(value: &Value) -> Option<Vec<i64>> {
    match value {
        Value::Array(items) => items.iter().map(number).collect(),
        _ => None,
    }
}

pub(super) fn items(value: &Value) -> &[Value] {
    if let Value::Array(items) = value { items } else { &[] }
}

fn bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes.clone(),
        other => text(other).as_bytes().to_vec(),
    }
}

pub(super) fn text(value: &Value) -> &str {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).unwrap_or("(no text)"),
        Value::SimpleString(text) => text,
        _ => "(no text)",
    }
}

pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::BulkString(_) | Value::SimpleString(_) => text(value).to_owned(),
        other => format!("{other:?}"),
    }
}

pub(super) fn pairs(value: &Value) -> impl Iterator<Item = (&str, &str)> {
    items(value)
        .chunks_exact(2)
        .map(|pair| (text(&pair[0]), text(&pair[1])))
}
