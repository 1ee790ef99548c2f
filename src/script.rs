//! One function per Lua file. The only place that knows KEYS, ARGV and replies; `design.md` has the contracts.

mod snapshot;

pub(crate) use snapshot::Snapshot;

use crate::acquire::Mode;
use crate::claim::{Answer, Standing};
use crate::client::MOST_LEASE;
#[cfg(feature = "cluster")]
use crate::key;
use crate::key::Lock;
use crate::link::Lane;
use crate::owner::Owner;
use crate::replication::Replication;
use crate::route::Route;
use crate::rw_lock::Policy;
use crate::wire::malformed;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use std::sync::LazyLock;
use std::time::Duration;
use tokio::time::Instant;

/// Requests in one call of release or renew: about a millisecond of the server's time.
pub(crate) const CHUNK: usize = 500;

/// What a server makes of a script's first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Before Redis 7: no flags.
    Plain,
    /// Flags in a `#!lua` line.
    Flags,
}

impl Dialect {
    /// From the reply to HELLO, a map or, in RESP2, a list of pairs.
    pub(crate) fn of_server(hello: &Value) -> Self {
        let is = |key: &Value| {
            matches!(key, Value::BulkString(key) if key == b"version")
                || matches!(key, Value::SimpleString(key) if key == "version")
        };
        let version = match hello {
            Value::Map(pairs) => pairs.iter().find(|(key, _)| is(key)).map(|(_, value)| value),
            Value::Array(items) => items.chunks_exact(2).find(|pair| is(&pair[0])).map(|pair| &pair[1]),
            _ => None,
        };
        let text = match version {
            Some(Value::BulkString(text)) => String::from_utf8_lossy(text).into_owned(),
            Some(Value::SimpleString(text)) => text.clone(),
            _ => String::new(),
        };
        match text.split('.').next().and_then(|major| major.parse::<u32>().ok()) {
            Some(major) if major < 7 => Self::Plain,
            _ => Self::Flags,
        }
    }
}

/// What a command has to suit: the server at the other end of the connection on which it is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) dialect: Dialect,
    /// It has begun anew and may have forgotten holds: until then nobody enters a lock that looks free.
    pub(crate) quarantined_until: Option<Instant>,
}

struct Script {
    plain: redis::Script,
    flagged: redis::Script,
    body: [String; 2],
}

impl Script {
    fn new(flags: &str, body: &str) -> Self {
        let flagged = format!("#!lua{flags}\n{body}");
        Self {
            plain: redis::Script::new(body),
            flagged: redis::Script::new(&flagged),
            body: [body.to_owned(), flagged],
        }
    }

    fn hash(&self, dialect: Dialect) -> &str {
        match dialect {
            Dialect::Plain => self.plain.get_hash(),
            Dialect::Flags => self.flagged.get_hash(),
        }
    }

    fn body(&self, dialect: Dialect) -> &str {
        &self.body[usize::from(dialect == Dialect::Flags)]
    }
}

macro_rules! script {
    ($name:literal, $flags:literal, $($file:literal),+) => {
        LazyLock::new(|| {
            let body = concat!($(include_str!(concat!("../lua/", $file))),+);
            #[cfg(feature = "attack")]
            let body = &crate::attack::transformed($name, body);
            Script::new($flags, body)
        })
    };
}

static ACQUIRE: LazyLock<Script> = script!(
    "acquire",
    "",
    "listeners.lua",
    "acquire_head.lua",
    "lock.lua",
    "acquire.lua"
);
// These free memory, or keep alive what exists: they must work when memory is exhausted.
static RELEASE: LazyLock<Script> = script!(
    "release",
    " flags=allow-oom",
    "listeners.lua",
    "release_head.lua",
    "lock.lua",
    "release.lua"
);
static RENEW: LazyLock<Script> = script!("renew", " flags=allow-oom", "listeners.lua", "lock.lua", "renew.lua");
static DOWNGRADE: LazyLock<Script> = script!(
    "downgrade",
    " flags=allow-oom",
    "listeners.lua",
    "lock.lua",
    "downgrade.lua"
);
static EVICT: LazyLock<Script> = script!("evict", " flags=allow-oom", "listeners.lua", "lock.lua", "evict.lua");
static STATUS: LazyLock<Script> = script!("status", " flags=no-writes", "listeners.lua", "lock.lua", "status.lua");

/// How grants are published.
#[derive(Debug)]
pub(crate) enum Channel {
    /// On one channel per client, which begins with this.
    OfClient(String),
    /// On a sharded one per lock and client.
    #[cfg(feature = "cluster")]
    InSlot,
}

impl Channel {
    /// Whether a channel is a client's own.
    pub(crate) fn brings(&self, channel: &str) -> bool {
        match self {
            Self::OfClient(base) => channel.starts_with(base),
            #[cfg(feature = "cluster")]
            Self::InSlot => false,
        }
    }

    /// `listened`: somebody has announced that he listens to the lock's events. In a cluster its node knows that itself.
    fn add_to(&self, cmd: &mut Cmd, lock: &Lock, listened: bool) {
        match self {
            Self::OfClient(base) => cmd.arg("PUBLISH").arg(base).arg(if listened { "1" } else { "" }),
            #[cfg(feature = "cluster")]
            Self::InSlot => cmd.arg("SPUBLISH").arg(key::channel_base(&lock.state)).arg("?"),
        };
        #[cfg(not(feature = "cluster"))]
        let _ = lock;
    }
}

/// One call of a script: about which lock, and how long its answer may take.
pub(crate) struct Call<'a> {
    pub(crate) route: &'a Route,
    pub(crate) channel: &'a Channel,
    pub(crate) lock: &'a Lock,
    pub(crate) limit: Duration,
    /// Somebody listens to events of this lock.
    pub(crate) listened: bool,
}

impl Call<'_> {
    async fn run(&self, lane: Lane, script: &Script, args: impl Fn(&mut Cmd, Peer)) -> Result<Vec<i64>, RedisError> {
        numbers(self.reply(lane, script, args).await?)
    }

    async fn reply(&self, lane: Lane, script: &Script, args: impl Fn(&mut Cmd, Peer)) -> Result<Value, RedisError> {
        let by_hash = |peer| self.command("EVALSHA", script, peer, &args);
        let key = &self.lock.state;
        match self.route.call(lane, self.limit, key, by_hash).await {
            // The server restarted or its cache was flushed. EVAL fills it again, on this server only.
            Err(error) if is_unknown_script(&error) => {
                let whole = |peer| self.command("EVAL", script, peer, &args);
                self.route.call(lane, self.limit, key, whole).await
            }
            other => other,
        }
    }

    fn command(&self, name: &str, script: &Script, peer: Peer, args: &impl Fn(&mut Cmd, Peer)) -> Cmd {
        let script = if name == "EVAL" {
            script.body(peer.dialect)
        } else {
            script.hash(peer.dialect)
        };
        let mut cmd = Cmd::with_capacity(16, 256);
        cmd.arg(name).arg(script).arg(3);
        cmd.arg(&*self.lock.state).arg(&self.lock.queue).arg(&self.lock.leases);
        self.channel.add_to(&mut cmd, self.lock, self.listened);
        args(&mut cmd, peer);
        cmd
    }

    pub(crate) async fn acquire(&self, ask: &Ask<'_>) -> Result<Acquired, RedisError> {
        let reply = self.run(Lane::Users, &ACQUIRE, |cmd, peer| {
            cmd.arg(ask.request).arg(millis(ask.lease));
            cmd.arg(if ask.only_now { "try" } else { "queue" })
                .arg(policy_code(ask.policy));
            match ask.ticket {
                Some(ticket) => cmd.arg(ticket),
                None => cmd.arg(""),
            };
            if let Some(left) = peer.quarantine_left() {
                cmd.arg(millis(left));
            }
        });
        Acquired::read(&reply.await?, ask.only_now)
    }

    /// At most [`CHUNK`] requests. Says of each whether the server knew it, and when to look again.
    pub(crate) async fn release(&self, requests: &[&str]) -> Result<(Vec<bool>, Look), RedisError> {
        let reply = self.run(Lane::Users, &RELEASE, |cmd, _| {
            for request in requests {
                cmd.arg(request);
            }
        });
        read_released(&reply.await?, requests.len())
    }

    /// At most [`CHUNK`] requests, each with its lease. Says how each stands, and when to look again.
    pub(crate) async fn renew(&self, requests: &[(&str, Duration)]) -> Result<(Vec<Standing>, Look), RedisError> {
        let reply = self.run(Lane::Background, &RENEW, |cmd, _| {
            for (request, lease) in requests {
                cmd.arg(request).arg(millis(*lease));
            }
        });
        read_renewed(&reply.await?, requests.len())
    }

    /// How a request stands on a server, and how many of its replicas know that.
    pub(crate) async fn confirm(
        &self,
        request: &str,
        lease: Duration,
        wish: Replication,
    ) -> Result<(Standing, usize), RedisError> {
        let renew = |name: &str, peer| {
            self.command(name, &RENEW, peer, &|cmd: &mut Cmd, _| {
                // A millisecond more, so that it writes: WAIT is about what its connection wrote last.
                cmd.arg(request).arg(millis(lease) + 1);
            })
        };
        let key = &self.lock.state;
        let (renewed, reached) = match self
            .route
            .confirm(self.limit, key, wish, |peer| renew("EVALSHA", peer))
            .await
        {
            Err(error) if is_unknown_script(&error) => {
                self.route
                    .confirm(self.limit, key, wish, |peer| renew("EVAL", peer))
                    .await?
            }
            other => other?,
        };
        let (standings, _) = read_renewed(&numbers(renewed)?, 1)?;
        let standing = standings.into_iter().next().unwrap_or(Standing::Unknown);
        Ok((standing, reached))
    }
}

impl Call<'_> {
    /// The owner's token if it now reads by `to`; `None`: the write hold `from` is unknown. And when to look again.
    pub(crate) async fn downgrade(
        &self,
        from: &str,
        to: &str,
        lease: Duration,
    ) -> Result<(Option<u64>, Look), RedisError> {
        let reply = self.run(Lane::Users, &DOWNGRADE, |cmd, _| {
            cmd.arg(from).arg(to).arg(millis(lease));
        });
        read_downgraded(&reply.await?)
    }

    /// How many requests of the owner were thrown out, and when to look again.
    pub(crate) async fn evict(&self, owner: &str) -> Result<(usize, Look), RedisError> {
        let reply = self.run(Lane::Users, &EVICT, |cmd, _| {
            cmd.arg(owner);
        });
        read_evicted(&reply.await?)
    }

    pub(crate) async fn status(&self, first: usize, most: usize) -> Result<Snapshot, RedisError> {
        let reply = self.reply(Lane::Users, &STATUS, |cmd, _| {
            cmd.arg(first).arg(most).arg(most);
        });
        let reply = reply.await?;
        Snapshot::read(&reply).ok_or_else(|| malformed(&reply))
    }
}

impl Peer {
    fn quarantine_left(&self) -> Option<Duration> {
        let left = self.quarantined_until?.checked_duration_since(Instant::now())?;
        Some(left.max(Duration::from_millis(1)))
    }
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// The mode, client and owner in a request's name.
pub(crate) fn read_name(request: &str) -> Option<(Mode, &str, Owner)> {
    let (client, _) = read_request(request)?;
    let mode = if request.starts_with('w') {
        Mode::Write
    } else {
        Mode::Read
    };
    let owner = request.splitn(3, ':').nth(2).or_else(|| request.get(1..))?;
    Some((mode, client, Owner::of_name(owner)?))
}

/// The arguments of acquire.
pub(crate) struct Ask<'a> {
    pub(crate) request: &'a str,
    pub(crate) lease: Duration,
    pub(crate) only_now: bool,
    pub(crate) policy: Policy,
    pub(crate) ticket: Option<u64>,
}

#[derive(Debug)]
pub(crate) enum Acquired {
    /// The answer, and after how long to look again.
    Answered(Answer, Look),
    Busy,
    Conflict,
    OwnerWaits,
    OtherPolicy(Policy),
}

/// After how long to look at the lock again; `None`: there is no need to.
type Look = Option<Duration>;

// What the scripts say. They never say anything else, but a server may be an old, a foreign or a broken one: what cannot
// be is an error, above all no grant.

impl Acquired {
    pub(crate) fn read(reply: &[i64], only_now: bool) -> Result<Self, RedisError> {
        let &[status, value, next_ms, seq] = reply else {
            return Err(unexpected(reply));
        };
        let next = next_look(next_ms);
        let acquired = match status {
            2 => number(value).map(|token| Self::Answered(Answer::Granted { token }, next)),
            // A try never waits, and what may wait is never turned away: neither has a way to go on from there.
            1 if !only_now => match (number(value), seq) {
                // The counter may have been lost.
                (Some(ticket), 0) => Some((ticket, 0)),
                (ticket, seq) => ticket.zip(number(seq)),
            }
            .map(|(ticket, seq)| Self::Answered(Answer::Queued { ticket, seq }, next)),
            0 if only_now => Some(Self::Busy),
            -1 => Some(Self::Conflict),
            -2 => Some(Self::OwnerWaits),
            -3 if policy_of(value).is_none() && u8::try_from(value).is_ok() => return Err(other_layout()),
            -3 => policy_of(value).map(Self::OtherPolicy),
            _ => None,
        };
        acquired.ok_or_else(|| unexpected(reply))
    }
}

pub(crate) fn read_released(reply: &[i64], asked: usize) -> Result<(Vec<bool>, Look), RedisError> {
    read_each(reply, asked, |status| match status {
        0 => Some(false),
        1 | 2 => Some(true),
        _ => None,
    })
}

pub(crate) fn read_renewed(reply: &[i64], asked: usize) -> Result<(Vec<Standing>, Look), RedisError> {
    read_each(reply, asked, |standing| match standing {
        -1 => Some(Standing::Unknown),
        // The counter may have been lost.
        0 => Some(Standing::Waits { seq: 0 }),
        ..0 => standing
            .checked_neg()
            .and_then(number)
            .map(|seq| Standing::Waits { seq }),
        token => number(token).map(|token| Standing::Holds { token }),
    })
}

pub(crate) fn read_downgraded(reply: &[i64]) -> Result<(Option<u64>, Look), RedisError> {
    match *reply {
        [next_ms, -1] => Ok((None, next_look(next_ms))),
        [next_ms, token] if number(token).is_some() => Ok((number(token), next_look(next_ms))),
        _ => Err(unexpected(reply)),
    }
}

pub(crate) fn read_evicted(reply: &[i64]) -> Result<(usize, Look), RedisError> {
    match *reply {
        [next_ms, count] => {
            let count = usize::try_from(count).map_err(|_| unexpected(reply))?;
            Ok((count, next_look(next_ms)))
        }
        _ => Err(unexpected(reply)),
    }
}

/// When to look again, then one number for each request that was asked about.
fn read_each<T>(reply: &[i64], asked: usize, read: impl Fn(i64) -> Option<T>) -> Result<(Vec<T>, Look), RedisError> {
    let read = reply
        .split_first()
        .filter(|(_, each)| each.len() == asked)
        .and_then(|(next_ms, each)| {
            Some((
                each.iter().map(|n| read(*n)).collect::<Option<_>>()?,
                next_look(*next_ms),
            ))
        });
    read.ok_or_else(|| unexpected(reply))
}

/// A token, a ticket or the counter: microseconds since 1970 or a little more. Lua counts in doubles.
fn number(number: i64) -> Option<u64> {
    u64::try_from(number)
        .ok()
        .filter(|number| (1..=MOST_NUMBER).contains(number))
}

/// The largest number below which every one is a double: in the year 2255.
pub(crate) const MOST_NUMBER: u64 = 1 << 53;

fn policy_code(policy: Policy) -> &'static str {
    match policy {
        Policy::Fifo => "",
        Policy::WriterFirst => "w",
        Policy::ReaderFirst => "r",
    }
}

/// The stored policy, as the byte of its code.
fn policy_of(value: i64) -> Option<Policy> {
    match u8::try_from(value) {
        Ok(0) => Some(Policy::Fifo),
        Ok(b'w') => Some(Policy::WriterFirst),
        Ok(b'r') => Some(Policy::ReaderFirst),
        _ => None,
    }
}

fn millis(lease: Duration) -> u64 {
    // Leases are checked to be at most a year.
    lease.as_millis() as u64
}

/// No lease is longer than a year, so nothing a sane server says is cut; a time that is added to it must not overflow.
fn next_look(next_ms: i64) -> Look {
    let next_ms = u64::try_from(next_ms).ok()?;
    Some(Duration::from_millis(next_ms).min(MOST_LEASE))
}

pub(crate) fn numbers(reply: Value) -> Result<Vec<i64>, RedisError> {
    match &reply {
        Value::Array(items) => items
            .iter()
            .map(|item| match item {
                Value::Int(number) => Ok(*number),
                _ => Err(malformed(&reply)),
            })
            .collect(),
        _ => Err(malformed(&reply)),
    }
}

/// See *Versions* in PROTOCOL.md.
fn other_layout() -> RedisError {
    RedisError::from((
        ErrorKind::UnexpectedReturnType,
        "the lock is in use by another version of fairlock",
    ))
}

fn unexpected(reply: &[i64]) -> RedisError {
    malformed(&Value::Array(reply.iter().copied().map(Value::Int).collect()))
}

/// The requests and tokens of a message, and the key of their lock. `None`: it is not one of ours.
pub(crate) fn read_message(payload: &[u8]) -> Option<(Vec<(&str, u64)>, &str)> {
    let (grants, key) = std::str::from_utf8(payload).ok()?.split_once('\n')?;
    let mut words = grants.split(' ');
    let mut list = Vec::new();
    while let Some(request) = words.next() {
        let token = words.next()?.parse().ok().filter(|token| *token <= MOST_NUMBER)?;
        list.push((request, token));
    }
    Some((list, key))
}

/// The client and number in a request's name.
pub(crate) fn read_request(request: &str) -> Option<(&str, u64)> {
    let mut parts = request.strip_prefix(['r', 'w'])?.split(':');
    let client = parts.next().filter(|client| !client.is_empty())?;
    Some((client, parts.next()?.parse().ok()?))
}

/// Every script: its name, and its text with flags and without.
#[cfg(feature = "attack")]
pub(crate) fn all() -> [(&'static str, [&'static str; 2]); 6] {
    let texts = |script: &'static Script| [script.body[0].as_str(), script.body[1].as_str()];
    [
        ("acquire", texts(&ACQUIRE)),
        ("release", texts(&RELEASE)),
        ("renew", texts(&RENEW)),
        ("downgrade", texts(&DOWNGRADE)),
        ("evict", texts(&EVICT)),
        ("status", texts(&STATUS)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(version: &str) -> Value {
        let text = |s: &str| Value::BulkString(s.into());
        Value::Array(vec![text("server"), text("redis"), text("version"), text(version)])
    }

    #[test]
    fn servers_before_7_get_scripts_without_flags() {
        assert_eq!(Dialect::of_server(&hello("6.2.14")), Dialect::Plain);
        assert_eq!(Dialect::of_server(&hello("7.0.15")), Dialect::Flags);
        assert_eq!(Dialect::of_server(&hello("10.0.0")), Dialect::Flags);
        assert_eq!(Dialect::of_server(&Value::Nil), Dialect::Flags);
    }

    #[test]
    fn a_message_names_requests_tokens_and_the_key() {
        let message = b"w0a:7 1760400000123456 r0a:8 1760400000123457\nfairlock:{a b\n}";
        let (grants, key) = read_message(message).expect("well formed");
        assert_eq!(
            grants,
            [("w0a:7", 1_760_400_000_123_456), ("r0a:8", 1_760_400_000_123_457)]
        );
        assert_eq!(key, "fairlock:{a b\n}");
        assert_eq!(read_request("w0a:7:owner"), Some(("0a", 7)));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [&b""[..], b"x", b"\n", b"w0a:7\nkey", b"w0a:7 x\nkey", b"\xff\n"] {
            assert!(read_message(bytes).is_none(), "{bytes:?}");
        }
        for name in ["", "w", "w0a", "w0a:", "w0a:x", "ä:1"] {
            assert!(read_request(name).is_none(), "{name:?}");
        }
    }
}
