//! The six scripts: their texts and hashes, in two dialects, and the library that has all of them as functions.
//!
//! Each script is one file of `lua/` behind `lock.lua`, which all of them share. A server from 7 on can keep the scripts as
//! functions of one library: then `lock.lua` runs once, when the server loads the library, and not in each call. A script is
//! built once per process.

use super::hello::Dialect;
use std::sync::LazyLock;

/// Requests in one call of release or renew: about a millisecond of the server's time.
pub(crate) const CHUNK: usize = 500;

pub(crate) struct Script {
    /// The script's place in [`SCRIPTS`].
    number: usize,
    plain: redis::Script,
    flagged: redis::Script,
    body: [String; 2],
}

impl Script {
    fn new(number: usize) -> Self {
        let Source { name, flags, text } = SOURCES[number];
        let body = String::from(LOCK) + text;
        #[cfg(feature = "testing")]
        let body = replaced::transformed(name, &body);
        #[cfg(not(feature = "testing"))]
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

    /// The name of the function that does the same.
    pub(super) fn function(&self) -> &str {
        &LIBRARY.functions[self.number]
    }
}

/// A script's own file.
#[derive(Clone, Copy)]
struct Source {
    name: &'static str,
    flags: &'static str,
    text: &'static str,
}

const LOCK: &str = include_str!("../../lua/lock.lua");

macro_rules! sources {
    ($($name:literal $flags:literal),+) => {
        [$(Source { name: $name, flags: $flags, text: include_str!(concat!("../../lua/", $name, ".lua")) }),+]
    };
}

/// In the order in which the library has them. Those that free memory or keep alive what exists must work when memory is
/// exhausted.
const SOURCES: [Source; 6] = sources!(
    "acquire" "",
    "release" "allow-oom",
    "renew" "allow-oom",
    "downgrade" "allow-oom",
    "evict" "allow-oom",
    "status" "no-writes"
);

static SCRIPTS: LazyLock<[Script; 6]> = LazyLock::new(|| [0, 1, 2, 3, 4, 5].map(Script::new));

/// Which script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Acquire,
    Release,
    Renew,
    Downgrade,
    Evict,
    Status,
}

impl Name {
    pub(super) fn script(self) -> &'static Script {
        &SCRIPTS[self as usize]
    }
}

/// The scripts as functions. The name has a hash of the scripts, so that clients of several versions share a server.
struct Library {
    name: String,
    text: String,
    functions: [String; 6],
}

static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let texts: String = std::iter::once(LOCK).chain(SOURCES.map(|source| source.text)).collect();
    let (shared, own) = (LOCK, SOURCES.map(|source| source.text.to_owned()));
    #[cfg(feature = "testing")]
    let (texts, shared, own) = match replaced::is_set() {
        false => (texts, shared, own),
        // Each function has a `lock.lua` of its own, because a transformation may change that too.
        true => {
            let own = [0, 1, 2, 3, 4, 5].map(|number: usize| SCRIPTS[number].body[0].clone());
            (own.concat(), "", own)
        }
    };
    let hash = redis::Script::new(&texts).get_hash()[..16].to_owned();
    let name = format!("fairlock_{hash}");
    let functions = SOURCES.map(|source| format!("{name}_{}", source.name));
    let mut text = format!("#!lua name={name}\n{shared}");
    for ((function, source), own) in functions.iter().zip(SOURCES).zip(own) {
        let flags = if source.flags.is_empty() {
            String::new()
        } else {
            format!("'{}'", source.flags)
        };
        text += &format!(
            "redis.register_function{{function_name='{function}',flags={{{flags}}},callback=function(KEYS, ARGV)\n{own}end}}\n"
        );
    }
    Library { name, text, functions }
});

/// The name of the library of functions, and its text.
pub(crate) fn library() -> (&'static str, &'static str) {
    (&LIBRARY.name, &LIBRARY.text)
}

/// The seam by which tests change scripts.
#[cfg(feature = "testing")]
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

    pub(super) fn is_set() -> bool {
        TRANSFORM.get().is_some()
    }

    pub(super) fn transformed(name: &str, body: &str) -> String {
        TRANSFORM
            .get()
            .map_or_else(|| body.to_owned(), |transform| transform(name, body))
    }

    /// Every script as it is sent: its name, and its text for servers before Redis 7 and from then on.
    pub fn scripts() -> [(&'static str, [&'static str; 2]); 6] {
        [0, 1, 2, 3, 4, 5].map(|number: usize| {
            let [plain, flagged] = &SCRIPTS[number].body;
            (SOURCES[number].name, [plain.as_str(), flagged.as_str()])
        })
    }

    /// The library of functions as it is sent: its name and its text.
    pub fn library() -> (&'static str, &'static str) {
        super::library()
    }
}
