//! What all examples need: a server. `REDIS_URL` names one; otherwise a private one is started and killed in the end.
//!
//! Others may use the server of `REDIS_URL` too. An example asserts only what it owns there: it takes a lock of its own
//! before it uses those that all runs of it share, and it counts nothing that the server counts for everybody.
#![allow(dead_code, reason = "no example needs all of it")]

use fairlock::Client;
use redis::aio::MultiplexedConnection;
use std::error::Error;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::sleep;

pub(crate) type Outcome = Result<(), Box<dyn Error + Send + Sync>>;
pub(crate) type Failure = Box<dyn Error + Send + Sync>;
type Fallible<T> = Result<T, Failure>;

const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Server {
    url: String,
    /// Dropped, the next example may begin. Only on a server that others use.
    _turn: Option<Turn>,
    /// Dropped, it is killed.
    process: Option<Process>,
}

impl Server {
    /// The one that `REDIS_URL` names, or a private one.
    pub(crate) async fn find_or_start() -> Fallible<Self> {
        if let Ok(url) = std::env::var("REDIS_URL") {
            let turn = Some(Turn::wait(url.clone()).await?);
            return Ok(Self {
                url,
                _turn: turn,
                process: None,
            });
        }
        Self::start().await
    }

    /// A private one.
    pub(crate) async fn start() -> Fallible<Self> {
        // Somebody else may take a free port before the server does.
        for _ in 0..10 {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let mut process = Process::start(port)?;
            let url = format!("redis://127.0.0.1:{port}");
            if process.answers_at(&url).await? {
                return Ok(Self {
                    url,
                    _turn: None,
                    process: Some(process),
                });
            }
        }
        Err("no private server came up: start one yourself and name it in REDIS_URL".into())
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A connection of the example's own, to ask what the lock does not tell.
    pub(crate) async fn redis(&self) -> Fallible<MultiplexedConnection> {
        Ok(connect(&self.url).await?)
    }

    /// How often the server has executed a command, also from within scripts. `None`: others use the server too.
    pub(crate) async fn calls(&self, command: &str) -> Fallible<Option<u64>> {
        let stats = self.command_stats().await?;
        stats.map(|stats| count(&stats, command, "calls")).transpose()
    }

    /// Scripts that were executed so far, as functions or by EVAL. A refused EVALSHA is no execution.
    pub(crate) async fn script_calls(&self) -> Fallible<Option<u64>> {
        let Some(stats) = self.command_stats().await? else {
            return Ok(None);
        };
        let mut executed = 0;
        for command in ["fcall", "evalsha", "eval"] {
            executed += count(&stats, command, "calls")? - count(&stats, command, "failed_calls")?;
        }
        Ok(Some(executed))
    }

    async fn command_stats(&self) -> Fallible<Option<String>> {
        if self.process.is_none() {
            return Ok(None);
        }
        let mut redis = self.redis().await?;
        Ok(Some(
            redis::cmd("INFO").arg("commandstats").query_async(&mut redis).await?,
        ))
    }

    /// Waits until so many requests are in the queue of a lock.
    pub(crate) async fn until_queued(&self, lock: &str, count: usize) -> Outcome {
        let mut redis = self.redis().await?;
        let (key, begun) = (format!("fairlock:{{{lock}}}:q"), Instant::now());
        loop {
            let queued: usize = redis::cmd("ZCARD").arg(&key).query_async(&mut redis).await?;
            if queued == count {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("{queued} requests wait for {lock} after {PATIENCE:?}, not {count}").into());
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// The examples' turn on a server that others use: a lock, held on a thread of its own, since some examples block theirs.
struct Turn {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Turn {
    async fn wait(url: String) -> Fallible<Self> {
        let (entered, inside) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || hold_turn(&url, entered, ended));
        inside.await??;
        Ok(Self {
            end: Some(end),
            thread: Some(thread),
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.end.take());
        // It panics nowhere, and its release takes a moment.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn hold_turn(url: &str, entered: oneshot::Sender<Result<(), fairlock::Error>>, ended: oneshot::Receiver<()>) {
    let turn = async {
        let client = Client::connect(url).await?;
        client.rw_lock("examples").write().acquire_fair().await
    };
    match turn.await {
        Ok(guard) => {
            let _ = entered.send(Ok(()));
            // The sender is dropped.
            let _ = ended.await;
            // If it fails, the lock is free when its lease has ended.
            let _ = guard.release().await;
        }
        Err(error) => _ = entered.send(Err(error)),
    }
}

/// A server of our own, in a directory of its own.
struct Process {
    child: Child,
    dir: PathBuf,
}

impl Process {
    fn start(port: u16) -> Fallible<Self> {
        let dir = std::env::temp_dir().join(format!("fairlock-example-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir)?;
        for binary in ["redis-server", "valkey-server"] {
            match spawn(binary, port, &dir) {
                Ok(child) => return Ok(Self { child, dir }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("cannot start {binary}: {error}").into()),
            }
        }
        fs::remove_dir_all(&dir)?;
        Err("neither redis-server nor valkey-server is on the PATH: run `make setup`, or set REDIS_URL".into())
    }

    /// Whether this very process, and no other, answers there. `false`: it ended.
    async fn answers_at(&mut self, url: &str) -> Fallible<bool> {
        let (ours, begun) = (format!("process_id:{}", self.child.id()), Instant::now());
        while begun.elapsed() < PATIENCE && self.child.try_wait()?.is_none() {
            if let Ok(mut redis) = connect(url).await {
                let info: String = redis::cmd("INFO").arg("server").query_async(&mut redis).await?;
                if info.lines().any(|line| line == ours) {
                    return Ok(true);
                }
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(false)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing can be done about a failure here, and there is hardly one: it is our own child.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn spawn(binary: &str, port: u16, dir: &Path) -> io::Result<Child> {
    Command::new(binary)
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .args(["--save", "", "--dir"])
        .arg(dir)
        // After its directory: it opens the file as soon as it reads this.
        .args(["--logfile", "log"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

async fn connect(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    // Both may be late on a busy machine.
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    redis::Client::open(url)?
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// What was counted between two looks.
pub(crate) fn since(now: Option<u64>, before: Option<u64>) -> Option<u64> {
    Some(now? - before?)
}

/// A number that INFO gives for a command; 0 if it has not been called.
fn count(stats: &str, command: &str, what: &str) -> Fallible<u64> {
    let prefix = format!("cmdstat_{command}:");
    let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
    let number = line.and_then(|line| line.split(',').find_map(|pair| pair.strip_prefix(&format!("{what}="))));
    Ok(number.map_or(Ok(0), str::parse)?)
}
