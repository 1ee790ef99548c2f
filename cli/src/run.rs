//! `fairlock run`

use crate::args::RunArgs;
use crate::child::{Child, status_of};
use crate::complaints::Complaints;
use crate::outcome::{Failure, Outcome, Status};
use crate::server::ServerArgs;
use crate::signals::Signals;
use crate::text::{safe, span};
use fairlock::{Access, Acquire, Client, Error, Guard};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

const FORWARDED: [Signal; 6] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
];

/// Forever, as far as clocks can count.
const LONGEST_GRACE: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

pub(crate) async fn run(server: &ServerArgs, args: RunArgs) -> Outcome {
    // Before anything is asked of the server: whoever interrupts us leaves nothing behind.
    let signals = Signals::listen(&FORWARDED);
    let mut signals = signals.map_err(|error| Failure::new(Status::BROKEN, format!("no signals: {error}")))?;
    let label = args.label.clone().or_else(|| label_of(args.command.first()?));
    let label = label.unwrap_or_else(|| "fairlock".to_owned());
    let client = tokio::select! {
        biased;
        signal = signals.next() => return Err(Failure::signal(signal.as_raw())),
        client = server.connect(Client::builder().lease(args.lease).label(label)) => client,
    };
    let complaints = Complaints::start();
    let outcome = match client {
        Ok(client) => {
            let outcome = with_client(&client, &args, &mut signals, &complaints).await;
            client.shutdown().await;
            outcome
        }
        Err(failure) => Err(failure),
    };
    let outcome = outcome.map_err(|failure| said(failure, &complaints));
    tokio::select! {
        () = complaints.written() => {}
        () = impatience(&mut signals) => {}
    }
    outcome.map_err(|failure| Failure {
        status: match failure.status {
            Status::UNAVAILABLE => Status(args.unavailable_status),
            Status::LOST => Status(args.lost_status),
            Status::BUSY => Status(args.busy_status),
            status => status,
        },
        ..failure
    })
}

/// A signal that ends what may take forever once the command has ended. Not at once: what came together with the
/// command's end was meant for the command.
async fn impatience(signals: &mut Signals) {
    sleep(Duration::from_secs(1)).await;
    signals.next().await;
}

/// The failure, of which nothing is left to say.
fn said(failure: Failure, complaints: &Complaints) -> Failure {
    if !failure.message.is_empty() {
        complaints.add(failure.message);
    }
    Failure::new(failure.status, "")
}

async fn with_client(client: &Client, args: &RunArgs, signals: &mut Signals, complaints: &Complaints) -> Outcome {
    let lock = client.rw_lock(args.name.as_str()).policy(args.policy.into());
    if args.read {
        under(lock.read(), args, signals, complaints).await
    } else {
        under(lock.write(), args, signals, complaints).await
    }
}

async fn under<M: Access>(
    request: Acquire<M>,
    args: &RunArgs,
    signals: &mut Signals,
    complaints: &Complaints,
) -> Outcome {
    let request = match args.max_hold {
        Some(max_hold) => request.max_hold(max_hold),
        None => request,
    };
    let acquiring = async {
        match (args.no_wait, args.wait) {
            (true, _) => request.try_acquire().await,
            (false, Some(limit)) => request.try_acquire_for(limit).await,
            (false, None) => request.acquire_fair().await.map(Some),
        }
    };
    let guard = tokio::select! {
        biased;
        // The place in the queue goes with the future; the client's shutdown waits until the server knows.
        signal = signals.next() => return Err(Failure::signal(signal.as_raw())),
        guard = Box::pin(acquiring) => guard?,
    };
    let Some(guard) = guard else {
        let why = match args.wait {
            Some(limit) if !limit.is_zero() => format!("not acquired within {}", span(limit)),
            _ => "busy".to_owned(),
        };
        return Err(Failure::new(Status::BUSY, format!("{}: {why}", safe(&args.name))));
    };
    let token = guard.fencing_token().to_string();
    let variables = [
        ("FAIRLOCK_TOKEN", token.as_str()),
        ("FAIRLOCK_NAME", args.name.as_str()),
    ];
    let mut child = Child::start(&args.command, variables)?;
    let ended = while_it_runs(&mut child, &guard, signals, complaints, args.grace).await?;
    settle(guard, &ended, signals, complaints).await
}

/// How the command ended, and whether the lock had been lost by then.
struct Ended {
    status: Status,
    lost: bool,
}

async fn while_it_runs<M: Access>(
    child: &mut Child,
    guard: &Guard<M>,
    signals: &mut Signals,
    complaints: &Complaints,
    grace: Duration,
) -> Result<Ended, Failure> {
    let lost = guard.lost();
    tokio::pin!(lost);
    let mut is_lost = false;
    // None: not yet, or not any more.
    let mut kill_at = None;
    let ended = loop {
        tokio::select! {
            biased;
            ended = child.wait() => break ended,
            signal = signals.next() => child.forward(signal),
            reason = &mut lost, if !is_lost => {
                child.send(Signal::TERM);
                complaints.add(format!("lost the lock: {reason}; ending the command"));
                is_lost = true;
                kill_at = Some(Instant::now() + grace.min(LONGEST_GRACE));
            }
            () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                child.send(Signal::KILL);
                complaints.add("the command has not ended in time: killing it");
                kill_at = None;
            }
        }
    };
    let ended = ended.map_err(|error| Failure::new(Status::BROKEN, format!("cannot wait for the command: {error}")))?;
    if is_lost {
        child.clear_group(kill_at.unwrap_or_else(Instant::now)).await;
    }
    Ok(Ended {
        status: status_of(ended),
        lost: is_lost,
    })
}

/// Releases, and says how all of it ended. A command that ran without its lock, if only at its end, has not succeeded.
async fn settle<M: Access>(guard: Guard<M>, ended: &Ended, signals: &mut Signals, complaints: &Complaints) -> Outcome {
    let released = tokio::select! {
        released = guard.release() => released,
        // It is tried for as long as the lease may last. The client's shutdown tries it once more, not for long.
        () = impatience(signals) => {
            complaints.add("the release is not confirmed: the lock is free at the latest when its lease has run out");
            return Ok(ended.status);
        }
    };
    match released {
        Ok(()) => Ok(ended.status),
        Err(Error::Lost { reason, .. }) => {
            let status = ended.status.0;
            let message = match ended.lost {
                true => format!("the command ended with status {status} after the lock was lost"),
                false => format!("lost the lock before the command ended with status {status}: {reason}"),
            };
            Err(Failure::new(Status::LOST, message))
        }
        Err(error) => {
            complaints.add(format!("not released, it is free when its lease has run out: {error}"));
            Ok(ended.status)
        }
    }
}

/// The command's name, as far as it can be a label.
fn label_of(program: impl AsRef<OsStr>) -> Option<String> {
    let name = Path::new(program.as_ref()).file_name()?.to_string_lossy();
    let label: String = name.chars().filter(char::is_ascii_graphic).take(128).collect();
    (!label.is_empty()).then_some(label)
}
