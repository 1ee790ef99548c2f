//! The data of the server, and the commands that clients of fairlock send. The scripts are carried out by the model.

use crate::glob;
use crate::model::{Choices, Lock, Outcome};
use crate::record::{Script, acquire};
use crate::serving::{self, Called, Serving};
use crate::status::status;
use crate::world::Audience;
use redis::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// What one call of a script does at most: then it says "call again".
const BATCH: usize = 1000;

pub(crate) struct Publish {
    pub(crate) channel: String,
    pub(crate) payload: Vec<u8>,
}

/// A text under a key, and when it expires.
struct Text {
    text: Vec<u8>,
    until_us: u64,
}

#[derive(Default)]
pub(crate) struct Keyspace {
    locks: BTreeMap<String, Lock>,
    texts: BTreeMap<String, Text>,
    /// Who listens to events, and until when.
    audiences: BTreeMap<String, BTreeMap<String, u64>>,
    /// The scripts that the server has seen since its start.
    loaded: BTreeSet<Called>,
    run: Run,
    /// When keys whose time had come were removed last.
    swept_us: u64,
}

/// Between two removals of keys. A search of all keys at each command would make thousands of locks slow.
const SWEEP_US: u64 = 1_000_000;

/// A run of a server, which no other server of this process has the number of.
struct Run(u64);

impl Default for Run {
    fn default() -> Self {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        Self(RUNS.fetch_add(1, Ordering::Relaxed))
    }
}

fn text(of: impl ToString) -> Value {
    Value::BulkString(of.to_string().into_bytes())
}

fn error(code: &str, words: &str) -> Value {
    // As the client library reads an error reply.
    match redis::parse_redis_value(format!("-{code} {words}\r\n").as_bytes()) {
        Ok(value) => value,
        Err(error) => unreachable!("an error reply that cannot be read: {error}"),
    }
}

impl Keyspace {
    pub(crate) fn restart(&mut self) {
        self.run = Run::default();
        self.loaded.clear();
    }

    pub(crate) fn flush_all(&mut self) {
        self.locks.clear();
        self.texts.clear();
        self.audiences.clear();
    }

    /// The keys of the locks of that name, whatever their prefix.
    fn keys_of(&self, lock: &str) -> Vec<String> {
        let [ends, ..] = fairlock::testing::keys("", lock);
        // A prefix has no brace, so the name begins after the first one.
        let is_of = |key: &&String| key.ends_with(&ends) && key.find(":{") == Some(key.len() - ends.len());
        self.locks.keys().filter(is_of).cloned().collect()
    }

    pub(crate) fn forget(&mut self, lock: &str) -> bool {
        let keys = self.keys_of(lock);
        keys.iter().for_each(|key| drop(self.locks.remove(key)));
        !keys.is_empty()
    }

    /// Ends the leases of those who hold, and returns how many they were.
    pub(crate) fn end_holds(&mut self, lock: &str, now_us: u64, audience: &Audience<'_>) -> (usize, Vec<Publish>) {
        let (mut ended, mut published) = (0, Vec::new());
        for key in self.keys_of(lock) {
            let Some(lock) = self.locks.get_mut(&key) else { continue };
            ended += lock.end_leases_of_holders(now_us / 1000);
            published.extend(
                self.call(&key, now_us, audience, |lock, choices| {
                    lock.call(&key, Script::Renew, &[], now_us, choices)
                })
                .1,
            );
        }
        (ended, published)
    }

    /// One script on one lock.
    fn call(
        &mut self,
        key: &str,
        now_us: u64,
        audience: &Audience<'_>,
        script: impl FnOnce(&mut Lock, &mut dyn Choices) -> Outcome,
    ) -> (Value, Vec<Publish>) {
        let hears = |channel: &str| audience.hears(channel);
        let mut serving = Serving::new(key, BATCH, &hears);
        let lock = self.locks.entry(key.to_owned()).or_default();
        let outcome = script(lock, &mut serving);
        if lock.seq == 0 {
            // A lock that nobody ever used has no keys.
            self.locks.remove(key);
        }
        let reply = serving::reply(&outcome);
        let mut published: Vec<_> = (serving.published(outcome.messages))
            .map(|(channel, payload)| Publish { channel, payload })
            .collect();
        let events = event_channel(key);
        if !outcome.notes.is_empty() && audience.hears(&events) {
            let line = |note: &crate::record::Note| format!("\n{} {} {}", note.what.name(), note.request, note.token);
            let lines: String = outcome.notes.iter().map(line).collect();
            published.push(Publish {
                channel: events,
                payload: format!("{now_us}{lines}").into_bytes(),
            });
        }
        (reply, published)
    }

    /// Keys whose time has come are gone, a second later at most.
    fn expire(&mut self, now_us: u64) {
        if now_us < self.swept_us + SWEEP_US {
            return;
        }
        self.swept_us = now_us;
        self.locks.retain(|_, lock| lock.forgotten_at_ms() > now_us / 1000);
        self.texts.retain(|_, text| text.until_us > now_us);
    }

    /// A command that is not of subscriptions: its reply, and what it publishes.
    pub(crate) fn execute(
        &mut self,
        command: &[Vec<u8>],
        now_us: u64,
        audience: &Audience<'_>,
    ) -> (Value, Vec<Publish>) {
        self.expire(now_us);
        let words: Option<Vec<&str>> = command.iter().map(|word| std::str::from_utf8(word).ok()).collect();
        let Some(words) = words else {
            return (error("ERR", "a server in memory takes text only"), Vec::new());
        };
        let reply = match words.as_slice() {
            ["EVALSHA", hash, "3", key, _, _, args @ ..] => match Called::of_hash(hash) {
                Some(called) if self.loaded.contains(&called) => {
                    return self.script(called, key, args, now_us, audience);
                }
                _ => error("NOSCRIPT", "No matching script."),
            },
            ["EVAL", body, "3", key, _, _, args @ ..] => match Called::of_text(body) {
                Some(called) => {
                    self.loaded.insert(called);
                    return self.script(called, key, args, now_us, audience);
                }
                None => error("ERR", "a server in memory knows the scripts of fairlock only"),
            },
            // `life.lua` is the only script with other numbers of keys.
            ["EVAL", _, "1", known, run] => self.life(known, run, now_us),
            ["EVAL", _, "2", known, stamp, run, agreed] => {
                let stored = self.texts.entry((*stamp).to_owned()).or_insert_with(|| lasting(agreed));
                match stored.text == agreed.as_bytes() {
                    true => self.life(known, run, now_us),
                    false => error("QUORUM", "the server belongs to another quorum"),
                }
            }
            ["PUBLISH", channel, payload] => {
                let published = Publish {
                    channel: (*channel).to_owned(),
                    payload: payload.as_bytes().to_vec(),
                };
                return (Value::Int(0), vec![published]);
            }
            words => self.simple(words, now_us),
        };
        (reply, Vec::new())
    }

    fn script(
        &mut self,
        called: Called,
        key: &str,
        args: &[&str],
        now_us: u64,
        audience: &Audience<'_>,
    ) -> (Value, Vec<Publish>) {
        let Called::Change(script) = called else {
            let new = Lock::default();
            let lock = self.locks.get(key).unwrap_or(&new);
            return (status(lock, &args[1..], now_us), Vec::new());
        };
        let said = match script {
            // The rest of a quarantine comes last.
            Script::Acquire => acquire::said(args).map(|mut said| {
                said.extend(args.get(4).map(|rest| (*rest).to_owned()));
                said
            }),
            _ => args.get(1..).map(|args| args.iter().map(ToString::to_string).collect()),
        };
        let Some(said) = said else {
            return (error("ERR", "a call without arguments"), Vec::new());
        };
        let said: Vec<_> = said.iter().map(String::as_str).collect();
        let (reply, mut published) = self.call(key, now_us, audience, |lock, choices| {
            lock.call(key, script, &said, now_us, choices)
        });
        // Without that letter the caller has heard of no listener.
        if !args.first().is_some_and(|options| options.contains('e')) {
            published.retain(|publish| publish.channel != event_channel(key));
        }
        (reply, published)
    }

    /// `life.lua`: for how many ms the clients have known this run of the server.
    fn life(&mut self, known: &str, run: &str, now_us: u64) -> Value {
        let now_ms = now_us / 1000;
        let stored = self.texts.get(known).map(|text| String::from_utf8_lossy(&text.text));
        let since = stored.as_deref().and_then(|stored| stored.strip_prefix(run));
        if let Some(since) = since.and_then(|since| since.trim().parse::<u64>().ok()) {
            return Value::Int(now_ms.saturating_sub(since) as i64);
        }
        self.texts.insert(known.to_owned(), lasting(&format!("{run} {now_ms}")));
        Value::Int(0)
    }

    fn simple(&mut self, words: &[&str], now_us: u64) -> Value {
        let get = |key: &str| match self.texts.get(key) {
            Some(stored) => Value::BulkString(stored.text.clone()),
            None => Value::Nil,
        };
        match words {
            ["HELLO", ..] => Value::Array(
                ["version", "7.2.0", "mode", "standalone", "role", "master"]
                    .map(text)
                    .to_vec(),
            ),
            ["PING"] => Value::SimpleString("PONG".to_owned()),
            ["CLIENT", ..] => Value::Okay,
            ["INFO", ..] => text(format!("# Server\r\nrun_id:{}\r\n", self.run.0)),
            ["TIME"] => Value::Array([now_us / 1_000_000, now_us % 1_000_000].map(text).to_vec()),
            ["GET", key] => get(key),
            ["MGET", keys @ ..] => Value::Array(keys.iter().map(|key| get(key)).collect()),
            ["SET", key, value, unit, number] => {
                let unit_us = if *unit == "EX" { 1_000_000 } else { 1000 };
                let Ok(number) = number.parse::<u64>() else {
                    return error("ERR", "value is not an integer or out of range");
                };
                let text = Text {
                    text: value.as_bytes().to_vec(),
                    until_us: now_us + number * unit_us,
                };
                self.texts.insert((*key).to_owned(), text);
                Value::Okay
            }
            ["DEL", key] => Value::Int(i64::from(self.texts.remove(*key).is_some())),
            ["ZADD", key, pairs @ ..] => {
                let audience = self.audiences.entry((*key).to_owned()).or_default();
                let before = audience.len();
                for pair in pairs.chunks_exact(2) {
                    let Ok(until) = pair[0].parse() else {
                        return error("ERR", "value is not a valid float");
                    };
                    audience.insert(pair[1].to_owned(), until);
                }
                Value::Int((audience.len() - before) as i64)
            }
            ["ZREMRANGEBYSCORE", key, "-inf", now] => {
                let Ok(now) = now.parse() else {
                    return error("ERR", "min or max is not a float");
                };
                let audience = self.audiences.entry((*key).to_owned()).or_default();
                let before = audience.len();
                audience.retain(|_, until| *until > now);
                Value::Int((before - audience.len()) as i64)
            }
            ["ZRANGE", key, "0", "-1"] => {
                let subjects = self.audiences.get(*key).into_iter().flat_map(BTreeMap::keys);
                Value::Array(subjects.map(text).collect())
            }
            // A listener that has gone does no harm.
            ["EXPIRE", ..] => Value::Int(1),
            ["SCAN", _, "MATCH", pattern, ..] => {
                let matches = |key: &&String| glob::matches(pattern.as_bytes(), key.as_bytes());
                let keys = self.locks.keys().filter(matches).map(text);
                Value::Array(vec![text(0), Value::Array(keys.collect())])
            }
            ["HMGET", key, "s"] => Value::Array(vec![match self.locks.contains_key(*key) {
                true => text("a state"),
                false => Value::Nil,
            }]),
            // There are no replicas.
            ["WAIT", ..] => Value::Int(0),
            ["WAITAOF", ..] => Value::Array(vec![Value::Int(0); 2]),
            [name, ..] => error("ERR", &format!("unknown command '{name}' of a server in memory")),
            [] => error("ERR", "no command"),
        }
    }
}

fn lasting(text: &str) -> Text {
    Text {
        text: text.as_bytes().to_vec(),
        until_us: u64::MAX,
    }
}

fn event_channel(key: &str) -> String {
    format!("{key}:events")
}
