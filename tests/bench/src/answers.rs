//! What a user asks, answered in words with a figure each: the beginning of the page of results.

use crate::report::shown;

/// A sentence is left out if one of its figures was not measured.
const ANSWERS: [(&str, &[&str]); 6] = [
    (
        "What does a lock cost me?",
        &[
            "Acquire and release of a free lock take {p1} times as long as `SET NX PX` and a checked `DEL`, the least that a \
             lock in Redis does: {p1*p1_floor} us here, where those two take {p1_floor} us.",
            "The server works {p1_server} us of that time.",
            "64 tasks of one process, each with a free lock of its own, acquire and release {p2*p2_floor} locks a second.",
            "A lock that is held takes {p9_held} bytes in the server, and one renewal per third of its lease.",
        ],
    ),
    (
        "How long do I wait?",
        &[
            "From the release in one process until the next process has its guard it takes {p3_us} us, and in one of \
             1,000 cases more than {p3_p999_us} us.",
            "So a lock with nothing to do inside is granted {p4_grants} times a second to 8 tasks, and \
             {p4_processes_grants} times to 8 processes.",
            "If 64 tasks ask for one lock and each holds it for 1 ms, the longest wait is {p7} times the mean wait.",
            "Nobody enters before an earlier request: {p7_inversions} grants were out of order.",
        ],
    ),
    (
        "How many waiters can it take?",
        &[
            "A waiter takes {p9} bytes in the server and {p9_client} bytes in its process, and sends nothing but its share of \
             a renewal, which carries 500 requests.",
            "The script that grows most takes {p6} times as long with 10,000 waiters as with 10.",
            "1,000 readers enter by {p8_scripts} script; the last one is in {p8_us/1000} ms after the release.",
            "10,000 waiters of one process for 1,000 locks keep its core busy for {p10_waits_client} % and the server's for \
             {p10_waits_server} %.",
        ],
    ),
    (
        "What do others cost?",
        &[
            "`rslock`, `rlock` and `distkit` are locks for Redis in Rust that poll, here every millisecond.",
            "A free lock takes {p1_peer_rslock} times the least with rslock, {p1_peer_rlock} with rlock, \
             {p1_peer_distkit} with distkit, and {p1} with fairlock.",
            "A lock for which 8 processes compete is granted {p4_processes_peer_rslock} times a second with rslock, \
             {p4_processes_peer_rlock} with rlock, {p4_processes_peer_distkit} with distkit, and {p4_processes_grants} with \
             fairlock.",
            "The longest of 64 waits is {p7_peer_rslock} times the mean wait with rslock, {p7_peer_rlock} with rlock, \
             {p7_peer_distkit} with distkit, and {p7} with fairlock.",
            "[PEERS.md](PEERS.md) has locks in Go, Java and Node.js.",
        ],
    ),
    (
        "What does a majority of servers cost?",
        &[
            "On three servers acquire and release of a free lock take {quorum_3_fairlock_us} us; {quorum_3_redsync_us} with \
             redsync and {quorum_3_rslock_us} with rslock, both by Redlock.",
            "When one of the three is killed, 8 contenders are without a grant for at most {quorum_3_killed} of a call's \
             time limit, and lose {quorum_3_killed_lost} holds.",
            "Of 8 contenders for one lock the longest wait is {quorum_3_8_waits} times the mean wait; \
             {quorum_3_8_redsync_waits} with redsync and {quorum_3_8_rslock_waits} with rslock.",
        ],
    ),
    (
        "What do more servers bring?",
        &[
            "With the locks on three masters of a cluster, the busiest spends {masters} of the CPU time per lock of a single one.",
        ],
    ),
];

/// The questions with their answers. `number`: a figure of the results.
pub fn section(number: impl Fn(&str) -> Option<f64>) -> String {
    let mut section = String::new();
    for (question, sentences) in ANSWERS {
        let told: Vec<String> = sentences
            .iter()
            .filter_map(|sentence| filled(sentence, &number))
            .collect();
        // Not for the sentences that have no figure.
        let is_known = sentences
            .iter()
            .any(|sentence| sentence.contains('{') && filled(sentence, &number).is_some());
        if is_known {
            section += &format!("**{question}** {}\n\n", told.join(" "));
        }
    }
    section
}

/// The sentence with its figures: `{p1}`, `{p1*p1_floor}`, `{p8_us/1000}`. `None`: one was not measured.
fn filled(sentence: &str, number: &impl Fn(&str) -> Option<f64>) -> Option<String> {
    let mut parts = sentence.split('{');
    let mut text = parts.next()?.to_owned();
    for part in parts {
        let (figure, rest) = part.split_once('}')?;
        text += &shown(value(figure, number)?);
        text += rest;
    }
    Some(text)
}

/// A key, or two of them or a key and a number with `*` or `/` between them.
fn value(figure: &str, number: &impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let operand = |text: &str| text.parse().ok().or_else(|| number(text));
    let Some(at) = figure.find(['*', '/']) else {
        return operand(figure);
    };
    let (left, right) = (operand(&figure[..at])?, operand(&figure[at + 1..])?);
    Some(if figure[at..].starts_with('*') {
        left * right
    } else {
        left / right
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_whose_figure_was_not_measured_is_left_out() {
        let measured = |key: &str| match key {
            "p1" => Some(1.5),
            "p1_floor" => Some(60.0),
            "p8_us" => Some(3600.0),
            _ => None,
        };
        let section = section(measured);
        assert!(
            section.starts_with("**What does a lock cost me?** Acquire"),
            "{section}"
        );
        assert!(
            section.contains("take 1.50 times as long") && section.contains(": 90 us here"),
            "{section}"
        );
        // Neither the server's time, nor a question of which only words are left.
        assert!(
            !section.contains("The server works") && !section.contains("PEERS.md"),
            "{section}"
        );
        assert_eq!(filled("in {p8_us/1000} ms", &measured).as_deref(), Some("in 3.60 ms"));
        assert_eq!(filled("in {p8_us/gone} ms", &measured), None);
    }
}
