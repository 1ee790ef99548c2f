//! The search: layer by layer, each state once.
//!
//! A state is known by 128 bits and by the step that first led to it. So millions of states need no memory for what lies
//! under their keys: before the search goes on from a group of them, it makes them again from the first state.

use super::normal::{Doing, concrete, fingerprint, shown};
use super::{Cast, Counterexample, KEY, Layer, Op, ops};
use crate::invariants;
use crate::judge::judge;
use crate::lua_world::{BEGIN_US, Hearing, Kept, Limits, Loaded, Scripts, Step, Want, World};
use crate::model::Lock;
use std::collections::HashSet;
use std::ops::Range;
use std::time::Instant;

/// How a state was first reached.
#[derive(Clone, Copy)]
struct Node {
    parent: u32,
    op: u8,
    /// Who did not hear it: an index into the cast's `deaf`.
    deaf: u8,
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

/// A step on its way.
struct Sent<'a> {
    from: &'a State,
    op: usize,
    doing: Doing,
    deaf: usize,
    listened: bool,
}

pub(super) struct Explorer {
    world: World,
    loaded: Loaded,
    limits: Limits,
    cast: Cast,
    ops: Vec<Op>,
    /// 128 bits of each state: two that are taken for one are less likely than a broken machine.
    seen: HashSet<u128>,
    /// In the order of their layers.
    nodes: Vec<Node>,
    transitions: u64,
    begun: Instant,
}

/// Calls that are sent together.
const BATCH: usize = 200;
/// States that are made again together, and after how many groups of them the search tells how far it is.
const GROUP: usize = 512;
const GROUPS: usize = 16;
/// From a layer of up to so many states, each call is made both while somebody listens to events and while nobody does. From
/// a larger one every other call has listeners: they change no state.
const BOTH: usize = 5_000;

impl Explorer {
    pub(super) fn start(
        scripts: &Scripts,
        cast: Cast,
        policy: &str,
        limits: Limits,
    ) -> Result<Self, Box<Counterexample>> {
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
            limits,
            cast,
            ops: ops(cast, policy),
            seen: HashSet::from([fingerprint(&Kept::default(), BEGIN_US, cast.alike)]),
            nodes: vec![Node {
                parent: 0,
                op: 0,
                deaf: 0,
            }],
            transitions: 0,
            begun: Instant::now(),
        })
    }

    /// Every step from every state of a layer. Returns the next layer.
    pub(super) fn layer(
        &mut self,
        depth: usize,
        layer: Range<usize>,
        progress: &mut impl FnMut(&Layer),
    ) -> Result<Range<usize>, Box<Counterexample>> {
        let next = self.nodes.len();
        for (group, begin) in layer.clone().step_by(GROUP).enumerate() {
            let end = layer.end.min(begin + GROUP);
            let states = self.remake(&(begin as u32..end as u32).collect::<Vec<_>>())?;
            self.expand(&states, layer.len() <= BOTH)?;
            if end == layer.end || group % GROUPS == GROUPS - 1 {
                progress(&Layer {
                    depth,
                    left: layer.end - end,
                    states: self.nodes.len(),
                    transitions: self.transitions,
                    elapsed: self.begun.elapsed(),
                });
            }
        }
        Ok(next..self.nodes.len())
    }

    /// The states of these nodes of one layer. They are in order, so those of one parent stand together.
    fn remake(&mut self, nodes: &[u32]) -> Result<Vec<State>, Box<Counterexample>> {
        if nodes == [0] {
            return Ok(vec![State::default()]);
        }
        let mut parents: Vec<u32> = nodes.iter().map(|node| self.nodes[*node as usize].parent).collect();
        parents.dedup();
        let parents = self.remake(&parents)?;
        let mut sent = Vec::with_capacity(nodes.len());
        for node in nodes {
            let Node { parent, op, deaf } = self.nodes[*node as usize];
            let at = parents.binary_search_by_key(&parent, |state| state.node);
            let from = &parents[at.expect("the parents of all nodes")];
            let (op, deaf) = (usize::from(op), usize::from(deaf));
            let doing = concrete(self.cast, &self.ops[op], &from.lock).expect("a step that was taken before");
            let listened = false;
            sent.push(self.send(Sent {
                from,
                op,
                doing,
                deaf,
                listened,
            }));
        }
        self.flush(&sent)?;
        let made = nodes.iter().zip(sent).map(|(node, sent)| {
            let state = self.came_of(&sent)?;
            Ok(State { node: *node, ..state })
        });
        made.collect()
    }

    /// Every step from these states.
    fn expand(&mut self, states: &[State], both: bool) -> Result<(), Box<Counterexample>> {
        // The server makes these calls while the replies to those before them are judged.
        let (mut sent, mut under_way) = (Vec::new(), Vec::new());
        for from in states {
            for op in 0..self.ops.len() {
                let every_other = (from.node as usize + op).is_multiple_of(2);
                for (deaf, listened) in (0..self.cast.deaf.len()).flat_map(|deaf| [(deaf, true), (deaf, false)]) {
                    // Whether events are published changes nothing else.
                    let made = match deaf {
                        0 => both || listened == every_other,
                        _ => !listened,
                    };
                    if made && let Some(doing) = concrete(self.cast, &self.ops[op], &from.lock) {
                        sent.push(self.send(Sent {
                            from,
                            op,
                            doing,
                            deaf,
                            listened,
                        }));
                    }
                }
            }
            if sent.len() >= BATCH {
                self.flush(&sent)?;
                self.receive(&mut under_way)?;
                std::mem::swap(&mut sent, &mut under_way);
            }
        }
        self.flush(&sent)?;
        self.receive(&mut under_way)?;
        self.receive(&mut sent)
    }

    fn send<'a>(&mut self, sent: Sent<'a>) -> Sent<'a> {
        if let Some(step) = self.step(&sent) {
            let want = Want {
                status: true,
                keys: true,
            };
            self.world.step(&self.loaded, KEY, Some(&sent.from.kept), &step, want);
        }
        sent
    }

    /// The call of a step, if it is one.
    fn step(&self, sent: &Sent<'_>) -> Option<Step> {
        let Doing::Call(script, args) = &sent.doing else {
            return None;
        };
        let deaf = self.cast.deaf[sent.deaf].iter().map(|client| (*client).to_owned());
        Some(Step {
            listened: sent.listened,
            hearing: Hearing {
                deaf: deaf.collect(),
                refused: false,
                promoted: false,
                most_looked_at: self.limits.expiries,
            },
            ..Step::new(
                *script,
                &args.iter().map(String::as_str).collect::<Vec<_>>(),
                sent.from.now_us,
            )
        })
    }

    fn flush(&mut self, sent: &[Sent<'_>]) -> Result<(), Box<Counterexample>> {
        match (sent.first(), self.world.send()) {
            (Some(first), Err(error)) => Err(self.counterexample(first.from.node, first.op, error)),
            _ => Ok(()),
        }
    }

    fn receive(&mut self, sent: &mut Vec<Sent<'_>>) -> Result<(), Box<Counterexample>> {
        for sent in sent.drain(..) {
            self.transitions += u64::from(matches!(sent.doing, Doing::Call(..)));
            let state = self.came_of(&sent)?;
            self.arrive(&state, &sent);
        }
        Ok(())
    }

    /// What a step made of its state. Of a call, the reply is the next one to come, and is judged.
    fn came_of(&mut self, sent: &Sent<'_>) -> Result<State, Box<Counterexample>> {
        let from = sent.from;
        let Some(step) = self.step(sent) else {
            let Doing::Wait(ms) = sent.doing else {
                unreachable!("a call is a step")
            };
            let now_us = from.now_us + ms * 1000;
            return Ok(State { now_us, ..from.clone() });
        };
        let seen = self.world.seen(KEY, step.script);
        let judged = seen.and_then(|seen| {
            let (lock, outcome) = judge(&from.lock, KEY, &step, &seen)?;
            invariants::of_state(&lock, !outcome.unfinished)
                .and_then(|()| invariants::of_call(&from.lock, &step, &outcome, &lock))
                .and_then(|()| invariants::of_repetition(&step, &outcome, &lock))
                .map_err(|what| format!("the model itself: {what}"))?;
            Ok((lock, seen.kept.unwrap_or_default()))
        });
        let (lock, kept) = judged.map_err(|what| self.counterexample(from.node, sent.op, what))?;
        Ok(State { kept, lock, ..*from })
    }

    /// A state that may be new.
    fn arrive(&mut self, state: &State, sent: &Sent<'_>) {
        if self
            .seen
            .insert(fingerprint(&state.kept, state.now_us, self.cast.alike))
        {
            self.nodes.push(Node {
                parent: state.node,
                op: sent.op as u8,
                deaf: sent.deaf as u8,
            });
        }
    }

    /// The way to a state, and one step further.
    fn counterexample(&self, mut node: u32, op: usize, difference: String) -> Box<Counterexample> {
        let mut path = vec![op];
        while node != 0 {
            let Node { parent, op, .. } = self.nodes[node as usize];
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
