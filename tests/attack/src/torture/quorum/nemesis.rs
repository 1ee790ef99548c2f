//! Breaks any minority of the servers, in any order, and the workers beside them.

use super::LONGEST_LEASE;
use crate::torture::admin::Admin;
use crate::torture::clock::{self, FakeClock, now_us, true_us};
use crate::torture::faults::{Fault, Lane, Schedule, Step};
use crate::torture::fleet::Fleet;
use crate::torture::judge::Judge;
use crate::torture::lock;
use crate::torture::nemesis::{Counts, Result, begins, ended, on_network, on_process, on_server};
use fairlock_support::server::{PATIENCE, Server};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// After its quarantine a server is asked by all who hold or wait.
const ASKED_AGAIN: Duration = Duration::from_millis(500);

/// Clocks differ by less than the longest lease, also where two of them are stepped.
const STEPS_MS: [i64; 4] = [-900, -300, 300, 900];

/// One server of the quorum.
pub struct Seat {
    pub url: String,
    pub port: u16,
    server: tokio::sync::Mutex<Server>,
    clock: Option<FakeClock>,
}

impl Seat {
    /// With `clock`, the file of a clock that can be stepped.
    pub async fn start(program: &str, clock: Option<PathBuf>) -> Self {
        let clock = clock.and_then(FakeClock::find);
        let program = clock
            .as_ref()
            .map_or_else(|| vec![program.to_owned()], |clock| clock.command(program));
        let server = Server::start_program(&program, &["--enable-debug-command", "local"]).await;
        Self {
            url: server.url(),
            port: server.port(),
            server: tokio::sync::Mutex::new(server),
            clock,
        }
    }
}

pub struct Nemesis {
    pub fleet: tokio::sync::Mutex<Fleet>,
    seats: Vec<Seat>,
    judge: Arc<Mutex<Judge>>,
    counts: Arc<Mutex<Counts>>,
    broken: Mutex<BTreeSet<usize>>,
}

impl Nemesis {
    pub fn new(fleet: Fleet, seats: Vec<Seat>, judge: Arc<Mutex<Judge>>, counts: Arc<Mutex<Counts>>) -> Self {
        Self {
            fleet: tokio::sync::Mutex::new(fleet),
            seats,
            judge,
            counts,
            broken: Mutex::default(),
        }
    }

    pub fn minority(&self) -> usize {
        (self.seats.len() - 1) / 2
    }

    pub fn urls(&self) -> Vec<String> {
        self.seats.iter().map(|seat| seat.url.clone()).collect()
    }

    /// Kills and stops workers, until it is told to stop.
    pub async fn workers(self: Arc<Self>, schedule: Schedule, calm: f64, mut stopped: watch::Receiver<bool>) {
        for step in schedule {
            if !begins(&step, calm, &mut stopped, &self.counts).await {
                return;
            }
            let done = on_process(&step, &self.fleet).await;
            ended(&step, done, &self.counts, &self.judge);
        }
    }

    /// Breaks one server after the other, until it is told to stop. Each votes again before this goes on.
    pub async fn servers(self: Arc<Self>, schedule: Schedule, calm: f64, mut stopped: watch::Receiver<bool>) {
        // New servers are in quarantine.
        for at in 0..self.seats.len() {
            if let Err(error) = self.until_it_votes(at).await {
                return lock(&self.judge).violation(format!("server {at} never voted: {error}"));
            }
        }
        for step in schedule {
            if !begins(&step, calm, &mut stopped, &self.counts).await {
                return;
            }
            let at = self.take(step.detail);
            lock(&self.counts).note(&format!("{} at server {at}", step.fault.name()));
            let done = self.perform(&step, at).await;
            lock(&self.broken).remove(&at);
            ended(&step, done, &self.counts, &self.judge);
        }
    }

    /// A server that nothing is done to yet.
    fn take(&self, detail: u64) -> usize {
        let mut broken = lock(&self.broken);
        let whole: Vec<_> = (0..self.seats.len()).filter(|at| !broken.contains(at)).collect();
        // The lower numbers decide what is done.
        let at = whole[(detail >> 32) as usize % whole.len()];
        broken.insert(at);
        at
    }

    /// Says whether anything was done.
    async fn perform(&self, step: &Step, at: usize) -> Result<bool> {
        let seat = &self.seats[at];
        match step.fault {
            // It is stopped, and answers nobody.
            Fault::Sleep => {
                seat.server.lock().await.freeze();
                sleep(step.lasts).await;
                seat.server.lock().await.thaw();
            }
            // It comes back with what it saved last, which may be old; a fresh copy or none.
            Fault::Restart => {
                let mut server = seat.server.lock().await;
                if step.detail.is_multiple_of(3) {
                    Admin::new(seat.url.clone()).call::<()>(&["SAVE"]).await?;
                    if step.detail.is_multiple_of(2) {
                        sleep(step.lasts).await;
                    }
                }
                server.kill();
                sleep(step.lasts).await;
                server.start_again().await;
                drop(server);
                self.until_it_votes(at).await?;
            }
            Fault::Wipe => {
                let mut server = seat.server.lock().await;
                server.kill();
                match std::fs::remove_file(server.dir().join("dump.rdb")) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                    _ => {}
                }
                sleep(step.lasts).await;
                server.start_again().await;
                drop(server);
                self.until_it_votes(at).await?;
            }
            Fault::Clock => {
                let Some(clock) = &seat.clock else { return Ok(false) };
                let mut admin = Admin::new(seat.url.clone());
                let offset = STEPS_MS[step.detail as usize % STEPS_MS.len()];
                self.step_clock(clock, offset, offset > 0)?;
                let shown = clock::shows(&mut admin, offset).await;
                sleep(step.lasts.max(LONGEST_LEASE)).await;
                self.step_clock(clock, 0, offset < 0)?;
                sleep(LONGEST_LEASE).await;
                shown?;
                clock::shows(&mut admin, 0).await?;
            }
            _ if step.fault.lane() == Lane::Network => {
                let proxies = self.fleet.lock().await.proxies(step.target, at);
                return Ok(on_network(step, &proxies).await);
            }
            _ => return on_server(step, &mut Admin::new(seat.url.clone())).await,
        }
        Ok(true)
    }

    /// A step forward ends leases whose holders believe in them. Where a holder has no vote to spare, another one may enter: the
    /// docs except that from what is promised, and the register's fence has to do.
    fn step_clock(&self, clock: &FakeClock, offset_ms: i64, forward: bool) -> Result {
        let mut judge = lock(&self.judge);
        if forward {
            judge.loss_begins(now_us());
        }
        clock.step(offset_ms)?;
        if forward {
            judge.jump_ends(now_us(), true_us());
        }
        Ok(())
    }

    /// Until a client has seen the server begin, and the quarantine after that is over.
    async fn until_it_votes(&self, at: usize) -> Result {
        let mut admin = Admin::new(self.seats[at].url.clone());
        let begun = Instant::now();
        loop {
            let info: String = admin.call(&["INFO", "server"]).await?;
            let run = info
                .lines()
                .find_map(|line| line.strip_prefix("run_id:"))
                .unwrap_or("")
                .trim();
            let life: Option<String> = admin.call(&["GET", "fairlock.q:life"]).await?;
            let since = life.as_deref().and_then(|life| life.split_once(' '));
            let (seconds, us): (u64, u64) = admin.call(&["TIME"]).await?;
            let now_ms = seconds * 1000 + us / 1000;
            if let Some((of, since)) = since
                && of == run
                && u128::from(now_ms) > u128::from(since.parse::<u64>()?) + LONGEST_LEASE.as_millis()
            {
                sleep(ASKED_AGAIN).await;
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err("no client came to it".into());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}
