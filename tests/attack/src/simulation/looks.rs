//! What the search for deadlocks reads of the simulated server: the status of a lock, and the notes of waits.

use crate::model::Lock;
use redis::Value;
use std::collections::BTreeMap;
use std::iter::once;

/// The notes of waits by their keys: the text, and when it expires in us of the server's clock.
#[derive(Clone, Default)]
pub struct Notes(BTreeMap<String, (Value, u64)>);

impl Notes {
    /// `SET KEY TEXT PX MS`. Other keys are not for the search.
    pub fn set(&mut self, words: &[Vec<u8>], now_us: u64) {
        if let [_, key, text, _, ms] = words
            && let (Some(key), Ok(ms)) = (note_key(key), String::from_utf8_lossy(ms).parse::<u64>())
        {
            self.0
                .insert(key.to_owned(), (Value::BulkString(text.clone()), now_us + ms * 1000));
        }
    }

    /// `DEL KEY`.
    pub fn delete(&mut self, words: &[Vec<u8>]) {
        if let Some(key) = words.get(1).and_then(|key| note_key(key)) {
            self.0.remove(key);
        }
    }

    /// `MGET KEY ...`. Nobody has introduced themselves.
    pub fn get_all(&self, words: &[Vec<u8>], now_us: u64) -> Value {
        let text = |key: &Vec<u8>| {
            let (text, until_us) = self.0.get(note_key(key)?)?;
            (*until_us > now_us).then(|| text.clone())
        };
        Value::Array(words[1..].iter().map(|key| text(key).unwrap_or(Value::Nil)).collect())
    }
}

fn note_key(key: &[u8]) -> Option<&str> {
    let key = std::str::from_utf8(key).ok()?;
    key.starts_with("fairlock:waits:").then_some(key)
}

fn text(of: impl ToString) -> Value {
    Value::BulkString(of.to_string().into_bytes())
}

/// The reply of status. `args`: from the first rank on.
pub fn status(lock: &Lock, args: &[&str], now_us: u64) -> Value {
    let view = lock.view();
    let number = |at: usize| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(0);
    let (from, most_waiters, most_holders): (usize, usize, usize) = (number(0), number(1), number(2));
    let holders = view.holders.iter().take(most_holders);
    let holders = holders
        .flat_map(|(request, (deadline, reads, token))| [text(request), text(deadline), text(reads), text(token)]);
    let waiters = view.waiters.iter().skip(from).take(most_waiters);
    let waiters = waiters.flat_map(|(request, score, deadline)| [text(request), text(score), text(deadline)]);
    let packed = &view.packed;
    let numbers = [
        packed.seq,
        packed.token,
        packed.first,
        packed.near_ms,
        packed.keep_ms,
        packed.cap_ms,
        packed.reads,
        packed.writes,
        packed.waiting,
        u64::from(packed.sole),
        // A call stopped at its limit, and the next one goes on.
        u64::from(lock.next_in().is_some()),
        u64::from(packed.up),
    ];
    let state = numbers.into_iter().map(text);
    let state = state.chain([text(&packed.holder), text(packed.limit), text(packed.used)]);
    let place = args.get(3).map(|request| match lock.place(request) {
        Some((rank, score)) => Value::Array(vec![text(rank), text(score)]),
        None => Value::Array(Vec::new()),
    });
    let heads = [
        text(now_us),
        text(&view.mode),
        text(&view.policy),
        text(view.writes),
        text(view.holders.len()),
        text(view.waiters.len()),
        Value::Array(holders.collect()),
        Value::Array(waiters.collect()),
    ];
    let state = once(Value::Array(state.collect()));
    Value::Array(heads.into_iter().chain(state).chain(place).collect())
}
