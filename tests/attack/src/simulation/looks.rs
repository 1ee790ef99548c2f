//! What the search for deadlocks reads of the simulated server: the notes of waits.

use redis::Value;
use std::collections::BTreeMap;

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
