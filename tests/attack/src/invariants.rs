//! The invariants of design.md, of one lock: what holds of every state of the model, and of every call. They judge the
//! model, as the model judges the scripts. For locks that nothing was taken away from.

use crate::lua_world::Step;
use crate::model::{AtMost, BAND, GRACE, Inside, Lock, NOBODY, Outcome, named_owner, owner_of, weight_of, writes};
use crate::record::{Script, What};
use std::collections::{BTreeMap, BTreeSet};

macro_rules! hold {
    ($number:literal, $condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err(format!("invariant {}: {}", $number, format!($($what)+)));
        }
    };
}

/// Of every state. `settled`: the script that left it did not say "call again".
pub fn of_state(lock: &Lock, settled: bool) -> Result<(), String> {
    let view = lock.view();
    // Who holds, counted from the requests.
    let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for request in view.holders.keys() {
        let (reads, written) = counts.entry(owner_of(request)).or_default();
        *if writes(request) { written } else { reads } += 1;
    }
    let writers: Vec<&str> = counts
        .iter()
        .filter(|(_, (_, writes))| *writes > 0)
        .map(|(owner, _)| *owner)
        .collect();
    hold!(1, writers.len() <= 1, "several owners write: {writers:?}");
    hold!(
        1,
        writers.is_empty() || counts.len() == 1,
        "beside {writers:?}: {:?}",
        counts.keys()
    );
    hold!(
        1,
        lock.writer() == writers.first().copied(),
        "{writers:?} write, not {:?}",
        lock.writer()
    );
    let reading = counts.iter().filter(|(_, (reads, _))| *reads > 0);
    let weight: u64 = reading.map(|(owner, _)| weight_of(owner)).sum();
    hold!(1, lock.used == weight, "{counts:?} weigh {weight}, not {}", lock.used);
    let known: Vec<_> = lock
        .owners
        .iter()
        .map(|(owner, inside)| (&**owner, (inside.reads, inside.writes)))
        .collect();
    hold!(
        1,
        known
            .iter()
            .eq(counts.iter().map(|(owner, n)| (*owner, *n)).collect::<Vec<_>>().iter()),
        "{counts:?} hold, not {known:?}"
    );

    hold!(
        2,
        lock.first <= lock.token && lock.token <= lock.seq,
        "the phase began with {}, and its token is {}, and the counter {}",
        lock.first,
        lock.token,
        lock.seq
    );

    hold!(
        4,
        !settled || lock.next_in().is_none(),
        "the head {:?} could enter",
        lock.next_in()
    );
    let mut named = BTreeSet::new();
    for owner in lock.queue().filter_map(|(request, _)| named_owner(request)) {
        hold!(9, named.insert(owner), "{owner} waits twice");
    }
    let upgrades = lock.queue().filter(|(_, place)| *place < 0).count();
    hold!(9, upgrades <= 1, "{upgrades} upgrades wait");
    Ok(())
}

/// Of every call: what it did to whom.
pub fn of_call(before: &Lock, step: &Step, outcome: &Outcome, after: &Lock) -> Result<(), String> {
    hold!(
        2,
        after.seq >= before.seq,
        "the counter went back from {} to {}",
        before.seq,
        after.seq
    );
    let mut last = before.seq;
    let mut token = before.token;
    // Requests that hold; once there were none, a phase has ended.
    let mut holding: BTreeSet<&str> = before.alive().filter(|request| before.holds(request)).collect();
    let mut begun = false;
    let mut entered: Vec<&str> = Vec::new();
    for note in &outcome.notes {
        let (request, owner) = (note.request.as_str(), owner_of(&note.request));
        if note.what != What::Granted {
            holding.remove(request);
            continue;
        }
        let was = before.found(request);
        let again = entered.contains(&owner);
        let waited = before
            .queue()
            .find(|(waiting, _)| *waiting == request)
            .map(|(_, place)| place);
        begun |= holding.is_empty();
        let owns = |held: &&&str| owner_of(held) == owner;
        if after.is_bounded() && !writes(request) && !holding.is_empty() && !holding.iter().any(|held| owns(&held)) {
            let others: BTreeSet<&str> = holding.iter().map(|held| owner_of(held)).collect();
            let together: u64 = others.into_iter().chain([owner]).map(weight_of).sum();
            let limit = before.limit.max(after.limit);
            hold!(
                1,
                together <= limit,
                "{request} entered, and {together} are inside of {limit}"
            );
        }
        if note.token > last {
            (last, token) = (note.token, note.token);
        } else {
            hold!(
                2,
                !holding.is_empty() && note.token == token,
                "{request} got token {} after {last}",
                note.token
            );
            let wrote = was.writes > 0 || holding.iter().any(|held| writes(held) && owner_of(held) == owner);
            hold!(2, !writes(request) || wrote, "{request} writes with a reader's token");
            hold!(
                2,
                waited.is_none() || note.token > before.seq,
                "{request} was told {} while it waited, and got token {}",
                before.seq,
                note.token
            );
        }
        holding.insert(request);
        entered.push(owner);
        // A copy of an old ticket may stand beside another one.
        let newcomer = was == Inside::default() && !again;
        let place = match put_at(before, step).filter(|_| request == step.args[0]) {
            // It may have entered before it was put there.
            Some(put) => Some(waited.map_or(put, |waited| waited.min(put))),
            // In a quarantine nobody asks who waits.
            None if request == NOBODY => None,
            None => waited.or_else(|| newcomer.then(|| own_place(before, step))),
        };
        for (waiting, at) in after.queue().filter(|place| before.queue().any(|was| was == *place)) {
            hold!(
                3,
                place.is_none_or(|place| place <= at),
                "{request} passed {waiting}, which had asked before"
            );
        }
    }
    hold!(
        2,
        if begun {
            after.first > before.seq
        } else {
            after.first == before.first
        },
        "a phase begins with {} after {}, and before that with {}",
        after.first,
        before.seq,
        before.first
    );
    for request in &outcome.cut {
        let soon = step.now_us / 1000 + GRACE;
        hold!(
            8,
            !before.holds(request),
            "{request} was cut, and its client may know that it holds"
        );
        hold!(
            8,
            after.deadline_ms(request) == Some(soon),
            "{request} was cut, and not to {soon}"
        );
        let proven = step.script != Script::Release && step.args.iter().any(|arg| **arg == **request);
        hold!(8, !proven, "{request} was cut by the call that proves it");
    }
    if step.script == Script::Downgrade && outcome.reply[1] >= 0 {
        hold!(9, after.holds(&step.args[1]), "downgraded, and no reader");
    }
    Ok(())
}

/// Where a request that was never queued would have stood: behind every place of its own band, unless it brings a ticket.
fn own_place(before: &Lock, step: &Step) -> i64 {
    match step.args.as_slice() {
        [request, _, _, policy, ticket, ..] if step.script == Script::Acquire => {
            band_of(request, before, policy) + ticket.parse::<i64>().unwrap_or(BAND - 1)
        }
        _ => 0,
    }
}

/// Where a vote is put.
fn put_at(before: &Lock, step: &Step) -> Option<i64> {
    let [request, _, ticket, ..] = step.args.as_slice() else {
        return None;
    };
    let ticket: i64 = ticket.parse().ok().filter(|_| step.script == Script::Place)?;
    Some(ticket + band_of(request, before, ""))
}

fn band_of(request: &str, before: &Lock, policy: &str) -> i64 {
    let other = match before.policy.flatten().map(char::from).or(policy.chars().next()) {
        Some('w') => !writes(request),
        Some('r') => writes(request),
        _ => false,
    };
    if other { BAND } else { 0 }
}

/// Sent again at the same moment, a call changes nothing that the first one did not, and says the same.
pub fn of_repetition(step: &Step, outcome: &Outcome, after: &Lock) -> Result<(), String> {
    // What waited may have begun to hold after it was told that it does not.
    let waited = step.script == Script::Downgrade && outcome.reply[1] < 0 && after.holds(&step.args[0]);
    if outcome.unfinished || waited {
        return Ok(());
    }
    let mut again = after.clone();
    let second = again.call("", step.script, &step.args(), step.now_us, &mut AtMost::new(usize::MAX));
    again.near_ms = after.near_ms;
    // A release of a lock for which nobody waited leaves the dead where they are.
    let expired = |what: What| what == What::Expired;
    if second.notes.iter().any(|note| expired(note.what)) {
        return Ok(());
    }
    hold!(7, again == *after, "sent twice it left {:?}", again.view());
    hold!(
        7,
        second.messages.is_empty() && second.notes.is_empty(),
        "sent twice it noted {:?}",
        second.notes
    );
    let same = match step.script {
        Script::Acquire => second.reply[..2] == outcome.reply[..2],
        Script::Release => second.reply[1..].iter().all(|status| *status == 0),
        Script::Renew | Script::Downgrade => second.reply[1..] == outcome.reply[1..],
        Script::Evict => second.reply[1] == 0,
        // A waiter is told the counter as it was before, if it is not put anywhere.
        Script::Place if step.args[2].is_empty() && outcome.reply[2] <= 0 => second.reply[2] <= outcome.reply[2],
        Script::Place => second.reply[1..] == outcome.reply[1..],
    };
    hold!(7, same, "answered {:?} and then {:?}", outcome.reply, second.reply);
    Ok(())
}
