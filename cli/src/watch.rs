//! `fairlock watch`

use crate::args::WatchArgs;
use crate::clients::Clients;
use crate::json;
use crate::outcome::{Failure, Outcome, Status, complain_until, report_until, say_until};
use crate::server::ServerArgs;
#[cfg(unix)]
use crate::signals::{ENDING, ENDING_A_SCREEN, Signals};
use crate::text::{self, safe, safe_word};
use fairlock::{ClientInfo, Error, Event, Events};
use serde_json::json;
#[cfg(unix)]
use std::io;
use std::pin::Pin;

const LEAVES_OUT: &str = "leaving out events of clients that ended before fairlock could ask who they are";

pub(crate) async fn run(server: &ServerArgs, args: &WatchArgs) -> Outcome {
    let client = server.listener().await?;
    let mut events = match &args.name {
        Some(name) => client.rw_lock(name.as_str()).events().await?,
        None => client.events().await?,
    };
    let mut clients = Clients::of(client.clone());
    if let Some(name) = &args.name {
        clients.learn(name).await;
    }
    let subject = args.name.as_deref().map_or("all locks".to_owned(), safe);
    let prefix = safe(&server.prefix);
    let begins = match &args.name {
        Some(name) if !client.rw_lock(name.as_str()).exists().await? => {
            format!("watching {subject} under prefix {prefix}, where there is no such lock yet")
        }
        _ => format!("watching {subject} under prefix {prefix}"),
    };
    // Before the first message: after it others may send a signal.
    let interrupted = interrupted(false);
    tokio::pin!(interrupted);
    let outcome = match complain_until(interrupted.as_mut(), begins).await {
        Ok(()) => tell(&mut events, &mut clients, interrupted.as_mut(), args, &subject).await,
        Err(failure) => Err(failure),
    };
    drop(events);
    client.shutdown().await;
    report_until(interrupted, outcome).await
}

/// Prints the events that the command line asks for, until a signal comes or there are no more.
async fn tell(
    events: &mut Events,
    clients: &mut Clients,
    mut interrupted: Pin<&mut impl Future<Output = i32>>,
    args: &WatchArgs,
    subject: &str,
) -> Outcome {
    let mut told = None;
    loop {
        let event = tokio::select! {
            signal = interrupted.as_mut() => return Err(Failure::signal(signal)),
            event = events.next() => event,
        };
        let said = match event {
            None => return Err(ended(subject)),
            Some(Ok(event)) => {
                let from = clients.who(&event.client_id).await;
                let why = match &from {
                    Err(error) => Some(format!("cannot ask who the clients are: {error}")),
                    Ok(None) if args.label.is_some() || args.host.is_some() => Some(LEAVES_OUT.to_owned()),
                    Ok(_) => None,
                };
                if let Some(why) = why.filter(|why| told.as_ref() != Some(why)) {
                    complain_until(interrupted.as_mut(), why.clone()).await?;
                    told = Some(why);
                }
                let from = from.ok().flatten();
                match concerns(&event, from, args) {
                    true if args.output.json => json::line(&json::event(&event, from)),
                    true => line(&event, from),
                    false => continue,
                }
            }
            Some(Err(error @ Error::EventsMissed { .. })) => {
                complain_until(interrupted.as_mut(), error.to_string()).await?;
                match args.output.json {
                    true => json::line(&json!({"event": "missed", "why": error.to_string()})),
                    false => continue,
                }
            }
            Some(Err(error)) => return Err(error.into()),
        };
        say_until(interrupted.as_mut(), said).await?;
    }
}

/// The stream of events ended by itself: see [`fairlock::Events`].
fn ended(subject: &str) -> Failure {
    let message = format!(
        "watching {subject} no more: the connection was lost, and then the server refused to subscribe; \
         check which channels the ACL user may use"
    );
    Failure::new(Status::UNAVAILABLE, message)
}

/// Whether the event has all that the command line asks for.
fn concerns(event: &Event, from: Option<&ClientInfo>, args: &WatchArgs) -> bool {
    let begins = |wanted: &Option<String>, found: Option<&str>| match wanted {
        None => true,
        Some(wanted) => found.is_some_and(|found| found.starts_with(wanted.as_str())),
    };
    let owner = args.owner.as_ref().map(|owner| owner.to_ascii_lowercase());
    begins(&owner, Some(&event.owner.to_string()))
        && begins(&args.label, from.and_then(|from| from.label.as_deref()))
        && begins(&args.host, from.and_then(|from| from.host.as_deref()))
}

fn line(event: &Event, from: Option<&ClientInfo>) -> String {
    let at = humantime::format_rfc3339_micros(event.at).to_string();
    let (kind, mode) = (event.kind.as_str(), event.mode.as_str());
    let from = from.map_or_else(
        || format!("client {}", safe_word(&event.client_id)),
        text::origin_in_short,
    );
    let mut line = format!(
        "{at}  {kind:<8}  {mode:<5}  {}  {from}  owner {}",
        safe(&event.lock),
        event.owner
    );
    if let Some(token) = event.token {
        line += &format!("  token {token}");
    }
    line + "\n"
}

/// Waits for a signal to end. A signal counts from the call on, even before the first poll. `quits`: QUIT ends too, for
/// who has a terminal to restore.
pub(crate) fn interrupted(quits: bool) -> impl Future<Output = i32> {
    #[cfg(unix)]
    {
        let signals: &[_] = if quits { &ENDING_A_SCREEN } else { &ENDING };
        one_of(Signals::listen(signals))
    }
    #[cfg(not(unix))]
    {
        let _ = quits;
        ctrl_c()
    }
}

#[cfg(unix)]
async fn one_of(signals: io::Result<Signals>) -> i32 {
    match signals {
        Ok(mut signals) => signals.next().await.as_raw(),
        Err(_) => ctrl_c().await,
    }
}

async fn ctrl_c() -> i32 {
    let _ = tokio::signal::ctrl_c().await;
    2
}
