//! `fairlock leader`

use crate::args::LeaderArgs;
use crate::json;
use crate::outcome::{Failure, Outcome, Status, complain_until, report_until, say, say_until};
use crate::server::ServerArgs;
use crate::text::{origin_in_short, safe};
use crate::watch::interrupted;
use fairlock::{Client, Leader, Leaders};
use serde_json::{Value, json};
use std::pin::Pin;

pub(crate) async fn run(server: &ServerArgs, args: &LeaderArgs) -> Outcome {
    if args.watch {
        return watch(&server.listener().await?, args).await;
    }
    let (client, _) = server.looker().await?;
    let leader = client.election(args.name.as_str()).leader().await?;
    let outcome = say(&told(&leader, args)).map(|()| match leader {
        Some(_) => Status::OK,
        None => Status::NO,
    });
    client.shutdown().await;
    outcome
}

async fn watch(client: &Client, args: &LeaderArgs) -> Outcome {
    let mut leaders = client.election(args.name.as_str()).observe().await?;
    let interrupted = interrupted(false);
    tokio::pin!(interrupted);
    let outcome = tell(&mut leaders, interrupted.as_mut(), args).await;
    drop(leaders);
    client.shutdown().await;
    report_until(interrupted, outcome).await
}

/// Prints who leads whenever that changes, until a signal comes or nobody tells any more.
async fn tell(
    leaders: &mut Leaders,
    mut interrupted: Pin<&mut impl Future<Output = i32>>,
    args: &LeaderArgs,
) -> Outcome {
    loop {
        let leader = tokio::select! {
            signal = interrupted.as_mut() => return Err(Failure::signal(signal)),
            leader = leaders.next() => leader,
        };
        match leader {
            Some(Ok(leader)) => say_until(interrupted.as_mut(), told(&leader, args)).await?,
            Some(Err(error)) => complain_until(interrupted.as_mut(), error.to_string()).await?,
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
