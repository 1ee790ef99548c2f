//! User-space instructions of another process: a count that does not depend on how busy the machine is.
//!
//! `perf` counts them in the processor, if the machine lets it: many virtual machines do not. Otherwise the process runs in
//! callgrind, which executes every instruction itself, about 50 times slower. Both count all threads of the process.

use fairlock_support::server::PATIENCE;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::time::timeout;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    Perf,
    Callgrind,
}

const EVENT: &str = "instructions:u";

impl Method {
    /// `None`: this machine cannot count.
    pub async fn find() -> Option<Self> {
        let probe = Command::new("perf")
            .args(["stat", "-x", ",", "-e", EVENT, "true"])
            .output();
        let counts = |output: Output| perf_count(&String::from_utf8_lossy(&output.stderr)).is_some_and(|n| n > 0.0);
        if probe.await.is_ok_and(counts) {
            return Some(Self::Perf);
        }
        // The second program tells callgrind when to begin and when to write its counts.
        for program in ["valgrind", "vgdb"] {
            let probe = Command::new(program).arg("--help").output().await;
            if !probe.is_ok_and(|output| output.status.success()) {
                return None;
            }
        }
        Some(Self::Callgrind)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Perf => "perf",
            Self::Callgrind => "callgrind",
        }
    }
}

/// Counts one process, which was started by [`Counter::program`].
pub struct Counter {
    method: Method,
    dir: PathBuf,
    pid: u32,
    dumps: u32,
}

impl Counter {
    pub fn new(method: Method) -> Self {
        let dir = std::env::temp_dir().join(format!("fairlock-counter-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&dir).expect("a directory for the counts");
        Self {
            method,
            dir,
            pid: 0,
            dumps: 0,
        }
    }

    /// The program and what comes before its own arguments.
    pub fn program(&self, program: &str) -> Vec<String> {
        match self.method {
            Method::Perf => vec![program.to_owned()],
            Method::Callgrind => vec![
                "valgrind".to_owned(),
                "--quiet".to_owned(),
                "--tool=callgrind".to_owned(),
                format!("--callgrind-out-file={}", self.out().display()),
                self.vgdb_prefix(),
                program.to_owned(),
            ],
        }
    }

    /// The process, once it runs.
    pub fn attach(&mut self, pid: u32) {
        self.pid = pid;
    }

    /// The instructions of the process while `work` runs here, and what `work` returns.
    pub async fn window<T>(&mut self, work: impl AsyncFnOnce() -> T) -> (f64, T) {
        match self.method {
            Method::Perf => {
                let perf = Perf::start(&self.dir, self.pid).await;
                let worked = work().await;
                (perf.end().await, worked)
            }
            Method::Callgrind => {
                self.vgdb("zero").await;
                let worked = work().await;
                self.vgdb("dump").await;
                self.dumps += 1;
                let path = self.dir.join(format!("out.{}", self.dumps));
                let text = std::fs::read_to_string(&path).expect("callgrind has written its counts");
                // A dump lists every function.
                let _ = std::fs::remove_file(path);
                (callgrind_count(&text).expect("callgrind's totals"), worked)
            }
        }
    }

    fn out(&self) -> PathBuf {
        self.dir.join("out")
    }

    /// The pipes by which callgrind is told to write its counts.
    fn vgdb_prefix(&self) -> String {
        format!("--vgdb-prefix={}", self.dir.join("vgdb").display())
    }

    async fn vgdb(&self, order: &str) {
        let mut command = Command::new("vgdb");
        command
            .arg(self.vgdb_prefix())
            .arg(format!("--pid={}", self.pid))
            .arg(order);
        let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = timeout(PATIENCE, running)
            .await
            .expect("callgrind obeys in time")
            .expect("vgdb");
        assert!(
            output.status.success(),
            "vgdb {order}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// One window. `perf` says when it has begun and ended to count, so that no work is outside.
struct Perf {
    child: tokio::process::Child,
    out: PathBuf,
    orders: pipe::Sender,
    replies: BufReader<pipe::Receiver>,
}

impl Perf {
    async fn start(dir: &Path, pid: u32) -> Self {
        let [orders, replies, out] = ["orders", "replies", "out"].map(|name| dir.join(name));
        for path in [&orders, &replies, &out] {
            let _ = std::fs::remove_file(path);
        }
        let made = Command::new("mkfifo").arg(&orders).arg(&replies).status().await;
        assert!(made.expect("mkfifo").success(), "two pipes");
        // To read and write: opening must not wait for perf.
        let mut open = pipe::OpenOptions::new();
        let open = open.read_write(true);
        let (sender, receiver) = (open.open_sender(&orders), open.open_receiver(&replies));
        let mut command = Command::new("perf");
        command
            .args(["stat", "-x", ",", "-e", EVENT, "-D", "-1", "-o"])
            .arg(&out);
        command
            .arg("--control")
            .arg(format!("fifo:{},{}", orders.display(), replies.display()));
        command.arg("-p").arg(pid.to_string());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut perf = Self {
            child: command.spawn().expect("perf"),
            out,
            orders: sender.expect("a pipe"),
            replies: BufReader::new(receiver.expect("a pipe")),
        };
        perf.tell("enable").await;
        perf
    }

    async fn tell(&mut self, order: &str) {
        let order = format!("{order}\n");
        self.orders.write_all(order.as_bytes()).await.expect("perf listens");
        let mut reply = String::new();
        let read = timeout(PATIENCE, self.replies.read_line(&mut reply)).await;
        read.expect("perf obeys in time").expect("text");
        assert!(reply.contains("ack"), "{reply:?}");
    }

    async fn end(mut self) -> f64 {
        self.tell("disable").await;
        let pid = self.child.id().and_then(|id| Pid::from_raw(id as i32));
        kill_process(pid.expect("perf runs"), Signal::INT).expect("our own child");
        timeout(PATIENCE, self.child.wait())
            .await
            .expect("perf ends in time")
            .expect("its status");
        let text = std::fs::read_to_string(&self.out).expect("perf has written its count");
        perf_count(&text).unwrap_or_else(|| panic!("perf did not count: {text}"))
    }
}

/// From the lines of `perf stat -x ,`.
fn perf_count(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains(EVENT))?;
    match line.split(',').next()? {
        // The process did not run.
        "<not counted>" => Some(0.0),
        count => count.parse().ok(),
    }
}

/// The last line of a dump. What stands at its head is without the functions that are still running.
fn callgrind_count(text: &str) -> Option<f64> {
    let line = text.lines().rev().find_map(|line| line.strip_prefix("totals:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_what_perf_and_callgrind_write() {
        let perf = |count: &str| perf_count(&format!("# started\n\n{count},,instructions:u,104,100.00,,\n"));
        assert_eq!(perf("1234567"), Some(1_234_567.0));
        assert_eq!(perf("<not counted>"), Some(0.0));
        assert_eq!(perf("<not supported>"), None);
        assert_eq!(perf_count("perf: not permitted\n"), None);
        let dump = "events: Ir\nsummary: 10622\n\nfn=(1) f\n1 5\n\ntotals: 10847\n";
        assert_eq!(callgrind_count(dump), Some(10_847.0));
        assert_eq!(callgrind_count("events: Ir\n"), None);
    }
}
