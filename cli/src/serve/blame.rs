//! Pure: who waits for whom, as trees of locks. Under each lock stand its waiters, and under a waiter the locks that it
//! holds and others wait for. So the holders of a root are those who hold everybody else up.
//!
//! The trees go by clients, as `fairlock blockers` does, because a waiter may hold further locks through other owners. A
//! circle of clients has no root: its tree begins with any of its locks and says so. Such a circle may be none of owners.
//! Whether owners are deadlocked is a question of its own (`circle.rs`).

use crate::json;
use crate::locks::Found;
use crate::show;
use fairlock::{Holder, Waiter};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// How many locks there are in all trees.
const LOCKS: usize = 200;
/// How many holders and waiters a lock shows.
const HOLDERS: usize = 5;
const WAITERS: usize = 20;
/// How deep the trees are.
const DEPTH: usize = 12;
/// How many locks stand below waiters, in all trees. A lock may stand below many, and is shown in full once.
const BRANCHES: usize = 1000;

/// A lease that is over holds nobody up. During a quarantine nobody holds the lock.
fn holders(lock: &Found) -> impl Iterator<Item = &Holder> {
    let holds = |holder: &&Holder| holder.expired_for.is_none() && !show::is_nobody(holder);
    lock.status.holders.iter().filter(holds)
}

fn waiters(lock: &Found) -> impl Iterator<Item = &Waiter> {
    lock.status.waiters.iter().filter(|waiter| waiter.expired_for.is_none())
}

struct Forest<'a> {
    found: &'a [Found],
    /// The locks that others wait for, by the clients that hold them.
    held: HashMap<&'a str, Vec<usize>>,
    /// Locks that stand in a tree already.
    shown: HashSet<usize>,
    /// How many locks have been put below waiters.
    branches: usize,
}

/// The trees, those with the longest queues first, and how many locks that somebody waits for are in none of them.
pub(crate) fn trees(found: &[Found]) -> (Vec<Value>, usize) {
    let mut contended: Vec<usize> = (0..found.len()).filter(|at| found[*at].status.waiting > 0).collect();
    let (mut held, mut waiting) = (HashMap::<&str, Vec<usize>>::new(), HashSet::<&str>::new());
    for at in contended.iter().copied() {
        waiting.extend(waiters(&found[at]).map(|waiter| waiter.client.id.as_str()));
        for holder in holders(&found[at]) {
            let locks = held.entry(&holder.client.id).or_default();
            if locks.last() != Some(&at) {
                locks.push(at);
            }
        }
    }
    let is_root = |at: usize| !holders(&found[at]).any(|holder| waiting.contains(holder.client.id.as_str()));
    // A lock whose holder waits stands under that holder. Only in a circle no lock above it is a root.
    contended.sort_by_key(|at| (!is_root(*at), Reverse(found[*at].status.waiting), &found[*at].name));
    let mut forest = Forest {
        found,
        held,
        shown: HashSet::new(),
        branches: 0,
    };
    let mut trees = Vec::new();
    for at in contended.iter().copied() {
        // What had no room below its waiter is no circle.
        let is_cut = forest.branches >= BRANCHES && !is_root(at);
        if forest.shown.contains(&at) || forest.shown.len() >= LOCKS || is_cut {
            continue;
        }
        let mut tree = forest.tree(at, 0);
        tree["circle"] = (!is_root(at)).into();
        trees.push(tree);
    }
    (trees, contended.len() - forest.shown.len())
}

impl Forest<'_> {
    fn tree(&mut self, at: usize, depth: usize) -> Value {
        let lock = &self.found[at];
        let is_new = depth < DEPTH && self.shown.len() < LOCKS && self.shown.insert(at);
        let listed = if is_new { WAITERS } else { 0 };
        let mut seen = HashSet::new();
        let mut branches = Vec::new();
        for waiter in waiters(lock).take(listed) {
            // If several requests of a client wait here, what the client holds stands under the first one.
            let held = match seen.insert(waiter.client.id.as_str()) {
                true => self.held.get(waiter.client.id.as_str()).cloned().unwrap_or_default(),
                false => Vec::new(),
            };
            let mut locks = Vec::new();
            // A reader that waits to write does not wait for itself.
            for other in held.into_iter().filter(|other| *other != at) {
                if self.branches < BRANCHES {
                    self.branches += 1;
                    locks.push(self.tree(other, depth + 1));
                }
            }
            branches.push(json!({
                "client": json::client(&waiter.client),
                "owner": waiter.owner.to_string(),
                "mode": waiter.mode.as_str(),
                "upgrade": waiter.upgrade,
                "waited_ms": json::ms(waiter.waited),
                "holds": locks,
            }));
        }
        // A status lists holders in the order of their leases, which each renewal changes.
        let mut longest: Vec<&Holder> = holders(lock).collect();
        longest.sort_by_key(|holder| (holder.token.get(), holder.owner));
        let holder = |holder: &Holder| {
            json!({
                "client": json::client(&holder.client),
                "owner": holder.owner.to_string(),
                "mode": holder.mode.as_str(),
                "held_ms": json::ms(holder.held_for),
            })
        };
        let quarantine = show::quarantine(&lock.status);
        json!({
            "lock": lock.name,
            "mode": lock.status.mode.map(fairlock::Mode::as_str),
            "holding": lock.status.holding - usize::from(quarantine.is_some()),
            "quarantine_ms": quarantine.map(json::ms),
            "waiting": lock.status.waiting,
            // Its waiters stand in another place, or would stand too deep.
            "elsewhere": !is_new,
            "holders": longest.iter().take(HOLDERS).map(|longest| holder(longest)).collect::<Value>(),
            "waiters": branches,
        })
    }
}
