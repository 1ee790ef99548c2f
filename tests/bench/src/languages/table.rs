//! The two tables of this row, for the terminal and for a page of their own: the cells are padded, so both can read them.

use crate::report::shown;
use serde_json::Value;
use std::fmt::Write;

/// Of a column: its heading, the figure, whether the least and the greatest round stand beside the median.
type Column = (&'static str, &'static str, bool);

const UNCONTENDED: [Column; 7] = [
    ("time / floor", "ratio", true),
    ("server's CPU, us", "cycle_cpu_us", true),
    ("CPU / floor", "cpu_ratio", true),
    ("scripts, us", "cycle_scripts_us", false),
    ("commands sent", "cycle_sent", false),
    ("inner commands", "cycle_inner", false),
    ("time, us", "cycle_us", false),
];

const CONTENDED: [Column; 6] = [
    ("server's CPU, us", "grant_cpu_us", true),
    ("scripts, us", "grant_scripts_us", false),
    ("commands sent", "grant_sent", false),
    ("inner commands", "grant_inner", false),
    ("grants/s", "grants_per_s", true),
    ("changed hands, %", "changed_percent", false),
];

const NOTES: &str = "\
A *cycle* is one acquire and one release of a free lock. *Contended* means 8 contenders of one process that want one lock again
and again, and hold it for no time. A lock that is not a plain mutex is used as a writer. Each figure is the median of
several rounds; where there are brackets, they have the least and the greatest round.

* **Floor**: `SET NX PX` and a checked DEL by EVALSHA, in the cheapest way that the same client has.
* **Server's CPU** is `used_cpu_sys` + `used_cpu_user` of `INFO cpu`, so it includes the reading and writing of sockets. This
  figure, and what stands beside it of scripts and commands, is comparable between languages. Not quite, though: the floors send
  the same commands, and a server that a slow client lets sleep in between needs more for them. **CPU / floor** allows for that.
* **Scripts** is the time of EVAL, EVALSHA and FCALL in `INFO commandstats`. **Commands sent** come from clients, **inner
  commands** from scripts; MONITOR counts both in a run of its own, whose slower server changes how often a polling lock tries.
* **Changed hands**: the share of grants that went to another contender than the grant before. A lock that polls is mostly
  granted to its last holder again, so its grants cost little and are no hand-overs. Compare contended figures only between
  locks that change hands alike.";

/// `None`: the row was not measured.
pub fn tables(results: &Value) -> Option<String> {
    let locks = results.get("peers_locks")?.as_array()?;
    let measured: Vec<&Value> = locks.iter().filter(|lock| lock.get("figures").is_some()).collect();
    let contended: Vec<&Value> = measured
        .iter()
        .copied()
        .filter(|lock| figure(lock, "grant_cpu_us").is_some())
        .collect();
    let mut text = format!("## Uncontended, per cycle\n\n{}\n", table(&measured, &UNCONTENDED));
    write!(text, "## Contended, per grant\n\n{}", table(&contended, &CONTENDED)).expect("memory");
    let absent: Vec<&Value> = locks.iter().filter(|lock| lock.get("missing").is_some()).collect();
    if !absent.is_empty() {
        text += "\n## Not measured\n\n";
        for lock in absent {
            let [language, name, why] = ["language", "name", "missing"].map(|key| word(lock, key));
            writeln!(text, "* **{name}** ({language}): {why}.").expect("memory");
        }
    }
    Some(text)
}

/// `None`: the row was not measured.
pub fn page(results: &Value) -> Option<String> {
    let tables = tables(results)?;
    let circumstances = circumstances(results);
    let mut page = String::from("# fairlock beside locks of other languages\n\n");
    page += "<!-- Written by `make bench-page` from the last `make bench ARGS=peers`. Do not edit. -->\n\n";
    write!(page, "{circumstances}\n\n{NOTES}\n\n{tables}\n## The locks\n\n").expect("memory");
    for lock in results.get("peers_locks")?.as_array()? {
        if lock.get("figures").is_some() {
            let [language, name, version, note] = ["language", "name", "version", "note"].map(|key| word(lock, key));
            writeln!(page, "* {name} {version} ({language}): {note}.").expect("memory");
        }
    }
    Some(page)
}

/// The machine is that of the file's last run, the day and the load are this row's.
fn circumstances(results: &Value) -> String {
    let machine = |key: &str| results.pointer(&format!("/machine/{key}")).cloned().unwrap_or_default();
    let begun = |key: &str| {
        results
            .pointer(&format!("/measured/peers/{key}"))
            .cloned()
            .unwrap_or_default()
    };
    let text = |value: Value| value.as_str().unwrap_or("?").to_owned();
    let number = |value: Value| value.as_f64().map_or_else(|| "?".to_owned(), shown);
    format!(
        "Measured on {}: {}, {} cores, Linux {}, {}, everything on this one machine over loopback. Load average {} before. \
         The server, the clients and all other work take turns on these cores, so look at ratios and spreads.",
        text(begun("date")),
        text(machine("cpu")),
        number(machine("cores")),
        text(machine("kernel")),
        text(machine("server")),
        number(begun("load")),
    )
}

fn word<'a>(lock: &'a Value, key: &str) -> &'a str {
    lock.get(key).and_then(Value::as_str).unwrap_or("?")
}

/// Median, least and greatest.
fn figure(lock: &Value, name: &str) -> Option<[f64; 3]> {
    let rounds = lock.get("figures")?.get(name)?.as_array()?;
    let [middle, least, greatest] = rounds.as_slice() else {
        return None;
    };
    Some([middle.as_f64()?, least.as_f64()?, greatest.as_f64()?])
}

fn table(locks: &[&Value], columns: &[Column]) -> String {
    let mut rows = vec![
        ["", "lock"]
            .into_iter()
            .chain(columns.iter().map(|(heading, ..)| *heading))
            .map(str::to_owned)
            .collect::<Vec<_>>(),
    ];
    for lock in locks {
        let mut row = vec![word(lock, "language").to_owned(), word(lock, "name").to_owned()];
        row.extend(columns.iter().map(|(_, name, spread)| match figure(lock, name) {
            Some([middle, least, greatest]) if *spread => {
                format!("{} ({} to {})", shown(middle), shown(least), shown(greatest))
            }
            Some([middle, ..]) => shown(middle),
            None => String::new(),
        }));
        rows.push(row);
    }
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0).max(3))
        .collect();
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            write!(text, "| {cell:<width$} ").expect("memory");
        }
        text += "|\n";
        if at == 0 {
            for (column, width) in widths.iter().enumerate() {
                // Numbers to the right.
                let end = if column < 2 { "-" } else { ":" };
                write!(text, "|{}{end}", "-".repeat(width + 1)).expect("memory");
            }
            text += "|\n";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn results() -> Value {
        json!({ "peers_locks": [
            { "language": "Go", "name": "floor", "version": "9.0", "note": "go-redis", "figures": {
                "ratio": [1.0, 1.0, 1.0], "cycle_cpu_us": [20.25, 19.0, 30.0] } },
            { "language": "Java", "name": "RLock", "version": "4.7", "note": "a channel", "figures": {
                "ratio": [2.0, 1.5, 3.0], "cycle_sent": [2.0, 2.0, 2.0],
                "grant_cpu_us": [150.0, 140.0, 170.0], "changed_percent": [44.4, 40.0, 50.0] } },
            { "language": "Node.js", "name": "redis-rwlock", "missing": "npm is not installed" },
        ], "machine": { "cpu": "X", "cores": 2 }, "measured": { "peers": { "date": "2026-01-02", "load": 0.5 } } })
    }

    #[test]
    fn a_lock_stands_in_both_tables_and_a_floor_in_the_first() {
        let text = tables(&results()).expect("measured");
        let (first, second) = text.split_once("## Contended").expect("two tables");
        assert!(first.contains("| Go   | floor | 1 (1 to 1) "), "{text}");
        assert!(first.contains("| 20.2 (19 to 30) "), "{text}");
        assert!(first.contains("| Java | RLock | 2 (1.50 to 3) "), "{text}");
        assert!(!second.contains("floor |"), "{text}");
        assert!(second.contains("| Java | RLock | 150 (140 to 170) "), "{text}");
        assert!(second.contains("| 44.4 "), "{text}");
    }

    #[test]
    fn what_was_skipped_is_said() {
        let page = page(&results()).expect("measured");
        assert!(
            page.contains("## Not measured\n\n* **redis-rwlock** (Node.js): npm is not installed.\n"),
            "{page}"
        );
        assert!(
            page.contains("\n\nMeasured on 2026-01-02: X, 2 cores, ")
                && page.contains("* RLock 4.7 (Java): a channel."),
            "{page}"
        );
        assert_eq!(tables(&json!({ "p1": 1.0 })), None);
    }
}
