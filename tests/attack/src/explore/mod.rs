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
//!
//! Two requests of each cast are alike: what the one can do, the other can. States that differ only in which of the two
//! is which are one too. So the number of states is finite: a few requests are absent, wait or hold, in some order, and
//! a deadline is one of two moments to come or has passed.

mod explorer;
mod normal;
pub mod votes;

use crate::lua_world::{Limits, Scripts};
use crate::record::Script;
use explorer::Explorer;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Steps in a sequence.
    #[arg(long, default_value_t = 5, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub depth: usize,
    /// `fifo`, `writer`, `reader` or `all`.
    #[arg(long, default_value = "all")]
    pub policy: String,
    /// Who takes the steps.
    #[arg(long, default_value = "everybody")]
    pub cast: Who,
    /// With limits so small that calls leave something to the next.
    #[arg(long)]
    pub small: bool,
    /// Instead, everything that can happen to a few requests of a quorum: one of the casts of `src/explore/votes`, or `all`.
    #[arg(long, conflicts_with_all = ["policy", "cast", "small"])]
    pub quorum: Option<String>,
    /// Breaks a rule of the quorum's client, to see that the search notices.
    #[arg(long, hide = true, requires = "quorum")]
    pub sabotage: Option<crate::torture::Sabotage>,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Who {
    /// Three owners with nine requests.
    Everybody,
    /// An owner that upgrades, two readers and a writer: few enough for every state.
    Few,
    /// A semaphore of two permits, and clients that are deaf; `--policy` is of no account.
    Permits,
    /// One owner's late copies among two writers, without time: every state.
    Orphans,
}

pub fn run(args: &Args) -> ExitCode {
    if let Some(cast) = &args.quorum {
        fairlock::testing::break_rule(args.sabotage.and_then(|sabotage| sabotage.rule()));
        return match votes::run(cast, args.depth) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        };
    }
    let policies: &[&'static str] = match args.policy.as_str() {
        _ if matches!(args.cast, Who::Permits) => &["n2"],
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
        let cast = match args.cast {
            Who::Everybody => EVERYBODY,
            Who::Few => FEW,
            Who::Permits => PERMITS,
            Who::Orphans => ORPHANS,
        };
        match explore(&Scripts::real(), cast, policy, limits, args.depth, |layer| {
            println!("{layer}")
        }) {
            Ok(last) => {
                if last.depth < args.depth {
                    println!("these are all states: longer sequences come to no other");
                }
                total += last.transitions;
            }
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

const KEY: &str = "fairlock:{e}";

/// Who asks, and for what.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    requests: &'static [&'static str],
    downgrades: &'static [(&'static str, &'static str)],
    owners: &'static [&'static str],
    /// Two requests that differ in their names only.
    alike: Option<[&'static str; 2]>,
    /// Two units of the time steps.
    lease_ms: u64,
    /// Who does not hear, in each call again. The first: everybody hears.
    deaf: &'static [&'static [&'static str]],
    /// What is asked for besides, of each request that may be asked for: when and under which policy.
    asks: &'static [(&'static str, &'static str)],
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
    alike: Some(["w1:2:a", "w1:3:a"]),
    lease_ms: 2,
    deaf: &[&[]],
    asks: &[],
    all: true,
};

/// An owner that upgrades and downgrades, and three strangers.
const FEW: Cast = Cast {
    requests: &["r1:1:a", "w1:2:a", "r2:1", "r3:1", "w4:1"],
    downgrades: &[("w1:2:a", "r1:1:a")],
    owners: &["a", "2:1", "3:1", "4:1"],
    alike: Some(["r2:1", "r3:1"]),
    lease_ms: 2,
    deaf: &[&[]],
    asks: &[],
    all: true,
};

/// An owner that nobody named, with all of its requests, among two others who write: longer sequences, in which copies of
/// its calls come after the owner has gone on.
pub const ORPHANS: Cast = Cast {
    requests: &["r3:1", "w3:3:3:1", "r3:5:3:1", "w1:2", "w2:2"],
    downgrades: &[("w3:3:3:1", "r3:5:3:1")],
    owners: &[],
    alike: Some(["w1:2", "w2:2"]),
    lease_ms: 2,
    deaf: &[&[]],
    asks: &[],
    all: false,
};

/// More steps than any state of [`ORPHANS`] needs.
pub const ORPHANS_DEPTH: usize = 20;

/// Permits of one and of two, a reader that is named, an upgrade of two permits, and a writer. A lease is two graces. The
/// limit changes, and the queue is bounded.
pub const PERMITS: Cast = Cast {
    requests: &[
        "r1:1",
        "r1:2:*2",
        "r2:1:*2",
        "r2:2:a",
        "r2:3:1:2:*2",
        "w1:3:1:2:*2",
        "w2:4",
    ],
    downgrades: &[("w1:3:1:2:*2", "r2:3:1:2:*2")],
    owners: &["a", "1:2"],
    alike: None,
    lease_ms: 2_000,
    deaf: &[&[], &["1"], &["1", "2"]],
    asks: &[("queue", "n1"), ("queue", "n3"), ("m1", "n2")],
    all: true,
};

/// As deep as that, in `make test`.
pub const PERMITS_DEPTH: usize = 3;

/// A request that only a downgrade makes.
fn is_made_by_downgrade(request: &str) -> bool {
    matches!(request, "r3:4:3:2" | "r3:5:3:1")
}

/// The token of a read hold of this phase, and of a former one.
const LASTS: &str = "u";
const IS_OVER: &str = "u-";

#[derive(Clone, Debug)]
enum Op {
    Call(Script, Vec<String>),
    /// Everybody that lives.
    ReleaseAll,
    RenewAll,
    WaitMs(u64),
}

fn ops(cast: Cast, policy: &str) -> Vec<Op> {
    let lease = cast.lease_ms.to_string();
    let call = |script, args: &[&str]| Op::Call(script, args.iter().map(|arg| (*arg).to_owned()).collect());
    let mut ops = Vec::new();
    if cast.all {
        ops.extend([
            Op::WaitMs(cast.lease_ms / 2),
            Op::WaitMs(cast.lease_ms),
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
        for (when, policy) in cast.asks {
            if !is_made_by_downgrade(request) {
                ops.push(call(Script::Acquire, &[request, &lease, when, policy, ""]));
            }
        }
        // As the client asks, while its read hold lasts and after it ended.
        if *request == "w3:3:3:1" && cast.all {
            ops.extend([LASTS, IS_OVER].map(|token| call(Script::Acquire, &[request, &lease, "queue", policy, token])));
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
    /// States of the layer before it from which no step was made yet.
    pub left: usize,
    pub states: usize,
    pub transitions: u64,
    pub elapsed: Duration,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.transitions as f64 / self.elapsed.as_secs_f64().max(1e-9);
        let Self {
            depth,
            left,
            states,
            transitions,
            elapsed,
        } = self;
        write!(
            f,
            "depth {depth}: {states} states, {transitions} transitions, {elapsed:.1?} ({rate:.0}/s)"
        )?;
        if *left > 0 {
            write!(f, ", {left} states to go")?;
        }
        Ok(())
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

/// Every sequence of `depth` steps. Returns the last layer. It is an earlier one if there are no further states.
pub fn explore(
    scripts: &Scripts,
    cast: Cast,
    policy: &str,
    limits: Limits,
    depth: usize,
    mut progress: impl FnMut(&Layer),
) -> Result<Layer, Box<Counterexample>> {
    let mut explorer = Explorer::start(scripts, cast, policy, limits)?;
    let mut last = Layer::default();
    let mut layer = 0..1;
    for depth in 1..=depth {
        if layer.is_empty() {
            break;
        }
        layer = explorer.layer(depth, layer, &mut |told| {
            last = *told;
            progress(told);
        })?;
    }
    Ok(last)
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
    fn every_short_sequence_with_permits_does_what_the_model_does() {
        for limits in [Limits::default(), SMALL] {
            let layer = explore(&Scripts::real(), PERMITS, "n2", limits, PERMITS_DEPTH, |_| {})
                .unwrap_or_else(|why| panic!("{why}"));
            println!("{limits:?}: {layer}");
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
            assert!(layer.transitions > 1_000 && layer.depth < ORPHANS_DEPTH, "{layer}");
        }
    }
}
