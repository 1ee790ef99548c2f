//! The table at the end.

use crate::judge::{Arrival, Breach, overlaps, passed_by_arrival, passed_by_sight, tokens_out_of_order};
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

/// Judges what happened. Without arrivals, by what was seen in the queue.
pub(crate) fn report(
    scene: &Scene,
    kills: &[Kill],
    arrivals: Option<&HashMap<String, Arrival>>,
    lease: Duration,
    halt: Option<&Halt>,
    paint: Paint,
) -> Report {
    let history = scene.history();
    let requests = &history.requests;
    let mut table = Table::new(paint);
    let of_kinds = format!("{} read, {} write", history.reads, history.writes);
    table.row("grants", &history.grants().to_string(), &of_kinds);
    let (passed, placed) = match arrivals {
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
            let sights = scene.sights();
            let by_owner = sights
                .iter()
                .filter_map(|(request, sight)| Some((request.splitn(3, ':').nth(2)?, *sight)));
            let by_owner = by_owner.map(|(owner, sight)| (owner.to_owned(), sight)).collect();
            let (passed, seen) = passed_by_sight(requests, &by_owner);
            (
                passed,
                format!("{seen} of {} requests seen in the queue", requests.len()),
            )
        }
    };
    table.breaches("order inversions", &passed, &placed, requests);
    table.breaches(
        "overlaps",
        &overlaps(requests),
        "conflicting holds at one time",
        requests,
    );
    table.breaches("tokens out of order", &tokens_out_of_order(requests), "", requests);
    match halt {
        None => still_open(&mut table, &history),
        Some(Halt::Stuck(what)) => table.broken.push(what.clone()),
        // Nobody was told to come to an end.
        Some(Halt::Trouble(_)) => {}
    }
    table.row("holds lost", &history.lost.len().to_string(), &first_of(&history.lost));
    table.row("errors", &history.errors.len().to_string(), &first_of(&history.errors));
    times(&mut table, requests, kills, lease);
    for kill in kills {
        recovery(&mut table, kill);
    }
    Report {
        text: table.text,
        broken: table.broken,
    }
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

fn times(table: &mut Table, requests: &[Request], kills: &[Kill], lease: Duration) {
    if let Some(waits) = waits(requests) {
        table.row(
            "longest wait",
            &millis(waits.longest_ns),
            &format!("mean {}", millis(waits.mean_ns)),
        );
    }
    let kills: Vec<_> = kills.iter().map(|kill| kill.at).collect();
    let hand_overs = hand_overs(requests, &kills, lease.as_nanos() as u64);
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
        "at most {}; killed: {}",
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
        let begun = requests.iter().map(|request| request.asked).min().unwrap_or_default();
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
