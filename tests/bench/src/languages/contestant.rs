//! One lock or floor, wherever it runs, and its figures of each round.

use super::driver::Driver;
use super::local::Local;
use crate::report::median;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The name of every language's floor.
pub const FLOOR: &str = "floor";

/// Where a contestant runs.
pub enum Side {
    Here(Local),
    /// In the process of the driver with this index.
    There(usize),
}

pub struct Contestant {
    pub language: &'static str,
    pub name: String,
    pub version: String,
    pub note: String,
    pub side: Side,
    pub figures: BTreeMap<&'static str, Vec<f64>>,
}

/// Contenders want the lock again and again.
#[derive(Clone, Copy, Debug)]
pub struct Contention {
    pub contenders: usize,
    pub time: Duration,
    /// In other languages than Rust and Go none.
    pub hold: Duration,
}

/// What contenders got.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Grants {
    /// In the time that was to be measured.
    pub within: usize,
    /// With those who still waited then.
    pub all: usize,
    /// How many of all went to another contender than the grant before.
    pub changed: usize,
    /// The longest wait of all / the mean wait. `None`: the driver does not tell.
    pub unevenness: Option<f64>,
    /// The mean time from an acquire to its release, in microseconds, if the driver tells.
    pub held: Option<f64>,
}

impl Contestant {
    pub fn new(language: &'static str, name: &str, version: &str, note: &str, side: Side) -> Self {
        Self {
            language,
            name: name.to_owned(),
            version: version.to_owned(),
            note: note.to_owned(),
            side,
            figures: BTreeMap::new(),
        }
    }

    /// Microseconds of an acquire and a release of a free lock.
    pub async fn cycles(&mut self, drivers: &mut [Driver], n: usize) -> f64 {
        match &mut self.side {
            Side::Here(local) => local.cycles(n).await,
            Side::There(driver) => drivers[*driver].cycles(&self.name, n).await,
        }
    }

    pub async fn contend(&mut self, drivers: &mut [Driver], contention: Contention) -> Grants {
        match &mut self.side {
            Side::Here(local) => local.contend(contention).await,
            Side::There(driver) => drivers[*driver].contend(&self.name, contention).await,
        }
    }

    pub fn record(&mut self, figure: &'static str, number: f64) {
        self.figures.entry(figure).or_default().push(number);
    }

    /// Of this round.
    pub fn last(&self, figure: &str) -> f64 {
        let rounds = self.figures.get(figure).expect("recorded before");
        *rounds.last().expect("recorded before")
    }

    /// Each figure as its median, its least and its greatest round.
    pub fn json(&self) -> Value {
        let figures: Map<String, Value> = self
            .figures
            .iter()
            .map(|(name, rounds)| {
                let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
                let greatest = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                ((*name).to_owned(), json!([median(rounds), least, greatest]))
            })
            .collect();
        json!({
            "language": self.language, "name": self.name, "version": self.version, "note": self.note,
            "figures": figures,
        })
    }
}
