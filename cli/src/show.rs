//! `fairlock show`

use crate::args::ShowArgs;
use crate::json;
use crate::locks::{Eye, Found};
use crate::outcome::{Outcome, Status, say};
use crate::quorum::Target;
use crate::quorum::merge::Votes;
use crate::text::{self, Table, count, operand, origin, safe, span};
use fairlock::{Holder, RawState, Waiter};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

pub(crate) async fn run(target: &Target, args: &ShowArgs) -> Outcome {
    if args.raw {
        let command = format!("show --raw {}", operand(&args.name));
        target.one("each server of a quorum has a state of its own", Some(&command))?;
    }
    let eye = Eye::open(target).await?;
    let (found, servers) = eye.status(&args.name).await?;
    if !found.in_use() {
        eye.must_exist(&args.name).await?;
    }
    eye.shutdown().await;
    let servers: Vec<Server> = match &eye {
        Eye::One { .. } => Vec::new(),
        Eye::Several(fleet) => fleet.shown().zip(servers).collect(),
    };
    if args.output.json {
        json::document(&document(&found, &servers, args.raw))?;
    } else {
        let raw = if args.raw {
            state(&found.status.raw)
        } else {
            String::new()
        };
        say(&(page(&found) + &of_servers(&servers) + &raw))?;
    }
    Ok(Status::OK)
}

/// A server of a quorum, and what it says of the lock.
pub(crate) type Server = (String, Result<fairlock::Status, String>);

pub(crate) fn document(found: &Found, servers: &[Server], raw: bool) -> Value {
    let mut document = json::status(&found.name, &found.status);
    if raw {
        document["raw"] = json::raw(&found.status.raw);
    }
    if let Some(votes) = &found.votes {
        for (at, votes) in votes.of_holders.iter().enumerate() {
            document["holders"][at]["votes"] = (*votes).into();
        }
        let server = |(server, status): &Server| match status {
            Ok(status) => json!({
                "server": server,
                "holding": status.holding,
                "waiting": status.waiting,
                "quarantine_ms": quarantine(status).map(json::ms),
            }),
            Err(why) => json!({"server": server, "error": why}),
        };
        if !servers.is_empty() {
            document["servers"] = servers.iter().map(server).collect();
        }
    }
    document
}

/// Whether this is the nil UUID, which stands for nobody: the server is in quarantine, and so that nobody enters it grants
/// the lock to that one.
pub(crate) fn is_nobody(holder: &Holder) -> bool {
    holder.owner.uuid().is_nil()
}

/// How long the server will not vote, if it has restarted and somebody has asked it since: then nobody holds the lock there.
pub(crate) fn quarantine(status: &fairlock::Status) -> Option<Duration> {
    let nobody = status.holders.iter().find(|holder| is_nobody(holder));
    nobody.map(|nobody| nobody.lease_left)
}

/// Who holds a lock meanwhile.
pub(crate) fn held_by_nobody(left: Duration) -> String {
    format!("held by nobody: the server is in quarantine for {} still", span(left))
}

/// What each server says. Empty: there is one server.
fn of_servers(servers: &[Server]) -> String {
    if servers.is_empty() {
        return String::new();
    }
    let mut table = Table::new(["SERVER", "HOLDING", "WAITING", "STATE"]).indented("  ");
    for (server, status) in servers {
        let (holding, waiting, state) = match status {
            Ok(status) => {
                let state = match quarantine(status) {
                    Some(left) => format!("in quarantine, votes in {}", span(left)),
                    None => "votes".to_owned(),
                };
                let holding = status.holding - usize::from(quarantine(status).is_some());
                (holding.to_string(), status.waiting.to_string(), state)
            }
            Err(why) => ("-".to_owned(), "-".to_owned(), safe(why)),
        };
        table.row([safe(server), holding, waiting, state]);
    }
    format!("\nServers:\n{}", table.render())
}

pub(crate) fn page(found: &Found) -> String {
    let status = &found.status;
    let quarantine = quarantine(status);
    let state = match (status.mode, quarantine) {
        (None, _) => "free".to_owned(),
        (Some(mode), _) if status.is_expired() => {
            format!("expired: the next request enters; was held to {}", mode.as_str())
        }
        (Some(_), Some(left)) => held_by_nobody(left),
        (Some(mode), None) => format!("held to {}", mode.as_str()),
    };
    let holds = status.holding - usize::from(quarantine.is_some());
    let mut holding = count(holds, "hold", "holds");
    let expired = status
        .holders
        .iter()
        .filter(|holder| holder.expired_for.is_some())
        .count();
    if expired > 0 && !status.is_expired() {
        holding += &format!(", {expired} of them expired");
    }
    if let Some(taken) = text::taken(status) {
        holding += &format!(", {taken} permits");
    }
    let policy = text::policy(status.policy);
    let mut page = format!(
        "{}: {state}, {holding}, {} waiting, {policy}\n",
        safe(&found.name),
        status.waiting
    );
    if holds > 0 {
        page += "\nHolding:\n";
        page += &holders(&status.holders, found.votes.as_ref());
        more(&mut page, status.holding, status.holders.len());
    }
    if !status.waiters.is_empty() {
        page += "\nWaiting:\n";
        page += &waiters(&status.waiters);
        more(&mut page, status.waiting, status.waiters.len());
    }
    page
}

/// The state as it lies in the server.
fn state(raw: &RawState) -> String {
    let mut page = "\nState:\n".to_owned();
    for (name, number) in text::raw(raw) {
        let _ = writeln!(page, "  {name:<8}  {number}");
    }
    let _ = writeln!(page, "  {:<8}  {}", "holder", safe(&raw.holder));
    page
}

fn more(page: &mut String, all: usize, shown: usize) {
    if all > shown {
        let _ = writeln!(page, "  and {} more", all - shown);
    }
}

/// A table of requests, with further columns beside their origin.
fn table<'a>(further: impl IntoIterator<Item = &'a str>) -> Table {
    let origin = ["OWNER", "MODE", "LABEL", "PROCESS", "HOST"];
    Table::new(origin.into_iter().chain(further)).indented("  ")
}

/// `votes`: a column of a quorum.
pub(crate) fn holders<'a>(holders: impl IntoIterator<Item = &'a Holder>, votes: Option<&Votes>) -> String {
    let mut table = table(
        ["HELD", "LEASE LEFT", "TOKEN"]
            .into_iter()
            .chain(votes.map(|_| "SERVERS")),
    );
    for (at, holder) in holders.into_iter().enumerate() {
        let [label, process, host] = origin(&holder.client);
        let mode = match holder.holds {
            0 | 1 => text::share(holder.mode, holder.permits),
            holds => format!("{} x{holds}", text::share(holder.mode, holder.permits)),
        };
        let cells = [
            holder.owner.to_string(),
            mode,
            label,
            process,
            host,
            span(holder.held_for),
            text::lease(holder.lease_left, holder.expired_for),
            holder.token.to_string(),
        ];
        let votes = votes.map(|votes| format!("{} of {}", votes.of_holders[at], votes.servers));
        table.row(cells.into_iter().chain(votes));
    }
    table.render()
}

pub(crate) fn waiters<'a>(waiters: impl IntoIterator<Item = &'a Waiter>) -> String {
    let mut table = table(["WAITED", "LEASE LEFT", "POSITION"]);
    for waiter in waiters {
        let [label, process, host] = origin(&waiter.client);
        let mode = if waiter.upgrade {
            "upgrade".to_owned()
        } else {
            text::share(waiter.mode, waiter.permits)
        };
        table.row([
            waiter.owner.to_string(),
            mode,
            label,
            process,
            host,
            span(waiter.waited),
            text::lease(waiter.lease_left, waiter.expired_for),
            waiter.position.to_string(),
        ]);
    }
    table.render()
}
