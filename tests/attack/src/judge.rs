//! Judges one call of a real script: whether the answer is one that the model allows.
//!
//! [`judge`] replays the call on the model, with the choices that the server made as far as they can be seen, and
//! compares everything that clients and operators can see: reply, messages, events, and what `status` shows. Of the keys
//! the judge knows only that they expire. The model then goes on from what was seen.

use crate::lua_world::{Hearing, Seen, Step};
use crate::model::{Choices, Lock, NOT_TOLD, Outcome, RETENTION, View, is_bare, owner_of, writes};
use crate::record::{Note, Script, What, argv, grants};

/// What the lock is after a call, or why the answer is wrong.
pub fn judge(before: &Lock, key: &str, step: &Step, seen: &Seen) -> Result<(Lock, Outcome), String> {
    let mut lock = before.clone();
    if seen.expired[0] {
        let at = before.forgotten_at_ms();
        demand(step.now_us / 1000 > at, || format!("the keys expired before {at}"))?;
        lock = Lock::default();
    }
    let mut observed = Observed {
        before: before.view(),
        now_ms: step.now_us / 1000,
        hearing: &step.hearing,
        seen,
        did: false,
    };
    let outcome = lock.call(key, step.script, &step.args(), step.now_us, &mut observed);
    let next_ms = *seen.reply.get(next_at(step.script)).ok_or("an empty reply")?;
    if next_ms == 0 {
        demand(observed.did, || "there is more to do, and nothing was done".to_owned())?;
    } else {
        demand(!outcome.unfinished, || {
            format!("left undone, and next ms is {next_ms}: {:?}", lock.view())
        })?;
    }
    demand(
        seen.bare == is_bare(step.script, &seen.reply, !outcome.cut.is_empty()),
        || {
            let came = if seen.bare { "as a number" } else { "as a list" };
            format!("the reply {:?} came {came}; cut: {:?}", seen.reply, outcome.cut)
        },
    )?;
    same_reply(step.script, &outcome, seen)?;
    same_messages(&outcome, seen)?;
    same_events(step, &outcome, seen)?;
    if let Some(view) = &seen.view {
        let expected = lock.view();
        differ("mode", &expected.mode, &view.mode)?;
        differ("policy", &expected.policy, &view.policy)?;
        differ("write holds", &expected.writes, &view.writes)?;
        differ("holders", &expected.holders, &view.holders)?;
        differ("waiters", &expected.waiters, &view.waiters)?;
        let first = argv(step.script, &step.args(), "").into_iter().nth(1);
        let place = first.map(|request| lock.place(&request));
        differ("status of the call's first request", &place, &seen.place)?;
        same_state(before, step, &mut lock, &outcome, seen)?;
        keys_expire(&lock, seen)?;
    }
    same_next_ms(&lock, step, &outcome, next_ms)?;
    Ok((lock, outcome))
}

/// The packed state: numbers that status shows, and what nobody sees. `near` is the server's choice.
fn same_state(before: &Lock, step: &Step, lock: &mut Lock, outcome: &Outcome, seen: &Seen) -> Result<(), String> {
    let Some(View { packed: state, .. }) = &seen.view else {
        return Ok(());
    };
    let expected = lock.view().packed;
    for (what, expected, seen) in [
        ("seq", expected.seq, state.seq),
        ("token", expected.token, state.token),
        ("first", expected.first, state.first),
        ("reads", expected.reads, state.reads),
        ("writes", expected.writes, state.writes),
        ("waiting", expected.waiting, state.waiting),
        ("limit", expected.limit, state.limit),
        ("used", expected.used, state.used),
    ] {
        differ(what, &expected, &seen)?;
    }
    demand(state.up || !expected.up, || "an upgrade waits, and up is 0".to_owned())?;
    demand(!state.sole || expected.sole, || "sole, and not alone".to_owned())?;
    demand(state.more || !outcome.noted, || "left undone, and more is 0".to_owned())?;
    let writer = expected.writes > 0 && lock.writer() == Some(owner_of(&state.holder)) && writes(&state.holder);
    let right = match state.sole {
        true => state.holder == expected.holder,
        false => writer || expected.writes == 0 && state.holder.is_empty(),
    };
    demand(right, || format!("holder: {:?} of {:?}", state.holder, lock.view()))?;
    same_near(
        if seen.expired[0] { 0 } else { before.near_ms },
        step,
        lock,
        outcome,
        state.near_ms,
    )?;
    lock.near_ms = state.near_ms;
    Ok(())
}

/// A lower bound of all deadlines, which grows; when it is over, a script makes it exact.
fn same_near(before_ms: u64, step: &Step, lock: &Lock, outcome: &Outcome, near_ms: u64) -> Result<(), String> {
    let nearest = lock.nearest_deadline_ms();
    let bounds = match nearest {
        None => 0..=0,
        Some(_) if outcome.unfinished => 1..=u64::MAX,
        Some(nearest) => {
            let released = step.script == Script::Release && outcome.reply[0] == -1;
            let over = before_ms == 0 || before_ms <= step.now_us / 1000 && !released;
            let least = if over { nearest } else { nearest.min(before_ms) };
            least.min(renewed_twice(step).unwrap_or(least))..=nearest
        }
    };
    demand(bounds.contains(&near_ms), || {
        format!("near was {before_ms} and is {near_ms}, and the nearest deadline is at {nearest:?}")
    })
}

fn demand(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

fn differ<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, seen: &T) -> Result<(), String> {
    demand(expected == seen, || {
        format!("{what}: expected {expected:?}\n          seen {seen:?}")
    })
}

/// Where a reply has next ms.
pub fn next_at(script: Script) -> usize {
    if script == Script::Acquire { 2 } else { 0 }
}

/// The choices of a server, read off what it shows afterwards.
struct Observed<'a> {
    before: View,
    now_ms: u64,
    hearing: &'a Hearing,
    seen: &'a Seen,
    /// It expired, let in, or pulled back something.
    did: bool,
}

impl Observed<'_> {
    /// Whether a call that found the request past its deadline left it there. Who keeps others out in a quarantine may have
    /// ended, and begun again.
    fn is_left(&self, request: &str) -> bool {
        let deadline_ms = self.seen.view.as_ref().and_then(|view| deadline_ms(view, request));
        deadline_ms.is_some_and(|deadline_ms| deadline_ms <= self.now_ms)
    }
}

fn deadline_ms(view: &View, request: &str) -> Option<u64> {
    let waiting = view.waiters.iter().find(|(waiting, ..)| waiting == request);
    let held = view.holders.get(request).map(|(deadline, ..)| *deadline);
    held.or_else(|| waiting.map(|(.., deadline)| *deadline))
}

impl Choices for Observed<'_> {
    fn expires(&mut self, request: &str) -> bool {
        let expires = !self.is_left(request);
        self.did |= expires;
        expires
    }

    fn admits(&mut self, request: &str) -> bool {
        let holds = |view: &View| view.holders.contains_key(request);
        let admits = self.seen.view.as_ref().is_none_or(holds);
        self.did |= admits;
        admits
    }

    fn pulls_back(&mut self, request: &str) -> bool {
        let now = self.seen.view.as_ref().and_then(|view| deadline_ms(view, request));
        let pulled = now.is_none() || now != deadline_ms(&self.before, request);
        self.did |= pulled;
        pulled
    }

    fn listens(&self, client: &str) -> bool {
        self.hearing.listens(client)
    }

    fn cuts(&self) -> bool {
        !self.hearing.promoted
    }

    fn most_looked_at(&self) -> usize {
        self.hearing.most_looked_at
    }
}

/// The nearest deadline, ms, of a request that one renewal renews twice: the first lease counts for a lower bound too.
fn renewed_twice(step: &Step) -> Option<u64> {
    let pairs = step.args.chunks_exact(2).filter(|_| step.script == Script::Renew);
    let twice = pairs
        .clone()
        .filter(|pair| pairs.clone().filter(|other| other[0] == pair[0]).nth(1).is_some());
    let leases = twice.filter_map(|pair| pair[1].parse::<u64>().ok());
    Some(leases.min()? + step.now_us / 1000)
}

/// Who waits looks when it is told to: then somebody's deadline is over, or may be.
fn same_next_ms(lock: &Lock, step: &Step, outcome: &Outcome, next_ms: i64) -> Result<(), String> {
    if next_ms == 0 || next_ms == NOT_TOLD {
        return Ok(());
    }
    let now_ms = step.now_us / 1000;
    let after = |at: u64| at.saturating_sub(now_ms).max(1) as i64;
    let nearest = lock.nearest_deadline_ms();
    let right = match nearest {
        // Nobody is there, or nobody waited for what is released.
        _ if next_ms == -1 => nearest.is_none() || step.script == Script::Release && outcome.reply[0] == -1,
        Some(nearest) => (after(lock.near_ms)..=after(nearest)).contains(&next_ms),
        None => false,
    };
    demand(right, || {
        format!(
            "next ms {next_ms}, and the nearest deadline is at {nearest:?}, near {}",
            lock.near_ms
        )
    })
}

fn same_reply(script: Script, outcome: &Outcome, seen: &Seen) -> Result<(), String> {
    let expected = &outcome.reply;
    differ("length of the reply", &expected.len(), &seen.reply.len())?;
    for (at, (expected, seen)) in expected.iter().zip(&seen.reply).enumerate() {
        // A release of a lock for which nobody waited says so.
        let chosen = at == next_at(script) && !(script == Script::Release && *expected == -1 && *seen > 0);
        if !chosen && *seen != NOT_TOLD {
            differ(&format!("reply at {at}"), expected, seen)?;
        }
    }
    Ok(())
}

/// The evicted of one call come in any order, before those who enter.
fn grants_in_order(payload: &str) -> String {
    let (words, key) = payload.split_once('\n').unwrap_or((payload, ""));
    let Some(mut all) = grants(words) else {
        return payload.to_owned();
    };
    let evicted = all.iter().take_while(|(_, token)| *token == 0).count();
    all[..evicted].sort();
    format!("{all:?}\n{key}")
}

fn same_messages(outcome: &Outcome, seen: &Seen) -> Result<(), String> {
    let sorted = |messages: &[(String, String)]| {
        let each = messages
            .iter()
            .map(|(client, payload)| (client.clone(), grants_in_order(payload)));
        let mut sorted: Vec<_> = each.collect();
        sorted.sort();
        sorted
    };
    differ("messages", &sorted(&outcome.messages), &sorted(&seen.messages))
}

/// Grants come in order; of what else happened in one call nothing is before another.
fn same_events(step: &Step, outcome: &Outcome, seen: &Seen) -> Result<(), String> {
    if !step.listened {
        return differ("events, and nobody listens", &None, &seen.events);
    }
    let none = (step.now_us, Vec::new());
    let (at_us, events) = seen.events.as_ref().unwrap_or(&none);
    differ("time of the events", &step.now_us, at_us)?;
    let granted = |notes: &[Note]| -> Vec<Note> {
        let granted = notes.iter().filter(|note| note.what == What::Granted);
        granted.cloned().collect()
    };
    differ("grants", &granted(&outcome.notes), &granted(events))?;
    let others = |notes: &[Note]| {
        let others = notes.iter().filter(|note| note.what != What::Granted);
        let mut others: Vec<_> = others
            .map(|note| (note.what, note.request.clone(), note.token))
            .collect();
        others.sort();
        others
    };
    differ("events", &others(&outcome.notes), &others(events))?;
    // There is no moment without a hold.
    let at = |what: What| events.iter().position(|note| note.what == what);
    let ended = at(What::Released).filter(|_| step.script == Script::Downgrade);
    demand(
        ended.is_none_or(|ended| at(What::Granted).is_some_and(|begun| begun < ended)),
        || format!("the write hold ended before the read hold began: {events:?}"),
    )
}

/// Whatever is there expires, 30 to 60 s after the last deadline, and the state not before the others.
fn keys_expire(lock: &Lock, seen: &Seen) -> Result<(), String> {
    let [state, ..] = seen.expiries;
    for at in seen.expiries.iter().flatten() {
        let at = at.ok_or_else(|| format!("a key never expires: {:?}", seen.expiries))?;
        let latest = lock.last_ms + lock.excess_ms + 2 * RETENTION;
        demand(at <= latest, || format!("a key expires at {at}, after {latest}"))?;
        let alive = lock.latest_deadline_ms().map_or(0, |deadline| deadline + RETENTION);
        demand(at >= alive, || {
            format!("a key expires at {at}, and a lease ends {}", alive - RETENTION)
        })?;
        demand(state.flatten() >= Some(at), || {
            format!("the state expires before the others: {:?}", seen.expiries)
        })?;
    }
    let least = lock.forgotten_at_ms();
    let known = state.flatten().is_some_and(|at| at >= least);
    demand(known || lock.policy.is_none(), || {
        format!("the state expires at {state:?}, before {least}")
    })
}
