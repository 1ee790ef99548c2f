//! Several stories side by side on one server, and the shrinking of one that failed.

use super::{Counterexample, shown};
use crate::lua_world::{Limits, Loaded, Scripts, Want, World};
use crate::story::{Case, Counts, Doing, LIMITS, Story};
use proptest::strategy::ValueTree;

/// The place in a story at which something was wrong.
pub(super) struct Failure {
    pub(super) case: Case,
    pub(super) difference: String,
    pub(super) trace: Vec<String>,
}

impl Failure {
    pub(super) fn explain(self, seed: u64, found_after: u64) -> Counterexample {
        Counterexample {
            seed,
            found_after,
            limits: LIMITS[self.case.limits],
            trace: self.trace,
            difference: self.difference,
        }
    }
}

/// A server on which stories are played, several at once: one call of each is sent together with those of the others.
pub(super) struct Bench {
    pub(super) world: World,
    pub(super) loaded: Vec<Loaded>,
}

pub(super) const LANES: usize = 32;

pub(super) const SHRINK_RUNS: usize = 300;

pub(super) struct Lane<'a> {
    pub(super) story: Story<'a>,
    pub(super) key: String,
    pub(super) doing: Option<Doing>,
    pub(super) trace: Vec<String>,
    pub(super) wrong: Option<String>,
}

impl Bench {
    pub(super) fn start(scripts: &Scripts, seed: u64) -> Result<Self, Box<Counterexample>> {
        let mut world = World::start();
        let loaded = LIMITS.iter().map(|limits| world.load(&scripts.with_limits(*limits)));
        let loaded = loaded.collect::<Result<_, _>>().map_err(|difference| Counterexample {
            seed,
            found_after: 0,
            limits: Limits::default(),
            trace: Vec::new(),
            difference,
        })?;
        Ok(Self { world, loaded })
    }

    /// Plays stories side by side, each on a lock of its own.
    pub(super) fn play(&mut self, cases: &[Case]) -> Vec<Result<Counts, Failure>> {
        let mut lanes: Vec<Lane> = Vec::with_capacity(cases.len());
        for (number, case) in cases.iter().enumerate() {
            let key = format!("fairlock:{{m{number}}}");
            self.world.delete(&key);
            lanes.push(Lane {
                story: Story::new(case, &key),
                key,
                doing: None,
                trace: Vec::new(),
                wrong: None,
            });
        }
        let deleted = self.world.send().expect("the server is there");
        (0..deleted).for_each(|_| drop(self.world.receive()));
        let want = Want {
            status: true,
            keys: false,
        };
        loop {
            for (lane, case) in lanes.iter_mut().zip(cases) {
                lane.doing = if lane.wrong.is_some() {
                    None
                } else {
                    lane.story.next_doing()
                };
                match &lane.doing {
                    Some(Doing::Call { step, .. }) => {
                        self.world.step(&self.loaded[case.limits], &lane.key, None, step, want);
                    }
                    Some(Doing::Lose(which)) => self.world.lose(&lane.key, *which),
                    None => {}
                }
            }
            if self.world.send().expect("the server is there") == 0 {
                break;
            }
            for lane in &mut lanes {
                lane.receive(&mut self.world);
            }
        }
        let each = lanes.into_iter().zip(cases).map(|(lane, case)| match lane.wrong {
            None => Ok(lane.story.counts),
            Some(difference) => Err(Failure {
                case: case.clone(),
                difference,
                trace: lane.trace,
            }),
        });
        each.collect()
    }

    pub(super) fn fails(&mut self, case: &Case) -> Option<Failure> {
        self.play(std::slice::from_ref(case)).pop()?.err()
    }

    pub(super) fn shrink(&mut self, tree: &mut impl ValueTree<Value = Case>, first: Failure) -> Failure {
        let mut best = first;
        let mut more = tree.simplify();
        for _ in 0..SHRINK_RUNS {
            if !more {
                break;
            }
            more = match self.fails(&tree.current()) {
                Some(failure) => {
                    best = failure;
                    tree.simplify()
                }
                None => tree.complicate(),
            };
        }
        self.shorten(best)
    }

    /// Leaves out what is not needed.
    pub(super) fn shorten(&mut self, mut best: Failure) -> Failure {
        let mut at = best.case.ops.len();
        while at > 0 {
            at -= 1;
            let mut case = best.case.clone();
            case.ops.remove(at);
            case.loss = case.loss.map(|(loss, which)| (loss - usize::from(loss > at), which));
            best = self.fails(&case).unwrap_or(best);
        }
        best
    }
}

impl Lane<'_> {
    pub(super) fn receive(&mut self, world: &mut World) {
        let Some(doing) = self.doing.take() else { return };
        let result = match &doing {
            Doing::Lose(_) => world.lost().map(|(lost, losable)| {
                self.trace.push(format!("lost: {lost:?}"));
                self.story.lost(lost, losable);
            }),
            Doing::Call { step, heard } => {
                let seen = world.seen(&self.key, step.script);
                let heard = if *heard { "" } else { " (late)" };
                let reply = seen.as_ref().map_or(&[][..], |seen| &seen.reply);
                self.trace.push(format!("{}{heard} -> {reply:?}", shown(step)));
                seen.and_then(|seen| self.story.seen(&doing, seen))
            }
        };
        self.wrong = result.err();
    }
}
