//! `fairlock run`

use crate::args::RunArgs;
use crate::child::{Child, status_of};
use crate::complaints::Complaints;
use crate::nested::{self, By};
use crate::outcome::{Failure, Outcome, Status};
use crate::progress;
use crate::quorum::{self, Target};
use crate::signals::{ENDING, Signals};
use crate::text::{safe, span};
use fairlock::{
    Access, Acquire, AcquireAll, AllGuard, Client, ClientBuilder, Error, FencingToken, Guard, LostReason, RwLock,
};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
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

pub(crate) async fn run(target: &Target, args: RunArgs) -> Outcome {
    let server = match target {
        Target::One(server) => server,
        Target::Several(servers) => return quorum::run::run(servers, args).await,
    };
    let connecting = server.connect(builder(args.lease, args.label.as_deref(), &args.command));
    let outcome = with_signals(connecting, async |client: &Client, signals, complaints| {
        with_client(client, &server.prefix, &args, signals, complaints).await
    });
    outcome.await.map_err(|failure| chosen(&args, failure))
}

/// With the exit status that the command line chooses.
pub(crate) fn chosen(args: &RunArgs, failure: Failure) -> Failure {
    Failure {
        status: match failure.status {
            Status::UNAVAILABLE => Status(args.unavailable_status),
            Status::LOST => Status(args.lost_status),
            Status::BUSY => Status(args.busy_status),
            status => status,
        },
        ..failure
    }
}

/// The client that runs a command, which gives the client its label.
pub(crate) fn builder(lease: Option<Duration>, given: Option<&str>, command: &[OsString]) -> ClientBuilder {
    let builder = Client::builder().label(label(given, command));
    match lease {
        Some(lease) => builder.lease(lease),
        None => builder,
    }
}

pub(crate) fn label(given: Option<&str>, command: &[OsString]) -> String {
    let of_command = || label_of(command.first()?);
    given
        .map(str::to_owned)
        .or_else(of_command)
        .unwrap_or_else(|| "fairlock".to_owned())
}

/// What the command is connected to while it runs another command.
pub(crate) trait Connected {
    async fn shutdown(&self);
}

impl Connected for Client {
    async fn shutdown(&self) {
        Self::shutdown(self).await;
    }
}

/// Does what a command under a lock needs: listens to signals, connects, and ends with all complaints written.
pub(crate) async fn with_signals<C: Connected>(
    connecting: impl Future<Output = Result<C, Failure>>,
    job: impl AsyncFnOnce(&C, &mut Signals, &Complaints) -> Outcome,
) -> Outcome {
    // Before the first call to the server, so that an interrupted command leaves nothing behind.
    let signals = Signals::listen(&FORWARDED);
    let mut signals = signals.map_err(|error| Failure::new(Status::BROKEN, format!("no signals: {error}")))?;
    let client = tokio::select! {
        biased;
        signal = signals.next() => return Err(Failure::signal(signal.as_raw())),
        client = connecting => client,
    };
    let complaints = Complaints::start();
    let outcome = match client {
        Ok(client) => {
            let outcome = job(&client, &mut signals, &complaints).await;
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
    outcome
}

/// Waits for a signal that ends a wait without limit after the command has ended. A signal of the first second may have
/// been for the command, so it counts only when the second is over: whoever wants fairlock to end may send no other one.
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

async fn with_client(
    client: &Client,
    prefix: &str,
    args: &RunArgs,
    signals: &mut Signals,
    complaints: &Complaints,
) -> Outcome {
    if args.waits_for_ever() {
        nested::refuse(client, prefix, &args.locks()).await?;
    }
    if !args.and.is_empty() {
        return under_all(client, prefix, args, signals, complaints).await;
    }
    if let Some(limit) = args.semaphore {
        let permits = client.semaphore(&args.name, limit).permits(args.permits);
        return under(permits, prefix, args, signals, complaints).await;
    }
    let lock = client.rw_lock(&args.name).policy(args.policy.into());
    if args.read {
        under(lock.read(), prefix, args, signals, complaints).await
    } else {
        under(lock.write(), prefix, args, signals, complaints).await
    }
}

async fn under<M: Access>(
    request: Acquire<M>,
    prefix: &str,
    args: &RunArgs,
    signals: &mut Signals,
    complaints: &Complaints,
) -> Outcome {
    let request = match args.max_hold {
        Some(max_hold) => request.max_hold(max_hold),
        None => request,
    };
    let request = match args.at_least {
        Some(time) => request.hold_at_least(time),
        None => request,
    };
    let request = match args.max_queue {
        Some(most) => request.max_queue(most),
        None => request,
    };
    let acquiring = async {
        let guard = match (args.no_wait, args.wait) {
            (true, _) => request.try_acquire().await?,
            (false, limit) if args.verbose => {
                let limit = limit.unwrap_or(Duration::MAX);
                progress::wait(request, limit, &args.name, complaints).await?
            }
            (false, Some(limit)) => request.try_acquire_for(limit).await?,
            (false, None) => Some(request.acquire_fair().await?),
        };
        Ok(guard.map(|guard| {
            let mut variables = variables(&args.name, Some(guard.fencing_token()));
            variables.push(nested::variable(prefix, &args.locks(), &By::Owner(guard.owner())));
            (guard, variables)
        }))
    };
    run_under(acquiring, args, signals, complaints).await
}

/// The same under several locks.
async fn under_all(
    client: &Client,
    prefix: &str,
    args: &RunArgs,
    signals: &mut Signals,
    complaints: &Complaints,
) -> Outcome {
    if let Some(name) = args.locks().iter().find(|name| name.contains('\n')) {
        let message = format!(
            "the lock {} has a line feed, which ends a line of FAIRLOCK_TOKENS",
            safe(name)
        );
        return Err(Failure::usage(message));
    }
    if args.semaphore.is_some() && args.and.contains(&args.name) {
        let message = "--and names the semaphore itself, whose permits are held already: leave it out";
        return Err(Failure::usage(message.to_owned()));
    }
    let lock = |name: &String| client.rw_lock(name).policy(args.policy.into());
    let add = |all: AcquireAll, lock: &RwLock| match args.read {
        true => all.read(lock),
        false => all.write(lock),
    };
    let (first, request) = match args.semaphore {
        Some(limit) => {
            let semaphore = client.semaphore(&args.name, limit);
            (
                semaphore.rw_lock().clone(),
                client.all().permits(&semaphore, args.permits),
            )
        }
        None => {
            let first = lock(&args.name);
            let request = add(client.all(), &first);
            (first, request)
        }
    };
    let others: Vec<_> = args.and.iter().map(lock).collect();
    let request = others.iter().fold(request, add);
    let request = match args.max_queue {
        Some(most) => request.max_queue(most),
        None => request,
    };
    let request = match args.max_hold {
        Some(max_hold) => request.max_hold(max_hold),
        None => request,
    };
    let variables = |all: &AllGuard, by: &By<'_>| {
        let mut variables = variables(&args.name, all.fencing_token(&first));
        variables.push(("FAIRLOCK_TOKENS", tokens(all, &first, &others)));
        variables.push(nested::variable(prefix, &args.locks(), by));
        variables
    };
    let acquiring = async {
        let all = match (args.no_wait, args.wait) {
            (true, _) => request.try_acquire().await?,
            (false, Some(limit)) => request.try_acquire_for(limit).await?,
            (false, None) => Some(request.acquire_fair().await?),
        };
        let Some(all) = all else { return Ok(None) };
        let client = match (args.semaphore, others.first()) {
            (Some(_), Some(lock)) => nested::client_of(all.owner(), lock).await,
            _ => None,
        };
        let by = client.as_deref().map_or(By::Owner(all.owner()), By::Client);
        let variables = variables(&all, &by);
        Ok(Some((all, variables)))
    };
    run_under(acquiring, args, signals, complaints).await
}

/// A line for each lock, once for a lock that is named twice.
fn tokens(all: &AllGuard, first: &RwLock, others: &[RwLock]) -> String {
    let mut seen = BTreeSet::new();
    let once = std::iter::once(first)
        .chain(others)
        .filter(|lock| seen.insert(lock.name()));
    let line = |lock: &RwLock| Some(format!("{} {}", all.fencing_token(lock)?, lock.name()));
    let lines: Vec<_> = once.filter_map(line).collect();
    lines.join("\n")
}

/// What the command finds in its environment.
pub(crate) type Variables = Vec<(&'static str, String)>;

pub(crate) fn variables(name: &str, token: Option<FencingToken>) -> Variables {
    let token = token.map(|token| token.to_string()).unwrap_or_default();
    vec![("FAIRLOCK_TOKEN", token), ("FAIRLOCK_NAME", name.to_owned())]
}

/// What the command runs under: a lock, or several.
pub(crate) trait Held {
    async fn lost(&self) -> LostReason;
    async fn release(self) -> Result<(), Error>;
}

impl<M: Access> Held for Guard<M> {
    async fn lost(&self) -> LostReason {
        Self::lost(self).await
    }

    async fn release(self) -> Result<(), Error> {
        Self::release(self).await
    }
}

impl Held for AllGuard {
    async fn lost(&self) -> LostReason {
        Self::lost(self).await
    }

    async fn release(self) -> Result<(), Error> {
        Self::release(self).await
    }
}

pub(crate) async fn run_under<H: Held>(
    acquiring: impl Future<Output = Result<Option<(H, Variables)>, Error>>,
    args: &RunArgs,
    signals: &mut Signals,
    complaints: &Complaints,
) -> Outcome {
    let acquired = tokio::select! {
        biased;
        // The dropped future leaves the queue; the client's shutdown waits until the server has confirmed that.
        signal = signals.next() => return Err(Failure::signal(signal.as_raw())),
        acquired = Box::pin(acquiring) => acquired.map_err(not_entered)?,
    };
    let Some((guard, variables)) = acquired else {
        let why = match args.wait {
            Some(limit) if !limit.is_zero() => format!("not acquired within {}", span(limit)),
            _ => "busy".to_owned(),
        };
        return Err(Failure::new(Status::BUSY, format!("{}: {why}", safe(&args.name))));
    };
    let (ended, guard) = under_guard(guard, variables, &args.command, args.grace, signals, complaints).await?;
    settle(guard, &ended, signals, complaints).await
}

/// The request failed while it waited, so no work has lost its lock. One that an operator evicted had its turn taken;
/// any other loss is that of a server that was away, or forgot what it had granted.
fn not_entered(error: Error) -> Failure {
    match error {
        Error::Lost { lock, reason, .. } => {
            let message = format!(
                "{}: the request ended while it waited: {reason}; COMMAND has not run",
                safe(&lock)
            );
            let status = match reason {
                LostReason::Evicted => Status::BUSY,
                _ => Status::UNAVAILABLE,
            };
            Failure::new(status, message)
        }
        error => error.into(),
    }
}

/// Runs a command while the guard holds its lock.
pub(crate) async fn under_guard<H: Held>(
    guard: H,
    variables: Variables,
    command: &[OsString],
    grace: Duration,
    signals: &mut Signals,
    complaints: &Complaints,
) -> Result<(Ended, H), Failure> {
    let mut child = Child::start(command, variables)?;
    let ended = while_it_runs(&mut child, &guard, signals, complaints, grace).await?;
    Ok((ended, guard))
}

/// How the command ended, and whether the lock had been lost by then.
pub(crate) struct Ended {
    status: Status,
    pub(crate) lost: bool,
    /// A signal that usually ends a command came.
    pub(crate) told_to_end: bool,
}

async fn while_it_runs(
    child: &mut Child,
    guard: &impl Held,
    signals: &mut Signals,
    complaints: &Complaints,
    grace: Duration,
) -> Result<Ended, Failure> {
    let lost = guard.lost();
    tokio::pin!(lost);
    let (mut is_lost, mut told_to_end) = (false, false);
    // `None`: the grace has not begun, or is over.
    let mut kill_at = None;
    let ended = loop {
        tokio::select! {
            biased;
            ended = child.wait() => break ended,
            signal = signals.next() => {
                told_to_end |= ENDING.contains(&signal);
                child.forward(signal);
            }
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
        let kill_at = kill_at.unwrap_or_else(Instant::now);
        while child.has_group() {
            tokio::select! {
                biased;
                signal = signals.next() => {
                    told_to_end |= ENDING.contains(&signal);
                    child.forward(signal);
                }
                () = sleep_until(kill_at) => {
                    child.send(Signal::KILL);
                    break;
                }
                () = sleep(Duration::from_millis(20)) => {}
            }
        }
    }
    Ok(Ended {
        status: status_of(ended),
        lost: is_lost,
        told_to_end,
    })
}

/// Releases the lock and returns the exit status. A command that ran without its lock, even only at its end, has failed.
pub(crate) async fn settle(guard: impl Held, ended: &Ended, signals: &mut Signals, complaints: &Complaints) -> Outcome {
    let released = tokio::select! {
        released = guard.release() => released,
        // The release goes on until the lease may have ended. The client's shutdown tries it once more, with a time-out.
        () = impatience(signals) => {
            complaints.add("the server has not confirmed the release: the lock is free at the latest when its lease has run out");
            return if ended.lost { Err(after_a_loss(ended)) } else { Ok(ended.status) };
        }
    };
    match released {
        Ok(()) => Ok(ended.status),
        Err(Error::Lost { .. }) if ended.lost => Err(after_a_loss(ended)),
        Err(Error::Lost { reason, .. }) => {
            let status = ended.status.0;
            let message = format!("lost the lock before the command ended with status {status}: {reason}");
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

fn after_a_loss(ended: &Ended) -> Failure {
    let status = ended.status.0;
    let message = format!("the command ended with status {status} after the lock was lost");
    Failure::new(Status::LOST, message)
}

/// The characters of the command's name that a label may have.
fn label_of(program: impl AsRef<OsStr>) -> Option<String> {
    let name = Path::new(program.as_ref()).file_name()?.to_string_lossy();
    let label: String = name.chars().filter(char::is_ascii_graphic).take(128).collect();
    (!label.is_empty()).then_some(label)
}
