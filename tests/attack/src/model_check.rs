//! Random sequences of the real scripts beside the model.
//!
//! Every call is compared: reply, messages, notes, and all three keys with their scores and expiries. A sequence is
//! made of small numbers, so that proptest can shrink it; what they mean is decided beside the model, which knows who
//! waits and which deadline is the nearest.
//!
//! Of a damaged lock (a key or a field of the hash taken away) the same is compared; only the invariants are not asked
//! for. The loss of `mode` alone is left out, and after the loss of another field the heads of acquire and release are not asked either: they set what the whole
//! scripts count on.

use crate::invariants;
use crate::lua_world::{BEGIN_US, Loaded, Scripts, Step, World, compare, leases_key, queue_key};
use crate::model::{BAND, Limits, Lock, Loss, client_of, named_owner, owner_of, writes};
use crate::record::Script;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Calls of scripts.
    #[arg(long, default_value_t = u64::MAX)]
    pub steps: u64,
    /// Repeats a run; so does FAIRLOCK_SEED.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Ends after this time, whatever the number of steps.
    #[arg(long, default_value_t = 20)]
    pub seconds: u64,
    /// So many at once, each with a server of its own; their seeds follow each other.
    #[arg(long, default_value_t = 1)]
    pub threads: u64,
}

pub fn run(args: &Args) -> ExitCode {
    let seed = args.seed.unwrap_or_else(random_seed);
    println!("seed {seed}");
    let limit = Duration::from_secs(args.seconds);
    let scripts = Scripts::real();
    let each = |thread: u64| {
        if let Err(counterexample) = crowds(&scripts) {
            println!("{counterexample}");
            return false;
        }
        match check_for(&scripts, seed + thread, args.steps, limit) {
            Ok(stats) => {
                println!("seed {}: {stats}", seed + thread);
                true
            }
            Err(counterexample) => {
                println!("{counterexample}");
                false
            }
        }
    };
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads)
            .map(|thread| scope.spawn(move || each(thread)))
            .collect();
        threads.into_iter().all(|thread| thread.join().unwrap_or(false))
    });
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn random_seed() -> u64 {
    std::env::var("FAIRLOCK_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0 >> 32)
}

/// What was tried without finding a difference.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub cases: u64,
    pub steps: u64,
    /// Calls that granted something.
    pub granted: u64,
    /// Calls that had to leave something to the next.
    pub unfinished: u64,
    /// Calls that started over.
    pub resets: u64,
    /// Calls after something was taken away.
    pub damaged: u64,
    pub elapsed: Duration,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.steps as f64 / self.elapsed.as_secs_f64().max(1e-9);
        write!(
            f,
            "{} steps in {} sequences agree ({rate:.0}/s): {} granted, {} left something for the next, {} started \
             over, {} on a damaged lock",
            self.steps, self.cases, self.granted, self.unfinished, self.resets, self.damaged
        )
    }
}

/// The shortest sequence found whose last call differs from what it should do.
#[derive(Clone, Debug)]
pub struct Counterexample {
    pub seed: u64,
    /// Steps taken until the difference was found, before shrinking.
    pub found_after: u64,
    pub limits: Limits,
    pub trace: Vec<String>,
    pub difference: String,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "a difference after {} steps (FAIRLOCK_SEED={})",
            self.found_after, self.seed
        )?;
        writeln!(f, "limits: {:?}", self.limits)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        write!(f, "{}", self.difference)
    }
}

/// Compares so many calls.
pub fn check(scripts: &Scripts, seed: u64, steps: u64) -> Result<Stats, Box<Counterexample>> {
    check_for(scripts, seed, steps, Duration::MAX)
}

/// Compares so many calls, or for so long.
pub fn check_for(scripts: &Scripts, seed: u64, steps: u64, limit: Duration) -> Result<Stats, Box<Counterexample>> {
    find(scripts, seed, steps, limit, SHRINK_FOR)
}

/// Looks for a difference for so long, and not for the shortest way to it.
pub fn catch(scripts: &Scripts, seed: u64, limit: Duration) -> Result<Stats, Box<Counterexample>> {
    find(scripts, seed, u64::MAX, limit, Duration::ZERO)
}

fn find(
    scripts: &Scripts,
    seed: u64,
    steps: u64,
    limit: Duration,
    shrink_for: Duration,
) -> Result<Stats, Box<Counterexample>> {
    let begun = Instant::now();
    let mut stats = Stats::default();
    let mut bench = Bench::start(scripts).map_err(|difference| Counterexample {
        seed,
        found_after: 0,
        limits: Limits::default(),
        trace: Vec::new(),
        difference,
    })?;
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let cases = case();
    while stats.steps < steps && begun.elapsed() < limit {
        let mut tree = cases.new_tree(&mut runner).expect("a case");
        let before = stats.steps;
        if let Err(failure) = bench.run(&tree.current(), &mut stats) {
            let found_after = before + failure.trace.len() as u64;
            return Err(Box::new(
                bench.shrink(&mut tree, failure, shrink_for).explain(seed, found_after),
            ));
        }
        stats.cases += 1;
    }
    stats.elapsed = begun.elapsed();
    Ok(stats)
}

// ---- sequences

#[derive(Clone, Debug)]
struct Case {
    limits: usize,
    policy: u8,
    damage: bool,
    /// Nobody names an owner, as nobody does mostly: what the heads are for.
    plain: bool,
    ops: Vec<(Op, bool)>,
}

/// Indexes are taken modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Ask {
        who: u8,
        write: bool,
        only_now: bool,
        lease: u8,
        ticket: u8,
        other_policy: bool,
    },
    Again {
        which: u8,
        only_now: bool,
        lease: u8,
    },
    Release(Vec<u8>),
    /// One that holds goes.
    Go(u8),
    Renew(Vec<(u8, u8)>),
    Downgrade {
        which: u8,
        lease: u8,
    },
    Evict(u8),
    Wait(Time),
    Lose(u8),
}

#[derive(Clone, Debug)]
enum Time {
    Us(u32),
    Ms(u32),
    /// To a request's deadline, and a little before or past it, us.
    Deadline(u8, i32),
    Back(u8),
    /// To the moment at which the keys expire, and ms past it.
    Expiry(i8),
}

/// Small limits find what goes wrong when a call has to leave something to the next.
const LIMITS: [Limits; 4] = [
    Limits {
        grants: 1024,
        expiries: 200,
    },
    Limits { grants: 2, expiries: 2 },
    Limits { grants: 1, expiries: 3 },
    Limits {
        grants: 20,
        expiries: 1,
    },
];

const LEASES_MS: [u64; 6] = [1_000, 1_000, 400, 5_000, 100_000, 1];

fn case() -> impl Strategy<Value = Case> {
    let ops = proptest::collection::vec((op(), any::<bool>()), 1..120);
    let damage = prop_oneof![3 => Just(false), 1 => Just(true)];
    (0..LIMITS.len(), 0..6_u8, damage, any::<bool>(), ops).prop_map(|(limits, policy, damage, plain, ops)| Case {
        limits,
        // Mostly first come, first served.
        policy: policy.saturating_sub(3),
        damage,
        plain,
        ops,
    })
}

fn op() -> impl Strategy<Value = Op> {
    let rarely = |one_in: u32| prop_oneof![one_in - 1 => Just(false), 1 => Just(true)];
    let ticket = prop_oneof![8 => Just(0), 2 => 1..12_u8];
    let ask = (0..14_u8, any::<bool>(), rarely(5), 0..6_u8, ticket, rarely(40)).prop_map(
        |(who, write, only_now, lease, ticket, other_policy)| Op::Ask {
            who,
            write,
            only_now,
            lease,
            ticket,
            other_policy,
        },
    );
    let again =
        (any::<u8>(), rarely(5), 0..6_u8).prop_map(|(which, only_now, lease)| Op::Again { which, only_now, lease });
    prop_oneof![
        40 => ask,
        8 => again,
        20 => proptest::collection::vec(any::<u8>(), 1..4).prop_map(Op::Release),
        20 => any::<u8>().prop_map(Op::Go),
        12 => proptest::collection::vec((any::<u8>(), 0..6_u8), 0..5).prop_map(Op::Renew),
        6 => (any::<u8>(), 0..6_u8).prop_map(|(which, lease)| Op::Downgrade { which, lease }),
        3 => any::<u8>().prop_map(Op::Evict),
        20 => time().prop_map(Op::Wait),
        2 => any::<u8>().prop_map(Op::Lose),
    ]
}

fn time() -> impl Strategy<Value = Time> {
    prop_oneof![
        2 => Just(Time::Us(1)),
        2 => (0..3_u32).prop_map(Time::Ms),
        2 => (0..1_500_u32).prop_map(Time::Ms),
        8 => (any::<u8>(), prop_oneof![Just(0), Just(-1), Just(1), Just(1_000), Just(-1_000)])
            .prop_map(|(which, past)| Time::Deadline(which, past)),
        1 => any::<u8>().prop_map(Time::Back),
        1 => prop_oneof![Just(-2_i8), Just(0), Just(1)].prop_map(Time::Expiry),
        1 => (20_000..70_000_u32).prop_map(Time::Ms),
    ]
}

/// Whose requests: client, and the owner if the user named one. One owner's name ends like another's.
const ACTORS: [(&str, Option<&str>); 7] = [
    ("1", None),
    ("2", None),
    ("1f", None),
    ("1", Some("a")),
    ("2", Some("a")),
    ("2", Some("ba")),
    ("1f", Some("c")),
];

/// What becomes of a case beside the model: a list of things to send, and what should come back.
struct Story {
    lock: Lock,
    key: String,
    now_us: u64,
    policy: &'static str,
    next_number: u64,
    /// Every request so far, and every ticket.
    named: Vec<String>,
    tickets: Vec<i64>,
    damaged: bool,
    /// A field was lost.
    heads_differ: bool,
    plain: bool,
}

/// What to do next.
enum Doing {
    Call(Step),
    Lose(Loss),
}

impl Story {
    fn new(case: &Case, key: &str) -> Self {
        Self {
            lock: Lock::with_limits(LIMITS[case.limits]),
            key: key.to_owned(),
            now_us: BEGIN_US,
            policy: ["", "w", "r"][usize::from(case.policy)],
            next_number: 1,
            named: Vec::new(),
            tickets: Vec::new(),
            damaged: false,
            heads_differ: false,
            plain: case.plain,
        }
    }

    fn new_name(&mut self, write: bool, client: &str, owner: Option<&str>) -> String {
        let (mode, number) = (if write { 'w' } else { 'r' }, self.next_number);
        self.next_number += 1;
        let name = match owner {
            Some(owner) => format!("{mode}{client}:{number}:{owner}"),
            None => format!("{mode}{client}:{number}"),
        };
        self.named.push(name.clone());
        name
    }

    fn alive(&self) -> Vec<&str> {
        let sole = self.lock.sole.as_ref().map(|(request, _)| &**request);
        sole.into_iter()
            .chain(self.lock.leases.iter().map(|(request, _)| request))
            .collect()
    }

    /// A request: mostly one that lives, else one that was, or one that never was.
    fn pick(&self, which: u8) -> String {
        let which = usize::from(which);
        let alive = self.alive();
        if !which.is_multiple_of(8) && !alive.is_empty() {
            return alive[which / 8 % alive.len()].to_owned();
        }
        match self.named.len() {
            n if n > 0 && which != 0 => self.named[n - 1 - which / 8 % n.min(12)].clone(),
            _ => "w9:99:z".to_owned(),
        }
    }

    fn concrete(&mut self, op: &Op, listened: bool, damage: bool) -> Option<Doing> {
        let heads_differ = self.heads_differ;
        let call = |script, args, now_us| {
            Some(Doing::Call(Step {
                script,
                args,
                now_us,
                listened: listened || heads_differ,
            }))
        };
        let lease = |lease: u8| LEASES_MS[usize::from(lease) % LEASES_MS.len()].to_string();
        match op {
            Op::Ask {
                who,
                write,
                only_now,
                lease: ms,
                ticket,
                other_policy,
            } => {
                let who = usize::from(if self.plain { *who % 3 } else { *who });
                let inside: Vec<String> = self.lock.holders.keys().map(|owner| owner.to_string()).collect();
                let request = match ACTORS.get(who) {
                    Some((client, owner)) => self.new_name(*write, client, *owner),
                    // Once more by somebody who is inside: reentry and upgrade.
                    None if !inside.is_empty() => {
                        let owner = &inside[who % inside.len()];
                        // An owner that was not named can only upgrade.
                        match owner.split_once(':') {
                            Some((client, _)) => self.new_name(true, client, Some(owner)),
                            None => self.new_name(*write, "1", Some(owner)),
                        }
                    }
                    None => self.new_name(*write, "3", None),
                };
                // A place is taken by one request at a time: its next one comes when the first is over.
                let taken: Vec<i64> = self
                    .lock
                    .queue
                    .iter()
                    .map(|(_, place)| place.rem_euclid(BAND))
                    .collect();
                let mut free = self.tickets.iter().filter(|ticket| !taken.contains(ticket));
                let nth = usize::from(*ticket).checked_sub(1);
                let ticket = nth.and_then(|n| free.nth(n)).map_or(String::new(), i64::to_string);
                let policy = if *other_policy {
                    ["w", "r", ""][who % 3]
                } else {
                    self.policy
                };
                let when = if *only_now { "try" } else { "queue" };
                let args = vec![request, lease(*ms), when.to_owned(), policy.to_owned(), ticket];
                call(Script::Acquire, args, self.now_us)
            }
            Op::Again {
                which,
                only_now,
                lease: ms,
            } => {
                let when = if *only_now { "try" } else { "queue" };
                let request = self.pick(*which);
                // Further requests of an owner who was not named are made by its guards.
                let owner = owner_of(&request);
                let further = named_owner(&request).is_some_and(|owner| owner.contains(':'));
                let lives = self.lock.deadline_ms(&request).is_some() || self.lock.holders.contains_key(owner);
                if further && !(writes(&request) && lives) {
                    return None;
                }
                let args = vec![
                    request,
                    lease(*ms),
                    when.to_owned(),
                    self.policy.to_owned(),
                    String::new(),
                ];
                call(Script::Acquire, args, self.now_us)
            }
            Op::Release(which) => {
                let args = which.iter().map(|which| self.pick(*which)).collect();
                call(Script::Release, args, self.now_us)
            }
            Op::Go(which) => {
                let holding: Vec<&str> = self.alive().into_iter().filter(|r| self.lock.holds(r)).collect();
                let request = holding.get(usize::from(*which) % holding.len().max(1))?;
                call(Script::Release, vec![(*request).to_owned()], self.now_us)
            }
            Op::Renew(which) => {
                let args = which
                    .iter()
                    .flat_map(|(which, ms)| [self.pick(*which), lease(*ms)])
                    .collect();
                call(Script::Renew, args, self.now_us)
            }
            Op::Downgrade { which, lease: ms } => {
                let writing: Vec<&str> = self
                    .alive()
                    .into_iter()
                    .filter(|r| writes(r) && self.lock.holds(r))
                    .collect();
                let from = match writing.len() {
                    n if n > 0 && which % 4 > 0 => writing[usize::from(which / 4) % n].to_owned(),
                    _ => self.pick(*which),
                };
                let (client, owner) = (client_of(&from).to_owned(), owner_of(&from).to_owned());
                let to = if which % 16 == 1 {
                    self.pick(which / 16)
                } else {
                    self.new_name(false, &client, Some(&owner))
                };
                // The client asks for nothing else.
                if writes(&to) || owner_of(&to) != owner || !writes(&from) {
                    return None;
                }
                call(Script::Downgrade, vec![from, to, lease(*ms)], self.now_us)
            }
            Op::Evict(who) => {
                let owner = match self.alive().as_slice() {
                    [] => "a".to_owned(),
                    alive if who % 2 == 0 => owner_of(alive[usize::from(who / 2) % alive.len()]).to_owned(),
                    _ => ["a", "ba", "c", "nobody"][usize::from(who / 2) % 4].to_owned(),
                };
                call(Script::Evict, vec![owner], self.now_us)
            }
            Op::Wait(time) => {
                self.wait(time);
                None
            }
            Op::Lose(_) if !damage => None,
            Op::Lose(what) => {
                let fields: Vec<String> = self.lock.fields().into_keys().filter(|field| field != "mode").collect();
                let what = usize::from(*what);
                let loss = match what % 8 {
                    0 | 1 => Loss::State,
                    2 | 3 => Loss::Queue,
                    4 | 5 => Loss::Leases,
                    _ if fields.is_empty() => return None,
                    _ => Loss::Field(fields[what / 8 % fields.len()].clone()),
                };
                Some(Doing::Lose(loss))
            }
        }
    }

    fn wait(&mut self, time: &Time) {
        let forward = |us: u64| self.now_us + us;
        self.now_us = match time {
            Time::Us(us) => forward(u64::from(*us)),
            Time::Ms(ms) => forward(u64::from(*ms) * 1000),
            Time::Deadline(which, past) => {
                let alive = self.alive();
                if alive.is_empty() {
                    return;
                }
                // Mostly the nearest.
                let request = alive[usize::from(which / 4 * u8::from(which % 4 == 0)) % alive.len()];
                let deadline = self.lock.deadline_ms(request).unwrap_or(0) * 1000;
                self.now_us.max(deadline.saturating_add_signed(i64::from(*past)))
            }
            Time::Back(which) => {
                let us = [1, 1_000, 500_000, 2_000_000, 3_600_000_000];
                let back = self.now_us - us[usize::from(*which) % us.len()];
                back.max(BEGIN_US - 86_400_000_000)
            }
            Time::Expiry(past) => match self.lock.expires_at_ms() {
                Some(at) => self.now_us.max(at.saturating_add_signed(i64::from(*past)) * 1000),
                None => return,
            },
        };
    }
}

// ---- running them

/// The place in a sequence at which something differed.
struct Failure {
    case: Case,
    difference: String,
    trace: Vec<String>,
    /// The connection is of no use any more.
    broken: bool,
}

impl Failure {
    fn explain(self, seed: u64, found_after: u64) -> Counterexample {
        Counterexample {
            seed,
            found_after,
            limits: LIMITS[self.case.limits],
            trace: self.trace,
            difference: self.difference,
        }
    }
}

struct Bench {
    world: World,
    loaded: Vec<Loaded>,
}

const SHRINK_FOR: Duration = Duration::from_secs(10);

const KEY: &str = "fairlock:{m}";

impl Bench {
    fn start(scripts: &Scripts) -> Result<Self, String> {
        let mut world = World::start();
        let loaded = LIMITS.iter().map(|limits| world.load(&scripts.with_limits(*limits)));
        let loaded = loaded.collect::<Result<_, _>>()?;
        Ok(Self { world, loaded })
    }

    fn shrink(
        &mut self,
        tree: &mut impl ValueTree<Value = Case>,
        first: Box<Failure>,
        limit: Duration,
    ) -> Box<Failure> {
        let begun = Instant::now();
        let mut best = first;
        let mut more = begun.elapsed() < limit && tree.simplify();
        while more && !best.broken && begun.elapsed() < limit {
            more = match self.run(&tree.current(), &mut Stats::default()) {
                Err(failure) => {
                    best = failure;
                    tree.simplify()
                }
                Ok(()) => tree.complicate(),
            };
        }
        // What was needed before the others were simplified may not be needed any more.
        let mut at = best.case.ops.len();
        while at > 0 && !best.broken && !limit.is_zero() {
            at -= 1;
            let mut case = best.case.clone();
            case.ops.remove(at);
            if let Err(failure) = self.run(&case, &mut Stats::default()) {
                best = failure;
            }
        }
        best
    }

    fn run(&mut self, case: &Case, stats: &mut Stats) -> Result<(), Box<Failure>> {
        let mut story = Story::new(case, KEY);
        let keys = [KEY.to_owned(), queue_key(KEY), leases_key(KEY)];
        for key in &keys {
            self.world.delete(key);
        }
        let mut expected = vec![None; 3];
        let mut wrong = None;
        let mut trace = Vec::new();
        for (op, listened) in &case.ops {
            let Some(doing) = story.concrete(op, *listened, case.damage) else {
                continue;
            };
            match doing {
                Doing::Lose(loss) => {
                    let command = match &loss {
                        Loss::State => redis::cmd("DEL").arg(&keys[0]).clone(),
                        Loss::Queue => redis::cmd("DEL").arg(&keys[1]).clone(),
                        Loss::Leases => redis::cmd("DEL").arg(&keys[2]).clone(),
                        Loss::Field(field) => redis::cmd("HDEL").arg(&keys[0]).arg(field).clone(),
                    };
                    self.world.command(&command);
                    expected.push(None);
                    story.lock.lose(&loss);
                    story.damaged = true;
                    story.heads_differ |= matches!(&loss, Loss::Field(_));
                    trace.push((expected.len(), format!("lost: {loss:?}")));
                }
                Doing::Call(step) => {
                    // What the server would have done by itself.
                    let expiries = story.lock.expiries_ms();
                    for (key, at) in keys.iter().zip(expiries) {
                        if at.is_some_and(|at| step.now_us / 1000 > at) {
                            self.world.delete(key);
                            expected.push(None);
                        }
                    }
                    self.world.step(&self.loaded[case.limits], KEY, None, &step, true);
                    let mut before = story.lock.clone();
                    before.expire(step.now_us / 1000);
                    let outcome = story.lock.call(&story.key, step.script, &step.args(), step.now_us);
                    trace.push((expected.len(), format!("{} -> {:?}", shown(&step), outcome.reply)));
                    if step.script == Script::Acquire && outcome.reply[0] == 1 {
                        story.tickets.push(outcome.reply[1]);
                    }
                    stats.note(&step, &outcome, story.damaged);
                    let number = expected.len();
                    if !story.damaged && wrong.is_none() {
                        let settled = !says_more(&step, &outcome.reply);
                        wrong = invariants::of_state(&story.lock, settled)
                            .and_then(|()| invariants::of_call(&before, &step, &outcome, &story.lock))
                            .and_then(|()| invariants::of_repetition(KEY, &before, &step, &outcome, &story.lock))
                            .err()
                            .map(|what| (number, format!("the model itself: {what}")));
                    }
                    expected.push(Some((step, outcome, story.lock.clone())));
                }
            }
        }
        let failed = |at: usize, difference: String, broken| {
            let calls = trace
                .iter()
                .take_while(|(number, _)| *number <= at)
                .map(|(_, line)| line.clone());
            Box::new(Failure {
                case: case.clone(),
                difference,
                trace: calls.collect(),
                broken,
            })
        };
        let replies = self.world.send().map_err(|error| failed(expected.len(), error, true))?;
        assert_eq!(replies, expected.len());
        let mut difference = None;
        for (number, expected) in expected.iter().enumerate() {
            let seen = self.world.receive();
            if difference.is_some() {
                continue;
            }
            match (seen, expected) {
                (Err(error), _) => return Err(failed(number, format!("no reply: {error}"), true)),
                (Ok(_), None) => {}
                (Ok(seen), Some((step, outcome, lock))) => {
                    difference = compare(&seen, step, KEY, outcome, lock)
                        .err()
                        .map(|what| (number, what));
                }
            }
        }
        match difference.into_iter().chain(wrong).min_by_key(|(number, _)| *number) {
            Some((number, what)) => Err(failed(number, what, false)),
            None => Ok(()),
        }
    }
}

fn shown(step: &Step) -> String {
    let at = step.now_us.cast_signed() - BEGIN_US.cast_signed();
    let listened = if step.listened { " (listened)" } else { "" };
    format!("{at} us: {} {:?}{listened}", step.script.name(), step.args)
}

fn says_more(step: &Step, reply: &[i64]) -> bool {
    reply[if step.script == Script::Acquire { 2 } else { 0 }] == 0
}

impl Stats {
    fn note(&mut self, step: &Step, outcome: &crate::model::Outcome, damaged: bool) {
        use crate::record::What;
        let has = |what: What| u64::from(outcome.notes.iter().any(|note| note.what == what));
        self.steps += 1;
        self.granted += has(What::Granted);
        self.resets += has(What::Reset);
        self.unfinished += u64::from(says_more(step, &outcome.reply));
        self.damaged += u64::from(damaged);
    }
}

/// More requests than one call may grant or expire, under the real limits.
pub fn crowds(scripts: &Scripts) -> Result<(), Box<Counterexample>> {
    let limits = Limits::default();
    let mut world = World::start();
    let failed = |trace: &[String], difference: String| {
        Box::new(Counterexample {
            seed: 0,
            found_after: trace.len() as u64,
            limits,
            trace: trace.last().cloned().into_iter().collect(),
            difference,
        })
    };
    let loaded = world.load(scripts).map_err(|error| failed(&[], error))?;
    let mut lock = Lock::with_limits(limits);
    let mut trace = Vec::new();
    for (step, keys_after) in crowd() {
        let key = "fairlock:{crowd}";
        world.step(&loaded, key, None, &step, keys_after);
        let outcome = lock.call(key, step.script, &step.args(), step.now_us);
        trace.push(format!("{} {:?}", step.script.name(), step.args));
        let settled = !says_more(&step, &outcome.reply);
        let seen = world.send().and_then(|_| world.receive());
        seen.and_then(|seen| compare(&seen, &step, key, &outcome, &lock))
            .and_then(|()| {
                if keys_after {
                    invariants::of_state(&lock, settled)
                } else {
                    Ok(())
                }
            })
            .map_err(|difference| failed(&trace, difference))?;
    }
    Ok(())
}

fn crowd() -> Vec<(Step, bool)> {
    let (mut steps, mut now_us) = (Vec::new(), BEGIN_US);
    let mut call = |script, args: &[&str], forward_us: u64, keys_after| {
        now_us += forward_us;
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let step = Step {
            script,
            args,
            now_us,
            listened: keys_after,
        };
        steps.push((step, keys_after));
    };
    // 2,600 readers and a writer behind one writer; a batch of readers is 1,024.
    call(Script::Acquire, &["w1:1", "9000", "queue", "", ""], 1, true);
    for n in 0..2_600 {
        // Every third lives shorter.
        let (request, lease) = (format!("r{:x}:{n}", n % 7), if n % 3 == 0 { "3000" } else { "8000" });
        call(Script::Acquire, &[&request, lease, "queue", "", ""], 1, n % 1_000 == 0);
    }
    call(Script::Acquire, &["w1:2", "9000", "queue", "", ""], 1, true);
    // Owners whose requests are anywhere in a list that takes several pages.
    for n in (100..2_500_u32).step_by(200) {
        call(Script::Evict, &[&format!("{:x}:{n}", n % 7)], 1, false);
    }
    call(Script::Release, &["w1:1"], 1, true);
    for _ in 0..4 {
        call(Script::Renew, &[], 1, true);
    }
    // 867 deadlines, 200 a call.
    call(Script::Renew, &["r5:5", "8000"], 3_100_000, true);
    for _ in 0..6 {
        call(Script::Renew, &[], 1, true);
    }
    // The others', and then the writer's turn.
    call(Script::Acquire, &["r1:9999", "9000", "queue", "", ""], 5_500_000, true);
    for _ in 0..10 {
        call(Script::Renew, &["w1:2", "9000"], 1, true);
    }
    // A name that begins another's, which is alone by then.
    call(Script::Release, &["r5:5", "w1:2", "r1:9999"], 1, true);
    call(Script::Acquire, &["r1:99991", "9000", "queue", "", ""], 1, true);
    call(Script::Renew, &["r1:9999", "9000"], 1, true);
    call(Script::Release, &["r1:9999"], 1, true);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn or_panic<T>(result: Result<T, Box<Counterexample>>) -> T {
        result.unwrap_or_else(|counterexample| panic!("{counterexample}"))
    }

    #[test]
    fn the_scripts_do_what_the_model_does() {
        let seed = crate::test_seed();
        let stats = or_panic(check_for(&Scripts::real(), seed, u64::MAX, Duration::from_secs(20)));
        println!("seed {seed}: {stats}");
        // Whatever is compared must also occur.
        assert!(
            stats.granted * 20 > stats.steps && stats.resets > 0 && stats.unfinished > 0,
            "{stats}"
        );
    }

    #[test]
    fn the_scripts_do_what_the_model_does_with_thousands_of_requests() {
        or_panic(crowds(&Scripts::real()));
    }
}
