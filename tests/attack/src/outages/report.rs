//! The table: outage / lease against holds lost.

use super::Kind;
use std::fmt;
use std::time::Duration;

pub struct Report {
    pub seed: u64,
    pub rows: Vec<Row>,
    pub late: Duration,
}

pub struct Row {
    pub kind: Kind,
    /// All of its holds are of one client.
    pub shared: bool,
    pub lease: Duration,
    /// Of the lease: what was asked for.
    pub share: f64,
    /// The longest outage that came of it.
    pub measured: Duration,
    /// Lost, and all, of the holds whose proof ended a quarter of a lease after the outage or later.
    pub promised: (usize, usize),
    pub others: (usize, usize),
}

impl Report {
    /// Holds that were lost against the promise.
    pub fn broken(&self) -> usize {
        self.rows.iter().map(|row| row.promised.0).sum()
    }

    /// Whether the promise covered any hold that met an outage. Otherwise this table says nothing about it.
    pub fn judges(&self) -> bool {
        let mut met = self.rows.iter().filter(|row| row.share > 0.0);
        met.any(|row| row.promised.1 > 0)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lost, all) = (self.promised.0 + self.others.0, self.promised.1 + self.others.1);
        let of = |(lost, all): (usize, usize)| match all {
            0 => "-".to_owned(),
            _ => format!("{lost} of {all}"),
        };
        write!(
            f,
            "{:<6} {:<7} {:>4} s {:>7.2} {:>10.0} ms {:>10} {:>14} {:>14}",
            self.kind,
            if self.shared { "one" } else { "each" },
            self.lease.as_secs(),
            self.share,
            self.measured.as_secs_f64() * 1000.0,
            of((lost, all)),
            of(self.promised),
            of(self.others),
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Holds lost by a silence. \"In time\": it ended a quarter of a lease or more before the hold's proof did."
        )?;
        writeln!(
            f,
            "{:<6} {:<7} {:>6} {:>7} {:>13} {:>10} {:>14} {:>14}",
            "kind", "client", "lease", "share", "measured", "lost", "ended in time", "ended later"
        )?;
        for row in &self.rows {
            writeln!(f, "{row}")?;
        }
        writeln!(
            f,
            "this process was late by {:?} at most; --seed {}",
            self.late, self.seed
        )?;
        match self.broken() {
            _ if !self.judges() => write!(f, "NOTHING JUDGED: no outage ended in time for any hold"),
            0 => write!(f, "no hold was lost by an outage that ended in time"),
            broken => write!(f, "{broken} holds were lost by outages that ended in time"),
        }
    }
}
