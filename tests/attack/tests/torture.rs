//! A short torture, and proof that it would notice.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

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

#[test]
fn everything_breaks_around_the_lock_and_the_lock_does_not() {
    let (good, text) = torture(&["--minutes", "0.6"]);
    // That the unfenced register loses something is a matter of luck in so short a time; the next test waits for it.
    let unlucky = text.contains("lost nothing") && text.contains("1 violations");
    assert!(good || unlucky, "{text}");
}

/// It succeeds only if the register without the fence lost updates and the one with it did not.
#[test]
fn without_its_fence_a_register_loses_updates_and_with_it_none() {
    let begun = Instant::now();
    loop {
        let (good, text) = torture(&["--workload", "register", "--faults", "stop", "--minutes", "0.05"]);
        if good {
            return;
        }
        assert!(text.contains("lost nothing") && text.contains("1 violations"), "{text}");
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "no update was lost without the fence\n{text}"
        );
    }
}

#[test]
fn a_script_with_a_bug_is_found_out() {
    let args = [
        "--workload",
        "hot,readers,short",
        "--faults",
        "stop",
        "--minutes",
        "0.05",
    ];
    for bug in ["reader-beside-writer", "early-expiry"] {
        // A few seconds will mostly do; on a busy machine the bug may not come to light in them.
        let begun = Instant::now();
        loop {
            let (good, text) = torture(&[&args[..], &["--sabotage", bug]].concat());
            if !good && text.contains("VIOLATION") {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(90), "{bug}\n{text}");
        }
    }
}
