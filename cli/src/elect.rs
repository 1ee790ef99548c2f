//! `fairlock elect`

use crate::args::ElectArgs;
use crate::complaints::Complaints;
use crate::nested::{self, By};
use crate::outcome::{Failure, Outcome};
use crate::run::{builder, settle, under_guard, variables, with_signals};
use crate::server::ServerArgs;
use crate::signals::Signals;
use crate::text::safe;
use fairlock::{Client, Error};
use std::cell::Cell;

pub(crate) async fn run(server: &ServerArgs, args: ElectArgs) -> Outcome {
    let connecting = server.connect(builder(Some(args.lease), args.label.as_deref(), &args.command));
    let terms = async |client: &Client, signals: &mut Signals, complaints: &Complaints| {
        nested::refuse(client, &server.prefix, &[&args.name]).await?;
        while_leading(client, &server.prefix, &args, signals, complaints).await
    };
    with_signals(connecting, terms).await
}

/// Campaigns and runs the command, term after term, until the command ends by itself or a signal comes.
async fn while_leading(
    client: &Client,
    prefix: &str,
    args: &ElectArgs,
    signals: &mut Signals,
    complaints: &Complaints,
) -> Outcome {
    // An election is the write lock of its name.
    let lock = client.rw_lock(args.name.as_str());
    // Whether the server has answered a campaign.
    let answered = Cell::new(false);
    loop {
        let campaign = async {
            let place = lock.write().enqueue().await?;
            answered.set(true);
            place.await
        };
        let guard = tokio::select! {
            biased;
            signal = signals.next() => return Err(Failure::signal(signal.as_raw())),
            guard = Box::pin(campaign) => guard,
        };
        let guard = match guard {
            // Candidates that wait outlast an outage. So do those that campaign again when it begins; each try takes a
            // lease.
            Err(away @ Error::Unavailable { .. }) if answered.get() => {
                complaints.add(format!("{away}: campaigning again"));
                continue;
            }
            // Nobody led: only the place in the queue is gone.
            Err(Error::Lost { reason, .. }) => {
                let name = safe(&args.name);
                complaints.add(format!(
                    "{name}: the candidate's place is gone: {reason}; campaigning again"
                ));
                continue;
            }
            guard => guard?,
        };
        let mut variables = variables(&args.name, Some(guard.fencing_token()));
        variables.push(nested::variable(prefix, &[&args.name], &By::Owner(guard.owner())));
        let (ended, guard) = under_guard(guard, variables, &args.command, args.grace, signals, complaints).await?;
        match settle(guard, &ended, signals, complaints).await {
            Err(failure) if ended.lost && !ended.told_to_end => {
                complaints.add(format!("{}: campaigning again", failure.message));
            }
            outcome => return outcome,
        }
    }
}
