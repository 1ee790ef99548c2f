//! A worker process as its parent sees it.

use crate::record::now_ns;
use crate::stage::Scene;
use crate::worker::{SERVERS, WorkerArgs};
use clap::ValueEnum;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(crate) struct Process {
    pub(crate) number: usize,
    child: Child,
    commands: ChildStdin,
    reader: JoinHandle<()>,
}

impl Process {
    /// This program once more, as a worker.
    pub(crate) fn start(args: &WorkerArgs, servers: &[String], scene: &Arc<Scene>) -> Result<Self, String> {
        let number = args.process;
        let failed = |error| format!("cannot start process {number}: {error}");
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("worker").env(SERVERS, servers.join("\n"));
        command.args(["--process", &number.to_string(), "--prefix", &args.prefix]);
        command.args(["--lease-ms", &args.lease_ms.to_string()]);
        command.args([
            "--readers",
            &args.readers.to_string(),
            "--writers",
            &args.writers.to_string(),
        ]);
        if let Some(lie) = args.lie.and_then(|lie| lie.to_possible_value()) {
            command.args(["--lie", lie.get_name()]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C is for the parent, which then stops its workers.
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        let (Some(commands), Some(told)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("process {number} has no pipes"));
        };
        Ok(Self {
            number,
            child,
            commands,
            reader: tokio::spawn(listen(number, told, Arc::clone(scene))),
        })
    }

    pub(crate) async fn tell(&mut self, command: &str) -> Result<(), String> {
        let line = format!("{command}\n");
        let sent = self.commands.write_all(line.as_bytes()).await;
        sent.map_err(|error| format!("process {} does not listen: {error}", self.number))
    }

    /// SIGKILL. Returns the time just before; all that the process told is in the history then.
    pub(crate) async fn kill(&mut self, scene: &Scene) -> Result<u64, String> {
        let at = now_ns();
        let killed = self.child.kill().await;
        killed.map_err(|error| format!("cannot kill process {}: {error}", self.number))?;
        // The pipe keeps what was written before.
        let _ = (&mut self.reader).await;
        scene.history().died(self.number, at);
        Ok(at)
    }

    /// Waits until it has ended of itself. `false`: it does not.
    pub(crate) async fn ended(&mut self, limit: Duration) -> bool {
        let ended = timeout(limit, async {
            let _ = self.child.wait().await;
            let _ = (&mut self.reader).await;
        });
        ended.await.is_ok()
    }

    /// Away with it, and no questions.
    pub(crate) async fn end(mut self) {
        let _ = self.child.kill().await;
    }
}

async fn listen(number: usize, told: ChildStdout, scene: Arc<Scene>) {
    let mut lines = BufReader::new(told).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(line) => scene.history().note(number, line),
            Err(error) => scene
                .history()
                .errors
                .push(format!("process {number} said {line:?}: {error}")),
        }
    }
    scene.process_ended(number);
}
