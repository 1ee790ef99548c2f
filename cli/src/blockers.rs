//! `fairlock blockers`

use crate::args::BlockersArgs;
use crate::circle::{self, Edge, Reading, Waits};
use crate::json;
use crate::locks::{self, Findings, Found, Unread};
use crate::outcome::{Failure, Outcome, Status, complain, say};
use crate::server::ServerArgs;
use crate::show;
use crate::text::{self, count, safe, safe_word, span};
use fairlock::{Client, ClientInfo, Holder, Owner, Waiter};
use serde_json::{Value, json};
use std::cmp::Reverse;
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

/// The answer to a question.
struct Chain<'a> {
    subject: &'a str,
    /// The lock that has this name.
    lock: Option<&'a Found>,
    waits: Vec<Wait<'a>>,
    /// The holds that everybody in the chain waits for, the longest first.
    blamed: Vec<Blamed<'a>>,
    deadlock: Option<Vec<Edge<'a>>>,
}

/// A hold whose process waits for nothing itself.
struct Blamed<'a> {
    lock: &'a Found,
    holder: &'a Holder,
}

impl<'a> Chain<'a> {
    /// Adds to `unread` the locks that could not be read a second time.
    async fn of(
        client: &Client,
        found: &'a [Found],
        unread: &mut Vec<Unread>,
        subject: &'a str,
    ) -> Result<Self, Failure> {
        let lock = found.iter().find(|lock| lock.name == subject);
        let waits = waits(found, subject, lock);
        let deadlock = deadlock(client, found, &waits, unread).await?;
        let blamed = blamed(found, lock, &waits);
        Ok(Self {
            subject,
            lock: lock.filter(|lock| lock.in_use()),
            waits,
            blamed,
            deadlock,
        })
    }

    fn is_empty(&self) -> bool {
        self.lock.is_none() && self.waits.is_empty()
    }

    fn document(&self, unread: &[Unread]) -> Value {
        let blamed = self
            .blamed
            .iter()
            .map(|blamed| json!({"lock": blamed.lock.name, "holder": json::holder(blamed.holder)}));
        json!({
            "subject": self.subject,
            "lock": self.lock.map(|lock| json::status(&lock.name, &lock.status)),
            "waits": self.waits.iter().map(described).collect::<Value>(),
            "blame": blamed.collect::<Value>(),
            "deadlock": self.deadlock.as_deref().map(circle::described),
            "unread": unread.iter().map(Unread::described).collect::<Value>(),
        })
    }
}

pub(crate) async fn run(server: &ServerArgs, args: &BlockersArgs) -> Outcome {
    let (client, _) = server.looker().await?;
    let mut findings = locks::find(server, &client, None).await?;
    findings.complain();
    let further = findings.complete(&client).await?;
    findings.unread.extend(further);
    let Findings { found, unread, .. } = &mut findings;
    found.sort_by(Found::order);
    let chain = Chain::of(&client, found, unread, &args.subject).await?;
    for lock in &*unread {
        complain(&format!("{}: {}", safe(&lock.name), safe(&lock.why)));
    }
    client.shutdown().await;
    match args.output.json {
        true => json::document(&chain.document(unread))?,
        false => tell(server, found, &chain)?,
    }
    Ok(match chain.is_empty() {
        // The subject may wait for a lock that could not be read.
        true if !unread.is_empty() => Status::UNAVAILABLE,
        true => Status::NO,
        false => Status::OK,
    })
}

/// What the subject waits for, and who blocks it.
pub(crate) async fn document(
    client: &Client,
    found: &[Found],
    mut unread: Vec<Unread>,
    subject: &str,
) -> Result<Value, Failure> {
    let chain = Chain::of(client, found, &mut unread, subject).await?;
    Ok(chain.document(&unread))
}

/// The deadlocks among all locks.
#[derive(Default)]
pub(crate) struct Deadlocks {
    /// Each as a list of its waits.
    pub(crate) deadlocks: Vec<Value>,
    /// The locks that could not be read a second time.
    pub(crate) unread: Vec<Unread>,
    /// So many owners hold and wait in what may be further circles, and nobody looked.
    pub(crate) unsearched: usize,
}

/// All deadlocks, but at most so many. A second reading costs calls, so their number has a bound too.
pub(crate) async fn deadlocks(client: &Client, found: &[Found]) -> Result<Deadlocks, Failure> {
    const MOST: usize = 32;
    const MOST_READINGS: usize = 128;
    let waits = Waits::of(found);
    let (mut known, mut all, mut readings) = (BTreeSet::new(), Deadlocks::default(), 0);
    for owner in waits.may_be_in_circles() {
        if known.contains(&owner) {
            continue;
        }
        if all.deadlocks.len() == MOST || readings == MOST_READINGS {
            all.unsearched += 1;
            continue;
        }
        let Some(circle) = waits.circle(owner) else {
            continue;
        };
        readings += 1;
        match circle::read_again(client, &circle).await? {
            Reading::Changed => {}
            Reading::Deadlock => {
                known.extend(circle.iter().map(Edge::owner));
                all.deadlocks.push(circle::described(&circle));
            }
            Reading::Unread(lock) => {
                known.extend(circle.iter().map(Edge::owner));
                add(&mut all.unread, lock);
            }
        }
    }
    Ok(all)
}

/// A circle through an owner that waits here: the subject's, or another one that blocks it.
async fn deadlock<'a>(
    client: &Client,
    found: &'a [Found],
    waits: &[Wait<'_>],
    unread: &mut Vec<Unread>,
) -> Result<Option<Vec<Edge<'a>>>, Failure> {
    let (mut seen, all) = (BTreeSet::new(), Waits::of(found));
    let owners = waits.iter().flat_map(|wait| &wait.places).map(|place| place.owner);
    // The subject's own waits come first.
    for owner in owners.filter(|owner| seen.insert(*owner)) {
        let Some(circle) = all.circle(owner) else {
            continue;
        };
        match circle::read_again(client, &circle).await? {
            Reading::Deadlock => return Ok(Some(circle)),
            Reading::Changed => {}
            Reading::Unread(lock) => add(unread, lock),
        }
    }
    Ok(None)
}

/// A lock may be in several circles.
fn add(unread: &mut Vec<Unread>, lock: Unread) {
    if unread.iter().all(|known| known.name != lock.name) {
        unread.push(lock);
    }
}

/// Who holds a lock. During a quarantine nobody does.
fn holders(lock: &Found) -> impl DoubleEndedIterator<Item = &Holder> {
    let holders = lock.status.holders.iter();
    holders.filter(|holder| !show::is_nobody(holder))
}

/// The locks that the subject waits for, or that the holders of the lock with that name wait for; then those that their
/// holders wait for, and so on. Each lock comes once.
fn waits<'a>(found: &'a [Found], subject: &'a str, lock: Option<&'a Found>) -> Vec<Wait<'a>> {
    let asked_for = Who::Named(subject);
    let mut waits = Vec::new();
    let mut seen = BTreeSet::new();
    let mut questions = VecDeque::from([(Who::Named(subject), None)]);
    if let Some(lock) = lock {
        seen.insert(&lock.name);
        let question = |holder: &'a Holder| (Who::Holder(holder.owner, &holder.client), Some(lock.name.as_str()));
        questions.extend(holders(lock).map(question));
    }
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
            for holder in holders(lock).filter(|holder| !upgrades(holder)) {
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

/// The holds at the ends of the chain: their leases go on, and their processes wait for no lock.
fn blamed<'a>(found: &'a [Found], lock: Option<&'a Found>, waits: &[Wait<'a>]) -> Vec<Blamed<'a>> {
    let waiters = || found.iter().flat_map(|lock| &lock.status.waiters);
    let owners: BTreeSet<Owner> = waiters().map(|waiter| waiter.owner).collect();
    let clients: BTreeSet<&str> = waiters().map(|waiter| waiter.client.id.as_str()).collect();
    let is_end = |holder: &&Holder| {
        let waits = owners.contains(&holder.owner) || clients.contains(holder.client.id.as_str());
        holder.expired_for.is_none() && !waits
    };
    let locks = lock.into_iter().chain(waits.iter().map(|wait| wait.lock));
    let mut blamed: Vec<_> = locks
        .flat_map(|lock| {
            let ends = holders(lock).filter(is_end);
            ends.map(move |holder| Blamed { lock, holder })
        })
        .collect();
    blamed.sort_by_key(|blamed| Reverse(blamed.holder.held_for));
    blamed
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

fn tell(server: &ServerArgs, found: &[Found], chain: &Chain<'_>) -> Result<(), Failure> {
    let subject = chain.subject;
    if chain.is_empty() {
        complain(&nothing(server, found, subject));
        return Ok(());
    }
    let of_lock = chain.lock.map(|lock| show::page(lock).trim_end().to_owned() + "\n");
    let sections = chain.waits.iter().map(|wait| section(wait, subject));
    let mut sections: Vec<_> = of_lock.into_iter().chain(sections).collect();
    // A holder that nobody waits for is not to blame for anything.
    if chain.lock.is_none_or(|lock| lock.status.waiting > 0) && !chain.blamed.is_empty() {
        sections.push(blame(server, &chain.blamed));
    }
    if let Some(circle) = &chain.deadlock {
        sections.push(circle::told(circle));
    }
    say(&sections.join("\n"))
}

/// Why there is no chain.
fn nothing(server: &ServerArgs, found: &[Found], subject: &str) -> String {
    let subject_is = Who::Named(subject);
    let hold_of = |lock: &Found| {
        // The hold with the longest lease comes last.
        let hold = holders(lock).rfind(|holder| subject_is.is(&holder.owner, &holder.client))?;
        let name = safe(&lock.name);
        Some(match hold.expired_for {
            None => name,
            Some(since) => format!("{name} ({})", text::expired(since)),
        })
    };
    let held: Vec<_> = found.iter().filter_map(hold_of).collect();
    let is_free = found.iter().any(|lock| lock.name == subject);
    let shown = safe(subject);
    match (held.is_empty(), is_free) {
        (false, _) => format!("{shown} waits for nothing; it holds {}", held.join(", ")),
        (true, true) => format!("the lock {shown} is free, and nobody waits for it"),
        (true, false) => format!(
            "{shown} is no lock under prefix {}, and nobody of that name waits for one or holds one there",
            safe(&server.prefix)
        ),
    }
}

/// Whom to blame, and what to type.
fn blame(server: &ServerArgs, blamed: &[Blamed<'_>]) -> String {
    const MOST: usize = 5;
    let mut text = "To blame:\n".to_owned();
    for Blamed { lock, holder } in blamed.iter().take(MOST) {
        let who = text::origin_in_short(&holder.client);
        let (name, held) = (safe(&lock.name), span(holder.held_for));
        text += &format!("  {who} has held {name} for {held} and its process waits for no lock\n");
        // Their own words are from everybody who can write to the server: the host's name is no part of what one pastes,
        // the process 0 is the group of who does, and a number beyond those of processes may come out negative.
        let is_one = |process: &u32| i32::try_from(*process).is_ok_and(|process| process > 0);
        if let Some(process) = holder.client.process.filter(is_one) {
            let host = holder.client.host.as_deref().map_or("its host".to_owned(), safe_word);
            text += &format!("    first end it on {host}:\n                     kill {process}\n");
        }
        let (name, owner) = (text::operand(&lock.name), holder.owner);
        text += &format!("    or else type:    {} evict {name} {owner}\n", server.typed());
    }
    if blamed.len() > MOST {
        text += &format!("  and {} more\n", blamed.len() - MOST);
    }
    text
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
    match show::quarantine(&wait.lock.status) {
        Some(left) if !left.is_zero() => {
            let by_nobody = show::held_by_nobody(left).replacen('h', "H", 1);
            text += &format!("  {by_nobody}\n");
        }
        None if !holders.is_empty() => {
            text += "  Held by\n";
            text += &show::holders(holders, None);
        }
        _ => text += "  Nobody holds the lock: the next renewal grants it to the first waiter.\n",
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
