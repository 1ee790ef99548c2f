//! `fairlock evict`

use crate::args::EvictArgs;
use crate::blockers::Who;
use crate::json;
use crate::locks::{self, Eye, Found};
use crate::outcome::{Failure, Outcome, Status, complain, say};
use crate::quorum::Target;
use crate::show;
use crate::text::{count, safe};
use fairlock::Owner;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

/// What an eviction did.
pub(crate) struct Evicted {
    pub(crate) requests: usize,
    /// At how many servers of a quorum, and how many there are.
    pub(crate) servers: Option<(usize, usize)>,
}

pub(crate) async fn run(target: &Target, args: &EvictArgs) -> Outcome {
    let eye = Eye::open(target).await?;
    let owner = match args.owner.parse() {
        Ok(owner) => owner,
        Err(_) => the_owner_called(&eye, &args.name, &args.owner).await?,
    };
    if !args.yes && !confirmed(&eye, &args.name, &owner).await? {
        eye.shutdown().await;
        complain("nothing was evicted");
        return Ok(Status::NO);
    }
    let evicted = evict(&eye, &args.name, &owner).await?;
    eye.shutdown().await;
    if args.output.json {
        json::document(&document(&args.name, &owner, &evicted))?;
    } else if evicted.requests > 0 {
        let requests = count(evicted.requests, "request", "requests");
        let servers = evicted
            .servers
            .map(|(answers, all)| format!(" at {answers} of {all} servers"));
        let servers = servers.unwrap_or_default();
        say(&format!(
            "evicted {owner} from {}: {requests}{servers}\n",
            safe(&args.name)
        ))?;
    } else {
        complain(&format!("{owner} neither holds {} nor waits for it", safe(&args.name)));
    }
    Ok(if evicted.requests > 0 { Status::OK } else { Status::NO })
}

pub(crate) fn document(lock: &str, owner: &Owner, evicted: &Evicted) -> Value {
    let servers = evicted.servers.map(|(answers, _)| answers);
    json!({"lock": lock, "owner": owner.to_string(), "evicted": evicted.requests, "servers": servers})
}

/// Fails if there is no such lock.
pub(crate) async fn evict(eye: &Eye<'_>, name: &str, owner: &Owner) -> Result<Evicted, Failure> {
    let evicted = match eye {
        Eye::One { client, .. } => Evicted {
            requests: client.rw_lock(name).evict(owner).await?,
            servers: None,
        },
        Eye::Several(fleet) => fleet.evict(name, owner).await?,
    };
    if evicted.requests == 0 {
        eye.must_exist(name).await?;
    }
    Ok(evicted)
}

/// The one owner of a lock that a label, a client's number or a process's number names.
async fn the_owner_called(eye: &Eye<'_>, name: &str, subject: &str) -> Result<Owner, Failure> {
    eye.must_exist(name).await?;
    let (mut found, _) = eye.status(name).await?;
    if let Eye::One { client, .. } = eye {
        locks::complete(client, &mut found).await?;
    }
    let (who, status) = (Who::Named(subject), &found.status);
    let holders = status.holders.iter().map(|holder| (holder.owner, &holder.client));
    let waiters = status.waiters.iter().map(|waiter| (waiter.owner, &waiter.client));
    let called = holders.chain(waiters).filter(|(owner, client)| who.is(owner, client));
    let owners: BTreeSet<Owner> = called.map(|(owner, _)| owner).collect();
    let (subject, name) = (safe(subject), safe(name));
    match Vec::from_iter(owners).as_slice() {
        [] => Err(Failure::new(
            Status::NO,
            format!("nobody called {subject} holds {name} or waits for it: see `fairlock show`"),
        )),
        [owner] => Ok(*owner),
        several => {
            let each: Vec<_> = several.iter().map(Owner::to_string).collect();
            let (n, each) = (each.len(), each.join(", "));
            Err(Failure::usage(format!(
                "{subject} is {n} owners of {name}, name one: {each}"
            )))
        }
    }
}

async fn confirmed(eye: &Eye<'_>, name: &str, owner: &Owner) -> Result<bool, Failure> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(Failure::usage(
            "cannot ask whether to evict, because there is no terminal: add --yes",
        ));
    }
    let Found { status, .. } = eye.status(name).await?.0;
    if status.holding + status.waiting == 0 {
        // The eviction changes nothing, so there is nothing to ask.
        return Ok(true);
    }
    let holders: Vec<_> = status.holders.iter().filter(|holder| holder.owner == *owner).collect();
    let waiters: Vec<_> = status.waiters.iter().filter(|waiter| waiter.owner == *owner).collect();
    let mut question = String::new();
    if !holders.is_empty() {
        question += &format!("{} is held by\n{}", safe(name), show::holders(holders, None));
    }
    if !waiters.is_empty() {
        question += &format!("{} is waited for by\n{}", safe(name), show::waiters(waiters));
    }
    question += "Until the owner learns of the eviction, it believes that it holds the lock. Evict it? [y/N] ";
    let mut stderr = io::stderr();
    let _ = stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush());
    let mut answer = String::new();
    // This blocks the runtime's only thread. The client holds nothing, so no renewal is late.
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::new(Status::BROKEN, format!("cannot read the answer: {error}")))?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
