//! Who was let in, who was queued, and who had to be.

use super::{BAND, Before, Call, Lock, Standing, Step, Violation, names_owner, owner_of, violation, weight_of, writes};
use crate::record::What;

impl Lock {
    pub(super) fn granted(&mut self, step: &Step<'_>, name: &str, token: u64) -> Result<(), Violation> {
        let waited = self.standing(name) == Standing::Waits;
        let id = match (self.id(name), &step.call) {
            (Some(id), _) => {
                let request = &self.requests[id as usize];
                if let Some(score) = request.waits {
                    if !step.lenient {
                        ensure!(request.deadline > step.now, 5, "{name} was granted after its deadline");
                        self.pass(step, name, request.owner, score)?;
                    }
                    self.leave_queue(id);
                    id
                } else {
                    ensure!(step.lenient, 7, "{name} holds and is granted again");
                    return Ok(());
                }
            }
            (None, Call::Acquire { request, lease, .. }) if *request == name => {
                let id = self.insert(name);
                self.lease(id, step.now, *lease);
                let owner = self.requests[id as usize].owner;
                if !self.inside(id) && !step.lenient {
                    let (band, ticket) = self.place(step, id);
                    let score = ticket.map_or((band + 1) * BAND, |ticket| ticket as i64 + band * BAND);
                    self.pass(step, name, owner, score)?;
                }
                id
            }
            (None, Call::Downgrade { from, to, lease }) if *to == name => {
                ensure!(
                    step.lenient || owner_of(from) == owner_of(to),
                    9,
                    "{to} takes the place of another owner's {from}"
                );
                let id = self.insert(name);
                self.lease(id, step.now, *lease);
                id
            }
            (None, _) => {
                ensure!(step.lenient, 6, "{name} was granted and did not ask");
                self.insert(name)
            }
        };
        let (owner, wants_write) = (self.requests[id as usize].owner, self.requests[id as usize].writes);
        let writes_already = self.writer == Some(owner);
        let reenters = self.owners[owner as usize].reads > 0 || writes_already;
        let begins = self.readers == 0 && self.writer.is_none();
        if !step.lenient {
            if let Some(writer) = self.writer
                && writer != owner
            {
                return violation(
                    1,
                    format!("{name} entered beside the writer {}", self.owner_name(writer)),
                );
            }
            let others = self.readers - self.owners[owner as usize].reads;
            ensure!(
                !wants_write || others == 0,
                1,
                "{name} entered beside {others} read holds"
            );
            ensure!(
                wants_write || begins || reenters || self.has_room(name),
                1,
                "{name} entered beside {} of {}",
                self.used,
                self.limit
            );
            // A reader that waited shares only what was drawn in this call: it was told greater numbers than the last.
            let shares = if waited { self.drawn_by == step.number } else { true };
            // An acquire admits once more after its limit grew, and draws again.
            let again = waited && !wants_write && step.limit().is_some() && token > self.seq;
            if begins || wants_write && !writes_already || !shares || again {
                ensure!(token > self.seq, 2, "{name} got {token} after {}", self.seq);
            } else {
                ensure!(
                    token == self.token,
                    2,
                    "{name} shares {token} instead of {}",
                    self.token
                );
            }
        }
        if token > self.seq {
            self.drawn_by = step.number;
        }
        self.seq = self.seq.max(token);
        self.token = token;
        if begins {
            self.first = token;
        }
        let holder = &mut self.owners[owner as usize];
        if wants_write {
            holder.writes += 1;
            self.writer = Some(owner);
        } else {
            if holder.reads == 0 {
                self.used += weight_of(owner_of(name));
            }
            holder.reads += 1;
            self.readers += 1;
        }
        Ok(())
    }

    fn has_room(&self, name: &str) -> bool {
        self.limit == 0 || self.used + weight_of(owner_of(name)) <= self.limit
    }

    pub(super) fn queued(&mut self, step: &Step<'_>, name: &str) -> Result<(), Violation> {
        let Call::Acquire {
            request,
            only_now,
            lease,
            ..
        } = step.call
        else {
            return violation(6, format!("{name} queued and did not ask"));
        };
        ensure!(request == name, 6, "{name} queued and did not ask");
        ensure!(!only_now, 10, "{name} tries and queues");
        if let Some(id) = self.id(name) {
            ensure!(step.lenient, 7, "{name} queued twice");
            self.remove(id, name);
        }
        let id = self.insert(name);
        let owner = self.requests[id as usize].owner;
        let upgrade = self.is_upgrade(id);
        if !step.lenient {
            ensure!(
                !upgrade || self.upgrades == 0,
                9,
                "{name} is the second to wait for an upgrade"
            );
            // An owner that nobody named has one request, and perhaps its upgrade. What is executed long after it was given
            // up, and a server that went back in time, may put the one beside the other.
            let named = !owner_of(name).contains(':');
            ensure!(
                !named || self.owners[owner as usize].waiting == 0,
                5,
                "{name} waits beside another request of its owner"
            );
        }
        let (band, old) = self.place(step, id);
        let ticket = step.record.reply[1].unsigned_abs();
        match old {
            Some(old) => ensure!(ticket == old, 3, "{name} has {old} and got {ticket}"),
            None => {
                ensure!(
                    step.lenient || ticket > self.seq,
                    3,
                    "{name} got the ticket {ticket} after {}",
                    self.seq
                );
                self.seq = self.seq.max(ticket);
            }
        }
        let score = ticket as i64 + band * BAND;
        let request = &mut self.requests[id as usize];
        (request.waits, request.upgrade) = (Some(score), upgrade);
        self.upgrades += u32::from(upgrade);
        self.owners[owner as usize].waiting += 1;
        self.queue.insert((score, id));
        self.lease(id, step.now, lease);
        Ok(())
    }

    /// What was answered is what is.
    pub(super) fn compare(&self, step: &Step<'_>, before: &Before) -> Result<(), Violation> {
        let reply = &step.record.reply;
        match step.call {
            Call::Acquire {
                request,
                only_now,
                read_token,
                most_before,
                ..
            } => {
                let now = self.standing(request);
                let known = before.first != Standing::Unknown;
                let (right, otherwise) = match reply[0] {
                    2 => (now == Standing::Holds, 1),
                    1 => (now == Standing::Waits, 5),
                    _ => (now == Standing::Unknown, 5),
                };
                let invariant = if known { 7 } else { otherwise };
                ensure!(right, invariant, "{request} {now:?} and is answered {}", reply[0]);
                match reply[0] {
                    2 => {
                        let token = self.token;
                        ensure!(reply[1] as u64 == token, 2, "{request} holds with {token}");
                    }
                    1 => {
                        let score = self.request(request).and_then(|request| request.waits);
                        let ticket = score.map_or(0, |score| score.rem_euclid(BAND));
                        ensure!(reply[1] == ticket, 7, "{request} waits with {ticket}");
                        // A message with a token up to this one is taken for one of a former life.
                        let latest = self.seq;
                        ensure!(reply[3] as u64 >= latest, 2, "seq was {latest} before {request} queued");
                    }
                    0 => {
                        ensure!(only_now, 5, "{request} may wait and is told busy");
                        ensure!(
                            !self.could_enter(step, request),
                            4,
                            "{request} could enter and is told busy"
                        );
                    }
                    -1 => {
                        let owner = self.owner_names.get(owner_of(request));
                        let reads = owner.is_some_and(|owner| self.owners[*owner as usize].reads > 0);
                        ensure!(
                            reads && writes(request) && self.upgrades > 0,
                            9,
                            "{request} is refused, and nobody else upgrades"
                        );
                    }
                    -2 => {
                        let owner = self.owner_names.get(owner_of(request));
                        let waits = owner.is_some_and(|owner| self.owners[*owner as usize].waiting > 0);
                        ensure!(waits, 5, "{request} is refused, and its owner does not wait");
                    }
                    -4 => {
                        let owner = self.owner_names.get(owner_of(request));
                        let reads = owner.is_some_and(|owner| self.owners[*owner as usize].reads > 0);
                        let interrupted = |token| !reads || self.first > token;
                        ensure!(
                            read_token.is_some_and(interrupted),
                            9,
                            "{request} is refused its upgrade, and its owner reads since {}",
                            self.first
                        );
                    }
                    -5 => ensure!(
                        most_before.is_some_and(|most| self.queue.len() as u64 >= most),
                        5,
                        "{request} is refused by the bound {most_before:?}, and {} wait",
                        self.queue.len()
                    ),
                    _ => {}
                }
            }
            Call::Release => {
                for request in &step.record.args {
                    ensure!(
                        self.id(request).is_none(),
                        8,
                        "{request} is still there after its release"
                    );
                }
            }
            Call::Renew => {
                let holds = self.readers > 0 || self.writer.is_some();
                ensure!(
                    !holds || reply[1] as u64 == self.first,
                    2,
                    "the phase began with {}, not {}",
                    self.first,
                    reply[1]
                );
                for (at, pair) in step.record.args.chunks_exact(2).enumerate() {
                    let (name, answer) = (&pair[0], reply[2 + at]);
                    let Some(request) = self.request(name).filter(|known| known.named_by == step.number) else {
                        continue;
                    };
                    if request.waits.is_some() {
                        ensure!(answer <= 0 && answer != -1, 8, "{name} waits and is answered {answer}");
                        let latest = self.seq;
                        ensure!(
                            -answer as u64 >= latest,
                            2,
                            "seq was {latest} before {name} was told to wait"
                        );
                    } else {
                        ensure!(answer > 0, 8, "{name} holds and is answered {answer}");
                        let token = self.token;
                        ensure!(answer as u64 == token, 2, "{name} holds with {token}, not {answer}");
                    }
                }
            }
            Call::Downgrade { from, to, .. } => {
                let held = before.second == Standing::Holds || before.first == Standing::Holds && writes(from);
                if held {
                    ensure!(self.standing(to) == Standing::Holds, 9, "{from} held and {to} does not");
                    let first = self.first;
                    ensure!(reply[1] as u64 == first, 2, "{to} holds since {first}");
                    ensure!(
                        before.second == Standing::Holds || self.id(from).is_none(),
                        9,
                        "{from} holds beside {to}"
                    );
                } else {
                    ensure!(reply[1] == -1, 8, "{from} is unknown and is answered {}", reply[1]);
                    ensure!(self.id(to).is_none(), 8, "{to} entered for {from}, which is unknown");
                }
            }
            Call::Evict { owner } => {
                let evicted = step
                    .record
                    .notes
                    .iter()
                    .filter(|note| note.what == What::Evicted)
                    .count();
                ensure!(reply[1] == evicted as i64, 6, "{evicted} evicted");
                ensure!(!self.owner_names.contains_key(owner), 6, "{owner} is still there");
            }
        }
        Ok(())
    }

    /// Nobody who conflicts and is still alive stands before this score.
    pub(super) fn pass(&self, step: &Step<'_>, name: &str, owner: u32, score: i64) -> Result<(), Violation> {
        for (_, id) in self.queue.iter().take_while(|(ahead, _)| *ahead < score) {
            let ahead = &self.requests[*id as usize];
            // In a bounded lock readers exclude each other too.
            let conflicts = ahead.writes || writes(name) || self.limit > 0;
            if conflicts && ahead.owner != owner && ahead.deadline > step.now {
                let invariant = if ahead.upgrade { 9 } else { 3 };
                return violation(invariant, format!("{name} passed {}", self.name(*id)));
            }
        }
        Ok(())
    }

    /// Whether a request that was told "busy" could have entered.
    pub(super) fn could_enter(&self, step: &Step<'_>, name: &str) -> bool {
        let Call::Acquire { band_of, ticket, .. } = step.call else {
            return false;
        };
        let owner = self.owner_names.get(owner_of(name)).copied();
        let named = names_owner(name);
        let found = |owner: u32| &self.owners[owner as usize];
        let reads = owner.filter(|_| named).map_or(0, |owner| found(owner).reads);
        let fits = match self.writer {
            Some(writer) => Some(writer) == owner,
            None if writes(name) => self.readers == reads,
            None => self.readers == 0 || reads > 0 || self.has_room(name),
        };
        let inside = reads > 0 || owner.is_some_and(|owner| found(owner).writes > 0);
        let band = i64::from(band_of.is_some_and(|writers| writers != writes(name)));
        let score = ticket.map_or((band + 1) * BAND, |ticket| ticket as i64 + band * BAND);
        fits && (inside || self.queue.first().is_none_or(|(head, _)| score < *head))
    }

    /// Band and old ticket of the request that asks.
    pub(super) fn place(&self, step: &Step<'_>, id: u32) -> (i64, Option<u64>) {
        let Call::Acquire { band_of, ticket, .. } = step.call else {
            return (0, None);
        };
        let writes = self.requests[id as usize].writes;
        let band = if self.is_upgrade(id) {
            -1
        } else {
            i64::from(band_of.is_some_and(|writers| writers != writes))
        };
        (band, ticket)
    }

    pub(super) fn is_upgrade(&self, id: u32) -> bool {
        let request = &self.requests[id as usize];
        let owner = &self.owners[request.owner as usize];
        request.named && request.writes && owner.reads > 0 && owner.writes == 0
    }

    /// The request finds its owner inside.
    pub(super) fn inside(&self, id: u32) -> bool {
        let request = &self.requests[id as usize];
        let owner = &self.owners[request.owner as usize];
        owner.writes > 0 || request.named && owner.reads > 0
    }

    /// Whether those who hold let it in.
    pub(super) fn fits(&self, id: u32) -> bool {
        let request = &self.requests[id as usize];
        match self.writer {
            Some(writer) => writer == request.owner,
            None => {
                let reads = if request.named {
                    self.owners[request.owner as usize].reads
                } else {
                    0
                };
                match request.writes {
                    true => self.readers == reads,
                    false => self.readers == 0 || reads > 0 || self.has_room(self.name(id)),
                }
            }
        }
    }
}
