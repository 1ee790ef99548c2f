//! Who waits for whom, as the server had it at every moment: the judge of the search for deadlocks.
//!
//! For each lock and each named owner the judge keeps the times in which the owner waited for the lock, held it, and had
//! its guard in hand. A circle of owners was there if at one moment each of them waited for a lock that the next one held.
//! A hold counts only if its user had the guard when it asked for what it waits for. Moments are numbers, because many
//! calls share one instant of virtual time.

use crate::model::{BAND, Lock, named_owner};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// From the first moment to the one after the last.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: u64,
    until: u64,
    begun: Instant,
    /// Of a wait.
    ticket: i64,
}

const STILL: u64 = u64::MAX;

impl Span {
    fn has(&self, moment: u64) -> bool {
        (self.from..self.until).contains(&moment)
    }
}

/// By lock and owner.
#[derive(Default)]
struct Spans(BTreeMap<String, BTreeMap<String, Vec<Span>>>);

impl Spans {
    fn of(&self, lock: &str, owner: &str) -> &[Span] {
        let spans = self.0.get(lock).and_then(|owners| owners.get(owner));
        spans.map_or(&[], Vec::as_slice)
    }

    fn begin(&mut self, lock: &str, owner: &str, moment: u64, ticket: i64) {
        let owners = self.0.entry(lock.to_owned()).or_default();
        let spans = owners.entry(owner.to_owned()).or_default();
        if spans.last().is_none_or(|last| last.until != STILL) {
            spans.push(Span {
                from: moment,
                until: STILL,
                begun: Instant::now(),
                ticket,
            });
        }
    }

    /// The present spans of a lock end, but for those of these owners.
    fn end_but(&mut self, lock: &str, of: &BTreeSet<&str>, moment: u64) {
        for (owner, spans) in self.0.get_mut(lock).into_iter().flatten() {
            if let Some(last) = spans.last_mut()
                && !of.contains(owner.as_str())
            {
                last.until = last.until.min(moment);
            }
        }
    }

    /// Lock and owner of the spans that last and began by then.
    fn since(&self, then: Instant) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(move |(lock, owners)| {
            let last = owners.iter().filter_map(|(owner, spans)| Some((owner, spans.last()?)));
            let lasting = last.filter(move |(_, last)| last.until == STILL && last.begun <= then);
            lasting.map(|(owner, _)| (lock.as_str(), owner.as_str()))
        })
    }
}

/// The times that are in a span of both.
fn both(times: &[Span], spans: &[Span]) -> Vec<Span> {
    let meet = |one: &Span| {
        let one = *one;
        spans.iter().map(move |other| Span {
            from: one.from.max(other.from),
            until: one.until.min(other.until),
            begun: one.begun.max(other.begun),
            ticket: 0,
        })
    };
    times
        .iter()
        .flat_map(meet)
        .filter(|span| span.from < span.until)
        .collect()
}

/// A wait: lock, owner, first moment.
type Wait = (String, String, u64);

#[derive(Default)]
pub struct Circles {
    moment: u64,
    waits: Spans,
    holds: Spans,
    hands: Spans,
    /// How many holds of a lock an owner has, and the moment at which one of several ended last. It may have been the one
    /// whose guard is in hand, and the others of those that their user has left.
    several: BTreeMap<(String, String), (usize, u64)>,
    /// The circles of which somebody was told.
    told: BTreeSet<Vec<Wait>>,
    /// The server has gone back to an earlier state. Notes came back with it, of holds that their owners had left.
    went_back: bool,
}

fn key_of(lock: &str) -> String {
    format!("fairlock:{{{lock}}}")
}

impl Circles {
    /// A call has changed who waits for a lock, or who holds it.
    pub fn look(&mut self, key: &str, lock: &Lock) {
        self.moment += 1;
        let named = |request| named_owner(request).filter(|owner: &&str| !owner.contains([':', '*']));
        let waiting = lock.queue().map(|(request, score)| (request, score.rem_euclid(BAND)));
        let holding: Vec<&str> = lock.alive().filter(|request| lock.holds(request)).collect();
        let mut several: BTreeMap<&str, usize> = BTreeMap::new();
        for owner in holding.iter().filter_map(|request| named(request)) {
            *several.entry(owner).or_default() += 1;
        }
        for ((_, owner), (before, ended)) in self.several.iter_mut().filter(|((lock, _), _)| lock == key) {
            let holds = several.remove(owner.as_str()).unwrap_or(0);
            if (1..*before).contains(&holds) {
                *ended = self.moment;
            }
            *before = holds;
        }
        let new = several
            .into_iter()
            .map(|(owner, holds)| ((key.to_owned(), owner.to_owned()), (holds, 0)));
        self.several.extend(new);
        let tickets: [BTreeMap<&str, i64>; 2] = [
            waiting
                .filter_map(|(request, ticket)| Some((named(request)?, ticket)))
                .collect(),
            holding
                .iter()
                .filter_map(|request| Some((named(request)?, 0)))
                .collect(),
        ];
        for (spans, tickets) in [&mut self.waits, &mut self.holds].into_iter().zip(tickets) {
            spans.end_but(key, &tickets.keys().copied().collect(), self.moment);
            for (owner, ticket) in tickets {
                spans.begin(key, owner, self.moment, ticket);
            }
        }
    }

    /// The server has forgotten everything.
    pub fn forget(&mut self) {
        self.moment += 1;
        for spans in [&mut self.waits, &mut self.holds] {
            let keys: Vec<String> = spans.0.keys().cloned().collect();
            keys.iter()
                .for_each(|key| spans.end_but(key, &BTreeSet::new(), self.moment));
        }
    }

    /// The server has what it had at an earlier moment.
    pub fn go_back(&mut self) {
        self.went_back = true;
    }

    /// An owner has the guard of a lock, or is about to get it by a call for several locks.
    pub fn took(&mut self, lock: &str, owner: &str) {
        self.hands.begin(&key_of(lock), owner, self.moment, 0);
    }

    /// An owner begins to leave a lock.
    pub fn leaves(&mut self, lock: &str, owner: &str) {
        if let Some(last) = self
            .hands
            .0
            .get_mut(&key_of(lock))
            .and_then(|of| of.get_mut(owner)?.last_mut())
        {
            last.until = last.until.min(self.moment + 1);
        }
    }

    /// The first owner of a circle was told of it: owners, and the locks for which they wait. The first one asked at that
    /// time. `calm`: nothing goes wrong in this run.
    pub fn told(&mut self, circle: &[(String, String)], asked: Instant, calm: bool) -> Result<(), String> {
        let edges = circle.iter().zip(circle.iter().cycle().skip(1));
        let edges: Vec<_> = edges
            .map(|((waiter, lock), (holder, _))| (key_of(lock), waiter.clone(), holder.clone()))
            .collect();
        let Some((lock, victim, _)) = edges.first() else {
            return Err("a circle of nobody".to_owned());
        };
        let mut there = self.waits.of(lock, victim).to_vec();
        there.retain(|span| span.begun >= asked);
        for (lock, waiter, holder) in &edges {
            there = both(&there, self.waits.of(lock, waiter));
            there = both(&there, self.holds.of(lock, holder));
        }
        let Some(moment) = there.last().map(|span| span.from) else {
            return Err(format!("told of a circle that was never there: {circle:?}"));
        };
        let wait_of = |(lock, waiter, _): &(String, String, String)| {
            let wait = self.waits.of(lock, waiter).iter().find(|span| span.has(moment));
            wait.map_or((0, 0), |span| (span.from, span.ticket))
        };
        for ((lock, _, holder), next) in edges.iter().zip(edges.iter().cycle().skip(1)) {
            let (asked, _) = wait_of(next);
            let had = self.hands.of(lock, holder).iter().any(|span| span.has(asked));
            if !had && !self.went_back {
                return Err(format!("told to wait for {holder}, which has left {lock}: {circle:?}"));
            }
        }
        if calm && edges.iter().any(|edge| wait_of(edge).1 > wait_of(&edges[0]).1) {
            return Err(format!(
                "told of a circle of which another one is the youngest: {circle:?}"
            ));
        }
        let waits = edges
            .iter()
            .map(|edge| (edge.0.clone(), edge.1.clone(), wait_of(edge).0));
        let mut waits: Vec<Wait> = waits.collect();
        waits.sort();
        match self.told.insert(waits) {
            true => Ok(()),
            false => Err(format!("a second one was told of the same circle: {circle:?}")),
        }
    }

    /// The edges of a circle that has stood for so long.
    pub fn standing(&self, bound: Duration) -> Option<Vec<(&str, &str)>> {
        let then = Instant::now().checked_sub(bound)?;
        let has_guard = |lock: &str, owner: &str| {
            let ended = self.several.get(&(lock.to_owned(), owner.to_owned()));
            let hand = self.hands.of(lock, owner).last();
            hand.is_some_and(|last| last.until == STILL && ended.is_none_or(|(_, ended)| *ended < last.from))
        };
        let holds: Vec<_> = self
            .holds
            .since(then)
            .filter(|(lock, owner)| has_guard(lock, owner))
            .collect();
        let waits = self.waits.since(then);
        let mut edges: Vec<(&str, &str)> = waits
            .flat_map(|(lock, waiter)| {
                let holders = holds
                    .iter()
                    .filter(move |(held, owner)| *held == lock && *owner != waiter);
                holders.map(move |(_, holder)| (waiter, *holder))
            })
            .collect();
        // An edge to an owner that waits for nobody is of no circle.
        loop {
            let waiters: BTreeSet<&str> = edges.iter().map(|(waiter, _)| *waiter).collect();
            let all = edges.len();
            edges.retain(|(_, holder)| waiters.contains(holder));
            match edges.len() {
                0 => return None,
                left if left == all => return Some(edges),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_secs(5);

    fn names(circle: [(&str, &str); 2]) -> [(String, String); 2] {
        circle.map(|(owner, lock)| (owner.to_owned(), lock.to_owned()))
    }

    /// Owner A holds `x` and waits for `y`; B holds `y` and waits for `x`, and is the younger one.
    struct Two {
        circles: Circles,
        asked: Instant,
    }

    impl Two {
        fn new() -> Self {
            let asked = Instant::now();
            let mut circles = Circles::default();
            for (lock, waiter, holder) in [("y", "a", "b"), ("x", "b", "a")] {
                circles.holds.begin(&key_of(lock), holder, 1, 0);
                circles.took(lock, holder);
                circles.moment += 2;
                let ticket = circles.moment as i64;
                circles.waits.begin(&key_of(lock), waiter, circles.moment, ticket);
            }
            Self { circles, asked }
        }

        fn ends(&mut self, what: &str) {
            let Circles {
                moment,
                waits,
                holds,
                several,
                ..
            } = &mut self.circles;
            *moment += 1;
            match what {
                "a wait" => waits.end_but(&key_of("y"), &BTreeSet::new(), *moment),
                "a hold" => holds.end_but(&key_of("x"), &BTreeSet::new(), *moment),
                "a guard" => self.circles.leaves("x", "a"),
                "one of two holds" => drop(several.insert((key_of("x"), "a".to_owned()), (1, *moment))),
                _ => {}
            }
        }

        fn told(&mut self, first: usize) -> Result<(), String> {
            let mut circle = names([("a", "y"), ("b", "x")]);
            circle.rotate_left(first);
            self.circles.told(&circle, self.asked, true)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_circle_stands_until_a_wait_or_a_hold_or_a_guard_of_it_ends() {
        for (what, stands) in [
            ("nothing", true),
            ("a wait", false),
            ("a hold", false),
            ("a guard", false),
            ("one of two holds", false),
        ] {
            let mut two = Two::new();
            tokio::time::sleep(BOUND).await;
            two.ends(what);
            assert_eq!(two.circles.standing(BOUND).is_some(), stands, "{what}");
            assert_eq!(two.circles.standing(BOUND * 2), None, "not for so long");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_youngest_of_a_circle_that_was_there_is_told_once() {
        let mut two = Two::new();
        let older = two.told(0).expect_err("the older one");
        assert!(older.contains("youngest"), "{older}");
        two.ends("a hold");
        assert_eq!(two.told(1), Ok(()), "it was there");
        let twice = two.told(1).expect_err("once more");
        assert!(twice.contains("second"), "{twice}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_circle_that_was_at_no_moment_there_is_a_false_alarm() {
        for what in ["a wait", "a hold"] {
            let mut two = Two::new();
            // The edge ends, and only then B begins to wait.
            two.circles.waits = Spans::default();
            two.circles.waits.begin(&key_of("y"), "a", 1, 1);
            two.ends(what);
            two.circles.waits.begin(&key_of("x"), "b", two.circles.moment, 9);
            let told = two.told(1).expect_err(what);
            assert!(told.contains("never there"), "{told}");
        }
        // A has left `x`, and asks for `y` after that.
        let mut two = Two::new();
        two.ends("a guard");
        two.circles
            .waits
            .end_but(&key_of("y"), &BTreeSet::new(), two.circles.moment);
        two.circles.moment += 1;
        two.circles.waits.begin(&key_of("y"), "a", two.circles.moment, 3);
        let told = two.told(1).expect_err("it ends by itself");
        assert!(told.contains("has left"), "{told}");
        two.circles.go_back();
        assert_eq!(two.told(1), Ok(()), "its note is back");
    }
}
