//! A server without a network: the commands that clients send, carried out by the model of the scripts.

mod calls;
mod trace;
mod votes;

use super::circles::Circles;
use super::looks::Notes;
use crate::checker::Checker;
use crate::model::{Inside, Lock, Name, View, named_owner, owner_of};
use crate::record::Script;
use fairlock::Mode;
use fairlock_testing::serving::Called;
use redis::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
pub use trace::Trace;
use votes::Votes;

/// What a command does.
pub struct Done {
    pub reply: Value,
    /// Channel and payload.
    pub published: Vec<(String, Vec<u8>)>,
}

/// Who is subscribed to a channel.
type Subscribed<'a> = &'a dyn Fn(&str) -> bool;

/// What survives a restart, or does not.
#[derive(Clone, Default)]
pub struct Data {
    locks: BTreeMap<String, Lock>,
    notes: Notes,
    life: votes::Life,
    checker: Checker,
}

pub struct Server {
    data: Data,
    /// Which scripts it has loaded.
    loaded: BTreeSet<Called>,
    /// It has the clients' library of functions.
    functions: bool,
    /// Greatest token of each lock, whatever the server forgot meanwhile.
    tokens: BTreeMap<String, u64>,
    /// When each token that nobody has in hand yet was given out, and to which request.
    given: BTreeMap<(String, u64), (Instant, String)>,
    pub grants: u64,
    pub calls: u64,
    /// All that happened so far, in one number.
    pub digest: u64,
    pub trace: Option<Trace>,
    trace_ended: bool,
    /// Whether to check the journal; costs a third of the time.
    checked: bool,
    /// What one call does at most: then it says "call again".
    at_most: usize,
    /// It was a replica, and was not started again since.
    pub promoted: bool,
    /// Its clock was stepped back: then tokens may, once its data are lost.
    pub backward: bool,
    votes: Votes,
    /// Who waits for whom, where owners may deadlock.
    pub circles: Option<Circles>,
}

pub fn error(code: &str, text: &str) -> Value {
    // As the client library reads an error reply.
    match redis::parse_redis_value(format!("-{code} {text}\r\n").as_bytes()) {
        Ok(value) => value,
        Err(error) => unreachable!("an error reply that cannot be read: {error}"),
    }
}

/// Users do not see the weight in the name of an owner.
fn is_owner(name: &str, owner: &str) -> bool {
    name.split(":*").next() == Some(owner)
}

fn done(reply: Value) -> Done {
    Done {
        reply,
        published: Vec::new(),
    }
}

impl Server {
    pub fn new(at_most: usize, checked: bool, traced: bool) -> Self {
        Self {
            data: Data::default(),
            loaded: BTreeSet::new(),
            functions: false,
            tokens: BTreeMap::new(),
            given: BTreeMap::new(),
            grants: 0,
            calls: 0,
            digest: 0,
            trace: traced.then(Trace::default),
            trace_ended: false,
            checked,
            at_most,
            promoted: false,
            backward: false,
            votes: Votes::default(),
            circles: None,
        }
    }

    /// What comes after a violation would hide what came before it.
    pub fn trace_ends(&mut self) {
        self.trace_ended = true;
    }

    pub fn data(&self) -> Data {
        self.data.clone()
    }

    /// Starts again with what is left. Scripts have to be loaded again.
    pub fn restart(&mut self, data: Data) {
        self.data = data;
        self.data.checker.went_back();
        self.loaded.clear();
        self.functions = false;
        self.promoted = false;
        self.votes.restart();
        self.changed();
    }

    /// Locks changed otherwise than by a call.
    fn changed(&mut self) {
        if let Some(circles) = &mut self.circles {
            circles.forget();
            self.data.locks.iter().for_each(|(key, lock)| circles.look(key, lock));
        }
    }

    /// A key of one lock is deleted: nobody holds or waits any more, as the scripts have it when they notice. The numbers
    /// go with the state, or stay with it. Returns whether there was a lock.
    pub fn lose(&mut self, which: u64, numbers_too: bool) -> bool {
        let Data { locks, checker, .. } = &mut self.data;
        let number = which as usize % locks.len().max(1);
        let Some((key, lock)) = locks.iter_mut().nth(number) else {
            return false;
        };
        let policy = if numbers_too { None } else { lock.policy };
        let mut view = View::default();
        if !numbers_too {
            (view.packed.seq, view.packed.token, view.packed.first) = (lock.seq, lock.token, lock.first);
        }
        *lock = Lock::from_view(&view, policy, 0);
        checker.state_lost(Some(key));
        self.changed();
        true
    }

    /// Whether a hold with this token has lasted until now.
    pub fn lasts(&self, lock: u64, owner: &str, mode: Mode, token: u64) -> bool {
        let lock = self.data.locks.get(&format!("fairlock:{{lock {lock}}}"));
        let of_owner = |(name, _): &(&Name, &Inside)| is_owner(name, owner);
        lock.and_then(|lock| Some((lock, lock.owners.iter().find(of_owner)?.1)))
            .is_some_and(|(lock, inside)| match mode {
                Mode::Read => lock.first <= token,
                Mode::Write => inside.writes > 0 && lock.token == token,
            })
    }

    /// Whether an owner that its requests name holds a lock or waits for it.
    pub fn knows(&self, lock: u64, owner: &str) -> bool {
        let lock = self.data.locks.get(&format!("fairlock:{{lock {lock}}}"));
        lock.is_some_and(|lock| lock.alive().any(|request| named_owner(request) == Some(owner)))
    }

    pub fn restart_empty(&mut self) {
        self.restart(Data::default());
    }

    /// How long ago the server gave out a token to that owner; only once.
    pub fn since_grant(&mut self, lock: u64, owner: &str, token: u64) -> Option<Duration> {
        let key = (format!("fairlock:{{lock {lock}}}"), token);
        self.given.get(&key).filter(|(_, to)| is_owner(owner_of(to), owner))?;
        Some(self.given.remove(&key)?.0.elapsed())
    }

    /// `called`: the hash of a script, or the name of a function.
    pub fn is_acquire(&self, called: &[u8]) -> bool {
        let called = std::str::from_utf8(called).unwrap_or("");
        let script = Called::of_hash(called).or_else(|| Called::of_function(called));
        script == Some(Called::Change(Script::Acquire))
    }

    pub fn flush_scripts(&mut self) {
        self.loaded.clear();
        self.functions = false;
    }

    /// Keys whose time has come are gone; no lease in them may still run.
    pub fn expire(&mut self, now_us: u64) -> Result<(), String> {
        let now_ms = now_us / 1000;
        let Data { locks, checker, .. } = &mut self.data;
        let due = |lock: &Lock| lock.forgotten_at_ms() <= now_ms;
        for (key, lock) in locks.iter().filter(|(_, lock)| due(lock)) {
            if lock.latest_deadline_ms().is_some_and(|deadline| deadline > now_ms) {
                return Err(format!("{key} expired while a lease ran: {lock:?}"));
            }
            checker.state_lost(Some(key));
        }
        locks.retain(|_, lock| !due(lock));
        Ok(())
    }

    /// Locks with somebody who holds or waits.
    pub fn busy(&self) -> Vec<String> {
        self.lasting(0)
    }

    /// Locks with somebody whose lease lasts.
    pub fn lasting(&self, now_us: u64) -> Vec<String> {
        let lasts = |lock: &Lock| {
            lock.latest_deadline_ms()
                .is_some_and(|deadline| deadline > now_us / 1000)
        };
        let locks = self.data.locks.iter().filter(|(_, lock)| lasts(lock));
        locks.map(|(key, lock)| format!("{key}: {lock:?}")).collect()
    }

    pub fn execute(&mut self, command: &[Vec<u8>], now_us: u64, subscribed: Subscribed<'_>) -> Result<Done, String> {
        let text = |at: usize| {
            command
                .get(at)
                .and_then(|word| std::str::from_utf8(word).ok())
                .unwrap_or("")
        };
        Ok(match text(0) {
            "EVALSHA" => {
                let Some(script) = Called::of_hash(text(1)) else {
                    return Err(format!("an unknown script was called: {}", text(1)));
                };
                if !self.loaded.contains(&script) {
                    return Ok(done(error("NOSCRIPT", "No matching script.")));
                }
                self.call(script, command, now_us, subscribed)?
            }
            "EVAL" if text(1).ends_with(votes::LIFE) => done(self.life(text(5), text(6), now_us)),
            "EVAL" => {
                let Some(script) = Called::of_text(text(1)) else {
                    return Err("an unknown script was sent".to_owned());
                };
                self.loaded.insert(script);
                self.call(script, command, now_us, subscribed)?
            }
            "FUNCTION" => {
                let (name, library) = fairlock::testing::library();
                if text(2) != library {
                    return Err("an unknown library of functions was sent".to_owned());
                }
                if std::mem::replace(&mut self.functions, true) {
                    return Ok(done(error("ERR", &format!("Library '{name}' already exists"))));
                }
                done(Value::BulkString(name.into()))
            }
            "FCALL" => {
                let Some(script) = Called::of_function(text(1)) else {
                    return Err(format!("an unknown function was called: {}", text(1)));
                };
                if !self.functions {
                    return Ok(done(error("ERR", "Function not found")));
                }
                self.call(script, command, now_us, subscribed)?
            }
            "HELLO" => done(Value::Array(vec![
                Value::BulkString(b"version".to_vec()),
                Value::BulkString(b"7.0.15".to_vec()),
            ])),
            "INFO" => done(self.info()),
            "TIME" => done(votes::time(now_us)),
            "PING" => done(Value::SimpleString("PONG".to_owned())),
            "SET" => {
                self.data.notes.set(command, now_us);
                done(Value::Okay)
            }
            "DEL" => {
                self.data.notes.delete(command);
                done(Value::Int(1))
            }
            "MGET" => done(self.data.notes.get_all(command, now_us)),
            "CLIENT" => done(Value::Okay),
            "ZADD" | "ZREMRANGEBYSCORE" | "EXPIRE" | "PUBLISH" => done(Value::Int(0)),
            "ZRANGE" => done(Value::Array(Vec::new())),
            "PUBSUB" => {
                let channel = text(2);
                let n = i64::from(subscribed(channel));
                done(Value::Array(vec![Value::BulkString(channel.into()), Value::Int(n)]))
            }
            other => return Err(format!("a command that nobody expects: {other}")),
        })
    }
}
