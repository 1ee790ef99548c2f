//! The command `fairlock` as a process: how a test starts it, and what a run of it left.

use fairlock_support::server::{Server, soon};
use serde_json::Value;
use std::process::Stdio;
use tokio::process::{Child, Command};

pub const BINARY: &str = env!("CARGO_BIN_EXE_fairlock");

/// The command, for one server, or for several with blanks between their URLs.
pub struct Cli {
    pub url: String,
}

/// What a run of it left.
#[derive(Debug)]
pub struct Ended {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Without a terminal, and with no signal ignored, whoever runs the tests: what the command does depends on both. A job in
/// the background ignores INT, and passes that on.
fn fresh() -> Command {
    let mut command = Command::new("setsid");
    command.args(["env", "--default-signal=INT,QUIT,HUP"]);
    command
}

impl Cli {
    pub fn of(server: &Server) -> Self {
        Self { url: server.url() }
    }

    pub fn of_all(servers: &[Server]) -> Self {
        let urls: Vec<_> = servers.iter().map(Server::url).collect();
        Self { url: urls.join(" ") }
    }

    pub fn at(url: String) -> Self {
        Self { url }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = fresh();
        command.arg(BINARY);
        for url in self.url.split_whitespace() {
            command.args(["--url", url]);
        }
        command.args(arguments);
        piped(command)
    }

    /// A shell script, whose `$0` is the command and `$1` the URL.
    pub fn under_shell(&self, script: &str) -> Command {
        let mut command = fresh();
        command.args(["sh", "-c", script, BINARY, &self.url]);
        piped(command)
    }

    pub async fn run(&self, arguments: &[&str]) -> Ended {
        ended(self.command(arguments).spawn().expect("it starts")).await
    }

    /// What it says, if it ends well.
    pub async fn says(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments).await;
        assert_eq!(ended.status, 0, "{arguments:?}: {ended:?}");
        ended.stdout
    }

    pub async fn json(&self, arguments: &[&str]) -> Value {
        let text = self.says(&[arguments, &["--json"]].concat()).await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The first owner that holds a lock.
    pub async fn owner_of(&self, lock: &str) -> String {
        let status = self.json(&["show", lock]).await;
        status["holders"][0]["owner"].as_str().expect("an owner").to_owned()
    }
}

pub fn piped(mut command: Command) -> Command {
    command
        .env_remove("REDIS_URL")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Waits for its end.
pub async fn ended(child: Child) -> Ended {
    let output = soon("the command's end", child.wait_with_output()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ended = Ended {
        status: output.status.code().unwrap_or(-1),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    };
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    ended
}

/// All of these, in this order.
pub fn said(text: &str, words: &[&str]) -> bool {
    let mut rest = text;
    words.iter().all(|word| match rest.split_once(word) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

/// A pipe that has no room, and who could read it.
#[cfg(target_os = "linux")]
pub async fn full_pipe() -> (std::os::fd::OwnedFd, tokio::net::unix::pipe::Receiver) {
    let (sender, receiver) = tokio::net::unix::pipe::pipe().unwrap();
    sender.writable().await.unwrap();
    // A page after the other: what is left would be too small for one.
    let pages = std::iter::from_fn(|| sender.try_write(&[b'.'; 4096]).ok()).count();
    assert!(pages > 0, "it has no room at all");
    (sender.into_blocking_fd().unwrap(), receiver)
}
