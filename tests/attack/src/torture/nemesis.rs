//! Makes the faults happen.

use super::admin::Admin;
use super::clock::{self, FakeClock, now_us, true_us};
use super::faults::{Fault, Lane, Schedule, Step};
use super::fleet::Fleet;
use super::follow::{Follower, Pass};
use super::judge::Judge;
use super::{connect_redis, lock};
use crate::journal;
use fairlock_support::limits::{self, Resource};
use fairlock_support::proxy::{Cut, Proxy};
use fairlock_support::server::Server;
use rustix::process::{Pid, Signal};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

pub(super) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How often each fault came, and which ones are there now.
#[derive(Default)]
pub struct Counts {
    /// Of each chosen one, how often it came and did something.
    pub done: BTreeMap<Fault, u64>,
    pub now: Vec<Fault>,
    /// The last ones, with the time in us and what is needed to understand them.
    pub log: VecDeque<String>,
}

impl Counts {
    pub(super) fn note(&mut self, text: &str) {
        self.log.push_back(format!("{} {text}", now_us()));
        if self.log.len() > LOGGED {
            self.log.pop_front();
        }
    }
}

const LOGGED: usize = 16;

/// Everything that it can hurt.
pub struct Nemesis {
    pub fleet: Arc<tokio::sync::Mutex<Fleet>>,
    pub server: Arc<tokio::sync::Mutex<Server>>,
    pub follower: Arc<tokio::sync::Mutex<Follower>>,
    pub judge: Arc<Mutex<Judge>>,
    pub clock: Option<FakeClock>,
    pub counts: Arc<Mutex<Counts>>,
    pub url: String,
    /// Until then the server's clock has been ahead of what it is now.
    pub ahead_until: Mutex<Option<Instant>>,
    /// When its data were lost last.
    pub lost_at: Mutex<Option<Instant>>,
}

impl Nemesis {
    /// The faults of one lane, until it is told to stop. The pauses between them are `calm` times as long.
    pub async fn run(self: Arc<Self>, schedule: Schedule, calm: f64, mut stopped: watch::Receiver<bool>) {
        let mut admin = Admin::new(self.url.clone());
        for step in schedule {
            if !begins(&step, calm, &mut stopped, &self.counts).await {
                return;
            }
            let done = self.perform(&step, &mut admin).await;
            ended(&step, done, &self.counts, &self.judge);
        }
    }

    /// Says whether anything was done.
    async fn perform(&self, step: &Step, admin: &mut Admin) -> Result<bool> {
        let &Step {
            fault,
            lasts,
            target,
            detail,
            ..
        } = step;
        match fault {
            Fault::Restart => self.restart(lasts, admin).await?,
            Fault::RestartEverysec => self.restart_everysec(lasts, detail).await?,
            Fault::Wipe => self.wipe(lasts, detail, admin).await?,
            Fault::Lose => return self.lose(target, detail).await,
            Fault::Clock => return self.step_clock(lasts, detail, admin).await,
            _ => match fault.lane() {
                Lane::Process => return on_process(step, &self.fleet).await,
                Lane::Network => {
                    let proxies = self.fleet.lock().await.proxies(target, 0);
                    return Ok(on_network(step, &proxies).await);
                }
                Lane::Server => return on_server(step, admin).await,
            },
        }
        Ok(true)
    }

    /// All of its data are on the disk when it is killed.
    async fn restart(&self, away: Duration, admin: &mut Admin) -> Result {
        admin.config("appendfsync", "always").await?;
        // What came before that is written by the next turn of the server's loop, before this is answered.
        admin.call::<String>(&["PING"]).await?;
        let mut server = self.server.lock().await;
        server.kill();
        sleep(away).await;
        server.start_again().await;
        admin.config("appendfsync", "everysec").await?;
        Ok(())
    }

    /// It comes back as it was a moment before: half the time as if the disk had been too slow for what came last, which
    /// with `everysec` a server puts off writing for up to two seconds. Then it is emptied: nobody can tell what it still
    /// knows.
    async fn restart_everysec(&self, away: Duration, detail: u64) -> Result {
        self.until_not_ahead().await;
        let mut follower = self.follower.lock().await;
        {
            let mut judge = lock(&self.judge);
            judge.loss_begins(now_us());
            // What was not read before the kill may be lost without a trace.
            judge.journal_lost();
        }
        let mut server = self.server.lock().await;
        server.kill();
        if detail.is_multiple_of(2) {
            cut_last_file(&server.dir().join("appendonlydir"), detail % 50_000)?;
        }
        sleep(away).await;
        server.start_again().await;
        match follower.read_all_again().await {
            Pass::Lost => {
                lock(&self.counts).note("some of its data are lost: FLUSHALL");
                Admin::new(self.url.clone()).call::<()>(&["FLUSHALL"]).await?;
                self.data_lost(&mut follower).await?;
            }
            Pass::Broken => return Err("the server that came back cannot be read".into()),
            Pass::Complete | Pass::More => {}
        }
        lock(&self.judge).loss_ends(now_us(), true_us());
        Ok(())
    }

    /// A server that loses its data goes on from its clock: that must not be behind what it was. And the judge knows by
    /// their tokens which grants came before a loss.
    async fn until_not_ahead(&self) {
        let ahead_until = *lock(&self.ahead_until);
        if let Some(ahead_until) = ahead_until {
            tokio::time::sleep_until(ahead_until).await;
        }
    }

    async fn wipe(&self, away: Duration, detail: u64, admin: &mut Admin) -> Result {
        self.until_not_ahead().await;
        let mut follower = self.follower.lock().await;
        let read = follower.read_all().await;
        if read != Pass::Complete {
            return Err(format!("the journal was not read before it is lost: {read:?}").into());
        }
        lock(&self.judge).loss_begins(now_us());
        if detail.is_multiple_of(2) {
            admin.call::<()>(&["FLUSHALL"]).await?;
        } else {
            let mut server = self.server.lock().await;
            server.kill();
            std::fs::remove_dir_all(server.dir().join("appendonlydir"))?;
            sleep(away).await;
            server.start_again().await;
        }
        self.data_lost(&mut follower).await?;
        lock(&self.judge).loss_ends(now_us(), true_us());
        Ok(())
    }

    /// One key of a lock, or one field. Who is inside may believe so for a lease.
    async fn lose(&self, target: u64, detail: u64) -> Result<bool> {
        self.until_not_ahead().await;
        let keys = to_lose(self.follower.lock().await.keys(), target);
        let mut redis = connect_redis(&self.url).await?;
        lock(&self.judge).loss_begins(now_us());
        let mut deleted = false;
        // Nobody may wait for the first one, and another one has a queue.
        let from = target as usize % keys.len();
        for key in keys.iter().cycle().skip(from).take(keys.len()) {
            deleted = match detail % 5 {
                0 => journal::delete(&mut redis, key, std::slice::from_ref(key)).await?,
                1 => journal::delete(&mut redis, key, &[format!("{key}:q")]).await?,
                2 => journal::delete(&mut redis, key, &[format!("{key}:l")]).await?,
                _ => journal::delete_field(&mut redis, key, detail / 5).await?,
            };
            if deleted {
                break;
            }
        }
        *lock(&self.lost_at) = Some(Instant::now());
        // As after a jump: whoever enters before a former holder renews is thrown out when that one finds the damage, and
        // believes in its hold until its own renewal. docs/failures.md promises no exclusion until then.
        lock(&self.judge).jump_ends(now_us(), true_us());
        Ok(deleted)
    }

    async fn data_lost(&self, follower: &mut Follower) -> Result {
        follower.start_over().await?;
        lock(&self.judge).data_lost();
        *lock(&self.lost_at) = Some(Instant::now());
        Ok(())
    }

    /// Steps it, and some time later steps it to the true time. One of the two steps goes forward: leases end early.
    async fn step_clock(&self, lasts: Duration, detail: u64, admin: &mut Admin) -> Result<bool> {
        let Some(clock) = &self.clock else { return Ok(false) };
        self.until_not_ahead().await;
        // The keys outlive a lease by 30 s: a farther jump would end them too.
        let ms = [50, 700, 3_000, 8_000][detail as usize / 2 % 4];
        if detail.is_multiple_of(2) {
            self.jump_forward(clock, ms)?;
            let shown = clock::shows(admin, ms).await;
            sleep(lasts).await;
            clock.step(0)?;
            let ahead = Duration::from_millis(ms.cast_unsigned());
            *lock(&self.ahead_until) = Some(Instant::now() + ahead);
            shown?;
            clock::shows(admin, 0).await?;
        } else {
            // This way nobody loses anything. But a server that has lost its data counts on from its clock: not to before
            // that moment.
            let lost_at = *lock(&self.lost_at);
            let most = lost_at.map_or(i64::MAX, |lost_at| lost_at.elapsed().as_millis() as i64);
            let back = ms.min(most);
            clock.step(-back)?;
            let shown = clock::shows(admin, -back).await;
            sleep(lasts).await;
            self.jump_forward(clock, 0)?;
            shown?;
            clock::shows(admin, 0).await?;
            return Ok(back > 0);
        }
        Ok(true)
    }

    fn jump_forward(&self, clock: &FakeClock, offset_ms: i64) -> Result {
        lock(&self.judge).loss_begins(now_us());
        clock.step(offset_ms)?;
        lock(&self.judge).jump_ends(now_us(), true_us());
        Ok(())
    }
}

/// The locks of which one is to lose something: all that are used all the time, and one of the thousand that mostly are
/// idle.
fn to_lose(keys: Vec<String>, target: u64) -> Vec<String> {
    let (mut many, mut keys): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| key.contains("{many-"));
    if !many.is_empty() {
        keys.push(many.swap_remove((target >> 32) as usize % many.len()));
    }
    keys
}

/// Waits for the pause before a fault, and notes its beginning. `false`: the run is over.
pub(super) async fn begins(
    step: &Step,
    calm: f64,
    stopped: &mut watch::Receiver<bool>,
    counts: &Mutex<Counts>,
) -> bool {
    tokio::select! {
        () = sleep(step.pause.mul_f64(calm)) => {}
        _ = stopped.changed() => {}
    }
    if *stopped.borrow() {
        return false;
    }
    let mut counts = lock(counts);
    counts.now.push(step.fault);
    counts.note(&format!("{step:?}"));
    true
}

/// Notes the end of a fault. A nemesis that fails is a violation, because a run without its faults judges nothing.
/// One that found nothing to break did not come.
pub(super) fn ended(step: &Step, done: Result<bool>, counts: &Mutex<Counts>, judge: &Mutex<Judge>) {
    let mut counts = lock(counts);
    counts.note(&format!("{} ended", step.fault.name()));
    if let Some(at) = counts.now.iter().position(|fault| *fault == step.fault) {
        counts.now.swap_remove(at);
    }
    if matches!(done, Ok(true)) {
        *counts.done.entry(step.fault).or_default() += 1;
    }
    drop(counts);
    if let Err(error) = done {
        lock(judge).violation(format!("the nemesis failed at {step:?}: {error}"));
    }
}

/// A fault of a worker. Says whether anything was done.
pub(super) async fn on_process(step: &Step, fleet: &tokio::sync::Mutex<Fleet>) -> Result<bool> {
    let number = step.target as usize % fleet.lock().await.workers().len();
    match step.fault {
        Fault::Kill => fleet.lock().await.replace(number).await?,
        Fault::Quota => {
            let end = Instant::now() + step.lasts;
            while Instant::now() < end {
                stop(fleet, number, Duration::from_millis(45)).await?;
                sleep(Duration::from_millis(5)).await;
            }
        }
        Fault::Files => {
            let Some(pid) = fleet.lock().await.without_files(number)? else {
                return Ok(false);
            };
            limits::limit(pid, Resource::Nofile, Some(3));
            let was_cut = fleet.lock().await.cut(number);
            sleep(step.lasts).await;
            limits::limit(pid, Resource::Nofile, None);
            return Ok(was_cut);
        }
        Fault::Starve => {
            let starves = fleet.lock().await.starve(number)?;
            sleep(step.lasts).await;
            fleet.lock().await.replace(number).await?;
            return Ok(starves);
        }
        _ => stop(fleet, number, step.lasts).await?,
    }
    Ok(true)
}

async fn stop(fleet: &tokio::sync::Mutex<Fleet>, number: usize, lasts: Duration) -> Result {
    fleet.lock().await.signal(number, Signal::STOP)?;
    sleep(lasts).await;
    fleet.lock().await.signal(number, Signal::CONT)?;
    Ok(())
}

/// A fault of the network, on these connections. Says whether there were any, and lost something if they had to.
pub(super) async fn on_network(step: &Step, proxies: &[Arc<Proxy>]) -> bool {
    let detail = step.detail;
    let to_lose = 1 + detail as usize % 10;
    let change = |proxy: &Proxy, on: bool| match step.fault {
        Fault::Cut if on => proxy.end(if detail.is_multiple_of(2) { Cut::Rst } else { Cut::Fin }),
        Fault::Stall => proxy.stall(on),
        Fault::Delay if on => proxy.delay(Duration::from_micros(1000 + detail % 150_000)),
        Fault::Delay => proxy.delay(Duration::ZERO),
        Fault::Throttle => proxy.throttle(if on { 5_000 + detail % 200_000 } else { 0 }),
        Fault::LoseReplies => proxy.lose_replies(if on { to_lose } else { 0 }),
        Fault::DropMessages => proxy.drop_messages(on),
        Fault::Reorder => {
            let most = if on {
                Duration::from_micros(1000 + detail % 400_000)
            } else {
                Duration::ZERO
            };
            proxy.reorder(most);
            // So that all are late from now on, and what was sent over late ones arrives after what is sent again.
            proxy.end(Cut::Rst);
        }
        _ => {}
    };
    let messages = || proxies.iter().map(|proxy| proxy.messages()).sum::<usize>();
    let (used, messages_before) = (proxies.iter().any(|proxy| proxy.is_used()), messages());
    proxies.iter().for_each(|proxy| change(proxy, true));
    sleep(step.lasts).await;
    let done = match step.fault {
        Fault::LoseReplies => proxies.iter().any(|proxy| proxy.replies_to_lose() < to_lose),
        Fault::DropMessages => messages() > messages_before,
        _ => used,
    };
    proxies.iter().for_each(|proxy| change(proxy, false));
    done
}

/// A fault of a server that neither ends it nor takes its data. Says whether anything was done.
pub(super) async fn on_server(step: &Step, admin: &mut Admin) -> Result<bool> {
    let &Step {
        fault,
        lasts,
        target,
        detail,
        ..
    } = step;
    match fault {
        Fault::ClientKill => return client_kill(admin, target, detail).await,
        Fault::Pause => {
            let what = if detail.is_multiple_of(2) { "ALL" } else { "WRITE" };
            let ms = lasts.as_millis().to_string();
            admin.call::<()>(&["CLIENT", "PAUSE", &ms, what]).await?;
            sleep(lasts).await;
        }
        Fault::Sleep => {
            let seconds = lasts.as_secs_f64().to_string();
            admin.call::<()>(&["DEBUG", "SLEEP", &seconds]).await?;
        }
        Fault::ScriptFlush => {
            for _ in 0..=detail % 20 {
                let how = if detail & 32 == 0 { "SYNC" } else { "ASYNC" };
                admin.call::<()>(&["SCRIPT", "FLUSH", how]).await?;
                // A server before 7 has none to lose.
                let _ = admin.call::<()>(&["FUNCTION", "FLUSH", how]).await;
                sleep(Duration::from_millis(detail % 30)).await;
            }
        }
        Fault::Memory => {
            admin.config("maxmemory", "1mb").await?;
            sleep(lasts).await;
            admin.config("maxmemory", "0").await?;
        }
        Fault::Disk => {
            let info: String = admin.call(&["INFO", "server"]).await?;
            let id = info.lines().find_map(|line| line.strip_prefix("process_id:"));
            let pid = Pid::from_raw(id.ok_or("a server without a process")?.trim().parse()?).ok_or("no process")?;
            limits::limit(pid, Resource::Fsize, Some(0));
            sleep(lasts).await;
            limits::limit(pid, Resource::Fsize, None);
            // A server that syncs at each write, as before a restart, would end by the first one that fails.
            while !admin
                .call::<String>(&["INFO", "persistence"])
                .await?
                .contains("aof_last_write_status:ok")
            {
                sleep(Duration::from_millis(20)).await;
            }
        }
        other => return Err(format!("{} is not done to a server that goes on", other.name()).into()),
    }
    Ok(true)
}

/// Takes the last transactions of the append-only file: about so many bytes.
///
/// Whole ones: a Redis 7.0 that finds half a transaction at the end leaves its first half in the file, and what it writes
/// afterwards becomes part of it, which the start after that finds incomplete and throws away.
fn cut_last_file(dir: &Path, bytes: u64) -> Result {
    const END: &[u8] = b"\r\nEXEC\r\n";
    // appendonly.aof.<n>.incr.aof
    let number = |path: &Path| -> Option<u64> {
        let name = path.file_name()?.to_str()?;
        name.strip_suffix(".incr.aof")?.rsplit('.').next()?.parse().ok()
    };
    let files: Vec<PathBuf> = std::fs::read_dir(dir)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    let last = files.into_iter().filter_map(|path| Some((number(&path)?, path))).max();
    if let Some((_, path)) = last {
        let text = std::fs::read(&path)?;
        let most = text.len().saturating_sub(bytes as usize);
        let at = text[..most].windows(END.len()).rposition(|window| window == END);
        if let Some(at) = at {
            let file = std::fs::OpenOptions::new().write(true).open(path)?;
            file.set_len((at + END.len()) as u64)?;
        }
    }
    Ok(())
}

/// Says whether there was anybody.
async fn client_kill(admin: &mut Admin, target: u64, detail: u64) -> Result<bool> {
    let killed = match detail % 3 {
        0 => admin.call::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]).await?,
        1 => admin.call::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]).await?,
        _ => {
            let list: String = admin.call(&["CLIENT", "LIST"]).await?;
            let ids = list
                .lines()
                .filter_map(|line| line.strip_prefix("id=")?.split(' ').next());
            let ids: Vec<&str> = ids.collect();
            let id = ids[target as usize % ids.len()];
            admin.call::<u64>(&["CLIENT", "KILL", "ID", id]).await?
        }
    };
    Ok(killed > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torture::quiet;
    use crate::torture::workload::Workload;

    #[test]
    fn a_loss_mostly_meets_a_lock_in_use() {
        let keys = |workloads: &[Workload]| -> Vec<_> {
            let names = workloads.iter().flat_map(|workload| workload.locks());
            names.map(|name| quiet::key(&name)).collect()
        };
        let idle = |key: &&String| key.contains("many");
        let all = to_lose(keys(&Workload::ALL), 7 << 32);
        assert_eq!(all.iter().filter(idle).collect::<Vec<_>>(), ["fairlock:{many-7}"]);
        assert_eq!(all.len(), keys(&Workload::ALL).len() - 999);
        assert_eq!(to_lose(keys(&[Workload::Many]), 1003 << 32), ["fairlock:{many-3}"]);
        assert_eq!(to_lose(keys(&[Workload::Hot]), 7), ["fairlock:{hot-0}"]);
    }
}
