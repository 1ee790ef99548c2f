//! What the workers say of themselves, and the history put together from it. Nothing here comes from the lock.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Nanoseconds of the monotonic clock, which all processes of a machine share.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Read,
    Write,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(if *self == Self::Read { "read" } else { "write" })
    }
}

/// One line on a worker's standard output. Written before what it announces, after what it reports.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) at_ns: u64,
    /// The owner that was made for this request alone; empty if the line is about the process.
    pub(crate) request: String,
    #[serde(flatten)]
    pub(crate) event: Event,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Event {
    /// The process is connected.
    Ready,
    /// Acquire is about to be called.
    Asked { mode: Mode, task: u32 },
    /// The guard is in hand and says that it is held.
    Entered { token: u64 },
    /// The guard still said so after this time.
    Holds,
    /// The same, and release is about to be called. Of a quorum: how many servers keep the hold.
    Releasing { votes: Option<usize> },
    /// Release has returned.
    Left,
    /// The guard says that it is lost.
    Lost { reason: String },
    /// Acquire or release returned an error.
    Failed { error: String },
}

/// One call of acquire, as its process told it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) process: usize,
    pub(crate) task: u32,
    pub(crate) mode: Mode,
    pub(crate) asked: u64,
    pub(crate) entered: Option<u64>,
    pub(crate) token: u64,
    /// The last time at which it certainly held.
    pub(crate) held_until: u64,
    /// When release was called.
    pub(crate) released: Option<u64>,
    /// How many servers of a quorum kept the hold then.
    pub(crate) votes: Option<usize>,
    /// When its process was killed, if that was before the request was over.
    pub(crate) killed: Option<u64>,
}

/// All that was told so far.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) requests: Vec<Request>,
    by_id: HashMap<String, usize>,
    /// Indices of requests that are neither over nor killed.
    open: BTreeSet<usize>,
    pub(crate) ready: HashSet<usize>,
    pub(crate) reads: usize,
    pub(crate) writes: usize,
    pub(crate) lost: Vec<String>,
    pub(crate) errors: Vec<String>,
}

impl History {
    pub(crate) fn note(&mut self, process: usize, line: Line) {
        let at = line.at_ns;
        if let Event::Asked { mode, task } = line.event {
            let index = self.requests.len();
            self.by_id.insert(line.request.clone(), index);
            self.open.insert(index);
            self.requests.push(Request {
                id: line.request,
                process,
                task,
                mode,
                asked: at,
                entered: None,
                token: 0,
                held_until: 0,
                released: None,
                votes: None,
                killed: None,
            });
            return;
        }
        if matches!(line.event, Event::Ready) {
            self.ready.insert(process);
        }
        let Some(&index) = self.by_id.get(&line.request) else {
            return;
        };
        let request = &mut self.requests[index];
        match line.event {
            Event::Ready | Event::Asked { .. } => {}
            Event::Entered { token } => {
                request.entered = Some(at);
                request.held_until = at;
                request.token = token;
                match request.mode {
                    Mode::Read => self.reads += 1,
                    Mode::Write => self.writes += 1,
                }
            }
            Event::Holds => request.held_until = at,
            Event::Releasing { votes } => {
                request.held_until = at;
                request.released = Some(at);
                request.votes = votes;
            }
            Event::Left => {
                self.open.remove(&index);
            }
            Event::Lost { reason } => {
                self.lost.push(reason);
                self.open.remove(&index);
            }
            Event::Failed { error } => {
                self.errors.push(error);
                self.open.remove(&index);
            }
        }
    }

    /// The process died then; it has said all that it will say.
    pub(crate) fn died(&mut self, process: usize, at: u64) {
        for index in std::mem::take(&mut self.open) {
            if self.requests[index].process == process {
                self.requests[index].killed = Some(at);
            } else {
                self.open.insert(index);
            }
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Request> {
        self.by_id.get(id).map(|&index| &self.requests[index])
    }

    /// Requests that wait or hold, in the order in which they were heard of.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Request> {
        self.open.iter().map(|&index| &self.requests[index])
    }

    pub(crate) fn grants(&self) -> usize {
        self.reads + self.writes
    }
}
