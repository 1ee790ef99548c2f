//! `.ci/setup` on a machine whose programs are stubs of this test.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

fn stub(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs the script, and returns what apt-get was told to install since the last run.
fn set_up(bin: &Path) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/setup");
    let ended = Command::new(script).env("PATH", bin).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let log = bin.join("log");
    let told = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(log);
    told
}

#[test]
fn a_compiler_that_cannot_link_is_completed_and_one_that_can_is_left_alone() {
    let bin = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("setup");
    let _ = fs::remove_dir_all(&bin);
    fs::create_dir_all(&bin).unwrap();
    for program in ["bash", "cat", "env", "id", "mktemp", "rm"] {
        let found = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(program));
        symlink(found.iter().find(|path| path.exists()).unwrap(), bin.join(program)).unwrap();
    }
    // A gcc without the headers and start files of libc6-dev, until apt-get brings those.
    let cc = bin.join("cc");
    stub(&cc, "exit 1");
    stub(&bin.join("redis-server"), "exit 0");
    stub(&bin.join("sudo"), "exec \"$@\"");
    let shown = (bin.display(), cc.display());
    let install = "echo \"$*\" >> BIN/log; case $* in *libc6-dev*) echo '#!/bin/sh' > CC;; esac";
    let install = install
        .replace("BIN", &shown.0.to_string())
        .replace("CC", &shown.1.to_string());
    stub(&bin.join("apt-get"), &install);
    assert!(set_up(&bin).contains("gcc libc6-dev"));
    assert_eq!(set_up(&bin), "");
}
