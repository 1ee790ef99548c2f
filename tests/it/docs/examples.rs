//! The examples, run as the processes that they are.

use crate::lateness::in_time;
use crate::server::{PATIENCE, Server, connected};
use fairlock::Client;
use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process_group};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// The longest example takes six seconds where nothing else runs. Only one that hangs takes longer than this.
const DEADLINE: Duration = PATIENCE;

/// `cargo test` builds the examples next to the tests.
fn example(name: &str) -> Command {
    let here = std::env::current_exe().expect("the test's own path");
    let target = here.ancestors().nth(2).expect("target/PROFILE/deps/it");
    let mut path = PathBuf::from(target);
    path.extend(["examples", &format!("{name}{}", std::env::consts::EXE_SUFFIX)]);
    assert!(
        path.exists(),
        "{} is not built: `cargo build --examples`",
        path.display()
    );
    let mut command = Command::new(path);
    command
        .env_remove("REDIS_URL")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Its output, when it ends by itself. In time or not: the server that it started ends too.
async fn output_of(mut command: Command) -> Output {
    let child = command.process_group(0).spawn().expect("a process");
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    match timeout(DEADLINE, child.wait_with_output()).await {
        Ok(output) => output.expect("its output"),
        Err(_) => {
            // It leads a group of its own and has not been waited for: the number is still its own.
            let killed = kill_process_group(pid.expect("a running process"), Signal::KILL);
            panic!("{command:?} did not end within {DEADLINE:?} and was killed: {killed:?}");
        }
    }
}

/// Runs an example, which must succeed and say this.
async fn shows(name: &str, key_line: &str) {
    in_time(async || {
        let output = output_of(example(name)).await;
        let (said, complained) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{name}: {}\n{said}{complained}", output.status);
        assert!(said.contains(key_line), "{name} did not say {key_line:?} but:\n{said}");
    })
    .await;
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn write_loses_no_addition() {
    shows("write", "the number is 100").await;
}

#[tokio::test]
async fn read_lets_readers_share_and_a_late_reader_wait_for_the_writer() {
    shows("read", "the writer left: the late reader is inside").await;
}

#[tokio::test]
async fn timeout_answers_none_when_the_time_is_over() {
    shows("timeout", "its turn did not come within 200ms").await;
}

#[tokio::test]
async fn lost_lease_drops_the_job_of_a_blocked_executor() {
    shows("lost_lease", "the job was dropped before it wrote").await;
}

#[tokio::test]
async fn fencing_refuses_the_late_write_of_a_paused_holder() {
    shows("fencing", "the first holder woke up and wrote: refused").await;
}

#[tokio::test]
async fn cancellation_lets_in_who_waited_behind() {
    shows("cancellation", "the reader behind it is inside, beside the first one").await;
}

#[tokio::test]
async fn parked_waiters_cost_renewals_and_one_message_a_grant() {
    shows("parked_waiters", "1000 messages, ").await;
}

#[tokio::test]
async fn readers_together_enter_by_one_script_call() {
    shows("readers_together", "900 readers are inside; 1 script call, 3 messages").await;
}

#[tokio::test]
async fn owners_reenter_from_function_to_function_and_from_process_to_process() {
    shows("owners", "so did another process that I gave my number to").await;
}

#[tokio::test]
async fn upgrade_goes_ahead_of_the_queue_and_downgrade_lets_readers_in() {
    shows("upgrade", "it reads now, and the reader that waited came in with it").await;
}

#[tokio::test]
async fn policies_let_the_same_requests_in_differently() {
    shows("policies", "WriterFirst: writer, reader 1, reader 2").await;
}

#[tokio::test]
async fn semaphore_lets_no_small_job_pass_a_big_one() {
    shows("semaphore", "then the small one: 1 of 4 GPUs in use").await;
}

#[tokio::test]
async fn seed_token_mutex_counts_in_turn_and_frees_nobody_else() {
    shows("seed_token_mutex", "100 tasks counted to 100, in turn").await;
}

#[tokio::test]
async fn quorum_keeps_the_lock_when_a_server_dies() {
    shows("quorum", "the waiter is inside, and its token is greater").await;
}

#[tokio::test]
async fn seed_quorum_does_all_that_redlock_does() {
    shows("seed_quorum", "the same with two servers of three").await;
}

#[tokio::test]
async fn seed_rw_mutex_does_all_that_the_mutex_with_lock_intent_does() {
    shows("seed_rw_mutex", "a writer that waits keeps new readers out").await;
}

#[tokio::test]
async fn seed_reentrant_hash_keeps_the_same_fields() {
    shows("seed_reentrant_hash", "three holds of two owners, in one hash").await;
}

#[tokio::test]
async fn status_names_the_owner_to_blame_and_eviction_frees_the_lock() {
    shows("status", "billing was evicted and knows it; mailing is in").await;
}

#[tokio::test]
async fn locks_finds_those_that_exist_and_knows_no_other_name() {
    shows("locks", "nobody uses the lock \"catalog\"").await;
}

#[tokio::test]
async fn events_tell_a_hand_over() {
    shows("events", "the writer left and the reader entered").await;
}

#[tokio::test]
async fn contended_lets_short_jobs_in_while_a_long_one_goes_on() {
    shows("contended", "short job 2 is inside").await;
}

#[tokio::test]
async fn deadlock_tells_one_of_two_transfers_and_both_are_done() {
    shows(
        "deadlock",
        "both transfers are done, and one of the two was told of the deadlock",
    )
    .await;
}

#[tokio::test]
async fn deadlock_cost_shows_that_the_waiters_of_a_lock_share_their_looks() {
    shows("deadlock_cost", "the waiters of a lock share their looks").await;
}

#[tokio::test]
async fn election_shows_each_leader_and_the_vacancy() {
    shows("election", "all three have led, one after the other, and nobody leads").await;
}

#[tokio::test]
async fn an_example_uses_the_server_that_redis_url_names() {
    let server = Server::start().await;
    let mut write = example("write");
    write.env("REDIS_URL", server.url());
    let output = output_of(write).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    // The second is for whoever else runs an example there.
    let keys = ["fairlock:{example:write}", "fairlock:{examples}"];
    assert_eq!(server.keys().await, keys);
}

/// Scripts, messages and other locks, all the time.
fn traffic(server: &Server) -> tokio::task::JoinHandle<()> {
    let url = server.url();
    tokio::spawn(async move {
        let client = connected(Client::builder(), url).await;
        loop {
            let guard = client.rw_lock("another").write().acquire_fair().await.unwrap();
            let next = tokio::spawn(client.rw_lock("another").write().acquire_fair());
            guard.release().await.unwrap();
            next.await.unwrap().unwrap().release().await.unwrap();
        }
    })
}

#[tokio::test]
async fn examples_assert_nothing_about_what_others_do_on_their_server() {
    let server = Server::start().await;
    let traffic = traffic(&server);
    // At the same time. Two of them use the same lock.
    let runs = ["read", "readers_together", "seed_token_mutex", "parked_waiters", "read"].map(|name| {
        let mut command = example(name);
        command.env("REDIS_URL", server.url());
        async move { (name, output_of(command).await) }
    });
    for (name, output) in join_all(runs).await {
        let (said, complained) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{name}: {}\n{said}{complained}", output.status);
    }
    assert!(!traffic.is_finished());
    traffic.abort();
}

#[tokio::test]
async fn an_example_without_any_server_says_what_to_do() {
    let mut write = example("write");
    write.env("PATH", "");
    let output = output_of(write).await;
    assert!(!output.status.success());
    let complained = text(&output.stderr);
    assert!(complained.contains("make setup"), "{complained}");
}

#[tokio::test]
async fn nightly_runs_once_on_twenty_replicas() {
    shows("nightly", "20 replicas tried within the window, and the job ran once").await;
}

#[tokio::test]
async fn transfer_never_deadlocks() {
    shows("transfer", "Alice has 100, Bob has -100, nobody waited for ever").await;
}
