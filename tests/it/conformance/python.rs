//! The client in Python, `clients/python`, in one queue with this one. `tests/python` has the programs that use it.
//! Skipped, aloud, where there is no Python that can run it.

use crate::lateness::in_time;
use crate::lua::{Lock, RELEASE};
use crate::process::{Process, Resource};
use crate::server::{Server, eventually};
use crate::users::{LEASE, LONG, client, queued, user, write};
use fairlock::{Mode, RwLock};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A Python program of the repository, with the client as it lies in `clients/python`. FAIRLOCK_PYTHON names another
/// Python, in which the package is installed: `make python` does that.
fn program(path: &str) -> Option<Command> {
    const CAN_RUN_IT: &str = "import sys; sys.exit(sys.version_info < (3, 11))";
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let installed = std::env::var_os("FAIRLOCK_PYTHON");
    let python = installed.clone().unwrap_or_else(|| "python3".into());
    let found = Command::new(&python).args(["-c", CAN_RUN_IT]).status();
    if !found.is_ok_and(|status| status.success()) {
        assert!(installed.is_none(), "{} is no Python from 3.11 on", python.display());
        println!("SKIPPED: there is no python3 from 3.11 on on the PATH, so no client in Python is tried");
        return None;
    }
    let mut command = Command::new(python);
    // No files beside the sources.
    command.arg("-B").arg(root.join(path));
    if installed.is_none() {
        command.env("PYTHONPATH", root.join("clients/python/src"));
    }
    Some(command)
}

/// A process with a client in Python.
async fn python(server: &Server, lease: Duration) -> Option<Process> {
    let mut command = program("tests/python/worker.py")?;
    command.args([server.url(), lease.as_millis().to_string()]);
    Some(Process::running(command).await)
}

#[tokio::test]
async fn the_suite_passes_from_python() {
    let server = Server::start().await;
    let Some(mut command) = program("tests/python/conformance.py") else {
        return;
    };
    command.args(["127.0.0.1", &server.port().to_string()]);
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.expect("no panic").expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains(" passed, 0 failed"));
}

#[test]
fn what_the_client_in_python_believes() {
    let Some(mut command) = program("tests/python/beliefs.py") else {
        return;
    };
    let output = command.output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn the_example_in_python_shows_what_it_says() {
    let server = Server::start().await;
    let Some(mut command) = program("clients/python/examples/invoice.py") else {
        return;
    };
    command.env("REDIS_URL", server.url());
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.expect("no panic").expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("each with a greater token"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs a program of tests on a server of its own.
async fn passes(path: &str) {
    let server = Server::start().await;
    let Some(mut command) = program(path) else {
        return;
    };
    command.args(["127.0.0.1", &server.port().to_string()]);
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.expect("no panic").expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success(), "{said}");
}

#[tokio::test]
async fn a_python_task_that_is_cancelled_at_any_await_leaves_nothing_behind() {
    passes("tests/python/client.py").await;
}

#[tokio::test]
async fn python_blocks_clients_and_processes_end_in_order_when_nothing_goes_well() {
    passes("tests/python/unwinding.py").await;
}

#[tokio::test]
async fn python_connects_on_any_event_loop_and_refuses_a_url_that_it_cannot_use() {
    passes("tests/python/connecting.py").await;
}

/// A judge written from PROTOCOL.md alone, beside the model of `tests/attack`. Another number is another hundred locks.
const SEED: &str = "1";

#[tokio::test]
async fn the_second_judge_finds_no_difference_in_random_calls_on_the_scripts() {
    let server = Server::start().await;
    let Some(mut command) = program("tests/python/judging.py") else {
        return;
    };
    let port = server.port().to_string();
    command.args(["127.0.0.1", &port, "--seed", SEED, "--locks", "100"]);
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.expect("no panic").expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains(" calls judged, no difference"));
}

#[tokio::test]
async fn both_clients_stand_in_one_queue_and_are_granted_by_messages() {
    let server = Server::start().await;
    // Leases so long that no renewal helps.
    let Some(mut python) = python(&server, LONG).await else {
        return;
    };
    let lock = user(&server, LONG).await;
    let first = write(&lock).await;
    python.ask(1, 'w', "a", None);
    server.until_queued("a", 1).await;
    let second = queued(&server, lock.write(), 2).await;
    python.ask(3, 'r', "a", None);
    server.until_queued("a", 3).await;
    let fourth = queued(&server, lock.read(), 4).await;
    let fifth = queued(&server, lock.write(), 5).await;
    python.ask(6, 'r', "a", None);
    server.until_queued("a", 6).await;

    let mut tokens = vec![first.fencing_token().get()];
    first.release().await.unwrap();
    tokens.push(python.entered(1).await);
    assert!(!second.entered());
    released(&mut python, 1).await;
    let second = second.enters().await;
    tokens.push(second.fencing_token().get());
    second.release().await.unwrap();
    // Two readers, side by side.
    tokens.push(python.entered(3).await);
    let fourth = fourth.enters().await;
    tokens.push(fourth.fencing_token().get());
    fourth.release().await.unwrap();
    assert_eq!(server.queued("a").await, 2, "another reader is inside");
    released(&mut python, 3).await;
    let fifth = fifth.enters().await;
    tokens.push(fifth.fencing_token().get());
    fifth.release().await.unwrap();
    tokens.push(python.entered(6).await);
    released(&mut python, 6).await;

    let shared: Vec<_> = tokens.windows(2).map(|pair| pair[0] == pair[1]).collect();
    assert_eq!(
        shared,
        [false, false, false, true, false, false],
        "the two readers: {tokens:?}"
    );
    assert!(tokens.is_sorted(), "{tokens:?}");
    let (way, calls) = if super::is_modern(&server).await {
        ("fcall", 14)
    } else {
        ("evalsha", 10)
    };
    assert_eq!(
        server.calls(way).await,
        calls,
        "one to acquire and one to release, each; before Redis 7 the first two of each client carry their scripts'
        texts"
    );
}

async fn released(python: &mut Process, id: usize) {
    python.tell(&format!("release {id}"));
    assert_eq!(python.line().await, format!("released {id} true"));
}

/// The mode, the token, and whether nobody was inside who conflicts.
async fn one_entry(lock: RwLock, mode: char, mut resource: Resource) -> (char, u64, bool) {
    const HOLD: Duration = Duration::from_millis(1);
    macro_rules! entry {
        ($acquire:expr) => {{
            let guard = $acquire.acquire_fair().await.expect("the lock");
            let clear = resource.enter(mode).await;
            tokio::time::sleep(HOLD).await;
            resource.leave(mode).await;
            let token = guard.fencing_token().get();
            guard.release().await.expect("still held");
            (mode, token, clear)
        }};
    }
    if mode == 'w' {
        entry!(lock.write())
    } else {
        entry!(lock.read())
    }
}

#[tokio::test]
async fn both_clients_exclude_each_other() {
    const EACH: usize = 30;
    let server = Server::start().await;
    let Some(mut python) = python(&server, LONG).await else {
        return;
    };
    let lock = user(&server, LONG).await;
    let resource = Resource::new(server.redis().await, "a");
    let mode = |n: usize| if n.is_multiple_of(3) { 'r' } else { 'w' };
    let mut entries = tokio::task::JoinSet::new();
    for n in 0..EACH {
        python.ask(n, mode(n), "a", Some(Duration::from_millis(1)));
        entries.spawn(one_entry(lock.clone(), mode(n), resource.clone()));
    }
    // Readers of one phase share a token, but nobody shares one with a writer.
    let (mut reads, mut writes) = (BTreeSet::new(), BTreeSet::new());
    let mut note = |mode: char, token: u64| match mode {
        'r' => {
            reads.insert(token);
            !writes.contains(&token)
        }
        _ => !reads.contains(&token) && writes.insert(token),
    };
    for (mode, token, clear) in entries.join_all().await {
        assert!(clear && note(mode, token), "{mode} {token}");
    }
    for _ in 0..2 * EACH {
        let line = python.line().await;
        let words: Vec<_> = line.split(' ').collect();
        match words[0] {
            "entered" => {
                let own = mode(words[1].parse().unwrap());
                assert!(words[4] == "clear" && note(own, words[2].parse().unwrap()), "{line}");
            }
            _ => assert_eq!((words[0], words[2]), ("released", "true"), "{line}"),
        }
    }
    assert_eq!(writes.len(), (0..EACH).filter(|n| mode(*n) == 'w').count() * 2);
}

#[tokio::test]
async fn a_killed_python_holder_costs_its_lease_and_not_the_one_of_who_waits() {
    let server = Server::start().await;
    let Some(mut python) = python(&server, LEASE).await else {
        return;
    };
    python.ask(1, 'w', "a", None);
    let token = python.entered(1).await;
    let lock = user(&server, LONG).await;
    let waiting = queued(&server, lock.write(), 1).await;
    python.kill();
    // Long before its own next renewal.
    let guard = waiting.enters().await;
    assert!(guard.fencing_token().get() > token);
}

#[tokio::test]
async fn python_waits_no_longer_than_the_lease_of_a_holder_that_was_killed() {
    let server = Server::start().await;
    let Some(mut python) = python(&server, LONG).await else {
        return;
    };
    let mut rust = Process::start(&server.url(), LEASE).await;
    rust.ask(1, 'w', "a", None);
    let token = rust.entered(1).await;
    python.ask(2, 'w', "a", None);
    server.until_queued("a", 1).await;
    rust.kill();
    assert!(python.entered(2).await > token);
}

#[tokio::test]
async fn a_python_holder_renews_and_one_that_was_frozen_knows_that_it_lost() {
    in_time(async || {
        let server = Server::start().await;
        let Some(mut python) = python(&server, 3 * LEASE).await else {
            return;
        };
        python.ask(1, 'w', "a", None);
        python.entered(1).await;
        let before = server.script_calls().await;
        // For longer than its lease.
        eventually("renewals", async || server.script_calls().await >= before + 4).await;
        python.tell("held 1");
        assert_eq!(python.line().await, "held 1 true");
        python.freeze();
        let guard = write(&user(&server, 3 * LEASE).await).await;
        python.thaw();
        python.tell("held 1");
        assert_eq!(python.line().await, "held 1 false");
        python.tell("release 1");
        assert_eq!(python.line().await, "released 1 false");
        assert!(guard.is_held());
    })
    .await;
}

#[tokio::test]
async fn python_asks_again_when_its_subscription_was_lost_and_a_message_with_it() {
    let server = Server::start().await;
    let Some(mut python) = python(&server, LONG).await else {
        return;
    };
    let lock = Lock::new(&server, "a").await;
    let token = lock.acquire("w1:1").await.token();
    python.ask(1, 'w', "a", None);
    server.until_queued("a", 1).await;
    // In one step: it cannot have been heard.
    let mut deafened = redis::pipe();
    deafened.atomic().cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub");
    deafened.add_command(lock.command(RELEASE, &["w1:1".to_owned()]));
    deafened.exec_async(&mut server.redis().await).await.unwrap();
    assert!(python.entered(1).await > token);
}

#[tokio::test]
async fn both_clients_take_the_permits_of_one_semaphore() {
    let server = Server::start().await;
    let Some(mut python) = python(&server, LONG).await else {
        return;
    };
    let gpu = client(server.url(), LONG).await.semaphore("gpu", 4);
    let two = gpu.permits(2).acquire_fair().await.unwrap();
    python.tell("ask 1 p3/4 gpu -");
    server.until_queued("gpu", 1).await;
    assert!(gpu.permits(1).try_acquire().await.unwrap().is_none(), "nobody passes");
    python.tell("ask 2 p1/4 gpu -");
    let line = python.line().await;
    assert!(line.starts_with("failed 2 QueueFull"), "{line}");
    two.release().await.unwrap();
    let token = python.entered(1).await;
    let one = gpu.permits(1).try_acquire().await.unwrap().expect("3 of 4 are taken");
    assert_eq!(one.fencing_token().get(), token);
    assert!(gpu.permits(2).try_acquire().await.unwrap().is_none());
    released(&mut python, 1).await;
    assert!(gpu.permits(3).try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn python_looks_again_after_it_released_to_the_dead() {
    let server = Server::start().await;
    let Some(mut python) = python(&server, LONG).await else {
        return;
    };
    python.ask(1, 'w', "a", None);
    python.entered(1).await;
    // Leases of minutes, and nobody who hears of a grant.
    let lock = Lock::through(server.redis().await, "a");
    lock.acquire_all(&["w1:1", "w2:1", "r3:1"]).await;
    released(&mut python, 1).await;
    eventually("the dead are gone", async || lock.state().await.leases.is_empty()).await;
}

#[tokio::test]
async fn a_status_names_the_client_in_python_and_an_eviction_reaches_it() {
    let server = Server::start().await;
    let Some(mut python) = python(&server, LONG).await else {
        return;
    };
    let lock = user(&server, LONG).await;
    let guard = write(&lock).await;
    python.ask(1, 'r', "a", None);
    server.until_queued("a", 1).await;
    let status = lock.status().await.unwrap();
    let waiter = &status.waiters[0];
    assert_eq!(
        (waiter.client.label.as_deref(), waiter.mode),
        (Some("python"), Mode::Read)
    );
    assert!(waiter.client.process.is_some());
    assert_eq!(lock.evict(&waiter.owner).await.unwrap(), 1);
    let line = python.line().await;
    assert!(line.starts_with("failed 1 Lost"), "{line}");
    assert!(guard.is_held());
}
