//! Pure: finds what must not be in a history. It reports nothing that may have been right after all.
//!
//! Of two conflicting grants the one whose guard was in hand earlier was also granted earlier: the other's guard can
//! only exist after the first has ended. Two readers that hold together may have been granted in any order, so their
//! tokens are compared only if one was inside before the other asked.

use crate::record::{Mode, Request};
use std::collections::HashMap;

/// Two requests, by index in the history: the second did what it must not, with regard to the first.
pub(crate) type Breach = (usize, usize);

/// Where a request stood in the order in which the server executed the calls of acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) place: u64,
    /// It was asked for again under another name: its process had been frozen for a lease, and it may bring its old
    /// ticket. Nobody can tell its place from outside.
    pub(crate) again: bool,
}

/// Between which times a request was certainly in the queue, as a third party saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    /// When the first look at it was over.
    pub(crate) first: u64,
    /// When the last look at it began.
    pub(crate) last: u64,
}

/// The greatest value so far, of all requests and of the writers, and whose it is.
#[derive(Default)]
struct Greatest {
    of_all: Option<(u64, usize)>,
    of_writers: Option<(u64, usize)>,
}

impl Greatest {
    fn add(&mut self, mode: Mode, value: u64, index: usize) {
        let new = Some((value, index));
        self.of_all = self.of_all.max(new);
        if mode == Mode::Write {
            self.of_writers = self.of_writers.max(new);
        }
    }

    /// Among those that conflict with this mode.
    fn against(&self, mode: Mode) -> Option<(u64, usize)> {
        match mode {
            Mode::Write => self.of_all,
            Mode::Read => self.of_writers,
        }
    }
}

/// Indices and times of entering, in that order.
fn by_entering(requests: &[Request]) -> Vec<(u64, usize)> {
    let entered = requests.iter().enumerate();
    let mut order: Vec<_> = entered.filter_map(|(i, r)| Some((r.entered?, i))).collect();
    order.sort_unstable();
    order
}

/// Who entered while somebody who conflicts was certainly inside.
pub(crate) fn overlaps(requests: &[Request]) -> Vec<Breach> {
    let mut found = Vec::new();
    let mut inside = Greatest::default();
    for (entered, index) in by_entering(requests) {
        let request = &requests[index];
        if let Some((until, other)) = inside.against(request.mode)
            && until > entered
        {
            found.push((other, index));
        }
        inside.add(request.mode, request.held_until, index);
    }
    found
}

/// Who has a token that is not greater than that of one with whom it conflicts, or less than one that was given out before.
pub(crate) fn tokens_out_of_order(requests: &[Request]) -> Vec<Breach> {
    let mut found = conflicting_tokens(requests);
    found.extend(tokens_of_readers(requests));
    in_order(found)
}

fn in_order(mut found: Vec<Breach>) -> Vec<Breach> {
    found.sort_by_key(|(_, second)| *second);
    found.dedup_by_key(|(_, second)| *second);
    found
}

/// Who has a token that is not greater than that of one with whom it conflicts. A quorum promises no more.
pub(crate) fn conflicting_tokens(requests: &[Request]) -> Vec<Breach> {
    let order = by_entering(requests);
    let mut found = Vec::new();
    let mut given = Greatest::default();
    for &(_, index) in &order {
        let request = &requests[index];
        if let Some((token, other)) = given.against(request.mode)
            && token >= request.token
        {
            found.push((other, index));
        }
        given.add(request.mode, request.token, index);
    }
    // Whatever the order: only readers share a token here, where every request has an owner of its own.
    let mut owners = HashMap::new();
    for &(_, index) in &order {
        if let Some(other) = owners.insert(requests[index].token, index)
            && [other, index].iter().any(|one| requests[*one].mode == Mode::Write)
        {
            found.push((other, index));
        }
    }
    in_order(found)
}

/// Who reads with a token that is less than that of a reader who was inside before.
fn tokens_of_readers(requests: &[Request]) -> Vec<Breach> {
    let order = by_entering(requests);
    let mut found = Vec::new();
    let mut readers: Vec<_> = order.iter().filter(|(_, i)| requests[*i].mode == Mode::Read).collect();
    readers.sort_unstable_by_key(|(_, index)| requests[*index].asked);
    let mut before = order.iter().filter(|(_, i)| requests[*i].mode == Mode::Read).peekable();
    let mut greatest = None;
    for &&(_, index) in &readers {
        let request = &requests[index];
        while let Some((_, other)) = before.next_if(|(entered, _)| *entered < request.asked) {
            greatest = greatest.max(Some((requests[*other].token, *other)));
        }
        if let Some((token, other)) = greatest
            && token > request.token
        {
            found.push((other, index));
        }
    }
    found
}

/// Who entered before somebody who conflicts and had arrived earlier. Also: how many requests could be placed.
pub(crate) fn passed_by_arrival(requests: &[Request], arrivals: &HashMap<String, Arrival>) -> (Vec<Breach>, usize) {
    let placed = requests.iter().enumerate().filter_map(|(index, request)| {
        let arrival = arrivals.get(&request.id).filter(|arrival| !arrival.again)?;
        Some((arrival.place, index))
    });
    let mut placed: Vec<_> = placed.collect();
    placed.sort_unstable();
    let mut found = Vec::new();
    let mut earlier = Greatest::default();
    for &(_, index) in &placed {
        let request = &requests[index];
        if let (Some((until, other)), Some(entered)) = (earlier.against(request.mode), request.entered)
            && entered < until
        {
            found.push((other, index));
        }
        // It waited until it entered or was killed. One that ended otherwise left of its own accord.
        if let Some(waited_until) = request.entered.or(request.killed) {
            earlier.add(request.mode, waited_until, index);
        }
    }
    (found, placed.len())
}

/// Who asked and entered while somebody who conflicts was in the queue all the time. Also: how many were seen there.
pub(crate) fn passed_by_sight(requests: &[Request], sights: &HashMap<String, Sight>) -> (Vec<Breach>, usize) {
    let seen = requests.iter().enumerate().filter_map(|(index, request)| {
        let sight = sights.get(&request.id)?;
        // What a dead process left in the queue has no rights.
        let last = request.killed.map_or(sight.last, |killed| sight.last.min(killed));
        Some((sight.first, last, index))
    });
    let mut seen: Vec<_> = seen.collect();
    seen.sort_unstable();
    let count = seen.len();
    let mut asking: Vec<usize> = (0..requests.len()).collect();
    asking.sort_unstable_by_key(|&index| requests[index].asked);
    let mut seen = seen.into_iter().peekable();
    let mut waiting = Greatest::default();
    let mut found = Vec::new();
    for index in asking {
        let request = &requests[index];
        while let Some((_, last, other)) = seen.next_if(|(first, ..)| *first < request.asked) {
            waiting.add(requests[other].mode, last, other);
        }
        if let (Some((until, other)), Some(entered)) = (waiting.against(request.mode), request.entered)
            && entered < until
        {
            found.push((other, index));
        }
    }
    (found, count)
}

/// A time in which a server of a quorum cannot vote for those who ask: from its death until its quarantine is over, or for
/// ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Absence {
    pub(crate) from: u64,
    pub(crate) until: u64,
}

/// Who was kept by more servers than could vote. For a hold that was there before a server was killed the server's vote
/// lasts until its lease ends.
pub(crate) fn votes_of_the_absent(requests: &[Request], servers: usize, absences: &[Absence]) -> Vec<usize> {
    let counted = requests.iter().enumerate().filter(|(_, request)| {
        let (Some(votes), Some(released)) = (request.votes, request.released) else {
            return false;
        };
        let absent = |absence: &&Absence| absence.from < request.asked && released < absence.until;
        votes + absences.iter().filter(absent).count() > servers
    });
    counted.map(|(index, _)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Read, Write};

    /// Asked, entered, left at these times; the token is the time of entering.
    fn held(mode: Mode, asked: u64, entered: u64, until: u64) -> Request {
        Request {
            id: format!("{mode} {asked} {entered}"),
            process: 1,
            task: 1,
            mode,
            asked,
            entered: Some(entered),
            token: entered,
            held_until: until,
            released: Some(until),
            votes: None,
            killed: None,
        }
    }

    fn waited(mode: Mode, asked: u64, killed: Option<u64>) -> Request {
        Request {
            entered: None,
            released: None,
            killed,
            ..held(mode, asked, 0, 0)
        }
    }

    fn in_order(requests: &[Request]) -> HashMap<String, Arrival> {
        let place = |(place, request): (usize, &Request)| {
            let (place, again) = (place as u64, false);
            (request.id.clone(), Arrival { place, again })
        };
        requests.iter().enumerate().map(place).collect()
    }

    fn seen(requests: &[Request], sights: &[(usize, u64, u64)]) -> HashMap<String, Sight> {
        let sight = |&(index, first, last): &(usize, u64, u64)| (requests[index].id.clone(), Sight { first, last });
        sights.iter().map(sight).collect()
    }

    fn good() -> Vec<Request> {
        vec![
            held(Write, 0, 1, 10),
            held(Read, 2, 12, 30),
            held(Read, 3, 11, 20),
            held(Write, 4, 30, 40),
            held(Read, 5, 41, 45),
        ]
    }

    #[test]
    fn a_good_history_passes() {
        let requests = good();
        assert_eq!(overlaps(&requests), []);
        assert_eq!(tokens_out_of_order(&requests), []);
        assert_eq!(passed_by_arrival(&requests, &in_order(&requests)), (vec![], 5));
        let sights = seen(&requests, &[(1, 3, 10), (3, 4, 29), (4, 6, 40)]);
        assert_eq!(passed_by_sight(&requests, &sights), (vec![], 3));
    }

    #[test]
    fn two_writers_at_once_overlap() {
        assert_eq!(overlaps(&[held(Write, 0, 1, 10), held(Write, 0, 9, 12)]), [(0, 1)]);
    }

    #[test]
    fn a_writer_beside_a_reader_overlaps_also_behind_a_shorter_one() {
        let requests = [held(Read, 0, 1, 50), held(Read, 0, 2, 5), held(Write, 0, 40, 45)];
        assert_eq!(overlaps(&requests), [(0, 2)]);
    }

    #[test]
    fn a_reader_beside_a_writer_overlaps() {
        assert_eq!(overlaps(&[held(Write, 0, 1, 10), held(Read, 0, 5, 6)]), [(0, 1)]);
    }

    #[test]
    fn a_killed_holder_overlaps_only_until_its_last_sign_of_life() {
        let mut killed = held(Write, 0, 1, 10);
        killed.released = None;
        killed.killed = Some(11);
        assert_eq!(overlaps(&[killed.clone(), held(Write, 0, 10, 12)]), []);
        assert_eq!(overlaps(&[killed, held(Write, 0, 9, 12)]), [(0, 1)]);
    }

    #[test]
    fn a_writer_with_a_smaller_or_equal_token_than_one_before_is_found() {
        for token in [0, 1] {
            let mut requests = [held(Write, 0, 1, 10), held(Write, 0, 11, 12)];
            requests[1].token = token;
            assert_eq!(tokens_out_of_order(&requests), [(0, 1)]);
        }
    }

    #[test]
    fn a_reader_with_a_smaller_token_than_a_writer_before_is_found() {
        let mut requests = [held(Write, 0, 5, 10), held(Read, 0, 11, 12)];
        requests[1].token = 4;
        assert_eq!(tokens_out_of_order(&requests), [(0, 1)]);
    }

    #[test]
    fn readers_together_may_have_tokens_in_any_order_or_the_same() {
        let mut requests = [held(Read, 0, 5, 10), held(Read, 1, 6, 10)];
        for token in [4, 5] {
            requests[1].token = token;
            assert_eq!(tokens_out_of_order(&requests), []);
        }
    }

    #[test]
    fn readers_of_a_quorum_may_have_smaller_tokens_than_other_readers() {
        let mut requests = [held(Read, 0, 5, 10), held(Read, 6, 7, 10)];
        requests[1].token = 4;
        assert_eq!(conflicting_tokens(&requests), []);
        requests[1].mode = Write;
        assert_eq!(conflicting_tokens(&requests), [(0, 1)]);
    }

    #[test]
    fn a_writer_shares_its_token_with_nobody() {
        let mut requests = [held(Read, 0, 5, 6), held(Write, 1, 7, 10)];
        requests[1].token = 5;
        assert_eq!(tokens_out_of_order(&requests), [(0, 1)]);
    }

    #[test]
    fn a_reader_that_asked_when_another_was_inside_has_no_smaller_token() {
        let mut requests = [held(Read, 0, 5, 10), held(Read, 6, 7, 10)];
        assert_eq!(tokens_out_of_order(&requests), []);
        requests[1].token = 5;
        assert_eq!(tokens_out_of_order(&requests), []);
        requests[1].token = 4;
        assert_eq!(tokens_out_of_order(&requests), [(0, 1)]);
    }

    #[test]
    fn a_writer_that_passed_a_writer_is_found() {
        let requests = [held(Write, 0, 10, 11), held(Write, 1, 5, 6)];
        assert_eq!(passed_by_arrival(&requests, &in_order(&requests)).0, [(0, 1)]);
    }

    #[test]
    fn a_reader_that_passed_a_writer_is_found_and_one_that_passed_a_reader_is_not() {
        let requests = [held(Read, 0, 10, 11), held(Write, 1, 20, 21), held(Read, 2, 9, 11)];
        assert_eq!(passed_by_arrival(&requests, &in_order(&requests)).0, [(1, 2)]);
        let readers = [held(Read, 0, 10, 11), held(Read, 2, 9, 11)];
        assert_eq!(passed_by_arrival(&readers, &in_order(&readers)).0, []);
    }

    #[test]
    fn the_order_is_that_of_arriving_and_not_of_asking() {
        let requests = [held(Write, 1, 5, 6), held(Write, 0, 10, 11)];
        assert_eq!(passed_by_arrival(&requests, &in_order(&requests)).0, []);
    }

    #[test]
    fn the_killed_may_be_passed_after_their_death_and_not_before() {
        for (entered, found) in [(9, vec![(0, 1)]), (10, vec![])] {
            let requests = [waited(Write, 0, Some(10)), held(Write, 1, entered, 12)];
            assert_eq!(passed_by_arrival(&requests, &in_order(&requests)).0, found);
            let sights = seen(&requests, &[(0, 0, 100)]);
            assert_eq!(passed_by_sight(&requests, &sights).0, found);
        }
    }

    #[test]
    fn who_asked_again_under_another_name_has_no_known_place() {
        let requests = [held(Write, 0, 10, 11), held(Write, 1, 5, 6)];
        let mut arrivals = in_order(&requests);
        arrivals.get_mut(&requests[0].id).expect("placed").again = true;
        assert_eq!(passed_by_arrival(&requests, &arrivals), (vec![], 1));
    }

    #[test]
    fn passing_somebody_who_is_seen_waiting_before_and_after_is_found() {
        let requests = [held(Read, 0, 40, 41), held(Write, 10, 20, 21), held(Read, 10, 19, 20)];
        assert_eq!(passed_by_sight(&requests, &seen(&requests, &[(0, 9, 21)])).0, [(0, 1)]);
        // Seen too late, or not long enough.
        assert_eq!(passed_by_sight(&requests, &seen(&requests, &[(0, 10, 30)])).0, []);
        assert_eq!(passed_by_sight(&requests, &seen(&requests, &[(0, 9, 20)])).0, []);
    }

    #[test]
    fn a_vote_of_a_server_that_is_away_or_in_quarantine_is_found() {
        let absences = [Absence { from: 10, until: 30 }, Absence { from: 12, until: 50 }];
        let found = |asked: u64, released: u64, votes: usize| {
            let votes = Some(votes);
            let request = Request {
                votes,
                ..held(Write, asked, asked + 1, released)
            };
            !votes_of_the_absent(&[request], 5, &absences).is_empty()
        };
        assert!(found(13, 29, 4) && !found(13, 29, 3));
        assert!(found(13, 31, 5) && !found(13, 31, 4), "one of them is back");
        assert!(found(11, 29, 5) && !found(11, 29, 4), "the other one was killed later");
        assert!(!found(9, 11, 5), "its votes are from before");
        assert!(!found(13, 51, 5));
    }
}
