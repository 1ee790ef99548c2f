//! `fairlock leader`

use crate::args::LeaderArgs;
use crate::json;
use crate::outcome::{Failure, Outcome, Status, complain, say, say_until};
use crate::server::ServerArgs;
use crate::text::{origin_in_short, safe};
use crate::watch::interrupted;
use fairlock::Leader;
use serde_json::{Value, json};

pub(crate) async fn run(server: &ServerArgs, args: &LeaderArgs) -> Outcome {
    let client = match args.watch {
        true => server.listener().await?,
        false => server.looker().await?,
    };
    let election = client.election(args.name.as_str());
    let outcome = match args.watch {
        true => watch(election.observe().await?, args).await,
        false => {
            let leader = election.leader().await?;
            say(&told(&leader, args)).map(|()| match leader {
                Some(_) => Status::OK,
                None => Status::NO,
            })
        }
    };
    client.shutdown().await;
    outcome
}

async fn watch(mut leaders: fairlock::Leaders, args: &LeaderArgs) -> Outcome {
    let interrupted = interrupted(false);
    tokio::pin!(interrupted);
    loop {
        let leader = tokio::select! {
            signal = &mut interrupted => return Err(Failure::signal(signal)),
            leader = leaders.next() => leader,
        };
        match leader {
            Some(Ok(leader)) => say_until(&mut interrupted, told(&leader, args)).await?,
            Some(Err(error)) => complain(&error.to_string()),
            None => {
                return Err(Failure::new(
                    Status::UNAVAILABLE,
                    "the server refused to subscribe again",
                ));
            }
        }
    }
}

fn told(leader: &Option<Leader>, args: &LeaderArgs) -> String {
    if args.output.json {
        return json::line(&json!({"election": args.name, "leader": leader.as_ref().map(described)}));
    }
    let name = safe(&args.name);
    match leader {
        None => format!("{name}: nobody leads\n"),
        Some(leader) => format!(
            "{name}: {} leads since {}, term {}, owner {}\n",
            origin_in_short(&leader.client),
            humantime::format_rfc3339_seconds(leader.since),
            leader.term,
            leader.owner
        ),
    }
}

fn described(leader: &Leader) -> Value {
    json!({
        "owner": leader.owner.to_string(),
        "term": leader.term.get(),
        "since": humantime::format_rfc3339_micros(leader.since).to_string(),
        "client": json::client(&leader.client),
    })
}
