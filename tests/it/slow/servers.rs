//! The suite on other servers than the one on the PATH, side by side: those that `.ci/servers` has put into
//! `target/servers`. A part of it unless `FAIRLOCK_MATRIX=all`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What depends on the server most: the scripts, what they are sent as, messages, replication, disks, what `status` reads,
/// and what its ACL knows.
const PART: [&str; 7] = [
    "scripts::",
    "rw_lock::",
    "replicas::",
    "quarantine::",
    "recipes::",
    "status::",
    "input::",
];

fn others() -> Vec<PathBuf> {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(target).join("servers");
    let mut found: Vec<_> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .collect();
    found.sort();
    found
}

fn run(server: &Path) -> Output {
    let mut suite = Command::new(std::env::current_exe().unwrap());
    if !std::env::var("FAIRLOCK_MATRIX").is_ok_and(|extent| extent == "all") {
        suite.args(PART);
    }
    // Not all of these builds can be preloaded with libfaketime.
    println!("skipped on {}: servers with a clock of their own", server.display());
    suite.args(["--skip", "skewed::"]);
    let version = Command::new(server).arg("--version").output().unwrap();
    if String::from_utf8_lossy(&version.stdout).contains(" v=6.") {
        println!("skipped on {}: clusters, which need Redis 7", server.display());
        suite.args([
            "--skip",
            "cluster::",
            "--skip",
            "in_a_cluster",
            "--skip",
            "of_a_cluster",
        ]);
    }
    suite.env("FAIRLOCK_TEST_SERVER", server).output().unwrap()
}

#[test]
fn the_suite_passes_on_other_servers() {
    if std::env::var_os("FAIRLOCK_TEST_SERVER").is_some() {
        return; // One of those runs.
    }
    let others = others();
    if others.is_empty() {
        println!("skipped: no other servers; `.ci/servers` gets some");
        return;
    }
    let outputs: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = others.iter().map(|server| scope.spawn(|| run(server))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let mut failed = Vec::new();
    for (server, output) in others.iter().zip(outputs) {
        let said = String::from_utf8_lossy(&output.stdout);
        let result = said.lines().rfind(|line| line.starts_with("test result:"));
        println!("{}: {}", server.display(), result.unwrap_or("no result"));
        if !output.status.success() {
            println!("{said}");
            failed.push(server);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
