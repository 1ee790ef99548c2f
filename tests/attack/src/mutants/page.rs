//! The catalogue as a page.

use super::{CATALOGUE, Check, Mutant, found, lua};
use std::fmt::Write;

const HEAD: &str = "# Known bugs, and what catches each

`make mutants` puts each of these bugs in and runs the check that must notice it; one that survives is a hole in the
checks. Each check is a part of `make test`, run in the same way: the same tests, the same seeds of the simulation, loom
with the same limit. The bugs that model-check catches are put in by `make test` as well. This page is made by `attack mutants
--page` from the catalogue, `tests/attack/src/mutants/`; a test holds the two together.

Where a bug was seen: *draft* is a bug of the drafts of this protocol, a name with a number is a report against that
project, *found here* is a bug that this crate had, and *invented* one that somebody could make.

| check | what it is |
|---|---|
| model-check | the scripts beside the model, in random sequences: `attack model-check`, and a slice of it in CI |
| losses | the part of it that takes each key and each field away before each call |
| explore, orphans | every sequence of calls of one owner and two writers: `attack explore --cast orphans --policy fifo --depth 20` |
| crowds | the part of it with thousands of requests |
| simulate | the real client in virtual time, under faults: `attack simulate --seed 1 --runs 60`, the slice of it in CI |
| it, lib, attack | a test of `tests/it`, or one inside of the crate or of `tests/attack/src` |
| testing, cli | a test of `testing/tests` or `cli/tests` |
| loom | a model of `make loom` |
";

pub fn text() -> String {
    let mut page = HEAD.to_owned();
    for (title, mutants) in CATALOGUE {
        table(&mut page, title, mutants);
    }
    page.push_str("\n## Retired with layout 1\n\n");
    for (names, why) in lua::RETIRED {
        let _ = writeln!(page, "* {names}: {why}");
    }
    page.push_str("\n## Bugs found here\n\nWhat was wrong with this crate while it was built. Tests are those of `tests/it` unless a file is named.\n\n");
    page.push_str("| the bug | how it was found | what holds it now |\n|---|---|---|\n");
    for found::Bug { what, how, held_by } in found::ALL {
        let tests: Vec<_> = held_by.iter().map(|test| format!("`{test}`")).collect();
        row(&mut page, &[what, how, &tests.join(", ")]);
    }
    page
}

fn table(page: &mut String, title: &str, mutants: &[Mutant]) {
    let _ = write!(
        page,
        "\n## {title}\n\n| mutant | file | the bug | seen | caught by |\n|---|---|---|---|---|\n"
    );
    for mutant in mutants {
        let check = match mutant.check {
            Check::It(name)
            | Check::Lib(name)
            | Check::Loom(name)
            | Check::Attack(name)
            | Check::Testing(name)
            | Check::Cli(name) => {
                let kind = mutant.check.to_string();
                format!("{} `{name}`", kind.split(' ').next().unwrap_or(""))
            }
            other => other.to_string(),
        };
        row(
            page,
            &[
                &format!("`{}`", mutant.name),
                mutant.file,
                mutant.story,
                mutant.seen,
                &check,
            ],
        );
    }
}

fn row(page: &mut String, cells: &[&str]) {
    for cell in cells {
        page.push_str("| ");
        page.push_str(&cell.replace('|', "\\|"));
        page.push(' ');
    }
    page.push_str("|\n");
}
