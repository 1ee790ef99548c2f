//! The server that the lock lives on: that of `REDIS_URL`, or a private one that ends with this program.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

const START_LIMIT: Duration = Duration::from_secs(10);

pub(crate) struct Server {
    pub(crate) url: String,
    /// How to speak of it.
    pub(crate) name: String,
    private: Option<(Child, PathBuf)>,
}

impl Server {
    pub(crate) async fn find_or_start() -> Result<Self, String> {
        match std::env::var("REDIS_URL") {
            Ok(url) if !url.is_empty() => {
                let client = redis::Client::open(url.as_str()).map_err(|error| format!("REDIS_URL: {error}"))?;
                let address = client.get_connection_info().addr().to_string();
                Ok(Self {
                    url,
                    name: format!("the server of REDIS_URL, {address}"),
                    private: None,
                })
            }
            _ => Self::start().await,
        }
    }

    /// A private one, on a socket in a directory of its own: no port that somebody else could take.
    pub(crate) async fn start() -> Result<Self, String> {
        let dir = std::env::temp_dir().join(format!("fairlock-demo-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir_all(&dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        let (child, binary) = match spawn(&dir) {
            Ok(started) => started,
            Err(error) => {
                let _ = std::fs::remove_dir_all(&dir);
                return Err(error);
            }
        };
        let socket = dir.join("socket");
        let mut server = Self {
            url: format!("unix://{}", socket.display()),
            name: format!("a private {binary}"),
            private: Some((child, dir)),
        };
        match server.until_up().await {
            Ok(()) => Ok(server),
            Err(error) => {
                server.stop().await;
                Err(error)
            }
        }
    }

    /// SIGKILL. Its socket refuses connections from then on.
    pub(crate) async fn kill(&mut self) -> Result<(), String> {
        let Some((child, _)) = &mut self.private else {
            return Err(format!("{} is not ours to kill", self.name));
        };
        let killed = child.kill().await;
        killed.map_err(|error| format!("cannot kill {}: {error}", self.name))
    }

    /// Starts a killed one again, which has forgotten everything.
    pub(crate) async fn restart(&mut self) -> Result<(), String> {
        if let Some((child, dir)) = &mut self.private {
            (*child, _) = spawn(dir)?;
        }
        self.until_up().await
    }

    async fn until_up(&mut self) -> Result<(), String> {
        let client = redis::Client::open(self.url.as_str()).map_err(|error| error.to_string())?;
        let begun = Instant::now();
        while client.get_multiplexed_async_connection().await.is_err() {
            let ended = match &mut self.private {
                Some((child, _)) => child.try_wait().map_err(|error| error.to_string())?,
                None => None,
            };
            if let Some(status) = ended {
                return Err(format!("{} ended at once: {status}", self.name));
            }
            if begun.elapsed() > START_LIMIT {
                return Err(format!("{} did not come up within {START_LIMIT:?}", self.name));
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    pub(crate) fn is_private(&self) -> bool {
        self.private.is_some()
    }

    pub(crate) async fn stop(&mut self) {
        if let Some((mut child, dir)) = self.private.take() {
            let _ = child.kill().await;
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

fn spawn(dir: &std::path::Path) -> Result<(Child, &'static str), String> {
    for binary in ["redis-server", "valkey-server"] {
        let child = Command::new(binary)
            .args(["--port", "0", "--unixsocket", "socket", "--unixsocketperm", "700"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(dir)
            // After its directory: it opens the file as soon as it reads this.
            .args(["--logfile", "log"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C is for this program, which then stops the server.
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        match child {
            Ok(child) => return Ok((child, binary)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("cannot start {binary}: {error}")),
        }
    }
    Err("there is neither redis-server nor valkey-server: install one (`make setup`), or set REDIS_URL".to_owned())
}
