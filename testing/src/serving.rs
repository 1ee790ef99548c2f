//! How a server in memory carries out a script by the model: its choices, whom it hears listen, and what it sends.

use crate::model::{AtMost, Choices, Outcome};
use crate::record::Script;
use redis::Value;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The choices of a server that counts as the scripts do, and knows its subscribers.
#[allow(missing_debug_implementations)] // It holds a function.
pub struct Serving<'a> {
    at_most: AtMost,
    channels: String,
    hears: &'a dyn Fn(&str) -> bool,
    cuts: bool,
}

impl<'a> Serving<'a> {
    /// For a call on that lock: at most so much in it, and who hears a channel.
    pub fn new(key: &str, at_most: usize, hears: &'a dyn Fn(&str) -> bool) -> Self {
        Self {
            at_most: AtMost::new(at_most),
            channels: format!("{}c:", key.split('{').next().unwrap_or_default()),
            hears,
            cuts: true,
        }
    }

    /// See [`Choices::cuts`].
    pub fn promoted(mut self, promoted: bool) -> Self {
        self.cuts = !promoted;
        self
    }

    /// The messages of a call to clients: channel and payload.
    pub fn published(&self, messages: Vec<(String, String)>) -> impl Iterator<Item = (String, Vec<u8>)> {
        let of = |(client, payload): (String, String)| (format!("{}{client}", self.channels), payload.into_bytes());
        messages.into_iter().map(of)
    }
}

impl Choices for Serving<'_> {
    fn expires(&mut self, request: &str) -> bool {
        self.at_most.expires(request)
    }
    fn admits(&mut self, request: &str) -> bool {
        self.at_most.admits(request)
    }
    fn pulls_back(&mut self, request: &str) -> bool {
        self.at_most.pulls_back(request)
    }
    fn listens(&self, client: &str) -> bool {
        (self.hears)(&format!("{}{client}", self.channels))
    }
    fn cuts(&self) -> bool {
        self.cuts
    }
    fn most_looked_at(&self) -> usize {
        self.at_most.most_looked_at()
    }
}

/// The reply of a call, as the server sends it.
pub fn reply(outcome: &Outcome) -> Value {
    match outcome.bare {
        true => Value::Int(outcome.reply[1]),
        false => Value::Array(outcome.reply.iter().copied().map(Value::Int).collect()),
    }
}

/// A script, as a client calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Called {
    /// It changes a lock.
    Change(Script),
    /// It only reads.
    Status,
}

impl Called {
    fn of_name(name: &str) -> Option<Self> {
        match name {
            "status" => Some(Self::Status),
            name => Script::of_name(name).map(Self::Change),
        }
    }

    /// The script that EVALSHA names.
    pub fn of_hash(hash: &str) -> Option<Self> {
        HASHES.get(hash).copied()
    }

    /// The script that EVAL sends. A comparison costs a thousandth of a hash.
    pub fn of_text(text: &str) -> Option<Self> {
        let sent = TEXTS.iter().find(|(_, known)| *known == text);
        sent.map(|(called, _)| *called)
    }

    /// The script that FCALL names.
    pub fn of_function(name: &str) -> Option<Self> {
        let (library, _) = fairlock::testing::library();
        Self::of_name(name.strip_prefix(library)?.strip_prefix('_')?)
    }
}

/// The scripts of this process's clients, for servers before Redis 7 and from then on.
static TEXTS: LazyLock<Vec<(Called, &'static str)>> = LazyLock::new(|| {
    let scripts = fairlock::testing::scripts().into_iter();
    let scripts = scripts.filter_map(|(name, texts)| Some((Called::of_name(name)?, texts)));
    scripts
        .flat_map(|(called, texts)| texts.map(|text| (called, text)))
        .collect()
});

static HASHES: LazyLock<HashMap<String, Called>> = LazyLock::new(|| {
    let hash = |text| redis::Script::new(text).get_hash().to_owned();
    TEXTS.iter().map(|(called, text)| (hash(text), *called)).collect()
});
