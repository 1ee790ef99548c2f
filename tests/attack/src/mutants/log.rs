//! The log of a run, which a later run continues: a line that says of what it speaks, and the rows.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

pub struct Log {
    file: File,
    /// Whether each was caught.
    judged: BTreeMap<String, bool>,
}

impl Log {
    /// `Err`: it speaks of something else.
    pub fn open(path: &Path, root: &Path, seed: u64, steps: u64) -> Result<Self, String> {
        let commit = commit(root)?;
        Self::continued(
            path,
            &format!("mutants at {commit}, FAIRLOCK_SEED={seed}, {steps} calls"),
        )
        .map_err(|error| format!("{}: {error}", path.display()))
    }

    fn continued(path: &Path, of_what: &str) -> io::Result<Self> {
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let text = io::read_to_string(&file)?;
        // A run that was killed may have left half a row.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let mut lines = text[..whole].lines();
        match lines.next() {
            None => {
                file.set_len(0)?;
                file.rewind()?;
                writeln!(file, "{of_what}")?;
            }
            Some(line) if line == of_what => {
                file.set_len(whole as u64)?;
                file.seek(SeekFrom::End(0))?;
            }
            Some(line) => {
                let why = format!("it speaks of {line}, and this run of {of_what}: choose another file");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        }
        let judged = lines.filter_map(verdict).collect();
        Ok(Self { file, judged })
    }

    /// Whether the mutant was caught. `None`: the log has no verdict on it.
    pub fn is_caught(&self, mutant: &str) -> Option<bool> {
        self.judged.get(mutant).copied()
    }

    pub fn row(&self, row: &str) -> io::Result<()> {
        // In one piece, as several threads have rows.
        (&self.file).write_all(format!("{row}\n").as_bytes())
    }
}

/// The mutant of a row, and whether it was caught. One that could not be tried has no verdict.
fn verdict(row: &str) -> Option<(String, bool)> {
    let mut words = row.split_whitespace().skip(1);
    let mutant = words.next()?;
    match words.next()? {
        "caught" => Some((mutant.to_owned(), true)),
        "SURVIVED" => Some((mutant.to_owned(), false)),
        _ => None,
    }
}

/// What is checked out. `Err`: something else is in the tree too, so that no commit says what a run was of.
fn commit(root: &Path) -> Result<String, String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(arguments).output();
        let output = output.map_err(|error| format!("git: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(format!("git: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    };
    match git(&["status", "--porcelain", "--untracked-files=no"])?.as_str() {
        "" => git(&["rev-parse", "HEAD"]),
        changes => Err(format!(
            "a log speaks of a commit, and this is not committed:\n{changes}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_continued_where_its_last_whole_row_ended() {
        let path = std::env::temp_dir().join(format!("fairlock-mutants-{}.txt", std::process::id()));
        let log = Log::continued(&path, "one commit").expect("a new log");
        log.row("  1/3  first       caught     0.1 s  model-check: step 4")
            .expect("a row");
        log.row("  2/3  second      SURVIVED   0.1 s  model-check")
            .expect("a row");
        log.row("  3/3  third       BROKEN     0.0 s  too busy").expect("a row");
        log.row("  3/3  third       caught     0.0").expect("a row");
        let whole = std::fs::read_to_string(&path).expect("the log");
        let torn = whole.trim_end_matches('\n');
        std::fs::write(&path, torn).expect("half a row");

        let log = Log::continued(&path, "one commit").expect("a log that goes on");
        let verdicts = ["first", "second", "third"].map(|mutant| log.is_caught(mutant));
        assert_eq!(verdicts, [Some(true), Some(false), None]);
        log.row("  3/3  third       caught     0.2 s  it x").expect("a row");
        let text = std::fs::read_to_string(&path).expect("the log");
        assert!(
            text.ends_with("too busy\n  3/3  third       caught     0.2 s  it x\n"),
            "{text}"
        );

        let refused = Log::continued(&path, "another commit")
            .err()
            .expect("it speaks of another");
        assert!(refused.to_string().contains("choose another file"), "{refused}");
        assert_eq!(
            std::fs::read_to_string(&path).expect("the log"),
            text,
            "it is as it was"
        );
        std::fs::remove_file(&path).expect("it was there");
    }
}
