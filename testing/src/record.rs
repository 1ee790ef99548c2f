//! What happened to one lock in one call of a script: the journal's entry, made by the scripts of test builds on real
//! servers and by the model in simulation. Scripts are atomic, so the journal is the order in which things happened.

use crate::model::{BUSY, GRANTED, NOT_TOLD};
use std::fmt;

/// The scripts that change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Script {
    Acquire,
    Release,
    Renew,
    Downgrade,
    Evict,
    /// It puts a vote of a quorum into its place.
    Place,
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
    /// The script found the state damaged and emptied it: nobody holds or waits any more. Its request is "-".
    Reset,
    /// Nobody hears what this request's client is told: its lease ends within [`GRACE`](crate::model::GRACE). No event; it
    /// stands behind the others.
    Cut,
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
    /// From `ARGV[2]` on; of acquire: request, lease in ms, `try`, `queue` or `m` and how long the queue may be, policy (of a
    /// bounded lock `n` and its limit), old ticket or `u` and the token of the read hold that upgrades (see
    /// [`acquire`]), and perhaps the rest of a quarantine in ms.
    pub args: Vec<String>,
    /// A reply of one number with what it does not tell: [`NOT_TOLD`](crate::model::NOT_TOLD).
    pub reply: Vec<i64>,
    /// In the order in which it happened.
    pub notes: Vec<Note>,
}

impl Script {
    pub const ALL: [Self; 6] = [
        Self::Acquire,
        Self::Release,
        Self::Renew,
        Self::Downgrade,
        Self::Evict,
        Self::Place,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Release => "release",
            Self::Renew => "renew",
            Self::Downgrade => "downgrade",
            Self::Evict => "evict",
            Self::Place => "place",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|script| script.name() == name)
    }
}

impl What {
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Granted,
        Self::Released,
        Self::Left,
        Self::Expired,
        Self::Evicted,
        Self::Reset,
        Self::Cut,
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
            Self::Cut => "cut",
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

/// ARGV of a call, from its arguments. `options`: further letters of the options.
pub fn argv(script: Script, args: &[&str], options: &str) -> Vec<String> {
    match script {
        Script::Acquire => acquire::sent(args, options),
        _ => std::iter::once(&options)
            .chain(args)
            .map(|arg| (*arg).to_owned())
            .collect(),
    }
}

/// The arguments of acquire: what they say, and how they are sent.
pub mod acquire {
    /// `ARGV[1]` and those after it, from what they say. The rest of a quarantine may come last.
    pub fn sent(args: &[&str], more_options: &str) -> Vec<String> {
        let [request, lease_ms, when, policy, ticket, rest @ ..] = args else {
            panic!("not the arguments of acquire: {args:?}");
        };
        let when = match *when {
            "try" => "t",
            "queue" => "",
            bound => bound,
        };
        let (upgrade, number) = match ticket.strip_prefix('u') {
            Some(token) => ("u", token),
            None if *ticket == "q" => ("q", ""),
            None => ("", *ticket),
        };
        let mut sent = vec![format!("{more_options}{when}{policy}{upgrade}")];
        sent.extend([request, lease_ms].map(|arg| (*arg).to_owned()));
        if !number.is_empty() || !rest.is_empty() {
            sent.push(number.to_owned());
        }
        sent.extend(rest.iter().map(|rest| (*rest).to_owned()));
        sent
    }

    /// What they say, from `ARGV[1]` and those after it. Quarantine is not among it.
    pub fn said(argv: &[&str]) -> Option<Vec<String>> {
        let [options, request, lease_ms, rest @ ..] = argv else {
            return None;
        };
        let bound = with_number(options, 'm').unwrap_or("queue");
        let when = if options.contains('t') { "try" } else { bound };
        let policy = options.matches(['w', 'r']).next();
        let policy = policy.or(with_number(options, 'n')).unwrap_or_default();
        let number = rest.first().copied().unwrap_or_default();
        let ticket = match number {
            token if options.contains('u') => format!("u{token}"),
            "" if options.contains('q') => "q".to_owned(),
            ticket => ticket.to_owned(),
        };
        Some([request, *lease_ms, when, policy, &ticket].map(str::to_owned).to_vec())
    }

    /// The letter and its number.
    fn with_number(options: &str, letter: char) -> Option<&str> {
        let from = &options[options.find(letter)?..];
        let end = from[1..].find(|c: char| !c.is_ascii_digit());
        Some(&from[..end.map_or(from.len(), |digits| 1 + digits)])
    }
}

/// A message's grants, each request with its token; `None`: it cannot be read.
pub fn grants(payload: &str) -> Option<Vec<(&str, u64)>> {
    let mut token = None;
    let mut grants = Vec::new();
    for word in payload.split('\n').next()?.split(' ') {
        match word.parse() {
            Ok(number) => token = Some(number),
            Err(_) => grants.push((word, token?)),
        }
    }
    Some(grants)
}

/// A reply of one number as the model has it; any other reply as it is.
pub fn told(script: Script, reply: Vec<i64>) -> Vec<i64> {
    match (script, reply.as_slice()) {
        (Script::Acquire, &[0]) => vec![BUSY, 0, NOT_TOLD, NOT_TOLD],
        (Script::Acquire, &[token]) => vec![GRANTED, token, NOT_TOLD, NOT_TOLD],
        (Script::Release, &[told]) => vec![NOT_TOLD, told],
        _ => reply,
    }
}
