//! The dashboard and the alerts in `ops` are about metrics that exist, and about all of them.

use std::collections::BTreeSet;

const METRICS: &str = include_str!("../../../src/observe/metrics.rs");
const DASHBOARD: &str = include_str!("../../../ops/grafana.json");
const ALERTS: &str = include_str!("../../../ops/alerts.yml");
const ALERTS_TEST: &str = include_str!("../../../ops/alerts_test.yml");
const README: &str = include_str!("../../../ops/README.md");

/// Every word of a text that is the name of a metric.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("fairlock_")).collect()
}

/// The metric of which this is a time series.
fn metric(series: &str) -> &str {
    let suffixes = ["_bucket", "_sum", "_count"];
    suffixes
        .iter()
        .find_map(|suffix| series.strip_suffix(suffix))
        .unwrap_or(series)
}

#[test]
fn what_ops_names_is_recorded() {
    let recorded = names(METRICS);
    for text in [DASHBOARD, ALERTS, ALERTS_TEST, README] {
        for series in names(text) {
            assert!(
                recorded.contains(metric(series)),
                "{series} is not in src/observe/metrics.rs"
            );
            let buckets = series.ends_with("_bucket");
            assert_eq!(
                series.contains("_seconds"),
                buckets,
                "{series}: histograms have buckets"
            );
        }
    }
}

#[test]
fn the_dashboard_shows_all_that_is_recorded() {
    let shown: BTreeSet<_> = names(DASHBOARD).into_iter().map(metric).collect();
    assert_eq!(shown, names(METRICS));
}

#[test]
fn the_dashboard_is_one() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{panel}");
        if panel["type"] == "row" {
            continue;
        }
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty() && panel["description"].is_string(), "{panel}");
        for target in targets {
            let expression = target["expr"].as_str().expect("an expression");
            let count = |c: char| expression.matches(c).count();
            assert_eq!(count('('), count(')'), "{expression}");
            assert_eq!(count('{'), count('}'), "{expression}");
        }
    }
}

#[test]
fn every_alert_says_how_bad_it_is_and_what_happened() {
    let alerts: Vec<_> = ALERTS.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 9);
    for alert in alerts {
        for part in ["expr: ", "severity: ", "summary: ", "command: \"fairlock "] {
            assert_eq!(alert.matches(part).count(), 1, "{part} of {alert}");
        }
        let typed = alert
            .split("command: \"fairlock ")
            .nth(1)
            .and_then(|rest| rest.split('"').next());
        let words = typed.unwrap_or_default().split([' ', ',']);
        let subcommands = ["ls", "top", "doctor", "blockers", "watch", "show"];
        assert!(words.into_iter().any(|word| subcommands.contains(&word)), "{alert}");
    }
}

/// The annotations in a file of alerts, or of their tests: each value, with its name.
fn annotations(text: &str) -> BTreeSet<(&str, String)> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = text.lines().peekable();
    let mut found = BTreeSet::new();
    while let Some(line) = lines.next() {
        let Some((name, value)) = line.trim().split_once(": ") else {
            continue;
        };
        if !["summary", "command", "description"].contains(&name) {
            continue;
        }
        let mut value = value.trim_matches('"').trim_start_matches(">-").to_owned();
        while let Some(more) = lines.next_if(|next| !next.is_empty() && indent(next) > indent(line)) {
            value = format!("{value} {}", more.trim());
        }
        found.insert((name, value.trim().to_owned()));
    }
    found
}

/// Whether a text comes of a template, `{{ $labels.job }} waits`.
fn is_of(text: &str, template: &str) -> bool {
    let mut parts = template
        .split("{{")
        .map(|part| part.split_once("}}").map_or(part, |(_, fixed)| fixed));
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    for fixed in parts {
        let Some((_, after)) = rest.split_once(fixed) else {
            return false;
        };
        rest = if fixed.is_empty() { "" } else { after };
    }
    rest.is_empty()
}

/// promtool, which compares them, is not everywhere.
#[test]
fn the_tests_of_the_alerts_expect_what_the_alerts_say() {
    let (alerts, expected) = (annotations(ALERTS), annotations(ALERTS_TEST));
    assert!(expected.len() > 10 && alerts.len() > expected.len(), "{expected:?}");
    for (name, text) in expected {
        let said = alerts
            .iter()
            .any(|(of, template)| *of == name && is_of(&text, template));
        assert!(said, "no alert has this {name}: {text}");
    }
}
