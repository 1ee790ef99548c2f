//! The table at the end.

use crate::judge::{
    Absence, Arrival, Breach, conflicting_tokens, overlaps, passed_by_arrival, passed_by_sight, tokens_out_of_order,
    votes_of_the_absent,
};
use crate::measure::{hand_overs, percentile, waits};
use crate::record::{History, Request};
use crate::stage::{Halt, Kill, Scene};
use crate::view::Paint;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

/// Breaches of one kind that are described one by one.
const DESCRIBED: usize = 3;

pub(crate) struct Report {
    pub(crate) text: String,
    /// What was broken, in a line each.
    pub(crate) broken: Vec<String>,
}

/// What is to be judged, beside the scene.
pub(crate) struct Case<'a> {
    pub(crate) kills: &'a [Kill],
    /// Without them the order is judged by what was seen in the queue.
    pub(crate) arrivals: Option<&'a HashMap<String, Arrival>>,
    pub(crate) majority: Option<Majority<'a>>,
    pub(crate) lease: Duration,
    pub(crate) halt: Option<&'a Halt>,
}

/// The servers of a quorum.
pub(crate) struct Majority<'a> {
    pub(crate) servers: usize,
    pub(crate) absences: &'a [Absence],
    /// How long after their restart the killed servers voted again, in ns.
    pub(crate) returned: Option<u64>,
}

/// Judges what happened.
pub(crate) fn report(scene: &Scene, case: &Case<'_>, paint: Paint) -> Report {
    let history = scene.history();
    let requests = &history.requests;
    let mut table = Table::new(paint);
    let of_kinds = format!("{} read, {} write", history.reads, history.writes);
    table.row("grants", &history.grants().to_string(), &of_kinds);
    order(&mut table, scene, case, requests);
    table.breaches(
        "overlaps",
        &overlaps(requests),
        "conflicting holds at one time",
        requests,
    );
    match &case.majority {
        None => table.breaches("tokens out of order", &tokens_out_of_order(requests), "", requests),
        Some(majority) => {
            table.breaches("tokens out of order", &conflicting_tokens(requests), "", requests);
            votes(&mut table, requests, majority);
        }
    }
    match case.halt {
        None => still_open(&mut table, &history),
        Some(Halt::Stuck(what)) => table.broken.push(what.clone()),
        // Nobody was told to come to an end.
        Some(Halt::Trouble(_)) => {}
    }
    let (lost, first) = (history.lost.len(), first_of(&history.lost));
    if case.majority.is_some() {
        // That is what a quorum is for.
        table.judged("holds lost", &lost.to_string(), &first, lost > 0);
        table
            .broken
            .extend((lost > 0).then(|| format!("{lost} holds were lost, {first}")));
    } else {
        table.row("holds lost", &lost.to_string(), &first);
    }
    table.row("errors", &history.errors.len().to_string(), &first_of(&history.errors));
    times(&mut table, requests, case.kills);
    if let Some(Majority {
        returned: Some(after), ..
    }) = case.majority
    {
        let quarantine = millis(case.lease.as_nanos() as u64);
        let beside = format!("after the restart of servers 1 and 2; their quarantine: {quarantine}");
        table.row("all vote again", &millis(after), &beside);
    }
    for kill in case.kills {
        recovery(&mut table, kill);
    }
    Report {
        text: table.text,
        broken: table.broken,
    }
}

fn order(table: &mut Table, scene: &Scene, case: &Case<'_>, requests: &[Request]) {
    let (passed, placed) = match case.arrivals {
        Some(arrivals) => {
            let (passed, placed) = passed_by_arrival(requests, arrivals);
            if placed * 2 < requests.len() {
                table.broken.push(format!(
                    "the judge of the order is blind: MONITOR placed {placed} of {} requests",
                    requests.len()
                ));
            }
            (
                passed,
                format!("{placed} of {} requests placed by MONITOR", requests.len()),
            )
        }
        None => {
            let (passed, seen) = passed_by_sight(requests, &scene.sights());
            let queue = match case.majority {
                None => "in the queue",
                Some(_) => "at one place of a majority",
            };
            (passed, format!("{seen} of {} requests seen {queue}", requests.len()))
        }
    };
    table.breaches("order inversions", &passed, &placed, requests);
}

fn votes(table: &mut Table, requests: &[Request], majority: &Majority<'_>) {
    let told: Vec<_> = requests.iter().filter_map(|request| request.votes).collect();
    let of = majority.servers;
    let all = told.iter().filter(|votes| **votes == of).count();
    let least = told.iter().min().copied().unwrap_or_default();
    let beside = format!("servers kept a hold at its end; {of} kept {all} of {}", told.len());
    table.row("fewest votes", &least.to_string(), &beside);
    let absent = votes_of_the_absent(requests, of, majority.absences);
    let is_bad = !absent.is_empty();
    if let Some(first) = absent.first() {
        let begun = begun(requests);
        let what = described(&requests[*first], begun);
        table.broken.push(format!("a server voted in its quarantine: {what}"));
    }
    let beside = "of servers that were away or in quarantine";
    table.judged("false votes", &absent.len().to_string(), beside, is_bad);
}

fn begun(requests: &[Request]) -> u64 {
    requests.iter().map(|request| request.asked).min().unwrap_or_default()
}

fn first_of(messages: &[String]) -> String {
    messages
        .first()
        .map_or_else(String::new, |first| format!("first: {first}"))
}

fn still_open(table: &mut Table, history: &History) {
    let open = history.open().count();
    let is_bad = open > 0;
    if is_bad {
        table
            .broken
            .push(format!("{open} requests of live processes never ended"));
    }
    table.judged("never granted", &open.to_string(), "of live processes", is_bad);
}

fn times(table: &mut Table, requests: &[Request], kills: &[Kill]) {
    if let Some(waits) = waits(requests) {
        table.row(
            "longest wait",
            &millis(waits.longest_ns),
            &format!("mean {}", millis(waits.mean_ns)),
        );
    }
    let after = |kill: &Kill| kill.at..kill.at + kill.bound.as_nanos() as u64 * 3 / 2;
    let after_kills: Vec<_> = kills.iter().map(after).collect();
    let hand_overs = hand_overs(requests, &after_kills);
    if let (Some(p50), Some(p99)) = (percentile(&hand_overs, 50), percentile(&hand_overs, 99)) {
        let count = format!("p99 {}, {} from process to process", millis(p99), hand_overs.len());
        table.row("hand-over p50", &millis(p50), &count);
    }
}

fn recovery(table: &mut Table, kill: &Kill) {
    // Twice the bound would be a breach; a machine that is slow is not.
    let limit = kill.bound + (kill.bound / 2).max(Duration::from_secs(1));
    let took = kill.recovered.map(|at| at.saturating_sub(kill.at));
    let is_bad = took.is_none_or(|took| u128::from(took) > limit.as_nanos());
    let value = took.map_or_else(|| "never".to_owned(), millis);
    if is_bad {
        let after = took.map_or_else(|| "never".to_owned(), |took| format!("only after {}", millis(took)));
        let what = format!("recovery: after the kill of {} the lock went on {after}", kill.what);
        table.broken.push(what);
    }
    let beside = format!(
        "at most {} and a hand-over; killed: {}",
        millis(kill.bound.as_nanos() as u64),
        kill.what
    );
    table.judged("recovery", &value, &beside, is_bad);
}

fn millis(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

struct Table {
    text: String,
    paint: Paint,
    broken: Vec<String>,
}

impl Table {
    fn new(paint: Paint) -> Self {
        let (text, broken) = (String::new(), Vec::new());
        Self { text, paint, broken }
    }

    fn row(&mut self, name: &str, value: &str, beside: &str) {
        let row = format!("  {name:<20} {value:>9}   {beside}");
        let _ = writeln!(self.text, "{}", row.trim_end());
    }

    /// A row that says whether all is well.
    fn judged(&mut self, name: &str, value: &str, beside: &str, is_bad: bool) {
        let value = format!("{value:>9}");
        let value = if is_bad {
            self.paint.bad(&value)
        } else {
            self.paint.good(&value)
        };
        let row = format!("  {name:<20} {value}   {beside}");
        let _ = writeln!(self.text, "{}", row.trim_end());
    }

    fn breaches(&mut self, name: &str, found: &[Breach], beside: &str, requests: &[Request]) {
        self.judged(name, &found.len().to_string(), beside, !found.is_empty());
        let begun = begun(requests);
        for (first, second) in found.iter().take(DESCRIBED) {
            let (first, second) = (&requests[*first], &requests[*second]);
            self.broken.push(format!(
                "{name}: {}; and {}",
                described(first, begun),
                described(second, begun)
            ));
        }
        if found.len() > DESCRIBED {
            self.broken.push(format!("{name}: {} more", found.len() - DESCRIBED));
        }
    }
}

fn described(request: &Request, begun: u64) -> String {
    let time = |at: u64| format!("{:.4} s", at.saturating_sub(begun) as f64 / 1e9);
    let entered = request.entered.map_or_else(
        || "did not enter".to_owned(),
        |at| {
            format!(
                "entered {} with token {}, held until {}",
                time(at),
                request.token,
                time(request.held_until)
            )
        },
    );
    format!(
        "{} by task {} of process {} asked {}, {entered}",
        request.mode,
        request.task,
        request.process,
        time(request.asked),
    )
}
