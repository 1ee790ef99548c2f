//! `fairlock doctor`

mod findings;
mod server;
mod set;

use crate::args::OutputArgs;
use crate::json;
use crate::outcome::{Outcome, Status, say};
use crate::quorum::Target;
use crate::server::ServerArgs;
use crate::text::{count, safe};
use findings::{Findings, Level};
use serde_json::json;

pub(crate) async fn run(target: &Target, args: &OutputArgs) -> Outcome {
    match target {
        Target::One(server) => one(server, args).await,
        Target::Several(servers) => set::run(servers, args).await,
    }
}

async fn one(server: &ServerArgs, args: &OutputArgs) -> Outcome {
    let examined = server::examine(server, false).await?;
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
