//! The servers of a quorum: each one, and what only all of them together show.

use super::findings::{Findings, Level};
use super::server::{self, CLOCKS_APART, Examined, Info, PATIENCE, Part, field, fine};
use super::{end, fit_for, in_short, status};
use crate::args::OutputArgs;
use crate::json;
use crate::outcome::{Failure, Outcome, say};
use crate::quorum::{Servers, Stamp, first_line, stamp};
use crate::rights::Probe;
use crate::server::ServerArgs;
use crate::text::{count, safe, span};
use fairlock::redis::{self, ConnectionAddr};
use futures::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// For a longer time a restarted server should not be without a vote.
const LONG: Duration = Duration::from_secs(300);

/// What doctor knows of one server of the set.
struct Member {
    shown: String,
    host: String,
    examined: Examined,
    stamp: Option<Stamp>,
    /// Which run of the server the quorum's clients know, and since when (ms), by its clock.
    known: Option<(String, u64)>,
    clock: Option<Clock>,
}

/// A server's clock, ahead of ours by that many microseconds, give or take.
#[derive(Clone, Copy)]
struct Clock {
    now_ms: u64,
    ahead_us: i128,
    uncertain: Duration,
}

pub(super) async fn run(servers: &Servers, args: &OutputArgs) -> Outcome {
    let members = join_all(servers.each.iter().map(member)).await;
    let mut set = Findings::default();
    let known: Vec<&Member> = members.iter().flatten().collect();
    answers(&mut set, servers, known.len());
    independence(&mut set, servers, &known);
    let stamp = agreement(&mut set, servers, &known);
    let votes = stamp.as_ref().map(|stamp| voting(&mut set, servers, &known, stamp));
    clocks(&mut set, &known, stamp.as_ref());
    versions(&mut set, &known);
    latency(&mut set, servers, &known);
    let only_looks = known.iter().any(|member| member.examined.only_looks);
    let is_sound = set.number(Level::Wrong) == 0 && votes.is_some_and(|votes| votes >= servers.majority());
    if is_sound && !only_looks {
        lock(&mut set, servers).await;
    }
    let of_servers: usize = known
        .iter()
        .map(|member| member.examined.findings.number(Level::Wrong))
        .sum();
    let wrong = set.number(Level::Wrong) + of_servers;
    if args.json {
        let of_server = |(server, member): (&ServerArgs, &Result<Member, Failure>)| match member {
            Ok(member) => json!({"server": server.shown(), "findings": member.examined.findings.described()}),
            Err(failure) => json!({"server": server.shown(), "error": first_line(failure)}),
        };
        json::document(&json!({
            "quorum": stamp.map(|stamp| stamp.name),
            "wrong": wrong,
            "fit_for": fit_for(wrong, only_looks),
            "servers": servers.each.iter().zip(&members).map(of_server).collect::<Value>(),
            "findings": set.described(),
        }))?;
    } else {
        let mut report = String::new();
        for (server, member) in servers.each.iter().zip(&members) {
            let findings = member.as_ref().map(|member| &member.examined.findings);
            report += &format!("{}\n{}\n", safe(&server.shown()), in_short(findings));
        }
        let looker = only_looks.then(|| servers.each[0].user());
        report += &format!("All servers\n{}{}\n", Findings::report(&set.0), end(wrong, looker));
        say(&report)?;
    }
    Ok(status(wrong))
}

async fn member(server: &ServerArgs) -> Result<Member, Failure> {
    let examined = server::examine(server, server, Part::OfQuorum).await?;
    let mut redis = server.redis().await?;
    let (before, begun) = (SystemTime::now(), Instant::now());
    let time = redis::cmd("TIME").query_async::<(u64, u64)>(&mut redis).await.ok();
    let half = begun.elapsed() / 2;
    let clock = time.map(|(seconds, micros)| {
        let since_epoch = (before + half).duration_since(SystemTime::UNIX_EPOCH);
        let ours = since_epoch.map_or(0, |time| time.as_micros() as i128);
        Clock {
            now_ms: seconds.saturating_mul(1000).saturating_add(micros / 1000),
            ahead_us: i128::from(seconds) * 1_000_000 + i128::from(micros) - ours,
            uncertain: half,
        }
    });
    let mut get = redis::cmd("GET");
    get.arg(format!("{}:life", server.prefix));
    let known = get.query_async::<Option<String>>(&mut redis).await.ok().flatten();
    let known = known.and_then(|known| {
        let (run, since) = known.split_once(' ')?;
        Some((run.to_owned(), since.parse().ok()?))
    });
    let host = match server.redis_client()?.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => "this host".to_owned(),
    };
    Ok(Member {
        shown: server.shown(),
        host,
        examined,
        // A user without the right is told so above.
        stamp: stamp(server).await.unwrap_or_default(),
        known,
        clock,
    })
}

fn answers(set: &mut Findings, servers: &Servers, answers: usize) {
    let text = format!("{answers} of {} servers answer", servers.each.len());
    let remedy = "start those that do not answer: the command and the library go on without them meanwhile";
    match answers.checked_sub(servers.majority()) {
        None => set.wrong("answer", format!("{text}, and no lock works"), remedy),
        Some(_) if answers == servers.each.len() => set.good("answer", text),
        Some(spare) => {
            let further = count(spare + 1, "more fails", "more fail");
            set.wrong("answer", format!("{text}: no lock works if {further}"), remedy);
        }
    }
}

/// Names that have the same value of a field, and that value.
fn same(members: &[&Member], value: impl Fn(&Member) -> String) -> Vec<(String, Vec<String>)> {
    let mut by_value: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for member in members {
        by_value.entry(value(member)).or_default().push(member.shown.clone());
    }
    by_value.retain(|value, names| !value.is_empty() && names.len() > 1);
    by_value.into_iter().collect()
}

fn independence(set: &mut Findings, servers: &Servers, members: &[&Member]) {
    let info = |name: &'static str| move |member: &Member| field(&member.examined.info, name).to_owned();
    let before = set.0.len();
    for (_, names) in same(members, info("run_id")) {
        let text = format!("{} are one server, whose vote would count twice", names.join(" and "));
        set.wrong("independent", text, "name each server once");
    }
    // A replica has its master's replication id.
    for (_, names) in same(members, info("master_replid")) {
        let is_one_server = same(members, info("run_id")).iter().any(|(_, one)| *one == names);
        if !is_one_server {
            let text = format!("{} replicate one another: they are lost together", names.join(" and "));
            set.wrong("independent", text, "use masters that know nothing of each other");
        }
    }
    for (host, names) in same(members, |member| member.host.clone()) {
        if servers.each.len() - names.len() < servers.majority() {
            let text = format!(
                "{} are on {host}, and no lock works without it",
                count(names.len(), "server", "servers")
            );
            set.note(
                "independent",
                text,
                "use several machines, with power and networks of their own",
            );
        }
    }
    if members.iter().any(|member| member.examined.info.is_empty()) {
        let remedy = "run doctor as a user that may use INFO";
        set.unknown("independent", "INFO was refused", remedy);
    } else if set.0.len() == before {
        set.good(
            "independent",
            "each is a server of its own, and none replicates another one",
        );
    }
}

/// What the clients of these servers agree on.
fn agreement(set: &mut Findings, servers: &Servers, members: &[&Member]) -> Option<Stamp> {
    let mut stamps: Vec<&Stamp> = members.iter().filter_map(|member| member.stamp.as_ref()).collect();
    stamps.dedup();
    let text = |stamp: &Stamp| {
        let longest = span(stamp.longest_lease);
        format!("{} of {}, longest lease {longest}", stamp.name, stamp.servers)
    };
    let prefix = safe(&servers.each[0].prefix);
    let mend = format!("name all its servers; or stop all clients for a lease and delete {prefix}:quorum everywhere");
    let Some(stamp) = stamps.first().map(|stamp| (*stamp).clone()) else {
        let remedy = "its first client names it: Quorum::builder, or fairlock run with --quorum";
        set.note("quorum", "the servers belong to no quorum yet", remedy);
        return None;
    };
    if stamps.iter().any(|other| **other != stamp) {
        let all: Vec<_> = stamps.iter().map(|stamp| text(stamp)).collect();
        set.wrong(
            "quorum",
            format!("the servers belong to several quorums: {}", all.join("; ")),
            &mend,
        );
    } else if stamp.servers != servers.each.len() {
        let named = count(servers.each.len(), "server is", "servers are");
        set.wrong("quorum", format!("{}, and {named} named", text(&stamp)), &mend);
    } else if servers.contradicts(&stamp) {
        let remedy = "give --quorum and --longest-lease as the servers keep them, or leave both out";
        set.wrong("quorum", text(&stamp), remedy);
    } else {
        set.good("quorum", text(&stamp));
    }
    let missing: Vec<_> = members.iter().filter(|member| member.stamp.is_none()).collect();
    for member in missing {
        let remedy = "the next client brings it in, and it votes after the longest lease";
        set.note("quorum", format!("{} belongs to no quorum yet", member.shown), remedy);
    }
    if stamp.longest_lease > LONG {
        let longest = span(stamp.longest_lease);
        let text = format!("a server that restarts is without a vote for {longest}");
        set.note(
            "quarantine",
            text,
            "choose a longest lease as short as your leases allow, the same in all clients",
        );
    }
    Some(stamp)
}

/// Returns how many servers vote now.
fn voting(set: &mut Findings, servers: &Servers, members: &[&Member], stamp: &Stamp) -> usize {
    // `None`: no client has been there since it started.
    let left = |member: &Member| {
        let run = field(&member.examined.info, "run_id");
        let (known, since) = member.known.as_ref()?;
        let now = member.clock?.now_ms;
        let age = Duration::from_millis(now.saturating_sub(*since));
        (known == run || run.is_empty()).then(|| stamp.longest_lease.saturating_sub(age))
    };
    let mut late = Vec::new();
    for member in members {
        match left(member) {
            Some(Duration::ZERO) => {}
            Some(left) => late.push(format!("{} votes in {}", member.shown, span(left))),
            None => late.push(format!(
                "{} votes {} after its first client",
                member.shown,
                span(stamp.longest_lease)
            )),
        }
    }
    let votes = members.len() - late.len();
    let text = format!("{votes} of {} servers vote", servers.each.len());
    let text = match late.is_empty() {
        true => text,
        false => format!("{text}; {}", late.join(", ")),
    };
    let remedy = "wait: a server that is new, or lost its data, may have forgotten holds. Their leases end meanwhile";
    match (late.is_empty(), votes >= servers.majority()) {
        (true, _) => set.good("voting", text),
        (false, true) => set.note("voting", text, remedy),
        (false, false) => set.wrong("voting", text, remedy),
    }
    votes
}

fn clocks(set: &mut Findings, members: &[&Member], stamp: Option<&Stamp>) {
    let clocks: Vec<Clock> = members.iter().filter_map(|member| member.clock).collect();
    let by_ahead = |clock: &&Clock| clock.ahead_us;
    let (Some(first), Some(last)) = (clocks.iter().min_by_key(by_ahead), clocks.iter().max_by_key(by_ahead)) else {
        return;
    };
    let apart = u64::try_from(last.ahead_us - first.ahead_us).unwrap_or(u64::MAX);
    let (apart, uncertain) = (Duration::from_micros(apart), first.uncertain + last.uncertain);
    let text = format!("at most {} apart (+-{})", fine(apart), fine(uncertain));
    let remedy = "let all follow NTP, and slew. Tokens continue by the clock when data are lost";
    let longest = stamp.map(|stamp| stamp.longest_lease);
    if longest.is_some_and(|longest| apart >= longest + uncertain) {
        let text = format!("{text}: clients refuse clocks that are a longest lease apart");
        set.wrong("clocks", text, remedy);
    } else if apart > CLOCKS_APART + uncertain {
        set.note("clocks", text, remedy);
    } else {
        set.good("clocks", text);
    }
}

fn versions(set: &mut Findings, members: &[&Member]) {
    let of = |info: &Info| match info.get("valkey_version") {
        Some(version) => format!("Valkey {version}"),
        None => format!("Redis {}", field(info, "redis_version")),
    };
    let known = members.iter().filter(|member| !member.examined.info.is_empty());
    let mut versions: Vec<_> = known.map(|member| of(&member.examined.info)).collect();
    versions.sort();
    versions.dedup();
    match versions.as_slice() {
        [] => {}
        [version] => set.good("versions", format!("all are {version}")),
        several => set.good(
            "versions",
            format!("{}: each server votes by itself", several.join(", ")),
        ),
    }
}

fn latency(set: &mut Findings, servers: &Servers, members: &[&Member]) {
    let mut medians: Vec<_> = members.iter().filter_map(|member| member.examined.latency).collect();
    medians.sort_unstable();
    if let Some(median) = medians.get(servers.majority() - 1) {
        let text = format!(
            "a majority answers within {}: that is what a free lock costs",
            fine(*median)
        );
        set.good("latency", text);
    }
}

/// Uses a lock as the quorum's clients do.
async fn lock(set: &mut Findings, servers: &Servers) {
    let remedy = "mend what is wrong above";
    let quorum = match servers.quorum(None, "fairlock").await {
        Ok(quorum) => quorum,
        Err(failure) => return set.wrong("lock", failure.message, remedy),
    };
    let (begun, probe) = (Instant::now(), Probe::new(&servers.each[0].prefix));
    let used = async {
        let lock = quorum.rw_lock(probe.name());
        let Some(guard) = lock.write().try_acquire_for(PATIENCE).await? else {
            return Ok(None);
        };
        let votes = guard.votes();
        guard.fencing_token().await?;
        guard.release().await?;
        Ok::<_, fairlock::Error>(Some(votes))
    };
    match used.await {
        Ok(Some(votes)) => {
            let took = fine(begun.elapsed());
            set.good(
                "lock",
                format!(
                    "acquired with {}, its token told, and released in {took}",
                    count(votes, "vote", "votes")
                ),
            );
        }
        Ok(None) => set.wrong("lock", format!("not granted within {}", span(PATIENCE)), remedy),
        Err(error) => set.wrong("lock", error.to_string(), remedy),
    }
    quorum.shutdown().await;
    for server in &servers.each {
        // Where this fails, the keys expire.
        if let Ok(mut redis) = server.redis().await {
            probe.remove(&mut redis).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server whose clock is so far ahead, give or take 10 ms.
    fn ahead(ahead: Duration) -> Member {
        Member {
            shown: String::new(),
            host: String::new(),
            examined: Examined {
                findings: Findings::default(),
                only_looks: false,
                info: Info::new(),
                latency: None,
            },
            stamp: None,
            known: None,
            clock: Some(Clock {
                now_ms: 0,
                ahead_us: i128::try_from(ahead.as_micros()).expect("a short time"),
                uncertain: Duration::from_millis(10),
            }),
        }
    }

    #[test]
    fn clocks_are_compared_with_each_other_and_with_the_longest_lease() {
        let stamp = Stamp {
            name: "billing".to_owned(),
            servers: 3,
            longest_lease: Duration::from_secs(30),
        };
        let of = |furthest_ms: u64, stamp: Option<&Stamp>| {
            let members = [5000, 5000 + furthest_ms, 5010].map(|ms| ahead(Duration::from_millis(ms)));
            let mut set = Findings::default();
            clocks(&mut set, &members.iter().collect::<Vec<_>>(), stamp);
            [Level::Good, Level::Note, Level::Wrong].map(|level| set.number(level))
        };
        for stamp in [None, Some(&stamp)] {
            assert_eq!(
                of(1020, stamp),
                [1, 0, 0],
                "ours is as far as the others, and does not count"
            );
            assert_eq!(of(1030, stamp), [0, 1, 0]);
            assert_eq!(of(30_010, stamp), [0, 1, 0]);
        }
        assert_eq!(of(30_020, Some(&stamp)), [0, 0, 1]);
        assert_eq!(of(30_020, None), [0, 1, 0], "nobody knows the longest lease");
    }
}
