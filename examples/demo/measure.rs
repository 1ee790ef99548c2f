//! Pure: how long things took.

use crate::record::{Mode, Request};
use std::ops::Range;

pub(crate) struct Waits {
    pub(crate) longest_ns: u64,
    pub(crate) mean_ns: u64,
}

pub(crate) fn waits(requests: &[Request]) -> Option<Waits> {
    let waits: Vec<_> = requests
        .iter()
        .filter_map(|r| Some(r.entered?.saturating_sub(r.asked)))
        .collect();
    Some(Waits {
        longest_ns: *waits.iter().max()?,
        mean_ns: waits.iter().sum::<u64>() / waits.len() as u64,
    })
}

/// From each call of release that let somebody in who waited, until the first guard in another process, sorted.
/// Those soon after a kill are left out: there the dead are waited for, and that is measured by itself.
pub(crate) fn hand_overs(requests: &[Request], after_kills: &[Range<u64>]) -> Vec<u64> {
    let mut order: Vec<_> = requests.iter().filter(|r| r.entered.is_some()).collect();
    order.sort_unstable_by_key(|r| r.entered);
    // The last release so far: of all, and of the writers.
    let mut ends: [Option<(u64, usize)>; 2] = [None, None];
    let mut releases: Vec<_> = requests.iter().filter(|r| r.released.is_some()).collect();
    releases.sort_unstable_by_key(|r| r.released);
    let mut releases = releases.into_iter().peekable();
    let (mut found, mut last_counted) = (Vec::new(), None);
    for request in order {
        let entered = request.entered.unwrap_or_default();
        while let Some(release) = releases.next_if(|r| r.released < Some(entered)) {
            let end = release.released.map(|at| (at, release.process));
            ends[0] = end;
            if release.mode == Mode::Write {
                ends[1] = end;
            }
        }
        let end = ends[usize::from(request.mode == Mode::Read)];
        let Some((released, process)) = end else { continue };
        let near_a_kill = after_kills.iter().any(|after| after.contains(&entered));
        if request.asked < released && process != request.process && last_counted != Some(released) && !near_a_kill {
            found.push(entered - released);
            last_counted = Some(released);
        }
    }
    found.sort_unstable();
    found
}

/// Of sorted values: the least one that so many percent do not exceed.
pub(crate) fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(process: usize, mode: Mode, asked: u64, entered: u64, released: u64) -> Request {
        Request {
            id: String::new(),
            process,
            task: 1,
            mode,
            asked,
            entered: Some(entered),
            token: entered,
            held_until: released,
            released: Some(released),
            votes: None,
            killed: None,
        }
    }

    #[test]
    fn a_hand_over_lasts_from_the_last_release_to_the_first_guard_in_another_process() {
        let requests = [
            held(1, Mode::Write, 0, 1, 10),
            held(2, Mode::Read, 5, 12, 20),   // 2 after the writer
            held(3, Mode::Read, 5, 13, 30),   // let in by the same release
            held(1, Mode::Write, 6, 34, 40),  // 4 after the last reader
            held(1, Mode::Write, 7, 41, 50),  // in the same process
            held(2, Mode::Write, 51, 52, 53), // did not wait
        ];
        assert_eq!(hand_overs(&requests, &[]), [2, 4]);
        assert_eq!(hand_overs(&requests, std::slice::from_ref(&(30..45))), [2]);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<_> = (1..=200).collect();
        assert_eq!(percentile(&values, 50), Some(100));
        assert_eq!(percentile(&values, 99), Some(198));
        assert_eq!(percentile(&[7], 99), Some(7));
        assert_eq!(percentile(&[], 50), None);
    }
}
