//! Real faults on real servers: workers that use locks in every way, a nemesis that breaks everything around them, and
//! a judge that reads the journal and what the workers say they held.

mod admin;
mod clock;
mod faults;
mod fleet;
mod follow;
mod holds;
mod judge;
mod log;
mod nemesis;
mod quiet;
mod quorum;
mod register;
mod report;
mod sabotage;
mod task;
mod wire;
pub mod worker;
mod workload;

use crate::Failure;
use crate::journal;
use clock::FakeClock;
use fairlock_support::limits::without_signal_for_files;
use fairlock_support::server::{PATIENCE, Server};
use faults::{Fault, Lane, Schedule};
use fleet::{Fleet, Said};
use follow::{Follower, Pass, follow};
use judge::Judge;
use nemesis::{Counts, Nemesis};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError};
use report::{Progress, Report, Totals};
pub use sabotage::Sabotage;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::time::{interval, sleep};
use wire::Line;
use workload::{LONGEST_LEASE, Workload};

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// How long to go on.
    #[arg(long, default_value_t = 3.0)]
    minutes: f64,
    /// Stop after so many grants instead, when each fault has come at least once.
    #[arg(long)]
    goal: Option<u64>,
    /// Repeats the faults and the workers' choices of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Some of the workloads; all but flood unless given.
    #[arg(long, value_delimiter = ',')]
    workload: Vec<Workload>,
    /// Some of the faults, or none; all unless given.
    #[arg(long, value_delimiter = ',')]
    faults: Vec<String>,
    /// How many times as long the pauses between faults are.
    #[arg(long, default_value_t = 1.0)]
    calm: f64,
    /// The server's program.
    #[arg(long, default_value = "redis-server")]
    server: String,
    /// Write the journals of all locks to this file, for `make spec ARGS="--trace FILE"`.
    #[arg(long)]
    journal: Option<std::path::PathBuf>,
    /// Torture a majority of so many servers, 3, 5, 7 or 9. At any time a minority of them is broken. The server's program,
    /// the faults (without those that a majority excludes) and the pauses are as chosen; workloads and journal are not.
    #[arg(long, value_parser = ["3", "5", "7", "9"], conflicts_with_all = ["workload", "journal"])]
    quorum: Option<String>,
    /// How many workers.
    #[arg(long, default_value_t = 4)]
    processes: usize,
    /// So many of the workers are the client in Python, `clients/python`. It knows the workloads hot, many, readers, cancel,
    /// policies, permits and owners.
    #[arg(long, default_value_t = 0, conflicts_with = "quorum")]
    python: usize,
    #[arg(long, hide = true)]
    sabotage: Option<Sabotage>,
}

pub fn run(args: &Args) -> ExitCode {
    if let Some(servers) = args.quorum.as_ref().and_then(|servers| servers.parse().ok()) {
        return crate::verdict("torture", quorum::torture(args, servers), |report| {
            report.violations == 0
        });
    }
    crate::verdict("torture", torture(args), |report| report.violations == 0)
}

/// The scripts of this process keep a journal from now on, and have this bug.
fn arm(sabotage: Option<Sabotage>) -> Result<(), String> {
    let mut options = journal::Options::default();
    if let Some(sabotage) = sabotage {
        options.mutate = sabotage.mutation();
    }
    if journal::install_with(options) {
        Ok(())
    } else {
        Err("the scripts were made before their journal".to_owned())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere is reported there.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn connect_redis(url: &str) -> Result<MultiplexedConnection, RedisError> {
    // Servers are stopped and paused here, and only a hang takes so long.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let client = redis::Client::open(url)?;
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// The registers' store: nobody disturbs it, so that what it says is true.
async fn connect_store(url: &str) -> Result<MultiplexedConnection, RedisError> {
    connect_redis(url).await
}

impl Args {
    fn chosen_faults(&self) -> Result<Vec<Fault>, Failure> {
        use clap::ValueEnum;
        match self.faults.as_slice() {
            [] => Ok(Fault::value_variants().to_vec()),
            [none] if none == "none" => Ok(Vec::new()),
            names => names.iter().map(|name| Ok(Fault::from_str(name, true)?)).collect(),
        }
    }

    fn chosen_workloads(&self) -> Vec<Workload> {
        if self.workload.is_empty() {
            let all = Workload::ALL.into_iter();
            return all.filter(|workload| *workload != Workload::Flood).collect();
        }
        self.workload.clone()
    }
}

/// Everything of a run, and how it comes to its end.
struct Run {
    judge: Arc<Mutex<Judge>>,
    totals: Arc<Mutex<Totals>>,
    counts: Arc<Mutex<Counts>>,
    progress: Progress,
    begun: Instant,
}

async fn torture(args: &Args) -> Result<Report, Failure> {
    let seed = args.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0 >> 16);
    let mut faults = args.chosen_faults()?;
    let workloads = args.chosen_workloads();
    println!("seed {seed}");
    arm(args.sabotage)?;
    if args.python >= args.processes {
        let left_out = [Fault::Files, Fault::Starve];
        eprintln!("torture: all workers are in Python, so no worker runs out of files or memory");
        faults.retain(|fault| !left_out.contains(fault));
    }

    let store = Server::start_program(std::slice::from_ref(&args.server), &[]).await;
    let clock = clock_for(&mut faults, &store);
    let server = start_server(args, &faults, clock.as_ref()).await;
    let (url, port) = (server.url(), server.port());

    let judge = Judge::new(LONGEST_LEASE.as_micros() as u64, true);
    let run = Run::new(judge, &faults);
    let (said, saying) = mpsc::unbounded_channel();
    tokio::spawn(listen(saying, Arc::clone(&run.judge), Arc::clone(&run.totals)));
    let worker = worker::Args {
        url: vec![url.clone()],
        store: store.url(),
        seed,
        workload: workloads.clone(),
        sabotage: args.sabotage,
        python: python(args, &store)?,
    };
    // Who wants no file meets no limit of files: its connections have to break.
    let direct = !faults
        .iter()
        .any(|fault| fault.lane() == Lane::Network || *fault == Fault::Files);
    let fleet = Fleet::start(args.processes, &[port], worker, direct, said).await?;
    let keys = workloads.iter().flat_map(|workload| workload.locks());
    let keys = keys.map(|name| quiet::key(&name));
    let log = args.journal.as_deref().map(log::Log::create).transpose()?;
    let follower = Follower::new(url.clone(), Arc::clone(&run.judge), keys).with_log(log);
    let nemesis = Arc::new(Nemesis {
        fleet: Arc::new(tokio::sync::Mutex::new(fleet)),
        server: Arc::new(tokio::sync::Mutex::new(server)),
        follower: Arc::new(tokio::sync::Mutex::new(follower)),
        judge: Arc::clone(&run.judge),
        clock,
        counts: Arc::clone(&run.counts),
        url,
        ahead_until: Mutex::new(None),
        lost_at: Mutex::new(None),
    });
    run.through(args, seed, &faults, &workloads, nemesis, &store).await
}

/// The workers in Python get the scripts of this process, with their journal.
fn python(args: &Args, store: &Server) -> Result<Option<worker::Python>, Failure> {
    if args.python == 0 {
        return Ok(None);
    }
    let texts: BTreeMap<_, _> = fairlock::testing::scripts().into_iter().collect();
    let scripts = store.dir().join("scripts.json");
    std::fs::write(&scripts, serde_json::to_vec(&texts)?)?;
    Ok(Some(worker::Python {
        workers: args.python,
        scripts,
    }))
}

/// Without the library that fakes a clock this fault is left out, and everybody is told.
fn clock_for(faults: &mut Vec<Fault>, store: &Server) -> Option<FakeClock> {
    if !faults.contains(&Fault::Clock) {
        return None;
    }
    let clock = FakeClock::find(store.dir().join("clock"));
    if clock.is_none() {
        eprintln!("torture: no libfaketime here, so the server's clock is left alone; apt-get install faketime");
        faults.retain(|fault| *fault != Fault::Clock);
    }
    clock
}

async fn start_server(args: &Args, faults: &[Fault], clock: Option<&FakeClock>) -> Server {
    let mut program = clock.map_or_else(|| vec![args.server.clone()], |clock| clock.command(&args.server));
    if faults.contains(&Fault::Disk) {
        program.splice(..0, without_signal_for_files());
    }
    let mut server_args = vec!["--enable-debug-command", "local"];
    if faults.iter().any(|fault| {
        matches!(
            fault,
            Fault::Restart | Fault::RestartEverysec | Fault::Wipe | Fault::Disk
        )
    }) {
        server_args.extend(["--appendonly", "yes", "--appendfsync", "everysec"]);
        // A restart executes the file anew: of 64 MB, the default, that takes a busy machine minutes.
        server_args.extend(["--auto-aof-rewrite-min-size", "4mb"]);
    }
    Server::start_program(&program, &server_args).await
}

async fn listen(mut saying: mpsc::UnboundedReceiver<Said>, judge: Arc<Mutex<Judge>>, totals: Arc<Mutex<Totals>>) {
    while let Some((number, line)) = saying.recv().await {
        let rest = lock(&totals).add(number, line);
        match rest {
            Some(Line::Held(held)) => lock(&judge).held(held),
            Some(Line::Wrong(text)) => lock(&judge).violation(format!("worker {number}: {text}")),
            _ => {}
        }
    }
}

impl Run {
    fn new(judge: Judge, faults: &[Fault]) -> Self {
        let counts = Counts {
            done: faults.iter().map(|fault| (*fault, 0)).collect(),
            ..Counts::default()
        };
        Self {
            judge: Arc::new(Mutex::new(judge)),
            totals: Arc::default(),
            counts: Arc::new(Mutex::new(counts)),
            progress: Progress::new(),
            begun: Instant::now(),
        }
    }

    async fn through(
        mut self,
        args: &Args,
        seed: u64,
        faults: &[Fault],
        workloads: &[Workload],
        nemesis: Arc<Nemesis>,
        store: &Server,
    ) -> Result<Report, Failure> {
        let (stop, stopped) = watch::channel(false);
        let (stop_following, following_stopped) = watch::channel(false);
        let following = tokio::spawn(follow(Arc::clone(&nemesis.follower), following_stopped));
        let lanes = [Lane::Process, Lane::Network, Lane::Server].map(|lane| {
            let schedule = Schedule::new(seed, lane, faults);
            tokio::spawn(Arc::clone(&nemesis).run(schedule, args.calm, stopped.clone()))
        });
        self.until_done(args).await;
        stop.send_replace(true);
        for lane in lanes {
            lane.await?;
        }
        self.demand_faults(args)?;
        if let Err(error) = self.come_to_rest(args, workloads, &nemesis).await {
            lock(&self.judge).violation(format!("at the end: {error}"));
        }
        stop_following.send_replace(true);
        following.await?;
        self.progress.end();

        let registers = if workloads.contains(&Workload::Register) {
            Some(register::outcomes(&mut connect_store(&store.url()).await?).await?)
        } else {
            None
        };
        let mut judge = lock(&self.judge);
        let totals = std::mem::take(&mut *lock(&self.totals));
        if let Some(registers) = registers {
            register::judge(registers, &totals.writes, &mut |text| judge.violation(text));
        }
        let names = workloads.iter().map(|workload| workload.name());
        totals
            .left_out(names, args.python.min(args.processes))
            .for_each(|text| judge.violation(text));
        // The flood reports too few holds to count on one.
        if judge.matched == 0 && workloads.iter().any(|workload| *workload != Workload::Flood) {
            judge.violation("no user's hold was found in the journal".to_owned());
        }
        self.progress.violations(&judge.shown);
        Ok(Report {
            seed,
            took: self.begun.elapsed(),
            totals,
            faults: std::mem::take(&mut lock(&self.counts).done),
            registers,
            judged: format!(
                "journal            {} records checked, {} grants\n\
                 users' holds       {} checked against each other, {} found in the journal",
                judge.records,
                judge.grants(),
                judge.intervals,
                judge.matched
            ),
            violations: judge.violations,
        })
    }

    async fn until_done(&mut self, args: &Args) {
        let mut ticks = interval(Duration::from_secs(1));
        loop {
            ticks.tick().await;
            let grants = self.show();
            let done = match args.goal {
                Some(goal) => grants >= goal && self.had_its_faults(),
                None => self.begun.elapsed().as_secs_f64() >= args.minutes * 60.0,
            };
            if done {
                return;
            }
        }
    }

    /// A run without a fault that was chosen by its name says nothing about that fault.
    fn demand_faults(&self, args: &Args) -> Result<(), Failure> {
        if args.faults.is_empty() {
            return Ok(());
        }
        for fault in args.chosen_faults()? {
            let came = lock(&self.counts).done.get(&fault).is_some_and(|times| *times > 0);
            if !came {
                let name = fault.name();
                lock(&self.judge).violation(format!(
                    "{name} was chosen and never did anything: it was left out, or the run was too short"
                ));
            }
        }
        Ok(())
    }

    /// Each chosen fault has come. A run that has found something need not wait for the others.
    fn had_its_faults(&self) -> bool {
        lock(&self.judge).violations > 0 || lock(&self.counts).done.values().all(|times| *times > 0)
    }

    /// Returns the grants so far, as the journal has them, or else the workers.
    fn show(&mut self) -> u64 {
        let (granted, records, violations) = {
            let judge = lock(&self.judge);
            if self.progress.violations(&judge.shown) {
                let log = lock(&self.counts).log.iter().cloned().collect::<Vec<_>>();
                println!("at {}, after\n  {}", clock::now_us(), log.join("\n  "));
            }
            let granted = judge.journaled.then(|| judge.grants());
            (granted, judge.records, judge.violations)
        };
        let seconds = self.begun.elapsed().as_secs();
        let reported = lock(&self.totals).grants();
        let counts = lock(&self.counts);
        let faults: u64 = counts.done.values().sum();
        let now: Vec<_> = counts.now.iter().map(|fault| fault.name()).collect();
        self.progress.show(&format!(
            "{seconds} s  {reported} grants  {records} records  {faults} faults  {violations} violations  {}",
            now.join(" ")
        ));
        granted.unwrap_or(reported)
    }

    /// No faults any more: everybody gets in, leaves, and leaves nothing behind.
    async fn come_to_rest(&mut self, args: &Args, workloads: &[Workload], nemesis: &Nemesis) -> Result<(), Failure> {
        let mut fleet = nemesis.fleet.lock().await;
        fleet.tell_all("stop").await?;
        let within = worker::DRAINED_WITHIN + Duration::from_secs(10);
        self.all_say(args.processes, within, "drained", |totals| totals.drained)
            .await?;
        fleet.tell_all("probe").await?;
        self.all_say(args.processes, within, "got their locks", |totals| totals.probed)
            .await?;
        fleet.tell_all("leave").await?;
        quiet::until_disconnected(&nemesis.url).await?;
        let bad = fleet.dismiss().await?;
        drop(fleet);
        let mut wrong = quiet::swept(&nemesis.url, workloads).await?;
        wrong.extend(bad);
        let read = nemesis.follower.lock().await.read_all().await;
        if read != Pass::Complete {
            wrong.push(format!("the journal was not read to its end: {read:?}"));
        }
        let mut judge = lock(&self.judge);
        judge.finish();
        wrong.into_iter().for_each(|text| judge.violation(text));
        Ok(())
    }

    async fn all_say(
        &mut self,
        all: usize,
        within: Duration,
        what: &str,
        count: impl Fn(&Totals) -> usize,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let so_far = count(&lock(&self.totals));
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
