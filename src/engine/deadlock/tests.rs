//! The search in a world that moves between any two of its readings.

use super::{MOST_MISSES, Reader, graph_of, is_look_due, is_repeat_due, is_still};
use crate::protocol::key::Lock;
use crate::protocol::snapshot::{RawState, Snapshot, SnapshotHolder};
use crate::protocol::waits::Note;
use crate::state::waits::Wait;
use crate::types::error::timed_out;
use crate::types::mode::Policy;
use fairlock_support::random::{self, Rng};
use redis::RedisError;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

const OWNERS: usize = 4;
const LOCKS: usize = 3;

#[derive(Clone, Debug, PartialEq)]
struct Place {
    owner: usize,
    request: String,
    ticket: u64,
}

/// Owners that write-lock what they do not hold yet, in any order, give all back, and begin anew.
struct World {
    random: Rng,
    /// In the order of the queue; the first one holds.
    locks: [Vec<Place>; LOCKS],
    /// What each owner has noted: its last wait, over or not.
    notes: [Option<(usize, String)>; OWNERS],
    last: u64,
    /// Waiters may give up.
    patient: bool,
}

impl World {
    fn new(random: Rng, patient: bool) -> Self {
        Self {
            random,
            locks: Default::default(),
            notes: Default::default(),
            last: 0,
            patient,
        }
    }

    fn waits(&self, owner: usize) -> Option<(usize, &Place)> {
        let waiting = |lock: usize| self.locks[lock].iter().skip(1).find(|place| place.owner == owner);
        (0..LOCKS).find_map(|lock| Some((lock, waiting(lock)?)))
    }

    fn holds(&self, lock: usize) -> Option<usize> {
        self.locks[lock].first().map(|place| place.owner)
    }

    fn step(&mut self) {
        let owner = self.random.usize(..OWNERS);
        let lock = self.random.usize(..LOCKS);
        match self.waits(owner).map(|(lock, _)| lock) {
            Some(waits_for) => {
                if !self.patient && self.random.usize(..8) == 0 {
                    self.locks[waits_for].retain(|place| place.owner != owner);
                }
            }
            None if self.holds(lock) == Some(owner) => {
                if self.random.usize(..3) == 0 {
                    self.locks[lock].remove(0);
                }
            }
            None => {
                self.last += 1;
                let request = format!("w0a:{}:{}", self.last, name(owner));
                let ticket = self.last;
                self.locks[lock].push(Place {
                    owner,
                    request: request.clone(),
                    ticket,
                });
                if self.locks[lock].len() > 1 {
                    self.notes[owner] = Some((lock, request));
                }
            }
        }
    }

    /// Whether an owner is the youngest of a circle, now.
    fn is_youngest(&self, owner: usize) -> bool {
        self.is_youngest_without(owner, None)
    }

    /// The same, of circles without that lock.
    fn is_youngest_without(&self, owner: usize, lock: Option<usize>) -> bool {
        let mine = self.waits(owner).map_or(0, |(_, place)| place.ticket);
        let mut next = owner;
        for _ in 0..OWNERS {
            let waits = self.waits(next).filter(|(waits_for, _)| Some(*waits_for) != lock);
            match waits.map(|(lock, place)| (self.holds(lock), place.ticket)) {
                Some((Some(holder), ticket)) if ticket <= mine => next = holder,
                _ => return false,
            }
            if next == owner {
                return true;
            }
        }
        false
    }

    fn seen(&self, lock: usize, request: &str) -> Snapshot {
        let holder = self.locks[lock].first();
        let place = self.locks[lock].iter().skip(1).find(|place| place.request == request);
        Snapshot {
            now_us: self.last,
            mode: None,
            policy: Policy::Fifo,
            write_holds: 1,
            holding: 1,
            waiting: 0,
            holders: holder.map(held).into_iter().collect(),
            waiters: Vec::new(),
            raw: RawState::default(),
            ahead: None,
            ticket_us: place.map(|place| place.ticket),
        }
    }
}

fn held(place: &Place) -> SnapshotHolder {
    SnapshotHolder {
        request: place.request.clone(),
        deadline_ms: u64::MAX,
        read_holds: 0,
        token: place.ticket,
    }
}

fn name(owner: usize) -> String {
    format!("owner{owner}")
}

fn lock_of(lock: usize) -> Arc<Lock> {
    Arc::new(Lock::new("p", lock.to_string().into()))
}

/// A world that moves before each reading by up to so many steps.
struct Moving {
    world: RefCell<World>,
    steps: usize,
    /// The locks of a node that is away.
    away: Option<usize>,
}

impl Moving {
    fn moved(&self) -> std::cell::RefMut<'_, World> {
        let mut world = self.world.borrow_mut();
        for _ in 0..world.random.usize(..=self.steps) {
            world.step();
        }
        world
    }
}

impl Reader for Moving {
    async fn wait(&self, lock: &Arc<Lock>, request: &str) -> Result<Option<Wait>, RedisError> {
        let number = lock.name.parse().expect("a number");
        if self.away == Some(number) {
            return Err(timed_out());
        }
        let seen = self.moved().seen(number, request);
        Ok(Wait::read(lock, request, &seen))
    }

    async fn notes(&self, owners: &[String]) -> (Vec<Note>, Option<RedisError>) {
        let world = self.moved();
        let noted = world
            .notes
            .iter()
            .enumerate()
            .filter(|(owner, _)| owners.contains(&name(*owner)));
        let noted = noted.filter_map(|(owner, note)| Some((owner, note.clone()?)));
        let holds = |owner: usize| {
            let held = world.locks.iter().filter_map(|places| places.first());
            held.filter(move |place| place.owner == owner)
                .map(|place| place.request.clone())
        };
        let note = |(owner, (lock, request))| Note {
            waits: vec![(request, lock_of(lock))],
            holds: holds(owner).collect(),
        };
        (noted.map(note).collect(), None)
    }

    fn has_others(&self, _: &RedisError) -> bool {
        self.away.is_some()
    }
}

#[derive(Debug, Default)]
struct Judged {
    told: usize,
    /// Circles of the first reading that were none.
    phantoms: usize,
}

/// One look of an owner that waits. Whether it is told, and whether that was true between the two readings.
async fn look(moving: &Moving, owner: usize, judged: &mut Judged) {
    let place = moving
        .world
        .borrow()
        .waits(owner)
        .map(|(lock, place)| (lock, place.request.clone()));
    let Some((lock, request)) = place else { return };
    let Ok(Some(mine)) = moving.wait(&lock_of(lock), &request).await else {
        return;
    };
    let (graph, unread) = graph_of(moving, &[&mine]).await.expect("an answer");
    assert!(unread.is_none() || moving.away.is_some());
    let is_youngest = moving.world.borrow().is_youngest(owner);
    let Some(circle) = graph.circle(&mine) else { return };
    match is_still(moving, &circle).await.expect("an answer") {
        true => {
            judged.told += 1;
            assert!(is_youngest, "it was told of no circle: {circle:?}");
        }
        false => judged.phantoms += 1,
    }
}

#[tokio::test]
async fn nobody_is_told_of_a_circle_that_was_none_or_whose_youngest_it_is_not() {
    let (mut random, mut judged) = (random::seeded(), Judged::default());
    for n in 0..5_000 {
        let mut world = World::new(random.fork(), n % 2 == 0);
        (0..world.random.usize(..40)).for_each(|_| world.step());
        let moving = Moving {
            world: RefCell::new(world),
            steps: n % 5,
            away: None,
        };
        for owner in 0..OWNERS {
            look(&moving, owner, &mut judged).await;
        }
    }
    // Otherwise the world tries nothing.
    assert!(judged.told > 200 && judged.phantoms > 20, "{judged:?}");
}

#[tokio::test]
async fn in_a_world_that_stands_still_the_youngest_of_each_circle_is_told() {
    let mut random = random::seeded();
    let mut circles = 0;
    for _ in 0..2_000 {
        let mut world = World::new(random.fork(), true);
        (0..60).for_each(|_| world.step());
        let moving = Moving {
            world: RefCell::new(world),
            steps: 0,
            away: random.usize(..=LOCKS).checked_sub(1),
        };
        for owner in 0..OWNERS {
            let mut judged = Judged::default();
            look(&moving, owner, &mut judged).await;
            let expected = usize::from(moving.world.borrow().is_youngest_without(owner, moving.away));
            assert_eq!(judged.told, expected, "owner {owner}");
            circles += expected;
        }
    }
    assert!(circles > 200, "{circles} circles");
}

#[test]
fn looks_come_at_one_two_and_four_time_outs_and_then_every_64() {
    let due: Vec<_> = (1..300).filter(|rounds| is_look_due(*rounds)).collect();
    assert_eq!(due, [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]);
}

#[test]
fn looks_without_a_reply_come_again_after_pauses_that_double() {
    for (misses, pause) in [(0, 1), (1, 2), (3, 8), (6, 64), (7, 64), (u32::MAX, 64)] {
        let due: Vec<_> = (1..130).filter(|rounds| is_repeat_due(*rounds, misses)).collect();
        assert_eq!((due[0], due.len()), (pause, 129 / pause as usize), "{misses} misses");
    }
}

/// An owner that holds what another one waits for, and has noted 100 waits at a node that is away.
#[derive(Default)]
struct Away {
    asked: Cell<usize>,
}

impl Reader for Away {
    async fn wait(&self, _: &Arc<Lock>, _: &str) -> Result<Option<Wait>, RedisError> {
        self.asked.set(self.asked.get() + 1);
        Err(timed_out())
    }

    async fn notes(&self, _: &[String]) -> (Vec<Note>, Option<RedisError>) {
        let waits = (10..110).map(|n| (format!("w0a:{n}:{}", name(0)), lock_of(n)));
        let (waits, holds) = (waits.collect(), Vec::new());
        (vec![Note { waits, holds }], None)
    }

    fn has_others(&self, _: &RedisError) -> bool {
        true
    }
}

/// The notes are at a node that is away.
struct Unnoted;

impl Reader for Unnoted {
    async fn wait(&self, _: &Arc<Lock>, _: &str) -> Result<Option<Wait>, RedisError> {
        Ok(None)
    }

    async fn notes(&self, _: &[String]) -> (Vec<Note>, Option<RedisError>) {
        (Vec::new(), Some(timed_out()))
    }

    fn has_others(&self, _: &RedisError) -> bool {
        true
    }
}

/// A request that waits for another one's write hold.
fn waiting() -> Wait {
    let mut world = World::new(random::seeded(), true);
    world.locks[0] = [0, 1]
        .map(|owner| Place {
            owner,
            request: format!("w0a:{}:{}", owner + 1, name(owner)),
            ticket: owner as u64 + 1,
        })
        .into();
    let request = &world.locks[0][1].request;
    Wait::read(&lock_of(0), request, &world.seen(0, request)).expect("it waits")
}

#[tokio::test]
async fn a_look_without_the_notes_comes_again() {
    let (_, unread) = graph_of(&Unnoted, &[&waiting()]).await.expect("what can be read");
    assert!(unread.is_some());
}

/// Each wait that cannot be read takes the time limit of a call.
#[tokio::test]
async fn a_look_ends_when_many_waits_have_no_reply() {
    let mine = waiting();
    let away = Away::default();
    let (_, unread) = graph_of(&away, &[&mine]).await.expect("what can be read");
    assert!(unread.is_some());
    assert_eq!(away.asked.get(), MOST_MISSES);
}
