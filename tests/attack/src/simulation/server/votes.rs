//! What a server of a quorum does besides: it has a run id, keeps since when its clients know it, tells its clock, and puts
//! votes in their places.

use super::{Done, Server, Subscribed, error};
use crate::record::{Script, What, acquire};
use fairlock_testing::serving::{self, Serving};
use redis::Value;

/// The script without its flags.
pub(super) const LIFE: &str = include_str!("../../../../../lua/life.lua");

/// What the clients of a quorum keep at a server: the run that they know, since when (ms), and what they agree on.
#[derive(Clone, Default)]
pub struct Life {
    known: Option<(String, u64)>,
    stamp: Option<String>,
}

/// How this server takes part in a quorum.
#[derive(Default)]
pub struct Votes {
    pub number: u64,
    runs: u64,
}

impl Votes {
    pub fn restart(&mut self) {
        self.runs += 1;
    }

    fn run_id(&self) -> String {
        format!("{}.{}", self.number, self.runs)
    }
}

fn bulk(text: String) -> Value {
    Value::BulkString(text.into_bytes())
}

pub(super) fn time(now_us: u64) -> Value {
    let parts = [now_us / 1_000_000, now_us % 1_000_000];
    Value::Array(parts.map(|part| bulk(part.to_string())).to_vec())
}

/// What acquire says, and the rest of a quarantine.
pub fn said(argv: &[&str]) -> Option<Vec<String>> {
    let mut said = acquire::said(argv)?;
    said.extend(argv.get(4).map(|rest| (*rest).to_owned()));
    Some(said)
}

impl Server {
    /// Of a quorum the servers have numbers.
    pub fn number(&mut self, number: u64) {
        self.votes.number = number;
    }

    /// Whether an owner that its requests name is inside.
    pub fn is_inside(&self, lock: &str, owner: &str) -> bool {
        self.data
            .locks
            .get(lock)
            .is_some_and(|lock| lock.owners.contains_key(owner))
    }

    /// Whether its clients know it for so many ms.
    pub fn is_known_for(&self, ms: u64, now_us: u64) -> bool {
        let known = self.data.life.known.as_ref();
        known.is_some_and(|(run, since)| *run == self.votes.run_id() && since + ms <= now_us / 1000)
    }

    pub(super) fn info(&self) -> Value {
        bulk(format!("# Server\r\nrun_id:{}\r\n", self.votes.run_id()))
    }

    /// `life.lua`.
    pub(super) fn life(&mut self, run: &str, stamp: &str, now_us: u64) -> Value {
        let now_ms = now_us / 1000;
        let Life { known, stamp: stored } = &mut self.data.life;
        if stored.get_or_insert_with(|| stamp.to_owned()) != stamp {
            return error("QUORUM", "the server belongs to another quorum");
        }
        match known {
            Some((known, since)) if known == run => Value::Int(now_ms.saturating_sub(*since) as i64),
            _ => {
                *known = Some((run.to_owned(), now_ms));
                Value::Int(0)
            }
        }
    }

    pub(super) fn place(
        &mut self,
        key: &str,
        args: &[&str],
        now_us: u64,
        subscribed: Subscribed<'_>,
    ) -> Result<Done, String> {
        let lock = self.data.locks.entry(key.to_owned()).or_default();
        let seq = lock.seq;
        let mut choices = Serving::new(key, self.at_most, subscribed).promoted(self.promoted);
        let outcome = lock.call(key, Script::Place, args, now_us, &mut choices);
        self.calls += 1;
        self.digest = self.digest.rotate_left(5) ^ now_us;
        for number in &outcome.reply {
            self.digest = self.digest.wrapping_mul(0x100_0000_01b3) ^ number.unsigned_abs();
        }
        if let Some(trace) = &mut self.trace
            && !self.trace_ended
        {
            let notes = outcome
                .notes
                .iter()
                .map(|note| format!("; {} {} {}", note.what.name(), note.request, note.token));
            let notes: String = notes.collect();
            trace.push(format!("{now_us} {key} place {args:?} -> {:?}{notes}", outcome.reply));
        }
        for note in outcome
            .notes
            .iter()
            .filter(|note| note.what == What::Granted && note.token > seq)
        {
            let greatest = self.tokens.entry(key.to_owned()).or_default();
            // Within a phase the same.
            *greatest = (*greatest).max(note.token);
            self.grants += 1;
        }
        Ok(Done {
            reply: serving::reply(&outcome),
            published: choices.published(outcome.messages).collect(),
        })
    }
}
