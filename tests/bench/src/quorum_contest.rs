//! Contenders for one lock of a quorum, of each contestant in turn: how many of them enter, and how unevenly.

use crate::languages::{Contention, Contestant, Driver};
use crate::report::{Goal, Report};
use std::time::Duration;

/// Where a contest takes place, and for how long its contenders hold the lock.
#[derive(Clone, Copy)]
pub struct Place {
    /// In the names of its rows.
    pub key: &'static str,
    /// After the number of contenders.
    pub title: &'static str,
    pub hold: Duration,
}

pub const CONTENDERS: [usize; 3] = [2, 8, 64];
pub const CONTENTION: Duration = Duration::from_millis(300);

pub struct Contest {
    place: Place,
    pub contention: Contention,
    /// Grants per second, of each contestant in each round. Ours is the first.
    grants: Vec<Vec<f64>>,
    /// Longest wait / mean wait.
    unevenness: Vec<Vec<f64>>,
    /// The mean hold, in microseconds.
    held: Vec<Vec<f64>>,
    /// Turns per second of a token that goes around as many tasks.
    pub turns: Vec<f64>,
}

impl Contest {
    /// One for each number of contenders.
    pub fn all(place: Place, contestants: usize) -> [Self; CONTENDERS.len()] {
        CONTENDERS.map(|contenders| Self::new(place, contenders, contestants))
    }

    fn new(place: Place, contenders: usize, contestants: usize) -> Self {
        let none = vec![Vec::new(); contestants];
        Self {
            place,
            contention: Contention {
                contenders,
                time: CONTENTION,
                hold: place.hold,
            },
            grants: none.clone(),
            unevenness: none.clone(),
            held: none,
            turns: Vec::new(),
        }
    }

    /// Returns how many entered.
    pub async fn turn(&mut self, at: usize, all: &mut [Contestant], drivers: &mut [Driver]) -> usize {
        let got = all[at].contend(drivers, self.contention).await;
        self.grants[at].push((got.within as f64).max(1.0) / CONTENTION.as_secs_f64());
        self.unevenness[at].extend(got.unevenness);
        self.held[at].extend(got.held);
        got.all
    }

    /// Of each round, beside the best of the peers whose names begin so.
    fn beside(&self, ours: &[f64], all: &[Contestant], named: &str) -> Vec<f64> {
        let best = |round: usize| {
            let peers = all.iter().zip(&self.grants).skip(1);
            let theirs = peers.filter(|(peer, _)| peer.name.starts_with(named));
            theirs.map(|(_, rates)| rates[round]).reduce(f64::max)
        };
        let ratios = ours.iter().enumerate();
        ratios
            .filter_map(|(round, ours)| Some(ours / best(round)?.max(1.0)))
            .collect()
    }

    pub fn report(&self, report: &mut Report, count: usize, all: &[Contestant]) {
        let (Place { key, title, hold }, contenders) = (self.place, self.contention.contenders);
        let who = format!("{contenders} contenders{title}");
        let key = |what: &str| format!("quorum_{count}{key}_{contenders}{what}");
        for (at, contestant) in all.iter().enumerate() {
            let key = |what: &str| key(&format!("_{}_{what}", contestant.name));
            report.beside(&key("grants"), &format!("grants per second, {who}"), &self.grants[at]);
            if at > 0 && !self.unevenness[at].is_empty() {
                let unit = format!("longest wait / mean wait, {who}");
                report.beside(&key("waits"), &unit, &self.unevenness[at]);
            }
            if !hold.is_zero() && !self.held[at].is_empty() {
                report.beside(&key("holds"), &format!("us of a hold, {who}"), &self.held[at]);
            }
        }
        let grants_of = format!("{count} servers: grants per second, {who}");
        let redsync = self.beside(&self.grants[0], all, "redsync");
        if !redsync.is_empty() {
            // From 8 contenders on: issue 5.
            let goal = match contenders {
                8.. => Goal::AtLeast(1.3),
                _ => Goal::None,
            };
            report.row(
                &key(""),
                &format!("{grants_of} / redsync's best setting"),
                goal,
                &redsync,
            );
        }
        let best = self.beside(&self.grants[0], all, "");
        report.row(
            &key("_best"),
            &format!("{grants_of} / the best peer's"),
            Goal::None,
            &best,
        );
        if !self.turns.is_empty() {
            let title = format!(
                "{count} servers: turns per second of a token among {contenders} tasks{title} / the best peer's grants"
            );
            let turns = self.beside(&self.turns, all, "");
            report.row(&key("_ring"), &title, Goal::None, &turns);
        }
        let title = format!("{count} servers: longest wait / mean wait, {who}");
        report.row(&key("_waits"), &title, Goal::AtMost(2.5), &self.unevenness[0]);
    }
}
