//! `fairlock evict`

use crate::args::EvictArgs;
use crate::json;
use crate::locks;
use crate::outcome::{Failure, Outcome, Status, complain, say};
use crate::server::ServerArgs;
use crate::show;
use crate::text::{count, safe};
use fairlock::{Owner, RwLock};
use serde_json::json;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

pub(crate) async fn run(server: &ServerArgs, args: &EvictArgs) -> Outcome {
    let owner: Owner = args.owner.parse().map_err(|_| {
        let what = format!("not an owner: {}", safe(&args.owner));
        Failure::usage(format!(
            "{what}; owners look like {}, see `fairlock show`",
            uuid::Uuid::nil()
        ))
    })?;
    let client = server.client().await?;
    let lock = client.rw_lock(args.name.as_str());
    if !args.yes && !confirmed(&lock, &owner).await? {
        client.shutdown().await;
        complain("nothing was evicted");
        return Ok(Status::NO);
    }
    let requests = lock.evict(&owner).await?;
    let known = match requests {
        0 => locks::must_exist(server, &lock).await,
        _ => Ok(()),
    };
    client.shutdown().await;
    known?;
    if args.output.json {
        let owner = owner.to_string();
        json::document(&json!({"lock": args.name, "owner": owner, "evicted": requests}))?;
    } else if requests > 0 {
        let requests = count(requests, "request", "requests");
        say(&format!("evicted {owner} from {}: {requests}\n", safe(&args.name)))?;
    } else {
        complain(&format!("{owner} neither holds {} nor waits for it", safe(&args.name)));
    }
    Ok(if requests > 0 { Status::OK } else { Status::NO })
}

async fn confirmed(lock: &RwLock, owner: &Owner) -> Result<bool, Failure> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(Failure::usage(
            "cannot ask whether to evict, because there is no terminal: add --yes",
        ));
    }
    let status = lock.status().await?;
    if status.holding + status.waiting == 0 {
        // The eviction changes nothing, so there is nothing to ask.
        return Ok(true);
    }
    let holders: Vec<_> = status.holders.iter().filter(|holder| holder.owner == *owner).collect();
    let waiters: Vec<_> = status.waiters.iter().filter(|waiter| waiter.owner == *owner).collect();
    let mut question = String::new();
    if !holders.is_empty() {
        question += &format!("{} is held by\n{}", safe(lock.name()), show::holders(holders));
    }
    if !waiters.is_empty() {
        question += &format!("{} is waited for by\n{}", safe(lock.name()), show::waiters(waiters));
    }
    question += "Until the owner learns of the eviction, it believes that it holds the lock. Evict it? [y/N] ";
    let mut stderr = io::stderr();
    let _ = stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush());
    let mut answer = String::new();
    // This blocks the runtime's only thread. The client holds nothing, so no renewal is late.
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::new(Status::BROKEN, format!("cannot read the answer: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
