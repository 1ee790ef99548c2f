//! Every sequence of a few steps of three owners, on the real scripts beside the model.
//!
//! Breadth first over distinct states. From each, every call is made by the real scripts on a server that was given the
//! state, and compared with the model; the invariants are asked of every state and every call. Two owners are named,
//! the third is not, so each of its requests is its own owner. Requests are sent again and late, also after their end,
//! but for those of an unnamed owner's upgrade: without a guard the client does not make them.
//!
//! Two states are one if they differ only in what no script looks at:
//! * the moment: every time is counted from now, and no script knows another;
//! * tickets and tokens but for their order: a script compares them with each other, and makes new ones that are
//!   greater than all;
//! * how long ago a deadline has passed, but for their order;
//! * when the keys expire: a sequence is shorter than 30 seconds, so none of its leases needs a new expiry after the
//!   first, and none expires.

use crate::invariants;
use crate::lua_world::{BEGIN_US, Loaded, Scripts, Step, World, compare};
use crate::model::{BAND, Limits, Lock, Outcome, RETENTION};
use crate::record::Script;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
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
        match explore(&Scripts::real(), policy, limits, args.depth, |layer| {
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

/// `a` has two requests to write, so that one may wait while the other holds. The last two are further requests of
/// owners who were not named: an upgrade of the first's, and what the second's is downgraded to.
const REQUESTS: [&str; 9] = [
    "r1:1:a", "w1:2:a", "w1:3:a", "r2:1:b", "w2:2:b", "r3:1", "w3:2", "w3:3:3:1", "r3:4:3:2",
];

const DOWNGRADES: [(&str, &str); 4] = [
    ("w1:2:a", "r1:1:a"),
    ("w1:3:a", "r1:1:a"),
    ("w2:2:b", "r2:1:b"),
    ("w3:2", "r3:4:3:2"),
];

const OWNERS: [&str; 4] = ["a", "b", "3:1", "3:2"];

#[derive(Clone, Debug)]
enum Op {
    Call(Script, Vec<String>),
    /// Everybody that lives.
    ReleaseAll,
    RenewAll,
    WaitMs(u64),
}

fn ops(policy: &str) -> Vec<Op> {
    let lease = LEASE_MS.to_string();
    let call = |script, args: &[&str]| Op::Call(script, args.iter().map(|arg| (*arg).to_owned()).collect());
    let mut ops = vec![
        Op::WaitMs(1),
        Op::WaitMs(LEASE_MS),
        call(Script::Renew, &[]),
        Op::RenewAll,
        Op::ReleaseAll,
    ];
    for request in REQUESTS {
        for when in ["queue", "try"] {
            if request != "r3:4:3:2" {
                ops.push(call(Script::Acquire, &[request, &lease, when, policy, ""]));
            }
        }
        ops.push(call(Script::Release, &[request]));
        ops.push(call(Script::Renew, &[request, &lease]));
    }
    ops.extend(
        DOWNGRADES
            .iter()
            .map(|(from, to)| call(Script::Downgrade, &[from, to, &lease])),
    );
    ops.extend(OWNERS.iter().map(|owner| call(Script::Evict, &[owner])));
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
    policy: &str,
    limits: Limits,
    depth: usize,
    mut progress: impl FnMut(&Layer),
) -> Result<Layer, Box<Counterexample>> {
    let mut explorer = Explorer::start(scripts, policy, limits)?;
    let mut layer = Layer::default();
    let begun = Instant::now();
    let mut frontier = vec![(0, Lock::with_limits(limits))];
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

/// What should come back.
struct Expected {
    node: u32,
    op: u8,
    step: Step,
    outcome: Outcome,
    after: Lock,
}

struct Explorer {
    world: World,
    loaded: Loaded,
    ops: Vec<Op>,
    /// 128 bits of each state: two that are taken for one are less likely than a broken machine.
    seen: HashSet<u128>,
    nodes: Vec<Node>,
    transitions: u64,
    sent: VecDeque<Vec<Expected>>,
    batch: Vec<Expected>,
}

/// Calls that are sent together.
const BATCH: usize = 200;

impl Explorer {
    fn start(scripts: &Scripts, policy: &str, limits: Limits) -> Result<Self, Box<Counterexample>> {
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
            ops: ops(policy),
            seen: HashSet::from([fingerprint(&Lock::with_limits(limits))]),
            nodes: vec![Node { parent: 0, op: 0 }],
            transitions: 0,
            sent: VecDeque::new(),
            batch: Vec::new(),
        })
    }

    fn layer(&mut self, frontier: &[(u32, Lock)]) -> Result<Vec<(u32, Lock)>, Box<Counterexample>> {
        let mut next = Vec::new();
        for (node, lock) in frontier {
            for op in 0..self.ops.len() {
                if let Some((_, after, now_us)) = self.take(*node, lock, op)? {
                    let state = normal(&after, now_us);
                    if self.seen.insert(fingerprint(&state)) {
                        let number = self.nodes.len() as u32;
                        self.nodes.push(Node {
                            parent: *node,
                            op: op as u8,
                        });
                        next.push((number, state));
                    }
                }
            }
        }
        self.send()?;
        while !self.sent.is_empty() {
            self.receive()?;
        }
        Ok(next)
    }

    /// One step from one state: by the model now, by the server soon. `None`: it says nothing new.
    fn take(
        &mut self,
        node: u32,
        lock: &Lock,
        number: usize,
    ) -> Result<Option<(Outcome, Lock, u64)>, Box<Counterexample>> {
        let (script, args) = match concrete(&self.ops[number], lock) {
            None => return Ok(None),
            Some(Doing::Wait(ms)) => {
                return Ok(Some((Outcome::default(), lock.clone(), BEGIN_US + ms * 1000)));
            }
            Some(Doing::Call(script, args)) => (script, args),
        };
        let mut step = Step {
            script,
            args,
            now_us: BEGIN_US,
            listened: true,
        };
        let mut after = lock.clone();
        let outcome = after.call(KEY, script, &step.args(), step.now_us);
        let settled = outcome.reply[if script == Script::Acquire { 2 } else { 0 }] != 0;
        invariants::of_state(&after, settled)
            .and_then(|()| invariants::of_call(lock, &step, &outcome, &after))
            .and_then(|()| invariants::of_repetition(KEY, lock, &step, &outcome, &after))
            .map_err(|what| self.counterexample(node, number, format!("the model itself: {what}")))?;
        // The heads answer only if nobody listens.
        let headed = matches!(script, Script::Acquire | Script::Release);
        for listened in [true, false] {
            if !listened && !headed {
                continue;
            }
            step.listened = listened;
            self.transitions += 1;
            self.world.step(&self.loaded, KEY, Some(lock), &step, true);
            self.batch.push(Expected {
                node,
                op: number as u8,
                step: step.clone(),
                outcome: outcome.clone(),
                after: after.clone(),
            });
        }
        if self.batch.len() >= BATCH {
            self.send()?;
            // One batch is with the server while the next is made.
            if self.sent.len() > 2 {
                self.receive()?;
            }
        }
        Ok(Some((outcome, after, BEGIN_US)))
    }

    fn send(&mut self) -> Result<(), Box<Counterexample>> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        if let Err(error) = self.world.send() {
            return Err(self.counterexample(batch[0].node, usize::from(batch[0].op), error));
        }
        self.sent.push_back(batch);
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Box<Counterexample>> {
        for expected in self.sent.pop_front().into_iter().flatten() {
            let Expected {
                node,
                op,
                step,
                outcome,
                after,
            } = expected;
            self.world
                .receive()
                .and_then(|seen| compare(&seen, &step, KEY, &outcome, &after))
                .map_err(|difference| self.counterexample(node, usize::from(op), difference))?;
        }
        Ok(())
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

fn concrete(op: &Op, lock: &Lock) -> Option<Doing> {
    let lives = |request: &str| lock.deadline_ms(request).is_some();
    let alive = || REQUESTS.into_iter().filter(|request| lives(request));
    match op {
        Op::WaitMs(ms) => Some(Doing::Wait(*ms)),
        // One request that is unknown is like another.
        Op::Call(Script::Release | Script::Renew, args) if args.first().is_some_and(|request| !lives(request)) => {
            let unknown = REQUESTS.into_iter().find(|request| !lives(request));
            let Op::Call(script, _) = op else { return None };
            (unknown == args.first().map(String::as_str)).then(|| Doing::Call(*script, args.clone()))
        }
        Op::Call(Script::Acquire, args)
            if args[0] == "w3:3:3:1" && !lives(&args[0]) && !lock.holders.contains_key("3:1") =>
        {
            None
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

/// The state as it would be had it come about now, and with the least numbers: see the head of this file.
fn normal(lock: &Lock, now_us: u64) -> Lock {
    let mut lock = lock.clone();
    let later_ms = (now_us - BEGIN_US) / 1000;
    let begin_ms = BEGIN_US / 1000;

    let deadlines = lock.leases.iter().map(|(_, at)| at.unsigned_abs());
    let deadlines = deadlines.chain(lock.sole.iter().map(|(_, at)| *at));
    let past: BTreeSet<u64> = deadlines.map(|at| at - later_ms).filter(|at| *at <= begin_ms).collect();
    let past: BTreeMap<u64, u64> = past
        .iter()
        .rev()
        .zip((0..=begin_ms).rev())
        .map(|(at, to)| (*at, to))
        .collect();
    let deadline = |at: u64| past.get(&(at - later_ms)).copied().unwrap_or(at - later_ms);
    lock.leases.change_scores(|at| deadline(at.unsigned_abs()) as i64);
    if let Some((_, at)) = &mut lock.sole {
        *at = deadline(*at);
    }

    let tokens = lock.holders.values().filter_map(|holder| holder.token);
    let tickets = lock
        .queue
        .iter()
        .map(|(_, place)| place.rem_euclid(BAND).unsigned_abs());
    let numbers: BTreeSet<u64> = tokens.chain(tickets).chain(lock.seq).collect();
    let numbers: BTreeMap<u64, u64> = numbers
        .iter()
        .rev()
        .zip((0..BEGIN_US).rev())
        .map(|(n, to)| (*n, to))
        .collect();
    lock.queue.change_scores(|place| {
        let (band, ticket) = (place.div_euclid(BAND), place.rem_euclid(BAND).unsigned_abs());
        band * BAND + numbers[&ticket] as i64
    });
    for holder in lock.holders.values_mut() {
        holder.token = holder.token.map(|token| numbers[&token]);
    }
    lock.seq = lock.seq.map(|seq| numbers[&seq]);

    lock.keep = lock.keep.map(|_| begin_ms + LEASE_MS + 2 * RETENTION);
    lock.set_expiry();
    lock
}

fn fingerprint(lock: &Lock) -> u128 {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        lock.hash(&mut hasher);
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
            let layer = explore(&Scripts::real(), policy, limits, 3, |_| {}).unwrap_or_else(|why| panic!("{why}"));
            println!("policy {policy:?}, {limits:?}: {layer}");
            assert!(layer.transitions > 1_000, "{layer}");
        }
    }
}
