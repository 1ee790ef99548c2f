//! Signals, and a lock that is lost: how the command ends, with all that it started.

use super::{LONG, Running, client, is_free};
#[cfg(target_os = "linux")]
use crate::command::full_pipe;
use crate::command::{Cli, ended, said};
use fairlock_support::server::{Server, eventually, soon};
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, BufReader};

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

/// Then it is the parent of what the command left behind, and nobody else waits for that.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn as_the_first_process_of_a_container_it_waits_for_none_that_has_ended() {
    const CONTAINER: &str = "unshare --user --map-root-user --pid --fork --kill-child --mount-proc";
    let server = Server::start().await;
    let cli = Cli::of(&server);
    let permitted = cli.under_shell(&format!("exec {CONTAINER} true")).spawn().unwrap();
    if ended(permitted).await.status != 0 {
        println!("skipped: no container can be made here");
        return;
    }
    for command in ["run --grace 600s", "elect --grace 600s"] {
        let script = format!(
            "exec {CONTAINER} \"$0\" --url \"$1\" {command} --lease 600s a -- \
             sh -c 'trap \"exit 3\" TERM; sleep 600 & echo ready; wait'"
        );
        let mut running = Running::of(cli.under_shell(&script).spawn().unwrap());
        assert_eq!(running.line().await, "ready");
        let owner = cli.owner_of("a").await;
        assert_eq!(cli.run(&["evict", "a", &owner, "--yes"]).await.status, 0);
        if command.starts_with("elect") {
            // It leads again.
            assert_eq!(running.line().await, "ready");
            continue;
        }
        let (_, ended) = running.end().await;
        assert_eq!(ended.status, 76, "{ended:?}");
        assert!(said(&ended.stderr, &["evicted", "status 3"]), "{ended:?}");
    }
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

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_known_loss_is_told_also_where_no_server_confirms_the_release_of_the_rest() {
    let mut server = Server::start().await;
    let cli = Cli::of(&server);
    let script = "trap 'echo term' TERM; trap 'exit 3' USR1; echo ready; while :; do sleep 0.02; done";
    let options = ["--lease", "1h", "--grace", LONG, "--and", "b"];
    let mut running = Running::start(&cli, &options, "a", script).await;
    let owner = cli.owner_of("a").await;
    assert_eq!(cli.run(&["evict", "a", &owner, "--yes"]).await.status, 0);
    assert_eq!(running.line().await, "term");
    server.kill();
    running.signal(Signal::USR1);
    // The first ones may still be for what is left of the command.
    let fairlock = running.pid();
    let telling = tokio::spawn(async move {
        while rustix::process::kill_process(fairlock, Signal::TERM).is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    let (_, ended) = running.end().await;
    telling.abort();
    assert_eq!(ended.status, 76, "{ended:?}");
    let words = [
        "evicted",
        "not confirmed the release",
        "status 3 after the lock was lost",
    ];
    assert!(said(&ended.stderr, &words), "{ended:?}");
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
