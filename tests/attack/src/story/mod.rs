//! Random stories of one lock: what is asked, when, and what is taken away.
//!
//! A [`Case`] is a list of small numbers, so that proptest can shrink it. What they mean is decided by a [`Story`] on the
//! way, which knows who holds and waits, and which deadline is the nearest.
//!
//! A story in which something is lost has four parts. (1) It goes on as it was for some calls; nothing is judged but that
//! scripts do not fail, and that whoever was interrupted is told so. (2) Everybody goes on as `PROTOCOL.md` says, for one
//! lease: they renew, ask again, release what they lost. (3) Then the lock is as if nothing had happened: what `status`
//! shows is what everybody believes, and every further call is judged. (4) All leave, and probes enter.

mod asking;
mod judging;

use crate::clients::Clients;
use crate::lua_world::{BEGIN_US, Limits, Seen, Step};
use crate::model::{Lock, client_of, named_owner, weight_of, writes};
use crate::record::Script;
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
    pub ops: Vec<(Op, Around)>,
}

/// Who hears what one call publishes.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// Somebody listens to events.
    pub listened: bool,
    /// A bit for each client that is deaf, of [`CLIENTS`]; the next two, both: the server was a replica once; the last bit:
    /// nothing can be published.
    pub deaf: u8,
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
        permits: Permits,
        /// Of a quarantine: of [`RESTS_MS`]; 0: there is none.
        rest: u8,
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
    /// A vote is put into a place: which ticket, token and counter its call names, see [`Story::place`].
    Place {
        which: u8,
        lease: u8,
        ticket: u8,
        given_up: u8,
        least: u8,
    },
    Wait(Time),
}

/// What matters to a bounded lock, and to a bounded queue.
#[derive(Clone, Copy, Debug)]
pub struct Permits {
    pub weight: u8,
    pub limit: u8,
    /// At most so many in the queue.
    pub most: u8,
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

/// No ticket, but the token of the read hold that upgrades: the last one, the phase's first, and one of a former phase.
const UPGRADES: std::ops::RangeInclusive<u8> = 12..=14;

/// No ticket yet, and a new one that other servers draw too.
const VOTE: u8 = 15;

/// Of stories in which nothing is lost.
const LEASES_MS: [u64; 6] = [1_000, 1_000, 400, 5_000, 100_000, 1];

/// Whatever is lost is found out within the longest of these.
const LEASES_MS_OF_LOSSES: [u64; 6] = [LONGEST_MS, LONGEST_MS, 400, 900, LONGEST_MS, 1];

const LONGEST_MS: u64 = 1_000;

const RESTS_MS: [u64; 3] = [700, 1, 4_000];

/// Weights of permits; the limits of a bounded lock, mostly the first one.
const WEIGHTS: [u64; 6] = [1, 1, 2, 2, 3, 6];

const BOUNDS: [u64; 8] = [4, 4, 4, 4, 4, 1, 3, 7];

/// Each policy, mostly first come, first served; the last one is a bounded lock's.
const POLICIES: [&str; 9] = ["", "", "", "", "w", "r", "n4", "n4", "n4"];

fn ops(number: std::ops::Range<usize>) -> impl Strategy<Value = Vec<(Op, Around)>> {
    let deaf = prop_oneof![4 => Just(0), 1 => any::<u8>().prop_map(|deaf| deaf & 0x7f), 1 => any::<u8>()];
    let around = (any::<bool>(), deaf).prop_map(|(listened, deaf)| Around { listened, deaf });
    proptest::collection::vec((op(), around), number)
}

/// `intact`: nothing is lost.
pub fn case(intact: bool) -> impl Strategy<Value = Case> {
    let loss = prop_oneof![3 => Just(None), u32::from(!intact) => (0..60_usize, 0..16_usize).prop_map(Some)];
    let policy = 0..POLICIES.len() as u8;
    (0..LIMITS.len(), policy, loss, 0..3_u8, ops(1..120)).prop_map(|(limits, policy, loss, cast, ops)| Case {
        limits,
        policy,
        loss,
        cast,
        ops,
    })
}

/// Short ones, to lose each thing at each point of.
pub fn short_case() -> impl Strategy<Value = Case> {
    (0..POLICIES.len() as u8, 0..3_u8, ops(6..24)).prop_map(|(policy, cast, ops)| Case {
        limits: 0,
        policy,
        loss: None,
        cast,
        ops,
    })
}

fn op() -> impl Strategy<Value = Op> {
    let rarely = |one_in: u32| prop_oneof![one_in - 1 => Just(false), 1 => Just(true)];
    let ticket = prop_oneof![16 => Just(0), 4 => 1..15_u8, 1 => Just(VOTE)];
    let permits = (0..WEIGHTS.len() as u8, 0..BOUNDS.len() as u8, any::<u8>())
        .prop_map(|(weight, limit, most)| Permits { weight, limit, most });
    let rest = prop_oneof![20 => Just(0), 1 => 1..=RESTS_MS.len() as u8];
    let ask = (
        0..14_u8,
        any::<bool>(),
        rarely(5),
        0..9_u8,
        ticket,
        rarely(40),
        permits,
        rest,
    )
        .prop_map(
            |(who, write, only_now, lease, ticket, other_policy, permits, rest)| Op::Ask {
                who,
                write,
                only_now,
                lease,
                ticket,
                other_policy,
                permits,
                rest,
            },
        );
    let again =
        (any::<u8>(), rarely(5), 0..9_u8).prop_map(|(which, only_now, lease)| Op::Again { which, only_now, lease });
    prop_oneof![
        40 => ask,
        8 => again,
        10 => any::<u16>().prop_map(Op::Late),
        20 => proptest::collection::vec(any::<u8>(), 1..4).prop_map(Op::Release),
        20 => any::<u8>().prop_map(Op::Go),
        12 => proptest::collection::vec((any::<u8>(), 0..9_u8), 0..5).prop_map(Op::Renew),
        6 => (any::<u8>(), 0..6_u8).prop_map(|(which, lease)| Op::Downgrade { which, lease }),
        3 => any::<u8>().prop_map(Op::Evict),
        10 => place(),
        20 => time().prop_map(Op::Wait),
    ]
}

fn place() -> impl Strategy<Value = Op> {
    let least = prop_oneof![4 => Just(0), 1 => 1..4_u8];
    (any::<u8>(), 0..6_u8, any::<u8>(), 0..8_u8, least).prop_map(|(which, lease, ticket, given_up, least)| Op::Place {
        which,
        lease,
        ticket,
        given_up,
        least,
    })
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

/// Those who may be deaf.
const CLIENTS: [&str; 5] = ["1", "2", "1f", "3", "8"];

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
    /// Votes that gave their hold up, and quarantines that began, where somebody listened.
    pub given_up: u64,
    pub quarantines: u64,
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
            policy: POLICIES[usize::from(case.policy)],
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
            (_, Some((op, around))) => {
                self.at += 1;
                if let Some(mut doing) = self.concrete(op) {
                    if let Doing::Call { step, .. } = &mut doing {
                        let deaf = (0..CLIENTS.len()).filter(|client| around.deaf >> client & 1 == 1);
                        step.hearing.deaf = deaf.map(|client| CLIENTS[client].to_owned()).collect();
                        step.hearing.promoted = around.deaf >> 5 & 3 == 3;
                        step.hearing.refused = around.deaf >> 7 == 1;
                        step.hearing.most_looked_at = LIMITS[self.case.limits].expiries;
                        step.listened = around.listened;
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
        let forgotten = self.clients.forgotten();
        let lost = self.clients.lost();
        if !lost.is_empty() {
            self.call(Script::Release, lost);
        }
        for (request, ticket) in forgotten {
            let (client, owner) = (client_of(&request).to_owned(), named_owner(&request).map(str::to_owned));
            // It asks for as many permits as before.
            let third = owner.or_else(|| weight_in(&request));
            let name = self.new_name(writes(&request), &client, third.as_deref());
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

    fn leave(&mut self) {
        let all = self.lock.alive().map(str::to_owned).collect::<Vec<_>>();
        if all.is_empty() {
            self.part = Part::Probes(0);
        } else {
            self.call(Script::Release, all);
        }
    }
}

/// The third part of a request's name that asks for several permits.
fn weight_in(request: &str) -> Option<String> {
    let weight = weight_of(request.get(1..)?);
    (weight > 1).then(|| format!("*{weight}"))
}
