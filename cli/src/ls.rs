//! `fairlock ls`

use crate::args::LsArgs;
use crate::json;
use crate::locks::{Eye, Found, Unread};
use crate::outcome::{Outcome, Status, complain, say};
use crate::quorum::Target;
use crate::text::{self, Table, safe, span};
use fairlock::Holder;
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) async fn run(target: &Target, args: &LsArgs) -> Outcome {
    let eye = Eye::open(target).await?;
    let mut findings = eye.find(args.pattern.as_deref()).await?;
    findings.complain();
    eye.shutdown().await;
    findings.found.retain(|found| args.all || found.in_use());
    findings.found.sort_by(Found::order);
    let (found, unread) = (&findings.found, &findings.unread);
    if args.output.json {
        let locks = unread.iter().map(Unread::described).chain(found.iter().map(summary));
        json::document(&locks.collect::<Value>())?;
        return Ok(findings.status());
    }
    if found.is_empty() && unread.is_empty() {
        let prefix = safe(target.prefix());
        let matching = args
            .pattern
            .as_deref()
            .map(|pattern| format!(" and matches {}", safe(pattern)));
        let matching = matching.unwrap_or_default();
        complain(&match args.all {
            true => format!("no lock exists under prefix {prefix}{matching}"),
            false => format!("no lock is held or waited for under prefix {prefix}{matching}"),
        });
        return Ok(Status::OK);
    }
    let locks = format!("LOCK (prefix {})", safe(target.prefix()));
    let mut table = Table::new([&locks, "MODE", "HOLDING", "WAITING", "HELD", "WAITED", "HELD BY"]);
    // The first ones, because any of them may be the busiest.
    for lock in unread {
        let [none, why] = ["-".to_owned(), safe(&lock.why)];
        let numbers = std::iter::repeat_n(none, 4);
        let row = [safe(&lock.name), "error".to_owned()].into_iter().chain(numbers);
        table.row(row.chain([why]));
    }
    for lock in found {
        let status = &lock.status;
        table.row([
            safe(&lock.name),
            mode(status),
            status.holding.to_string(),
            status.waiting.to_string(),
            longest_hold(lock).map_or("-".to_owned(), span),
            longest_wait(lock).map_or("-".to_owned(), span),
            held_by(lock),
        ]);
    }
    say(&table.render())?;
    Ok(findings.status())
}

/// With the permits of a semaphore that are taken.
fn mode(status: &fairlock::Status) -> String {
    let mode = status.mode.map_or("free", fairlock::Mode::as_str);
    let taken = text::taken(status).map(|taken| format!(" {taken}"));
    mode.to_owned() + &taken.unwrap_or_default()
}

pub(crate) fn summary(found: &Found) -> Value {
    json!({
        "lock": found.name,
        "mode": found.status.mode.map(fairlock::Mode::as_str),
        "expired": found.status.is_expired(),
        "policy": found.status.policy.as_str(),
        "limit": found.status.limit,
        "used": found.status.used,
        "holding": found.status.holding,
        "waiting": found.status.waiting,
        "longest_hold_ms": longest_hold(found).map(json::ms),
        "longest_wait_ms": longest_wait(found).map(json::ms),
        "holder": oldest(found).map(json::holder),
        "votes": found.votes.as_ref().and_then(|votes| votes.of_holders.iter().min()),
        "servers": found.votes.as_ref().map(|votes| votes.servers),
    })
}

pub(crate) fn longest_hold(found: &Found) -> Option<Duration> {
    found.status.holders.iter().map(|holder| holder.held_for).max()
}

pub(crate) fn longest_wait(found: &Found) -> Option<Duration> {
    found.status.waiters.iter().map(|waiter| waiter.waited).max()
}

/// The holder that has held the lock longest.
fn oldest(found: &Found) -> Option<&Holder> {
    found.status.holders.iter().max_by_key(|holder| holder.held_for)
}

/// Of how many servers of a quorum the holder with the fewest votes has them: `2 of 3 servers`. `None`: of all, or there is
/// only one.
fn fewest_votes(found: &Found) -> Option<String> {
    let votes = found.votes.as_ref()?;
    let fewest = votes.of_holders.iter().min()?;
    (*fewest < votes.servers).then(|| format!("{fewest} of {} servers", votes.servers))
}

pub(crate) fn held_by(found: &Found) -> String {
    let Some(holder) = oldest(found) else {
        return "-".to_owned();
    };
    let origin = text::origin_in_short(&holder.client);
    // The mark comes first, because a narrow column cuts off the end.
    let named = match holder.expired_for {
        None => origin,
        Some(since) => format!("{}: {origin}", text::expired(since)),
    };
    let all = match found.status.holding {
        1 => named,
        n => format!("{named} and {} more", n - 1),
    };
    match fewest_votes(found) {
        None => all,
        Some(votes) => format!("{all}, at {votes}"),
    }
}
