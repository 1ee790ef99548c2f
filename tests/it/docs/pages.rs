//! The pages say where each of their claims is tested, by links whose fragment is the test's name. They must be true.

use std::collections::BTreeMap;
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// All pages, with their texts.
fn pages() -> BTreeMap<PathBuf, String> {
    let root = Path::new(ROOT);
    let files = read_dir(root.join("docs"))
        .expect("docs")
        .map(|entry| entry.expect("a file").path());
    let fixed = ["README.md", "design.md", "SECURITY.md", "cli/README.md"].map(|name| root.join(name));
    let pages = files
        .chain(fixed)
        .filter(|path| path.extension().is_some_and(|end| end == "md"));
    pages
        .map(|path| (path.clone(), read_to_string(path).expect("a page")))
        .collect()
}

/// Where a link into the repository at the tag of this version leads: a path from the repository's root. A release makes
/// such links of those that are dead on docs.rs: `.ci/release`.
fn at_the_tag(target: &str) -> Option<&str> {
    let (repository, version) = (env!("CARGO_PKG_REPOSITORY"), env!("CARGO_PKG_VERSION"));
    let file = target.strip_prefix(repository)?;
    let file = file.strip_prefix("/blob/v").or_else(|| file.strip_prefix("/raw/v"))?;
    file.strip_prefix(version)?.strip_prefix('/')
}

/// Where a page's links lead, inline ones and definitions, but for those that leave the repository.
fn links(page: &str) -> Vec<&str> {
    let inline = page
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target);
    let defined = page
        .lines()
        .filter(|line| line.starts_with('['))
        .filter_map(|line| line.split_once("]: "));
    let all = inline.chain(defined.map(|(_, target)| target));
    let ours = |target: &&str| at_the_tag(target).is_some() || !target.contains("://");
    all.filter(|target| ours(target) && !target.starts_with('#')).collect()
}

/// The file, and the name of a test in it if the link has one.
fn resolved<'a>(page: &Path, link: &'a str) -> (PathBuf, Option<&'a str>) {
    let (folder, link) = match at_the_tag(link) {
        Some(path) => (Path::new(ROOT), path),
        None => (page.parent().expect("a directory"), link),
    };
    let (file, name) = link
        .split_once('#')
        .map_or((link, None), |(file, name)| (file, Some(name)));
    (folder.join(file), name)
}

fn has_test(source: &str, name: &str) -> bool {
    source.contains(&format!("fn {name}("))
}

/// Whether a scenario's name begins so: its words with hyphens between them, without punctuation.
fn has_scenario(source: &str, beginning: &str) -> bool {
    let names = source.lines().filter_map(|line| line.split("\"scenario\": \"").nth(1));
    let words = |name: &str| -> String {
        let name = name.to_lowercase().replace(' ', "-");
        name.chars()
            .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
            .collect()
    };
    names.into_iter().any(|name| words(name).starts_with(beginning))
}

#[test]
fn links_lead_to_files_and_tests_that_exist() {
    let (mut wrong, mut tests) = (Vec::new(), 0);
    for (path, text) in pages() {
        for link in links(&text) {
            let (file, name) = resolved(&path, link);
            let Ok(source) = read_to_string(&file) else {
                wrong.push(format!("{}: {link}", path.display()));
                continue;
            };
            if let Some(name) = name.filter(|_| file.extension().is_some_and(|end| end == "rs")) {
                tests += 1;
                if !has_test(&source, name) {
                    wrong.push(format!("{}: no test {name} in {}", path.display(), file.display()));
                }
            }
            if let Some(name) = name.filter(|_| file.extension().is_some_and(|end| end == "json")) {
                tests += 1;
                if !has_scenario(&source, name) {
                    wrong.push(format!("{}: no scenario {name} in {}", path.display(), file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
    assert!(
        tests > 100,
        "only {tests} links to tests were found: has their form changed?"
    );
}

/// The labels of a page's links `[text][label]` and ``[`label`]``, outside of code.
fn references(page: &str) -> Vec<&str> {
    let text = page.split("```").step_by(2);
    let labels = text.flat_map(|text| {
        let full = text.split("][").skip(1);
        let short = text.split('[').skip(1).filter(|rest| {
            let after = rest.split_once(']').and_then(|(_, after)| after.chars().next());
            rest.starts_with('`') && !matches!(after, Some('(' | '[' | ':'))
        });
        full.chain(short)
    });
    labels
        .filter_map(|rest| rest.split_once(']'))
        .map(|(label, _)| label)
        .collect()
}

/// Readers in the repository follow the definitions at the end of a page.
#[test]
fn every_reference_of_a_page_has_its_definition() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (path, text) in pages() {
        for label in references(&text) {
            seen += 1;
            if !text.lines().any(|line| line.starts_with(&format!("[{label}]: "))) {
                wrong.push(format!("{}: [{label}]", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "links without a definition:\n{}", wrong.join("\n"));
    assert!(seen > 100, "only {seen} references were found: has their form changed?");
}

/// rustdoc copies a link to a file as it is, and there is no such file beside its page. So `src/guide.rs` defines each link
/// to another page or an item once more, before the page.
#[test]
fn links_between_pages_lead_to_items_in_rustdoc() {
    let guide = read_to_string(Path::new(ROOT).join("src/guide.rs")).expect("src/guide.rs");
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (path, text) in pages() {
        let include = format!(
            "include_str!(\"../docs/{}\")",
            path.file_name().expect("a file").display()
        );
        // What the guide has between the page before and this one.
        let Some(definitions) = guide.split("pub mod ").find(|item| item.contains(&include)) else {
            continue;
        };
        for (label, target) in text
            .lines()
            .filter_map(|line| line.strip_prefix('[')?.split_once("]: "))
        {
            let outside = at_the_tag(target).is_some() || target.starts_with("../");
            let shown = target.starts_with("../src/") || !outside || target == "../design.md";
            seen += usize::from(shown);
            if shown && !definitions.contains(&format!("\"[{label}]: crate::")) {
                wrong.push(format!("{}: src/guide.rs does not define [{label}]", path.display()));
            }
        }
        let inline = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        let outside = |target: &str| at_the_tag(target).is_some() || target.starts_with("../");
        for (target, _) in inline.filter(|(target, _)| !outside(target) && target.contains(".md")) {
            wrong.push(format!("{}: {target} needs a definition", path.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "links that lead nowhere in rustdoc:\n{}",
        wrong.join("\n")
    );
    assert!(
        seen > 100,
        "only {seen} definitions were found: has their form changed?"
    );
}

#[test]
fn the_crate_page_leads_to_every_guide() {
    let source = |name: &str| read_to_string(Path::new(ROOT).join("src").join(name)).expect("a source");
    let (guides, page) = (source("guide.rs"), source("lib.rs"));
    let mut seen = 0;
    for guide in guides.lines().filter_map(|line| line.strip_prefix("pub mod ")) {
        let name = guide.trim_end_matches(" {}");
        seen += 1;
        assert!(
            page.contains(&format!("(guide::{name})")),
            "{name} is not on the crate's page"
        );
        assert!(
            guides.contains(&format!("//! | [`{name}`] |")),
            "{name} is not in the table of src/guide.rs"
        );
    }
    assert!(seen > 20, "only {seen} guides were found: has their form changed?");
}

#[test]
fn every_cell_of_the_table_of_failures_has_its_test() {
    let page = &pages()[&Path::new(ROOT).join("docs/failures.md")];
    let table = page.split("\n## ").next().unwrap_or_default();
    let rows: Vec<Vec<&str>> = table
        .lines()
        // The table of single losses says the same test of several cells.
        .take_while(|line| !line.starts_with("## What the loss of a key"))
        .filter(|line| line.starts_with("| ") && !line.starts_with("| **") && !line.starts_with("| fault"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    assert!(rows.len() > 20, "{} rows", rows.len());
    for row in rows {
        assert_eq!(row.len(), 5, "{row:?}");
        for cell in &row[1..] {
            assert!(
                *cell == "–" || cell.contains(".rs#") || cell.contains(".json#"),
                "{:?} says {cell:?} without a test",
                row[0]
            );
        }
    }
}

/// What a hostile user or browser can do, and what hostile names and data cannot.
#[test]
fn every_line_of_the_page_of_security_about_who_is_hostile_has_its_test() {
    let page = &pages()[&Path::new(ROOT).join("SECURITY.md")];
    let mut lines = 0;
    for title in [
        "What a hostile user of the same server can do",
        "Hostile names and data",
        "The page of `fairlock serve`",
    ] {
        let section = page.split("\n## ").find(|section| section.starts_with(title));
        let section = section.unwrap_or_else(|| panic!("no section {title}"));
        let rows = section.lines().filter(|line| line.starts_with("| "));
        // The first row is the heading.
        let rows = rows.skip(1).map(str::to_owned);
        // The last section's list says what operators have to do.
        let is_of_data = title.starts_with("Hostile names");
        let items = section.split("\n* ").skip(1).filter(|_| is_of_data).map(str::to_owned);
        for line in rows.chain(items) {
            lines += 1;
            assert!(line.contains(".rs#") || line.contains(".json#"), "no test: {line}");
        }
    }
    assert!(lines > 20, "only {lines} lines were found: has their form changed?");
}

/// One section of a manifest, without its title.
fn section<'a>(manifest: &'a str, title: &str) -> &'a str {
    let (_, rest) = manifest.split_once(&format!("\n[{title}]\n")).expect("a section");
    rest.split("\n[").next().unwrap_or_default()
}

/// `cargo install --path cli` leaves out what only tests need, and then refuses a feature that names it.
#[test]
fn no_feature_needs_a_crate_that_only_the_tests_have() {
    for name in ["Cargo.toml", "cli/Cargo.toml"] {
        let manifest = read_to_string(Path::new(ROOT).join(name)).expect(name);
        let features = section(&manifest, "features");
        for line in section(&manifest, "dev-dependencies").lines() {
            let Some((of_tests, _)) = line.split_once(" = ").filter(|_| line.contains("path = ")) else {
                continue;
            };
            assert!(
                !features.contains(&format!("\"{of_tests}/")),
                "{name}: a feature needs {of_tests}"
            );
        }
    }
}

/// What users see of a feature is what Cargo has.
#[test]
fn the_crate_page_names_every_feature() {
    let root = Path::new(ROOT);
    let manifest = read_to_string(root.join("Cargo.toml")).expect("Cargo.toml");
    let names = section(&manifest, "features")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(" = "));
    let page = read_to_string(root.join("src/lib.rs")).expect("src/lib.rs");
    for (name, _) in names.filter(|(name, _)| !name.starts_with("__")) {
        assert!(
            page.contains(&format!("//! | `{name}` |")),
            "{name} is not in the table of src/lib.rs"
        );
    }
}

#[test]
fn commands_of_the_pages_name_what_exists() {
    let root = Path::new(ROOT);
    let makefile = read_to_string(root.join("Makefile")).expect("Makefile");
    for (path, text) in pages() {
        for target in words_after(&text, "make ") {
            assert!(
                makefile.contains(&format!("\n{target}:")),
                "{}: make {target}",
                path.display()
            );
        }
        for example in words_after(&text, "--example ") {
            let file = root.join(format!("examples/{example}.rs"));
            let directory = root.join("examples").join(example);
            assert!(file.exists() || directory.exists(), "{}: {example}", path.display());
        }
    }
}

#[test]
fn the_hosted_ci_calls_targets_that_exist() {
    let root = Path::new(ROOT);
    let makefile = read_to_string(root.join("Makefile")).expect("Makefile");
    let mut called = 0;
    for workflow in read_dir(root.join(".github/workflows")).expect("the hosted CI") {
        let path = workflow.expect("a file").path();
        let text = read_to_string(&path).expect("a workflow");
        let words = text.lines().filter_map(|line| line.split_once("run: make "));
        let words = words.flat_map(|(_, words)| words.split(' '));
        let is_target =
            |word: &&str| !word.starts_with('-') && word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        for target in words.filter(is_target) {
            called += 1;
            assert!(
                makefile.contains(&format!("\n{target}:")),
                "{}: make {target}",
                path.display()
            );
        }
    }
    assert!(called > 5, "found {called} calls of make");
}

/// The numbers that the guide to leases computes with are the code's.
#[test]
fn formulae_of_the_guide_to_leases_are_those_of_the_code() {
    let root = Path::new(ROOT);
    let guide = read_to_string(root.join("docs/leases.md")).expect("the guide");
    for (said, file, code) in [
        (
            "10 s unless set",
            "types/limits.rs",
            "DEFAULT_LEASE: Duration = Duration::from_secs(10)",
        ),
        (
            "from 100 ms to a year",
            "types/limits.rs",
            "LEAST_LEASE: Duration = Duration::from_millis(100)",
        ),
        (
            "from 100 ms to a year",
            "types/limits.rs",
            "MOST_LEASE: Duration = Duration::from_secs(365 * 24 * 3600)",
        ),
        (
            "`L / 6`, but 50 ms to 1 s",
            "types/limits.rs",
            "(lease / 6).clamp(Duration::from_millis(50), Duration::from_secs(1))",
        ),
        (
            "`max(L / 50, 2 ms)`",
            "state/claim.rs",
            "(self.lease / 50).max(Duration::from_millis(2))",
        ),
        (
            "renewed every | `L / 3`",
            "state/claim.rs",
            "self.renewed + self.lease / 3",
        ),
        (
            "`L / 12`, but 25 ms to 0.5 s",
            "transport/pulse.rs",
            "LOOKS_OF_DOUBT: u32 = LOOKS / 2",
        ),
        (
            "two such calls",
            "transport/pulse.rs",
            "TIMEOUTS_BEFORE_RECONNECT: u32 = 2",
        ),
        ("up to 500 of", "protocol/script.rs", "CHUNK: usize = 500"),
    ] {
        let source = read_to_string(root.join("src").join(file)).expect("a source");
        assert!(
            guide.contains(said),
            "the guide to leases does not say {said:?} any more"
        );
        assert!(
            source.contains(code),
            "src/{file} has no {code:?} any more: what of docs/leases.md?"
        );
    }
}

/// In code: after a backtick, or at the beginning of a line of a block. An option may stand anywhere.
fn words_after<'a>(text: &'a str, command: &str) -> Vec<&'a str> {
    let in_block = |at: usize| text[..at].matches("```").count() % 2 == 1;
    let begins = |at: usize| match text[..at].chars().last() {
        Some('`') => true,
        Some('\n') => in_block(at),
        _ => command.starts_with('-'),
    };
    let found = text.match_indices(command).filter(|(at, _)| begins(*at));
    let words = found.map(|(at, _)| {
        let rest = &text[at + command.len()..];
        rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_')
            .next()
            .unwrap_or_default()
    });
    words.filter(|word| !word.is_empty()).collect()
}
