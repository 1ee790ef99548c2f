//! What the rows of the page are called. Their codes are what the command line takes.

/// The subjects of the page, and the rows of each.
pub const SUBJECTS: [(&str, &[&str]); 8] = [
    ("A free lock", &["p1", "p2"]),
    ("A hand-over", &["p3", "p5"]),
    ("A lock that all want", &["p4", "runs"]),
    ("Fairness", &["p7"]),
    ("Many waiters and many holds", &["p6", "p8", "p9", "p10"]),
    ("Other kinds of locks", &["kinds"]),
    ("Several masters of a cluster", &["masters"]),
    ("A majority of servers", &["quorum"]),
];

const NAMES: [(&str, &str); 32] = [
    ("p1", "Time of acquire and release, against SET NX PX and a checked DEL"),
    (
        "p2",
        "Locks per second, 64 tasks with a lock each, against two plain scripts of 15 lines",
    ),
    (
        "p3",
        "Time until the next process holds the lock, median, against a script that publishes",
    ),
    (
        "p3_of_bare",
        "Time until the next process holds the lock, median, against a script of the same commands alone",
    ),
    (
        "p3_p999",
        "Time until the next process holds the lock, 99.9 %, against a script that publishes",
    ),
    (
        "p4",
        "Grants per second to 8 tasks, against the bound by the least hand-over",
    ),
    ("p4_peers", "Grants per second to 8 tasks, against the best peer"),
    (
        "p4_64",
        "Grants per second to 64 tasks, against the bound by the least hand-over",
    ),
    ("p4_64_peers", "Grants per second to 64 tasks, against the best peer"),
    (
        "p4_processes",
        "Grants per second to 8 processes, against the bound by the least hand-over",
    ),
    (
        "p4_processes_peers",
        "Grants per second to 8 processes, against the best peer",
    ),
    (
        "p4_ring",
        "Grants per second to 8 processes, against a token that goes around without a lock",
    ),
    (
        "p4_ring_peers",
        "Turns per second of a token among 8 processes without a lock, against the best peer's grants",
    ),
    ("p5", "Commands per grant, without renewals"),
    ("p5_wakeups", "Wake-ups of a waiter per grant"),
    (
        "p6",
        "Server time of the script that grows most, with 10,000 waiters, against 10",
    ),
    ("p7", "Longest wait of 64 contenders, 1 ms hold, against the mean wait"),
    ("p7_inversions", "Grants out of order"),
    ("p7_jain", "Jain index of the grants per contender"),
    ("p8", "Time until the last of 1,000 readers is in, against one push"),
    ("p8_scripts", "Scripts until the last of 1,000 readers is in"),
    ("p9", "Bytes in the server per waiter"),
    ("p9_keys_left", "Keys that are left when all is over"),
    (
        "p10",
        "Renewal commands per lock and interval, 1,000 holds, or 10,000 waits for 1,000 locks",
    ),
    (
        "p10_one_lock",
        "Renewal commands per interval, 10,000 waits for one lock",
    ),
    ("kinds_all", "all() of two locks, against two plain locks"),
    ("kinds_at_least", "A lock with a least time, against a plain lock"),
    (
        "runs",
        "Grants per second if one process hands on among its 8 tasks, against one by one",
    ),
    (
        "runs_64",
        "Grants per second if one process hands on among its 64 tasks, against one by one",
    ),
    (
        "runs_hold",
        "Grants per second if one process hands on among its 8 tasks that hold for 1 ms, against one by one",
    ),
    (
        "runs_hold_10",
        "Grants per second if one process hands on among its 8 tasks that hold for 10 ms, against one by one",
    ),
    (
        "masters",
        "CPU time of the busiest of three masters per lock, against one master",
    ),
];

/// The name of a row; its title if it has no name here.
pub fn name<'a>(key: &str, title: &'a str) -> &'a str {
    NAMES
        .iter()
        .find(|(known, _)| *known == key)
        .map_or(title, |(_, name)| name)
}

/// Whether the key belongs to one of these rows.
pub fn is_of(key: &str, rows: &[&str]) -> bool {
    rows.contains(&key.split('_').next().unwrap_or(key))
}
