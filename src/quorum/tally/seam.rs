//! The seam for an explorer: one request of a quorum, whose calls are made by whoever drives it, in any order. It decides as
//! the drivers in `ballot.rs` do, by the same tally and the same claims, and it can be copied.

use super::*;
use crate::protocol::key::Lock;
use crate::protocol::name::RequestName;
use crate::protocol::reply::{Acquired, read_renewed};
use crate::state::claim::Claim;
use crate::state::request::Heard;
use crate::types::mode::{Admission, Mode};
use crate::types::owner::ClientId;
use redis::Value;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What a client asks of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The name of the request, and its old ticket.
    Acquire(String, Option<u64>),
    /// The name, the ticket, and the token that the vote gives up.
    Place(String, u64, Option<u64>),
    /// The name, and what the counter must reach.
    Announce(String, u64),
    /// The name; `None`: the client only wants an answer.
    Renew(Option<String>),
    /// The name.
    Release(String),
}

/// Which call of a driver is under way.
#[derive(Clone, Copy, Debug, Hash)]
enum Doing {
    Nothing,
    Asks { ticket: Option<u64>, asked: Instant },
    Places { given_up: Option<u64> },
    Knocks,
}

#[derive(Clone, Debug)]
struct Seat {
    doing: Doing,
    /// See [`Tally::weigh`].
    trusted: Option<Instant>,
    /// The server knows the token.
    told: bool,
}

/// One request of one client. Servers have numbers from 0 on.
#[derive(Debug)]
pub struct Voter {
    tally: Tally,
    seats: Vec<Seat>,
    client: ClientId,
    mode: Mode,
    lock: Arc<Lock>,
    lease: Duration,
    /// The number of the next name.
    number: u64,
}

impl Debug for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tally")
            .field("ticket", &self.ticket)
            .finish_non_exhaustive()
    }
}

impl Vote {
    /// A vote of its own that knows the same.
    fn copied(&self) -> Self {
        debug_assert!(self.refused.is_none(), "an error cannot be copied");
        let copied = |request: &Arc<Request>| {
            let claim = request.claim().clone();
            let (lock, name) = (Arc::clone(&request.lock), request.name.clone());
            Arc::new(Request::new(request.number, name, lock, request.admission, claim))
        };
        Self {
            request: self.request.as_ref().map(copied),
            asks: self.asks.as_ref().map(copied),
            refused: None,
            ..*self
        }
    }

    /// All that decides what becomes of it. `is_placed`: its request has a ticket, so the first number is of no account.
    fn hash_into(&self, is_placed: bool, hasher: &mut impl Hasher) {
        for request in [&self.request, &self.asks] {
            if let Some(request) = request {
                request.name.hash(hasher);
                request.claim().hash_into(hasher);
            }
            request.is_some().hash(hasher);
        }
        let number = self.number.filter(|_| !is_placed);
        (self.asked, self.asked_at, number, self.number.is_some(), self.placing).hash(hasher);
        (self.waited && !is_placed).hash(hasher);
        (self.is_void, self.renounced, self.settled, self.token, self.busy).hash(hasher);
    }
}

impl Voter {
    /// A request that was not sent yet. `trusted`: since when no server forgets a hold.
    pub fn new(servers: usize, writes: bool, lease: Duration, trusted: Instant) -> Self {
        let seat = Seat {
            doing: Doing::Nothing,
            trusted: Some(trusted),
            told: false,
        };
        Self {
            tally: Tally::new(servers, lease, Duration::MAX),
            seats: vec![seat; servers],
            client: ClientId::new(),
            mode: if writes { Mode::Write } else { Mode::Read },
            lock: Arc::new(Lock::new("p", "a".into())),
            lease,
            number: 1,
        }
    }

    /// The beginning of its requests' names.
    pub fn client(&self) -> String {
        self.client.to_string()
    }

    /// Another one that knows the same.
    pub fn copied(&self) -> Self {
        Self {
            tally: Tally {
                votes: self.tally.votes.iter().map(Vote::copied).collect(),
                phase: match &self.tally.phase {
                    Phase::Asks => Phase::Asks,
                    Phase::Holds { token, since, until } => Phase::Holds {
                        token: *token,
                        since: *since,
                        until: *until,
                    },
                    Phase::Over(End::Lost(reason)) => Phase::Over(End::Lost(*reason)),
                    Phase::Over(_) => Phase::Over(End::Left),
                },
                recess: self.tally.recess.clone(),
                ..self.tally
            },
            seats: self.seats.clone(),
            lock: Arc::clone(&self.lock),
            ..*self
        }
    }

    /// All that it knows of one server.
    pub fn hash_of(&self, at: usize) -> u64 {
        let mut hasher = DefaultHasher::new();
        let vote = &self.tally.votes[at];
        if let (Phase::Over(_), Some(request)) = (&self.tally.phase, &vote.asks) {
            request.name.hash(&mut hasher);
        }
        if matches!(self.tally.phase, Phase::Over(_)) {
            return hasher.finish();
        }
        vote.hash_into(self.tally.ticket.is_some(), &mut hasher);
        let Seat { doing, trusted, told } = &self.seats[at];
        (doing, trusted, told).hash(&mut hasher);
        let recess = self.tally.recess.as_ref();
        recess.is_some_and(|answered| answered.contains(&at)).hash(&mut hasher);
        hasher.finish()
    }

    /// All that it knows besides.
    pub fn hash_of_all(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let phase = match &self.tally.phase {
            Phase::Asks => (0, 0, None),
            Phase::Holds { token, since, .. } => (1, *token, Some(*since)),
            Phase::Over(_) => (2, 0, None),
        };
        phase.hash(&mut hasher);
        if !matches!(self.tally.phase, Phase::Over(_)) {
            let Tally { ticket, asks_since, .. } = &self.tally;
            (ticket, asks_since, self.number, self.tally.recess.is_some()).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The token of the hold, if it holds and has not lost that.
    pub fn holds(&mut self, now: Instant) -> Option<u64> {
        self.weigh(now);
        let Phase::Holds { token, .. } = self.tally.phase else {
            return None;
        };
        self.tally.held_until(now).map(|_| token)
    }

    /// The servers that keep its hold.
    pub fn votes(&self, now: Instant) -> Vec<usize> {
        let votes = self.tally.votes.iter().enumerate();
        let held = votes.filter(|(_, vote)| vote.held_until(now).is_some());
        held.map(|(at, _)| at).collect()
    }

    /// Whether it still waits for a majority.
    pub fn waits(&self) -> bool {
        matches!(self.tally.phase, Phase::Asks)
    }

    /// Whether the hold was lost, and not left.
    pub fn is_lost(&self) -> bool {
        matches!(self.tally.phase, Phase::Over(End::Lost(_)))
    }

    /// Whether a majority has acknowledged the place of a request that waits.
    pub fn is_placed(&self) -> bool {
        let settled = self.tally.votes.iter().filter(|vote| vote.settled.is_some());
        self.waits() && settled.count() >= self.tally.majority()
    }

    /// Whether its user has the token: a majority that keeps the hold knows it.
    pub fn is_known(&self) -> bool {
        let told = self.seats.iter().filter(|seat| seat.told);
        rules::is_known(told.count(), self.tally.majority())
    }

    fn weigh(&mut self, now: Instant) {
        let seats = &self.seats;
        self.tally.weigh(|| now, |at| seats[at].trusted);
        if let Some(ticket) = self.tally.ticket_to_take() {
            self.tally.take_ticket(ticket, now);
        }
    }

    /// What it sends now: see `vote` in `ballot.rs`. Repeated until nothing is left.
    pub fn orders(&mut self, now: Instant) -> Vec<(usize, Order)> {
        let mut orders = Vec::new();
        loop {
            self.weigh(now);
            if matches!(self.tally.phase, Phase::Over(End::Lost(_))) {
                orders.extend(self.leave(now));
            }
            let before = orders.len();
            for at in 0..self.seats.len() {
                self.drive(at, now, &mut orders);
            }
            if orders.len() == before {
                return orders;
            }
        }
    }

    fn drive(&mut self, at: usize, now: Instant, orders: &mut Vec<(usize, Order)>) {
        let Seat { doing, trusted, .. } = self.seats[at];
        if !matches!(doing, Doing::Nothing) || trusted.is_none() {
            return;
        }
        match self.tally.step(at, now, trusted) {
            Step::Leave => {}
            Step::Wait(_) => {
                let request = self.tally.votes[at].request.clone();
                if let Some(request) = request.filter(|request| request.claim().doubt_unproven(now)) {
                    orders.push((at, Order::Renew(Some(request.name.clone()))));
                }
            }
            Step::Place(request, ticket, given_up) => {
                self.seats[at].doing = Doing::Places { given_up };
                orders.push((at, Order::Place(request.name.clone(), ticket, given_up)));
            }
            Step::AskAgain => {
                if let Some(former) = self.tally.take(at) {
                    orders.push((at, Order::Release(former.name.clone())));
                }
                self.seats[at].told = false;
                if self.tally.is_in_recess() {
                    self.seats[at].doing = Doing::Knocks;
                    return orders.push((at, Order::Renew(None)));
                }
                orders.push((at, self.ask(at, now)));
            }
        }
    }

    /// See `Ballot::attempt`.
    fn ask(&mut self, at: usize, now: Instant) -> Order {
        let ticket = self.tally.old_ticket(at);
        let number = match self.tally.is_first(at) {
            true => 1,
            false => {
                self.number += 1;
                self.number
            }
        };
        let mut claim = Claim::new(self.lease, self.tally.limit_left(now), now);
        claim.is_vote = true;
        let name = RequestName::write(self.mode, self.client, number, None);
        let lock = Arc::clone(&self.lock);
        let request = Arc::new(Request::new(number, name.clone(), lock, Admission::FIFO, claim));
        self.tally.on_ask(at, &request);
        self.seats[at].doing = Doing::Asks { ticket, asked: now };
        Order::Acquire(name, ticket)
    }

    /// A reply to a call that was sent at that time. Returns what it sends for that alone. A reply that cannot be read, or a
    /// refusal, is none: then the request waits for ever, which an explorer finds.
    pub fn on_reply(&mut self, at: usize, order: &Order, reply: &Value, sent: Instant, now: Instant) -> Option<Order> {
        let standing = |name: &String| {
            read_renewed(reply, [name.as_str()].into_iter())
                .ok()?
                .0
                .first()
                .copied()
        };
        match order {
            Order::Acquire(name, _) => {
                let Doing::Asks { ticket, asked } = self.seats[at].doing else {
                    return None;
                };
                let request = self.tally.votes[at].asks.clone()?;
                let (Acquired::Answered(answer), _) = Acquired::read(reply, false).ok()? else {
                    return None;
                };
                self.seats[at].doing = Doing::Nothing;
                request.claim().on_reply(sent, answer);
                if matches!(self.tally.phase, Phase::Over(_)) {
                    self.tally.votes[at].asks = None;
                    return Some(Order::Release(name.clone()));
                }
                self.tally.on_answer(at, request, ticket, asked, now);
            }
            Order::Place(name, ticket, _) => {
                let Doing::Places { given_up } = self.seats[at].doing else {
                    return None;
                };
                let standing = standing(name)?;
                self.seats[at].doing = Doing::Nothing;
                if let Some(request) = self.request(at, name) {
                    request.on_renewal(sent, now, self.lease, standing);
                    self.tally.on_place(at, *ticket, given_up, standing, now);
                }
            }
            Order::Announce(name, _) => {
                let (standing, request) = (standing(name)?, self.request(at, name)?);
                request.on_renewal(sent, now, self.lease, standing);
                let is_held = request.claim().held_until(now).is_some();
                self.seats[at].told |= is_held && matches!(standing, Standing::Holds { .. });
            }
            Order::Renew(Some(name)) => {
                let standing = standing(name)?;
                self.request(at, name)?.on_renewal(sent, now, self.lease, standing);
            }
            Order::Renew(None) => {
                if let Doing::Knocks = self.seats[at].doing {
                    self.seats[at].doing = Doing::Nothing;
                    self.tally.on_knock(at, now);
                    // This one waits for the others.
                    if self.tally.is_in_recess() {
                        self.seats[at].doing = Doing::Knocks;
                    }
                    self.come_back();
                }
            }
            Order::Release(_) => {}
        }
        None
    }

    /// After a recess all who wait for its end ask.
    fn come_back(&mut self) {
        if !self.tally.is_in_recess() {
            for seat in &mut self.seats {
                if let Doing::Knocks = seat.doing {
                    seat.doing = Doing::Nothing;
                }
            }
        }
    }

    fn request(&self, at: usize, name: &str) -> Option<Arc<Request>> {
        let request = self.tally.votes[at].request.clone();
        request.filter(|request| request.name == name)
    }

    /// A message that grants one of its requests.
    pub fn on_push(&mut self, at: usize, name: &str, token: u64, now: Instant) {
        let vote = &self.tally.votes[at];
        let requests = [&vote.request, &vote.asks].into_iter().flatten();
        for request in requests.filter(|request| request.name == name) {
            request.on_grant(Heard { at: now, since: None }, token);
        }
    }

    /// The connection to a server ends, and what was under way there with it. The client does not know whether the server
    /// executed that.
    pub fn on_cut(&mut self, at: usize) {
        self.seats[at].trusted = None;
        if let Doing::Places { given_up } = self.seats[at].doing {
            self.seats[at].doing = Doing::Nothing;
            match given_up {
                Some(_) => self.tally.is_void(at),
                None => self.tally.on_unplaced(at),
            }
        }
    }

    /// A new connection, to a server that forgets no hold from that time on. Returns what was not answered, and a renewal.
    pub fn on_connect(&mut self, at: usize, trusted: Instant, now: Instant) -> Vec<Order> {
        self.seats[at].trusted = Some(trusted);
        let mut orders = Vec::new();
        let vote = &self.tally.votes[at];
        match (self.seats[at].doing, &vote.asks) {
            (Doing::Asks { ticket, .. }, Some(request)) => orders.push(Order::Acquire(request.name.clone(), ticket)),
            (Doing::Knocks, _) => orders.push(Order::Renew(None)),
            _ => {}
        }
        if let Some(request) = &vote.request {
            let mut claim = request.claim();
            claim.doubt(now);
            claim.doubt_hold(now);
            let renews = claim.lease_to_renew(now).is_some();
            drop(claim);
            orders.extend(renews.then(|| Order::Renew(Some(request.name.clone()))));
        }
        orders
    }

    /// The renewals of all votes, as the watchdog makes them.
    pub fn renewals(&mut self, now: Instant) -> Vec<(usize, Order)> {
        let votes = self.tally.votes.iter().enumerate();
        let connected = votes.filter(|(at, _)| self.seats[*at].trusted.is_some());
        let renewal = |(at, vote): (usize, &Vote)| {
            let request = vote.request.as_ref()?;
            request.claim().lease_to_renew(now)?;
            Some((at, Order::Renew(Some(request.name.clone()))))
        };
        connected.filter_map(renewal).collect()
    }

    /// Tells the token to the servers that keep the hold: see `QuorumGuard::announce`.
    pub fn announcements(&self) -> Vec<(usize, Order)> {
        let Phase::Holds { token, .. } = self.tally.phase else {
            return Vec::new();
        };
        let votes = self.tally.votes.iter().enumerate();
        let untold = votes.filter(|(at, vote)| vote.token.is_some() && !self.seats[*at].told);
        let order =
            |(at, vote): (usize, &Vote)| Some((at, Order::Announce(vote.request.as_ref()?.name.clone(), token)));
        untold.filter_map(order).collect()
    }

    /// The user leaves, whether it holds or waits: see `Ballot::close`.
    pub fn leave(&mut self, now: Instant) -> Vec<(usize, Order)> {
        if !matches!(self.tally.phase, Phase::Over(_)) {
            self.tally.phase = Phase::Over(End::Left);
        }
        self.tally.ticket = None;
        let mut orders = Vec::new();
        for at in 0..self.seats.len() {
            if let Some(request) = self.tally.take(at) {
                drop(request.end_hold(now));
                orders.push((at, Order::Release(request.name.clone())));
            }
            // What was asked for without an answer is released when the answer comes.
            if !matches!(self.seats[at].doing, Doing::Asks { .. }) {
                self.seats[at].doing = Doing::Nothing;
            }
        }
        orders
    }
}
