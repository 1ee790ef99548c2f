//! `fairlock run`: exit statuses, the command's environment, signals, and a lock that is lost.

use crate::command::{Cli, Ended, ended, said};
use crate::scene;
use fairlock::Client;
use fairlock_support::server::{Server, eventually, soon};
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

/// It runs no more. Whether anybody has waited for it is another question.
fn is_gone(pid: &str) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X'])),
        Err(_) => true,
    }
}

/// Fairlock knows that it has ended: signals are for fairlock alone from then on.
#[cfg(target_os = "linux")]
fn is_waited_for(pid: &str) -> bool {
    !std::path::Path::new("/proc").join(pid).exists()
}

/// A pipe that has no room, and who could read it.
#[cfg(target_os = "linux")]
async fn full_pipe() -> (std::os::fd::OwnedFd, tokio::net::unix::pipe::Receiver) {
    let (sender, receiver) = tokio::net::unix::pipe::pipe().unwrap();
    sender.writable().await.unwrap();
    // A page after the other: what is left would be too small for one.
    let pages = std::iter::from_fn(|| sender.try_write(&[b'.'; 4096]).ok()).count();
    assert!(pages > 0, "it has no room at all");
    (sender.into_blocking_fd().unwrap(), receiver)
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

/// What this process was told to ignore its children ignore too.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = u64::from_str_radix(mask.unwrap().trim(), 16).unwrap();
    mask >> (signal.as_raw() - 1) & 1 == 1
}

#[tokio::test]
async fn signals_reach_the_command() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        if is_ignored(signal) {
            println!("skipped: {name} is ignored here, as under nohup(1), and stays so");
            continue;
        }
        let script = format!("trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.02; done");
        let running = Running::start(&cli, &[], "a", &script).await;
        running.signal(signal);
        let (lines, ended) = running.end().await;
        assert_eq!((lines, ended.status), (vec![format!("got {name}")], 7), "{ended:?}");
    }
}

#[tokio::test]
async fn signals_reach_what_the_command_has_started() {
    let server = Server::start().await;
    let script = "sleep 600 & echo $!; echo ready; wait";
    let mut running = Running::spawn(&Cli::of(&server), &[], "a", script);
    let grandchild = running.line().await;
    assert_eq!(running.line().await, "ready");
    running.signal(Signal::TERM);
    assert_eq!(ended(running.child).await.status, 128 + 15);
    eventually("what it started is gone", async || is_gone(&grandchild)).await;
}

#[tokio::test]
async fn a_command_whose_lock_is_lost_gets_term_and_then_kill_with_all_that_it_started() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    // The two that it starts ignore TERM; one of them outlives the shell.
    let script = "trap 'echo term' TERM; (trap '' TERM; exec sleep 600) & echo $!; \
                  echo ready; while :; do sleep 0.02; done";
    // Long enough for a starved shell to run its trap before it is killed.
    let mut running = Running::spawn(&cli, &["--grace", "10s"], "a", script);
    let grandchild = running.line().await;
    assert_eq!(running.line().await, "ready");
    assert!(!is_gone(&grandchild));
    let owner = cli.owner_of("a").await;
    assert_eq!(cli.run(&["evict", "a", &owner, "--yes"]).await.status, 0);
    let (lines, ended) = running.end().await;
    assert_eq!(lines, ["term"]);
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(said(&ended.stderr, &["evicted", "killing", "status 137"]), "{ended:?}");
    eventually("what it started is gone", async || is_gone(&grandchild)).await;
}

#[tokio::test]
async fn what_a_command_that_obeys_left_behind_ends_too_when_the_lock_is_lost() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let script = "(trap '' TERM; exec sleep 600) & echo $!; echo ready; wait; echo never";
    let mut running = Running::spawn(&cli, &["--grace", "100ms", "--lost-status", "5"], "a", script);
    let grandchild = running.line().await;
    assert_eq!(running.line().await, "ready");
    let owner = cli.owner_of("a").await;
    assert_eq!(cli.run(&["evict", "a", &owner, "--yes"]).await.status, 0);
    let ended = ended(running.child).await;
    assert_eq!(ended.status, 5, "{ended:?}");
    assert!(said(&ended.stderr, &["status 143"]), "{ended:?}");
    eventually("what it left is gone", async || is_gone(&grandchild)).await;
}

#[tokio::test]
async fn signals_reach_what_a_command_has_left_behind_when_the_lock_is_lost() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let left = "trap '' TERM; trap 'echo heard; exit' USR1; while kill -0 $$ 2>/dev/null; do sleep 0.02; done; \
                echo left; while :; do sleep 0.02; done";
    let mut running = Running::spawn(&cli, &["--grace", LONG], "a", &format!("({left}) & echo ready; wait"));
    assert_eq!(running.line().await, "ready");
    let owner = cli.owner_of("a").await;
    assert_eq!(cli.run(&["evict", "a", &owner, "--yes"]).await.status, 0);
    assert_eq!(running.line().await, "left");
    running.signal(Signal::USR1);
    assert_eq!(running.line().await, "heard");
    assert_eq!(ended(running.child).await.status, 76);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_command_whose_lock_is_lost_ends_also_where_nobody_reads_the_complaints() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let (stderr, _unread) = full_pipe().await;
    let mut command = cli.command(&["run", "--lease", LONG, "--grace", "100ms", "a", "--", "sh", "-c"]);
    command.arg("trap '' TERM; echo $$; exec sleep 600").stderr(stderr);
    let mut running = Running::of(command.spawn().expect("it starts"));
    let pid = running.line().await;
    let owner = cli.owner_of("a").await;
    assert_eq!(cli.run(&["evict", "a", &owner, "--yes"]).await.status, 0);
    eventually("the command is killed", async || is_waited_for(&pid)).await;
    // Still nobody reads.
    running.signal(Signal::TERM);
    assert_eq!(ended(running.child).await.status, 76);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_grace_longer_than_clocks_can_count_kills_nothing() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let go_on = server.dir().join("go on");
    let script = format!(
        "(trap '' TERM; until [ -e '{}' ]; do sleep 0.02; done; echo done) & echo $$; wait",
        go_on.display()
    );
    let mut running = Running::spawn(&cli, &["--grace", "1e19"], "a", &script);
    let pid = running.line().await;
    let owner = cli.owner_of("a").await;
    assert_eq!(cli.run(&["evict", "a", &owner, "--yes"]).await.status, 0);
    eventually("the command has ended", async || is_waited_for(&pid)).await;
    std::fs::write(go_on, "").unwrap();
    let (lines, ended) = running.end().await;
    assert_eq!((lines, ended.status), (vec!["done".to_owned()], 76), "{ended:?}");
}

#[tokio::test]
async fn the_longest_hold_ends_the_command() {
    let server = Server::start().await;
    let ended = Cli::of(&server)
        .run(&["run", "--max-hold", "50ms", "a", "--", "sleep", "600"])
        .await;
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(said(&ended.stderr, &["max_hold", "status 143"]), "{ended:?}");
}

#[tokio::test]
async fn a_command_is_ended_when_the_server_has_been_away_for_a_lease() {
    let mut server = Server::start().await;
    let script = "echo ready; exec sleep 600";
    let running = Running::start(&Cli::of(&server), &["--lease", "1s"], "a", script).await;
    server.kill();
    let (_, ended) = running.end().await;
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(
        said(&ended.stderr, &["could not be renewed", "status 143"]),
        "{ended:?}"
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_signal_ends_the_wait_for_a_release_that_no_server_confirms() {
    let mut server = Server::start().await;
    let script = "trap 'exit 3' USR1; echo $$; while :; do sleep 0.02; done";
    let mut running = Running::spawn(&Cli::of(&server), &["--lease", "1h"], "a", script);
    let pid = running.line().await;
    server.kill();
    running.signal(Signal::USR1);
    eventually("the command has ended", async || is_waited_for(&pid)).await;
    running.signal(Signal::TERM);
    let (_, ended) = running.end().await;
    assert_eq!(ended.status, 3, "{ended:?}");
    assert!(said(&ended.stderr, &["not confirmed the release"]), "{ended:?}");
}

#[tokio::test]
async fn a_signal_while_it_waits_leaves_the_queue_at_once() {
    let server = Server::start().await;
    let (cli, client) = (Cli::of(&server), client(&server).await);
    let _holding = client.rw_lock("a").write().acquire_fair().await.unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::USR1] {
        let waiting = Running::spawn(&cli, &[], "a", "echo never");
        server.until_queued("a", 1).await;
        waiting.signal(signal);
        let (lines, ended) = waiting.end().await;
        assert_eq!((lines.len(), ended.status), (0, 128 + signal.as_raw()), "{ended:?}");
        // Not by its lease, which is long.
        assert_eq!(server.queued("a").await, 0);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_command_does_not_outlive_a_killed_fairlock() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let mut running = Running::spawn(&cli, &[], "a", "echo $$; trap '' TERM; exec sleep 600");
    let command = running.line().await;
    assert!(!is_gone(&command));
    running.signal(Signal::KILL);
    eventually("the command is gone", async || is_gone(&command)).await;
    // Nobody has released.
    assert!(!is_free(&client(&server).await, "a").await);
}

#[tokio::test]
async fn signals_that_were_ignored_stay_ignored() {
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let script = "trap '' HUP; exec \"$0\" --url \"$1\" run a -- \
                  sh -c 'trap \"echo term; exit 7\" TERM; echo ready; while :; do sleep 0.02; done'";
    let mut child = cli.under_shell(script).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert_eq!(
        soon("a line", lines.next_line()).await.unwrap().as_deref(),
        Some("ready")
    );
    let running = Running { child, lines };
    running.signal(Signal::HUP);
    running.signal(Signal::TERM);
    let (lines, ended) = running.end().await;
    assert_eq!((lines, ended.status), (vec!["term".to_owned()], 7), "{ended:?}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_commands_status_is_known_also_under_a_parent_that_ignores_the_end_of_children() {
    let server = Server::start().await;
    let script = "exec env --ignore-signal=CHLD \"$0\" --url \"$1\" run a -- sh -c 'exit 7'";
    let child = Cli::of(&server).under_shell(script).spawn().expect("it starts");
    let ended = ended(child).await;
    assert_eq!(ended.status, 7, "{ended:?}");
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
