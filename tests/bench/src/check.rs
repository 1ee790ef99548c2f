//! The regression gate: the ratios of the quick rows beside those kept in the repository. Its machine is noisy, so each has
//! a tolerance, what looks worse is measured once more, and nothing fails unless it is told to.

use crate::Run;
use crate::report::{Goal, Report, Row, shown};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// What to compare with.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The kept ratios
    #[arg(long, default_value = "tests/bench/baseline.json")]
    baseline: PathBuf,
    /// Keep the ratios of this run instead of comparing
    #[arg(long)]
    keep: bool,
    /// Exit with 1 if a ratio is worse than its tolerance allows
    #[arg(long)]
    strict: bool,
    /// The server's program
    #[arg(long, default_value = "redis-server")]
    server: String,
}

/// Those that are measured in seconds.
const ROWS: [&str; 7] = ["p1", "p2", "p3", "p5", "p6", "p8", "p9"];

/// Ratios and counts that do not swing with the machine as tails do.
const KEYS: [&str; 9] = ["p1", "p2", "p3", "p5", "p5_wakeups", "p6", "p8", "p8_scripts", "p9"];

const LEAST_TOLERANCE: f64 = 0.15;
const MOST_TOLERANCE: f64 = 1.0;

pub async fn run(args: Args) -> ExitCode {
    let failed = |error: &dyn std::fmt::Display| {
        eprintln!("bench: {}: {error}", args.baseline.display());
        ExitCode::from(2)
    };
    if args.keep {
        let kept = kept(&measured(&args, &ROWS).await);
        let text = serde_json::to_string_pretty(&kept).expect("JSON") + "\n";
        return match std::fs::write(&args.baseline, text) {
            Ok(()) => {
                println!(
                    "kept {} ratios in {}",
                    kept.as_object().map_or(0, Map::len),
                    args.baseline.display()
                );
                ExitCode::SUCCESS
            }
            Err(error) => failed(&error),
        };
    }
    let text = match std::fs::read(&args.baseline) {
        Ok(text) => text,
        Err(error) => return failed(&error),
    };
    let baseline: Value = match serde_json::from_slice(&text) {
        Ok(baseline) => baseline,
        Err(error) => return failed(&error),
    };
    let mut lines = compared(&baseline, &measured(&args, &ROWS).await);
    let again: Vec<&str> = ROWS
        .into_iter()
        .filter(|row| lines.iter().any(|line| line.is_worse_of(row)))
        .collect();
    if !again.is_empty() {
        eprintln!("worse than kept, so once more: {}", again.join(", "));
        let second = compared(&baseline, &measured(&args, &again).await);
        for line in &mut lines {
            if let Some(second) = second.iter().find(|second| second.key == line.key) {
                line.take_better(second);
            }
        }
    }
    println!("{:<12} {:>9} {:>9} {:>9}", "", "kept", "now", "worse by");
    for line in &lines {
        println!("{}", line.shown());
    }
    let worse: Vec<&str> = lines
        .iter()
        .filter(|line| line.verdict() == Verdict::Worse)
        .map(|line| line.key.as_str())
        .collect();
    if worse.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!(
        "warning: worse than {} allows, twice: {}",
        args.baseline.display(),
        worse.join(", ")
    );
    if args.strict {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

async fn measured(args: &Args, rows: &[&str]) -> Report {
    crate::measured(Run::quick(rows, &args.server)).await
}

/// The file: each key's ratio, and how much worse it may be, as a share. That is what its rounds differed by when it was
/// kept, within bounds.
fn kept(report: &Report) -> Value {
    let mut all = Map::new();
    for Row {
        key, number, spread, ..
    } in report.rows().filter(|row| KEYS.contains(&row.key))
    {
        let off = (spread[1] / number - 1.0).max(1.0 - spread[0] / number);
        let tolerance = (off.clamp(LEAST_TOLERANCE, MOST_TOLERANCE) * 100.0).round() / 100.0;
        let ratio = (number * 1000.0).round() / 1000.0;
        all.insert(key.to_owned(), json!({ "ratio": ratio, "tolerance": tolerance }));
    }
    Value::Object(all)
}

#[derive(Clone, Debug, PartialEq)]
struct Line {
    key: String,
    kept: f64,
    tolerance: f64,
    now: f64,
    more_is_better: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Better,
    Same,
    Worse,
}

fn compared(baseline: &Value, report: &Report) -> Vec<Line> {
    compared_rows(baseline, report.rows())
}

fn compared_rows<'a>(baseline: &Value, rows: impl Iterator<Item = Row<'a>>) -> Vec<Line> {
    let line = |row: Row<'a>| {
        let of = |name: &str| baseline.get(row.key)?.get(name)?.as_f64();
        Some(Line {
            key: row.key.to_owned(),
            kept: of("ratio")?,
            tolerance: of("tolerance")?,
            now: row.number,
            more_is_better: matches!(row.goal, Goal::AtLeast(_)),
        })
    };
    rows.filter_map(line).collect()
}

impl Line {
    /// The factor by which it is worse; below 1 if it is better.
    fn worse_by(&self) -> f64 {
        match (self.now == self.kept, self.more_is_better) {
            // Also of zeros.
            (true, _) => 1.0,
            (false, true) => self.kept / self.now,
            (false, false) => self.now / self.kept,
        }
    }

    fn verdict(&self) -> Verdict {
        let worse_by = self.worse_by();
        if worse_by > 1.0 + self.tolerance {
            Verdict::Worse
        } else if worse_by * (1.0 + self.tolerance) < 1.0 {
            Verdict::Better
        } else {
            Verdict::Same
        }
    }

    fn is_worse_of(&self, row: &str) -> bool {
        self.key.split('_').next() == Some(row) && self.verdict() == Verdict::Worse
    }

    /// Noise makes worse what it does not make better.
    fn take_better(&mut self, other: &Self) {
        if other.worse_by() < self.worse_by() {
            self.now = other.now;
        }
    }

    fn shown(&self) -> String {
        let verdict = match self.verdict() {
            Verdict::Better => "better: `bench check --keep` would keep it",
            Verdict::Same => "",
            Verdict::Worse => "WORSE",
        };
        let off = format!("{:+.0} %", (self.worse_by() - 1.0) * 100.0);
        let allowed = format!("(allowed {:+.0} %)", self.tolerance * 100.0);
        let line = format!(
            "{:<12} {:>9} {:>9} {off:>9} {allowed:<17} {verdict}",
            self.key,
            shown(self.kept),
            shown(self.now)
        );
        line.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &'static str, goal: Goal, number: f64) -> Row<'static> {
        Row {
            key,
            goal,
            number,
            spread: [number, number],
        }
    }

    #[test]
    fn a_ratio_is_worse_beyond_its_tolerance_only() {
        let baseline = json!({
            "p1": { "ratio": 1.0, "tolerance": 0.2 }, "p2": { "ratio": 0.8, "tolerance": 0.25 }, "gone": { "ratio": 1.0 },
        });
        let verdict = |row: Row<'static>| {
            let lines = compared_rows(&baseline, std::iter::once(row));
            lines.first().map(Line::verdict)
        };
        let most = Goal::AtMost(1.1);
        assert_eq!(verdict(row("p1", most, 1.19)), Some(Verdict::Same));
        assert_eq!(verdict(row("p1", most, 1.21)), Some(Verdict::Worse));
        assert_eq!(verdict(row("p1", most, 0.84)), Some(Verdict::Same));
        assert_eq!(verdict(row("p1", most, 0.82)), Some(Verdict::Better));
        let least = Goal::AtLeast(0.7);
        assert_eq!(verdict(row("p2", least, 0.65)), Some(Verdict::Same));
        assert_eq!(verdict(row("p2", least, 0.63)), Some(Verdict::Worse));
        assert_eq!(verdict(row("p2", least, 1.1)), Some(Verdict::Better));
        assert_eq!(verdict(row("p3", most, 9.0)), None);
    }

    #[test]
    fn the_better_of_two_runs_counts() {
        let line = |now, more_is_better| Line {
            key: "p8_scripts".to_owned(),
            kept: 1.0,
            tolerance: 0.2,
            now,
            more_is_better,
        };
        let mut first = line(1.5, false);
        assert!(first.is_worse_of("p8") && !first.is_worse_of("p1"));
        first.take_better(&line(1.1, false));
        assert_eq!(first.verdict(), Verdict::Same);
        first.take_better(&line(3.0, false));
        assert_eq!(first.now, 1.1);
        let mut rate = line(0.5, true);
        rate.take_better(&line(0.9, true));
        assert_eq!(rate.now, 0.9);
        assert_eq!(
            Line {
                kept: 0.0,
                now: 0.0,
                ..rate
            }
            .worse_by(),
            1.0
        );
    }
}
