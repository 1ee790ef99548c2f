//! One function per Lua file. The only place that knows KEYS, ARGV and replies; `design.md` has the contracts.

mod read;
mod snapshot;

use read::Look;
pub(crate) use read::{
    Acquired, MOST_NUMBER, numbers, read_downgraded, read_evicted, read_message, read_name, read_released,
    read_renewed, read_request,
};
pub(crate) use snapshot::Snapshot;

use crate::claim::Standing;
use crate::error::{is_refusal, runtime_ended};
#[cfg(feature = "cluster")]
use crate::key;
use crate::key::Lock;
use crate::link::{How, Lane, Sending};
use crate::replication::{Reached, Replication};
use crate::requests::Requests;
use crate::route::Route;
use crate::rw_lock::Policy;
use crate::wire::malformed;
use redis::{Arg, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
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
    /// Of a server of that version.
    pub(crate) fn of(version: &str) -> Self {
        match version.split('.').next().and_then(|major| major.parse::<u32>().ok()) {
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

pub(crate) struct Script {
    /// Its bit in [`Known`].
    bit: u8,
    /// Its last argument is the rest of the server's quarantine, if there is one.
    is_told_of_quarantine: bool,
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

const NAMES: [&str; 6] = ["acquire", "release", "renew", "downgrade", "evict", "status"];

macro_rules! script {
    ($name:literal, $flags:literal, $($file:literal),+) => {
        LazyLock::new(|| {
            let body = concat!($(include_str!(concat!("../lua/", $file))),+);
            #[cfg(feature = "attack")]
            let body = &crate::attack::transformed($name, body);
            Script::new($name, $flags, body)
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
    pub(crate) requests: &'a Requests,
    pub(crate) channel: &'a Channel,
    pub(crate) lock: &'a Lock,
    pub(crate) limit: Duration,
    /// How long it may wait for being sent: at least as long.
    pub(crate) patience: Duration,
    /// Somebody listens to events of this lock.
    pub(crate) listened: bool,
    /// It was sent, or was about to be.
    pub(crate) sent: AtomicBool,
}

/// The scripts that a server has been sent over a connection. The first call of each carries its text, and the server
/// executes the calls of a connection in order, so no later one is refused and sent again out of its turn.
#[derive(Debug, Default)]
pub(crate) struct Known(AtomicU8);

impl Known {
    fn knows(&self, script: &Script) -> bool {
        self.0.load(Ordering::Relaxed) & script.bit != 0
    }

    /// A call with that script's text is on its way.
    pub(crate) fn learn(&self, script: u8) {
        self.0.fetch_or(script, Ordering::Relaxed);
    }

    /// A call failed, which `taught` its script: the server may not have it.
    pub(crate) fn doubt(&self, script: Option<u8>, taught: bool, error: &RedisError) {
        if let Some(script) = script.filter(|_| taught || is_unknown_script(error)) {
            self.0.fetch_and(!script, Ordering::Relaxed);
        }
    }
}

/// A command that is made for the server at hand, since servers differ.
pub(crate) struct Order<'a> {
    head: Head,
    /// All further arguments, but for the rest of a quarantine.
    args: &'a (dyn Fn(&mut Cmd) + Sync),
    /// It was sent, or was about to be.
    pub(crate) sent: &'a AtomicBool,
}

#[derive(Clone, Copy)]
struct Head {
    /// `None`: it is a command of the server's own, named by its arguments.
    script: Option<&'static Script>,
    /// With the script's text, whatever the server is thought to know.
    whole: bool,
}

/// An [`Order`] that has to wait for its server.
pub(crate) struct Draft {
    head: Head,
    args: Cmd,
}

pub(crate) struct Made {
    pub(crate) command: Cmd,
    /// It carries the text of that script.
    pub(crate) teaches: Option<u8>,
}

impl<'a> Order<'a> {
    /// A command of the server's own.
    pub(crate) fn plain(args: &'a (dyn Fn(&mut Cmd) + Sync), sent: &'a AtomicBool) -> Self {
        let head = Head {
            script: None,
            whole: false,
        };
        Self { head, args, sent }
    }

    /// Whether its call carries the text of its script.
    pub(crate) fn teaches(&self, known: &Known) -> bool {
        self.head.teaches(known).is_some()
    }

    pub(crate) fn make(&self, peer: Peer, known: &Known) -> Made {
        self.sent.store(true, Ordering::Relaxed);
        self.head.make(peer, known, |cmd| (self.args)(cmd))
    }

    pub(crate) fn draft(&self) -> Draft {
        let mut args = Cmd::new();
        (self.args)(&mut args);
        Draft { head: self.head, args }
    }

    pub(crate) fn script(&self) -> Option<u8> {
        self.head.script.map(|script| script.bit)
    }
}

impl Draft {
    pub(crate) fn make(&self, peer: Peer, known: &Known) -> Made {
        self.head.make(peer, known, |cmd| {
            for arg in self.args.args_iter() {
                // Ours have no cursors.
                if let Arg::Simple(arg) = arg {
                    cmd.arg(arg);
                }
            }
        })
    }

    pub(crate) fn script(&self) -> Option<u8> {
        self.head.script.map(|script| script.bit)
    }
}

impl Head {
    fn teaches(&self, known: &Known) -> Option<u8> {
        let script = self.script.filter(|script| self.whole || !known.knows(script))?;
        Some(script.bit)
    }

    fn make(&self, peer: Peer, known: &Known, add: impl FnOnce(&mut Cmd)) -> Made {
        let mut command = Cmd::with_capacity(16, 256);
        let teaches = self.teaches(known);
        if let Some(script) = self.script {
            if teaches.is_some() {
                command.arg("EVAL").arg(script.body(peer.dialect));
            } else {
                command.arg("EVALSHA").arg(script.hash(peer.dialect));
            }
            command.arg(3);
        }
        add(&mut command);
        if self.script.is_some_and(|script| script.is_told_of_quarantine)
            && let Some(left) = peer.quarantine_left()
        {
            command.arg(millis(left));
        }
        Made { command, teaches }
    }
}

impl Call<'_> {
    async fn run(
        &self,
        lane: Lane,
        script: &'static Script,
        args: impl Fn(&mut Cmd) + Sync,
    ) -> Result<Vec<i64>, RedisError> {
        numbers(self.reply(lane, script, args).await?)
    }

    async fn reply(
        &self,
        lane: Lane,
        script: &'static Script,
        args: impl Fn(&mut Cmd) + Sync,
    ) -> Result<Value, RedisError> {
        if self.requests.has_ended() {
            return Err(runtime_ended());
        }
        let args = |cmd: &mut Cmd| {
            self.begin(cmd);
            args(cmd);
        };
        let how = How {
            lane,
            limit: self.limit,
            patience: self.patience,
            sending: Sending::Plainly,
        };
        let key = &self.lock.state;
        match self.route.call(how, key, &self.order(script, &args, false)).await {
            Err(_) if self.requests.has_ended() => Err(runtime_ended()),
            // The server restarted or its cache was flushed. EVAL fills it again, on this server only.
            Err(error) if is_unknown_script(&error) => {
                self.route.call(how, key, &self.order(script, &args, true)).await
            }
            other => other,
        }
    }

    fn order<'a>(&'a self, script: &'static Script, args: &'a (dyn Fn(&mut Cmd) + Sync), whole: bool) -> Order<'a> {
        let head = Head {
            script: Some(script),
            whole,
        };
        Order {
            head,
            args,
            sent: &self.sent,
        }
    }

    /// Whether it may have been executed, after that error.
    pub(crate) fn may_be_done(&self, error: &RedisError) -> bool {
        self.sent.load(Ordering::Relaxed) && !is_refusal(error)
    }

    /// The arguments that all scripts have.
    fn begin(&self, cmd: &mut Cmd) {
        cmd.arg(&*self.lock.state).arg(&self.lock.queue).arg(&self.lock.leases);
        self.channel.add_to(cmd, self.lock, self.listened);
    }

    pub(crate) async fn acquire(&self, ask: &Ask<'_>) -> Result<Acquired, RedisError> {
        let reply = self.run(Lane::Users, &ACQUIRE, |cmd| {
            cmd.arg(ask.request).arg(millis(ask.lease));
            cmd.arg(if ask.only_now { "try" } else { "queue" })
                .arg(policy_code(ask.policy));
            match ask.ticket {
                Some(ticket) => cmd.arg(ticket),
                None => cmd.arg(""),
            };
        });
        Acquired::read(&reply.await?, ask.only_now)
    }

    /// At most [`CHUNK`] requests. Says how each stood until then, and when to look again.
    pub(crate) async fn release(&self, requests: &[&str]) -> Result<(Vec<Standing>, Look), RedisError> {
        let reply = self.run(Lane::Users, &RELEASE, |cmd| {
            for request in requests {
                cmd.arg(request);
            }
        });
        read_released(&reply.await?, requests.len())
    }

    /// At most [`CHUNK`] requests, each with its lease. Says how each stands, and when to look again.
    pub(crate) async fn renew(&self, requests: &[(&str, Duration)]) -> Result<(Vec<Standing>, Look), RedisError> {
        let reply = self.run(Lane::Background, &RENEW, |cmd| {
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
    ) -> Result<(Standing, Reached), RedisError> {
        let args = |cmd: &mut Cmd| {
            self.begin(cmd);
            // A millisecond more, so that it writes: WAIT is about what its connection wrote last.
            cmd.arg(request).arg(millis(lease) + 1);
        };
        if self.requests.has_ended() {
            return Err(runtime_ended());
        }
        let key = &self.lock.state;
        let renew = |whole| self.order(&RENEW, &args, whole);
        let (renewed, reached) = match self.route.confirm(self.limit, key, wish, &renew(false)).await {
            Err(_) if self.requests.has_ended() => return Err(runtime_ended()),
            Err(error) if is_unknown_script(&error) => self.route.confirm(self.limit, key, wish, &renew(true)).await?,
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
        let reply = self.run(Lane::Users, &DOWNGRADE, |cmd| {
            cmd.arg(from).arg(to).arg(millis(lease));
        });
        read_downgraded(&reply.await?)
    }

    /// How many requests of the owner were thrown out, and when to look again.
    pub(crate) async fn evict(&self, owner: &str) -> Result<(usize, Look), RedisError> {
        let reply = self.run(Lane::Users, &EVICT, |cmd| {
            cmd.arg(owner);
        });
        read_evicted(&reply.await?)
    }

    pub(crate) async fn status(&self, first: usize, most: usize) -> Result<Snapshot, RedisError> {
        let reply = self.reply(Lane::Users, &STATUS, |cmd| {
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

/// The arguments of acquire.
pub(crate) struct Ask<'a> {
    pub(crate) request: &'a str,
    pub(crate) lease: Duration,
    pub(crate) only_now: bool,
    pub(crate) policy: Policy,
    pub(crate) ticket: Option<u64>,
}

fn policy_code(policy: Policy) -> &'static str {
    match policy {
        Policy::Fifo => "",
        Policy::WriterFirst => "w",
        Policy::ReaderFirst => "r",
    }
}

fn millis(lease: Duration) -> u64 {
    // Leases are checked to be at most a year.
    lease.as_millis() as u64
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
    use super::Dialect;

    #[test]
    fn servers_before_7_get_scripts_without_flags() {
        assert_eq!(Dialect::of("6.2.14"), Dialect::Plain);
        assert_eq!(Dialect::of("7.0.15"), Dialect::Flags);
        assert_eq!(Dialect::of("10.0.0"), Dialect::Flags);
        assert_eq!(Dialect::of(""), Dialect::Flags);
    }
}
