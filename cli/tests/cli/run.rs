//! `fairlock run`: exit statuses, and the command's environment.

mod signals;

use crate::command::{Cli, Ended, ended};
use crate::scene;
use fairlock::Client;
use fairlock_support::server::{Server, soon};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

/// So long that nothing expires in a test.
const LONG: &str = "600s";

/// A command under a lock, which has said that it is ready.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    /// A shell script, which must say `ready` when it is.
    async fn start(cli: &Cli, options: &[&str], lock: &str, script: &str) -> Self {
        let mut running = Self::spawn(cli, options, lock, script);
        assert_eq!(running.line().await, "ready");
        running
    }

    fn spawn(cli: &Cli, options: &[&str], lock: &str, script: &str) -> Self {
        let options = if options.contains(&"--lease") {
            options
        } else {
            &[&["--lease", LONG], options].concat()
        };
        let child = cli
            .command(&["run"])
            .args(options)
            .args([lock, "--", "sh", "-c", script])
            .spawn()
            .expect("it starts");
        Self::of(child)
    }

    fn of(mut child: Child) -> Self {
        let stdout = child.stdout.take().expect("a pipe");
        let lines = BufReader::new(stdout).lines();
        Self { child, lines }
    }

    async fn line(&mut self) -> String {
        let line = soon("a line from the command", self.lines.next_line()).await;
        line.unwrap().expect("a line")
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("our own child");
    }

    fn pid(&self) -> Pid {
        let id = self.child.id().expect("it runs");
        Pid::from_raw(id.cast_signed()).expect("a process")
    }

    /// Its further lines and how it ended.
    async fn end(mut self) -> (Vec<String>, Ended) {
        let mut lines = Vec::new();
        while let Some(line) = soon("a line or the end", self.lines.next_line()).await.unwrap() {
            lines.push(line);
        }
        (lines, ended(self.child).await)
    }
}

async fn client(server: &Server) -> Client {
    scene::client(server, "holder").await
}

async fn is_free(client: &Client, lock: &str) -> bool {
    let status = client.rw_lock(lock).status().await.unwrap();
    status.holding + status.waiting == 0
}

#[tokio::test]
async fn it_ends_as_its_command_did_and_the_lock_is_free() {
    let server = Server::start().await;
    let (cli, client) = (Cli::of(&server), client(&server).await);
    for (command, status) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 3"], 3),
        (&["sh", "-c", "exit 255"], 255),
        (&["sh", "-c", "kill -KILL $$"], 128 + 9),
        (&["sh", "-c", "kill -TERM $$"], 128 + 15),
        (&["no-such-command-anywhere"], 127),
        (&["/"], 126),
        (&["/etc/passwd"], 126),
    ] {
        let ended = cli.run(&[&["run", "a", "--"], command].concat()).await;
        assert_eq!(ended.status, status, "{command:?}: {ended:?}");
        assert!(is_free(&client, "a").await, "{command:?}");
    }
}

#[tokio::test]
async fn arguments_after_the_command_are_its_own() {
    let server = Server::start().await;
    let ended = Cli::of(&server)
        .run(&["run", "a", "echo", "--read", "-n", "--", "b c"])
        .await;
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (0, "--read -n -- b c\n"),
        "{ended:?}"
    );
}

#[tokio::test]
async fn a_lock_whose_name_begins_with_a_dash_stands_between_two_pairs_of_dashes() {
    let server = Server::start().await;
    for command in [&["echo", "--"][..], &["--", "echo", "--"]] {
        let ended = Cli::of(&server).run(&[&["run", "--", "-x"], command].concat()).await;
        let said = (ended.status, ended.stdout.as_str());
        assert_eq!(said, (0, "--\n"), "{command:?}: {ended:?}");
    }
}

#[tokio::test]
async fn the_command_finds_name_and_token_in_its_environment_and_tokens_grow() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let mut last = 0;
    for _ in 0..2 {
        let script = "echo \"$FAIRLOCK_TOKEN $FAIRLOCK_NAME\"";
        let ended = cli.run(&["run", "a }b", "--", "sh", "-c", script]).await;
        let (token, name) = ended.stdout.trim_end().split_once(' ').expect("both");
        assert_eq!(name, "a }b");
        let token: u64 = token.parse().expect("a number");
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

#[tokio::test]
async fn a_busy_lock_ends_it_at_once_or_in_time_with_the_status_that_was_asked_for() {
    let server = Server::start().await;
    let (cli, client) = (Cli::of(&server), client(&server).await);
    let reading = client.rw_lock("a").read().acquire_fair().await.unwrap();
    for (options, status) in [
        (&["--no-wait"][..], 75),
        (&["-n", "-E", "9"], 9),
        (&["--wait", "0"], 75),
        (&["--wait", "50ms"], 75),
        (&["-w", "0.05", "--busy-status", "0"], 0),
        (&["--no-wait", "--read"], 42),
    ] {
        let ended = cli
            .run(&[&["run"], options, &["a", "--", "sh", "-c", "exit 42"]].concat())
            .await;
        assert_eq!(ended.status, status, "{options:?}: {ended:?}");
    }
    assert_eq!(server.queued("a").await, 0);
    reading.release().await.unwrap();
    // A free lock is free, whoever is told of the wait.
    let told = cli
        .run(&["run", "-v", "--wait", "0", "a", "--", "sh", "-c", "exit 42"])
        .await;
    assert_eq!(told.status, 42, "{told:?}");
}

#[tokio::test]
async fn permits_are_taken_and_given_back() {
    let server = Server::start().await;
    let (cli, client) = (Cli::of(&server), client(&server).await);
    let gpu = client.semaphore("gpu", 4);
    let three = gpu.permits(3).acquire_fair().await.unwrap();
    let run = async |options: &[&str]| {
        let run = ["run", "--no-wait", "--semaphore", "4"];
        let ended = cli.run(&[&run, options, &["gpu", "--", "true"]].concat()).await;
        ended.status
    };
    assert_eq!(run(&[]).await, 0);
    assert_eq!(run(&["--permits", "2"]).await, 75);
    three.release().await.unwrap();
    assert_eq!(run(&["--permits", "4"]).await, 0);
    assert_eq!(run(&["--permits", "5"]).await, 64);
    assert_eq!(gpu.status().await.unwrap().holding, 0);
}

#[tokio::test]
async fn a_full_queue_ends_it_at_once() {
    let server = Server::start().await;
    let (cli, client) = (Cli::of(&server), client(&server).await);
    let lock = client.rw_lock("a");
    let guard = lock.write().acquire_fair().await.unwrap();
    scene::stay(lock.write());
    server.until_queued("a", 1).await;
    let ended = cli.run(&["run", "--max-queue", "1", "a", "--", "true"]).await;
    assert_eq!(ended.status, 75, "{ended:?}");
    assert_eq!(server.queued("a").await, 1);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn wrong_usage_is_told_apart() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    for (arguments, word) in [
        (&["run", "a"][..], "COMMAND"),
        (&["run"], "NAME"),
        (&["run", "--lease", "ten", "a", "--", "true"], "30s"),
        (&["run", "--lease", "1ms", "a", "--", "true"], "lease"),
        (&["run", "--max-hold", "0", "a", "--", "true"], "max_hold"),
        (&["run", "--wait", "1s", "--no-wait", "a", "--", "true"], "--no-wait"),
        (&["run", "--label", "a b", "a", "--", "true"], "label"),
        (&["run", "", "--", "true"], "empty"),
        (&["run", "--policy", "lifo", "a", "--", "true"], "writer-first"),
        (&["run", "--semaphore", "0", "a", "--", "true"], "limit"),
        (
            &["run", "--semaphore", "2", "--permits", "0", "a", "--", "true"],
            "permits",
        ),
        (&["run", "--semaphore", "2", "--read", "a", "--", "true"], "--read"),
        (&["run", "--permits", "2", "a", "--", "true"], "--semaphore"),
    ] {
        let ended = cli.run(arguments).await;
        assert_eq!(ended.status, 64, "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(word), "{arguments:?}: {ended:?}");
    }
}

#[tokio::test]
async fn several_locks_are_held_and_the_command_finds_all_tokens() {
    let server = Server::start().await;
    let (cli, client) = (Cli::of(&server), client(&server).await);
    let script = "echo \"$FAIRLOCK_NAME $FAIRLOCK_TOKEN\"; echo \"$FAIRLOCK_TOKENS\"";
    let ended = cli
        .run(&["run", "--and", "a", "--and", "c", "b", "--", "sh", "-c", script])
        .await;
    assert_eq!(ended.status, 0, "{ended:?}");
    let lines: Vec<_> = ended.stdout.lines().collect();
    let [first, b, a, c] = lines[..] else {
        panic!("{lines:?}")
    };
    let token = first.strip_prefix("b ").expect("the name of the first");
    assert_eq!(b, format!("{token} b"));
    assert!(a.ends_with(" a") && c.ends_with(" c"), "{lines:?}");
    // One of them is busy: nothing runs, and nothing is kept.
    let _held = client.rw_lock("c").write().acquire_fair().await.unwrap();
    let busy = cli.run(&["run", "-n", "--and", "c", "a", "--", "echo", "it ran"]).await;
    assert_eq!((busy.status, busy.stdout.as_str()), (75, ""), "{busy:?}");
    assert!(client.rw_lock("a").write().try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_lock_that_is_named_twice_has_one_token() {
    let server = Server::start().await;
    let names = ["--and", "b", "--and", "b", "--and", "a", "a"];
    let run = [&["run"], &names[..], &["--", "sh", "-c", "echo \"$FAIRLOCK_TOKENS\""]].concat();
    let ended = Cli::of(&server).run(&run).await;
    let names: Vec<_> = ended.stdout.lines().filter_map(|line| line.split_once(' ')).collect();
    assert!(matches!(names[..], [(_, "a"), (_, "b")]), "{ended:?}");
}

#[tokio::test]
async fn another_policy_is_told_as_the_option_that_chooses_it() {
    let server = Server::start().await;
    let (cli, client) = (Cli::of(&server), client(&server).await);
    let lock = client.rw_lock("a").policy(fairlock::Policy::WriterFirst);
    let _first = lock.write().acquire_fair().await.unwrap();
    let _permit = client.semaphore("b", 2).permits(1).acquire_fair().await.unwrap();
    for (options, words) in [
        (&["a"][..], "the policy writer-first"),
        (&["--semaphore", "2", "a"], "the policy writer-first"),
        (&["b"], "as --semaphore sets it"),
    ] {
        let ended = cli.run(&[&["run", "-n"], options, &["--", "true"]].concat()).await;
        assert_eq!(ended.status, 64, "{options:?}: {ended:?}");
        assert!(ended.stderr.contains(words), "{options:?}: {ended:?}");
        assert!(!ended.stderr.contains("WriterFirst"), "{ended:?}");
    }
}

#[tokio::test]
async fn permits_and_locks_are_held_together() {
    let server = Server::start().await;
    let (cli, client) = (Cli::of(&server), client(&server).await);
    let run = [
        "run",
        "-n",
        "--semaphore",
        "4",
        "--permits",
        "2",
        "--and",
        "data",
        "gpu",
    ];
    let run = [&run[..], &["--", "sh", "-c", "echo \"$FAIRLOCK_TOKENS\""]].concat();
    let held = client.semaphore("gpu", 4).permits(3).acquire_fair().await.unwrap();
    let busy = cli.run(&run).await;
    assert_eq!((busy.status, busy.stdout.as_str()), (75, ""), "{busy:?}");
    assert!(client.rw_lock("data").write().try_acquire().await.unwrap().is_some());
    held.release().await.unwrap();
    let ended = cli.run(&run).await;
    let names: Vec<_> = ended.stdout.lines().filter_map(|line| line.split_once(' ')).collect();
    assert!(matches!(names[..], [(_, "gpu"), (_, "data")]), "{ended:?}");
    // Nobody may queue for the lock beside the permits.
    let held = client.rw_lock("data").write().acquire_fair().await.unwrap();
    let crowded = cli
        .run(&["run", "--max-queue", "0", "--and", "data", "a", "--", "echo", "it ran"])
        .await;
    assert_eq!((crowded.status, crowded.stdout.as_str()), (75, ""), "{crowded:?}");
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_is_held_at_least_for_so_long_though_the_command_has_ended() {
    let server = Server::start().await;
    let (cli, client) = (Cli::of(&server), client(&server).await);
    let options = ["run", "-n", "--at-least", "600s", "a", "--", "echo", "it ran"];
    let first = cli.run(&options).await;
    assert_eq!((first.status, first.stdout.as_str()), (0, "it ran\n"), "{first:?}");
    let second = cli.run(&options).await;
    assert_eq!((second.status, second.stdout.as_str()), (75, ""), "{second:?}");
    let holder = client.rw_lock("a").status().await.unwrap().holders;
    assert_eq!(holder.len(), 1);
}
