//! Every sequence of a few steps of three owners, on the real scripts, each call judged by the model.
//!
//! Breadth first over distinct states. A state is what lies under the keys, unread: it is put back before each call, and
//! what the call leaves is the next one. Two owners are named, the third is not, so each of its requests is its own
//! owner. Every call is made in every state: so each comes also as a copy that the network kept, at every distance.
//!
//! Two states are one if they differ only in numbers of 13 digits and more, and in those only so ([`normal`]):
//! * the moment: every time is counted from now;
//! * tickets and tokens but for their order;
//! * how long ago a deadline has passed, but for their order;
//! * when the keys expire: a sequence is shorter than 30 seconds, so none of them does.

use crate::invariants;
use crate::judge::judge;
use crate::lua_world::{BEGIN_US, Kept, Limits, Loaded, Scripts, Step, Want, World};
use crate::model::{BAND, Lock};
use crate::record::Script;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Steps in a sequence.
    #[arg(long, default_value_t = 5)]
    pub depth: usize,
    /// `fifo`, `writer`, `reader` or `all`.
    #[arg(long, default_value = "all")]
    pub policy: String,
    /// One owner's late copies among two writers, for longer sequences: 9 steps and more.
    #[arg(long)]
    pub orphans: bool,
    /// With limits so small that calls leave something to the next.
    #[arg(long)]
    pub small: bool,
}

pub fn run(args: &Args) -> ExitCode {
    let policies: &[&'static str] = match args.policy.as_str() {
        "fifo" => &[""],
        "writer" => &["w"],
        "reader" => &["r"],
        "all" => &["", "w", "r"],
        other => {
            eprintln!("no policy {other:?}: fifo, writer, reader or all");
            return ExitCode::FAILURE;
        }
    };
    let mut total = 0;
    for policy in policies {
        let limits = if args.small { SMALL } else { Limits::default() };
        println!("policy {policy:?}, {limits:?}");
        let cast = if args.orphans { ORPHANS } else { EVERYBODY };
        match explore(&Scripts::real(), cast, policy, limits, args.depth, |layer| {
            println!("{layer}")
        }) {
            Ok(last) => total += last.transitions,
            Err(counterexample) => {
                println!("{counterexample}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{total} transitions agree");
    ExitCode::SUCCESS
}

const SMALL: Limits = Limits { grants: 2, expiries: 2 };

/// Two units of the time steps.
const LEASE_MS: u64 = 2;

const KEY: &str = "fairlock:{e}";

/// Who asks, and for what.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    requests: &'static [&'static str],
    downgrades: &'static [(&'static str, &'static str)],
    owners: &'static [&'static str],
    /// Also tries, renewals, evictions, and time.
    all: bool,
}

/// `a` has two requests to write, so that one may wait while the other holds. The last two are further requests of
/// owners who were not named: an upgrade of the first's, and what the second's is downgraded to.
const EVERYBODY: Cast = Cast {
    requests: &[
        "r1:1:a", "w1:2:a", "w1:3:a", "r2:1:b", "w2:2:b", "r3:1", "w3:2", "w3:3:3:1", "r3:4:3:2",
    ],
    downgrades: &[
        ("w1:2:a", "r1:1:a"),
        ("w1:3:a", "r1:1:a"),
        ("w2:2:b", "r2:1:b"),
        ("w3:2", "r3:4:3:2"),
    ],
    owners: &["a", "b", "3:1", "3:2"],
    all: true,
};

/// An owner that nobody named, with all of its requests, among two others who write: longer sequences, in which copies of
/// its calls come after the owner has gone on.
pub const ORPHANS: Cast = Cast {
    requests: &["r3:1", "w3:3:3:1", "r3:5:3:1", "w1:2", "w2:2"],
    downgrades: &[("w3:3:3:1", "r3:5:3:1")],
    owners: &[],
    all: false,
};

/// As long as that, in `make test`.
pub const ORPHANS_DEPTH: usize = 9;

/// A request that only a downgrade makes.
fn is_made_by_downgrade(request: &str) -> bool {
    matches!(request, "r3:4:3:2" | "r3:5:3:1")
}

#[derive(Clone, Debug)]
enum Op {
    Call(Script, Vec<String>),
    /// Everybody that lives.
    ReleaseAll,
    RenewAll,
    WaitMs(u64),
}

fn ops(cast: Cast, policy: &str) -> Vec<Op> {
    let lease = LEASE_MS.to_string();
    let call = |script, args: &[&str]| Op::Call(script, args.iter().map(|arg| (*arg).to_owned()).collect());
    let mut ops = Vec::new();
    if cast.all {
        ops.extend([
            Op::WaitMs(1),
            Op::WaitMs(LEASE_MS),
            call(Script::Renew, &[]),
            Op::RenewAll,
            Op::ReleaseAll,
        ]);
    }
    for request in cast.requests {
        for when in ["queue", "try"] {
            if !is_made_by_downgrade(request) && (cast.all || when == "queue") {
                ops.push(call(Script::Acquire, &[request, &lease, when, policy, ""]));
            }
        }
        ops.push(call(Script::Release, &[request]));
        if cast.all {
            ops.push(call(Script::Renew, &[request, &lease]));
        }
    }
    let downgrades = cast.downgrades.iter();
    ops.extend(downgrades.map(|(from, to)| call(Script::Downgrade, &[from, to, &lease])));
    ops.extend(cast.owners.iter().map(|owner| call(Script::Evict, &[owner])));
    ops
}

/// How far it came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layer {
    pub depth: usize,
    pub states: usize,
    pub transitions: u64,
    pub elapsed: Duration,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.transitions as f64 / self.elapsed.as_secs_f64().max(1e-9);
        let Self {
            depth,
            states,
            transitions,
            elapsed,
        } = self;
        write!(
            f,
            "depth {depth}: {states} states, {transitions} transitions, {elapsed:.1?} ({rate:.0}/s)"
        )
    }
}

/// The shortest sequence whose last step differs from what it should do.
#[derive(Clone, Debug)]
pub struct Counterexample {
    pub trace: Vec<String>,
    pub difference: String,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "a difference after {} steps", self.trace.len())?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        write!(f, "{}", self.difference)
    }
}

/// Every sequence of `depth` steps. Returns the last layer.
pub fn explore(
    scripts: &Scripts,
    cast: Cast,
    policy: &str,
    limits: Limits,
    depth: usize,
    mut progress: impl FnMut(&Layer),
) -> Result<Layer, Box<Counterexample>> {
    let mut explorer = Explorer::start(scripts, cast, policy, limits)?;
    let mut layer = Layer::default();
    let begun = Instant::now();
    let mut frontier = vec![State::default()];
    for depth in 1..=depth {
        frontier = explorer.layer(&frontier)?;
        layer = Layer {
            depth,
            states: explorer.seen.len(),
            transitions: explorer.transitions,
            elapsed: begun.elapsed(),
        };
        progress(&layer);
    }
    Ok(layer)
}

/// How a state was first reached.
#[derive(Clone, Copy)]
struct Node {
    parent: u32,
    op: u8,
}

#[derive(Clone)]
struct State {
    node: u32,
    /// What lies under the keys, and what that means.
    kept: Kept,
    lock: Lock,
    now_us: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            node: 0,
            kept: Kept::default(),
            lock: Lock::default(),
            now_us: BEGIN_US,
        }
    }
}

/// A call on its way.
struct Sent<'a> {
    from: &'a State,
    op: u8,
    step: Step,
}

struct Explorer {
    world: World,
    loaded: Loaded,
    cast: Cast,
    ops: Vec<Op>,
    /// 128 bits of each state: two that are taken for one are less likely than a broken machine.
    seen: HashSet<u128>,
    nodes: Vec<Node>,
    transitions: u64,
}

/// Calls that are sent together.
const BATCH: usize = 200;

impl Explorer {
    fn start(scripts: &Scripts, cast: Cast, policy: &str, limits: Limits) -> Result<Self, Box<Counterexample>> {
        let mut world = World::start();
        let loaded = world.load(&scripts.with_limits(limits)).map_err(|difference| {
            Box::new(Counterexample {
                trace: Vec::new(),
                difference,
            })
        })?;
        Ok(Self {
            world,
            loaded,
            cast,
            ops: ops(cast, policy),
            seen: HashSet::new(),
            nodes: vec![Node { parent: 0, op: 0 }],
            transitions: 0,
        })
    }

    fn layer(&mut self, frontier: &[State]) -> Result<Vec<State>, Box<Counterexample>> {
        let mut next = Vec::new();
        let mut sent = VecDeque::new();
        for from in frontier {
            for op in 0..self.ops.len() {
                let (script, args) = match concrete(self.cast, &self.ops[op], &from.lock) {
                    None => continue,
                    Some(Doing::Wait(ms)) => {
                        let now_us = from.now_us + ms * 1000;
                        self.arrive(State { now_us, ..from.clone() }, op, &mut next);
                        continue;
                    }
                    Some(Doing::Call(script, args)) => (script, args),
                };
                // The fast paths answer only if nobody listens.
                for listened in [true, false] {
                    let (args, now_us) = (args.clone(), from.now_us);
                    let step = Step {
                        script,
                        args,
                        now_us,
                        listened,
                    };
                    let want = Want {
                        status: true,
                        keys: true,
                    };
                    self.world.step(&self.loaded, KEY, Some(&from.kept), &step, want);
                    sent.push_back(Sent {
                        from,
                        op: op as u8,
                        step,
                    });
                }
            }
            if sent.len() >= BATCH {
                self.receive(&mut sent, &mut next)?;
            }
        }
        self.receive(&mut sent, &mut next)?;
        Ok(next)
    }

    fn receive(&mut self, sent: &mut VecDeque<Sent<'_>>, next: &mut Vec<State>) -> Result<(), Box<Counterexample>> {
        if let (Some(first), Err(error)) = (sent.front(), self.world.send()) {
            return Err(self.counterexample(first.from.node, usize::from(first.op), error));
        }
        for Sent { from, op, step } in sent.drain(..) {
            self.transitions += 1;
            let seen = self.world.seen(KEY);
            let judged = seen.and_then(|seen| {
                let (lock, outcome) = judge(&from.lock, KEY, &step, &seen)?;
                invariants::of_state(&lock, !outcome.unfinished)
                    .and_then(|()| invariants::of_call(&from.lock, &step, &outcome, &lock))
                    .and_then(|()| invariants::of_repetition(&step, &outcome, &lock))
                    .map_err(|what| format!("the model itself: {what}"))?;
                Ok((lock, seen.kept.unwrap_or_default()))
            });
            let (lock, kept) = judged.map_err(|what| self.counterexample(from.node, usize::from(op), what))?;
            let state = State {
                kept,
                lock,
                ..from.clone()
            };
            self.arrive(state, usize::from(op), next);
        }
        Ok(())
    }

    /// A state that may be new.
    fn arrive(&mut self, mut state: State, op: usize, next: &mut Vec<State>) {
        if self.seen.insert(fingerprint(&normal(&state.kept, state.now_us))) {
            let parent = state.node;
            state.node = self.nodes.len() as u32;
            self.nodes.push(Node { parent, op: op as u8 });
            next.push(state);
        }
    }

    /// The way to a state, and one step further.
    fn counterexample(&self, mut node: u32, op: usize, difference: String) -> Box<Counterexample> {
        let mut path = vec![op];
        while node != 0 {
            let Node { parent, op } = self.nodes[node as usize];
            path.push(usize::from(op));
            node = parent;
        }
        path.reverse();
        Box::new(Counterexample {
            trace: path.iter().map(|op| shown(&self.ops[*op])).collect(),
            difference,
        })
    }
}

fn shown(op: &Op) -> String {
    match op {
        Op::Call(script, args) => format!("{} {args:?}", script.name()),
        Op::ReleaseAll => "release of all that live".to_owned(),
        Op::RenewAll => "renew of all that live".to_owned(),
        Op::WaitMs(ms) => format!("{ms} ms later"),
    }
}

enum Doing {
    Call(Script, Vec<String>),
    Wait(u64),
}

fn concrete(cast: Cast, op: &Op, lock: &Lock) -> Option<Doing> {
    let lives = |request: &str| lock.deadline_ms(request).is_some();
    let alive = || cast.requests.iter().copied().filter(|request| lives(request));
    match op {
        Op::WaitMs(ms) => Some(Doing::Wait(*ms)),
        // One request that is unknown is like another.
        Op::Call(Script::Release | Script::Renew, args) if args.first().is_some_and(|request| !lives(request)) => {
            let unknown = cast.requests.iter().copied().find(|request| !lives(request));
            let Op::Call(script, _) = op else { return None };
            (unknown == args.first().map(String::as_str)).then(|| Doing::Call(*script, args.clone()))
        }
        Op::Call(script, args) => Some(Doing::Call(*script, args.clone())),
        Op::ReleaseAll | Op::RenewAll if alive().nth(1).is_none() => None,
        Op::ReleaseAll => Some(Doing::Call(Script::Release, alive().map(str::to_owned).collect())),
        Op::RenewAll => {
            let pairs = alive().flat_map(|request| [request.to_owned(), LEASE_MS.to_string()]);
            Some(Doing::Call(Script::Renew, pairs.collect()))
        }
    }
}

/// What lies under the keys, as it would be had it come about now, and with the least numbers: see the head of this file.
fn normal(kept: &Kept, now_us: u64) -> Vec<String> {
    let words = || kept.words.iter().flatten();
    let now_ms = (now_us / 1000) as i64;
    let numbers: Vec<i64> = words()
        .flat_map(|word| pieces(word))
        .filter_map(|piece| piece.ok())
        .collect();
    let past: BTreeSet<i64> = numbers.iter().copied().filter(|n| is_ms(*n) && *n <= now_ms).collect();
    let ranks: BTreeSet<i64> = numbers
        .iter()
        .filter(|n| !is_ms(**n))
        .map(|n| n.rem_euclid(BAND))
        .collect();
    let shown = |piece: Result<i64, &str>| match piece {
        Err(text) => text.to_owned(),
        Ok(ms) if is_ms(ms) && ms <= now_ms => format!("(past {})", past.range(ms..).count()),
        // Nobody looks at when the keys expire.
        Ok(ms) if is_ms(ms) && ms > now_ms + 1_000 => "(far)".to_owned(),
        Ok(ms) if is_ms(ms) => format!("(in {})", ms - now_ms),
        Ok(n) => format!(
            "(band {}, {})",
            n.div_euclid(BAND),
            ranks.range(n.rem_euclid(BAND)..).count()
        ),
    };
    // The order of a hash's fields is of no account.
    let [hash, queue, leases] = kept.words.each_ref().map(|words| -> Vec<String> {
        let shown = |word: &String| pieces(word).into_iter().map(shown).collect::<String>();
        let pairs = words
            .chunks(2)
            .map(|pair| pair.iter().map(shown).collect::<Vec<_>>().join(" = "));
        pairs.collect()
    });
    let mut all = hash;
    all.sort();
    all.push("queue".to_owned());
    all.extend(queue);
    all.push("leases".to_owned());
    all.extend(leases);
    all
}

/// Times in ms have 13 digits here, tickets and tokens 16.
fn is_ms(n: i64) -> bool {
    (0..100_000_000_000_000).contains(&n)
}

/// A word as long numbers and what stands between them.
fn pieces(word: &str) -> Vec<Result<i64, &str>> {
    let mut pieces = Vec::new();
    let mut rest = word;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let length = rest[at..]
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len() - at);
        // A whole word may be a score below zero.
        let begin = if at == 1 && word.len() == rest.len() && rest.starts_with('-') {
            0
        } else {
            at
        };
        match rest[begin..at + length].parse() {
            Ok(n) if length >= 13 => {
                pieces.push(Err(&rest[..begin]));
                pieces.push(Ok(n));
            }
            _ => pieces.push(Err(&rest[..at + length])),
        }
        rest = &rest[at + length..];
    }
    pieces.push(Err(rest));
    pieces
}

fn fingerprint(state: &[String]) -> u128 {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        state.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(1) << 64 | half(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_short_sequence_does_what_the_model_does() {
        for (policy, limits) in [
            ("", Limits::default()),
            ("w", Limits::default()),
            ("r", Limits::default()),
            ("", SMALL),
            ("r", SMALL),
        ] {
            let layer =
                explore(&Scripts::real(), EVERYBODY, policy, limits, 3, |_| {}).unwrap_or_else(|why| panic!("{why}"));
            println!("policy {policy:?}, {limits:?}: {layer}");
            assert!(layer.transitions > 1_000, "{layer}");
        }
    }

    #[test]
    fn late_copies_of_an_owners_calls_do_what_the_model_does() {
        for policy in ["", "w"] {
            let layer = explore(
                &Scripts::real(),
                ORPHANS,
                policy,
                Limits::default(),
                ORPHANS_DEPTH,
                |_| {},
            )
            .unwrap_or_else(|why| panic!("{why}"));
            println!("policy {policy:?}: {layer}");
            assert!(layer.transitions > 10_000, "{layer}");
        }
    }
}
