//! A cluster: each of its masters, and what only all nodes together show.

use super::findings::{Findings, Level};
use super::server::{self, Examined, PATIENCE, Part, fine};
use super::{end, fit_for, in_short, status};
use crate::args::OutputArgs;
use crate::json;
use crate::outcome::{Failure, Outcome, say};
use crate::rights::Probe;
use crate::server::{Reached, ServerArgs};
use crate::text::{count, safe, span};
use fairlock::redis::{self, ConnectionAddr, Value};
use fairlock::{Client, Error};
use futures::future::join_all;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

const SLOTS: usize = 16384;
/// A hand-over that takes longer came by no message, but by a renewal of the waiter.
const BY_MESSAGE: Duration = Duration::from_secs(1);

/// A master, as the cluster's table names it.
#[derive(Default)]
struct Master {
    slots: Vec<RangeInclusive<u16>>,
    replicas: usize,
}

impl Master {
    fn has(&self, key: &str) -> bool {
        let slot = slot_of(key);
        self.slots.iter().any(|range| range.contains(&slot))
    }
}

/// What doctor knows of one master.
struct Member {
    server: ServerArgs,
    examined: Result<Examined, Failure>,
    probe: Probe,
}

pub(super) async fn run(server: &ServerArgs, mut reached: Reached, args: &OutputArgs) -> Outcome {
    let masters = masters(server, &mut reached).await?;
    let place = &reached.place;
    let examining = masters.iter().map(|((host, port), master)| {
        let node = server.at(place.at(host, *port), server.prefix.clone());
        async move {
            let probe = Probe::on_node(&node.prefix, |key| master.has(key));
            let examined = examine(&node, &probe).await;
            Member {
                server: node,
                examined,
                probe,
            }
        }
    });
    let members = join_all(examining).await;
    let mut set = Findings::default();
    slots(&mut set, &masters);
    answers(&mut set, &members);
    replicas(&mut set, &masters);
    let known = || members.iter().filter_map(|member| member.examined.as_ref().ok());
    let only_looks = known().any(|examined| examined.only_looks);
    locks(&mut set, server, &members, only_looks).await;
    let of_members: usize = known().map(|examined| examined.findings.number(Level::Wrong)).sum();
    let wrong = set.number(Level::Wrong) + of_members;
    if args.json {
        let of_member = |member: &Member| match &member.examined {
            Ok(examined) => json!({"server": member.server.shown(), "findings": examined.findings.described()}),
            Err(failure) => json!({"server": member.server.shown(), "error": crate::quorum::first_line(failure)}),
        };
        json::document(&json!({
            "server": server.shown(),
            "wrong": wrong,
            "fit_for": fit_for(wrong, only_looks),
            "servers": members.iter().map(of_member).collect::<Json>(),
            "findings": set.described(),
        }))?;
    } else {
        let mut report = String::new();
        for member in &members {
            let examined = member.examined.as_ref().map(|examined| &examined.findings);
            report += &format!("{}\n{}\n", safe(&member.server.shown()), in_short(examined));
        }
        let looker = only_looks.then(|| server.user());
        report += &format!("All masters\n{}{}\n", Findings::report(&set.0), end(wrong, looker));
        say(&report)?;
    }
    Ok(status(wrong))
}

async fn examine(node: &ServerArgs, probe: &Probe) -> Result<Examined, Failure> {
    let mut redis = node.reach().await?.redis;
    let examined = server::look(node, &mut redis, probe, Part::OfCluster).await;
    probe.remove(&mut redis).await;
    examined
}

type Address = (String, u16);

/// The masters that have slots, as the first node that answers knows them.
async fn masters(server: &ServerArgs, reached: &mut Reached) -> Result<BTreeMap<Address, Master>, Failure> {
    let mut command = redis::cmd("CLUSTER");
    let ranges = command.arg("SLOTS").query_async::<Vec<Vec<Value>>>(&mut reached.redis);
    let ranges = ranges.await.map_err(|error| {
        server.refused(
            "cannot learn the nodes, for which its user needs +cluster|slots",
            &error,
        )
    })?;
    let named = match reached.place.hosts[0].addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => String::new(),
    };
    let mut masters: BTreeMap<Address, Master> = BTreeMap::new();
    for range in &ranges {
        let [Value::Int(first), Value::Int(last), Value::Array(owner), replicas @ ..] = range.as_slice() else {
            continue;
        };
        let [host, Value::Int(port), ..] = owner.as_slice() else {
            continue;
        };
        let host: String = redis::from_redis_value(host.clone()).unwrap_or_default();
        // A node that does not know its own address leaves it out.
        let host = if host.is_empty() { named.clone() } else { host };
        let (Ok(first), Ok(last), Ok(port)) = (u16::try_from(*first), u16::try_from(*last), u16::try_from(*port))
        else {
            continue;
        };
        let master = masters.entry((host, port)).or_default();
        master.slots.push(first..=last);
        master.replicas = master.replicas.max(replicas.len());
    }
    Ok(masters)
}

fn slots(set: &mut Findings, masters: &BTreeMap<Address, Master>) {
    let ranges = masters.values().flat_map(|master| &master.slots);
    let served: usize = ranges.map(ExactSizeIterator::len).sum();
    let text = format!(
        "{served} of {SLOTS} slots, at {}",
        count(masters.len(), "master", "masters")
    );
    match served {
        SLOTS => set.good("slots", text),
        _ => set.wrong(
            "slots",
            format!("{text}: locks in the other slots do not work"),
            "start the node that had them, or give them to another one: redis-cli --cluster fix HOST:PORT",
        ),
    }
}

fn answers(set: &mut Findings, members: &[Member]) {
    let answers = members.iter().filter(|member| member.examined.is_ok()).count();
    if members.is_empty() {
        let remedy =
            "give the cluster its slots: redis-cli --cluster create, or CLUSTER ADDSLOTSRANGE 0 16383 at one node";
        return set.wrong("answer", "no master has any slots, so no lock works", remedy);
    }
    let text = format!("{answers} of {} masters answer", members.len());
    match answers == members.len() {
        true => set.good("answer", text),
        false => set.wrong(
            "answer",
            format!("{text}: locks in the slots of the others do not work"),
            "start those that do not answer, or let their replicas take over: CLUSTER FAILOVER TAKEOVER",
        ),
    }
}

fn replicas(set: &mut Findings, masters: &BTreeMap<Address, Master>) {
    if masters.is_empty() {
        return;
    }
    let without: Vec<_> = masters
        .iter()
        .filter(|(_, master)| master.replicas == 0)
        .map(|((host, port), _)| format!("{host}:{port}"))
        .collect();
    match without.as_slice() {
        [] => set.note(
            "replicas",
            "each master has one or more",
            "replication is asynchronous: a failover can lose the last grants. Check fencing tokens where it matters",
        ),
        alone => set.note(
            "replicas",
            format!("no replica takes over from {}", alone.join(", ")),
            "add replicas, if locks should work while a master is away",
        ),
    }
}

/// Uses a lock on each master as its users do, and hands it over once.
async fn locks(set: &mut Findings, server: &ServerArgs, members: &[Member], only_looks: bool) {
    let remedy = "mend what is wrong above";
    let clients = async { Ok::<_, Failure>([server.client().await?, server.client().await?]) };
    let clients = match clients.await {
        Ok(clients) => clients,
        Err(failure) => return set.wrong("lock", failure.message, remedy),
    };
    let mut slowest = Duration::ZERO;
    let before = set.0.len();
    for member in members.iter().filter(|member| member.examined.is_ok()) {
        let used = timeout(PATIENCE + PATIENCE, use_lock(&clients, member.probe.name(), only_looks));
        let shown = safe(&member.server.shown());
        match used.await {
            Ok(Ok(took)) if took > BY_MESSAGE => set.wrong(
                "lock",
                format!("{shown}: a hand-over took {}, so no message brought it", fine(took)),
                &format!(
                    "let the user run +ssubscribe +sunsubscribe +spublish on &{}:*",
                    safe(&server.prefix)
                ),
            ),
            Ok(Ok(took)) => slowest = slowest.max(took),
            Ok(Err(error)) => set.wrong("lock", format!("{shown}: {error}"), remedy),
            Err(_) => set.wrong(
                "lock",
                format!("{shown}: not used within {}", span(PATIENCE * 2)),
                remedy,
            ),
        }
        if let Ok(mut reached) = member.server.reach().await {
            member.probe.remove(&mut reached.redis).await;
        }
    }
    if set.0.len() == before {
        let done = if only_looks { "looked at" } else { "handed over" };
        let text = format!("{done} on each master, at most {} each", fine(slowest));
        set.good("lock", text);
    }
    for client in &clients {
        client.shutdown().await;
    }
}

/// Returns how long the hand-over took, or the look.
async fn use_lock([holder, waiter]: &[Client; 2], name: &str, only_looks: bool) -> Result<Duration, Error> {
    let begun = Instant::now();
    if only_looks {
        return holder.rw_lock(name).status().await.map(|_| begun.elapsed());
    }
    let held = holder.rw_lock(name).write().acquire_fair().await?;
    let other = waiter.rw_lock(name);
    let hand_over = async {
        while other.status().await?.waiting == 0 {
            sleep(Duration::from_millis(10)).await;
        }
        held.release().await?;
        Ok::<_, Error>(Instant::now())
    };
    let waiting = async { Ok::<_, Error>((other.write().acquire_fair().await?, Instant::now())) };
    let (released, (guard, granted)) = futures::future::try_join(hand_over, waiting).await?;
    guard.release().await?;
    Ok(granted.saturating_duration_since(released))
}

/// The slot of a key: the checksum CRC16 (XMODEM) of its hash tag.
fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = match tag {
        Some((tag, _)) if !tag.is_empty() => tag,
        _ => key,
    };
    let checksum = hashed.bytes().fold(0_u16, |checksum, byte| {
        (0..8).fold(checksum ^ (u16::from(byte) << 8), |checksum, _| {
            match checksum & 0x8000 {
                0 => checksum << 1,
                _ => (checksum << 1) ^ 0x1021,
            }
        })
    });
    checksum % 16384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(slot_of("123456789"), 0x31C3);
        assert_eq!(slot_of("foo"), 12182);
        assert_eq!(slot_of("a{foo}b"), 12182);
        assert_eq!(slot_of("{}foo"), slot_of("{}foo"));
        assert_ne!(slot_of("{}foo"), slot_of(""));
    }

    #[test]
    fn slots_without_a_master_are_wrong() {
        let master = |slots| Master {
            slots: vec![slots],
            replicas: 0,
        };
        let levels = |all: [Master; 2]| {
            let named = all
                .into_iter()
                .zip(1..)
                .map(|(master, port)| (("a".to_owned(), port), master));
            let mut set = Findings::default();
            slots(&mut set, &named.collect());
            [Level::Good, Level::Wrong].map(|level| set.number(level))
        };
        assert_eq!(levels([master(0..=8191), master(8192..=16383)]), [1, 0]);
        assert_eq!(levels([master(0..=8191), master(8192..=16382)]), [0, 1]);
    }
}
