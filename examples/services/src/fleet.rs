//! Processes of an example's own: the same program, told by its arguments what to be.

use std::error::Error;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A process that is killed when this is dropped.
pub(crate) struct Member {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Member {
    pub(crate) fn start(arguments: &[&str]) -> Fallible<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().ok_or("no standard output")?;
        let lines = BufReader::new(output).lines();
        Ok(Self { child, lines })
    }

    /// The next line that it prints; `None`: it ended.
    pub(crate) async fn says(&mut self) -> Fallible<Option<String>> {
        Ok(self.lines.next_line().await?)
    }

    /// SIGKILL: it has no time to let go of anything.
    pub(crate) async fn kill(&mut self) -> Fallible<()> {
        Ok(self.child.kill().await?)
    }

    /// The rest of what it prints, when it has ended well.
    pub(crate) async fn ends(&mut self) -> Fallible<Vec<String>> {
        let mut said = Vec::new();
        while let Some(line) = self.says().await? {
            said.push(line);
        }
        let status = self.child.wait().await?;
        if status.success() {
            Ok(said)
        } else {
            Err(format!("a process of the fleet ended with {status}").into())
        }
    }
}
