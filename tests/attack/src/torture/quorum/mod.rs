//! A lock over several real servers: workers that use it, a nemesis that breaks a minority of the servers at any time, and
//! a judge of what the workers say they held.
//!
//! A server that was killed or emptied counts as broken until its quarantine is over, and one whose clock jumped until the
//! leases of before the jump are over. So never more than a minority lacks state, as the docs demand.

mod nemesis;
mod order;
mod rest;
pub(super) mod worker;

use super::clock::FakeClock;
use super::faults::{Fault, Lane, Schedule};
use super::fleet::{Fleet, Said};
use super::judge::Judge;
use super::report::{Report, Totals};
use super::wire::Line;
use super::{Args, Failure, Run, connect_store, lock, register};
use fairlock_support::server::Server;
use nemesis::{Nemesis, Seat};
use order::Tokens;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// The longest lease of all, and the quarantine.
pub(super) const LONGEST_LEASE: Duration = Duration::from_millis(2000);

/// What a majority does not survive, or what needs the disk of a server that must keep its data.
const EXCLUDED: [Fault; 3] = [Fault::Lose, Fault::RestartEverysec, Fault::Disk];

pub(super) async fn torture(args: &Args, servers: usize) -> Result<Report, Failure> {
    let seed = args.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0 >> 16);
    let mut faults = args.chosen_faults()?;
    faults.retain(|fault| !EXCLUDED.contains(fault));
    println!("seed {seed}");
    let store = Server::start_program(std::slice::from_ref(&args.server), &[]).await;
    if faults.contains(&Fault::Clock) && FakeClock::find(store.dir().join("clock")).is_none() {
        eprintln!("torture: no libfaketime here, so the servers' clocks are left alone; apt-get install faketime");
        faults.retain(|fault| *fault != Fault::Clock);
    }
    let mut seats = Vec::new();
    for number in 0..servers {
        let clock = store.dir().join(format!("clock-{number}"));
        let clock = faults.contains(&Fault::Clock).then_some(clock);
        seats.push(Seat::start(&args.server, clock).await);
    }
    let judge = Judge::new(LONGEST_LEASE.as_micros() as u64, false);
    let (run, tokens) = (Run::new(judge, &faults), Arc::default());
    let (said, saying) = mpsc::unbounded_channel();
    tokio::spawn(listen(
        saying,
        Arc::clone(&run.judge),
        Arc::clone(&run.totals),
        Arc::clone(&tokens),
    ));
    let worker = super::worker::Args {
        url: seats.iter().map(|seat| seat.url.clone()).collect(),
        store: store.url(),
        seed,
        workload: Vec::new(),
        sabotage: args.sabotage,
        python: None,
    };
    let ports: Vec<_> = seats.iter().map(|seat| seat.port).collect();
    let fleet = Fleet::start(args.processes, &ports, worker, false, said).await?;
    let nemesis = Nemesis::new(fleet, seats, Arc::clone(&run.judge), Arc::clone(&run.counts));
    through(run, args, seed, &faults, Arc::new(nemesis), &store, &tokens).await
}

async fn listen(
    mut saying: mpsc::UnboundedReceiver<Said>,
    judge: Arc<Mutex<Judge>>,
    totals: Arc<Mutex<Totals>>,
    tokens: Arc<Mutex<Tokens>>,
) {
    while let Some((number, line)) = saying.recv().await {
        let rest = lock(&totals).add(number, line);
        match rest {
            Some(Line::Held(held)) => {
                if let Some(wrong) = lock(&tokens).add(&held) {
                    lock(&judge).violation(wrong);
                }
                lock(&judge).held(held);
            }
            Some(Line::Wrong(text)) => lock(&judge).violation(format!("worker {number}: {text}")),
            _ => {}
        }
    }
}

async fn through(
    mut run: Run,
    args: &Args,
    seed: u64,
    faults: &[Fault],
    nemesis: Arc<Nemesis>,
    store: &Server,
    tokens: &Mutex<Tokens>,
) -> Result<Report, Failure> {
    let (stop, stopped) = watch::channel(false);
    let (of_workers, of_servers): (Vec<_>, Vec<_>) = faults.iter().partition(|fault| fault.lane() == Lane::Process);
    let mut lanes = Vec::new();
    // As many faults at a time as there are servers in a minority.
    for number in 0..nemesis.minority() {
        let schedule = Schedule::of(seed, 10 + number as u64, of_servers.clone());
        lanes.push(tokio::spawn(Arc::clone(&nemesis).servers(
            schedule,
            args.calm,
            stopped.clone(),
        )));
    }
    let schedule = Schedule::of(seed, 1, of_workers);
    lanes.push(tokio::spawn(Arc::clone(&nemesis).workers(schedule, args.calm, stopped)));
    run.until_done(args).await;
    stop.send_replace(true);
    for lane in lanes {
        lane.await?;
    }
    run.demand_faults(args)?;
    if let Err(error) = come_to_rest(&mut run, args, &nemesis).await {
        lock(&run.judge).violation(format!("at the end: {error}"));
    }
    run.progress.end();
    let registers = register::outcomes(&mut connect_store(&store.url()).await?).await?;
    let mut judge = lock(&run.judge);
    let totals = std::mem::take(&mut *lock(&run.totals));
    register::judge(registers, &totals.writes, &mut |text| judge.violation(text));
    totals
        .left_out(worker::TEAMS.iter().map(|(_, name, _)| *name), 0)
        .for_each(|text| judge.violation(text));
    run.progress.violations(&judge.shown);
    let failures = totals.failures.iter().map(|(what, times)| format!(", {what} {times}"));
    Ok(Report {
        seed,
        took: run.begun.elapsed(),
        faults: std::mem::take(&mut lock(&run.counts).done),
        registers: Some(registers),
        judged: format!(
            "users' holds       {} checked against each other, {} tokens in their order{}",
            judge.intervals,
            lock(tokens).compared,
            failures.collect::<String>()
        ),
        violations: judge.violations,
        totals,
    })
}

/// No faults any more: everybody gets in, leaves, and leaves nothing behind.
async fn come_to_rest(run: &mut Run, args: &Args, nemesis: &Nemesis) -> Result<(), Failure> {
    let mut fleet = nemesis.fleet.lock().await;
    let (urls, within) = (nemesis.urls(), super::worker::DRAINED_WITHIN + Duration::from_secs(10));
    fleet.tell_all("stop").await?;
    run.all_say(args.processes, within, "drained", |totals| totals.drained)
        .await?;
    fleet.tell_all("probe").await?;
    run.all_say(args.processes, within, "got their locks", |totals| totals.probed)
        .await?;
    fleet.tell_all("leave").await?;
    for url in &urls {
        super::quiet::until_disconnected(url).await?;
    }
    let mut wrong = fleet.dismiss().await?;
    wrong.extend(rest::swept(&urls).await?);
    let mut judge = lock(&run.judge);
    wrong.into_iter().for_each(|text| judge.violation(text));
    Ok(())
}
