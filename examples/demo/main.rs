//! Several processes contend for one lock. A holder is killed, and a process whose waiters are the head of the queue.
//! A judge that knows nothing of the lock's own state looks for what must not happen.
//!
//! `make demo`, or `cargo run --release --example demo -- --help`. It uses the server of `REDIS_URL`, or a private one.
//! `make demo ARGS=quorum` shows a lock on five servers instead: see `quorum/mod.rs`.
//! Exit status: 0 all is well, 1 an invariant was broken, 2 it could not be shown, 130 interrupted.

mod judge;
mod lock;
mod measure;
mod monitor;
mod process;
mod quorum;
mod record;
mod report;
mod server;
mod stage;
mod view;
mod worker;

use clap::{Args, Parser, Subcommand, value_parser};
use quorum::QuorumOptions;
use report::{Case, Report};
use server::Server;
use stage::{Halt, Scene, Stage};
use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use view::Paint;
use worker::{LOCK, Lie, WorkerArgs};

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const LAST_LOOK: Duration = Duration::from_millis(150);
/// What waiters that died cost the others, as PROTOCOL.md has it.
const GRACE: Duration = Duration::from_secs(1);

/// Shows several processes contending for one fair lock, two of them killed on the way.
///
/// Uses the server of REDIS_URL if that is set, else a private one that it starts and stops. The keys that it leaves
/// on a server of yours expire by themselves within about a minute after the last lease.
#[derive(Clone, Debug, Parser)]
#[command(name = "demo", args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(flatten)]
    cast: Cast,
    /// Waiters of the process that is killed at the head of the queue
    #[arg(long, default_value_t = 50, value_parser = value_parser!(u32).range(1..=5000))]
    waiters: u32,
    /// Judge the order without MONITOR, which slows a server down: by who is seen in the queue
    #[arg(long)]
    no_monitor: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

/// Who contends, and for how long.
#[derive(Args, Clone, Debug)]
pub(crate) struct Cast {
    /// How long they contend; longer if the recovery from the kills takes longer
    #[arg(long, default_value = "12", value_parser = seconds)]
    seconds: Duration,
    /// The lease in seconds: what others wait for a holder that died
    #[arg(long, default_value = "4", value_parser = lease)]
    lease: Duration,
    /// Tasks that read, spread over the processes
    #[arg(long, default_value_t = 12, value_parser = value_parser!(u32).range(..=1000))]
    readers: u32,
    /// Tasks that write, spread over the processes
    #[arg(long, default_value_t = 6, value_parser = value_parser!(u32).range(..=1000))]
    writers: u32,
    /// Operating-system processes
    #[arg(long, default_value = "4", value_parser = processes)]
    processes: usize,
    /// No colours; also without a terminal, or with NO_COLOR set
    #[arg(long)]
    no_color: bool,
    /// Has one process lie in its record, so that the judge has something to find
    #[arg(long, hide = true)]
    sabotage: Option<Lie>,
}

impl Cast {
    /// Why this cast cannot play.
    fn refused(&self) -> Option<&'static str> {
        let tasks = self.readers as usize + self.writers as usize;
        (tasks < self.processes)
            .then_some("fewer readers and writers than processes: give each process something to do")
    }

    fn paint(&self) -> Paint {
        let is_plain = self.no_color || std::env::var_os("NO_COLOR").is_some();
        Paint(!is_plain && std::io::stdout().is_terminal())
    }

    /// Says who plays.
    fn introduce(&self, on: &str) {
        say(&format!("one lock on {on}, lease {:?}", self.lease));
        say(&format!(
            "{} processes with {} readers and {} writers, for {:?}",
            self.processes, self.readers, self.writers, self.seconds
        ));
    }
}

#[derive(Clone, Debug, Subcommand)]
enum Role {
    /// Shows a lock on five servers, two of which are killed and restarted empty
    Quorum(QuorumOptions),
    /// One of the processes; started by the demonstration itself
    #[command(hide = true)]
    Worker(WorkerArgs),
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if !(0.0..=86400.0).contains(&seconds) {
        return Err("it must lie between 0 and a day".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = seconds(text)?;
    if !(Duration::from_millis(500)..=Duration::from_secs(60)).contains(&lease) {
        return Err("it must lie between 0.5 and 60 seconds".to_owned());
    }
    Ok(lease)
}

fn processes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 2..=32) => Ok(count),
        _ => Err("it must lie between 2 and 32".to_owned()),
    }
}

fn main() -> ExitCode {
    let mut options = Options::parse();
    let role = options.role.take();
    let runtime = match role {
        Some(Role::Worker(_)) => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        _ => tokio::runtime::Runtime::new(),
    };
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return trouble(&error.to_string()),
    };
    let code = match role {
        Some(Role::Worker(args)) => {
            let number = args.process;
            match runtime.block_on(worker::work(args)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => trouble(&format!("process {number}: {error}")),
            }
        }
        Some(Role::Quorum(options)) => runtime.block_on(quorum::demonstrate(options)),
        None => runtime.block_on(demonstrate(options)),
    };
    // A thread may still read standard input.
    runtime.shutdown_background();
    code
}

fn trouble(what: &str) -> ExitCode {
    eprintln!("demo: {what}");
    ExitCode::from(2)
}

/// What ends the demonstration early, from the call of `listen` on.
struct Interrupts([Signal; 3]);

impl Interrupts {
    fn listen() -> std::io::Result<Self> {
        let of = |kind: fn() -> SignalKind| signal(kind());
        Ok(Self([
            of(SignalKind::interrupt)?,
            of(SignalKind::terminate)?,
            of(SignalKind::hangup)?,
        ]))
    }

    /// What the play comes to, unless a signal comes first.
    async fn or(mut self, playing: impl Future<Output = Result<bool, Trouble>>) -> Result<bool, Trouble> {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            ended = playing => ended,
            _ = interrupt.recv() => Err(Trouble::Interrupted),
            _ = terminate.recv() => Err(Trouble::Interrupted),
            _ = hangup.recv() => Err(Trouble::Interrupted),
        }
    }
}

/// A prefix below the default one, which a server that restricts its users by it lets through.
fn new_prefix() -> String {
    format!("fairlock:demo-{}", &uuid::Uuid::new_v4().simple().to_string()[..12])
}

async fn demonstrate(options: Options) -> ExitCode {
    if let Some(why) = options.cast.refused() {
        return trouble(why);
    }
    let Ok(interrupts) = Interrupts::listen() else {
        return trouble("cannot listen for signals");
    };
    let mut server = match Server::find_or_start().await {
        Ok(server) => server,
        Err(error) => return trouble(&error),
    };
    let (scene, prefix) = (Arc::new(Scene::default()), new_prefix());
    // A server that replaced another one leaves dead waiters to their leases, and who knows what a foreign server was.
    let lease = options.cast.lease;
    let grace = match server.is_private() {
        true => lease.min(GRACE),
        false => lease,
    };
    let urls = vec![server.url.clone()];
    let mut stage = Stage::new(options.cast.clone(), urls, prefix.clone(), Arc::clone(&scene));
    let playing = run(&options, grace, &server, &prefix, &scene, &mut stage);
    let ended = interrupts.or(playing).await;
    stage.clear().await;
    let is_private = server.is_private();
    server.stop().await;
    if !is_private && !scene.history().ready.is_empty() {
        say(&format!(
            "what is left on the server, {prefix}:*, expires by itself within about a minute"
        ));
    }
    exit_code(ended)
}

fn exit_code(ended: Result<bool, Trouble>) -> ExitCode {
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Trouble::Interrupted) => {
            eprintln!("interrupted; all processes are stopped");
            ExitCode::from(130)
        }
        Err(Trouble::Because(what)) => trouble(&what),
    }
}

enum Trouble {
    Interrupted,
    Because(String),
}

/// A line for the reader, if anybody still reads.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Returns whether all is well.
async fn run(
    options: &Options,
    grace: Duration,
    server: &Server,
    prefix: &str,
    scene: &Arc<Scene>,
    stage: &mut Stage,
) -> Result<bool, Trouble> {
    let because = |error: redis::RedisError| Trouble::Because(format!("{}: {error}", server.name));
    let client = redis::Client::open(server.url.as_str()).map_err(because)?;
    let connecting = timeout(CONNECT_LIMIT, client.get_multiplexed_async_connection()).await;
    let no_answer = |_| Trouble::Because(format!("{} does not answer", server.name));
    let mut redis = connecting.map_err(no_answer)?.map_err(because)?;
    let arrivals = if options.no_monitor {
        None
    } else {
        monitor::follow(&client, &mut redis).await
    };
    introduce(options, &server.name, arrivals.is_some());

    let paint = options.cast.paint();
    let key = format!("{prefix}:{{{LOCK}}}");
    let looking = tokio::spawn(view::look(redis.clone(), key, Arc::clone(scene)));
    let playing = stage.play(options.waiters, grace);
    let played = shown(playing, looking, scene, paint).await;

    let arrivals = match arrivals {
        Some(arrivals) if monitor::caught_up(&arrivals, &mut redis).await => Some(monitor::by_owner(&arrivals)),
        Some(_) => {
            say("\nMONITOR broke off: the order is judged by who was seen in the queue");
            None
        }
        None => None,
    };
    let case = Case {
        kills: &stage.kills,
        arrivals: arrivals.as_ref(),
        majority: None,
        lease: options.cast.lease,
        halt: played.as_ref().err(),
    };
    let report = report::report(scene, &case, paint);
    conclude(&report, played, paint)
}

/// Plays under the live view.
async fn shown(
    playing: impl Future<Output = Result<(), Halt>>,
    looking: JoinHandle<()>,
    scene: &Arc<Scene>,
    paint: Paint,
) -> Result<(), Halt> {
    let showing = tokio::spawn(view::show(Arc::clone(scene), paint));
    let played = playing.await;
    // The last news and the last line.
    sleep(LAST_LOOK).await;
    looking.abort();
    showing.abort();
    let _ = showing.await;
    played
}

fn introduce(options: &Options, server: &str, is_monitored: bool) {
    options.cast.introduce(server);
    let all_else = "all else by what the processes tell";
    say(&match (is_monitored, options.no_monitor) {
        (true, _) => format!("the order is judged by MONITOR, {all_else}\n"),
        (false, true) => format!("the order is judged by who is seen in the queue, {all_else}\n"),
        (false, false) => {
            format!("the server refuses MONITOR: the order is judged by who is seen in the queue, {all_else}\n")
        }
    });
}

fn conclude(report: &Report, played: Result<(), Halt>, paint: Paint) -> Result<bool, Trouble> {
    say(&format!("\n{}", report.text));
    for what in &report.broken {
        say(&paint.bad(&format!("BROKEN  {what}")));
    }
    match (report.broken.is_empty(), played) {
        (true, Ok(())) => say(&paint.good("nothing was broken")),
        (true, Err(Halt::Trouble(what) | Halt::Stuck(what))) => return Err(Trouble::Because(what)),
        (false, Err(Halt::Trouble(what))) => say(&format!("{what}; an invariant had been broken before")),
        (false, _) => say(&paint.bad("an invariant was broken")),
    }
    Ok(report.broken.is_empty())
}
