//! The sentinels of a master, and the master.

use super::findings::Findings;
use super::server::{self, Examined, Part};
use crate::outcome::{Failure, Status};
use crate::server::{Kind, Reached, ServerArgs, greet};
use crate::text::{count, safe};
use fairlock::redis::aio::MultiplexedConnection;
use fairlock::redis::{self, ConnectionInfo, RedisError};
use futures::future::join_all;
use std::collections::BTreeMap;

/// Examines the sentinels that are named, and then the master that they name.
pub(super) async fn examine(server: &ServerArgs, mut reached: Reached) -> Result<Examined, Failure> {
    let name = server.master(&mut reached).await?;
    let mut findings = Findings::default();
    let place = &reached.place;
    let asked = join_all(place.hosts.iter().map(|host| master_at(host, &name))).await;
    let mut masters: BTreeMap<(String, u16), usize> = BTreeMap::new();
    for (host, answer) in place.hosts.iter().zip(&asked) {
        match answer {
            Ok(Some(master)) => *masters.entry(master.clone()).or_default() += 1,
            Ok(None) => findings.wrong(
                "sentinels",
                format!("{} watches no master called {name}", host.addr()),
                "let it watch the master (SENTINEL MONITOR), or leave it out of the URL",
            ),
            Err(error) => findings.wrong(
                "sentinels",
                format!("{}: {error}", host.addr()),
                "start it: the command and the library ask the others meanwhile",
            ),
        }
    }
    let Some(((host, port), _)) = masters.iter().max_by_key(|(_, votes)| **votes) else {
        let message = server.as_kind(Kind::Sentinel, &format!("it knows no address of {}", safe(&name)));
        return Err(Failure::new(Status::UNAVAILABLE, message));
    };
    if masters.len() > 1 {
        let all: Vec<_> = masters.keys().map(|(host, port)| format!("{host}:{port}")).collect();
        findings.wrong(
            "sentinels",
            format!("they name different masters: {}", all.join(", ")),
            "wait for the fail-over to end; if it does not, compare their logs",
        );
    }
    quorum(&mut findings, &mut reached.redis, &name).await;
    let address = format!("{host}:{port}");
    findings.good("master", format!("{} is {address}", safe(&name)));
    let node = server.at(place.at(host, *port), server.prefix.clone());
    let examined = server::examine(&node, server, Part::Alone).await?;
    findings.0.extend(examined.findings.0);
    Ok(Examined { findings, ..examined })
}

/// The address of a master, by one of the sentinels.
async fn master_at(host: &ConnectionInfo, name: &str) -> Result<Option<(String, u16)>, RedisError> {
    let mut sentinel = greet(host).await?.redis;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    command.query_async(&mut sentinel).await
}

/// Whether the sentinels could agree on a fail-over.
async fn quorum(findings: &mut Findings, sentinel: &mut MultiplexedConnection, name: &str) {
    let mut command = redis::cmd("SENTINEL");
    let known = command
        .arg("SENTINELS")
        .arg(name)
        .query_async::<Vec<redis::Value>>(sentinel);
    let all = known.await.map_or(1, |others| others.len() + 1);
    let mut command = redis::cmd("SENTINEL");
    let can = command.arg("CKQUORUM").arg(name).query_async::<String>(sentinel).await;
    let watch = format!("{} it", count(all, "sentinel watches", "sentinels watch"));
    match (can, all) {
        (Ok(_), 3..) => findings.good("sentinels", format!("{watch}, and can agree on a fail-over")),
        (Ok(_), _) => findings.note(
            "sentinels",
            format!("{watch}: the loss of one ends all fail-overs"),
            "run three or more, on machines of their own",
        ),
        (Err(error), _) => findings.wrong(
            "sentinels",
            format!("{watch}, and cannot agree on a fail-over: {error}"),
            "start the sentinels that are away",
        ),
    }
}
