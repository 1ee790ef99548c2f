//! One server: what it is, what it lets its user do, and whether a lock works there.

use super::findings::Findings;
use crate::outcome::Failure;
use crate::rights::{Denied, Probe};
use crate::server::ServerArgs;
use crate::text::{count, safe, span};
use fairlock::redis::aio::MultiplexedConnection;
use fairlock::redis::{self, RedisError};
use fairlock::rights::Task;
use futures::StreamExt;
use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::timeout;

/// A slower median delays every hand-over by more than a network within one site does.
const SLOW: Duration = Duration::from_millis(20);
/// The time-out of the library's shortest calls, those of a lease of 300 ms or less.
const TOO_SLOW: Duration = Duration::from_millis(50);
pub(super) const CLOCKS_APART: Duration = Duration::from_secs(1);
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// What doctor knows of a server.
pub(super) struct Examined {
    pub(super) findings: Findings,
    /// The user may look at locks and not use them.
    pub(super) only_looks: bool,
    /// Empty: the user may not use INFO.
    pub(super) info: Info,
    /// The median of a call.
    pub(super) latency: Option<Duration>,
}

/// What a server is a part of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Of nothing, or the master of sentinels.
    Alone,
    /// A majority keeps its locks.
    OfQuorum,
    OfCluster,
}

/// Examines one server and uses a lock there. `whole`: what its users connect to.
pub(super) async fn examine(server: &ServerArgs, whole: &ServerArgs, part: Part) -> Result<Examined, Failure> {
    let mut redis = server.redis().await?;
    let probe = Probe::new(&server.prefix);
    let mut examined = look(server, &mut redis, &probe, part).await?;
    let (findings, only_looks) = (&mut examined.findings, examined.only_looks);
    messages(findings, server, &mut redis, &probe, only_looks).await?;
    lock(findings, whole, &probe, only_looks).await;
    probe.remove(&mut redis).await;
    Ok(examined)
}

/// Examines one server by itself.
pub(super) async fn look(
    server: &ServerArgs,
    redis: &mut MultiplexedConnection,
    probe: &Probe,
    part: Part,
) -> Result<Examined, Failure> {
    let mut findings = Findings::default();
    let info = match info(redis).await {
        Ok(info) => {
            kind(&mut findings, &info);
            role(&mut findings, &info);
            memory(&mut findings, &info);
            persistence(&mut findings, &info, part);
            info
        }
        Err(error) => {
            findings.unknown(
                "server",
                format!("INFO was refused: {error}"),
                "run doctor as a user that may use INFO; locks do not need it",
            );
            Info::new()
        }
    };
    let latency = latency(&mut findings, redis).await;
    clock(&mut findings, redis).await;
    let only_looks = rights(&mut findings, server, redis, probe, part).await?;
    Ok(Examined {
        findings,
        only_looks,
        info,
        latency,
    })
}

pub(super) type Info = HashMap<String, String>;

async fn info(redis: &mut MultiplexedConnection) -> Result<Info, RedisError> {
    let text: String = redis::cmd("INFO").query_async(redis).await?;
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    Ok(fields
        .map(|(field, value)| (field.to_owned(), value.trim().to_owned()))
        .collect())
}

pub(super) fn field<'a>(info: &'a Info, name: &str) -> &'a str {
    info.get(name).map_or("", String::as_str)
}

fn number(info: &Info, name: &str) -> u64 {
    field(info, name).parse().unwrap_or(0)
}

fn kind(findings: &mut Findings, info: &Info) {
    let compatible = field(info, "redis_version");
    let (name, version) = match (info.get("valkey_version"), info.get("dragonfly_version")) {
        (Some(version), _) => ("Valkey", version.as_str()),
        (_, Some(version)) => ("Dragonfly", version.as_str()),
        (None, None) => ("Redis", compatible),
    };
    let mut parts = compatible.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let (major, minor) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let text = format!("{name} {version}");
    if (major, minor) < (6, 2) {
        findings.wrong("server", text, "use Redis 6.2 or later, or Valkey");
    } else if name == "Dragonfly" {
        findings.note("server", text, "fairlock is tested with Redis and Valkey only");
    } else {
        findings.good("server", text);
    }
}

fn role(findings: &mut Findings, info: &Info) {
    let replicas = usize::try_from(number(info, "connected_slaves")).unwrap_or(0);
    match (field(info, "role"), replicas) {
        ("slave", _) => {
            let master = format!(
                "a replica of {}:{}",
                field(info, "master_host"),
                field(info, "master_port")
            );
            findings.wrong(
                "role",
                master,
                "connect to its master, or by its sentinels: redis+sentinel://HOST:PORT/MASTER",
            );
        }
        (_, 0) => findings.good("role", "master without replicas"),
        (_, n) => findings.note(
            "role",
            format!("master with {}", count(n, "replica", "replicas")),
            "replication is asynchronous: a failover can lose the last grants. Check fencing tokens where it matters",
        ),
    }
}

fn memory(findings: &mut Findings, info: &Info) {
    let policy = field(info, "maxmemory_policy");
    let (used, most) = (number(info, "used_memory"), number(info, "maxmemory"));
    let remedy =
        "CONFIG SET maxmemory-policy noeviction (and in its configuration), or a server of their own for locks";
    match (policy, most) {
        ("noeviction", _) => findings.good("eviction", "noeviction: the server drops no lock to make room"),
        ("", _) => findings.unknown(
            "eviction",
            "INFO does not say",
            "the maxmemory-policy should be noeviction",
        ),
        // Every key of a lock expires, so the volatile policies drop locks too.
        (policy, 0) => findings.note("eviction", format!("{policy}, harmless while maxmemory is 0"), remedy),
        (policy, _) => findings.wrong("eviction", format!("{policy} may drop locks that are held"), remedy),
    }
    if let Some(percent) = used.saturating_mul(100).checked_div(most) {
        let text = format!("{percent}% of maxmemory is used");
        match percent {
            0..90 => findings.good("memory", text),
            _ => findings.note(
                "memory",
                text,
                "raise maxmemory: without memory locks are refused (holds and releases work)",
            ),
        }
    }
}

fn persistence(findings: &mut Findings, info: &Info, part: Part) {
    if field(info, "loading") == "1" {
        findings.note(
            "data",
            "the server is loading its data",
            "wait until it has: until then it refuses",
        );
    }
    if field(info, "aof_enabled") != "1" && part == Part::OfQuorum {
        let text = "no append-only file, and none is needed: after a restart the server does not vote for a while";
        findings.good("persistence", text);
    } else if field(info, "aof_enabled") != "1" {
        let remedy = "CONFIG SET appendonly yes, if holds should survive a restart. Without it holders learn of \
                      the loss at their next renewal, and waiters queue again";
        findings.note(
            "persistence",
            "no append-only file: a restart empties the locks",
            remedy,
        );
    } else if field(info, "aof_last_write_status") == "err" {
        findings.wrong(
            "persistence",
            "the append-only file cannot be written",
            "look at the server's disk and log",
        );
    } else {
        findings.good("persistence", "append-only file");
    }
    // By default a server refuses writes after a failed snapshot, also with appendonly.
    if field(info, "rdb_last_bgsave_status") == "err" {
        let remedy =
            "look at the server's disk and log; with stop-writes-on-bgsave-error it refuses all writes meanwhile";
        findings.wrong("snapshots", "the last snapshot failed", remedy);
    }
}

async fn latency(findings: &mut Findings, redis: &mut MultiplexedConnection) -> Option<Duration> {
    let mut times = Vec::new();
    for _ in 0..20 {
        let begun = Instant::now();
        if let Err(error) = redis::cmd("PING").query_async::<redis::Value>(redis).await
            && error.is_io_error()
        {
            let remedy = "look at the network and at the server's load";
            findings.wrong("latency", format!("no answer: {error}"), remedy);
            return None;
        }
        times.push(begun.elapsed());
    }
    times.sort();
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    let text = format!(
        "median {}, longest {} of {} calls",
        fine(median),
        fine(most),
        times.len()
    );
    match (median > SLOW, most > TOO_SLOW) {
        (false, false) => findings.good("latency", text),
        (true, _) => findings.note("latency", text, "a server closer by makes every hand-over faster"),
        (false, true) => findings.note(
            "latency",
            text,
            "look for slow commands (SLOWLOG GET) and load; use no leases below 1 s",
        ),
    }
    Some(median)
}

pub(super) fn fine(time: Duration) -> String {
    match time.as_millis() {
        0 => format!("{}us", time.as_micros()),
        _ => span(time),
    }
}

async fn clock(findings: &mut Findings, redis: &mut MultiplexedConnection) {
    let before = SystemTime::now();
    let begun = Instant::now();
    let Ok((seconds, micros)) = redis::cmd("TIME").query_async::<(u64, u64)>(redis).await else {
        // The probe of the rights reports a missing right.
        return;
    };
    let took = begun.elapsed();
    let since_epoch = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
    let Some(theirs) = SystemTime::UNIX_EPOCH.checked_add(since_epoch) else {
        findings.wrong("clock", "the server's shows no date", "let it follow NTP");
        return;
    };
    let ours = before + took / 2;
    let (apart, ahead) = match theirs.duration_since(ours) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(behind) => (behind.duration(), "behind"),
    };
    let text = format!("the server's is {} {ahead} ours (+-{})", fine(apart), fine(took / 2));
    if apart > CLOCKS_APART + took {
        let remedy = "let both follow NTP. Leases go by the server's clock alone, but tokens continue by it when data \
                      are lost: it must not run behind what it was";
        findings.note("clock", text, remedy);
    } else {
        findings.good("clock", text);
    }
}

/// Returns whether the user may only look.
async fn rights(
    findings: &mut Findings,
    server: &ServerArgs,
    redis: &mut MultiplexedConnection,
    probe: &Probe,
    part: Part,
) -> Result<bool, Failure> {
    let user = safe(&server.user());
    let denied = probe.denied(&server.prefix, redis).await;
    let denied = denied.map_err(|error| server.refused("cannot try what its user may do", &error))?;
    let only_looks = denied.only_looks();
    if only_looks {
        let remedy =
            "that is right for an operator who only reads; services need the rules of `service` in SECURITY.md";
        findings.note(
            "rights",
            format!("user {user} may look at locks and cannot use them"),
            remedy,
        );
    } else if denied.needed().is_empty() {
        findings.good("rights", format!("user {user} has all that locks need"));
    } else {
        let rules = denied.needed().join(" ");
        let remedy = format!("ACL SETUSER {user} {rules}");
        findings.wrong("rights", format!("user {user} lacks {rules}"), &remedy);
    }
    // By these a client of a quorum notices that the server has restarted.
    let restarts = denied.further(Task::Quarantine).join(" ");
    // A user who only looks finds the locks of a cluster by some of these.
    let nodes = denied.further(Task::Cluster).join(" ");
    for (whole, needs, rules) in [
        (Part::OfQuorum, "a quorum", restarts),
        (Part::OfCluster, "a cluster", nodes),
    ] {
        if part == whole && !only_looks && !rules.is_empty() {
            let remedy = format!("ACL SETUSER {user} {rules}");
            let text = format!("user {user} lacks {rules}, which {needs} needs");
            findings.wrong("rights", text, &remedy);
        }
    }
    for (task, what) in [
        (Task::Introduce, "a label, by which status names it"),
        (Task::Unheard, "what hands on past dead waiters within a second"),
        (Task::Status, "the status of locks"),
        (Task::Events, "streams of events, and `watch`"),
        (Task::Find, "`ls`, `top` and `blockers`"),
        (Task::Evict, "`evict`"),
    ] {
        // A user who may only look is not meant to evict, and grants nothing.
        let rules = denied.further(task).join(" ");
        if rules.is_empty() || only_looks && matches!(task, Task::Evict | Task::Unheard) {
            continue;
        }
        let remedy = format!("if it should: ACL SETUSER {user} {rules}");
        findings.note("rights", format!("user {user} may not use {what}"), &remedy);
    }
    functions(findings, &user, &denied);
    Ok(only_looks)
}

/// How the clients of this user call the scripts.
fn functions(findings: &mut Findings, user: &str, denied: &Denied) {
    let rules = denied.further(Task::Functions).join(" ");
    if denied.has_no_functions {
        let text = "calls are EVALSHA: the server has no functions";
        findings.note(
            "functions",
            text,
            "Redis 7, or Valkey, spends about half of the time on a call",
        );
    } else if rules.is_empty() {
        findings.good("functions", "calls are FCALL");
    } else {
        let text = format!("calls are EVALSHA: user {user} may not load or call functions");
        let remedy = format!("to halve what a call costs the server: ACL SETUSER {user} {rules}");
        findings.note("functions", text, &remedy);
    }
}

/// Sends a message to this process, by the way of a grant.
async fn messages(
    findings: &mut Findings,
    server: &ServerArgs,
    redis: &mut MultiplexedConnection,
    probe: &Probe,
    only_looks: bool,
) -> Result<(), Failure> {
    let client = server.redis_client()?;
    let prefix = safe(&server.prefix);
    let remedy = format!("let the user run +subscribe +publish on &{prefix}:*");
    // A rule allows a pattern of channels only if both are the same, letter for letter.
    let pattern = format!("{}:{{*}}:events", server.prefix);
    let trip = async {
        let mut ears = client.get_async_pubsub().await?;
        ears.subscribe(&probe.channel).await?;
        let begun = Instant::now();
        if !only_looks {
            let mut publish = redis::cmd("PUBLISH");
            publish.arg(&probe.channel).arg("doctor");
            publish.query_async::<u64>(redis).await?;
            ears.on_message().next().await;
        }
        let took = begun.elapsed();
        Ok::<_, RedisError>((took, ears.psubscribe(&pattern).await))
    };
    match timeout(PATIENCE, trip).await {
        Ok(Ok((took, all_events))) => {
            match only_looks {
                false => findings.good("pub/sub", format!("a message came after {}", fine(took))),
                true => findings.good("pub/sub", "the user may subscribe"),
            }
            if let Err(error) = all_events {
                let remedy = format!("+psubscribe &{}, if it is to watch all locks at once", safe(&pattern));
                findings.note("events", format!("it cannot subscribe to {pattern}: {error}"), &remedy);
            }
        }
        Ok(Err(error)) => findings.wrong("pub/sub", error.to_string(), &remedy),
        Err(_) => findings.wrong("pub/sub", format!("no message came within {}", span(PATIENCE)), &remedy),
    }
    Ok(())
}

/// Uses a lock as its users do.
async fn lock(findings: &mut Findings, server: &ServerArgs, probe: &Probe, only_looks: bool) {
    let remedy = "mend what is wrong above";
    let client = match server.client().await {
        Ok(client) => client,
        Err(failure) => return findings.wrong("lock", failure.message, remedy),
    };
    let begun = Instant::now();
    let used = async {
        let lock = client.rw_lock(probe.name());
        if only_looks {
            return lock.status().await.map(drop);
        }
        let guard = lock.write().acquire_fair().await?;
        lock.status().await?;
        guard.release().await
    };
    match used.await {
        Ok(()) => {
            let done = if only_looks {
                "looked at"
            } else {
                "acquired, looked at and released"
            };
            findings.good("lock", format!("{done} in {}", fine(begun.elapsed())));
        }
        Err(error) => findings.wrong("lock", error.to_string(), remedy),
    }
    client.shutdown().await;
}
