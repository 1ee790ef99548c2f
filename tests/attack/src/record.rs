//! What happened to one lock in one call of a script: the journal's entry, made by the scripts of test builds on real
//! servers and by the model in simulation. Scripts are atomic, so the journal is the order in which things happened.

use std::fmt;

/// The scripts that change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Script {
    Acquire,
    Release,
    Renew,
    Downgrade,
    Evict,
}

/// What became of a request. The names are those that `note()` of lock.lua uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    Queued,
    Granted,
    Released,
    Left,
    Expired,
    Evicted,
    /// The script found the state damaged and began anew: nobody holds or waits any more. Its request is "-".
    Reset,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub what: What,
    pub request: String,
    /// The token, of a grant; 0 otherwise.
    pub token: u64,
}

/// One call of one script on one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The lock's state key, such as `fairlock:{a}`.
    pub lock: String,
    /// The server's clock, us.
    pub at_us: u64,
    pub script: Script,
    /// From ARGV[4] on.
    pub args: Vec<String>,
    pub reply: Vec<i64>,
    /// In the order in which it happened.
    pub notes: Vec<Note>,
}

impl Script {
    pub const ALL: [Self; 5] = [Self::Acquire, Self::Release, Self::Renew, Self::Downgrade, Self::Evict];

    pub fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Release => "release",
            Self::Renew => "renew",
            Self::Downgrade => "downgrade",
            Self::Evict => "evict",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|script| script.name() == name)
    }
}

impl What {
    pub const ALL: [Self; 7] = [
        Self::Queued,
        Self::Granted,
        Self::Released,
        Self::Left,
        Self::Expired,
        Self::Evicted,
        Self::Reset,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Granted => "granted",
            Self::Released => "released",
            Self::Left => "left",
            Self::Expired => "expired",
            Self::Evicted => "evicted",
            Self::Reset => "reset",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|what| what.name() == name)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            lock,
            at_us,
            script,
            args,
            reply,
            notes,
        } = self;
        write!(f, "{at_us} {lock} {} {args:?} -> {reply:?}", script.name())?;
        notes
            .iter()
            .try_for_each(|note| write!(f, "; {} {} {}", note.what.name(), note.request, note.token))
    }
}
