//! The numbers: medians of rounds with their spread, as a table and as a file that other commands read.

use crate::env::{Machine, date, load};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    AtMost(f64),
    AtLeast(f64),
    None,
}

impl Goal {
    /// `None`: there is no goal.
    pub fn met(self, number: f64) -> Option<bool> {
        match self {
            Self::AtMost(most) => Some(number <= most),
            Self::AtLeast(least) => Some(number >= least),
            Self::None => None,
        }
    }

    fn json(self) -> Option<Value> {
        match self {
            Self::AtMost(most) => Some(json!({ "at_most": most })),
            Self::AtLeast(least) => Some(json!({ "at_least": least })),
            Self::None => None,
        }
    }
}

/// What was measured once in each round.
struct Number {
    key: String,
    /// What a row is about; empty beside one.
    title: String,
    unit: String,
    goal: Goal,
    middle: f64,
    spread: [f64; 2],
}

/// A line of the table.
pub struct Row<'a> {
    pub key: &'a str,
    pub goal: Goal,
    pub number: f64,
    pub spread: [f64; 2],
}

pub struct Report {
    machine: Machine,
    measured: Map<String, Value>,
    numbers: Vec<Number>,
    samples: BTreeMap<String, Vec<f64>>,
    listings: BTreeMap<String, Vec<Value>>,
    /// Of the machine as it was at the end.
    ended: Option<Value>,
}

impl Report {
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            measured: Map::new(),
            numbers: Vec::new(),
            samples: BTreeMap::new(),
            listings: BTreeMap::new(),
            ended: None,
        }
    }

    /// What follows is of this row.
    pub fn begin(&mut self, row: &str) {
        let of = json!({ "date": date(), "load": load() });
        self.measured.insert(row.to_owned(), of);
    }

    pub fn end(&mut self) {
        self.ended = Some(self.machine.json());
    }

    /// A line of the table: a ratio, or a count.
    pub fn row(&mut self, key: &str, title: &str, goal: Goal, rounds: &[f64]) {
        self.add(key, title, "", goal, rounds);
    }

    /// What a row was made of, or what others do in its place.
    pub fn beside(&mut self, key: &str, unit: &str, rounds: &[f64]) {
        self.add(key, "", unit, Goal::None, rounds);
    }

    /// Many values, for a picture: such as [`quantiles`] of a distribution.
    pub fn samples(&mut self, key: &str, values: Vec<f64>) {
        self.samples.insert(key.to_owned(), values);
    }

    /// What has tables of its own. The key begins with the row's name, like that of a number.
    pub fn listing(&mut self, key: &str, entries: Vec<Value>) {
        self.listings.insert(key.to_owned(), entries);
    }

    fn add(&mut self, key: &str, title: &str, unit: &str, goal: Goal, rounds: &[f64]) {
        assert!(
            !rounds.is_empty() && rounds.iter().all(|x| x.is_finite()),
            "{key}: {rounds:?}"
        );
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        self.numbers.push(Number {
            key: key.to_owned(),
            title: title.to_owned(),
            unit: unit.to_owned(),
            goal,
            middle: median(rounds),
            spread: [sorted[0], sorted[sorted.len() - 1]],
        });
    }

    /// The lines of the table that say something by themselves.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let rows = self.numbers.iter().filter(|number| !number.title.is_empty());
        rows.map(|number| Row {
            key: &number.key,
            goal: number.goal,
            number: number.middle,
            spread: number.spread,
        })
    }

    /// Everything: a flat object of key and number, and beside them what they mean.
    pub fn json(&self) -> Value {
        let mut all = Map::new();
        let (mut spread, mut units, mut goals, mut titles) = (Map::new(), Map::new(), Map::new(), Map::new());
        for number in &self.numbers {
            let key = &number.key;
            all.insert(key.clone(), json!(number.middle));
            spread.insert(key.clone(), json!(number.spread));
            units.insert(key.clone(), json!(number.unit));
            if !number.title.is_empty() {
                titles.insert(key.clone(), json!(number.title));
            }
            if let Some(goal) = number.goal.json() {
                goals.insert(key.clone(), goal);
            }
        }
        for (name, object) in [
            ("spread", spread),
            ("units", units),
            ("goals", goals),
            ("titles", titles),
        ] {
            all.insert(name.to_owned(), Value::Object(object));
        }
        for (key, entries) in &self.listings {
            all.insert(key.clone(), json!(entries));
        }
        all.insert("samples".to_owned(), json!(self.samples));
        all.insert("measured".to_owned(), Value::Object(self.measured.clone()));
        all.insert(
            "machine".to_owned(),
            self.ended.clone().unwrap_or_else(|| self.machine.json()),
        );
        Value::Object(all)
    }

    /// Writes it to the file, which keeps what it has of rows that were not measured now.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let former = match std::fs::read(path) {
            Ok(text) => serde_json::from_slice(&text)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Value::Object(Map::new()),
            Err(error) => return Err(error),
        };
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let text = serde_json::to_string_pretty(&merged(former, self.json()))?;
        std::fs::write(path, text + "\n")
    }

    pub fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.machine.summary());
        for number in &self.numbers {
            let [least, greatest] = number.spread.map(shown);
            let (key, middle, unit) = (&number.key, shown(number.middle), &number.unit);
            let goal = match (number.goal, number.goal.met(number.middle)) {
                (Goal::AtMost(most), Some(met)) => format!("goal <= {}: {}", shown(most), verdict(met)),
                (Goal::AtLeast(least), Some(met)) => format!("goal >= {}: {}", shown(least), verdict(met)),
                _ => String::new(),
            };
            let what = if number.title.is_empty() { unit } else { &number.title };
            let spread = format!("({least} to {greatest})");
            let indent = if number.title.is_empty() { "  " } else { "" };
            let line = format!(
                "{:<32} {middle:>9} {spread:<24} {goal:<21} {what}",
                format!("{indent}{key}")
            );
            writeln!(text, "{}", line.trim_end()).expect("memory");
        }
        text
    }
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// Three digits that count.
pub fn shown(number: f64) -> String {
    match number.abs() {
        x if x >= 100.0 || x.fract() == 0.0 => format!("{number:.0}"),
        x if x >= 10.0 => format!("{number:.1}"),
        x if x >= 0.1 => format!("{number:.2}"),
        _ => format!("{number:.4}"),
    }
}

/// The row that a key belongs to: `p1` of `p1_floor`.
fn row_of(key: &str) -> &str {
    key.split('_').next().unwrap_or(key)
}

/// What a file had, but for the rows of a new run, and the new run's.
fn merged(former: Value, new: Value) -> Value {
    let (Value::Object(former), Value::Object(mut new)) = (former, new.clone()) else {
        return new;
    };
    let measured: Vec<String> = match new.get("measured") {
        Some(Value::Object(rows)) => rows.keys().cloned().collect(),
        _ => Vec::new(),
    };
    let is_new = |key: &str| measured.iter().any(|row| row == row_of(key));
    for (key, value) in former {
        match (new.get_mut(&key), value) {
            // The machine of the last run.
            (Some(_), _) if key == "machine" => {}
            (Some(Value::Object(of)), Value::Object(value)) => {
                for (key, value) in value {
                    if !is_new(&key) {
                        of.insert(key, value);
                    }
                }
            }
            (None, value) if !is_new(&key) => {
                new.insert(key, value);
            }
            _ => {}
        }
    }
    Value::Object(new)
}

pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value at a share of the sorted values, between the two nearest.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_of_sorted(&sorted, share)
}

fn quantile_of_sorted(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

/// So many quantiles, from the least value to the greatest: a picture's distribution.
pub fn quantiles(values: &[f64], n: usize) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    (0..n)
        .map(|i| quantile_of_sorted(&sorted, i as f64 / (n - 1) as f64))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_the_nearest_values() {
        let values = [5.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&values), 2.5);
        assert_eq!(quantile(&values, 0.0), 1.0);
        assert_eq!(quantile(&values, 1.0), 5.0);
        assert!((quantile(&values, 0.9) - 4.4).abs() < 1e-9);
        assert_eq!(median(&[7.0]), 7.0);
        assert_eq!(quantiles(&[4.0, 0.0], 5), [0.0, 1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn goals_are_met_at_their_bounds() {
        assert_eq!(Goal::AtMost(1.1).met(1.1), Some(true));
        assert_eq!(Goal::AtMost(1.1).met(1.11), Some(false));
        assert_eq!(Goal::AtLeast(0.7).met(0.7), Some(true));
        assert_eq!(Goal::AtLeast(0.7).met(0.69), Some(false));
        assert_eq!(Goal::None.met(0.0), None);
    }

    #[test]
    fn a_run_of_some_rows_keeps_the_others() {
        let former = json!({
            "p1": 1.0, "p1_gone": 2.0, "p10": 3.0, "mix_50": 9.0, "p1_list": [1], "peers_locks": [1, 2],
            "spread": { "p1": [1.0, 1.0], "p1_gone": [2.0, 2.0], "p10": [3.0, 3.0] },
            "measured": { "p1": "then", "p10": "then" }, "machine": { "load_before": 1.0, "gone": 0 },
        });
        let new = json!({
            "p1": 1.5, "spread": { "p1": [1.4, 1.6] }, "measured": { "p1": "now" }, "machine": { "load_before": 2.0 },
        });
        let expected = json!({
            "p1": 1.5, "p10": 3.0, "mix_50": 9.0, "peers_locks": [1, 2],
            "spread": { "p1": [1.4, 1.6], "p10": [3.0, 3.0] },
            "measured": { "p1": "now", "p10": "then" }, "machine": { "load_before": 2.0 },
        });
        assert_eq!(merged(former, new.clone()), expected);
        assert_eq!(merged(json!({}), new.clone()), new);
    }

    #[test]
    fn numbers_are_shown_with_the_digits_that_count() {
        assert_eq!(shown(1234.5), "1234");
        assert_eq!(shown(12.345), "12.3");
        assert_eq!(shown(1.0), "1");
        assert_eq!(shown(0.98765), "0.99");
        assert_eq!(shown(0.01234), "0.0123");
    }
}
