//! A call of the story on the scripts and on the model, and what must be the same.

use super::{CONFUSED, Doing, LONGEST_MS, Part, ROUND_LEASE_MS, ROUNDS, Story};
use crate::clients::says_more;
use crate::invariants;
use crate::judge::judge;
use crate::lua_world::{Seen, Step};
use crate::model::{GRANTED, Lock, NOBODY, QUEUED, owner_of};
use crate::record::{Script, What};

impl<'a> Story<'a> {
    /// A fresh upgrade, a named owner, a try, a writer: of a lock that nobody uses all must enter.
    pub(super) fn probe(&mut self, n: usize) {
        let lease = ROUND_LEASE_MS.to_string();
        let mut enter = |name: &str, when: &str| {
            let args = [name, &lease, when, self.policy, ""];
            self.todo.push_back(Doing::Call {
                step: Step::new(Script::Acquire, &args, self.now_us),
                heard: true,
            });
        };
        let release = |requests: &[&str]| Doing::Call {
            step: Step::new(Script::Release, requests, self.now_us),
            heard: true,
        };
        let (a, b) = (self.next_number, self.next_number + 1);
        match n {
            0 => {
                let (read, write) = (format!("r8:{a}"), format!("w8:{b}:8:{a}"));
                enter(&read, "queue");
                enter(&write, "queue");
                self.todo.push_back(release(&[&write, &read]));
            }
            1 => {
                let write = format!("w8:{a}");
                enter(&write, "try");
                self.todo.push_back(release(&[&write]));
            }
            n if n < 6 => {
                let write = format!("w8:{a}:{}", ["a", "ba", "c", "1:1"][n - 2]);
                enter(&write, "queue");
                self.todo.push_back(release(&[&write]));
            }
            _ => {
                self.counts.recovered += 1;
                return self.part = Part::Over;
            }
        }
        self.next_number += 2;
        self.part = Part::Probes(n + 1);
    }

    pub(super) fn call(&mut self, script: Script, args: Vec<String>) {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let step = Step::new(script, &args, self.now_us);
        self.todo.push_back(Doing::Call { step, heard: true });
    }

    /// What became of a call. `Err`: it was wrong.
    pub fn seen(&mut self, doing: &Doing, seen: Seen) -> Result<(), String> {
        let Doing::Call { step, heard } = doing else {
            unreachable!("a loss has no reply");
        };
        self.counts.steps += 1;
        let notes = seen.events.iter().flat_map(|(_, notes)| notes);
        for note in notes {
            self.counts.granted += u64::from(note.what == What::Granted);
            self.counts.resets += u64::from(note.what == What::Reset);
            self.counts.given_up += u64::from(step.script == Script::Place && note.what == What::Queued);
            self.counts.quarantines += u64::from(note.what == What::Granted && note.request == NOBODY);
        }
        self.counts.unfinished += u64::from(says_more(step, &seen.reply));
        self.counts.late += u64::from(!heard);
        if step.script == Script::Acquire && seen.reply[0] == QUEUED {
            self.tickets.push(seen.reply[1]);
        }
        self.calls.push((step.script, step.args.clone()));
        self.clients.note(step, &seen, *heard)?;
        self.expiries = seen.expiries;
        match self.part {
            Part::Confused(_) | Part::Round(_) | Part::Away => self.adopt(&seen),
            _ => self.judge(step, &seen)?,
        }
        if matches!(self.part, Part::Probes(_)) && step.script == Script::Acquire && seen.reply[0] != GRANTED {
            return Err(format!("a probe is answered {:?}", seen.reply));
        }
        let confused = matches!(self.part, Part::Round(_) | Part::Leave | Part::Away);
        if confused && self.todo.is_empty() && says_more(step, &seen.reply) {
            self.call(Script::Renew, Vec::new());
        }
        self.latest_ms = self.latest_ms.max(self.lock.last_ms);
        self.last = Some(seen);
        self.recovered()
    }

    pub(super) fn judge(&mut self, step: &Step, seen: &Seen) -> Result<(), String> {
        let before = if seen.expired[0] {
            Lock::default()
        } else {
            self.lock.clone()
        };
        let (lock, outcome) = judge(&self.lock, &self.key, step, seen)?;
        let settled = !outcome.unfinished;
        invariants::of_state(&lock, settled)
            .and_then(|()| invariants::of_call(&before, step, &outcome, &lock))
            .and_then(|()| invariants::of_repetition(step, &outcome, &lock))
            .map_err(|what| format!("the model itself: {what}"))?;
        self.lock = lock;
        Ok(())
    }

    /// Takes what is shown for what is.
    pub(super) fn adopt(&mut self, seen: &Seen) {
        let policy = Some(self.policy.bytes().next());
        let view = seen.view.clone().unwrap_or_default();
        self.lock = Lock::from_view(&view, policy, LONGEST_MS);
        self.lock.excess_ms = self.latest_ms.saturating_sub(self.lock.last_ms);
    }

    /// After the rounds everything must be as if nothing had happened.
    pub(super) fn recovered(&mut self) -> Result<(), String> {
        if self.part != Part::Round(ROUNDS) || !self.todo.is_empty() || self.clients.busy() {
            return Ok(());
        }
        if self.counted_wrong() {
            self.part = Part::Away;
            return Ok(());
        }
        self.part = Part::Again;
        let view = self
            .last
            .as_ref()
            .and_then(|seen| seen.view.clone())
            .unwrap_or_default();
        let counted = self.lock.view();
        if (&counted.mode, counted.writes, &counted.holders) != (&view.mode, view.writes, &view.holders) {
            return Err(format!("status shows {view:?}, and its requests make {counted:?}"));
        }
        invariants::of_state(&self.lock, true)?;
        self.clients.agree(&view)
    }

    /// What the state says of a named owner is not compared with its requests, so a loss of it may last for as long as they
    /// do: fewer read holds than there are, or a second place in the queue.
    pub(super) fn counted_wrong(&self) -> bool {
        let lost = self.lost.as_deref().unwrap_or_default();
        let counts = |owner: &str| self.lock.alive().filter(|request| owner_of(request) == owner).count();
        match lost.strip_prefix("field r:") {
            Some(owner) => counts(owner) > 0,
            None => lost.strip_prefix("field q:").is_some_and(|owner| counts(owner) > 1),
        }
    }

    /// What was lost, and how much there was to lose. Returns whether the story goes on.
    pub fn lost(&mut self, lost: Option<String>, losable: usize) -> bool {
        self.counts.losable = losable;
        // The counter may be ahead of the clock. If it is lost before the clock has passed it, numbers come again.
        self.now_us = self.now_us.max(self.lock.seq) + 2_000;
        self.lost.clone_from(&lost);
        let innocent = ["queue", "field policy", "field seq"];
        let marks = |lost: &str| lost.starts_with("field q:") || innocent.contains(&lost);
        self.clients.exclusive = lost.as_deref().is_some_and(marks);
        self.part = if lost.is_some() {
            // Who waits may have had no reply, and asks again before anybody renews.
            let waiting = self.clients.waiting().filter(|_| self.at.is_multiple_of(2));
            for request in waiting.map(str::to_owned).collect::<Vec<_>>() {
                let args = [&request, &ROUND_LEASE_MS.to_string(), "queue", self.policy, ""];
                self.call(Script::Acquire, args.map(str::to_owned).to_vec());
            }
            Part::Confused(self.at + CONFUSED)
        } else {
            Part::Over
        };
        lost.is_some()
    }
}
