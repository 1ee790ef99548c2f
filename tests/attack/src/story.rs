//! Random stories of one lock: what is asked, when, and what is taken away.
//!
//! A [`Case`] is a list of small numbers, so that proptest can shrink it. What they mean is decided by a [`Story`] on the
//! way, which knows who holds and waits, and which deadline is the nearest.
//!
//! A story in which something is lost has four parts. (1) It goes on as it was for some calls; nothing is judged but that
//! scripts do not fail, and that whoever was interrupted is told so. (2) Everybody goes on as `PROTOCOL.md` says, for one
//! lease: they renew, ask again, release what they lost. (3) Then the lock is as if nothing had happened: what `status`
//! shows is what everybody believes, and every further call is judged. (4) All leave, and probes enter.

use crate::clients::{Clients, says_more};
use crate::invariants;
use crate::judge::judge;
use crate::lua_world::{BEGIN_US, Limits, Seen, Step};
use crate::model::{GRANTED, Lock, QUEUED, client_of, named_owner, owner_of, writes};
use crate::record::{Script, What};
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
pub struct Case {
    pub limits: usize,
    pub policy: u8,
    /// Before which operation something is lost, and what: see `LOSE` in `lua_world.rs`.
    pub loss: Option<(usize, usize)>,
    /// Who asks: 0 anybody; 1 nobody who names an owner, which is what the fast paths are for; 2 mostly one named owner.
    pub cast: u8,
    pub ops: Vec<(Op, bool)>,
}

/// Indexes are taken modulo what there is.
#[derive(Clone, Debug)]
pub enum Op {
    Ask {
        who: u8,
        write: bool,
        only_now: bool,
        lease: u8,
        ticket: u8,
        other_policy: bool,
    },
    Again {
        which: u8,
        only_now: bool,
        lease: u8,
    },
    /// A copy of any call so far, which the network kept until now.
    Late(u16),
    Release(Vec<u8>),
    /// One that holds goes.
    Go(u8),
    Renew(Vec<(u8, u8)>),
    Downgrade {
        which: u8,
        lease: u8,
    },
    Evict(u8),
    Wait(Time),
}

#[derive(Clone, Debug)]
pub enum Time {
    Us(u32),
    Ms(u32),
    /// To a request's deadline, and a little before or past it, us.
    Deadline(u8, i32),
    Back(u8),
    /// To the moment at which the keys expire, and ms past it.
    Expiry(i8),
}

/// Small limits find what goes wrong when a call has to leave something to the next.
pub const LIMITS: [Limits; 4] = [
    Limits {
        grants: 1024,
        expiries: 200,
    },
    Limits { grants: 2, expiries: 2 },
    Limits { grants: 1, expiries: 3 },
    Limits {
        grants: 20,
        expiries: 1,
    },
];

/// A ticket that is ahead of the counter.
const AHEAD: u8 = 11;

/// Of stories in which nothing is lost.
const LEASES_MS: [u64; 6] = [1_000, 1_000, 400, 5_000, 100_000, 1];

/// Whatever is lost is found out within the longest of these.
const LEASES_MS_OF_LOSSES: [u64; 6] = [LONGEST_MS, LONGEST_MS, 400, 900, LONGEST_MS, 1];
const LONGEST_MS: u64 = 1_000;

/// `intact`: nothing is lost.
pub fn case(intact: bool) -> impl Strategy<Value = Case> {
    let ops = proptest::collection::vec((op(), any::<bool>()), 1..120);
    let loss = prop_oneof![3 => Just(None), u32::from(!intact) => (0..60_usize, 0..16_usize).prop_map(Some)];
    (0..LIMITS.len(), 0..6_u8, loss, 0..3_u8, ops).prop_map(|(limits, policy, loss, cast, ops)| Case {
        limits,
        // Mostly first come, first served.
        policy: policy.saturating_sub(3),
        loss,
        cast,
        ops,
    })
}

/// Short ones, to lose each thing at each point of.
pub fn short_case() -> impl Strategy<Value = Case> {
    let ops = proptest::collection::vec((op(), any::<bool>()), 6..24);
    (0..6_u8, 0..3_u8, ops).prop_map(|(policy, cast, ops)| Case {
        limits: 0,
        policy: policy.saturating_sub(3),
        loss: None,
        cast,
        ops,
    })
}

fn op() -> impl Strategy<Value = Op> {
    let rarely = |one_in: u32| prop_oneof![one_in - 1 => Just(false), 1 => Just(true)];
    let ticket = prop_oneof![8 => Just(0), 2 => 1..12_u8];
    let ask = (0..14_u8, any::<bool>(), rarely(5), 0..6_u8, ticket, rarely(40)).prop_map(
        |(who, write, only_now, lease, ticket, other_policy)| Op::Ask {
            who,
            write,
            only_now,
            lease,
            ticket,
            other_policy,
        },
    );
    let again =
        (any::<u8>(), rarely(5), 0..6_u8).prop_map(|(which, only_now, lease)| Op::Again { which, only_now, lease });
    prop_oneof![
        40 => ask,
        8 => again,
        10 => any::<u16>().prop_map(Op::Late),
        20 => proptest::collection::vec(any::<u8>(), 1..4).prop_map(Op::Release),
        20 => any::<u8>().prop_map(Op::Go),
        12 => proptest::collection::vec((any::<u8>(), 0..6_u8), 0..5).prop_map(Op::Renew),
        6 => (any::<u8>(), 0..6_u8).prop_map(|(which, lease)| Op::Downgrade { which, lease }),
        3 => any::<u8>().prop_map(Op::Evict),
        20 => time().prop_map(Op::Wait),
    ]
}

fn time() -> impl Strategy<Value = Time> {
    prop_oneof![
        2 => Just(Time::Us(1)),
        2 => (0..3_u32).prop_map(Time::Ms),
        2 => (0..1_500_u32).prop_map(Time::Ms),
        8 => (any::<u8>(), prop_oneof![Just(0), Just(-1), Just(1), Just(1_000), Just(-1_000)])
            .prop_map(|(which, past)| Time::Deadline(which, past)),
        1 => any::<u8>().prop_map(Time::Back),
        1 => prop_oneof![Just(-2_i8), Just(0), Just(1)].prop_map(Time::Expiry),
        1 => (20_000..70_000_u32).prop_map(Time::Ms),
    ]
}

/// Whose requests: client, and the owner if the user named one. One owner's name ends like another's.
const ACTORS: [(&str, Option<&str>); 7] = [
    ("1", None),
    ("2", None),
    ("1f", None),
    ("1", Some("a")),
    ("2", Some("a")),
    ("2", Some("ba")),
    ("1f", Some("c")),
];

/// What to do next.
#[derive(Clone, Debug)]
pub enum Doing {
    /// `heard`: its client hears the reply.
    Call {
        step: Step,
        heard: bool,
    },
    Lose(usize),
}

/// After a loss so many operations are not judged.
const CONFUSED: usize = 12;
/// Rounds in which everybody goes on, this far apart: together longer than a lease.
const ROUNDS: u32 = 5;
const ROUND_US: u64 = 250_000;
const ROUND_LEASE_MS: u64 = 900;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Ops,
    /// Until the operation of this number.
    Confused(usize),
    Round(u32),
    Again,
    /// Of a lock whose policy was lost: nobody can enter until it has been unused for a minute.
    Forgotten,
    /// Of a lock on which one owner is counted wrong: that lasts until its requests have left.
    Away,
    Leave,
    Probes(usize),
    Over,
}

/// What becomes of a case.
pub struct Story<'a> {
    case: &'a Case,
    key: String,
    pub lock: Lock,
    clients: Clients,
    now_us: u64,
    policy: &'static str,
    next_number: u64,
    /// Every request so far, every ticket, and every call.
    named: Vec<String>,
    tickets: Vec<i64>,
    calls: Vec<(Script, Vec<String>)>,
    expiries: [Option<Option<u64>>; 3],
    part: Part,
    at: usize,
    todo: VecDeque<Doing>,
    lost: Option<String>,
    latest_ms: u64,
    last: Option<Seen>,
    pub counts: Counts,
}

/// What a story had in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub steps: u64,
    pub granted: u64,
    pub unfinished: u64,
    pub resets: u64,
    pub late: u64,
    pub recovered: u64,
    /// Things that there were to lose when something was.
    pub losable: usize,
}

impl<'a> Story<'a> {
    pub fn new(case: &'a Case, key: &str) -> Self {
        Self {
            case,
            key: key.to_owned(),
            lock: Lock::default(),
            clients: Clients::default(),
            now_us: BEGIN_US,
            policy: ["", "w", "r"][usize::from(case.policy)],
            next_number: 1,
            named: Vec::new(),
            tickets: Vec::new(),
            calls: Vec::new(),
            expiries: [None; 3],
            part: Part::Ops,
            at: 0,
            todo: VecDeque::new(),
            lost: None,
            latest_ms: 0,
            last: None,
            counts: Counts::default(),
        }
    }

    /// `None`: it is over. Each is followed by [`seen`](Self::seen) or [`lost`](Self::lost).
    pub fn next_doing(&mut self) -> Option<Doing> {
        loop {
            if let Some(doing) = self.todo.pop_front() {
                return Some(doing);
            }
            match self.part {
                Part::Over => return None,
                Part::Ops | Part::Confused(_) | Part::Again => self.one_op(),
                Part::Round(round) => self.round(round),
                Part::Forgotten => self.wait_until_forgotten(),
                Part::Leave | Part::Away => self.leave(),
                Part::Probes(n) => self.probe(n),
            }
        }
    }

    fn one_op(&mut self) {
        if self.part == Part::Ops && self.case.loss.is_some_and(|(at, _)| at == self.at) && self.lost.is_none() {
            let (_, which) = self.case.loss.unwrap_or_default();
            self.lost = Some(String::new());
            return self.todo.push_back(Doing::Lose(which));
        }
        match (self.part, self.case.ops.get(self.at)) {
            (Part::Confused(until), op) if op.is_none() || self.at >= until => self.part = Part::Round(0),
            (_, Some((op, listened))) => {
                self.at += 1;
                if let Some(mut doing) = self.concrete(op) {
                    if let Doing::Call { step, .. } = &mut doing {
                        step.listened = *listened;
                    }
                    self.todo.push_back(doing);
                }
            }
            (Part::Again, None) => self.part = Part::Leave,
            (_, None) => self.part = Part::Over,
        }
    }

    /// Everybody goes on as the protocol says.
    fn round(&mut self, round: u32) {
        if round == 0 {
            self.clients.forget_firsts();
        }
        let forgotten = self.clients.forgotten();
        let lost = self.clients.lost();
        if !lost.is_empty() {
            self.call(Script::Release, lost);
        }
        for (request, ticket) in forgotten {
            let (client, owner) = (client_of(&request).to_owned(), named_owner(&request).map(str::to_owned));
            let name = self.new_name(writes(&request), &client, owner.as_deref());
            let args = [
                &name,
                &ROUND_LEASE_MS.to_string(),
                "queue",
                self.policy,
                &ticket.to_string(),
            ];
            self.call(Script::Acquire, args.map(str::to_owned).to_vec());
        }
        if !self.todo.is_empty() {
            return;
        }
        if round == ROUNDS {
            return self.part = Part::Again;
        }
        self.now_us += ROUND_US;
        for pairs in self.clients.renewals(ROUND_LEASE_MS) {
            self.call(Script::Renew, pairs);
        }
        if round + 1 == ROUNDS {
            // Somebody new comes by.
            let name = self.new_name(false, "7", None);
            let args = [&name, &ROUND_LEASE_MS.to_string(), "try", self.policy, ""];
            self.call(Script::Acquire, args.map(str::to_owned).to_vec());
            self.call(Script::Release, vec![name]);
        }
        self.call(Script::Renew, Vec::new());
        self.part = Part::Round(round + 1);
    }

    fn wait_until_forgotten(&mut self) {
        let all = self.lock.alive().map(str::to_owned).collect::<Vec<_>>();
        if !all.is_empty() {
            return self.call(Script::Release, all);
        }
        let latest = self.expiries.iter().filter_map(|at| at.flatten()).max().unwrap_or(0);
        self.now_us = self.now_us.max((latest + 1) * 1000);
        self.lock = Lock::default();
        self.part = Part::Probes(0);
    }

    fn leave(&mut self) {
        let all = self.lock.alive().map(str::to_owned).collect::<Vec<_>>();
        if all.is_empty() {
            self.part = Part::Probes(0);
        } else {
            self.call(Script::Release, all);
        }
    }

    /// A fresh upgrade, a named owner, a try, a writer: of a lock that nobody uses all must enter.
    fn probe(&mut self, n: usize) {
        let lease = ROUND_LEASE_MS.to_string();
        let mut enter = |name: &str, when: &str| {
            let args = [name, &lease, when, self.policy, ""];
            self.todo.push_back(Doing::Call {
                step: Step::new(Script::Acquire, &args, self.now_us),
                heard: true,
            });
        };
        let release = |requests: &[&str]| Doing::Call {
            step: Step::new(Script::Release, requests, self.now_us),
            heard: true,
        };
        let (a, b) = (self.next_number, self.next_number + 1);
        match n {
            0 => {
                let (read, write) = (format!("r8:{a}"), format!("w8:{b}:8:{a}"));
                enter(&read, "queue");
                enter(&write, "queue");
                self.todo.push_back(release(&[&write, &read]));
            }
            1 => {
                let write = format!("w8:{a}");
                enter(&write, "try");
                self.todo.push_back(release(&[&write]));
            }
            n if n < 6 => {
                let write = format!("w8:{a}:{}", ["a", "ba", "c", "1:1"][n - 2]);
                enter(&write, "queue");
                self.todo.push_back(release(&[&write]));
            }
            _ => {
                self.counts.recovered += 1;
                return self.part = Part::Over;
            }
        }
        self.next_number += 2;
        self.part = Part::Probes(n + 1);
    }

    fn call(&mut self, script: Script, args: Vec<String>) {
        let step = Step {
            script,
            args,
            now_us: self.now_us,
            listened: false,
        };
        self.todo.push_back(Doing::Call { step, heard: true });
    }

    /// What became of a call. `Err`: it was wrong.
    pub fn seen(&mut self, doing: &Doing, seen: Seen) -> Result<(), String> {
        let Doing::Call { step, heard } = doing else {
            unreachable!("a loss has no reply");
        };
        self.counts.steps += 1;
        let notes = seen.events.iter().flat_map(|(_, notes)| notes);
        for note in notes {
            self.counts.granted += u64::from(note.what == What::Granted);
            self.counts.resets += u64::from(note.what == What::Reset);
        }
        self.counts.unfinished += u64::from(says_more(step, &seen.reply));
        self.counts.late += u64::from(!heard);
        if step.script == Script::Acquire && seen.reply[0] == QUEUED {
            self.tickets.push(seen.reply[1]);
        }
        self.calls.push((step.script, step.args.clone()));
        self.clients.note(step, &seen, *heard)?;
        self.expiries = seen.expiries;
        match self.part {
            Part::Confused(_) | Part::Round(_) | Part::Forgotten | Part::Away => self.adopt(step, &seen),
            _ => self.judge(step, &seen)?,
        }
        if matches!(self.part, Part::Probes(_)) && step.script == Script::Acquire && seen.reply[0] != GRANTED {
            return Err(format!("a probe is answered {:?}", seen.reply));
        }
        let confused = matches!(self.part, Part::Round(_) | Part::Leave | Part::Away | Part::Forgotten);
        if confused && self.todo.is_empty() && says_more(step, &seen.reply) {
            self.call(Script::Renew, Vec::new());
        }
        self.latest_ms = self.latest_ms.max(self.lock.last_ms);
        self.last = Some(seen);
        self.recovered()
    }

    fn judge(&mut self, step: &Step, seen: &Seen) -> Result<(), String> {
        let before = if seen.expired[0] {
            Lock::default()
        } else {
            self.lock.clone()
        };
        let (lock, outcome) = judge(&self.lock, &self.key, step, seen)?;
        let settled = !says_more(step, &seen.reply);
        invariants::of_state(&lock, settled)
            .and_then(|()| invariants::of_call(&before, step, &outcome, &lock))
            .and_then(|()| invariants::of_repetition(step, &outcome, &lock))
            .map_err(|what| format!("the model itself: {what}"))?;
        self.lock = lock;
        Ok(())
    }

    /// Takes what is shown for what is.
    fn adopt(&mut self, step: &Step, seen: &Seen) {
        let policy = Some(self.policy.bytes().next());
        let view = seen.view.clone().unwrap_or_default();
        let told = if step.script == Script::Acquire {
            seen.reply[3]
        } else {
            0
        };
        let seq = self.lock.seq.max(told.unsigned_abs());
        self.lock = Lock::from_view(&view, policy, seq, LONGEST_MS);
        self.lock.excess_ms = self.latest_ms.saturating_sub(self.lock.last_ms);
    }

    /// After the rounds everything must be as if nothing had happened.
    fn recovered(&mut self) -> Result<(), String> {
        if self.part != Part::Round(ROUNDS) || !self.todo.is_empty() || self.clients.busy() {
            return Ok(());
        }
        if self.lost.as_deref() == Some("field policy") && !self.policy.is_empty() {
            self.part = Part::Forgotten;
            return Ok(());
        }
        if self.counted_wrong() {
            self.part = Part::Away;
            return Ok(());
        }
        // With which token a writer came in is seen once it reads: perhaps it did before what was lost.
        let unseen = self.lock.owners.values().any(|inside| inside.reads == 0);
        self.part = if unseen { Part::Leave } else { Part::Again };
        let view = self
            .last
            .as_ref()
            .and_then(|seen| seen.view.clone())
            .unwrap_or_default();
        let counted = self.lock.view();
        if (&counted.mode, counted.writes, &counted.holders) != (&view.mode, view.writes, &view.holders) {
            return Err(format!("status shows {view:?}, and its requests make {counted:?}"));
        }
        for (owner, inside) in &mut self.lock.owners {
            inside.first = self
                .clients
                .came_in_with(owner)
                .unwrap_or(inside.first)
                .min(inside.token);
        }
        invariants::of_state(&self.lock, true)?;
        self.clients.agree(&view)
    }

    /// What the state says of a named owner that has several requests is not compared with them, so a loss of it may last for
    /// as long as they do: fewer read holds than there are, or a second place in the queue.
    fn counted_wrong(&self) -> bool {
        let lost = self.lost.as_deref().unwrap_or_default();
        let owner = lost.strip_prefix("field r:").or(lost.strip_prefix("field q:"));
        owner.is_some_and(|owner| self.lock.alive().filter(|request| owner_of(request) == owner).count() > 1)
    }

    /// What was lost, and how much there was to lose. Returns whether the story goes on.
    pub fn lost(&mut self, lost: Option<String>, losable: usize) -> bool {
        self.counts.losable = losable;
        // The counter may be ahead of the clock, by as many us as it gave numbers in one: a loss of it costs so much.
        self.now_us += 2_000;
        self.lost.clone_from(&lost);
        let innocent = ["queue", "field keep", "field cap", "field more", "field policy"];
        let marks = |lost: &str| lost.starts_with("field q:") || innocent.contains(&lost);
        self.clients.exclusive = lost.as_deref().is_some_and(marks);
        self.part = if lost.is_some() {
            // Who waits may have had no reply, and asks again before anybody renews.
            let waiting = self.clients.waiting().filter(|_| self.at.is_multiple_of(2));
            for request in waiting.map(str::to_owned).collect::<Vec<_>>() {
                let args = [&request, &ROUND_LEASE_MS.to_string(), "queue", self.policy, ""];
                self.call(Script::Acquire, args.map(str::to_owned).to_vec());
            }
            Part::Confused(self.at + CONFUSED)
        } else {
            Part::Over
        };
        lost.is_some()
    }

    fn new_name(&mut self, write: bool, client: &str, owner: Option<&str>) -> String {
        let (mode, number) = (if write { 'w' } else { 'r' }, self.next_number);
        self.next_number += 1;
        let name = match owner {
            Some(owner) => format!("{mode}{client}:{number}:{owner}"),
            None => format!("{mode}{client}:{number}"),
        };
        self.named.push(name.clone());
        name
    }

    fn alive(&self) -> Vec<&str> {
        self.lock.alive().collect()
    }

    /// A request: mostly one that lives, else one that was, or one that never was.
    fn pick(&self, which: u8) -> String {
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
    fn asker(&mut self, who: u8, write: bool) -> String {
        let who = match self.case.cast {
            0 => usize::from(who),
            1 => usize::from(who % 3),
            _ => [3, 4, 0, 3, 1, ACTORS.len()][usize::from(who % 6)],
        };
        let inside: Vec<String> = self.lock.owners.keys().map(|owner| owner.to_string()).collect();
        match ACTORS.get(who) {
            Some((client, owner)) => self.new_name(write, client, *owner),
            None if !inside.is_empty() => {
                let owner = &inside[who % inside.len()];
                // An owner that was not named can only upgrade.
                match owner.split_once(':') {
                    Some((client, _)) => self.new_name(true, client, Some(owner)),
                    None => self.new_name(write, "1", Some(owner)),
                }
            }
            None => self.new_name(write, "3", None),
        }
    }

    /// The ticket of a place that was lost. A place is taken by one request at a time: its next one comes when the first
    /// is over.
    fn old_ticket(&self, ticket: u8) -> String {
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

    fn concrete(&mut self, op: &Op) -> Option<Doing> {
        let leases = if self.case.loss.is_some() {
            LEASES_MS_OF_LOSSES
        } else {
            LEASES_MS
        };
        let lease = |lease: u8| leases[usize::from(lease) % leases.len()].to_string();
        let when = |only_now: bool| if only_now { "try" } else { "queue" }.to_owned();
        let (script, args, heard) = match op {
            Op::Ask {
                who,
                write,
                only_now,
                lease: ms,
                ticket,
                other_policy,
            } => {
                let request = self.asker(*who, *write);
                let policy = if *other_policy && self.case.loss.is_none() {
                    ["w", "r", ""][usize::from(who % 3)]
                } else {
                    self.policy
                };
                let args = vec![
                    request,
                    lease(*ms),
                    when(*only_now),
                    policy.to_owned(),
                    self.old_ticket(*ticket),
                ];
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
                let args = vec![
                    request,
                    lease(*ms),
                    when(*only_now),
                    self.policy.to_owned(),
                    String::new(),
                ];
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
                let pairs = which.iter().flat_map(|(which, ms)| [self.pick(*which), lease(*ms)]);
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
                    alive if who % 2 == 0 => owner_of(alive[usize::from(who / 2) % alive.len()]).to_owned(),
                    _ => ["a", "ba", "c", "nobody"][usize::from(who / 2) % 4].to_owned(),
                };
                (Script::Evict, vec![owner], true)
            }
            Op::Wait(time) => {
                self.wait(time);
                return None;
            }
        };
        let step = Step {
            script,
            args,
            now_us: self.now_us,
            listened: false,
        };
        Some(Doing::Call { step, heard })
    }

    fn wait(&mut self, time: &Time) {
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
