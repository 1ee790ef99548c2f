//! The one list of the rights that users of the server need, as rules of its ACL.
//!
//! SECURITY.md, docs/tuning.md, the remedies of errors and `fairlock doctor` name the same rights. Tests compare each
//! of them with this list, and run everything as users with exactly these rules.

/// A part of the work with locks. A right that several parts need is listed in the first one, and again in a part that
/// needs it although the first one can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Task {
    /// What every client does to connect.
    Connect,
    /// To introduce the client, for status. A client works without this.
    Introduce,
    /// To read the state of a lock.
    Look,
    /// To acquire, renew and release.
    Lock,
    /// To hand on within a second what dead waiters are granted, and to notice that calls and subscription lead to
    /// different servers. A client works without this: each dead waiter then costs its lease.
    Unheard,
    /// [`RwLock::status`](crate::RwLock::status), and [`Client::client_info`](crate::Client::client_info).
    Status,
    /// Streams of events.
    Events,
    /// [`Client::locks`](crate::Client::locks), and so the commands `ls`, `top` and `blockers`, which search all keys for locks.
    Find,
    /// The command `doctor`, which reads the server's settings.
    Inspect,
    /// [`RwLock::evict`](crate::RwLock::evict).
    Evict,
    /// [`ClientBuilder::quarantine`](crate::ClientBuilder::quarantine).
    Quarantine,
    /// To call the scripts as functions, which costs the server less. A client works without this. Redis 6 knows neither
    /// command.
    Functions,
    /// `wait_for_replicas`.
    Replicas,
    /// `wait_for_disks`.
    Disks,
    /// All work in a cluster.
    Cluster,
    /// All work with Sentinel.
    Sentinel,
}

impl Task {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::Connect,
        Self::Introduce,
        Self::Look,
        Self::Lock,
        Self::Unheard,
        Self::Status,
        Self::Events,
        Self::Find,
        Self::Inspect,
        Self::Evict,
        Self::Quarantine,
        Self::Functions,
        Self::Replicas,
        Self::Disks,
        Self::Cluster,
        Self::Sentinel,
    ];

    /// Returns the commands that the task needs.
    pub fn commands(self) -> &'static [&'static str] {
        match self {
            Self::Connect => &["ping", "client|setname", "eval", "evalsha", "subscribe"],
            Self::Introduce => &["set"],
            Self::Look => &["hget", "hmget", "exists", "time", "zcard", "zrange", "zscore", "zrank"],
            Self::Lock => &[
                "hset",
                "hdel",
                "hincrby",
                "del",
                "pexpireat",
                "zadd",
                "zrem",
                "zremrangebyrank",
                "zrangebyscore",
                "zmscore",
                "publish",
            ],
            Self::Unheard => &["info", "pubsub|numsub"],
            Self::Status => &["zdiff", "mget", "get"],
            Self::Events => &[
                "unsubscribe",
                "psubscribe",
                "punsubscribe",
                "zadd",
                "zremrangebyscore",
                "expire",
            ],
            Self::Find => &["scan"],
            Self::Inspect => &["info"],
            Self::Evict => &["zscan"],
            Self::Quarantine => &["info", "get", "set"],
            Self::Functions => &["fcall", "function|load"],
            Self::Replicas => &["wait"],
            Self::Disks => &["waitaof"],
            Self::Cluster => &[
                "cluster|slots",
                "cluster|info",
                "asking",
                "spublish",
                "ssubscribe",
                "sunsubscribe",
                "pubsub|shardnumsub",
            ],
            Self::Sentinel => &["role"],
        }
    }
}

/// A user of the server, as SECURITY.md describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Acquires, releases, reads status and events.
    Service,
    /// Reads status and events, and can change no lock.
    Reader,
    /// Does the work of a service, finds locks and evicts.
    Evictor,
}

impl Role {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Service, Self::Reader, Self::Evictor];

    /// Returns the user's name in SECURITY.md.
    pub fn name(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Reader => "reader",
            Self::Evictor => "evictor",
        }
    }

    fn tasks(self) -> &'static [Task] {
        use Task::{Connect, Events, Evict, Find, Inspect, Introduce, Lock, Look, Status, Unheard};
        match self {
            Self::Service => &[Connect, Introduce, Look, Lock, Unheard, Status, Events],
            Self::Reader => &[Connect, Introduce, Look, Status, Events, Find, Inspect],
            Self::Evictor => &[Connect, Introduce, Look, Lock, Unheard, Status, Events, Find, Evict],
        }
    }

    /// Returns the rules, each a word, as `ACL SETUSER` takes them after `resetkeys resetchannels -@all`.
    pub fn rules(self, prefix: &str) -> Vec<String> {
        // A reader writes its introduction, and the announcement that it listens.
        let elsewhere: &[_] = match self {
            Self::Reader => &["set", "zadd", "zremrangebyscore", "expire"],
            Self::Service | Self::Evictor => &[],
        };
        let commands = self.tasks().iter().flat_map(|task| task.commands());
        let commands = commands.filter(|command| !elsewhere.contains(command));
        let mut rules: Vec<String> = Vec::new();
        for rule in commands.map(|command| format!("+{command}")) {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        rules.push(format!("~{prefix}:*"));
        rules.push(format!("&{prefix}:*"));
        // An ACL needs patterns of channels letter by letter.
        rules.push(format!("&{prefix}:{{*}}:events"));
        if self == Self::Reader {
            let writes = format!(
                "( +set +del ~{prefix}:client:* ) ( +zadd +zremrangebyscore +expire ~{prefix}:listen* ) ( +publish &{prefix}:listen )"
            );
            rules.extend(writes.split(' ').map(str::to_owned));
        }
        rules
    }
}

/// Broad rights in a few words: enough for everything on one server, except the options.
macro_rules! broad {
    () => {
        "+@connection +@scripting +@pubsub +@hash +@sortedset +@string +exists +expire +pexpireat +del +time"
    };
}
/// Further rights that some of the work needs. `+waitaof` is unknown before Redis 7.2.
macro_rules! besides {
    () => {
        "a quarantine and a quick hand-over past dead waiters need +info besides, wait_for_replicas +wait, wait_for_disks +waitaof, a search for locks (ls, top, \
         serve and blockers too) +scan, a cluster +cluster|slots +cluster|info, Sentinel +role"
    };
}
pub(crate) use {besides, broad};
