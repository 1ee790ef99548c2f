//! A short torture, and proof that it would notice. Each ends after so many grants: a slow machine takes longer.

use std::process::{Command, Output};

/// So often a run may have bad luck.
const ATTEMPTS: usize = 40;

fn torture(args: &[&str]) -> (bool, String) {
    let run = Command::new(env!("CARGO_BIN_EXE_attack"))
        .arg("torture")
        .args(args)
        .output();
    let Output { status, stdout, stderr } = run.expect("the binary of this crate");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr)
    );
    println!("{text}");
    (status.success(), text)
}

/// The only thing wrong is that the unfenced register lost nothing, as the last line says. Lines before it tell how many
/// violations there were by then.
fn is_unlucky(text: &str) -> bool {
    text.contains("lost nothing") && text.lines().any(|line| line.starts_with("1 violations in "))
}

#[test]
fn everything_breaks_around_the_lock_and_the_lock_does_not() {
    let (good, text) = torture(&["--goal", "12000"]);
    // That the unfenced register loses something is a matter of luck in so short a run; the next test waits for it.
    assert!(good || is_unlucky(&text), "{text}");
}

#[test]
fn a_run_without_the_fault_that_was_chosen_does_not_succeed() {
    let never = "--workload hot --faults stop --minutes 0 --calm 1000000";
    let (good, text) = torture(&never.split(' ').collect::<Vec<_>>());
    assert!(
        !good && text.contains("stop was chosen and never did anything"),
        "{text}"
    );
}

fn can_run_python() -> bool {
    const CAN_RUN_IT: &str = "import sys; sys.exit(sys.version_info < (3, 11))";
    let found = Command::new("python3").args(["-c", CAN_RUN_IT]).status();
    let can = found.is_ok_and(|status| status.success());
    if !can {
        println!("SKIPPED: there is no python3 from 3.11 on on the PATH, so no client in Python is tortured");
    }
    can
}

/// A worker may be killed before it drains: what its tasks raise is told at once.
#[test]
fn a_worker_in_python_tells_what_its_tasks_raise_and_where_it_never_got_in() {
    const WORKER: &str = "
import asyncio, torture

class Raises(torture.Task):
    async def round(self):
        raise KeyError('a bug')

class Fails(torture.Task):
    async def round(self):
        pass

async def tell():
    reporter = torture.Reporter()
    await asyncio.wait([asyncio.create_task(Raises('hot', 0, None, '', reporter).rounds(asyncio.Event()))])
    await Fails('many', 0, None, '', reporter).must_get_in()
    reporter.granted('readers', 1)
    await Raises('readers', 0, None, '', reporter).must_get_in()
    reporter.flush()

asyncio.run(tell())";
    if !can_run_python() {
        return;
    }
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let run = Command::new("python3")
        .args(["-B", "-c", WORKER])
        .env("PYTHONPATH", format!("{root}/clients/python/src:{root}/tests/python"))
        .output();
    let told = String::from_utf8(run.expect("python3").stdout).expect("UTF-8");
    let lines: Vec<_> = told.lines().collect();
    let never = "e many: it never got in, and not in 200 rounds with nobody disturbing";
    assert_eq!(lines, ["g readers 1 1", "e hot: KeyError('a bug')", never], "{told}");
}

/// Workers of both clients in the same queues. Skipped, aloud, where there is no Python that can run the client.
#[test]
fn everything_breaks_around_the_client_in_python_too() {
    if !can_run_python() {
        return;
    }
    let workloads = "hot,many,readers,cancel,policies,permits,owners";
    let (good, text) = torture(&["--python", "2", "--workload", workloads, "--goal", "6000"]);
    assert!(good, "{text}");
}

/// It succeeds only if the register without the fence lost updates and the one with it did not.
#[test]
fn without_its_fence_a_register_loses_updates_and_with_it_none() {
    let lost = (0..ATTEMPTS).any(|_| {
        let (good, text) = torture(&["--workload", "register", "--faults", "stop", "--goal", "300"]);
        assert!(good || is_unlucky(&text), "{text}");
        good
    });
    assert!(lost, "no update was lost without the fence");
}

#[test]
fn a_minority_of_three_servers_breaks_and_the_lock_does_not() {
    let (good, text) = torture(&["--quorum", "3", "--goal", "3000"]);
    assert!(good || is_unlucky(&text), "{text}");
}

/// Each bug is named by the rule of the judge that is there for it.
#[test]
fn a_bug_in_a_quorum_is_found_out() {
    for (bug, faults, goal, named) in [
        ("half-is-enough", "none", "300", "inside at the same time"),
        ("idle-release", "none", "20", "was released, and a majority keeps it"),
        ("least-token", "clock", "1500", "tokens do not grow"),
    ] {
        let found = (0..ATTEMPTS).any(|_| {
            let (good, text) = torture(&["--quorum", "3", "--faults", faults, "--goal", goal, "--sabotage", bug]);
            let skipped = text.contains("no libfaketime here");
            skipped || !good && text.contains(named)
        });
        assert!(found, "{bug}");
    }
}

#[test]
fn a_script_with_a_bug_is_found_out() {
    let args = ["--workload", "hot,readers,short", "--faults", "stop", "--goal", "1500"];
    for bug in ["reader-beside-writer", "early-expiry"] {
        let found = (0..ATTEMPTS).any(|_| {
            let (good, text) = torture(&[&args[..], &["--sabotage", bug]].concat());
            !good && text.contains("VIOLATION")
        });
        assert!(found, "{bug}");
    }
}
