//! The seven scripts: their texts and hashes, in two dialects.
//!
//! Each script is one file of `lua/` behind `lock.lua`, which all of them share. A script is built once per process. For
//! servers that keep the scripts as functions see `functions.rs`.

use super::hello::Dialect;
use std::sync::LazyLock;

/// Requests in one call of release or renew: about a millisecond of the server's time.
pub(crate) const CHUNK: usize = 500;

pub(crate) struct Script {
    /// The script's place in [`SOURCES`].
    pub(super) number: usize,
    plain: redis::Script,
    flagged: redis::Script,
    body: [String; 2],
}

impl Script {
    fn new(number: usize) -> Self {
        let Source { name, flags, text } = SOURCES[number];
        let body = String::from(LOCK) + text;
        #[cfg(feature = "__testing")]
        let body = replaced::transformed(name, &body);
        #[cfg(not(feature = "__testing"))]
        let _ = name;
        let flags = if flags.is_empty() {
            String::new()
        } else {
            format!(" flags={flags}")
        };
        let flagged = format!("#!lua{flags}\n{body}");
        Self {
            number,
            plain: redis::Script::new(&body),
            flagged: redis::Script::new(&flagged),
            body: [body, flagged],
        }
    }

    /// The script's bit in [`Known`](super::order::Known).
    pub(super) fn bit(&self) -> u8 {
        1 << self.number
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

/// A script's own file.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) name: &'static str,
    pub(super) flags: &'static str,
    pub(super) text: &'static str,
}

pub(super) const LOCK: &str = include_str!("../../lua/lock.lua");

macro_rules! sources {
    ($($name:literal $flags:literal),+) => {
        [$(Source { name: $name, flags: $flags, text: include_str!(concat!("../../lua/", $name, ".lua")) }),+]
    };
}

/// In the order in which the library of functions has them. Those that free memory or keep alive what exists must work when memory is
/// exhausted.
pub(super) const SOURCES: [Source; 7] = sources!(
    "acquire" "",
    "release" "allow-oom",
    "renew" "allow-oom",
    "downgrade" "allow-oom",
    "evict" "allow-oom",
    "status" "no-writes",
    "place" "allow-oom"
);

static SCRIPTS: LazyLock<[Script; 7]> = LazyLock::new(|| [0, 1, 2, 3, 4, 5, 6].map(Script::new));

/// Which script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Acquire,
    Release,
    Renew,
    Downgrade,
    Evict,
    Status,
    Place,
}

impl Name {
    pub(super) fn script(self) -> &'static Script {
        &SCRIPTS[self as usize]
    }
}

/// The seam by which tests change scripts.
#[cfg(feature = "__testing")]
pub(crate) mod replaced {
    use super::{SCRIPTS, SOURCES};
    use std::sync::OnceLock;

    type Transform = Box<dyn Fn(&str, &str) -> String + Send + Sync>;

    static TRANSFORM: OnceLock<Transform> = OnceLock::new();

    /// From now on every script of this process, and the function of the same name, is what `transform` makes of its name
    /// and its text. Returns false if that was set before. Call this before the first client connects, because a script
    /// is built once.
    pub fn transform_scripts(transform: impl Fn(&str, &str) -> String + Send + Sync + 'static) -> bool {
        TRANSFORM.set(Box::new(transform)).is_ok()
    }

    pub(super) fn transformed(name: &str, body: &str) -> String {
        TRANSFORM
            .get()
            .map_or_else(|| body.to_owned(), |transform| transform(name, body))
    }

    /// Every script as it is sent: its name, and its text for servers before Redis 7 and from then on.
    pub fn scripts() -> [(&'static str, [&'static str; 2]); 7] {
        [0, 1, 2, 3, 4, 5, 6].map(|number: usize| {
            let [plain, flagged] = &SCRIPTS[number].body;
            (SOURCES[number].name, [plain.as_str(), flagged.as_str()])
        })
    }

    /// The texts of all scripts, if they were changed.
    pub(in super::super) fn texts() -> Option<[String; 7]> {
        TRANSFORM.get()?;
        Some([0, 1, 2, 3, 4, 5, 6].map(|number: usize| SCRIPTS[number].body[0].clone()))
    }
}
