//! A worker: a process of its own, so that it can be killed and stopped.

use super::clock::now_us;
use super::sabotage::Sabotage;
use super::task::{Reporter, Task};
use super::wire::Line;
use super::workload::{Workload, rounds};
use super::{arm, connect_store, quorum, register};
use fairlock::Client;
use fairlock_support::random;
use std::fmt::Display;
use std::io::BufRead;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout_at};

/// How long the tasks may take to end when all is quiet: a lease, and what a busy machine adds. On two cores with a load of
/// 35 some workers took longer than two minutes to begin. Only a hang takes so long.
pub const DRAINED_WITHIN: Duration = Duration::from_secs(900);
const FLUSHED_EVERY: Duration = Duration::from_millis(20);
/// A worker that cannot connect for so long says so, and goes on.
const CONNECTED_WITHIN: Duration = Duration::from_secs(60);

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Where the locks are; with several of them, the servers of a quorum.
    #[arg(long, value_delimiter = ',')]
    pub url: Vec<String>,
    /// Where the registers are.
    #[arg(long)]
    pub store: String,
    #[arg(long)]
    pub seed: u64,
    #[arg(long, value_delimiter = ',')]
    pub workload: Vec<Workload>,
    #[arg(long)]
    pub sabotage: Option<Sabotage>,
    /// For the parent only.
    #[arg(skip)]
    pub python: Option<Python>,
}

/// The first so many workers are the client in Python, which sends the scripts of this file.
#[derive(Clone, Debug)]
pub struct Python {
    pub workers: usize,
    pub scripts: PathBuf,
}

/// A worker's life. Its parent's words come on standard input; when that ends, so does the worker.
pub fn run(args: &Args) -> ExitCode {
    let reporter = Arc::new(Reporter::default());
    report_panics(Arc::clone(&reporter));
    flush_now_and_then(Arc::clone(&reporter));
    // Nobody reads the journal of a quorum: its scripts are those that users' clients run, unless one is to have a bug.
    let is_bare = args.url.len() > 1 && args.sabotage.is_none_or(|sabotage| sabotage.rule().is_some());
    if !is_bare && let Err(error) = arm(args.sabotage) {
        reporter.wrong(error);
    }
    let (words, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if words.send(line).is_err() {
                return;
            }
        }
        // The parent is gone, or wants no more.
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) if args.url.len() > 1 => runtime.block_on(quorum::worker::work(args, &reporter, orders)),
        Ok(runtime) => runtime.block_on(work(args, &reporter, orders)),
        Err(error) => reporter.wrong(error.to_string()),
    }
    // It fails if the parent is gone, and then nobody cares.
    let _ = reporter.flush();
    ExitCode::SUCCESS
}

fn report_panics(reporter: Arc<Reporter>) {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        default(info);
        reporter.wrong(format!("panic: {info}"));
        let _ = reporter.flush();
    }));
}

fn flush_now_and_then(reporter: Arc<Reporter>) {
    std::thread::spawn(move || {
        while reporter.flush().is_ok() {
            std::thread::sleep(FLUSHED_EVERY);
        }
        std::process::exit(0);
    });
}

/// Workloads, each with a client of its own: a client's lease is that of its workload.
struct Team {
    workload: Workload,
    client: Client,
    tasks: Vec<JoinHandle<()>>,
    /// For a round when all is quiet.
    spare: Task,
}

async fn work(args: &Args, reporter: &Arc<Reporter>, mut orders: mpsc::UnboundedReceiver<String>) {
    let (stop, stopped) = watch::channel(false);
    let mut teams = Vec::new();
    for &workload in &args.workload {
        let client = connect(&args.url[0], workload).await;
        let mut tasks = Vec::new();
        let task = |number: usize| Task {
            workload,
            number,
            client: client.clone(),
            random: random::stream(args.seed, (workload as u64) << 32 | number as u64),
            reporter: Arc::clone(reporter),
            stopped: stopped.clone(),
        };
        for number in 0..workload.tasks() {
            let task = task(number);
            if workload == Workload::Register {
                let store = connected(|| connect_store(&args.store)).await;
                tasks.push(tokio::spawn(register::rounds(task, store)));
            } else {
                tasks.push(tokio::spawn(rounds(task)));
            }
        }
        let spare = task(workload.tasks());
        teams.push(Team {
            workload,
            client,
            tasks,
            spare,
        });
    }
    while let Some(order) = orders.recv().await {
        match order.as_str() {
            "stop" => {
                stop.send_replace(true);
                drain(&mut teams, reporter).await;
                reporter.line(&Line::Drained);
            }
            "probe" => probe(&mut teams, reporter).await,
            "leave" => leave(std::mem::take(&mut teams)).await,
            _ => reporter.wrong(format!("what is {order:?}?")),
        }
    }
}

async fn connect(url: &str, workload: Workload) -> Client {
    let builder = Client::builder().lease(workload.lease()).label(workload.name());
    connected(|| builder.clone().connect(url)).await
}

/// Without limit, because faults go on around it: a process may have begun while it gets no descriptor.
/// At the end of the run the parent waits only for so long.
pub(super) async fn connected<C, E: Display>(connect: impl AsyncFn() -> Result<C, E>) -> C {
    let begun = Instant::now();
    loop {
        match connect().await {
            Ok(connected) => return connected,
            Err(error) if begun.elapsed() > CONNECTED_WITHIN => eprintln!("torture-worker: {error}"),
            Err(_) => {}
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// All is quiet: every task must come to an end.
async fn drain(teams: &mut [Team], reporter: &Reporter) {
    let deadline = tokio::time::Instant::now() + DRAINED_WITHIN;
    for team in teams {
        for (number, task) in team.tasks.drain(..).enumerate() {
            match timeout_at(deadline, task).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => reporter.wrong(format!("{} {number}: {error}", team.workload.name())),
                Err(_) => {
                    let name = team.workload.name();
                    reporter.wrong(format!(
                        "{name} {number} still waits {DRAINED_WITHIN:?} after the last fault"
                    ));
                }
            }
        }
    }
}

/// All is quiet: every lock must be there for who asks, and every workload gets in by its own calls.
async fn probe(teams: &mut [Team], reporter: &Reporter) {
    let mut longest_us = 0;
    for team in teams {
        for name in team.workload.locks().into_iter().take(3) {
            let asked = now_us();
            let lock = team.workload.handle(&team.client, &name);
            let probed = async { lock.write().acquire_fair().await?.release().await };
            if let Err(error) = probed.await {
                reporter.wrong(format!("{name}, with nobody disturbing: {error}"));
            }
            longest_us = longest_us.max(now_us() - asked);
        }
        // The register's rounds have no end, and it must have been written.
        if team.workload != Workload::Register {
            let round = async || {
                if let Err(error) = team.workload.round(&mut team.spare).await {
                    team.spare.failed(&error);
                }
            };
            reporter.must_get_in(team.workload.name(), round).await;
        }
    }
    reporter.line(&Line::Probed { longest_us });
}

/// Ends the clients in both ways that there are. The process lives on: its connections must go all the same.
async fn leave(teams: Vec<Team>) {
    for (number, team) in teams.into_iter().enumerate() {
        if number % 2 == 0 {
            team.client.shutdown().await;
        }
    }
}
