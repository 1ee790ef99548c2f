//! What many cost: waiters of one lock, locks of one process, processes of one server, and clients that come and go.
//!
//! Costs are counts of commands and bytes, and not times. Each part compares what many cost with what few cost.

pub mod worker;

use crate::Failure;
use fairlock::{Client, RwLock};
use fairlock_support::server::{PATIENCE, Server, connected};
use futures::future::{join_all, try_join_all};
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// No renewal of many falls into a part, but for the slowest machines.
const LEASE: Duration = Duration::from_secs(1800);
const FEW: usize = 10;

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Requests that wait for one lock.
    #[arg(long, default_value_t = 100_000)]
    waiters: usize,
    /// Locks that one process holds.
    #[arg(long, default_value_t = 100_000)]
    locks: usize,
    /// Processes that use one lock of one server.
    #[arg(long, default_value_t = 1000)]
    processes: usize,
    /// Clients that connect, use a lock of their own and leave, one after the other.
    #[arg(long, default_value_t = 5000)]
    churn: usize,
}

pub fn run(args: &Args) -> ExitCode {
    crate::verdict("scale", all(args), |report: &Report| report.wrong.is_empty())
}

#[derive(Default)]
pub struct Report {
    lines: Vec<String>,
    wrong: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        self.wrong.iter().try_for_each(|wrong| writeln!(f, "WRONG: {wrong}"))?;
        write!(f, "{} wrong", self.wrong.len())
    }
}

impl Report {
    fn says(&mut self, line: String) {
        println!("{line}");
        self.lines.push(line);
    }

    fn expects(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(what());
        }
    }

    /// Nothing is in use, and each key that is left has an end.
    async fn nothing_is_left(&mut self, part: &str, server: &Server, before: u64) -> Result<(), Failure> {
        let keys = server.keys().await;
        let used = keys
            .iter()
            .filter(|key| key.ends_with(":q") || key.ends_with(":l"))
            .count();
        let mut pipe = redis::pipe();
        for key in &keys {
            pipe.cmd("PTTL").arg(key);
        }
        let ends: Vec<i64> = match keys.is_empty() {
            true => Vec::new(),
            false => pipe.query_async(&mut server.redis().await).await?,
        };
        let endless = ends.iter().filter(|ms| **ms == -1).count();
        self.expects(used == 0 && endless == 0, || {
            format!("{part}: {used} queues or leases and {endless} keys without an end are left")
        });
        let bytes = info(server, "used_memory").await?.saturating_sub(before);
        let left = keys.len() as u64;
        self.says(format!(
            "{part}: {left} keys are left, all with an end; memory is up by {bytes} bytes"
        ));
        // A hash that is left has some 300 bytes; the tables of the server shrink late.
        self.expects(bytes < 4_000_000 + left * 600, || {
            format!("{part}: {bytes} bytes are left")
        });
        Ok(())
    }
}

async fn info(server: &Server, field: &str) -> Result<u64, Failure> {
    let text: String = redis::cmd("INFO").query_async(&mut server.redis().await).await?;
    let prefix = format!("{field}:");
    let value = text.lines().find_map(|line| line.strip_prefix(&prefix));
    Ok(value.ok_or_else(|| format!("INFO without {field}"))?.trim().parse()?)
}

/// All commands so far, those inside of scripts too, but for those that count them.
async fn commands(server: &Server) -> Result<u64, Failure> {
    let mut cmd = redis::cmd("INFO");
    let text: String = cmd.arg("commandstats").query_async(&mut server.redis().await).await?;
    let ours = |line: &&str| {
        !["info", "hello", "client", "ping", "zcard"]
            .iter()
            .any(|own| line.starts_with(&format!("cmdstat_{own}")))
    };
    let calls = text.lines().filter(ours).filter_map(|line| {
        let (_, rest) = line.split_once("calls=")?;
        rest.split(',').next()?.parse::<u64>().ok()
    });
    Ok(calls.sum())
}

/// Bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kb: Option<u64> = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    kb.unwrap_or_default() * 1024
}

async fn until(what: &str, condition: impl AsyncFn() -> bool) -> Result<(), Failure> {
    let begun = Instant::now();
    while !condition().await {
        if begun.elapsed() > PATIENCE * 5 {
            return Err(format!("not within {:?}: {what}", PATIENCE * 5).into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Connections, as soon as they are as many as promised. One that has counted may still be there, and one that listens may
/// not be there yet.
async fn connections(server: &Server, promised: usize) -> usize {
    let mut seen = 0;
    for _ in 0..500 {
        seen = server.connections().await;
        if seen == promised {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    seen
}

async fn client(server: &Server) -> Client {
    connected(Client::builder().lease(LEASE), server.url()).await
}

async fn passes(lock: RwLock) -> Result<(), fairlock::Error> {
    lock.write().acquire_fair().await?.release().await
}

/// So many waiters of one client, who enter one after the other. Returns commands for each grant.
async fn waiters(n: usize, report: &mut Report) -> Result<f64, Failure> {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    let guard = lock.write().acquire_fair().await?;
    let (memory, mine) = (info(&server, "used_memory").await?, resident());
    let waiting: Vec<_> = (0..n).map(|_| tokio::spawn(passes(lock.clone()))).collect();
    until("all wait", async || server.queued("a").await == n).await?;
    let connections = connections(&server, 2).await;
    let each = (info(&server, "used_memory").await? - memory) / n as u64;
    let own = resident().saturating_sub(mine) / n as u64;
    let before = commands(&server).await?;
    guard.release().await?;
    for waiter in waiting {
        waiter.await??;
    }
    let cost = (commands(&server).await? - before) as f64 / n as f64;
    let part = format!("{n} waiters of one lock");
    report.says(format!(
        "{part}: {connections} connections, {each} bytes each in the server and {own} in the client, {cost:.2} commands a grant"
    ));
    report.expects(connections == 2, || format!("{part}: {connections} connections"));
    report.nothing_is_left(&part, &server, memory).await?;
    Ok(cost)
}

/// So many locks, held at once by one client. Returns commands for each acquisition with its release.
async fn locks(n: usize, report: &mut Report) -> Result<f64, Failure> {
    let server = Server::start().await;
    let client = client(&server).await;
    passes(client.rw_lock("first")).await?;
    let (memory, mine) = (info(&server, "used_memory").await?, resident());
    let before = commands(&server).await?;
    let hold = |i: usize| client.rw_lock(format!("lock:{i}")).write().acquire_fair();
    let guards = try_join_all((0..n).map(hold)).await?;
    let connections = connections(&server, 2).await;
    let each = (info(&server, "used_memory").await? - memory) / n as u64;
    let own = resident().saturating_sub(mine) / n as u64;
    let released = join_all(guards.into_iter().map(|guard| guard.release())).await;
    let lost = released.iter().filter(|released| released.is_err()).count();
    let cost = (commands(&server).await? - before) as f64 / n as f64;
    let part = format!("{n} locks of one process");
    report.says(format!(
        "{part}: {connections} connections, {each} bytes each in the server and {own} in the client, {cost:.2} commands a hold"
    ));
    report.expects(connections == 2 && lost == 0, || {
        format!("{part}: {connections} connections, {lost} lost")
    });
    report.nothing_is_left(&part, &server, memory).await?;
    Ok(cost)
}

/// So many processes that wait for one lock at once, and enter one after the other.
async fn processes(n: usize, report: &mut Report) -> Result<f64, Failure> {
    let server = Server::start().await;
    let lock = client(&server).await.rw_lock("a");
    let guard = lock.write().acquire_fair().await?;
    let memory = info(&server, "used_memory").await?;
    let own = connections(&server, 2).await;
    let mut fleet = Vec::new();
    // A few at a time, because each connects within a time limit.
    for from in (0..n).step_by(20) {
        fleet.extend(
            (from..n.min(from + 20))
                .map(|_| worker::start(&server.url()))
                .collect::<Result<Vec<_>, _>>()?,
        );
        let here = fleet.len();
        until("they wait", async || server.queued("a").await == here).await?;
    }
    let connections = connections(&server, own + 2 * n).await - own;
    let each = (info(&server, "used_memory").await? - memory) / n as u64;
    let resident: u64 = fleet.iter().map(worker::private_bytes).sum::<u64>() / n as u64;
    let before = commands(&server).await?;
    guard.release().await?;
    until("all have entered", async || server.queued("a").await == 0).await?;
    let failed = worker::end(fleet).await?;
    let cost = (commands(&server).await? - before) as f64 / n as f64;
    let part = format!("{n} processes");
    report.says(format!(
        "{part}: {connections} connections, {each} bytes each in the server with them, {resident} private bytes of a process, \
         {cost:.2} commands a grant"
    ));
    report.expects(connections == 2 * n && failed == 0, || {
        format!("{part}: {connections} connections, {failed} processes failed")
    });
    until("their connections are gone", async || server.connections().await <= own).await?;
    report.nothing_is_left(&part, &server, memory).await?;
    Ok(cost)
}

/// So many clients, each of which connects, uses a lock of its own name and shuts down.
async fn churn(n: usize, report: &mut Report) -> Result<(), Failure> {
    let server = Server::start().await;
    let (mut halfway, mut mine) = (0, 0);
    for i in 0..n {
        if i == n / 2 {
            (halfway, mine) = (info(&server, "used_memory").await?, resident());
        }
        let client = client(&server).await;
        passes(client.rw_lock(format!("visit:{i}"))).await?;
        client.shutdown().await;
    }
    until("all have left", async || server.connections().await == 0).await?;
    let grown = resident().saturating_sub(mine);
    let part = format!("{n} clients one after the other");
    report.says(format!("{part}: the process grew by {grown} bytes in the second half"));
    report.expects(grown < 8_000_000, || {
        format!("{part}: the process grew by {grown} bytes")
    });
    report.nothing_is_left(&part, &server, halfway).await
}

async fn all(args: &Args) -> Result<Report, Failure> {
    let mut report = Report::default();
    let few = waiters(FEW, &mut report).await?;
    let many = waiters(args.waiters, &mut report).await?;
    report.expects(many < few * 1.2, || {
        format!("a grant costs {many:.2} commands, and {few:.2} beside few waiters")
    });
    let few = locks(FEW, &mut report).await?;
    let many = locks(args.locks, &mut report).await?;
    report.expects(many < few * 1.2, || {
        format!("a hold costs {many:.2} commands, and {few:.2} beside few")
    });
    let few = processes(FEW, &mut report).await?;
    let many = processes(args.processes, &mut report).await?;
    report.expects(many < few * 1.2, || {
        format!("a grant costs {many:.2} commands, and {few:.2} beside few processes")
    });
    churn(args.churn, &mut report).await?;
    Ok(report)
}
