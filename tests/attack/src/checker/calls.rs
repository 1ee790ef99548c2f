//! One call after another: what it had to answer, and what it may do.

use super::{
    Before, Call, Hold, Lock, MOST_RESENDS, Standing, Step, Totals, Violation, owner_of, unweighted, violation, writes,
};
use crate::model::{GRACE, RETENTION};
use crate::record::{Note, Record, Script, What};

impl Lock {
    pub(super) fn check(&mut self, record: &Record, totals: &mut Totals) -> Result<(), Violation> {
        let mut step = Step::new(record, totals.records)?;
        // After a loss nobody may be left of before it: once all leases of whoever is have ended, the first newcomer that
        // finds the lock free ends the doubt.
        if self.doubt.is_some() || !self.former.is_empty() {
            self.doubts(&step);
        }
        if self.keys_have_expired(&step) {
            self.lose();
        }
        step.lenient = self.doubt.is_some();
        self.knows(&step)?;
        let waited = !self.queue.is_empty();
        let before = self.begin(&step)?;
        let limit = self.limit;
        // Some were let in before the limit changed, and some because it did.
        self.limit = limit.max(step.limit().unwrap_or(0));
        for note in &record.notes {
            self.apply(&step, note, totals)?;
        }
        self.limit = if self.sets_limit(&step, &before) {
            step.limit().unwrap_or(0)
        } else {
            limit
        };
        if step.lenient {
            return Ok(());
        }
        self.compare(&step, &before)?;
        if step.is_unfinished() {
            return Ok(());
        }
        if let Some((_, head)) = self.queue.first()
            && self.requests[*head as usize].deadline > step.now
        {
            // An owner may write by another request than the one that it waits with: that one comes in when it leaves.
            ensure!(
                self.writer.is_some() || !self.fits(*head),
                4,
                "{} could enter and was left waiting",
                self.name(*head)
            );
        }
        if waited && let Some((deadline, late)) = self.deadlines.first() {
            ensure!(
                *deadline > step.now,
                5,
                "the lease of {} ended at {deadline} and others wait",
                self.name(*late)
            );
        }
        Ok(())
    }

    /// Whoever was interrupted is told so by its next renewal, and by its release, also after keys were lost.
    pub(super) fn knows(&mut self, step: &Step<'_>) -> Result<(), Violation> {
        let record = step.record;
        let each = match record.script {
            Script::Renew => 2,
            Script::Release => 1,
            _ => usize::MAX,
        };
        let asked = record.args.iter().step_by(each).filter(|_| each < usize::MAX);
        let answers = record.reply.iter().skip(each.min(2));
        for (request, answer) in asked.zip(answers) {
            let request = request.as_str();
            // A read hold lasts as long as its phase, in which tokens grow.
            let since = match record.script {
                Script::Renew if !writes(request) && *answer > 0 => &record.reply[1],
                _ => answer,
            };
            let Some((token, interrupted)) = self.told.get(request).copied() else {
                continue;
            };
            let well = (2..=token.cast_signed()).contains(since);
            ensure!(
                !(interrupted && well),
                8,
                "the hold of {request} with {token} was interrupted, and it is told {since}"
            );
            if !well || record.script == Script::Release {
                self.told.remove(request);
            }
        }
        for note in &record.notes {
            let (name, owner) = (note.request.as_str(), owner_of(&note.request));
            match note.what {
                What::Granted => {
                    for (other, (_, interrupted)) in &mut self.told {
                        *interrupted |= owner_of(other) != owner && (writes(other) || writes(name));
                    }
                    self.told.insert(name.into(), (note.token, false));
                }
                What::Reset => self.told.values_mut().for_each(|(_, interrupted)| *interrupted = true),
                // A known request that ends is compared without this.
                What::Expired if step.lenient => {}
                What::Queued | What::Cut => {}
                _ => drop(self.told.remove(name)),
            }
        }
        Ok(())
    }

    /// Some time after the last deadline the keys expire, and no script notes that. A script that finds the dead under keys
    /// that are still there says so: it ends one of them, or its reply tells that it knows one.
    fn keys_have_expired(&self, step: &Step<'_>) -> bool {
        let due = |(deadline, _): &(u64, u32)| deadline + RETENTION <= step.now;
        if self.doubt.is_some() || !self.deadlines.last().is_some_and(due) {
            return false;
        }
        let known = |request: &str| self.id(request).is_some();
        let Record { args, reply, notes, .. } = step.record;
        let begins = |note: &Note| matches!(note.what, What::Granted | What::Queued);
        if notes.iter().any(|note| !begins(note) && known(&note.request)) {
            return false;
        }
        match step.call {
            Call::Acquire { request, .. } => {
                let begun = notes.iter().any(|note| begins(note) && note.request == request);
                begun || !known(request) || !matches!(reply[0], 1 | 2)
            }
            Call::Renew => !args
                .iter()
                .step_by(2)
                .zip(&reply[2..])
                .any(|(name, answer)| known(name) && *answer != -1),
            Call::Downgrade { to, .. } => reply[1] == -1 || !known(to),
            Call::Evict { .. } => true,
            // A release ends no others, unless somebody waits.
            Call::Release => !self.queue.is_empty() || args.iter().any(|name| known(name)),
        }
    }

    /// Whether a script that found keys missing can still bring up what was before.
    pub(super) fn doubts(&mut self, step: &Step<'_>) {
        let (record, reply) = (step.record, &step.record.reply);
        let lives = |request: &str| self.former.contains(request);
        let noted = |note: &Note| note.what != What::Expired && lives(&note.request);
        let known = match record.script {
            Script::Release => (record.args.iter().zip(&reply[1..])).any(|(name, answer)| *answer != 0 && lives(name)),
            Script::Renew => (record.args.iter().step_by(2).zip(&reply[2..])).any(|(name, n)| *n != -1 && lives(name)),
            Script::Acquire | Script::Downgrade | Script::Evict | Script::Place => {
                record.args.first().is_some_and(|name| lives(name))
            }
        };
        // Or a hold without a lease: that ends in a reset.
        let reset = record.notes.iter().any(|note| note.what == What::Reset);
        // A phase begins with a new token; a writer whose owner is named may draw one for an upgrade.
        let upgrades = |request: &str| writes(request) && request.matches(':').count() > 1;
        let begins = |request: &String| !upgrades(request) && reply[1].unsigned_abs() > self.seq;
        let asks = |request: &String| {
            let is_former = |note: &Note| note.what == What::Expired && lives(&note.request);
            begins(request)
                && record
                    .notes
                    .iter()
                    .all(|note| note.request == *request || is_former(note))
        };
        // Nobody else was there: a newcomer of the time in doubt may have waited, or ended in this call.
        let found_free =
            record.script == Script::Acquire && reply[0] == 2 && record.args.first().is_some_and(asks) && !reset;
        if known || record.notes.iter().any(noted) {
            let until = step.now + self.cap.max(step.longest_lease());
            self.doubt = self.doubt.max(Some(until));
        } else if found_free && self.doubt.is_some_and(|until| until < step.now) {
            let former = std::mem::take(&mut self.former);
            self.forget();
            self.former = former;
        }
    }

    /// What the arguments do by themselves: they renew. Returns what was known of the requests.
    pub(super) fn begin(&mut self, step: &Step<'_>) -> Result<Before, Violation> {
        let mut before = Before::default();
        let args = &step.record.args;
        match step.call {
            Call::Acquire { request, lease, .. } => {
                before.first = self.standing(request);
                if let Some(id) = self.id(request) {
                    self.renew(id, step.now, lease, &args[1]);
                    let known = &mut self.requests[id as usize];
                    known.resends += u32::from(known.waits.is_some());
                    ensure!(
                        known.resends <= MOST_RESENDS,
                        10,
                        "{request} waits and asks again and again"
                    );
                }
            }
            Call::Release => {
                for (request, answer) in args.iter().zip(&step.record.reply[1..]) {
                    let standing = match self.id(request) {
                        // Named twice in one call, it is over the second time.
                        Some(id) if self.requests[id as usize].named_by == step.number => 0,
                        Some(id) => {
                            self.requests[id as usize].named_by = step.number;
                            if self.requests[id as usize].waits.is_some() {
                                1
                            } else {
                                self.since(id).cast_signed()
                            }
                        }
                        None => 0,
                    };
                    // An upgrade may end in the same call with its read hold.
                    let ended = *answer == 0 && self.request(request).is_some_and(|request| request.upgrade);
                    ensure!(
                        step.lenient || standing == *answer || ended,
                        8,
                        "{request} was {standing} and is answered {answer}"
                    );
                }
            }
            Call::Renew => {
                for (at, pair) in args.chunks_exact(2).enumerate() {
                    let Ok(lease) = pair[1].parse() else {
                        return violation(0, "a lease that is no number");
                    };
                    if let Some(id) = self.id(&pair[0]) {
                        self.requests[id as usize].named_by = step.number;
                        self.renew(id, step.now, lease, &pair[1]);
                    } else {
                        let answer = step.record.reply[2 + at];
                        ensure!(
                            step.lenient || answer == -1,
                            8,
                            "{} is unknown and is answered {answer}",
                            pair[0]
                        );
                    }
                }
                self.clamp(step.now + self.cap);
            }
            Call::Downgrade { from, to, lease } => {
                before.first = self.standing(from);
                before.second = self.standing(to);
                // `from` may wait: an acquire that the network kept may come after the hold has been released.
                ensure!(
                    step.lenient || self.went_back || before.second != Standing::Waits,
                    10,
                    "{to} waits, and only downgrades make it"
                );
                if let Some(id) = self.id(to) {
                    self.lease(id, step.now, lease);
                }
            }
            Call::Evict { .. } => {}
        }
        Ok(before)
    }

    pub(super) fn apply(&mut self, step: &Step<'_>, note: &Note, totals: &mut Totals) -> Result<(), Violation> {
        let request = note.request.as_str();
        if note.what == What::Reset {
            ensure!(step.lenient, 6, "everybody was thrown out, and nothing was amiss");
            self.forget();
            // What this script does from here on is not looked at.
            return Ok(());
        }
        match note.what {
            What::Cut => self.cut(step, request),
            What::Granted => {
                totals.grants += 1;
                self.granted(step, request, note.token)?;
                if let Some(holds) = &mut totals.holds
                    && let Some(id) = self.id(request)
                {
                    self.requests[id as usize].hold = holds.len();
                    holds.push(Hold {
                        lock: step.record.lock.as_str().into(),
                        request: request.into(),
                        token: note.token,
                        from_us: step.record.at_us,
                        until_us: u64::MAX,
                    });
                }
                Ok(())
            }
            What::Queued => self.queued(step, request),
            ended => {
                let Some(id) = self.id(request) else {
                    let invariant = if matches!(ended, What::Released | What::Left) {
                        8
                    } else {
                        6
                    };
                    ensure!(
                        step.lenient || self.former.contains(request),
                        invariant,
                        "{request} {}, and was neither holding nor waiting",
                        ended.name()
                    );
                    return Ok(());
                };
                if !step.lenient {
                    self.may_end(step, ended, request, id)?;
                }
                if self.requests[id as usize].waits.is_none()
                    && let Some(holds) = &mut totals.holds
                    && let Some(hold) = holds.get_mut(self.requests[id as usize].hold)
                {
                    hold.until_us = step.record.at_us;
                }
                self.remove(id, request);
                Ok(())
            }
        }
    }

    /// Nobody heard of a grant: a waiter may have less time left, or whoever this call let in from the queue.
    fn cut(&mut self, step: &Step<'_>, name: &str) -> Result<(), Violation> {
        let Some(id) = self.id(name) else {
            ensure!(step.lenient, 8, "the lease of {name} is cut, which is unknown");
            return Ok(());
        };
        let granted = |note: &Note| note.what == What::Granted && note.request == name;
        let request = &self.requests[id as usize];
        let unheard = request.waits.is_some() || step.record.notes.iter().any(granted);
        ensure!(
            step.lenient || unheard,
            8,
            "the lease of {name} is cut, and its client may know that it holds"
        );
        let proven = !matches!(step.call, Call::Release) && step.record.args.iter().any(|arg| arg == name);
        ensure!(!proven, 8, "the lease of {name} is cut by the call that proves it");
        if request.deadline > step.now + GRACE {
            self.lease(id, step.now, GRACE);
        }
        Ok(())
    }

    /// Whether this call says how much a bounded lock admits from now on.
    fn sets_limit(&self, step: &Step<'_>, before: &Before) -> bool {
        let Call::Acquire { request, .. } = step.call else {
            return false;
        };
        // A known request is told how it stands, and no more; an upgrade may end before that.
        let ended = |note: &Note| note.what == What::Left && note.request == request;
        let known = before.first != Standing::Unknown && !step.record.notes.iter().any(ended);
        step.record.reply[0] != -3 && !known
    }

    /// Whether a known request may end so in this call.
    pub(super) fn may_end(&self, step: &Step<'_>, ended: What, name: &str, id: u32) -> Result<(), Violation> {
        let request = &self.requests[id as usize];
        let waits = request.waits.is_some();
        let named = step.record.script == Script::Release && request.named_by == step.number;
        match ended {
            // The upgrade's end is noted before that of the last read hold.
            What::Left if request.upgrade && self.owners[request.owner as usize].reads <= 1 => {}
            What::Left => ensure!(named && waits, 8, "{name} left: asked {named}, waits {waits}"),
            What::Released => match step.call {
                Call::Downgrade { from, to, .. } => {
                    ensure!(from == name && !waits, 8, "{name} released by a downgrade of {from}");
                    ensure!(self.standing(to) == Standing::Holds, 9, "{from} went before {to} came");
                }
                _ => ensure!(named && !waits, 8, "{name} released: asked {named}, waits {waits}"),
            },
            What::Expired => ensure!(
                request.deadline <= step.now,
                if waits { 5 } else { 1 },
                "{name} expired {} ms before its deadline",
                request.deadline - step.now
            ),
            What::Evicted => ensure!(
                matches!(step.call, Call::Evict { owner } if owner == owner_of(name) || owner == unweighted(owner_of(name))),
                6,
                "{name} evicted, and nobody asked for it"
            ),
            What::Granted | What::Queued | What::Reset | What::Cut => {}
        }
        Ok(())
    }
}
