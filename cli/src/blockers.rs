//! `fairlock blockers`

use crate::args::BlockersArgs;
use crate::circle::{self, Edge};
use crate::json;
use crate::locks::{self, Found, Unread};
use crate::outcome::{Failure, Outcome, Status, complain, say};
use crate::server::ServerArgs;
use crate::show;
use crate::text::{self, count, safe, span};
use fairlock::{Client, ClientInfo, Holder, Owner, Waiter};
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};

/// The subject of a question.
pub(crate) enum Who<'a> {
    /// Every request with that owner, label, client number or process number.
    Named(&'a str),
    /// An owner, and the other requests of its client.
    Holder(Owner, &'a ClientInfo),
}

impl Who<'_> {
    pub(crate) fn is(&self, owner: &Owner, client: &ClientInfo) -> bool {
        match self {
            Self::Named(name) => {
                let name = *name;
                owner.to_string() == name.to_ascii_lowercase()
                    || client.label.as_deref() == Some(name)
                    || client.id == name
                    || client.process.is_some_and(|process| process.to_string() == name)
            }
            Self::Holder(holder, its) => owner == holder || client.id == its.id,
        }
    }
}

/// A lock that the subject, or a holder that blocks it, waits for.
struct Wait<'a> {
    lock: &'a Found,
    /// The waiter's places in the queue, in order.
    places: Vec<&'a Waiter>,
    /// The lock whose holder waits here. `None`: the subject itself waits here.
    held: Option<&'a str>,
    /// The subject holds this lock, so it may wait for itself.
    closes_circle: bool,
}

impl<'a> Wait<'a> {
    fn ahead(&self) -> Vec<&'a Waiter> {
        let first = self.places.first().map_or(0, |place| place.position);
        let waiters = self.lock.status.waiters.iter();
        waiters.take_while(|waiter| waiter.position < first).collect()
    }
}

pub(crate) async fn run(server: &ServerArgs, args: &BlockersArgs) -> Outcome {
    let client = server.client().await?;
    let mut findings = locks::find(server, &client, None).await?;
    findings.complain();
    let further = findings.complete(&client).await?;
    findings.unread.extend(further);
    for unread in &findings.unread {
        complain(&format!("{}: {}", safe(&unread.name), safe(&unread.why)));
    }
    let found = &mut findings.found;
    found.sort_by(Found::order);
    let found = &*found;
    let waits = waits(found, &args.subject);
    let deadlock = deadlock(&client, found, &waits).await?;
    client.shutdown().await;
    if args.output.json {
        json::document(&of_subject(
            &args.subject,
            &waits,
            deadlock.as_deref(),
            &findings.unread,
        ))?;
    } else {
        tell(server, found, &waits, &args.subject)?;
        if let Some(circle) = deadlock {
            say(&format!("\n{}", circle::told(&circle)))?;
        }
    }
    Ok(match waits.is_empty() {
        // The subject may wait for a lock that could not be read.
        true if !findings.unread.is_empty() => Status::UNAVAILABLE,
        true => Status::NO,
        false => Status::OK,
    })
}

/// What the subject waits for, and who blocks it.
pub(crate) async fn document(
    client: &Client,
    found: &[Found],
    unread: &[Unread],
    subject: &str,
) -> Result<Value, Failure> {
    let waits = waits(found, subject);
    let deadlock = deadlock(client, found, &waits).await?;
    Ok(of_subject(subject, &waits, deadlock.as_deref(), unread))
}

fn of_subject(subject: &str, waits: &[Wait<'_>], deadlock: Option<&[Edge<'_>]>, unread: &[Unread]) -> Value {
    json!({
        "subject": subject,
        "waits": waits.iter().map(described).collect::<Value>(),
        "deadlock": deadlock.map(circle::described),
        "unread": unread.iter().map(Unread::described).collect::<Value>(),
    })
}

/// All deadlocks, but at most so many, each as a list of its waits.
pub(crate) async fn deadlocks(client: &Client, found: &[Found]) -> Result<Vec<Value>, Failure> {
    const MOST: usize = 32;
    let of_holders = found.iter().flat_map(|lock| &lock.status.holders);
    let holders: BTreeSet<Owner> = of_holders.map(|holder| holder.owner).collect();
    let of_waiters = found.iter().flat_map(|lock| &lock.status.waiters);
    // Only who holds and waits can be in a circle.
    let both: BTreeSet<Owner> = of_waiters
        .map(|waiter| waiter.owner)
        .filter(|owner| holders.contains(owner))
        .collect();
    let (mut known, mut deadlocks) = (BTreeSet::new(), Vec::new());
    for owner in both.into_iter().take(MOST) {
        if known.contains(&owner) {
            continue;
        }
        if let Some(circle) = circle::circle(found, owner)
            && circle::is_deadlock(client, &circle).await?
        {
            known.extend(circle.iter().map(Edge::owner));
            deadlocks.push(circle::described(&circle));
        }
    }
    Ok(deadlocks)
}

/// A circle through an owner that waits here: the subject's, or another one that blocks it.
async fn deadlock<'a>(
    client: &Client,
    found: &'a [Found],
    waits: &[Wait<'_>],
) -> Result<Option<Vec<Edge<'a>>>, Failure> {
    let mut seen = BTreeSet::new();
    let owners = waits.iter().flat_map(|wait| &wait.places).map(|place| place.owner);
    // The subject's own waits come first.
    for owner in owners.filter(|owner| seen.insert(*owner)) {
        if let Some(circle) = circle::circle(found, owner)
            && circle::is_deadlock(client, &circle).await?
        {
            return Ok(Some(circle));
        }
    }
    Ok(None)
}

/// The locks that the subject waits for; then those that their holders wait for, and so on. Each lock comes once.
fn waits<'a>(found: &'a [Found], subject: &'a str) -> Vec<Wait<'a>> {
    let asked_for = Who::Named(subject);
    let mut waits = Vec::new();
    let mut seen = BTreeSet::new();
    let mut questions = VecDeque::from([(Who::Named(subject), None)]);
    while let Some((who, held)) = questions.pop_front() {
        for lock in found {
            let waiters = lock.status.waiters.iter();
            let places: Vec<_> = waiters.filter(|waiter| who.is(&waiter.owner, &waiter.client)).collect();
            if places.is_empty() || !seen.insert(&lock.name) {
                continue;
            }
            let mut closes_circle = false;
            // A reader that waits to write does not wait for itself.
            let upgrades = |holder: &&Holder| places.iter().any(|place| place.owner == holder.owner);
            for holder in lock.status.holders.iter().filter(|holder| !upgrades(holder)) {
                closes_circle |= asked_for.is(&holder.owner, &holder.client);
                questions.push_back((Who::Holder(holder.owner, &holder.client), Some(lock.name.as_str())));
            }
            waits.push(Wait {
                lock,
                places,
                held,
                closes_circle,
            });
        }
    }
    waits
}

fn described(wait: &Wait) -> Value {
    json!({
        "lock": wait.lock.name,
        "because_holder_of": wait.held,
        "closes_circle": wait.closes_circle,
        "places": wait.places.iter().map(|waiter| json::waiter(waiter)).collect::<Value>(),
        "holders": wait.lock.status.holders.iter().map(json::holder).collect::<Value>(),
        "ahead": wait.ahead().into_iter().map(json::waiter).collect::<Value>(),
    })
}

fn tell(server: &ServerArgs, found: &[Found], waits: &[Wait], subject: &str) -> Result<(), Failure> {
    if waits.is_empty() {
        let subject_is = Who::Named(subject);
        let hold_of = |lock: &Found| {
            let mut holders = lock.status.holders.iter();
            // The hold with the longest lease comes last.
            let hold = holders.rfind(|holder| subject_is.is(&holder.owner, &holder.client))?;
            let name = safe(&lock.name);
            Some(match hold.expired_for {
                None => name,
                Some(since) => format!("{name} ({})", text::expired(since)),
            })
        };
        let held: Vec<_> = found.iter().filter_map(hold_of).collect();
        complain(&match held.is_empty() {
            true => format!(
                "{} neither waits for a lock nor holds one under prefix {}",
                safe(subject),
                safe(&server.prefix)
            ),
            false => format!("{} waits for nothing; it holds {}", safe(subject), held.join(", ")),
        });
        return Ok(());
    }
    let sections: Vec<_> = waits.iter().map(|wait| section(wait, subject)).collect();
    say(&sections.join("\n"))
}

fn section(wait: &Wait, subject: &str) -> String {
    let lock = safe(&wait.lock.name);
    let who = match wait.held {
        None => safe(subject),
        Some(held) => format!("A process that holds {}", safe(held)),
    };
    let positions: Vec<_> = wait.places.iter().map(|place| place.position.to_string()).collect();
    let positions = match positions.len() {
        0..=5 => positions.join(", "),
        n => format!("{} and {} more", positions[..5].join(", "), n - 5),
    };
    let longest = wait.places.iter().map(|place| place.waited).max().unwrap_or_default();
    let mut text = format!("{who} waits for {lock}, position {positions}, for {}\n", span(longest));
    let holders = &wait.lock.status.holders;
    if holders.is_empty() {
        text += "  Nobody holds the lock: the next renewal grants it to the first waiter.\n";
    } else {
        text += "  Held by\n";
        text += &show::holders(holders, None);
    }
    let ahead = wait.ahead();
    if !ahead.is_empty() {
        text += &format!("  {} ahead in the queue\n", count(ahead.len(), "request", "requests"));
        text += &show::waiters(ahead);
    }
    if wait.closes_circle {
        text += &format!("  This may be a circle: {} also holds {lock}.\n", safe(subject));
    }
    text
}
