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
use super::nemesis::Counts;
use super::report::{Progress, Report, Totals};
use super::wire::Line;
use super::{Args, Failure, connect_store, lock, register};
use fairlock_support::server::Server;
use nemesis::{Nemesis, Seat};
use order::Tokens;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::time::{interval, sleep};

/// The longest lease of all, and the quarantine.
pub(super) const LONGEST_LEASE: Duration = Duration::from_millis(2000);

/// What a majority does not survive, or what needs the disk of a server that must keep its data.
const EXCLUDED: [Fault; 2] = [Fault::Lose, Fault::RestartEverysec];

/// What is known so far.
struct Seen {
    judge: Arc<Mutex<Judge>>,
    tokens: Mutex<Tokens>,
    totals: Mutex<Totals>,
    counts: Mutex<Counts>,
}

pub(super) async fn torture(args: &Args, servers: usize) -> Result<Report, Failure> {
    let seed = args.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0 >> 16);
    let mut faults = args.chosen_faults()?;
    faults.retain(|fault| !EXCLUDED.contains(fault));
    println!("seed {seed}");
    super::arm(args.sabotage)?;
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
    let seen = Arc::new(Seen {
        judge: Arc::new(Mutex::new(Judge::new(LONGEST_LEASE.as_micros() as u64, false))),
        tokens: Mutex::default(),
        totals: Mutex::default(),
        counts: Mutex::default(),
    });
    let (said, saying) = mpsc::unbounded_channel();
    tokio::spawn(listen(saying, Arc::clone(&seen)));
    let worker = super::worker::Args {
        url: seats.iter().map(|seat| seat.url.clone()).collect(),
        store: store.url(),
        seed,
        workload: Vec::new(),
        sabotage: args.sabotage,
    };
    let ports: Vec<_> = seats.iter().map(|seat| seat.port).collect();
    let fleet = Fleet::start(args.processes, &ports, worker, false, said).await?;
    let nemesis = Arc::new(Nemesis::new(fleet, seats, Arc::clone(&seen)));
    Run {
        seen,
        progress: Progress::new(),
        begun: Instant::now(),
    }
    .through(args, seed, &faults, nemesis, &store)
    .await
}

async fn listen(mut saying: mpsc::UnboundedReceiver<Said>, seen: Arc<Seen>) {
    while let Some((number, line)) = saying.recv().await {
        let rest = lock(&seen.totals).add(line);
        match rest {
            Some(Line::Held(held)) => {
                if let Some(wrong) = lock(&seen.tokens).add(&held) {
                    lock(&seen.judge).violation(wrong);
                }
                lock(&seen.judge).held(held);
            }
            Some(Line::Wrong(text)) => lock(&seen.judge).violation(format!("worker {number}: {text}")),
            _ => {}
        }
    }
}

struct Run {
    seen: Arc<Seen>,
    progress: Progress,
    begun: Instant,
}

impl Run {
    async fn through(
        mut self,
        args: &Args,
        seed: u64,
        faults: &[Fault],
        nemesis: Arc<Nemesis>,
        store: &Server,
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
        self.until_done(args).await;
        stop.send_replace(true);
        for lane in lanes {
            lane.await?;
        }
        if let Err(error) = self.come_to_rest(args, &nemesis).await {
            lock(&self.seen.judge).violation(format!("at the end: {error}"));
        }
        self.progress.end();
        let registers = register::outcomes(&mut connect_store(&store.url()).await?).await?;
        let mut judge = lock(&self.seen.judge);
        let totals = std::mem::take(&mut *lock(&self.seen.totals));
        register::judge(registers, &totals.writes, &mut |text| judge.violation(text));
        self.progress.violations(&judge.shown);
        let failures: Vec<_> = totals
            .failures
            .iter()
            .map(|(what, times)| format!("{what} {times}"))
            .collect();
        Ok(Report {
            seed,
            took: self.begun.elapsed(),
            faults: std::mem::take(&mut lock(&self.seen.counts).done),
            registers: Some(registers),
            judged: format!(
                "users' holds       {} checked against each other, {} tokens in their order\nusers' errors      {}",
                judge.intervals,
                lock(&self.seen.tokens).compared,
                if failures.is_empty() {
                    "none".to_owned()
                } else {
                    failures.join(", ")
                }
            ),
            violations: judge.violations,
            totals,
        })
    }

    async fn until_done(&mut self, args: &Args) {
        let mut ticks = interval(Duration::from_secs(1));
        loop {
            ticks.tick().await;
            let grants = self.show();
            let done = match args.goal {
                Some(goal) => grants >= goal,
                None => self.begun.elapsed().as_secs_f64() >= args.minutes * 60.0,
            };
            if done {
                return;
            }
        }
    }

    /// Returns the grants so far.
    fn show(&mut self) -> u64 {
        let violations = {
            let judge = lock(&self.seen.judge);
            if self.progress.violations(&judge.shown) {
                let log: Vec<_> = lock(&self.seen.counts).log.iter().cloned().collect();
                println!("at {}, after\n  {}", super::clock::now_us(), log.join("\n  "));
            }
            judge.violations
        };
        let (seconds, grants) = (self.begun.elapsed().as_secs(), lock(&self.seen.totals).grants());
        let counts = lock(&self.seen.counts);
        let faults: u64 = counts.done.values().sum();
        let now: Vec<_> = counts.now.iter().map(|fault| fault.name()).collect();
        let now = now.join(" ");
        drop(counts);
        self.progress.show(&format!(
            "{seconds} s  {grants} grants  {faults} faults  {violations} violations  {now}"
        ));
        grants
    }

    /// No faults any more: everybody gets in, leaves, and leaves nothing behind.
    async fn come_to_rest(&mut self, args: &Args, nemesis: &Nemesis) -> Result<(), Failure> {
        let mut fleet = nemesis.fleet.lock().await;
        let urls = nemesis.urls();
        for (order, what) in [("stop", "drained"), ("probe", "got their locks")] {
            fleet.tell_all(order).await?;
            self.all_say(args.processes, what, order == "stop").await?;
        }
        fleet.tell_all("leave").await?;
        for url in &urls {
            super::quiet::until_disconnected(url).await?;
        }
        let mut wrong = fleet.dismiss().await?;
        wrong.extend(rest::swept(&urls).await?);
        let mut judge = lock(&self.seen.judge);
        wrong.into_iter().for_each(|text| judge.violation(text));
        Ok(())
    }

    async fn all_say(&mut self, all: usize, what: &str, drained: bool) -> Result<(), Failure> {
        let within = super::worker::DRAINED_WITHIN + Duration::from_secs(10);
        let begun = Instant::now();
        loop {
            let so_far = {
                let totals = lock(&self.seen.totals);
                if drained { totals.drained } else { totals.probed }
            };
            if so_far == all {
                return Ok(());
            }
            if begun.elapsed() > within {
                return Err(format!("only {so_far} of {all} workers {what} within {within:?}").into());
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}
