//! `fairlock doctor`

mod cluster;
mod findings;
mod sentinel;
mod server;
mod set;

use crate::args::OutputArgs;
use crate::json;
use crate::outcome::{Failure, Outcome, Status, say};
use crate::quorum::{Target, first_line};
use crate::server::{Kind, ServerArgs};
use crate::text::{count, safe};
use findings::{Finding, Findings, Level};
use serde_json::json;
use server::{Examined, Part};

pub(crate) async fn run(target: &Target, args: &OutputArgs) -> Outcome {
    match target {
        Target::One(server) => {
            let reached = server.reach().await?;
            match reached.kind {
                Kind::Single => one(server, server::examine(server, server, Part::Alone).await?, args),
                Kind::Sentinel => one(server, sentinel::examine(server, reached).await?, args),
                Kind::Cluster => cluster::run(server, reached, args).await,
            }
        }
        Target::Several(servers) => set::run(servers, args).await,
    }
}

fn one(server: &ServerArgs, examined: Examined, args: &OutputArgs) -> Outcome {
    let wrong = examined.findings.number(Level::Wrong);
    if args.json {
        json::document(&json!({
            "server": server.shown(),
            "wrong": wrong,
            "fit_for": fit_for(wrong, examined.only_looks),
            "findings": examined.findings.described(),
        }))?;
    } else {
        let findings = Findings::report(&examined.findings.0);
        let end = end(wrong, examined.only_looks.then(|| server.user()));
        say(&format!("{}\n{findings}{end}\n", safe(&server.shown())))?;
    }
    Ok(status(wrong))
}

/// What is worth a line about one server of several.
fn in_short(findings: Result<&Findings, &Failure>) -> String {
    let findings = match findings {
        Ok(findings) => findings,
        Err(failure) => return format!("{:<5}  {:<11}  {}\n", "WRONG", "answer", safe(&first_line(failure))),
    };
    let good = findings.number(Level::Good);
    let others: Vec<&Finding> = findings
        .0
        .iter()
        .filter(|finding| finding.level != Level::Good)
        .collect();
    let good = format!("{:<5}  {}\n", "ok", count(good, "check", "checks"));
    Findings::report(others) + &good
}

fn fit_for(wrong: usize, only_looks: bool) -> &'static str {
    match (wrong, only_looks) {
        (0, false) => "locking",
        (0, true) => "looking",
        _ => "nothing",
    }
}

/// The last line. `looker`: the user may look and not lock.
fn end(wrong: usize, looker: Option<String>) -> String {
    match (wrong, looker) {
        (0, Some(user)) => format!("Fit to look at locks. User {} cannot use them.", safe(&user)),
        (0, None) => "Fit for locks.".to_owned(),
        (n, _) => format!("{} wrong.", count(n, "thing is", "things are")),
    }
}

fn status(wrong: usize) -> Status {
    if wrong == 0 { Status::OK } else { Status::NO }
}
