//! The invariants of design.md, of one lock: what holds of every state, and of every call of a script. For states that
//! nothing was taken away from.

use crate::lua_world::Step;
use crate::model::{BAND, Lock, Mode, RETENTION, named_owner, owner_of, writes};
use crate::record::{Script, What};
use std::collections::{BTreeMap, BTreeSet};

macro_rules! hold {
    ($number:literal, $condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err(format!("invariant {}: {}", $number, format!($($what)+)));
        }
    };
}

/// Requests that hold: those with a lease and no place in the queue.
fn holding(lock: &Lock) -> impl Iterator<Item = &str> {
    let sole = lock.sole.as_ref().map(|(request, _)| &**request);
    let others = lock.leases.iter().map(|(request, _)| request);
    sole.into_iter()
        .chain(others.filter(|request| !lock.queue.contains(request)))
}

/// Of every state. `settled`: the script that left it did not say "call again".
pub fn of_state(lock: &Lock, settled: bool) -> Result<(), String> {
    // Who holds, counted from the requests.
    let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for request in holding(lock) {
        let (reads, written) = counts.entry(owner_of(request)).or_default();
        *if writes(request) { written } else { reads } += 1;
    }
    let writers: Vec<&str> = counts
        .iter()
        .filter(|(_, (_, writes))| *writes > 0)
        .map(|(owner, _)| *owner)
        .collect();
    hold!(1, writers.len() <= 1, "several owners write: {writers:?}");
    if let [writer] = writers[..] {
        hold!(1, counts.len() == 1, "beside the writer {writer}: {:?}", counts.keys());
    }
    hold!(
        1,
        lock.writer.as_deref() == writers.first().copied(),
        "the writer is {writers:?}, not {:?}",
        lock.writer
    );
    let written = writers.first().map_or(0, |writer| counts[writer].1);
    hold!(1, lock.writes == written, "{written} write holds, not {}", lock.writes);
    let readers: u64 = counts.values().map(|(reads, _)| reads).sum();
    hold!(1, lock.readers == readers, "{readers} read holds, not {}", lock.readers);
    let mode = if written > 0 {
        Some(Mode::Write)
    } else {
        (readers > 0).then_some(Mode::Read)
    };
    hold!(1, lock.mode == mode, "mode {mode:?}, not {:?}", lock.mode);
    let known: Vec<(&str, u64)> = lock
        .holders
        .iter()
        .map(|(owner, holder)| (&**owner, holder.reads))
        .collect();
    let counted: Vec<(&str, u64)> = counts.iter().map(|(owner, (reads, _))| (*owner, *reads)).collect();
    hold!(1, known == counted, "read holds of owners: {counted:?}, not {known:?}");

    let tokens: Vec<_> = lock.holders.values().map(|holder| holder.token).collect();
    let distinct: BTreeSet<_> = tokens.iter().flatten().collect();
    hold!(
        2,
        distinct.len() == tokens.len(),
        "each owner inside has its own token: {tokens:?}"
    );
    hold!(
        2,
        distinct.last().copied() <= lock.seq.as_ref(),
        "tokens {tokens:?} beyond seq {:?}",
        lock.seq
    );

    if settled && let Some((head, _)) = lock.queue.iter().next() {
        // Nobody is let in while somebody writes, also not the writer's own that waits (an orphan, or overtaken).
        let blocked = lock.writer.is_some() || !lock.fits(head, owner_of(head));
        hold!(4, blocked, "the head {head} could enter");
    }
    hold!(
        4,
        !settled || !lock.more || lock.queue.is_empty(),
        "stopped at the limit without saying so"
    );

    // The queue and what is said about it.
    for (request, _) in lock.queue.iter() {
        hold!(5, lock.leases.contains(request), "{request} waits without a lease");
    }
    let waits: BTreeSet<(&str, &str)> = lock
        .waits
        .iter()
        .map(|(owner, request)| (&**owner, &**request))
        .collect();
    let named = lock
        .queue
        .iter()
        .filter_map(|(request, _)| Some((named_owner(request)?, request)));
    let named: Vec<_> = named.collect();
    hold!(
        9,
        named.len() == waits.len() && named.iter().all(|pair| waits.contains(pair)),
        "owners wait: {named:?}, not {waits:?}"
    );
    let upgrades: Vec<&str> = lock
        .queue
        .iter()
        .take_while(|(_, place)| *place < 0)
        .map(|(request, _)| request)
        .collect();
    hold!(9, upgrades.len() <= 1, "several upgrades wait: {upgrades:?}");
    hold!(
        6,
        lock.sole.is_none() || lock.leases.is_empty() && lock.queue.is_empty(),
        "a sole request among others"
    );
    let last = lock
        .sole
        .as_ref()
        .map(|(_, at)| *at)
        .max(lock.leases.iter().next_back().map(|(_, at)| at.unsigned_abs()));
    match (last, lock.expires_at_ms()) {
        (Some(last), Some(expiry)) => hold!(6, expiry >= last + RETENTION, "expires {expiry}, last deadline {last}"),
        (_, None) => hold!(6, lock.is_empty(), "something never expires"),
        (None, Some(_)) => {}
    }
    if last.is_none() {
        let fields: Vec<String> = lock.fields().into_keys().collect();
        let rest = ["seq", "keep", "cap", "policy", "more"];
        hold!(
            6,
            fields.iter().all(|field| rest.contains(&field.as_str())),
            "quiet, and there is {fields:?}"
        );
    }
    Ok(())
}

/// Of every call: what it did to whom.
pub fn of_call(before: &Lock, step: &Step, outcome: &crate::model::Outcome, after: &Lock) -> Result<(), String> {
    hold!(
        2,
        after.seq >= before.seq,
        "seq went back from {:?} to {:?}",
        before.seq,
        after.seq
    );
    let mut last = before.seq.unwrap_or(0);
    let mut entered: Vec<(&str, u64)> = Vec::new();
    let reset = outcome.notes.iter().any(|note| note.what == What::Reset);
    hold!(8, !reset, "started over though nothing was lost");
    for note in outcome.notes.iter().filter(|note| note.what == What::Granted) {
        let (request, owner) = (note.request.as_str(), owner_of(&note.request));
        let was = before.holders.get(owner);
        let reentered = was.is_some() || entered.iter().any(|(who, _)| *who == owner);
        let inside = |token: u64| {
            let entered = entered.iter().any(|(who, with)| *who == owner && *with == token);
            entered || was.is_some_and(|holder| holder.token == Some(token))
        };
        if inside(note.token) {
            let wrote = before.writer.as_deref() == Some(owner) || entered.iter().any(|(who, _)| *who == owner);
            hold!(2, !writes(request) || wrote, "{request} writes with a reader's token");
        } else {
            hold!(2, note.token > last, "{request} got token {} after {last}", note.token);
            last = note.token;
            entered.push((owner, note.token));
        }
        if let Some(place) = before
            .queue
            .score(request)
            .or_else(|| (!reentered).then(|| own_place(before, step, note.token)))
        {
            for (waiting, at) in after.queue.iter().filter(|(waiting, _)| before.queue.contains(waiting)) {
                hold!(3, place < at, "{request} passed {waiting}, which had asked before");
            }
        }
    }
    if step.script == Script::Downgrade && outcome.reply[1] >= 0 {
        hold!(9, after.holds(&step.args[1]) || reset, "downgraded, and no reader");
        let notes: Vec<What> = outcome.notes.iter().map(|note| note.what).collect();
        let ended = notes.iter().position(|what| *what == What::Released);
        let begun = notes.iter().position(|what| *what == What::Granted);
        hold!(
            9,
            ended.is_none() || begun.is_some() && begun < ended,
            "a moment without a holder: {notes:?}"
        );
    }
    Ok(())
}

/// Where a request that was never queued would have stood.
fn own_place(before: &Lock, step: &Step, token: u64) -> i64 {
    let [request, _, _, policy, ticket] = step.args.as_slice() else {
        return 0;
    };
    let other = match before.policy.map(char::from).or(policy.chars().next()) {
        Some('w') => !writes(request),
        Some('r') => writes(request),
        _ => false,
    };
    let band = if other { BAND } else { 0 };
    band + ticket.parse::<i64>().unwrap_or(token as i64)
}

/// Sent again at the same moment, a call changes nothing that the first one did not, and says the same, or that there
/// is nothing left to do.
pub fn of_repetition(
    key: &str,
    before: &Lock,
    step: &Step,
    outcome: &crate::model::Outcome,
    after: &Lock,
) -> Result<(), String> {
    let next_ms = outcome.reply[usize::from(step.script == Script::Acquire) * 2];
    // What waited may have begun to hold after it was told that it does not.
    let waited = step.script == Script::Downgrade && outcome.reply[1] < 0 && after.holds(&step.args[0]);
    // Of deadlines that a clock left far ahead each renewal pulls back some.
    let latest = step.now_us / 1000 + after.cap.unwrap_or(0);
    let far = before
        .leases
        .iter()
        .next_back()
        .is_some_and(|(_, at)| at.unsigned_abs() > latest);
    if next_ms == 0 || waited || far && step.script == Script::Renew {
        return Ok(());
    }
    let mut again = after.clone();
    let second = again.call(key, step.script, &step.args(), step.now_us);
    // A lease that the first sending granted in the hash has gone to the others.
    let spread = |lock: &Lock| {
        let mut lock = lock.clone();
        lock.spread();
        lock
    };
    hold!(
        7,
        spread(&again) == spread(after),
        "sent twice it left {:?}",
        again.fields()
    );
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
    };
    hold!(7, same, "answered {:?} and then {:?}", outcome.reply, second.reply);
    Ok(())
}
