//! Who this process is, for its client's introduction.

/// The number of the process, and the name of its host. The name is empty if it is not known: it is only shown.
pub(crate) fn this_process() -> (u32, String) {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    (std::process::id(), host.trim().to_owned())
}
