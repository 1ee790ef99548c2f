//! The journals of a run as a file of JSON lines, which `make spec` checks against the specification (`tests/spec`).
//!
//! A line is a record of one lock, or a `break`: what the lock's next record follows on is not known from the lines before it.

use crate::record::Record;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

pub struct Log(File);

impl Log {
    pub fn create(path: &Path) -> io::Result<Self> {
        File::create(path).map(Self)
    }

    pub fn records(&mut self, records: &[Record]) -> io::Result<()> {
        self.write(records.iter().map(line))
    }

    /// Keys of this lock were deleted (`damaged`), or its journal went back (`lost`).
    pub fn broken(&mut self, lock: &str, why: &str) -> io::Result<()> {
        self.write([json!({ "lock": lock, "break": why })])
    }

    /// The server was emptied: all locks are as new.
    pub fn emptied(&mut self) -> io::Result<()> {
        self.write([json!({ "break": "emptied" })])
    }

    /// Whole lines in one write, because nobody flushes at the end.
    fn write(&mut self, lines: impl IntoIterator<Item = Value>) -> io::Result<()> {
        let text: String = lines.into_iter().map(|line| format!("{line}\n")).collect();
        self.0.write_all(text.as_bytes())
    }
}

fn line(record: &Record) -> Value {
    let notes = record.notes.iter();
    let notes: Vec<_> = notes
        .map(|note| json!([note.what.name(), note.request, note.token]))
        .collect();
    json!({
        "lock": record.lock,
        "at": record.at_us,
        "script": record.script.name(),
        "args": record.args,
        "reply": record.reply,
        "notes": notes,
    })
}
