//! What clients believe of their requests, as `PROTOCOL.md` says, and what they do about it.
//!
//! [`Clients`] hears replies and messages, as a client does, and sees `status`, as no client does. So it knows whose hold
//! was interrupted, and says when that one was told by a renewal or a release that all is well.

use crate::judge::next_at;
use crate::lua_world::{Seen, Step};
use crate::model::{GRANTED, QUEUED, View, client_of, owner_of, writes};
use crate::record::{Script, grants};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belief {
    Waits {
        ticket: u64,
        seq: u64,
    },
    /// `until_ms`: no call that the server executed renewed it further.
    Holds {
        token: u64,
        interrupted: bool,
        until_ms: u64,
    },
}

/// Everybody who asked and has not given up.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    requests: BTreeMap<String, Belief>,
    /// Waiters whom the server has forgotten, with their tickets: they ask again under a new name.
    forgotten: Vec<(String, u64)>,
    /// What was lost does not say who holds: nobody may be let in beside a holder.
    pub exclusive: bool,
    /// What they have lost or given up, and have to release.
    lost: Vec<String>,
}

impl Clients {
    /// One call. `heard`: its client hears the reply; that of a copy which the network kept is heard by nobody.
    pub fn note(&mut self, step: &Step, seen: &Seen, heard: bool) -> Result<(), String> {
        // All leases ended long before the keys did, so everybody has given up.
        if seen.expired[0] {
            self.requests.clear();
        }
        if heard {
            match step.script {
                Script::Acquire => self.asked(&step.args[0], seen),
                Script::Release => self.released(step, seen)?,
                Script::Renew => self.renewed(step, seen)?,
                Script::Downgrade => self.downgraded(step, seen),
                Script::Evict => {}
                Script::Place => self.placed(step, seen)?,
            }
        } else if gives_up(step) && matches!(self.requests.get(&step.args[0]), Some(Belief::Holds { .. })) {
            // A vote never counts again if there is no reply to a place that may end it.
            self.loses(&step.args[0]);
        }
        let heard = |client: &str| !step.hearing.refused && step.hearing.listens(client);
        for (_, payload) in seen.messages.iter().filter(|(client, _)| heard(client)) {
            for (request, token) in grants(payload).ok_or_else(|| format!("message {payload:?}"))? {
                self.told(request, token);
            }
        }
        if let Some(view) = &seen.view {
            self.look(view, step.now_us / 1000);
            self.exclude(step, view)?;
        }
        Ok(())
    }

    fn asked(&mut self, request: &str, seen: &Seen) {
        let value = seen.reply[1].unsigned_abs();
        match (seen.reply[0], self.requests.get(request).copied()) {
            (GRANTED, None | Some(Belief::Waits { .. })) => self.holds(request, value),
            (QUEUED, None | Some(Belief::Waits { .. })) => {
                let seq = seen.reply[3].unsigned_abs();
                self.requests
                    .insert(request.to_owned(), Belief::Waits { ticket: value, seq });
            }
            (GRANTED, Some(Belief::Holds { .. })) => {}
            (_, Some(Belief::Holds { .. })) => self.loses(request),
            _ => drop(self.requests.remove(request)),
        }
    }

    /// It is told that it holds: so whoever held before, and excludes it, does not any more.
    fn holds(&mut self, request: &str, token: u64) {
        for (other, belief) in &mut self.requests {
            if let Belief::Holds { interrupted, .. } = belief {
                *interrupted |= owner_of(other) != owner_of(request) && (writes(other) || writes(request));
            }
        }
        let (interrupted, until_ms) = (false, u64::MAX);
        self.requests.insert(
            request.to_owned(),
            Belief::Holds {
                token,
                interrupted,
                until_ms,
            },
        );
    }

    fn loses(&mut self, request: &str) {
        self.requests.remove(request);
        self.lost.push(request.to_owned());
    }

    fn released(&mut self, step: &Step, seen: &Seen) -> Result<(), String> {
        for (request, answer) in step.args.iter().zip(&seen.reply[1..]) {
            match self.requests.remove(request) {
                Some(Belief::Holds {
                    token,
                    interrupted: true,
                    ..
                }) if (2..=token.cast_signed()).contains(answer) => {
                    return Err(format!(
                        "the hold of {request} with {token} was interrupted, and its release says {answer}"
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn renewed(&mut self, step: &Step, seen: &Seen) -> Result<(), String> {
        let first = seen.reply[1];
        for (pair, told) in step.args.chunks_exact(2).zip(&seen.reply[2..]) {
            self.stands(&pair[0], *told, first)?;
        }
        Ok(())
    }

    /// What a renewal tells of a request.
    fn stands(&mut self, request: &str, told: i64, first: i64) -> Result<(), String> {
        match self.requests.get_mut(request) {
            None => {}
            Some(Belief::Waits { ticket, .. }) if told == -1 => {
                let ticket = *ticket;
                self.requests.remove(request);
                self.forgotten.push((request.to_owned(), ticket));
            }
            Some(Belief::Waits { seq, .. }) if told <= 0 => *seq = (*seq).max(told.unsigned_abs()),
            Some(Belief::Waits { .. }) => self.holds(request, told.unsigned_abs()),
            Some(Belief::Holds { token, interrupted, .. }) => {
                let (token, interrupted) = (*token, *interrupted);
                // A read hold lasts as long as its phase, in which tokens may grow.
                let since = if writes(request) { told } else { first };
                if told <= 0 || since.unsigned_abs() > token {
                    self.loses(request);
                } else if interrupted {
                    return Err(format!(
                        "the hold of {request} with {token} was interrupted, and its renewal says {told}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn placed(&mut self, step: &Step, seen: &Seen) -> Result<(), String> {
        let (request, told) = (&step.args[0], seen.reply[2]);
        let place = step.args[2].parse().ok();
        match (self.requests.get_mut(request), place) {
            // It gave the hold up.
            (Some(belief @ Belief::Holds { .. }), Some(ticket)) if gives_up(step) && told < -1 => {
                let seq = told.unsigned_abs();
                *belief = Belief::Waits { ticket, seq };
            }
            (Some(Belief::Waits { ticket, .. }), Some(place)) if told < -1 => *ticket = place,
            _ => {}
        }
        self.stands(request, told, seen.reply[1])
    }

    fn downgraded(&mut self, step: &Step, seen: &Seen) {
        let (from, to, token) = (&step.args[0], &step.args[1], seen.reply[1]);
        if let Some(Belief::Holds { token: own, .. }) = self.requests.remove(from)
            && token > 0
        {
            self.holds(to, own);
            if token.unsigned_abs() > own {
                self.loses(to);
            }
        }
    }

    fn told(&mut self, request: &str, token: u64) {
        match self.requests.get(request) {
            // 0: evicted; 1: an upgrade whose read hold has ended.
            Some(_) if token <= 1 => drop(self.requests.remove(request)),
            Some(Belief::Waits { seq, .. }) if token > *seq => self.holds(request, token),
            _ => {}
        }
    }

    /// A write hold lasts for as long as its owner writes. A read hold lasts for as long as anybody reads, or its own owner
    /// writes: nobody else has written in between.
    fn look(&mut self, view: &View, now_ms: u64) {
        let mut over = Vec::new();
        for (request, belief) in &mut self.requests {
            if let Belief::Holds {
                interrupted, until_ms, ..
            } = belief
            {
                match view.holders.get(request) {
                    Some((deadline_ms, ..)) => *until_ms = *deadline_ms,
                    // Its client knows by the time, whatever replies say later.
                    None if *until_ms <= now_ms => over.push(request.clone()),
                    None => {}
                }
                let owner = owner_of(request);
                let state = &view.packed;
                let writes_on = state.writes > 0 && owner_of(&state.holder) == owner;
                *interrupted |= !(writes_on || state.reads > 0 && !writes(request));
            }
        }
        over.iter().for_each(|request| self.loses(request));
    }

    /// Nobody who excludes the other is told that it holds, while the server has both.
    fn exclude(&self, step: &Step, view: &View) -> Result<(), String> {
        let told = |request: &&String| matches!(self.requests.get(*request), Some(Belief::Holds { .. }));
        let holders: Vec<&String> = view.holders.keys().filter(told).collect();
        let writer = holders.iter().find(|holder| writes(holder)).filter(|_| self.exclusive);
        let beside = writer.and_then(|writer| holders.iter().find(|holder| owner_of(holder) != owner_of(writer)));
        match (writer, beside) {
            (Some(writer), Some(beside)) => Err(format!(
                "{beside} and {writer} were told that they hold: {:?}",
                step.args
            )),
            _ => Ok(()),
        }
    }

    /// Everybody renews, one call a client.
    pub fn renewals(&self, lease_ms: u64) -> Vec<Vec<String>> {
        let mut by_client: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for request in self.requests.keys() {
            let pairs = by_client.entry(client_of(request)).or_default();
            pairs.extend([request.clone(), lease_ms.to_string()]);
        }
        by_client.into_values().collect()
    }

    /// Who believes that it waits.
    pub fn waiting(&self) -> impl Iterator<Item = &str> {
        let waits = |(_, belief): &(&String, &Belief)| matches!(belief, Belief::Waits { .. });
        self.requests.iter().filter(waits).map(|(request, _)| request.as_str())
    }

    /// Somebody wants this request still.
    pub fn know(&self, request: &str) -> bool {
        self.requests.contains_key(request)
    }

    /// Somebody has something to release, or to ask for again.
    pub fn busy(&self) -> bool {
        !self.lost.is_empty() || !self.forgotten.is_empty()
    }

    /// What somebody has to release.
    pub fn lost(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lost)
    }

    /// Who has to ask again, and with which ticket.
    pub fn forgotten(&mut self) -> Vec<(String, u64)> {
        std::mem::take(&mut self.forgotten)
    }

    /// Whether what `status` shows is what they believe.
    pub fn agree(&self, view: &View) -> Result<(), String> {
        let waits = |request: &str| view.waiters.iter().any(|(waiting, ..)| waiting == request);
        for (request, belief) in &self.requests {
            let right = match belief {
                Belief::Holds { .. } => view.holders.contains_key(request),
                Belief::Waits { .. } => waits(request),
            };
            if !right {
                return Err(format!("{request} {belief:?}, and the lock is {view:?}"));
            }
        }
        let shown = view
            .holders
            .keys()
            .chain(view.waiters.iter().map(|(request, ..)| request));
        match shown.into_iter().find(|request| !self.requests.contains_key(*request)) {
            Some(request) => Err(format!("{request} is nobody's, and the lock is {view:?}")),
            None => Ok(()),
        }
    }
}

/// Whether a call may end a hold that its request has.
fn gives_up(step: &Step) -> bool {
    step.script == Script::Place && !step.args[3].is_empty()
}

/// Whether a reply says that there is more to do.
pub fn says_more(step: &Step, reply: &[i64]) -> bool {
    reply.get(next_at(step.script)) == Some(&0)
}
