//! `fairlock run` under the lock of a quorum.

use super::Servers;
use crate::args::RunArgs;
use crate::complaints::Complaints;
use crate::nested::{self, By};
use crate::outcome::{Failure, Outcome};
use crate::run::{Connected, Held, chosen, label, run_under, variables, with_signals};
use crate::signals::Signals;
use fairlock::{Access, Error, LostReason, Owner, Quorum, QuorumAcquire, QuorumGuard};

impl<M: Access> Held for QuorumGuard<M> {
    async fn lost(&self) -> LostReason {
        Self::lost(self).await
    }

    async fn release(self) -> Result<(), Error> {
        Self::release(self).await
    }
}

impl Connected for Quorum {
    async fn shutdown(&self) {
        Self::shutdown(self).await;
    }
}

pub(crate) async fn run(servers: &Servers, args: RunArgs) -> Outcome {
    refuse(&args)?;
    let prefix = servers.each[0].prefix.as_str();
    let at = servers.addresses()?;
    if args.waits_for_ever() {
        nested::refuse_of_quorum(prefix, &args.locks(), &at)?;
    }
    let label = label(args.label.as_deref(), &args.command);
    let connecting = servers.quorum(args.lease, &label);
    let outcome = with_signals(connecting, async |quorum: &Quorum, signals, complaints| {
        // A named owner counts as one, also after a server was asked again: see `QuorumHolder::owner`.
        let lock = quorum.rw_lock(args.name.as_str()).with_owner(&Owner::new());
        let lock = lock.policy(args.policy.into());
        match args.read {
            true => under(lock.read(), (prefix, &at), &args, signals, complaints).await,
            false => under(lock.write(), (prefix, &at), &args, signals, complaints).await,
        }
    });
    outcome.await.map_err(|failure| chosen(&args, failure))
}

/// What a majority of servers cannot keep.
fn refuse(args: &RunArgs) -> Result<(), Failure> {
    let options = [
        (
            args.semaphore.is_some(),
            "--semaphore",
            "permits of different majorities do not add up",
        ),
        (
            !args.and.is_empty(),
            "--and",
            "run one command inside the other instead, in the same order everywhere",
        ),
        (args.max_queue.is_some(), "--max-queue", "use --wait instead"),
        (args.at_least.is_some(), "--at-least", "let COMMAND end later instead"),
        (
            args.verbose,
            "--verbose",
            "each server has a queue of its own, which fairlock show lists",
        ),
    ];
    match options.into_iter().find(|(is_used, ..)| *is_used) {
        None => Ok(()),
        Some((_, option, remedy)) => {
            let what = format!("a quorum has no {option}: {remedy}");
            Err(Failure::usage(format!("{what}; or name a single server by --url")))
        }
    }
}

async fn under<M: Access>(
    request: QuorumAcquire<M>,
    (prefix, servers): (&str, &[String]),
    args: &RunArgs,
    signals: &mut Signals,
    complaints: &Complaints,
) -> Outcome {
    let request = match args.max_hold {
        Some(max_hold) => request.max_hold(max_hold),
        None => request,
    };
    let acquiring = async {
        let guard = match (args.no_wait, args.wait) {
            (true, _) => request.try_acquire().await?,
            (false, Some(limit)) => request.try_acquire_for(limit).await?,
            (false, None) => Some(request.acquire_fair().await?),
        };
        let Some(guard) = guard else { return Ok(None) };
        // A majority knows the token before the command does.
        let token = guard.fencing_token().await?;
        let mut variables = variables(&args.name, Some(token));
        variables.push(nested::variable(prefix, &args.locks(), &By::Servers(servers)));
        Ok(Some((guard, variables)))
    };
    run_under(acquiring, args, signals, complaints).await
}
