//! Why a goal was missed.

use crate::page::Results;
use crate::report::{Goal, shown};

/// What is behind a goal that is missed: the floor that proves it, where one was measured.
pub fn why(results: &Results, key: &str) -> Option<String> {
    let number = |key: &str| results.shown(key);
    match key {
        "p1" => {
            let (floor, ours, theirs) = (
                results.number("p1_floor")?,
                results.number("p1_server")?,
                results.number("p1_floor_server")?,
            );
            Some(format!(
                "Of its {} us the floor spends {} in the server; fairlock spends {}. With all else equal this \
                 alone makes {}. Without the client, our functions make {}, the least that share the state with all other \
                 cases {}, and the least functions with these promises {}. The least client (`least_client.rs`), with the \
                 second of these, makes {}. Ours adds owners, renewals, reconnects, a loss that is told, and a record for \
                 spans and metrics.",
                shown(floor),
                shown(theirs),
                shown(ours),
                shown((floor - theirs + ours) / floor),
                number("p1_scripts"),
                number("p1_shared"),
                number("p1_least"),
                number("p1_least_client"),
            ))
        }
        "p2" => Some(format!(
            "Without the client, and so with whole bursts of calls, our functions reach {} of the floor's rate, the least \
             that share the state with all other cases {}, and the least functions with these promises {}. The second \
             of these, with the least client (`least_client.rs`), reach {}. An owner and a deadline need one command each way; \
             a fair, reentrant and counted queue needs a packed state and the time.",
            number("p2_scripts"),
            number("p2_shared"),
            number("p2_least"),
            number("p2_least_client"),
        )),
        "p3" | "p3_of_bare" => Some(format!(
            "The floor's script is two commands, a hand-over seven: the state is read and written, the \
             time and the head of the queue are asked for, both sorted sets lose a member. From process to process, until \
             the push arrives, a script of these commands takes {} of the floor's time, the least function with these \
             promises {}, the least that shares the state with all other cases {}, and our function {}. With the least client \
             on both ends the third of these takes {}. Every command costs microseconds in a server that has just slept, \
             because nothing of it is in the caches.",
            number("p3_bare"),
            number("p3_least"),
            number("p3_shared"),
            number("p3_scripts"),
            number("p3_least_client"),
        )),
        "p4" | "p4_64" | "p4_processes" => {
            let bound = 1.0 / results.number("p3")?;
            let why = match results.number(key)? < bound {
                true => format!(
                    "Grants of one lock follow one another, so their rate is at most the rate of hand-overs: 1 / {} of the \
                     floor's (p3), {}. The rest of the difference is the call of acquire, which each grant needs besides.",
                    number("p3"),
                    shown(bound),
                ),
                false => {
                    "So many tasks leave the process and the server no time to sleep, so a hand-over takes less than \
                     between two processes that wait for it (p3)."
                        .to_owned()
                }
            };
            let least = results.number(&format!("{key}_least_client")).map(|ratio| {
                format!(
                    " The same tasks with our functions and the least client (`least_client.rs`) make {} of the bound.",
                    shown(ratio),
                )
            });
            Some(why + &least.unwrap_or_default())
        }
        "p4_peers" | "p4_64_peers" | "p4_processes_peers" => Some(format!(
            "Without a queue there is no hand-over: a caller that releases asks again at once and gets the lock, \
             while the others pause between two tries. So a polling lock's rate here is nearly that of p1, one \
             process that serves itself. Row p7 and the picture of waits show what that costs the others. fairlock \
             has {} and {} grants a second for tasks and processes. A token that goes around 8 processes, without any \
             lock, makes {} turns a second here, {} of the best peer's grants (p4_ring_peers): no lock that is handed \
             from process to process reaches the peers' rate on this machine.",
            number("p4_grants"),
            number("p4_processes_grants"),
            number("p4_ring_turns"),
            number("p4_ring_peers"),
        )),
        "p6" => Some(format!(
            "A release that lets the head of the queue in takes {} us with 10 waiters and {} with 10,000. Its \
                 commands alone take {} us and {}: what they grow by grows in every script.",
            number("p6_release_us_10"),
            number("p6_release_us_10000"),
            number("p6_bare_us_10"),
            number("p6_bare_us_10000"),
        )),
        "p8" => {
            let floor = results.number("p8_floor")?;
            let Goal::AtMost(goal) = results.goal(key) else {
                return None;
            };
            Some(format!(
                "One push takes {} us, so the goal leaves {} us for each reader, in the server and the client together. The \
                 one script that grants to all of them takes the server {} us, and a runtime that only wakes 1,000 \
                 of its tasks needs {} us here: the two alone are {} times the push. The same functions with the least client, \
                 which has 1,000 claims in a map and wakes each, make {}. The rest, up to {} us, is 1,000 guards with what \
                 they promise, and other work on the cores.",
                shown(floor),
                shown(floor * goal / 1000.0),
                number("p8_server_us"),
                number("p8_wake_us"),
                number("p8_least"),
                number("p8_least_client"),
                number("p8_us"),
            ))
        }
        "p10_one_lock" => Some(
            "A command renews at most 500 requests, so that no script keeps the server busy for more than about a \
             millisecond or two. 10,000 waits of one process for one lock are therefore 20 commands per interval."
                .to_owned(),
        ),
        _ => why_of_quorum(results, key),
    }
}

/// The same of a quorum.
fn why_of_quorum(results: &Results, key: &str) -> Option<String> {
    let number = |key: &str| results.shown(key);
    match key {
        "quorum_3_8" | "quorum_3_64" | "quorum_5_8" | "quorum_5_64" => Some(format!(
            "Nobody holds the lock for any time here. {}",
            beside_redlock(results, key),
        )),
        "quorum_3_held_8" | "quorum_3_held_64" | "quorum_5_held_8" | "quorum_5_held_64" => {
            let hold = results.number(&format!("{key}_fairlock_holds"))?;
            Some(format!(
                "Each hold lasts {} us here, and {} us with redsync. {} {}",
                shown(hold),
                number(&format!("{key}_redsync_holds")),
                at_most(results, key, "With holds like ours", hold)?,
                beside_redlock(results, key),
            ))
        }
        "quorum_3_links_8" | "quorum_3_links_64" | "quorum_5_links_8" | "quorum_5_links_64" => {
            let hold = results.number(&format!("{key}_fairlock_holds"))?;
            let (links, _) = key.rsplit_once('_')?;
            let ping = results.number(&format!("{links}_ping"))?;
            let grants = |setting| results.number(&format!("{key}_{setting}_grants"));
            let of_best = 1e6 / (hold + ping) / grants("redsync")?.max(grants("redsync-1ms")?);
            Some(format!(
                "A hold lasts {} us, and a PING takes {} us. {} That is {} times redsync's best setting, {}. {}",
                shown(hold),
                shown(ping),
                at_most(results, key, "If each hand-over is one round trip", hold + ping)?,
                shown(of_best),
                verdict(results, key, of_best),
                beside_redlock(results, key),
            ))
        }
        "quorum_3_2_waits" | "quorum_5_2_waits" => Some(format!(
            "{} Of two tasks that only send PING to these servers and wait for all replies, the longest turn is {} times the \
             mean.",
            uneven(results, key)?,
            number(&key.replace("_waits", "_floor_waits")),
        )),
        "quorum_3_8_waits" | "quorum_3_64_waits" | "quorum_5_8_waits" | "quorum_5_64_waits" => uneven(results, key),
        _ => None,
    }
}

/// What a lock makes at most whose grants are so many microseconds apart.
fn at_most(results: &Results, key: &str, when: &str, apart: f64) -> Option<String> {
    let theirs = format!("{key}_redsync_grants");
    Some(format!(
        "{when} no lock can make more than {} grants a second, which is {} times the {} of redsync.",
        shown(1e6 / apart),
        shown(1e6 / apart / results.number(&theirs)?),
        results.shown(&theirs),
    ))
}

/// Why some of the waits are long where nobody holds for any time.
fn uneven(results: &Results, key: &str) -> Option<String> {
    let (contest, _) = key.rsplit_once('_')?;
    let (servers, contenders) = contest.rsplit_once('_')?;
    Some(format!(
        "There is a grant every {} us. Where the contenders hold the lock for 1 ms, so that a pause of the machine counts for \
         less, the longest wait is {} times the mean wait.",
        shown(1e6 / results.number(&format!("{contest}_fairlock_grants"))?),
        results.shown(&format!("{servers}_held_{contenders}_waits")),
    ))
}

/// What it proves that no lock that is handed on can be better than that.
fn verdict(results: &Results, key: &str, bound: f64) -> &'static str {
    match results.goal(key) {
        Goal::AtLeast(goal) if bound < goal => "so the goal is out of reach of any lock that is handed on",
        _ => "so nothing here proves the goal out of reach",
    }
}

/// Why a lock of a majority without a queue makes many grants.
fn beside_redlock(results: &Results, key: &str) -> String {
    let number = |of: &str| results.shown(&format!("{key}_{of}"));
    let ring = results.number(&format!("{key}_ring")).map(|ratio| {
        format!(
            " A token that goes around as many tasks over these servers, without any lock, makes {} of the best peer's grants \
             ({key}_ring), {}.",
            shown(ratio),
            verdict(results, key, ratio),
        )
    });
    format!(
        "Redlock has no queue, so a caller that releases asks again at once and gets the lock, while the others pause. The longest \
         wait is {} times the mean wait with redsync, {} with redsync that asks every millisecond, {} with rslock and {} with \
         fairlock, whose callers enter in turn.{}",
        number("redsync_waits"),
        number("redsync-1ms_waits"),
        number("rslock_waits"),
        number("waits"),
        ring.unwrap_or_default(),
    )
}
