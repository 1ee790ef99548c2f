//! Every sequence of what can happen to a few requests of a quorum: the tally, the claims and the readers of replies of the
//! client, beside servers of the model.
//!
//! Breadth first over distinct states. What is on its way arrives in any order: calls, replies and messages of each
//! connection in theirs. A state is known by 128 bits of all that decides what can become of it, and by the step that first
//! led to it; the search makes it again from its ancestors. Servers with the same clock are alike, so states that differ only in
//! which of them is which are one. Clocks stand still but for the step that lets half a lease pass. Everything that a cast
//! allows is bounded, so the number of its states is finite.
//!
//! In every state: conflicting holds exclude each other, tokens grow, nobody enters before a request that had its place at a
//! majority earlier, and no hold is lost without the loss of a majority. From every state in which nothing is on its way,
//! a hold gets the votes of all servers, everybody gets in and out again, and nobody is left at any server.

mod world;

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::time::Instant;
use world::{Step, World};

/// Who asks, and what may happen.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    pub name: &'static str,
    /// One for each request: whether it writes.
    writes: &'static [bool],
    /// One for each server: how far its clock is ahead.
    skews_ms: &'static [i64],
    /// So often a server restarts without its data.
    restarts: usize,
    /// So often a connection ends, and what was sent over it arrives late or not at all.
    cuts: usize,
    /// So often a user leaves the queue.
    leaves: usize,
    /// So often half a lease passes.
    ticks: usize,
    /// The users of so many requests, the first ones, ask for their tokens.
    announces: usize,
    /// A reply comes at once. Then only calls and messages are on their way.
    replies_at_once: bool,
}

const PLAIN: Cast = Cast {
    name: "race",
    writes: &[true, true],
    skews_ms: &[0, 0, 0],
    restarts: 0,
    cuts: 0,
    leaves: 0,
    ticks: 0,
    announces: 0,
    replies_at_once: true,
};

/// All of them, from the smallest on.
pub const CASTS: [Cast; 9] = [
    PLAIN,
    // A user leaves the queue.
    Cast {
        name: "leave",
        leaves: 1,
        ..PLAIN
    },
    Cast {
        name: "slow",
        replies_at_once: false,
        ..PLAIN
    },
    Cast {
        name: "cut",
        cuts: 1,
        ..PLAIN
    },
    Cast {
        name: "restart",
        restarts: 2,
        ..PLAIN
    },
    Cast {
        name: "tokens",
        skews_ms: &[0, 0, 400],
        cuts: 1,
        announces: 1,
        ..PLAIN
    },
    Cast {
        name: "time",
        restarts: 1,
        ticks: 3,
        ..PLAIN
    },
    // With two requests and three servers one always has two votes.
    Cast {
        name: "three",
        writes: &[true, true, true],
        ..PLAIN
    },
    Cast {
        name: "readers",
        writes: &[true, false, false],
        cuts: 1,
        ..PLAIN
    },
];

impl Cast {
    fn is_calm(&self) -> bool {
        self.restarts + self.cuts + self.ticks == 0
    }

    /// Places last where nothing is lost and no lease ends.
    fn keeps_places(&self) -> bool {
        self.is_calm()
    }

    /// Holds last where no majority is lost and no lease ends.
    fn keeps_holds(&self) -> bool {
        self.ticks == 0 && self.restarts <= (self.skews_ms.len() - 1) / 2
    }
}

/// How far it came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    pub depth: usize,
    pub states: usize,
    pub transitions: u64,
    /// States from which nothing but time, a user or a fault leads on.
    pub ends: u64,
    /// There are no further states.
    pub is_all: bool,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            depth,
            states,
            transitions,
            ends,
            is_all,
        } = self;
        let all = if *is_all { ": these are all" } else { "" };
        write!(
            f,
            "depth {depth}: {states} states, {transitions} transitions, {ends} at rest{all}"
        )
    }
}

/// The shortest sequence that leads to what must not be.
#[derive(Clone, Debug)]
pub struct Counterexample {
    pub wrong: String,
    pub trace: Vec<String>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "after {} steps: {}", self.trace.len(), self.wrong)?;
        self.trace.iter().try_for_each(|step| writeln!(f, "  {step}"))
    }
}

/// How a state was first reached: from which one, and by which of the steps that were possible there.
#[derive(Clone, Copy)]
struct Node {
    parent: u32,
    step: u8,
}

struct Explorer {
    cast: Cast,
    begin: tokio::time::Instant,
    seen: HashSet<u128>,
    nodes: Vec<Node>,
    /// The way to the state that was made last.
    path: Vec<(u32, World)>,
    found: Found,
}

/// After so many states the search tells how far it is.
const TOLD_EVERY: usize = 100_000;

/// Every sequence of `depth` steps, or of any length if there are no further states earlier.
pub fn explore(cast: Cast, depth: usize, mut progress: impl FnMut(&Found)) -> Result<Found, Box<Counterexample>> {
    let begin = tokio::time::Instant::now();
    let first = World::new(cast, begin);
    let mut explorer = Explorer {
        cast,
        begin,
        seen: HashSet::from([first.fingerprint()]),
        nodes: vec![Node { parent: 0, step: 0 }],
        path: Vec::new(),
        found: Found::default(),
    };
    let mut layer = 0..1;
    for depth in 1..=depth {
        explorer.found.depth = depth;
        layer = explorer.layer(layer, &mut progress)?;
        if layer.is_empty() {
            explorer.found.is_all = true;
            break;
        }
        progress(&explorer.found);
    }
    progress(&explorer.found);
    Ok(explorer.found)
}

impl Explorer {
    /// Every step from every state of a layer. Returns the next layer.
    fn layer(
        &mut self,
        layer: Range<usize>,
        progress: &mut impl FnMut(&Found),
    ) -> Result<Range<usize>, Box<Counterexample>> {
        let next = self.nodes.len();
        for node in layer {
            let mut world = self.made(node as u32);
            let steps = world.steps();
            if world.is_at_rest() {
                self.found.ends += 1;
                let voted = world.copied().comes_to_all_votes();
                voted.map_err(|wrong| self.counterexample(node as u32, None, wrong))?;
                let ended = world.copied().comes_to_its_end();
                ended.map_err(|wrong| self.counterexample(node as u32, None, wrong))?;
            }
            for (number, step) in steps.into_iter().enumerate() {
                let mut after = world.copied();
                self.found.transitions += 1;
                let taken = after.take(step);
                taken.map_err(|wrong| self.counterexample(node as u32, Some(step), wrong))?;
                if self.seen.insert(after.fingerprint()) {
                    self.nodes.push(Node {
                        parent: node as u32,
                        step: number as u8,
                    });
                    self.found.states = self.nodes.len();
                    if self.nodes.len().is_multiple_of(TOLD_EVERY) {
                        progress(&self.found);
                    }
                }
            }
        }
        Ok(next..self.nodes.len())
    }

    fn ancestors(&self, node: u32) -> Vec<u32> {
        let mut way = vec![node];
        let mut at = node;
        while at != 0 {
            at = self.nodes[at as usize].parent;
            way.push(at);
        }
        way.reverse();
        way
    }

    /// The state of a node. States of one layer come in the order of their parents, so most of the way is that of the one
    /// before.
    fn made(&mut self, node: u32) -> World {
        let way = self.ancestors(node);
        let same = self
            .path
            .iter()
            .zip(&way)
            .take_while(|((made, _), node)| made == *node)
            .count();
        self.path.truncate(same);
        for node in &way[same..] {
            let world = match self.path.last() {
                None => World::new(self.cast, self.begin),
                Some((_, parent)) => {
                    let mut world = parent.copied();
                    let step = world.steps()[usize::from(self.nodes[*node as usize].step)];
                    world.take(step).expect("a step that was taken before");
                    world
                }
            };
            self.path.push((*node, world));
        }
        self.path.last().expect("the way has an end").1.copied()
    }

    /// The way to a state, and one step further.
    fn counterexample(&self, node: u32, step: Option<Step>, wrong: String) -> Box<Counterexample> {
        let mut world = World::new(self.cast, self.begin);
        let mut trace = Vec::new();
        for node in &self.ancestors(node)[1..] {
            let step = world.steps()[usize::from(self.nodes[*node as usize].step)];
            trace.push(format!("{step:?}"));
            world.take(step).expect("a step that was taken before");
        }
        trace.extend(step.map(|step| format!("{step:?}")));
        Box::new(Counterexample { wrong, trace })
    }
}

/// The command: one cast or all of them.
pub(super) fn run(name: &str, depth: usize) -> bool {
    let casts: Vec<_> = CASTS
        .into_iter()
        .filter(|cast| name == "all" || cast.name == name)
        .collect();
    if casts.is_empty() {
        let names: Vec<_> = CASTS.iter().map(|cast| cast.name).collect();
        eprintln!("no cast {name:?}: all, {}", names.join(", "));
        return false;
    }
    casts.into_iter().all(|cast| {
        println!("{}: {cast:?}", cast.name);
        let begun = Instant::now();
        let found = explore(cast, depth, |found| println!("{found}, {:.1?}", begun.elapsed()));
        found.inspect_err(|wrong| println!("{wrong}")).is_ok()
    })
}

#[cfg(test)]
mod tests;
