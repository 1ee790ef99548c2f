//! This program started again as another process. The two talk in lines, over the worker's stdin and stdout; it ends
//! when its stdin does, hence also when whoever started it is gone.

use crate::{handover, hot, instructions_client, ring};
use fairlock_support::server::PATIENCE;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, Stdin, Stdout};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

#[derive(clap::Args, Debug)]
pub struct Args {
    job: String,
    url: String,
}

/// What the worker's process does.
pub async fn run(args: Args) {
    let mut line = Line {
        stdin: BufReader::new(tokio::io::stdin()).lines(),
        stdout: tokio::io::stdout(),
    };
    match args.job.as_str() {
        "handover" => handover::worker(&args.url, &mut line).await,
        "cycles" => instructions_client::worker(&args.url, &mut line).await,
        "hot" => hot::worker(&args.url, &mut line).await,
        "ring" => ring::worker(&args.url, &mut line).await,
        job => panic!("no such job: {job}"),
    }
}

/// The worker's end.
pub struct Line {
    stdin: Lines<BufReader<Stdin>>,
    stdout: Stdout,
}

impl Line {
    /// `None`: the process that started this one wants no more, or is gone.
    pub async fn hear(&mut self) -> Option<String> {
        self.stdin.next_line().await.ok().flatten()
    }

    pub async fn say(&mut self, text: &str) {
        let text = format!("{text}\n");
        self.stdout.write_all(text.as_bytes()).await.expect("a reader");
        self.stdout.flush().await.expect("a reader");
    }
}

/// The end of the process that started it.
pub struct Worker {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    pub async fn start(job: &str, url: &str) -> Self {
        Self::start_program(&[this_program()], job, url).await
    }

    /// In another program, such as one that counts what the worker does.
    pub async fn start_program(program: &[String], job: &str, url: &str) -> Self {
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).args(["worker", job, url]);
        Self::of(command).expect("another process of this program")
    }

    /// Another program that talks in lines.
    pub fn of(mut command: Command) -> std::io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped")).lines();
        Ok(Self { child, stdin, stdout })
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("the worker has not ended")
    }

    pub async fn say(&mut self, text: &str) {
        let text = format!("{text}\n");
        self.stdin.write_all(text.as_bytes()).await.expect("the worker listens");
    }

    pub async fn hear(&mut self) -> String {
        self.hear_unless_ended().await.expect("the worker has not ended")
    }

    /// `None`: the other process has ended.
    pub async fn hear_unless_ended(&mut self) -> Option<String> {
        let line = timeout(PATIENCE, self.stdout.next_line()).await;
        line.expect("the worker says something in time").expect("text")
    }
}

/// The path of this program.
pub fn this_program() -> String {
    let path = std::env::current_exe().expect("the path of this program");
    path.into_os_string().into_string().expect("a path in UTF-8")
}
