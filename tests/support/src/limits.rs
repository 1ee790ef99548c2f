//! Limits of the system for one process: its files, its memory, the size of what it writes.

pub use rustix::process::Resource;
use rustix::process::{Pid, Rlimit, getrlimit, prlimit};

/// Sets a process's soft limit, or takes it away again as far as its hard limit allows.
pub fn limit(pid: Pid, resource: Resource, most: Option<u64>) {
    let maximum = getrlimit(resource).maximum;
    let current = most.or(maximum);
    prlimit(Some(pid), resource, Rlimit { current, maximum }).expect("our own child");
}

/// How much memory a process has mapped.
pub fn mapped_bytes(pid: Pid) -> u64 {
    let sizes = std::fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero())).expect("it lives");
    let pages: u64 = sizes
        .split(' ')
        .next()
        .and_then(|pages| pages.parse().ok())
        .expect("a number");
    pages * rustix::param::page_size() as u64
}

/// What comes before a program so that it gets an error when it writes a file beyond the limit of its size, and not a
/// signal that ends it.
pub fn without_signal_for_files() -> Vec<String> {
    ["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"]
        .map(str::to_owned)
        .to_vec()
}
