//! What an actor asks for next, made concrete.

use super::{
    ACTORS, AHEAD, BOUNDS, Doing, LEASES_MS, LEASES_MS_OF_LOSSES, LIMITS, Op, Permits, RESTS_MS, Story, Time, UPGRADES,
    VOTE, WEIGHTS,
};
use crate::lua_world::{BEGIN_US, Limits, Step};
use crate::model::{Lock, NOBODY, client_of, owner_of, writes};
use crate::record::Script;

impl<'a> Story<'a> {
    pub(super) fn new_name(&mut self, write: bool, client: &str, owner: Option<&str>) -> String {
        let (mode, number) = (if write { 'w' } else { 'r' }, self.next_number);
        self.next_number += 1;
        let name = match owner {
            Some(owner) => format!("{mode}{client}:{number}:{owner}"),
            None => format!("{mode}{client}:{number}"),
        };
        self.named.push(name.clone());
        name
    }

    pub(super) fn alive(&self) -> Vec<&str> {
        self.lock.alive().collect()
    }

    /// A request: mostly one that lives, else one that was, or one that never was.
    pub(super) fn pick(&self, which: u8) -> String {
        let which = usize::from(which);
        let alive = self.alive();
        if !which.is_multiple_of(8) && !alive.is_empty() {
            return alive[which / 8 % alive.len()].to_owned();
        }
        match self.named.len() {
            n if n > 0 && which != 0 => self.named[n - 1 - which / 8 % n.min(12)].clone(),
            _ => "w9:99:z".to_owned(),
        }
    }

    /// Whose request it is to be: a new one, or once more by somebody who is inside.
    pub(super) fn asker(&mut self, who: u8, write: bool, weight: u64) -> String {
        let who = match self.case.cast {
            0 => usize::from(who),
            1 => usize::from(who % 3),
            _ => [3, 4, 0, 3, 1, ACTORS.len()][usize::from(who % 6)],
        };
        // No client takes the name of who keeps others out in a quarantine.
        let inside = self.lock.owners.keys().filter(|owner| ***owner != *owner_of(NOBODY));
        let inside: Vec<String> = inside.map(|owner| owner.to_string()).collect();
        match ACTORS.get(who) {
            Some((client, None)) if self.is_bounded() && !write && weight > 1 => {
                self.new_name(false, client, Some(&format!("*{weight}")))
            }
            Some((client, owner)) => self.new_name(write, client, *owner),
            None if !inside.is_empty() => {
                let owner = &inside[who % inside.len()];
                // An owner that was not named can only upgrade, or hold a permit twice.
                match owner.split_once(':') {
                    Some((client, _)) => self.new_name(write || !self.is_bounded(), client, Some(owner)),
                    None => self.new_name(write, "1", Some(owner)),
                }
            }
            None => self.new_name(write, "3", None),
        }
    }

    fn is_bounded(&self) -> bool {
        self.policy.starts_with('n')
    }

    /// The policy as a request names it: a bounded lock's has the limit.
    fn policy(&self, limit: u8) -> String {
        match self.is_bounded() {
            true => format!("n{}", BOUNDS[usize::from(limit) % BOUNDS.len()]),
            false => self.policy.to_owned(),
        }
    }

    /// The ticket of a place that was lost. A place is taken by one request at a time: its next one comes when the first
    /// is over.
    pub(super) fn old_ticket(&self, ticket: u8) -> String {
        if UPGRADES.contains(&ticket) {
            let token = [self.lock.token, self.lock.first, self.lock.first.saturating_sub(1)];
            return format!("u{}", token[usize::from(ticket - UPGRADES.start())]);
        }
        if ticket == VOTE {
            return "q".to_owned();
        }
        if ticket == AHEAD {
            // Of before the server lost its data and its clock.
            let ahead = self.now_us.max(self.lock.seq) + 1_000 * self.next_number;
            return ahead.to_string();
        }
        let taken: Vec<i64> = self.lock.tickets().collect();
        let mut free = self.tickets.iter().filter(|ticket| !taken.contains(ticket));
        let nth = usize::from(ticket).checked_sub(1);
        nth.and_then(|n| free.nth(n)).map_or(String::new(), i64::to_string)
    }

    /// Whether a call may find more to do than it does.
    fn may_leave_something(&self) -> bool {
        let Limits { grants, expiries } = LIMITS[self.case.limits];
        let is_dead = |request: &&str| self.lock.deadline_ms(request) <= Some(self.now_us / 1000);
        self.lock.queue().count() > grants || self.lock.alive().filter(is_dead).count() > expiries
    }

    /// Ticket, token and counter of a place.
    fn place(&self, ticket: u8, given_up: u8, least: u8) -> [String; 3] {
        let shown = |number: Option<u64>| number.map_or(String::new(), |number| number.to_string());
        let ahead = self.now_us.max(self.lock.seq) + 1_000 * self.next_number;
        let waiting: Vec<u64> = self.lock.tickets().map(i64::unsigned_abs).collect();
        let ticket = match ticket % 8 {
            0 => None,
            // Of a request that holds.
            1 => Some(1),
            2 => Some(ahead),
            3 => Some(self.lock.seq.max(1)),
            // Before, at and behind somebody's place.
            n => {
                let nth = waiting.get(usize::from(ticket / 8) % waiting.len().max(1));
                Some(nth.map_or(self.now_us, |waiting| (waiting + u64::from(n.min(6)) - 5).max(1)))
            }
        };
        let Lock { token, first, .. } = self.lock;
        let given_up = match given_up {
            0 | 1 => None,
            2 => Some(token.saturating_sub(1)),
            3 => Some(first.saturating_sub(1)),
            4 => Some(first),
            _ => Some(token),
        };
        let least = match least {
            // After a loss nobody knows it, and the keys live for it.
            _ if self.case.loss.is_some() => None,
            0 => None,
            1 => Some(token.max(1)),
            2 => Some(ahead),
            _ => Some(self.now_us + 40_000_000),
        };
        [ticket, given_up, least].map(shown)
    }

    pub(super) fn concrete(&mut self, op: &Op) -> Option<Doing> {
        let leases = if self.case.loss.is_some() {
            LEASES_MS_OF_LOSSES
        } else {
            LEASES_MS
        };
        let lease = |lease: u8| leases[usize::from(lease) % leases.len()].to_string();
        // A third is not to make a deadline earlier.
        let asked = |ms: u8| format!("{}{}", if ms < 6 { "" } else { "+" }, lease(ms));
        let when = |only_now: bool| if only_now { "try" } else { "queue" }.to_owned();
        let (script, args, heard) = match op {
            Op::Ask {
                who,
                write,
                only_now,
                lease: ms,
                ticket,
                other_policy,
                permits: Permits { weight, limit, most },
                rest,
            } => {
                let other = ["w", "r", "", "n3"][usize::from(who % 4)];
                let (policy, weight) =
                    if *other_policy && self.case.loss.is_none() && other.get(..1) != self.policy.get(..1) {
                        // What a bounded lock alone may be asked for is an error of any other.
                        (other.to_owned(), 1)
                    } else {
                        (self.policy(*limit), WEIGHTS[usize::from(*weight) % WEIGHTS.len()])
                    };
                let request = self.asker(*who, *write, weight);
                let when = match most {
                    0..8 if !only_now => format!("m{most}"),
                    _ => when(*only_now),
                };
                let mut args = vec![request, asked(*ms), when, policy, self.old_ticket(*ticket)];
                // No client knows of the hold that keeps others out, and all that is left after a loss must be somebody's.
                let rest = rest.checked_sub(1).filter(|_| self.case.loss.is_none());
                args.extend(rest.map(|rest| RESTS_MS[usize::from(rest)].to_string()));
                (Script::Acquire, args, true)
            }
            Op::Again {
                which,
                only_now,
                lease: ms,
            } => {
                let request = self.pick(*which);
                // Its client had no reply, or it is a copy of one that is over.
                let heard = self.clients.know(&request);
                let args = vec![request, asked(*ms), when(*only_now), self.policy(*which), String::new()];
                (Script::Acquire, args, heard)
            }
            Op::Late(which) => {
                // One of the last, or any.
                let all = self.calls.len();
                let back = usize::from(which / 2) % if which % 2 == 0 { all.min(8) } else { all }.max(1);
                let (script, args) = self.calls.get(all.checked_sub(1 + back)?)?.clone();
                (script, args, false)
            }
            Op::Release(which) => (
                Script::Release,
                which.iter().map(|which| self.pick(*which)).collect(),
                true,
            ),
            Op::Go(which) => {
                let holding: Vec<&str> = self.alive().into_iter().filter(|r| self.lock.holds(r)).collect();
                let request = holding.get(usize::from(*which) % holding.len().max(1))?;
                (Script::Release, vec![(*request).to_owned()], true)
            }
            Op::Renew(which) => {
                let pairs = which.iter().flat_map(|(which, ms)| [self.pick(*which), asked(*ms)]);
                (Script::Renew, pairs.collect(), true)
            }
            Op::Downgrade { which, lease: ms } => {
                let writing: Vec<&str> = self
                    .alive()
                    .into_iter()
                    .filter(|r| writes(r) && self.lock.holds(r))
                    .collect();
                let from = match writing.len() {
                    n if n > 0 && which % 4 > 0 => writing[usize::from(which / 4) % n].to_owned(),
                    _ => self.pick(*which),
                };
                if !writes(&from) {
                    return None;
                }
                let (client, owner) = (client_of(&from).to_owned(), owner_of(&from).to_owned());
                let to = self.new_name(false, &client, Some(&owner));
                (Script::Downgrade, vec![from, to, lease(*ms)], true)
            }
            Op::Evict(who) => {
                let owner = match self.alive().as_slice() {
                    [] => "a".to_owned(),
                    alive if who % 2 == 0 => {
                        let owner = owner_of(alive[usize::from(who / 2) % alive.len()]);
                        // Also without the weight.
                        let short = owner.split(":*").next().filter(|_| who % 4 == 0);
                        short.unwrap_or(owner).to_owned()
                    }
                    _ => ["a", "ba", "c", "nobody"][usize::from(who / 2) % 4].to_owned(),
                };
                (Script::Evict, vec![owner], true)
            }
            Op::Place {
                which,
                lease: ms,
                ticket,
                given_up,
                least,
            } => {
                let holding: Vec<&str> = self.alive().into_iter().filter(|r| self.lock.holds(r)).collect();
                // Mostly only who holds has something to give up.
                let request = match holding.len() {
                    n if n > 0 && *given_up > 1 && which % 8 > 0 => holding[usize::from(which / 8) % n].to_owned(),
                    _ => self.pick(*which),
                };
                let mut args = vec![request, lease(*ms)];
                args.extend(self.place(*ticket, *given_up, *least));
                (Script::Place, args, true)
            }
            Op::Wait(time) => {
                self.wait(time);
                return None;
            }
        };
        // A place looks after the others before and after it, and what it leaves does not show when it did what.
        if script == Script::Place && self.may_leave_something() {
            return None;
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let step = Step::new(script, &args, self.now_us);
        Some(Doing::Call { step, heard })
    }

    pub(super) fn wait(&mut self, time: &Time) {
        let forward = |us: u64| self.now_us + us;
        self.now_us = match time {
            Time::Us(us) => forward(u64::from(*us)),
            Time::Ms(ms) => forward(u64::from(*ms) * 1000),
            Time::Deadline(which, past) => {
                let alive = self.alive();
                let nearest = alive.iter().min_by_key(|request| self.lock.deadline_ms(request));
                let request = match which % 4 {
                    0 => alive.get(usize::from(which / 4) % alive.len().max(1)),
                    _ => nearest,
                };
                let Some(deadline) = request.and_then(|request| self.lock.deadline_ms(request)) else {
                    return;
                };
                self.now_us
                    .max((deadline * 1000).saturating_add_signed(i64::from(*past)))
            }
            // What was lost may be the longest lease, by which far deadlines are known.
            Time::Back(_) if self.case.loss.is_some() => return,
            Time::Back(which) => {
                let us = [1, 1_000, 500_000, 2_000_000, 3_600_000_000];
                let back = self.now_us - us[usize::from(*which) % us.len()];
                back.max(BEGIN_US - 86_400_000_000)
            }
            Time::Expiry(past) => match self.expiries.iter().filter_map(|at| at.flatten()).max() {
                Some(at) => self.now_us.max(at.saturating_add_signed(i64::from(*past)) * 1000),
                None => return,
            },
        };
    }
}
