//! A call of a script: the model carries it out, and the judges of the server look at it.

use super::{Done, Server, Subscribed, done, votes};
use crate::model::Lock;
use crate::record::{Note, Record, Script, What};
use fairlock_testing::serving::{self, Called, Serving};
use fairlock_testing::status::status;
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::time::Instant;

impl Server {
    pub(super) fn call(
        &mut self,
        called: Called,
        command: &[Vec<u8>],
        now_us: u64,
        subscribed: Subscribed<'_>,
    ) -> Result<Done, String> {
        self.calls += 1;
        let mut words = Vec::with_capacity(command.len());
        for word in command {
            words.push(std::str::from_utf8(word).map_err(|_| "an argument that is not text")?);
        }
        let [_, _, "3", key, _, _, argv @ ..] = words.as_slice() else {
            return Err(format!("a script with other keys or arguments: {:?}", &words[2..]));
        };
        let script = match called {
            Called::Change(Script::Place) => return self.place(key, &argv[1..], now_us, subscribed),
            Called::Change(script) => script,
            Called::Status => {
                let lock = self.data.locks.get(*key);
                let lock = lock.map_or_else(|| Cow::Owned(Lock::default()), Cow::Borrowed);
                if let Some(trace) = &mut self.trace
                    && !self.trace_ended
                {
                    trace.push(format!("{now_us} {key} status {:?}", &argv[1..]));
                }
                return Ok(done(status(&lock, &argv[1..], now_us)));
            }
        };
        let args = match script {
            Script::Acquire => votes::said(argv).ok_or("an acquire without arguments")?,
            _ => argv.iter().skip(1).map(|arg| (*arg).to_owned()).collect(),
        };
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let lock = self.data.locks.entry((*key).to_owned()).or_default();
        let mut seq = lock.seq;
        let mut choices = Serving::new(key, self.at_most, subscribed).promoted(self.promoted);
        let mut outcome = lock.call(key, script, &args, now_us, &mut choices);
        if !outcome.notes.is_empty()
            && let Some(circles) = &mut self.circles
        {
            circles.look(key, lock);
        }
        self.digest = self.digest.rotate_left(5) ^ now_us;
        for number in &outcome.reply {
            self.digest = self.digest.wrapping_mul(0x100_0000_01b3) ^ number.unsigned_abs();
        }
        for Note { what, request, token } in &outcome.notes {
            if *what != What::Granted {
                self.given.retain(|_, (_, to)| to != request);
                continue;
            }
            self.grants += 1;
            // A reentry has its owner's token.
            if *token <= seq {
                continue;
            }
            seq = *token;
            let greatest = self.tokens.entry((*key).to_owned()).or_default();
            if token <= greatest && !self.backward {
                return Err(format!(
                    "{key}: {request} was granted with token {token} after {greatest}"
                ));
            }
            *greatest = (*greatest).max(*token);
            let given = (Instant::now(), request.clone());
            self.given.insert(((*key).to_owned(), *token), given);
            if self.given.len() > 1000 {
                self.given.pop_first();
            }
        }
        outcome.notes.extend(outcome.cut.drain(..).map(|request| Note {
            what: What::Cut,
            request: request.to_string(),
            token: 0,
        }));
        let reply = serving::reply(&outcome);
        if self.checked || self.trace.is_some() {
            let record = Record {
                lock: (*key).to_owned(),
                at_us: now_us,
                script,
                args: args.iter().map(|arg| (*arg).to_owned()).collect(),
                reply: outcome.told(),
                notes: outcome.notes,
            };
            if let Some(trace) = &mut self.trace
                && !self.trace_ended
            {
                trace.push(record.to_string());
            }
            if self.checked {
                let checker = &mut self.data.checker;
                // So that a trace is left of what made it panic.
                let checked = catch_unwind(AssertUnwindSafe(|| checker.check(&record)));
                let checked = checked.map_err(|_| format!("the checker panicked at {record}"))?;
                checked.map_err(|violation| violation.to_string())?;
            }
        }
        Ok(Done {
            reply,
            published: choices.published(outcome.messages).collect(),
        })
    }
}
