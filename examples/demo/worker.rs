//! One of the processes that contend: does what its standard input says, and tells its record on standard output.

use crate::lock::{Connected, Hold, Lock};
use crate::record::{Event, Line, Mode, now_ns};
use clap::{Args, ValueEnum};
use fairlock::{Error, Owner};
use std::io::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The variable with the servers' URLs, one a line: arguments can be read by others, and a URL may hold a password.
pub(crate) const SERVERS: &str = "FAIRLOCK_DEMO_SERVERS";
pub(crate) const LOCK: &str = "demo";

/// A guard is asked so often whether it is still held.
const LOOK: Duration = Duration::from_millis(10);
const THINK_MS: Range<u64> = 0..60;
const READ_MS: Range<u64> = 5..25;
const WRITE_MS: Range<u64> = 2..12;

/// A lie in the record, to see the judge find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Lie {
    /// Says that it holds for longer than it does.
    Overlap,
    /// Says that it entered later than it did.
    Order,
    /// Reports smaller tokens than it was given.
    Token,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    pub(crate) process: usize,
    #[arg(long)]
    pub(crate) prefix: String,
    #[arg(long)]
    pub(crate) lease_ms: u64,
    #[arg(long)]
    pub(crate) readers: u32,
    #[arg(long)]
    pub(crate) writers: u32,
    #[arg(long)]
    pub(crate) lie: Option<Lie>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    Pause,
    Go,
    Stop,
}

/// How long a hold lasts.
enum Stay {
    For(Duration),
    UntilTold(Arc<Notify>),
}

#[derive(Clone)]
struct Worker {
    lock: Lock,
    lie: Option<Lie>,
}

type Failure = Box<dyn std::error::Error>;

pub(crate) async fn work(args: WorkerArgs) -> Result<(), Failure> {
    let servers = std::env::var(SERVERS)?;
    let servers: Vec<_> = servers.lines().collect();
    let connected = Connected::to(&servers, &args).await?;
    let worker = Worker {
        lock: connected.lock(LOCK),
        lie: args.lie,
    };
    // The server knows the scripts from here on, so that nothing about the lock itself is sent twice. New servers of a
    // quorum grant it after their quarantine.
    worker
        .warm_up(connected.lock(&format!("warm-up-{}", args.process)))
        .await?;

    let (duty, orders) = watch::channel(Duty::Pause);
    let mut tasks = JoinSet::new();
    for task in 1..=args.readers + args.writers {
        let mode = if task <= args.readers { Mode::Read } else { Mode::Write };
        tasks.spawn(worker.clone().come_and_go(mode, task, orders.clone()));
    }
    worker.tell(now_ns(), "", Event::Ready);

    let mut extra_task = args.readers + args.writers;
    let leave = Arc::new(Notify::new());
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    loop {
        // The end of input: the parent is gone.
        let Some(command) = commands.next_line().await? else {
            return Ok(());
        };
        match command.split_once(' ').unwrap_or((&command, "")) {
            ("go", _) => drop(duty.send_replace(Duty::Go)),
            ("pause", _) => drop(duty.send_replace(Duty::Pause)),
            ("hold", _) => {
                extra_task += 1;
                tasks.spawn(
                    worker
                        .clone()
                        .once(Mode::Write, extra_task, Stay::UntilTold(leave.clone())),
                );
            }
            ("leave", _) => leave.notify_one(),
            ("queue", count) => {
                for _ in 0..count.parse()? {
                    extra_task += 1;
                    let stay = Stay::For(pick(WRITE_MS));
                    tasks.spawn(worker.clone().once(Mode::Write, extra_task, stay));
                }
            }
            ("stop", _) => break,
            (other, _) => return Err(format!("unknown command {other:?}").into()),
        }
    }
    duty.send_replace(Duty::Stop);
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    connected.shutdown().await;
    Ok(())
}

impl Worker {
    async fn come_and_go(self, mode: Mode, task: u32, mut orders: watch::Receiver<Duty>) {
        loop {
            let Ok(duty) = orders.wait_for(|duty| *duty != Duty::Pause).await.map(|duty| *duty) else {
                return;
            };
            if duty == Duty::Stop {
                return;
            }
            sleep(pick(THINK_MS)).await;
            if *orders.borrow() != Duty::Go {
                continue;
            }
            let stay = pick(if mode == Mode::Read { READ_MS } else { WRITE_MS });
            self.clone().once(mode, task, Stay::For(stay)).await;
        }
    }

    async fn once(self, mode: Mode, task: u32, stay: Stay) {
        // One for each request: it names the request where the server's commands are watched.
        let owner = Owner::new();
        let request = owner.uuid().simple().to_string();
        self.tell(now_ns(), &request, Event::Asked { mode, task });
        let done = match (&self.lock, mode) {
            (Lock::One(lock), Mode::Read) => {
                let asking = lock.with_owner(&owner).read().acquire_fair();
                self.enter(asking, &request, stay).await
            }
            (Lock::One(lock), Mode::Write) => {
                let asking = lock.with_owner(&owner).write().acquire_fair();
                self.enter(asking, &request, stay).await
            }
            (Lock::Several(lock), Mode::Read) => {
                let asking = lock.with_owner(&owner).read().acquire_fair();
                self.enter(asking, &request, stay).await
            }
            (Lock::Several(lock), Mode::Write) => {
                let asking = lock.with_owner(&owner).write().acquire_fair();
                self.enter(asking, &request, stay).await
            }
        };
        if let Err(error) = done {
            let error = error.to_string();
            self.tell(now_ns(), &request, Event::Failed { error });
        }
    }

    async fn warm_up(&self, lock: Lock) -> Result<(), Error> {
        match lock {
            Lock::One(lock) => lock.write().acquire_fair().await?.release().await,
            Lock::Several(lock) => lock.write().acquire_fair().await?.release().await,
        }
    }

    async fn enter<H: Hold>(
        &self,
        asking: impl Future<Output = Result<H, Error>>,
        request: &str,
        stay: Stay,
    ) -> Result<(), Error> {
        let guard = asking.await?;
        let begun = Instant::now();
        let token = guard.token().await?;
        let mut event = Event::Entered { token };
        loop {
            // Held after this time, hence at this time.
            let at = now_ns();
            if !guard.is_held() {
                let reason = guard.lost().await.to_string();
                self.tell(at, request, Event::Lost { reason });
                return Ok(());
            }
            let last = matches!(event, Event::Releasing { .. });
            self.tell(at, request, event);
            if last {
                break;
            }
            event = Event::Holds;
            match &stay {
                Stay::For(time) => {
                    let left = time.saturating_sub(begun.elapsed());
                    sleep(left.min(LOOK)).await;
                    if left <= LOOK {
                        event = Event::Releasing { votes: guard.votes() };
                    }
                }
                Stay::UntilTold(leave) => {
                    tokio::select! {
                        () = leave.notified() => event = Event::Releasing { votes: guard.votes() },
                        () = sleep(LOOK) => {}
                    }
                }
            }
        }
        guard.release().await?;
        self.tell(now_ns(), request, Event::Left);
        Ok(())
    }

    fn tell(&self, at_ns: u64, request: &str, event: Event) {
        let request = request.to_owned();
        let mut line = Line { at_ns, request, event };
        match (self.lie, &mut line.event) {
            (Some(Lie::Overlap), Event::Holds | Event::Releasing { .. }) => line.at_ns += 50_000_000,
            (Some(Lie::Order), Event::Entered { .. } | Event::Holds | Event::Releasing { .. }) => {
                line.at_ns += 300_000_000
            }
            (Some(Lie::Token), Event::Entered { token }) => *token -= 1_000_000_000,
            _ => {}
        }
        let Ok(mut text) = serde_json::to_string(&line) else {
            return;
        };
        text.push('\n');
        // In one piece and at once: after a SIGKILL whatever was told before it counts.
        let mut out = std::io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            // The parent is gone.
            std::process::exit(1);
        }
    }
}

fn pick(range_ms: Range<u64>) -> Duration {
    let random = u64::from(uuid::Uuid::new_v4().as_fields().0);
    Duration::from_millis(range_ms.start + random % (range_ms.end - range_ms.start))
}
