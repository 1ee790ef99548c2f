//! `fairlock show`

use crate::args::ShowArgs;
use crate::json;
use crate::locks;
use crate::outcome::{Outcome, Status, say};
use crate::server::ServerArgs;
use crate::text::{self, Table, count, origin, safe, span};
use fairlock::{Holder, RawState, Waiter};
use std::fmt::Write as _;

pub(crate) async fn run(server: &ServerArgs, args: &ShowArgs) -> Outcome {
    let client = server.client().await?;
    let lock = client.rw_lock(args.name.as_str());
    let status = lock.status().await?;
    let known = match status.holding + status.waiting {
        0 => locks::must_exist(server, &lock).await,
        _ => Ok(()),
    };
    client.shutdown().await;
    known?;
    if args.output.json {
        let mut document = json::status(&args.name, &status);
        if args.raw {
            document["raw"] = json::raw(&status.raw);
        }
        json::document(&document)?;
    } else {
        let raw = if args.raw { state(&status.raw) } else { String::new() };
        say(&(page(&args.name, &status) + &raw))?;
    }
    Ok(Status::OK)
}

fn page(name: &str, status: &fairlock::Status) -> String {
    let state = match status.mode {
        None => "free".to_owned(),
        Some(mode) if status.is_expired() => {
            format!("expired: the next request enters; was held to {}", text::mode(mode))
        }
        Some(mode) => format!("held to {}", text::mode(mode)),
    };
    let mut holding = count(status.holding, "hold", "holds");
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
        safe(name),
        status.waiting
    );
    if !status.holders.is_empty() {
        page += "\nHolding:\n";
        page += &holders(&status.holders);
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

/// A table of requests, with three columns beside their origin.
fn table([times, lease, last]: [&str; 3]) -> Table {
    Table::new(["OWNER", "MODE", "LABEL", "PROCESS", "HOST", times, lease, last]).indented("  ")
}

pub(crate) fn holders<'a>(holders: impl IntoIterator<Item = &'a Holder>) -> String {
    let mut table = table(["HELD", "LEASE LEFT", "TOKEN"]);
    for holder in holders {
        let [label, process, host] = origin(&holder.client);
        let mode = match holder.holds {
            0 | 1 => text::share(holder.mode, holder.permits),
            holds => format!("{} x{holds}", text::share(holder.mode, holder.permits)),
        };
        table.row([
            holder.owner.to_string(),
            mode,
            label,
            process,
            host,
            span(holder.held_for),
            text::lease(holder.lease_left, holder.expired_for),
            holder.token.to_string(),
        ]);
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
