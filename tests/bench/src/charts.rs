//! The pictures of the page of results.

use crate::page::Results;
use crate::report::{quantile, shown};
use crate::svg::{Axis, Chart, Line, Scale};
use std::fmt::Write;

pub struct Picture {
    pub file: &'static str,
    pub title: &'static str,
    /// What to see, in numbers.
    pub text: String,
    pub svg: String,
}

impl Picture {
    fn of(file: &'static str, chart: &Chart<'static>, text: String) -> Self {
        Self {
            file,
            title: chart.title,
            text,
            svg: chart.svg(),
        }
    }
}

/// Those whose rows were measured.
pub fn all(results: &Results) -> Vec<Picture> {
    [hand_over(results), waits(results), cost(results)]
        .into_iter()
        .flatten()
        .collect()
}

/// `None`: that row was not measured.
fn hand_over(results: &Results) -> Option<Picture> {
    let (ours, floor) = (results.samples("p3")?, results.samples("p3_floor")?);
    let text = format!(
        "The time from the call of release in one process until another process has the guard, beside the time of \
         one script that publishes until its push arrives. Median {} against {} us; 99 % took at most {} against \
         {} us.",
        shown(quantile(&ours, 0.5)),
        shown(quantile(&floor, 0.5)),
        shown(quantile(&ours, 0.99)),
        shown(quantile(&floor, 0.99)),
    );
    let lines = vec![distribution("fairlock", &ours), distribution("floor", &floor)];
    let chart = shares("Hand-over, against the floor", "us", lines);
    Some(Picture::of("hand-over.svg", &chart, text))
}

fn waits(results: &Results) -> Option<Picture> {
    let ours = results.samples("p7_waits")?;
    let mut lines = vec![distribution("fairlock", &ours)];
    let mut text = format!(
        "64 contenders for one lock, each holding it for about 1 ms. Mean wait and longest wait, in ms: fairlock {} and {}",
        results.shown("p7_mean"),
        shown(quantile(&ours, 1.0)),
    );
    for peer in ["rslock", "rlock", "distkit"] {
        if let Some(waits) = results.samples(&format!("p7_peer_{peer}_waits")) {
            lines.push(distribution(peer, &waits));
            let mean = results.shown(&format!("p7_peer_{peer}_mean"));
            write!(text, "; {peer} {mean} and {}", shown(quantile(&waits, 1.0))).expect("memory");
        }
    }
    text += ". The others poll (every millisecond here, far more often than their defaults): many of them enter at \
     once because they come back first, and others wait for long. A wait counts only if it begins within the \
     slice, so the end of the slice cuts the longest waits of the others short.";
    let chart = shares("Waits of 64 contenders: fair against polling", "ms", lines);
    Some(Picture::of("waits.svg", &chart, text))
}

fn cost(results: &Results) -> Option<Picture> {
    let lengths = results.samples("p6_lengths")?;
    let mut lines = Vec::new();
    for (key, name) in [
        ("p6_queue", "queue"),
        ("p6_release", "release"),
        ("p6_renew", "renew"),
        ("p6_try", "try"),
    ] {
        let points = lengths.iter().copied().zip(results.samples(key)?).collect();
        lines.push(Line {
            name,
            points,
            dots: true,
        });
    }
    let chart = Chart {
        title: "Server time of a script, by the length of the queue",
        x: Axis {
            label: "waiting requests",
            scale: Scale::Logarithmic,
            unit: "",
        },
        y: Axis {
            label: "us per call in the server",
            scale: Scale::Linear,
            unit: "",
        },
        lines,
    };
    let text = "queue: a newcomer takes its place at the tail; release: the holder leaves, the head enters and gets a \
         message; renew: a waiter in the middle; try: a newcomer gets no lock. The server itself measures the \
         time."
        .to_owned();
    Some(Picture::of("cost.svg", &chart, text))
}

/// Which share of the values is at most so great, from quantiles at even distances.
fn distribution<'a>(name: &'a str, quantiles: &[f64]) -> Line<'a> {
    let last = (quantiles.len() - 1) as f64;
    let points = quantiles
        .iter()
        .enumerate()
        .map(|(n, value)| (*value, n as f64 / last * 100.0));
    Line {
        name,
        points: points.collect(),
        dots: false,
    }
}

fn shares<'a>(title: &'a str, label: &'a str, lines: Vec<Line<'a>>) -> Chart<'a> {
    let x = Axis {
        label,
        scale: Scale::Logarithmic,
        unit: "",
    };
    let y = Axis {
        label: "share that took at most so long",
        scale: Scale::Linear,
        unit: "%",
    };
    Chart { title, x, y, lines }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_make_a_distribution() {
        let line = distribution("x", &[1.0, 3.0, 7.0]);
        assert_eq!(line.points, [(1.0, 0.0), (3.0, 50.0), (7.0, 100.0)]);
    }
}
