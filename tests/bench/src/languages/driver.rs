//! A driver: the process that runs the locks of one language. tests/bench/peers/README.md has what the two say.

use super::contestant::{Contention, Contestant, Grants, Side};
use super::toolchain;
use crate::worker::Worker;

/// Each is built from a folder of tests/bench/peers.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Go,
    Java,
    Node,
}

pub const ALL: [Kind; 3] = [Kind::Go, Kind::Java, Kind::Node];

impl Kind {
    pub fn language(self) -> &'static str {
        match self {
            Self::Go => "Go",
            Self::Java => "Java",
            Self::Node => "Node.js",
        }
    }

    /// What nobody measures if this driver cannot be had.
    fn locks(self) -> &'static [&'static str] {
        match self {
            Self::Go => &["redsync"],
            Self::Java => &["RLock", "RFairLock", "RReadWriteLock"],
            Self::Node => &["redis-rwlock"],
        }
    }
}

/// A lock that could not be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    pub language: &'static str,
    pub name: String,
    pub why: String,
}

/// What a driver says of a lock before it is ready.
#[derive(Debug, PartialEq)]
struct Offer {
    name: String,
    version: String,
    note: String,
}

pub struct Driver {
    kind: Kind,
    process: Worker,
    offers: Vec<Offer>,
    pub missing: Vec<Missing>,
}

impl Driver {
    /// Builds and starts a driver of locks over these servers: more than one only in Go. An error says what is missing here: a
    /// toolchain, packages, the network.
    pub async fn start(kind: Kind, urls: &[String]) -> Result<Self, Vec<Missing>> {
        let started = match toolchain::build(kind).await {
            Ok(mut command) => {
                command.args(urls);
                Worker::of(command).map_err(|error| format!("the driver does not start: {error}"))
            }
            Err(why) => Err(why),
        };
        let mut driver = Self {
            kind,
            process: started.map_err(|why| all_missing(kind, &why))?,
            offers: Vec::new(),
            missing: Vec::new(),
        };
        while let Some(line) = driver.process.hear_unless_ended().await {
            match read(kind, &line) {
                Line::Ready => return Ok(driver),
                Line::Offer(offer) => driver.offers.push(offer),
                Line::Missing(missing) => driver.missing.push(missing),
            }
        }
        Err(all_missing(kind, "the driver ended before it was ready"))
    }

    /// `index`: of this driver among all.
    pub fn contestants(&self, index: usize) -> impl Iterator<Item = Contestant> {
        self.offers.iter().map(move |offer| {
            let side = Side::There(index);
            Contestant::new(self.kind.language(), &offer.name, &offer.version, &offer.note, side)
        })
    }

    pub async fn cycles(&mut self, name: &str, n: usize) -> f64 {
        let nanoseconds: usize = self.numbers(&format!("cycles {name} {n}")).await.iter().sum();
        nanoseconds as f64 / 1e3 / n as f64
    }

    pub async fn contend(&mut self, name: &str, contention: Contention) -> Grants {
        let Contention { contenders, time, hold } = contention;
        let mut command = format!("contend {name} {contenders} {}", time.as_millis());
        match self.kind {
            Kind::Go => command += &format!(" {}", hold.as_micros()),
            Kind::Java | Kind::Node => assert!(hold.is_zero(), "only the driver of Go can hold a lock"),
        }
        let (language, reply) = (self.kind.language(), self.numbers(&command).await);
        let (within, all, changed, unevenness, held) = match reply[..] {
            [within, all, changed] => (within, all, changed, None, None),
            [within, all, changed, longest, waits, holds] => {
                let unevenness = longest as f64 * all as f64 / waits as f64;
                (
                    within,
                    all,
                    changed,
                    Some(unevenness),
                    Some(holds as f64 / 1e3 / all as f64),
                )
            }
            _ => panic!("the driver of {language} replied {reply:?} to {command:?}"),
        };
        Grants {
            within,
            all,
            changed,
            unevenness,
            held,
        }
    }

    async fn numbers(&mut self, command: &str) -> Vec<usize> {
        self.process.say(command).await;
        let reply = self.process.hear_unless_ended().await;
        let language = self.kind.language();
        let reply = reply.unwrap_or_else(|| panic!("the driver of {language} ended after {command:?}"));
        let numbers: Option<Vec<usize>> = reply.split(' ').map(|word| word.parse().ok()).collect();
        numbers.unwrap_or_else(|| panic!("the driver of {language} replied {reply:?} to {command:?}"))
    }
}

fn all_missing(kind: Kind, why: &str) -> Vec<Missing> {
    let missing = |name: &&str| Missing {
        language: kind.language(),
        name: (*name).to_owned(),
        why: why.to_owned(),
    };
    kind.locks().iter().map(missing).collect()
}

#[derive(Debug, PartialEq)]
enum Line {
    Offer(Offer),
    Missing(Missing),
    Ready,
}

fn read(kind: Kind, line: &str) -> Line {
    let mut words = line.splitn(4, ' ');
    let mut word = || words.next().unwrap_or_default().to_owned();
    match word().as_str() {
        "ready" => Line::Ready,
        "peer" => Line::Offer(Offer {
            name: word(),
            version: word(),
            note: word(),
        }),
        "missing" => Line::Missing(Missing {
            language: kind.language(),
            name: word(),
            why: format!("{} {}", word(), word()).trim_end().to_owned(),
        }),
        _ => panic!("the driver of {} says {line:?}", kind.language()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_offers_its_locks_and_says_which_are_missing() {
        let offer = Line::Offer(Offer {
            name: "redsync".to_owned(),
            version: "4.1".to_owned(),
            note: "polls every 1 ms".to_owned(),
        });
        assert_eq!(read(Kind::Go, "peer redsync 4.1 polls every 1 ms"), offer);
        let missing = Line::Missing(Missing {
            language: "Node.js",
            name: "redis-rwlock".to_owned(),
            why: "npm did not get it".to_owned(),
        });
        assert_eq!(read(Kind::Node, "missing redis-rwlock npm did not get it"), missing);
        assert_eq!(read(Kind::Java, "ready"), Line::Ready);
    }

    #[test]
    fn without_its_driver_every_lock_of_a_language_is_missing() {
        let names: Vec<String> = all_missing(Kind::Java, "mvn is not installed")
            .into_iter()
            .map(|missing| format!("{} {}: {}", missing.language, missing.name, missing.why))
            .collect();
        assert_eq!(
            names,
            [
                "Java RLock: mvn is not installed",
                "Java RFairLock: mvn is not installed",
                "Java RReadWriteLock: mvn is not installed",
            ]
        );
    }
}
