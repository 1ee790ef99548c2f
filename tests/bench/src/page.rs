//! The page of results and its pictures, from what a run has written.

use crate::charts::{self, Picture};
use crate::report::{Goal, shown};
use crate::{answers, instructions_floor, languages, missed, names};
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Where the results come from and go to.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The numbers of a run
    #[arg(long, default_value = "target/bench.json")]
    json: PathBuf,
    /// Where the page, its pictures and a copy of the numbers go
    #[arg(long, default_value = "tests/bench")]
    dir: PathBuf,
    /// Publish a run on a machine that was busy with other things, with a warning
    #[arg(long)]
    busy: bool,
}

/// A load before the run above this one is that of other programs.
const IDLE: f64 = 1.0;

/// Says what was written, or why not.
pub fn run(args: &Args) -> Result<String, String> {
    let json = args.json.display();
    let text = std::fs::read(&args.json).map_err(|error| format!("{json}: {error}; `make bench` writes it"))?;
    let all = serde_json::from_slice(&text).map_err(|error| format!("{json}: {error}"))?;
    let results = Results(all);
    if results.was_busy() && !args.busy {
        return Err(format!(
            "{json}: the machine was busy with other things. Measure on an idle machine, or publish with --busy"
        ));
    }
    let mut written = Vec::new();
    if let Some(page) = languages::table::page(&results.0) {
        write(&args.dir, "PEERS.md", &page, &mut written)?;
    }
    // A run of that row alone makes no page of goals.
    if results.keys().is_empty() && !written.is_empty() {
        return Ok(format!("wrote {}", written.join(", ")));
    }
    let pictures = charts::all(&results);
    for picture in &pictures {
        write(&args.dir, picture.file, &picture.svg, &mut written)?;
    }
    write(&args.dir, "RESULTS.md", &results.page(&pictures), &mut written)?;
    // What the docs say is checked with it: tests/it/docs/figures.rs.
    let copy = serde_json::to_string_pretty(&results.0).map_err(|error| error.to_string())?;
    write(&args.dir, "results.json", &(copy + "\n"), &mut written)?;
    Ok(format!("wrote {}", written.join(", ")))
}

fn write(dir: &Path, name: &str, text: &str, written: &mut Vec<String>) -> Result<(), String> {
    let path = dir.join(name);
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    written.push(path.display().to_string());
    Ok(())
}

/// bench.json.
pub struct Results(Value);

impl Results {
    pub fn number(&self, key: &str) -> Option<f64> {
        self.0.get(key)?.as_f64()
    }

    pub fn shown(&self, key: &str) -> String {
        self.number(key).map_or_else(|| "?".to_owned(), shown)
    }

    fn text(&self, object: &str, key: &str) -> Option<&str> {
        self.0.get(object)?.get(key)?.as_str()
    }

    pub fn samples(&self, key: &str) -> Option<Vec<f64>> {
        let values = self.0.get("samples")?.get(key)?.as_array()?;
        values.iter().map(Value::as_f64).collect()
    }

    pub fn goal(&self, key: &str) -> Goal {
        let goal = self.0.get("goals").and_then(|goals| goals.get(key));
        let bound = |name: &str| goal.and_then(|goal| goal.get(name)?.as_f64());
        match (bound("at_most"), bound("at_least")) {
            (Some(most), _) => Goal::AtMost(most),
            (_, Some(least)) => Goal::AtLeast(least),
            _ => Goal::None,
        }
    }

    fn spread(&self, key: &str) -> String {
        let spread = self.0.get("spread").and_then(|spread| spread.get(key));
        let at = |n: usize| {
            spread
                .and_then(|spread| spread.get(n)?.as_f64())
                .map_or_else(|| "?".to_owned(), shown)
        };
        format!("{} to {}", at(0), at(1))
    }

    /// All that were measured, in the order of rows: p2 comes before p10.
    fn keys(&self) -> Vec<&str> {
        let all = self.0.as_object().into_iter().flatten();
        let mut keys: Vec<&str> = all
            .filter(|(_, value)| value.is_number())
            .map(|(key, _)| key.as_str())
            .collect();
        keys.sort_by_key(|key| place(key));
        keys
    }

    fn is_row(&self, key: &str) -> bool {
        self.text("titles", key).is_some()
    }

    fn page(&self, pictures: &[Picture]) -> String {
        let mut page = "# What fairlock costs\n\n\
             <!-- Written by `make bench-page` from the last `make bench`. Do not edit. -->\n\n\
             The ratios compare things that took turns on one small machine; the times hold for that machine only. \
             [How it was measured](#how-it-was-measured) says more."
            .to_owned();
        if self.was_busy() {
            page += " **It was busy with other things**, so the times are longer than those of an idle one.";
        }
        page += "\n\n";
        page += &answers::section(|key| self.number(key));
        let rows = self.keys().into_iter().filter(|key| self.is_row(key));
        let rows: Vec<&str> = rows.collect();
        page += &self.goals(&rows);
        page += &self.missed(&rows);
        page += &format!("\n## How it was measured\n\n{}\n", self.circumstances());
        for picture in pictures {
            page += &format!(
                "\n## {}\n\n{}\n\n![{0}]({})\n",
                picture.title, picture.text, picture.file
            );
        }
        if let Some(floors) = instructions_floor::section(|key| self.number(key)) {
            page += &format!("\n## Instructions of the server, beside their floors\n\n{floors}\n\n");
        }
        let mixes = self.mixes();
        if !mixes.is_empty() {
            page += "\n## Readers and writers\n\n\
                 64 tasks of one process, each choosing anew whether to read or to write. Grants per second, and the wait that 99 % of readers and of writers did not exceed, in ms. rlock prefers readers and distkit writers; both poll every millisecond here. A wait that its slice cuts short counts as what it was by then, so starving writers look better than they are.\n\n";
            page += &mixes;
            page.push('\n');
        }
        page + &self.figures()
    }

    /// What was measured against what was aimed at, by subject.
    fn goals(&self, rows: &[&str]) -> String {
        let mut page = "## Goals\n".to_owned();
        let known = |key: &str| names::SUBJECTS.iter().any(|(_, of)| names::is_of(key, of));
        let tables = names::SUBJECTS.map(|(subject, of)| {
            let lines = rows.iter().filter(|key| names::is_of(key, of));
            (subject, lines.copied().collect::<Vec<_>>())
        });
        let others = rows.iter().filter(|key| !known(key)).copied().collect();
        for (subject, keys) in tables.into_iter().chain([("Others", others)]) {
            if keys.is_empty() {
                continue;
            }
            page += &format!(
                "\n### {subject}\n\n| | median | least to greatest | goal | | row |\n|---|--:|---|---|---|---|\n"
            );
            for key in keys {
                page += &self.line(key);
            }
        }
        page
    }

    fn line(&self, key: &str) -> String {
        let (number, goal) = (self.number(key).unwrap_or(f64::NAN), self.goal(key));
        let met = match goal.met(number) {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "",
        };
        let goal = match goal {
            Goal::AtMost(most) => format!("<= {}", shown(most)),
            Goal::AtLeast(least) => format!(">= {}", shown(least)),
            Goal::None => String::new(),
        };
        let (name, middle, spread) = (self.name(key), shown(number), self.spread(key));
        format!("| {name} | {middle} | {spread} | {goal} | {met} | `{key}` |\n")
    }

    fn name(&self, key: &str) -> &str {
        names::name(key, self.text("titles", key).unwrap_or_default())
    }

    /// Why, for each goal that was not reached.
    fn missed(&self, rows: &[&str]) -> String {
        let is_missed = |key: &&&str| self.number(key).and_then(|number| self.goal(key).met(number)) == Some(false);
        let lines = rows.iter().filter(is_missed).map(|key| {
            // Without a figure that it names, an explanation explains nothing.
            let why = missed::why(self, key)
                .filter(|why| !why.contains('?'))
                .unwrap_or_else(|| {
                    let row = format!("{}_", key.split('_').next().unwrap_or(key));
                    format!("The figures beside it are below, at `{row}...`.")
                });
            let (name, number, spread) = (self.name(key), self.shown(key), self.spread(key));
            format!("* **{name}** (`{key}`): {number} ({spread}). {why}\n")
        });
        let lines: String = lines.collect();
        if lines.is_empty() {
            return lines;
        }
        format!("\n## Where a goal was missed\n\n{lines}")
    }

    /// What the rows were made of.
    fn figures(&self) -> String {
        let mut page = "## All figures\n\n| key | median | least to greatest | |\n|---|--:|---|---|\n".to_owned();
        let others = |key: &&str| !self.is_row(key) && !key.starts_with("mix_");
        for key in self.keys().into_iter().filter(others) {
            let unit = self.text("units", key).unwrap_or_default();
            page += &format!("| {key} | {} | {} | {unit} |\n", self.shown(key), self.spread(key));
        }
        page
    }

    fn was_busy(&self) -> bool {
        let before = self.0.get("machine").and_then(|machine| machine.get("load_before"));
        before.and_then(Value::as_f64).is_some_and(|load| load > IDLE)
    }

    fn circumstances(&self) -> String {
        let machine = |key: &str| {
            self.0
                .get("machine")
                .and_then(|machine| machine.get(key))
                .cloned()
                .unwrap_or_default()
        };
        let text = |key: &str| machine(key).as_str().unwrap_or("?").to_owned();
        let number = |key: &str| machine(key).as_f64().map_or_else(|| "?".to_owned(), shown);
        let mut page = format!(
            "Measured on {date}: {cpu}, {cores} cores, Linux {kernel}, {server}, everything on this one machine over \
             loopback. Load average {before} before and {after} after (the benchmark itself is about 2); {rounds} rounds.\n\n\
             Such a small machine has no core to spare, so the figures are ratios of things that took turns within one \
              run. Each is the median of the rounds, with the least and the greatest round beside it. Absolute times hold \
              for this machine only.\n\n\
              In all rows but those of `masters`, `quorum` and `peers` the server has one core for itself, and its \
              clients have the others. Left alone, the kernel moves the two together and apart, and a call that wakes a sleeping core takes several times as long. So a \
              part of each time is the waking; `p1_one_core` is without it. In the other rows the kernel places \
              all.",
            date = text("date"),
            cpu = text("cpu"),
            cores = number("cores"),
            kernel = text("kernel"),
            server = text("server"),
            before = number("load_before"),
            after = number("load_after"),
            rounds = number("rounds"),
        );
        if machine("quick").as_bool() == Some(true) {
            page += "\n\n**A quick run**: fewer and shorter rounds than the page should have.";
        }
        if self.was_busy() {
            page += "\n\n**The machine was busy with other things**: the spread is wider than on an idle one, and \
             what waits for a core twice loses more.";
        }
        let dates = self.0.get("measured").and_then(Value::as_object).into_iter().flatten();
        let mut days: Vec<&str> = dates
            .filter_map(|(_, of)| of.get("date")?.as_str()?.split('T').next())
            .collect();
        days.sort_unstable();
        days.dedup();
        if days.len() > 1 {
            write!(
                page,
                "\n\nNot all rows are of one run: they are of {}.",
                days.join(", ")
            )
            .expect("memory");
        }
        page
    }

    fn mixes(&self) -> String {
        let mut table = String::new();
        for reads in [50, 90, 99] {
            for hold in [0, 1] {
                let mix = format!("mix_{reads}_{hold}");
                for (name, key) in [
                    ("fairlock", mix.clone()),
                    ("distkit", format!("{mix}_peer_distkit")),
                    ("rlock", format!("{mix}_peer_rlock")),
                ] {
                    if self.number(&format!("{key}_per_s")).is_none() {
                        continue;
                    }
                    let cell = |what: &str| {
                        let key = format!("{key}_{what}");
                        match self.number(&key) {
                            Some(number) => format!("{} ({})", shown(number), self.spread(&key)),
                            None => "none".to_owned(),
                        }
                    };
                    let (rate, read, write) = (cell("per_s"), cell("read_p99"), cell("write_p99"));
                    writeln!(table, "| {reads} % | {hold} ms | {name} | {rate} | {read} | {write} |").expect("memory");
                }
            }
        }
        if table.is_empty() {
            return table;
        }
        format!("| reads | hold | | grants/s | p99 of readers | p99 of writers |\n|--:|--:|---|---|---|---|\n{table}")
    }
}

/// Orders keys by row, then by name: p2, p2_floor, p10, mix. A comparison with peers comes right after what it compares.
fn place(key: &str) -> (u32, String, bool) {
    let row = key.split('_').next().unwrap_or(key);
    let number = row.strip_prefix('p').and_then(|number| number.parse().ok());
    let of = key.strip_suffix("_peers");
    (number.unwrap_or(u32::MAX), of.unwrap_or(key).to_owned(), of.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_says_what_was_met_and_what_was_not() {
        let results = Results(json!({
            "p10": 1.0, "p2": 0.9, "p8": 20.0, "p8_floor": 50.0, "p2_floor": 7.0, "p2_peers": 1.0, "new": 3.0,
            "spread": { "p10": [1.0, 1.0], "p2": [0.8, 0.95], "p8": [10.0, 30.0], "p8_floor": [50.0, 50.0] },
            "units": { "p2_floor": "per second" },
            "titles": { "p10": "ten", "p2": "two", "p8": "eight", "new": "new" },
            "goals": { "p10": { "at_most": 1.0 }, "p2": { "at_least": 0.7 }, "p8": { "at_most": 10.0 } },
            "machine": { "cpu": "X", "cores": 2, "load_before": 4.0, "quick": true },
            "measured": { "p2": { "date": "2026-01-02T00:00:00Z" }, "p8": { "date": "2026-01-03T00:00:00Z" } },
        }));
        assert_eq!(
            results.keys(),
            ["p2", "p2_peers", "p2_floor", "p8", "p8_floor", "p10", "new"]
        );
        let page = results.page(&[]);
        assert!(
            page.contains("### A free lock\n\n| | median | least to greatest | goal | | row |\n|---|--:|---|---|---|---|\n\
                 | Locks per second, 64 tasks with a lock each, against two plain scripts of 15 lines | 0.90 | 0.80 to 0.95 \
                 | >= 0.70 | met | `p2` |"),
            "{page}"
        );
        assert!(page.contains("| 20 | 10 to 30 | <= 10 | **missed** | `p8` |"), "{page}");
        assert!(
            page.contains(
                "is in, against one push** (`p8`): 20 (10 to 30). The figures beside it are below, at `p8_...`."
            ),
            "{page}"
        );
        // A row that has no name yet, and belongs to no subject.
        assert!(page.contains("### Others\n") && page.contains("| new | 3 |"), "{page}");
        assert!(page.contains("| p2_floor | 7 | ? to ? | per second |"), "{page}");
        assert!(page.contains("A quick run") && page.contains("It was busy"), "{page}");
        assert!(page.contains("they are of 2026-01-02, 2026-01-03"), "{page}");
    }

    #[test]
    fn a_run_of_peers_alone_leaves_the_page_of_goals_alone() {
        let dir = std::env::temp_dir().join(format!("fairlock-page-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let args = Args {
            json: dir.join("bench.json"),
            dir: dir.clone(),
            busy: false,
        };
        let pages = |results: Value| {
            std::fs::write(&args.json, results.to_string()).expect("written");
            run(&args).expect("a page");
            ["PEERS.md", "RESULTS.md"].map(|page| std::fs::remove_file(dir.join(page)).is_ok())
        };
        assert_eq!(pages(json!({ "peers_locks": [] })), [true, false]);
        assert_eq!(pages(json!({ "peers_locks": [], "p1": 1.0 })), [true, true]);
        assert_eq!(pages(json!({ "p1": 1.0 })), [false, true]);
        // What was measured beside other work is published only if that is asked for.
        let busy = json!({ "p1": 1.0, "machine": { "load_before": 1.5 } });
        std::fs::write(&args.json, busy.to_string()).expect("written");
        assert!(run(&args).expect_err("refused").contains("--busy"));
        run(&Args { busy: true, ..args }).expect("a page");
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn the_page_in_the_repository_is_that_of_its_figures() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = |name: &str| std::fs::read_to_string(here.join(name)).expect("in the repository");
        let results = Results(serde_json::from_str(&file("results.json")).expect("JSON"));
        let pictures = charts::all(&results);
        assert!(
            results.page(&pictures) == file("RESULTS.md"),
            "run make bench-page ARGS='--json tests/bench/results.json --busy'"
        );
        // Each row has a name that says by itself what it is.
        for key in results.keys().into_iter().filter(|key| results.is_row(key)) {
            let name = results.name(key);
            assert!(!name.is_empty() && !name.starts_with("the same"), "{key}: {name}");
        }
    }
}
