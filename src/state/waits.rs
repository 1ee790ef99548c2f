//! Who waits for whom: a graph of owners, and the circle in it of which a request is the youngest.
//!
//! An edge leads from a request that waits to a request of another owner that holds the lock. Holders are enough: whoever
//! waits in a queue waits for all holders, directly or through those ahead. A circle of such edges is a deadlock if all
//! edges existed at one moment, because an owner that waits lets go of nothing. One reading cannot know that, so the
//! edges of a circle are read twice, in the same order: an edge between the same two requests existed all the time in
//! between, because names of requests are never used again. A hold that its user does not have is no edge, because it
//! ends by itself: one that the user has left and the server keeps, or a late copy of a call.
//!
//! Only the youngest of a circle is told, by ticket. So a search follows only waits that are older than its own.

use crate::protocol::key::Lock;
use crate::protocol::name::RequestName;
use crate::protocol::snapshot::Snapshot;
use crate::protocol::waits::named_owner;
use crate::types::mode::{Mode, Policy};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The greatest number of holders of a lock that a search follows.
pub(crate) const MOST_HOLDERS: usize = 100;

/// A request of a named owner that waits, as a reading of its lock told.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) lock: Arc<Lock>,
    pub(crate) request: String,
    pub(crate) owner: String,
    pub(crate) waited: Duration,
    ticket: u64,
    /// Requests of other named owners that hold the lock.
    holders: Vec<String>,
}

/// A request waits for a lock that another request holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge<'a> {
    pub(crate) wait: &'a Wait,
    holder: &'a str,
}

/// Waits by owner.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    waits: BTreeMap<String, Vec<Wait>>,
    /// The holds of owners whose clients have told of all that their users have.
    holds: BTreeSet<String>,
    /// These owners, each with the client.
    told: BTreeSet<(String, String)>,
}

impl Wait {
    /// What a reading of its lock tells about a request with that ticket. `None`: the lock is not followed, or it has too
    /// many holders, or a script has still to admit waiters.
    pub(crate) fn new(lock: &Arc<Lock>, request: &str, ticket: u64, seen: &Snapshot) -> Option<Self> {
        let is_followed = matches!(seen.policy, Policy::Fifo | Policy::WriterFirst | Policy::ReaderFirst);
        if !is_followed || seen.raw.more > 0 || seen.holders.len() > MOST_HOLDERS {
            return None;
        }
        let owner = named_owner(request)?;
        // A lease that is over holds nobody up: the next call ends it.
        let lasting = seen
            .holders
            .iter()
            .filter(|holder| holder.deadline_ms > seen.now_us / 1000);
        let others = lasting.filter(|holder| named_owner(&holder.request).is_some_and(|other| other != owner));
        Some(Self {
            lock: Arc::clone(lock),
            request: request.to_owned(),
            owner: owner.to_owned(),
            waited: Duration::from_micros(seen.now_us.saturating_sub(ticket)),
            ticket,
            holders: others.map(|holder| holder.request.clone()).collect(),
        })
    }

    /// The same for a request whose place was asked for. `None` too if the request does not wait.
    pub(crate) fn read(lock: &Arc<Lock>, request: &str, seen: &Snapshot) -> Option<Self> {
        Self::new(lock, request, seen.ticket_us?, seen)
    }

    /// Of two waits the one with the lesser age is the older one.
    fn age(&self) -> (u64, &str) {
        (self.ticket, &self.request)
    }

    pub(crate) fn is_older_than(&self, other: &Self) -> bool {
        self.age() < other.age()
    }

    /// The owners that hold the lock.
    pub(crate) fn holding_owners(&self) -> impl Iterator<Item = &str> {
        self.holders.iter().filter_map(|holder| named_owner(holder))
    }

    pub(crate) fn mode(&self) -> Mode {
        RequestName::read(&self.request).map_or(Mode::Write, |name| name.mode)
    }
}

fn owner_and_client(request: &str) -> Option<(String, String)> {
    let client = RequestName::read(request)?.client;
    Some((named_owner(request)?.to_owned(), client.to_owned()))
}

impl Edge<'_> {
    /// Whether a later reading shows the same two requests, one waiting and one holding.
    pub(crate) fn is_in(&self, later: Option<&Wait>) -> bool {
        later.is_some_and(|later| {
            later.age() == self.wait.age() && later.holders.iter().any(|holder| holder == self.holder)
        })
    }
}

impl Graph {
    pub(crate) fn add(&mut self, wait: Wait) {
        self.waits.entry(wait.owner.clone()).or_default().push(wait);
    }

    /// A client has told for an owner which holds its users have. `request`: one of that owner and client.
    pub(crate) fn tell(&mut self, request: &str, holds: impl IntoIterator<Item = String>) {
        self.told.extend(owner_and_client(request));
        self.holds.extend(holds);
    }

    pub(crate) fn len(&self) -> usize {
        self.waits.values().map(Vec::len).sum()
    }

    /// The holders for which a request waits, and their owners.
    fn blockers<'a>(&self, wait: &'a Wait) -> impl Iterator<Item = (&'a str, &'a str)> {
        let is_kept = move |holder: &&String| {
            let of = owner_and_client(holder);
            self.holds.contains(*holder) || of.is_none_or(|of| !self.told.contains(&of))
        };
        wait.holders
            .iter()
            .filter(is_kept)
            .filter_map(|holder| Some((holder.as_str(), named_owner(holder)?)))
    }

    /// A circle that begins and ends with the owner of a wait, over waits that are older than this one. The first edge
    /// is that of the wait.
    pub(crate) fn circle<'a>(&'a self, youngest: &'a Wait) -> Option<Vec<Edge<'a>>> {
        let mut seen = BTreeSet::new();
        let mut open = VecDeque::from([vec![youngest]]);
        while let Some(path) = open.pop_front() {
            let last = path.last()?;
            for (holder, owner) in self.blockers(last) {
                if owner == youngest.owner {
                    return Some(self.edges(&path, holder));
                }
                let older = self.waits.get(owner).into_iter().flatten();
                for next in older.filter(|wait| wait.is_older_than(youngest)) {
                    if seen.insert(&next.request) {
                        open.push_back([&path[..], &[next]].concat());
                    }
                }
            }
        }
        None
    }

    /// The edges along a path of waits. The owner of each wait holds the lock of the one before; the last lock has that
    /// holder.
    fn edges<'a>(&self, path: &[&'a Wait], holder: &'a str) -> Vec<Edge<'a>> {
        let nexts = path.iter().skip(1);
        let inner = path.iter().zip(nexts).filter_map(|(wait, next)| {
            let (holder, _) = self.blockers(wait).find(|(_, owner)| *owner == next.owner)?;
            Some(Edge { wait, holder })
        });
        let last = path.last().map(|wait| Edge { wait, holder });
        inner.chain(last).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::key::Lock;

    /// The wait of `w0a:{ticket}:{owner}` for a lock, which these owners hold.
    fn wait(owner: &str, ticket: u64, holders: &[&str]) -> Wait {
        let lock = Arc::new(Lock::new("p", format!("of {owner}").into()));
        let holders = holders.iter().map(|holder| format!("w0b:1:{holder}"));
        Wait {
            lock,
            request: format!("w0a:{ticket}:{owner}"),
            owner: owner.to_owned(),
            waited: Duration::ZERO,
            ticket,
            holders: holders.collect(),
        }
    }

    fn circle(graph: &Graph, of: &Wait) -> Option<Vec<String>> {
        let edges = graph.circle(of)?;
        Some(edges.iter().map(|edge| edge.wait.owner.clone()).collect())
    }

    #[test]
    fn the_youngest_of_a_ring_finds_it_and_nobody_else_does() {
        let ring = [wait("a", 1, &["b"]), wait("b", 2, &["c"]), wait("c", 3, &["a"])];
        let mut graph = Graph::default();
        ring.iter().cloned().for_each(|wait| graph.add(wait));
        assert_eq!(circle(&graph, &ring[0]), None);
        assert_eq!(circle(&graph, &ring[1]), None);
        assert_eq!(circle(&graph, &ring[2]).unwrap(), ["c", "a", "b"]);
    }

    #[test]
    fn a_circle_beside_it_and_a_chain_without_end_are_no_circles_of_a_wait() {
        let mut graph = Graph::default();
        for wait in [wait("a", 1, &["b"]), wait("b", 2, &["a"]), wait("c", 3, &["d"])] {
            graph.add(wait);
        }
        // It waits for a circle, and for an owner that only holds.
        assert_eq!(circle(&graph, &wait("e", 9, &["b", "c"])), None);
        // Of two holders one leads back.
        graph.add(wait("d", 4, &["e"]));
        assert_eq!(circle(&graph, &wait("e", 9, &["b", "c"])).unwrap(), ["e", "c", "d"]);
    }

    #[test]
    fn a_hold_that_its_user_does_not_have_closes_no_circle_and_another_hold_of_its_owner_does() {
        let (older, mut younger) = (wait("a", 1, &["b"]), wait("b", 2, &["a"]));
        let graph = |of: &str, holds: &[&str]| {
            let mut graph = Graph::default();
            graph.add(older.clone());
            graph.tell(&format!("w0b:3:{of}"), holds.iter().map(|hold| (*hold).to_owned()));
            graph
        };
        assert_eq!(circle(&graph("a", &["w0b:1:a"]), &younger).unwrap(), ["b", "a"]);
        assert_eq!(
            circle(&graph("a", &[]), &younger),
            None,
            "the older one has left its hold"
        );
        assert_eq!(circle(&graph("b", &[]), &younger), None, "so has the younger one");
        younger.holders.push("w0b:9:a".to_owned());
        let seen = graph("a", &["w0b:9:a"]);
        assert_eq!(seen.circle(&younger).unwrap()[0].holder, "w0b:9:a");
        // Of what the owner holds by another client, nobody has told.
        younger.holders = vec!["w0c:1:a".to_owned()];
        assert_eq!(circle(&graph("a", &[]), &younger).unwrap(), ["b", "a"]);
    }

    #[test]
    fn an_edge_is_the_same_only_between_the_same_two_requests() {
        let graph = Graph::default();
        let mut first = wait("a", 1, &["b"]);
        first.holders.push("w0b:7:a".to_owned());
        let before = first.clone();
        let edges = graph.circle(&before).unwrap();
        let [edge] = edges.as_slice() else {
            unreachable!("one edge")
        };
        assert!(edge.is_in(Some(&first)) && !edge.is_in(None));
        let mut other_holder = first.clone();
        other_holder.holders.pop();
        assert!(!edge.is_in(Some(&other_holder)));
        first.ticket += 1;
        assert!(!edge.is_in(Some(&first)), "it queued again");
    }
}
