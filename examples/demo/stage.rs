//! What happens, in order: who starts, who is killed, and when it is over.

use crate::Cast;
use crate::judge::Sight;
use crate::process::Process;
use crate::record::{History, Mode, Request, now_ns};
use crate::worker::WorkerArgs;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// For what should take milliseconds: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long the view shows a scene before it goes on.
const PAUSE: Duration = Duration::from_millis(400);

/// Why the play ended early.
pub(crate) enum Halt {
    /// The lock did not go on.
    Stuck(String),
    /// It could not be shown.
    Trouble(String),
}

impl From<String> for Halt {
    fn from(what: String) -> Self {
        Self::Trouble(what)
    }
}

/// The lock as the server shows it, to whoever can read its keys.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) mode: String,
    /// Owners.
    pub(crate) holders: Vec<String>,
    /// Requests in order.
    pub(crate) queue: Vec<String>,
    /// Of a quorum: a line for each server.
    pub(crate) servers: Vec<String>,
}

/// What the tasks of the parent share.
#[derive(Default)]
pub(crate) struct Scene {
    history: Mutex<History>,
    news: Mutex<Vec<(u64, String)>>,
    snapshot: Mutex<Snapshot>,
    sights: Mutex<HashMap<String, Sight>>,
    ended: Mutex<HashSet<usize>>,
    /// Why the lock's keys cannot be read.
    blind: Mutex<Option<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scene {
    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }

    pub(crate) fn news(&self) -> MutexGuard<'_, Vec<(u64, String)>> {
        lock(&self.news)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        lock(&self.snapshot).clone()
    }

    pub(crate) fn sights(&self) -> MutexGuard<'_, HashMap<String, Sight>> {
        lock(&self.sights)
    }

    pub(crate) fn set_snapshot(&self, snapshot: Snapshot) {
        *lock(&self.snapshot) = snapshot;
    }

    pub(crate) fn set_blind(&self, why: String) {
        *lock(&self.blind) = Some(why);
    }

    pub(crate) fn process_ended(&self, number: usize) {
        lock(&self.ended).insert(number);
    }

    pub(crate) fn tell(&self, news: String) {
        self.news().push((now_ns(), news));
    }
}

/// One SIGKILL, and when the lock went on.
pub(crate) struct Kill {
    pub(crate) what: String,
    pub(crate) at: u64,
    /// How long the dead may keep the others out.
    pub(crate) bound: Duration,
    pub(crate) recovered: Option<u64>,
}

pub(crate) struct Stage {
    pub(crate) cast: Cast,
    /// Several are a quorum.
    servers: Vec<String>,
    prefix: String,
    pub(crate) scene: Arc<Scene>,
    live: Vec<Process>,
    started: usize,
    pub(crate) kills: Vec<Kill>,
}

impl Stage {
    pub(crate) fn new(cast: Cast, servers: Vec<String>, prefix: String, scene: Arc<Scene>) -> Self {
        Self {
            cast,
            servers,
            prefix,
            scene,
            live: Vec::new(),
            started: 0,
            kills: Vec::new(),
        }
    }

    /// The whole of it, on one server. `grace`: what dead waiters may cost.
    pub(crate) async fn play(&mut self, waiters: u32, grace: Duration) -> Result<(), Halt> {
        let seconds = self.cast.seconds;
        let begun = self.open().await?;
        let at = |part: f64| begun + seconds.mul_f64(part);
        sleep_until(at(0.25)).await;
        self.kill_a_holder().await?;
        sleep_until(at(0.6)).await;
        self.kill_the_head_of_the_queue(waiters as usize, grace).await?;
        sleep_until(at(1.0).max(Instant::now() + Duration::from_secs(1))).await;
        self.close().await
    }

    /// All processes start and contend. Returns since when.
    pub(crate) async fn open(&mut self) -> Result<Instant, Halt> {
        let count = self.cast.processes;
        for index in 0..count {
            let (readers, writers) = self.share(index);
            self.start(readers, writers)?;
        }
        self.until_ready().await?;
        self.tell_all("go").await?;
        self.scene.tell(format!("{count} processes contend"));
        Ok(Instant::now())
    }

    /// Nobody asks any more.
    pub(crate) async fn close(&mut self) -> Result<(), Halt> {
        self.scene
            .tell("nobody asks any more; who waits still enters".to_owned());
        self.tell_all("stop").await?;
        for process in &mut self.live {
            // Those that do not end are counted as still waiting.
            process.ended(self.cast.lease + PATIENCE).await;
        }
        Ok(())
    }

    /// How many readers and writers the process with this index has.
    fn share(&self, index: usize) -> (u32, u32) {
        let count = self.cast.processes;
        let of = |all: u32, index: usize| (all as usize / count + usize::from(index < all as usize % count)) as u32;
        // The odd readers go to the first processes and the odd writers to the last: each has something to do.
        (of(self.cast.readers, index), of(self.cast.writers, count - 1 - index))
    }

    fn start(&mut self, readers: u32, writers: u32) -> Result<usize, String> {
        self.started += 1;
        let args = WorkerArgs {
            process: self.started,
            prefix: self.prefix.clone(),
            lease_ms: self.cast.lease.as_millis() as u64,
            readers,
            writers,
            lie: self.cast.sabotage.filter(|_| self.started == 2),
        };
        self.live.push(Process::start(&args, &self.servers, &self.scene)?);
        Ok(self.started)
    }

    pub(crate) async fn kill_a_holder(&mut self) -> Result<(), Halt> {
        let victim = self.live[0].number;
        self.hold_in(0).await?;
        self.scene.tell(format!(
            "process {victim} holds the lock alone and is about to be killed"
        ));
        sleep(PAUSE).await;
        let killed = self.live.remove(0);
        let lease = self.cast.lease;
        let at = self
            .kill(killed, lease, format!("process {victim}, which held"))
            .await?;
        let (readers, writers) = self.share(0);
        let next = self.start(readers, writers)?;
        self.until_recovered(at, at).await;
        self.until_ready().await?;
        self.tell(self.live.len() - 1, "go").await?;
        self.scene
            .tell(format!("process {next} takes the place of process {victim}"));
        Ok(())
    }

    async fn kill_the_head_of_the_queue(&mut self, count: usize, grace: Duration) -> Result<(), Halt> {
        let victim = self.start(0, 0)?;
        self.until_ready().await?;
        self.tell_all("pause").await?;
        let scene = Arc::clone(&self.scene);
        self.until("everybody is out", || scene.history().open().next().is_none())
            .await?;
        self.hold_in(0).await?;
        let holder = self.live[0].number;
        let last = self.live.len() - 1;
        self.tell(last, &format!("queue {count}")).await?;
        self.until("the victim's requests wait", || scene.snapshot().queue.len() >= count)
            .await?;
        self.scene.tell(format!(
            "process {holder} holds, {count} writers of process {victim} are the head of the queue"
        ));
        let killed = self.live.remove(last);
        self.tell_all("go").await?;
        self.until("others wait behind them", || scene.snapshot().queue.len() > count)
            .await?;
        sleep(PAUSE).await;
        let at = self
            .kill(
                killed,
                grace,
                format!("process {victim} with {count} waiters at the head"),
            )
            .await?;
        self.tell(0, "leave").await?;
        let left = |request: &Request| request.process == holder && request.released.is_some_and(|time| time > at);
        self.until("the holder leaves", || scene.history().requests.iter().any(left))
            .await?;
        let released = scene
            .history()
            .requests
            .iter()
            .filter(|r| left(r))
            .filter_map(|r| r.released)
            .max();
        self.until_recovered(at, released.unwrap_or(at)).await;
        Ok(())
    }

    /// Has a process take the lock alone and keep it.
    async fn hold_in(&mut self, index: usize) -> Result<(), Halt> {
        let process = self.live[index].number;
        let task = self.share_of(process) + 1;
        self.tell(index, "hold").await?;
        let scene = Arc::clone(&self.scene);
        self.until("a process holds the lock alone", || {
            let history = scene.history();
            let holds =
                |r: &Request| r.process == process && r.task >= task && r.mode == Mode::Write && r.entered.is_some();
            history.open().any(holds)
        })
        .await
    }

    /// How many tasks a process has that come and go. Those with higher numbers were told to come.
    fn share_of(&self, process: usize) -> u32 {
        let index = if process <= self.cast.processes { process - 1 } else { 0 };
        let (readers, writers) = self.share(index);
        readers + writers
    }

    async fn kill(&mut self, mut process: Process, bound: Duration, what: String) -> Result<u64, String> {
        let at = process.kill(&self.scene).await?;
        self.killed(at, bound, what);
        Ok(at)
    }

    pub(crate) fn killed(&mut self, at: u64, bound: Duration, what: String) {
        self.scene.tell(format!("SIGKILL to {what}"));
        self.kills.push(Kill {
            what,
            at,
            bound,
            recovered: None,
        });
    }

    /// Waits for the first grant after this time. If none comes, the table will say so.
    pub(crate) async fn until_recovered(&mut self, at: u64, after: u64) {
        let scene = Arc::clone(&self.scene);
        let next = move || {
            let history = scene.history();
            let live = history.requests.iter().rev().filter(|r| r.killed.is_none());
            live.filter_map(|r| r.entered).filter(|entered| *entered > after).min()
        };
        let waited = self.until("the lock is granted again", || next().is_some()).await;
        let recovered = waited.ok().and_then(|()| next());
        if let Some(kill) = self.kills.last_mut() {
            kill.recovered = recovered;
        }
        self.scene.tell(match recovered {
            Some(time) => format!("granted again {:.2} s after the kill", (time - at) as f64 / 1e9),
            None => "not granted again".to_owned(),
        });
    }

    async fn until_ready(&self) -> Result<(), Halt> {
        let numbers: Vec<_> = self.live.iter().map(|process| process.number).collect();
        let all = || {
            let history = self.scene.history();
            numbers.iter().all(|number| history.ready.contains(number))
        };
        match self.until("all processes are connected", all).await {
            Err(Halt::Stuck(what)) => Err(Halt::Trouble(what)),
            other => other,
        }
    }

    pub(crate) async fn until(&self, what: &str, reached: impl Fn() -> bool) -> Result<(), Halt> {
        let begun = Instant::now();
        while !reached() {
            let ended = lock(&self.scene.ended).clone();
            if let Some(process) = self.live.iter().find(|process| ended.contains(&process.number)) {
                let what = format!("process {} ended before it was told to", process.number);
                return Err(Halt::Trouble(what));
            }
            if let Some(why) = lock(&self.scene.blind).clone() {
                return Err(Halt::Trouble(format!("cannot read the lock's keys: {why}")));
            }
            if begun.elapsed() > self.cast.lease * 2 + PATIENCE {
                return Err(Halt::Stuck(format!("waited in vain until {what}")));
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    async fn tell(&mut self, index: usize, command: &str) -> Result<(), String> {
        self.live[index].tell(command).await
    }

    async fn tell_all(&mut self, command: &str) -> Result<(), String> {
        for process in &mut self.live {
            process.tell(command).await?;
        }
        Ok(())
    }

    /// Ends whatever still runs. Always called, also after trouble and on Ctrl-C.
    pub(crate) async fn clear(&mut self) {
        for process in self.live.drain(..) {
            process.end().await;
        }
    }
}
