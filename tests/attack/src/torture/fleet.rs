//! The workers as their parent has them: processes, each behind proxies of its own, one for each server.

use super::wire::Line;
use super::worker::{self, Python};
use fairlock_support::limits::{self, Resource};
use fairlock_support::proxy::{Cut, Proxy};
use fairlock_support::random::{self, Rng};
use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

/// What a worker said, and which one.
pub type Said = (usize, Line);

pub struct Fleet {
    workers: Vec<Worker>,
    said: mpsc::UnboundedSender<Said>,
    seeds: Rng,
    args: worker::Args,
    direct: bool,
}

pub struct Worker {
    proxies: Vec<Arc<Proxy>>,
    process: Process,
}

struct Process {
    child: Child,
    words: Option<ChildStdin>,
    /// Its end is our doing.
    let_go: Arc<AtomicBool>,
    /// Whatever is wrong with it is our doing.
    starves: Arc<AtomicBool>,
    /// It has loaded all that it needs, and said something.
    speaks: Arc<AtomicBool>,
}

impl Fleet {
    /// With `direct`, workers connect to the servers themselves: faster, and no fault of the network can come to them.
    pub async fn start(
        processes: usize,
        server_ports: &[u16],
        args: worker::Args,
        direct: bool,
        said: mpsc::UnboundedSender<Said>,
    ) -> io::Result<Self> {
        let mut fleet = Self {
            workers: Vec::new(),
            said,
            seeds: random::stream(args.seed, u64::MAX),
            args,
            direct,
        };
        for number in 0..processes {
            let proxies = join_all(server_ports.iter().map(|port| Proxy::to(*port))).await;
            let proxies: Vec<_> = proxies.into_iter().map(Arc::new).collect();
            let process = fleet.spawn(number, &proxies)?;
            fleet.workers.push(Worker { proxies, process });
        }
        Ok(fleet)
    }

    fn spawn(&mut self, number: usize, proxies: &[Arc<Proxy>]) -> io::Result<Process> {
        let urls = match self.direct {
            true => self.args.url.clone(),
            false => proxies.iter().map(|proxy| proxy.url()).collect(),
        };
        let mut command = match &self.args.python {
            Some(python) if number < python.workers => python.command(),
            _ => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("torture-worker");
                command
            }
        };
        command.arg("--url").arg(urls.join(","));
        command.arg("--store").arg(&self.args.store);
        command.arg("--seed").arg(self.seeds.u64(..).to_string());
        let workloads: Vec<_> = self.args.workload.iter().map(|workload| workload.name()).collect();
        if !workloads.is_empty() {
            command.arg("--workload").arg(workloads.join(","));
        }
        if let Some(sabotage) = self.args.sabotage {
            use clap::ValueEnum;
            let value = sabotage.to_possible_value();
            command
                .arg("--sabotage")
                .arg(value.map_or(String::new(), |value| value.get_name().to_owned()));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let words = child.stdin.take();
        let [let_go, starves, speaks] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        if let Some(out) = child.stdout.take() {
            let ours = [&let_go, &starves, &speaks].map(Arc::clone);
            tokio::spawn(listen(out, number, self.said.clone(), ours));
        }
        Ok(Process {
            child,
            words,
            let_go,
            starves,
            speaks,
        })
    }

    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// The way to one server: one worker's, or now and then that of all of them.
    pub fn proxies(&self, target: u64, server: usize) -> Vec<Arc<Proxy>> {
        let proxy = |worker: &Worker| Arc::clone(&worker.proxies[server]);
        if target.is_multiple_of(5) {
            return self.workers.iter().map(proxy).collect();
        }
        vec![proxy(&self.workers[target as usize / 5 % self.workers.len()])]
    }

    /// SIGKILL, and another one in its place.
    pub async fn replace(&mut self, number: usize) -> io::Result<()> {
        let process = &mut self.workers[number].process;
        process.let_go.store(true, Relaxed);
        process.child.kill().await?;
        let proxies = self.workers[number].proxies.clone();
        self.workers[number].process = self.spawn(number, &proxies)?;
        Ok(())
    }

    pub fn pid(&self, number: usize) -> io::Result<Pid> {
        let id = self.workers[number].process.child.id();
        let pid = id.and_then(|id| Pid::from_raw(id.cast_signed()));
        pid.ok_or_else(|| io::Error::other("the worker is gone"))
    }

    pub fn signal(&self, number: usize, signal: Signal) -> io::Result<()> {
        Ok(kill_process(self.pid(number)?, signal)?)
    }

    /// Resets all of a worker's connections to the servers. Says whether there were any.
    pub fn cut(&self, number: usize) -> bool {
        let proxies = &self.workers[number].proxies;
        let was_used = proxies.iter().any(|proxy| proxy.is_used());
        proxies.iter().for_each(|proxy| proxy.end(Cut::Rst));
        was_used
    }

    fn is_python(&self, number: usize) -> bool {
        self.args.python.as_ref().is_some_and(|python| number < python.workers)
    }

    /// The worker that is to get no further file. `None`: it has not loaded what it needs, or may need a file at any time,
    /// as Python does.
    pub fn without_files(&self, number: usize) -> io::Result<Option<Pid>> {
        match self.workers[number].process.speaks.load(Relaxed) && !self.is_python(number) {
            true => self.pid(number).map(Some),
            false => Ok(None),
        }
    }

    /// A worker gets no further memory, which mostly ends it. False: one in Python, which would say so in too many
    /// ways, is left alone.
    pub fn starve(&self, number: usize) -> io::Result<bool> {
        if self.is_python(number) {
            return Ok(false);
        }
        let process = &self.workers[number].process;
        process.let_go.store(true, Relaxed);
        process.starves.store(true, Relaxed);
        let pid = self.pid(number)?;
        limits::limit(pid, Resource::As, Some(limits::mapped_bytes(pid)));
        Ok(true)
    }

    pub async fn tell_all(&mut self, word: &str) -> io::Result<()> {
        for worker in &mut self.workers {
            if let Some(words) = &mut worker.process.words {
                words.write_all(format!("{word}\n").as_bytes()).await?;
            }
        }
        Ok(())
    }

    /// Lets them go; they end by themselves. Says which did not end well.
    pub async fn dismiss(&mut self) -> io::Result<Vec<String>> {
        let mut bad = Vec::new();
        for (number, worker) in self.workers.iter_mut().enumerate() {
            worker.process.let_go.store(true, Relaxed);
            worker.process.words = None;
            let status = worker.process.child.wait().await?;
            if !status.success() {
                bad.push(format!("worker {number} ended with {status}"));
            }
        }
        Ok(bad)
    }
}

impl Python {
    fn command(&self) -> Command {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut command = Command::new("python3");
        command.arg("-B").arg(root.join("tests/python/torture.py"));
        command.arg("--scripts").arg(&self.scripts);
        command.env("PYTHONPATH", root.join("clients/python/src"));
        command
    }
}

async fn listen(
    out: ChildStdout,
    number: usize,
    said: mpsc::UnboundedSender<Said>,
    [let_go, starves, speaks]: [Arc<AtomicBool>; 3],
) {
    let mut out = BufReader::with_capacity(256 * 1024, out);
    let mut text = String::new();
    // A line that a SIGKILL cut short is no line.
    while let Ok(1..) = out.read_line(&mut text).await
        && text.ends_with('\n')
    {
        speaks.store(true, Relaxed);
        let line = Line::parse(text.trim_end()).unwrap_or_else(|| Line::Wrong(format!("said {text:?}")));
        if matches!(line, Line::Wrong(_)) && starves.load(Relaxed) {
            return;
        }
        if said.send((number, line)).is_err() {
            return;
        }
        text.clear();
    }
    if !let_go.load(Relaxed) {
        // It fails if nobody listens any more.
        let _ = said.send((number, Line::Wrong("ended by itself".to_owned())));
    }
}
