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

/// A longer grace would overflow the clock.
const LONGEST_GRACE: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

pub(crate) async fn run(server: &ServerArgs, args: RunArgs) -> Outcome {
    // Before the first call to the server, so that an interrupted command leaves nothing behind.
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

/// Waits for a signal that ends a wait without limit after the command has ended. Signals of the first second do not count,
/// because they were meant for the command.
async fn impatience(signals: &mut Signals) {
    sleep(Duration::from_secs(1)).await;
    signals.next().await;
}

/// Queues the failure's message, and returns the failure without it.
fn said(failure: Failure, complaints: &Complaints) -> Failure {
    if !failure.message.is_empty() {
        complaints.add(failure.message);
    }
    Failure::new(failure.status, "")
}

async fn with_client(client: &Client, args: &RunArgs, signals: &mut Signals, complaints: &Complaints) -> Outcome {
    if let Some(limit) = args.semaphore {
        let permits = client.semaphore(&args.name, limit).permits(args.permits);
        return under(permits, args, signals, complaints).await;
    }
    let lock = client.rw_lock(&args.name).policy(args.policy.into());
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
    let request = match args.max_queue {
        Some(most) => request.max_queue(most),
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
        // The dropped future leaves the queue; the client's shutdown waits until the server has confirmed that.
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
    // `None`: the grace has not begun, or is over.
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
                complaints.add("the command has not ended within the grace: killing it");
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

/// Releases the lock and returns the exit status. A command that ran without its lock, even only at its end, has failed.
async fn settle<M: Access>(guard: Guard<M>, ended: &Ended, signals: &mut Signals, complaints: &Complaints) -> Outcome {
    let released = tokio::select! {
        released = guard.release() => released,
        // The release goes on until the lease may have ended. The client's shutdown tries it once more, with a time-out.
        () = impatience(signals) => {
            complaints.add("the server has not confirmed the release: the lock is free at the latest when its lease has run out");
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
            complaints.add(format!(
                "the lock was not released and is free when its lease has run out: {error}"
            ));
            Ok(ended.status)
        }
    }
}

/// The characters of the command's name that a label may have.
fn label_of(program: impl AsRef<OsStr>) -> Option<String> {
    let name = Path::new(program.as_ref()).file_name()?.to_string_lossy();
    let label: String = name.chars().filter(char::is_ascii_graphic).take(128).collect();
    (!label.is_empty()).then_some(label)
}
