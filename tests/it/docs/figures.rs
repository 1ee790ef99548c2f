//! The figures of the prose are those of the benchmark. A figure in a page is followed by a comment that names it, such as
//! `1.6<!-- bench p1 -->`, which no reader sees. Two keys, or a key and a number, may have `*` or `/` between them.

use serde_json::Value;
use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const MARK: &str = "<!-- bench ";

/// Where users read what the lock costs.
const PAGES: [&str; 8] = [
    "src/lib.rs",
    "docs/comparison.md",
    "docs/faq.md",
    "docs/observing.md",
    "docs/quorum.md",
    "docs/scale.md",
    "docs/scripts.md",
    "docs/tuning.md",
];

/// The figure of the results that a comment names.
fn figure(results: &Value, of: &str) -> Option<f64> {
    let operand = |text: &str| text.parse().ok().or_else(|| results[text].as_f64());
    let Some(at) = of.find(['*', '/']) else {
        return operand(of);
    };
    let (left, right) = (operand(&of[..at])?, operand(&of[at + 1..])?);
    Some(if of[at..].starts_with('*') {
        left * right
    } else {
        left / right
    })
}

/// Whether this is the figure, rounded to the digits that are written. The zeros at the end of 5,600 need not count, but two
/// digits do.
fn is_rounded(written: &str, figure: f64) -> bool {
    let digits = written.replace(',', "");
    let Ok(number) = digits.parse::<f64>() else {
        return false;
    };
    let unit = match digits.split_once('.') {
        Some((_, decimals)) => 10f64.powi(-(decimals.len() as i32)),
        None => {
            let zeros = digits.len() - digits.trim_end_matches('0').len();
            10f64.powi(zeros.min(digits.len().saturating_sub(2)) as i32)
        }
    };
    (figure - number).abs() <= unit * 0.501
}

/// The written figures of a page, each with the name in its comment.
fn marks(page: &str) -> Vec<(&str, &str)> {
    let mut marks = Vec::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(MARK) {
        let is_of_number = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
        let written = before.rsplit(|c| !is_of_number(c)).next().unwrap_or_default();
        let (name, left) = after.split_once(" -->").expect("the end of a comment");
        marks.push((written, name));
        rest = left;
    }
    marks
}

#[test]
fn the_prose_says_what_the_results_say() {
    let read = |name: &str| std::fs::read_to_string(Path::new(ROOT).join(name)).expect(name);
    let results: Value = serde_json::from_str(&read("tests/bench/results.json")).expect("JSON");
    let mut wrong = Vec::new();
    for name in PAGES {
        let page = read(name);
        let marks = marks(&page);
        assert!(!marks.is_empty(), "{name} has no figure of the benchmark any more");
        for (written, of) in marks {
            match figure(&results, of) {
                None => wrong.push(format!("{name}: the results have no {of}")),
                Some(figure) if !is_rounded(written, figure) => {
                    wrong.push(format!("{name}: {of} is {figure}, and the page says {written:?}"));
                }
                Some(_) => {}
            }
        }
        // A row of a table that claims to be measured names its figure.
        let claims = page.lines().filter(|line| line.contains("| measured"));
        wrong.extend(
            claims
                .filter(|line| !line.contains(MARK))
                .map(|line| format!("{name}: no figure is named in {line}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_figure_counts_with_the_digits_that_are_written() {
    assert!(is_rounded("1.6", 1.56) && !is_rounded("1.5", 1.56) && is_rounded("1.56", 1.56));
    assert!(is_rounded("5,600", 5583.0) && !is_rounded("5,600", 5683.0));
    assert!(is_rounded("1,000", 1040.0) && !is_rounded("1,000", 1060.0));
    assert!(is_rounded("10", 9.6) && !is_rounded("10", 9.4) && !is_rounded("", 0.0));
    let results = serde_json::json!({"a": 6.0, "b": 3.0});
    assert_eq!(figure(&results, "a/b"), Some(2.0));
    assert_eq!(figure(&results, "a*1000"), Some(6000.0));
    assert_eq!(figure(&results, "c"), None);
    assert_eq!(marks("takes 1.6<!-- bench p1 --> times"), [("1.6", "p1")]);
    assert_eq!(marks("takes 1.6 times<!-- bench p1 -->"), [("", "p1")]);
}
