//! The search: level by level, each state once.

use super::normal::{Doing, concrete, fingerprint, normal, shown};
use super::{Cast, Counterexample, KEY, Op, ops};
use crate::invariants;
use crate::judge::judge;
use crate::lua_world::{BEGIN_US, Hearing, Kept, Limits, Loaded, Scripts, Step, Want, World};
use crate::model::Lock;
use std::collections::{HashSet, VecDeque};

/// How a state was first reached.
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub(super) parent: u32,
    pub(super) op: u8,
}

#[derive(Clone)]
pub(super) struct State {
    pub(super) node: u32,
    /// What lies under the keys, and what that means.
    pub(super) kept: Kept,
    pub(super) lock: Lock,
    pub(super) now_us: u64,
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
pub(super) struct Sent<'a> {
    pub(super) from: &'a State,
    pub(super) op: u8,
    pub(super) step: Step,
}

pub(super) struct Explorer {
    pub(super) world: World,
    pub(super) loaded: Loaded,
    pub(super) limits: Limits,
    pub(super) cast: Cast,
    pub(super) ops: Vec<Op>,
    /// 128 bits of each state: two that are taken for one are less likely than a broken machine.
    pub(super) seen: HashSet<u128>,
    pub(super) nodes: Vec<Node>,
    pub(super) transitions: u64,
}

/// Calls that are sent together.
pub(super) const BATCH: usize = 200;

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
            seen: HashSet::new(),
            nodes: vec![Node { parent: 0, op: 0 }],
            transitions: 0,
        })
    }

    pub(super) fn layer(&mut self, frontier: &[State]) -> Result<Vec<State>, Box<Counterexample>> {
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
                let each = self
                    .cast
                    .deaf
                    .iter()
                    .flat_map(|deaf| [true, false].map(|listened| (listened, deaf)));
                for (listened, deaf) in each {
                    // Whether events are published changes nothing else.
                    if listened && !deaf.is_empty() {
                        continue;
                    }
                    let args: Vec<&str> = args.iter().map(String::as_str).collect();
                    let step = Step {
                        listened,
                        hearing: Hearing {
                            deaf: deaf.iter().map(|client| (*client).to_owned()).collect(),
                            refused: false,
                            promoted: false,
                            most_looked_at: self.limits.expiries,
                        },
                        ..Step::new(script, &args, from.now_us)
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

    pub(super) fn receive(
        &mut self,
        sent: &mut VecDeque<Sent<'_>>,
        next: &mut Vec<State>,
    ) -> Result<(), Box<Counterexample>> {
        if let (Some(first), Err(error)) = (sent.front(), self.world.send()) {
            return Err(self.counterexample(first.from.node, usize::from(first.op), error));
        }
        for Sent { from, op, step } in sent.drain(..) {
            self.transitions += 1;
            let seen = self.world.seen(KEY, step.script);
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
    pub(super) fn arrive(&mut self, mut state: State, op: usize, next: &mut Vec<State>) {
        if self.seen.insert(fingerprint(&normal(&state.kept, state.now_us))) {
            let parent = state.node;
            state.node = self.nodes.len() as u32;
            self.nodes.push(Node { parent, op: op as u8 });
            next.push(state);
        }
    }

    /// The way to a state, and one step further.
    pub(super) fn counterexample(&self, mut node: u32, op: usize, difference: String) -> Box<Counterexample> {
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
