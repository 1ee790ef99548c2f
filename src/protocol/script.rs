//! The six scripts: their texts and hashes, in two dialects.
//!
//! Each script is one file of `lua/` behind what it shares with the others. A script is built once per process.

use super::hello::Dialect;
use std::sync::LazyLock;

/// Requests in one call of release or renew: about a millisecond of the server's time.
pub(crate) const CHUNK: usize = 500;

pub(crate) struct Script {
    /// The script's bit in [`Known`](super::order::Known).
    pub(super) bit: u8,
    /// The script takes the rest of the server's quarantine as its last argument, if there is one.
    pub(super) is_told_of_quarantine: bool,
    plain: redis::Script,
    flagged: redis::Script,
    body: [String; 2],
}

impl Script {
    fn new(name: &str, flags: &str, body: &str) -> Self {
        let flagged = format!("#!lua{flags}\n{body}");
        let number = NAMES.iter().position(|known| *known == name);
        Self {
            bit: number.map_or(0, |number| 1 << number),
            is_told_of_quarantine: name == "acquire",
            plain: redis::Script::new(body),
            flagged: redis::Script::new(&flagged),
            body: [body.to_owned(), flagged],
        }
    }

    pub(super) fn hash(&self, dialect: Dialect) -> &str {
        match dialect {
            Dialect::Plain => self.plain.get_hash(),
            Dialect::Flags => self.flagged.get_hash(),
        }
    }

    pub(super) fn body(&self, dialect: Dialect) -> &str {
        &self.body[usize::from(dialect == Dialect::Flags)]
    }
}

const NAMES: [&str; 6] = ["acquire", "release", "renew", "downgrade", "evict", "status"];

macro_rules! script {
    ($name:literal, $flags:literal, $($file:literal),+) => {
        LazyLock::new(|| {
            let body = concat!($(include_str!(concat!("../../lua/", $file))),+);
            #[cfg(feature = "testing")]
            let body = &replaced::transformed($name, body);
            Script::new($name, $flags, body)
        })
    };
}

pub(super) static ACQUIRE: LazyLock<Script> = script!(
    "acquire",
    "",
    "listeners.lua",
    "acquire_head.lua",
    "lock.lua",
    "acquire.lua"
);
// These scripts free memory or keep alive what exists, so they must work when memory is exhausted.
pub(super) static RELEASE: LazyLock<Script> = script!(
    "release",
    " flags=allow-oom",
    "listeners.lua",
    "release_head.lua",
    "lock.lua",
    "release.lua"
);
pub(super) static RENEW: LazyLock<Script> =
    script!("renew", " flags=allow-oom", "listeners.lua", "lock.lua", "renew.lua");
pub(super) static DOWNGRADE: LazyLock<Script> = script!(
    "downgrade",
    " flags=allow-oom",
    "listeners.lua",
    "lock.lua",
    "downgrade.lua"
);
pub(super) static EVICT: LazyLock<Script> =
    script!("evict", " flags=allow-oom", "listeners.lua", "lock.lua", "evict.lua");
pub(super) static STATUS: LazyLock<Script> =
    script!("status", " flags=no-writes", "listeners.lua", "lock.lua", "status.lua");

/// The seam by which tests change scripts.
#[cfg(feature = "testing")]
pub(crate) mod replaced {
    use super::{ACQUIRE, DOWNGRADE, EVICT, RELEASE, RENEW, STATUS, Script};
    use std::sync::{LazyLock, OnceLock};

    type Transform = Box<dyn Fn(&str, &str) -> String + Send + Sync>;

    static TRANSFORM: OnceLock<Transform> = OnceLock::new();

    /// From now on every script of this process is what `transform` makes of its name and its text. Returns false if that
    /// was set before. Call this before the first client connects, because a script is built once.
    pub fn transform_scripts(transform: impl Fn(&str, &str) -> String + Send + Sync + 'static) -> bool {
        TRANSFORM.set(Box::new(transform)).is_ok()
    }

    pub(super) fn transformed(name: &str, body: &str) -> String {
        TRANSFORM
            .get()
            .map_or_else(|| body.to_owned(), |transform| transform(name, body))
    }

    /// Every script as it is sent: its name, and its text for servers before Redis 7 and from then on.
    pub fn scripts() -> [(&'static str, [&'static str; 2]); 6] {
        let texts = |script: &'static LazyLock<Script>| {
            let script: &'static Script = script;
            [script.body[0].as_str(), script.body[1].as_str()]
        };
        [
            ("acquire", texts(&ACQUIRE)),
            ("release", texts(&RELEASE)),
            ("renew", texts(&RENEW)),
            ("downgrade", texts(&DOWNGRADE)),
            ("evict", texts(&EVICT)),
            ("status", texts(&STATUS)),
        ]
    }
}
