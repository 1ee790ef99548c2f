//! A few servers, a few requests of a quorum, what is on its way between them, and what must be true of them.

use super::Cast;
use crate::model::{AtMost, Lock, client_of};
use crate::record::Script;
use fairlock::testing::{Order, Voter};
use fairlock_testing::serving;
use redis::Value;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;
use tokio::time::Instant;

const KEY: &str = "p:{a}";
/// When it begins, on the clocks of the servers.
const BEGIN_US: u64 = 3_000_000_000_000_000;
/// Leases, and the quarantine.
pub(super) const LEASE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(500);
/// So much may a call do: more than there is to do here.
const AT_MOST: usize = 100;
/// By then everybody must be through whom nothing disturbs: the longest way is a recess, after a quarantine.
const REST: usize = 20;
/// By then a hold must have all votes: after a quarantine, a wait before it places itself, and another one of the waiter.
const VOTES: usize = 8;

/// What happens next. The numbers are of a client and of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A client asks for the lock.
    Ask(usize),
    /// A server executes the client's next call.
    Execute(usize, usize),
    /// The client reads the next reply.
    Read(usize, usize),
    /// The client reads the next message.
    Hear(usize, usize),
    /// The client tells the servers its token.
    Announce(usize),
    /// The client renews its votes.
    Renew(usize),
    /// Its user leaves the hold, or the queue.
    Leave(usize),
    /// The connection ends. What was sent over it may arrive later.
    Cut(usize, usize),
    /// A server executes what arrives that late.
    Late(usize, usize),
    /// A server restarts without its data. Its connections end.
    Restart(usize),
    Connect(usize, usize),
    /// Time passes: half a lease.
    Tick,
}

#[derive(Clone, Default)]
struct Server {
    lock: Lock,
    /// Since when its clients know it, on the true clock.
    since_us: Option<u64>,
    late: Vec<Order>,
    skew_us: i64,
}

/// One client's connection to one server.
#[derive(Clone, Default)]
struct Link {
    calls: VecDeque<(Order, u64)>,
    replies: VecDeque<(Order, Value, u64)>,
    pushes: VecDeque<(String, u64)>,
    is_down: bool,
}

struct Client {
    voter: Voter,
    writes: bool,
    has_asked: bool,
    has_left: bool,
    links: Vec<Link>,
    /// The token of its hold, once it held.
    token: Option<u64>,
    /// Its user had that token.
    knows: bool,
    /// Who had its place at a majority before this client asked.
    behind: Vec<usize>,
}

pub(super) struct World {
    now_us: u64,
    begin: Instant,
    servers: Vec<Server>,
    clients: Vec<Client>,
    /// What is left of each kind of step that does harm.
    left: [usize; 4],
    cast: Cast,
}

const RESTARTS: usize = 0;
const CUTS: usize = 1;
const LEAVES: usize = 2;
const TICKS: usize = 3;

impl Client {
    fn copied(&self) -> Self {
        Self {
            voter: self.voter.copied(),
            links: self.links.clone(),
            behind: self.behind.clone(),
            ..*self
        }
    }
}

impl World {
    /// `begin`: the moment at which it begins, on the clock of the clients.
    pub(super) fn new(cast: Cast, begin: Instant) -> Self {
        fairlock::testing::seed(1);
        let servers = cast.skews_ms.iter().map(|skew| Server {
            since_us: Some(BEGIN_US - 2 * LEASE.as_micros() as u64),
            skew_us: skew * 1000,
            ..Server::default()
        });
        let client = |writes: &bool| Client {
            voter: Voter::new(cast.skews_ms.len(), *writes, LEASE, begin),
            writes: *writes,
            has_asked: false,
            has_left: false,
            links: vec![Link::default(); cast.skews_ms.len()],
            token: None,
            knows: false,
            behind: Vec::new(),
        };
        Self {
            now_us: BEGIN_US,
            begin,
            servers: servers.collect(),
            clients: cast.writes.iter().map(client).collect(),
            left: [cast.restarts, cast.cuts, cast.leaves, cast.ticks],
            cast,
        }
    }

    pub(super) fn copied(&self) -> Self {
        Self {
            servers: self.servers.clone(),
            clients: self.clients.iter().map(Client::copied).collect(),
            ..*self
        }
    }

    fn at(&self, us: u64) -> Instant {
        // A moment before the beginning is as good as the beginning.
        self.begin + Duration::from_micros(us.saturating_sub(BEGIN_US))
    }

    fn now(&self) -> Instant {
        self.at(self.now_us)
    }

    /// Of two worlds with the same number the same can become. Servers with the same clock are alike.
    pub(super) fn fingerprint(&self) -> u128 {
        let half = |salt: u64| {
            let mut servers: Vec<_> = (0..self.servers.len())
                .map(|at| self.hash_of_server(at, salt))
                .collect();
            servers.sort_unstable();
            let mut hasher = DefaultHasher::new();
            (salt, servers, self.now_us, self.left).hash(&mut hasher);
            for client in &self.clients {
                client.voter.hash_of_all().hash(&mut hasher);
                let token = client.token.filter(|_| client.knows || !client.has_left);
                (client.has_asked, client.has_left, token, client.knows).hash(&mut hasher);
                let behind = client.behind.iter().filter(|_| client.voter.waits());
                behind.for_each(|other| other.hash(&mut hasher));
            }
            u128::from(hasher.finish())
        };
        half(1) << 64 | half(2)
    }

    fn hash_of_server(&self, at: usize, salt: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        let Server {
            lock,
            since_us,
            late,
            skew_us,
        } = &self.servers[at];
        (salt, lock, since_us, late, skew_us).hash(&mut hasher);
        for client in &self.clients {
            client.voter.hash_of(at).hash(&mut hasher);
            let Link {
                calls,
                replies,
                pushes,
                is_down,
            } = &client.links[at];
            (calls, pushes, is_down).hash(&mut hasher);
            for (order, reply, sent) in replies {
                (order, format!("{reply:?}"), sent).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// What can happen next.
    pub(super) fn steps(&mut self) -> Vec<Step> {
        let mut steps = self.deliveries();
        for c in 0..self.clients.len() {
            let now = self.now();
            let client = &mut self.clients[c];
            if !client.has_asked {
                steps.push(Step::Ask(c));
            } else if !client.has_left {
                let holds = client.voter.holds(now).is_some();
                if holds || self.left[LEAVES] > 0 {
                    steps.push(Step::Leave(c));
                }
                let orders = client.voter.announcements();
                let is_new = |(at, order): &(usize, Order)| !client.links[*at].knows_of(order);
                if c < self.cast.announces && holds && orders.iter().any(is_new) {
                    steps.push(Step::Announce(c));
                }
                if self.cast.ticks > 0 && client.voter.renewals(now).iter().any(is_new) {
                    steps.push(Step::Renew(c));
                }
            }
            for at in 0..self.servers.len() {
                if self.left[CUTS] > 0 && client.has_asked && !client.links[at].is_down {
                    steps.push(Step::Cut(c, at));
                }
            }
        }
        for (at, server) in self.servers.iter().enumerate() {
            steps.extend((0..server.late.len()).map(|which| Step::Late(at, which)));
            if self.left[RESTARTS] > 0 {
                steps.push(Step::Restart(at));
            }
        }
        if self.left[TICKS] > 0 {
            steps.push(Step::Tick);
        }
        steps
    }

    /// What the network and the servers do by themselves.
    fn deliveries(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (c, client) in self.clients.iter().enumerate() {
            for (at, link) in client.links.iter().enumerate() {
                if !link.calls.is_empty() && !link.is_down {
                    steps.push(Step::Execute(c, at));
                }
                if !link.replies.is_empty() {
                    steps.push(Step::Read(c, at));
                }
                if !link.pushes.is_empty() {
                    steps.push(Step::Hear(c, at));
                }
                if link.is_down && link.replies.is_empty() {
                    steps.push(Step::Connect(c, at));
                }
            }
        }
        steps
    }

    /// Takes a step. Returns what must not be.
    pub(super) fn take(&mut self, step: Step) -> Result<(), String> {
        let now = self.now();
        match step {
            Step::Ask(c) => {
                let others = 0..self.clients.len();
                let behind = others.filter(|other| self.clients[*other].voter.is_placed());
                self.clients[c].behind = behind.collect();
                self.clients[c].has_asked = true;
            }
            Step::Execute(c, at) => {
                let (order, sent) = self.clients[c].links[at].calls.pop_front().ok_or("no call")?;
                let reply = self.execute(at, &order);
                // Nobody looks at the reply to a release. Who has left looks at that to an acquire alone.
                let is_read = match order {
                    Order::Release(_) => false,
                    Order::Acquire(..) => true,
                    _ => !self.clients[c].has_left,
                };
                if is_read {
                    self.clients[c].links[at].replies.push_back((order, reply, sent));
                }
                if is_read && self.cast.replies_at_once {
                    return self.take(Step::Read(c, at));
                }
            }
            Step::Read(c, at) => {
                let (order, reply, sent) = self.clients[c].links[at].replies.pop_front().ok_or("no reply")?;
                let sent = self.at(sent);
                let also = self.clients[c].voter.on_reply(at, &order, &reply, sent, now);
                self.send(c, also.map(|order| (at, order)));
            }
            Step::Hear(c, at) => {
                let (request, token) = self.clients[c].links[at].pushes.pop_front().ok_or("no message")?;
                self.clients[c].voter.on_push(at, &request, token, now);
            }
            Step::Announce(c) => {
                let orders = self.clients[c].voter.announcements();
                self.send_new(c, orders);
            }
            Step::Renew(c) => {
                let orders = self.clients[c].voter.renewals(now);
                self.send_new(c, orders);
            }
            Step::Leave(c) => self.leave(c),
            Step::Cut(c, at) => {
                self.left[CUTS] -= 1;
                let link = &mut self.clients[c].links[at];
                let calls = std::mem::take(&mut link.calls);
                let calls = calls.into_iter();
                let (again, late): (Vec<_>, Vec<_>) = calls.partition(|(order, _)| matches!(order, Order::Release(_)));
                (link.calls, link.is_down) = (again.into(), true);
                link.replies.clear();
                self.servers[at].late.extend(late.into_iter().map(|(order, _)| order));
            }
            Step::Late(at, which) => {
                let order = self.servers[at].late.remove(which);
                self.execute(at, &order);
            }
            Step::Restart(at) => {
                self.left[RESTARTS] -= 1;
                let server = &mut self.servers[at];
                (server.lock, server.since_us) = (Lock::default(), None);
                server.late.clear();
                for client in &mut self.clients {
                    client.links[at].is_down = true;
                }
            }
            Step::Connect(c, at) => self.connect(c, at),
            Step::Tick => {
                self.left[TICKS] = self.left[TICKS].saturating_sub(1);
                self.now_us += TICK.as_micros() as u64;
            }
        }
        self.go_on()
    }

    fn leave(&mut self, c: usize) {
        let now = self.now();
        let client = &mut self.clients[c];
        if client.voter.holds(now).is_none() {
            self.left[LEAVES] = self.left[LEAVES].saturating_sub(1);
        }
        client.has_left = true;
        for link in &mut client.links {
            link.pushes.clear();
            link.replies.retain(|(order, ..)| matches!(order, Order::Acquire(..)));
        }
        let orders = client.voter.leave(now);
        self.send(c, orders);
    }

    /// The client notices that its connection has ended, and has another one.
    fn connect(&mut self, c: usize, at: usize) {
        let since = *self.servers[at].since_us.get_or_insert(self.now_us);
        let (trusted, now) = (self.at(since + LEASE.as_micros() as u64), self.now());
        let client = &mut self.clients[c];
        let link = &mut client.links[at];
        link.is_down = false;
        link.calls.retain(|(order, _)| matches!(order, Order::Release(_)));
        client.voter.on_cut(at);
        let orders = client.voter.on_connect(at, trusted, now);
        self.send(c, orders.into_iter().map(|order| (at, order)));
    }

    fn send(&mut self, c: usize, orders: impl IntoIterator<Item = (usize, Order)>) {
        for (at, order) in orders {
            let sent = self.now_us;
            self.clients[c].links[at].calls.push_back((order, sent));
        }
    }

    fn send_new(&mut self, c: usize, mut orders: Vec<(usize, Order)>) {
        orders.retain(|(at, order)| !self.clients[c].links[*at].knows_of(order));
        self.send(c, orders);
    }

    /// A server executes a call. Its messages are on their way then.
    fn execute(&mut self, at: usize, order: &Order) -> Value {
        let lease = LEASE.as_millis().to_string();
        let number = |number: &Option<u64>| number.map_or_else(String::new, |number| number.to_string());
        let server = &mut self.servers[at];
        let now_us = self.now_us.saturating_add_signed(server.skew_us);
        let choices = &mut AtMost::new(AT_MOST);
        let lock = &mut server.lock;
        let outcome = match order {
            Order::Acquire(name, ticket) => {
                // As the client asks: a vote draws a round ticket.
                let ticket = ticket.map_or_else(|| "q".to_owned(), |ticket| ticket.to_string());
                let args = [name, &lease, "queue", "", &ticket];
                lock.call(KEY, Script::Acquire, &args, now_us, choices)
            }
            Order::Renew(None) => lock.call(KEY, Script::Renew, &[], now_us, choices),
            Order::Renew(Some(name)) => lock.call(KEY, Script::Renew, &[name, &lease], now_us, choices),
            Order::Release(name) => lock.call(KEY, Script::Release, &[name], now_us, choices),
            Order::Place(name, ticket, given_up) => {
                let args = [name, &lease, &ticket.to_string(), &number(given_up), ""];
                lock.call(KEY, Script::Place, &args, now_us, choices)
            }
            Order::Announce(name, least) => {
                let args = [name, &lease, "", "", &least.to_string()];
                lock.call(KEY, Script::Place, &args, now_us, choices)
            }
        };
        for (to, words) in &outcome.messages {
            let client = self.clients.iter_mut().find(|client| client.voter.client() == *to);
            // Without a connection nobody hears it.
            let client = client.filter(|client| !client.has_left);
            if let Some(link) = client.map(|client| &mut client.links[at]).filter(|link| !link.is_down) {
                link.pushes.extend(pushes(words));
            }
        }
        serving::reply(&outcome)
    }

    /// Every client does what it can. Then the world is judged.
    fn go_on(&mut self) -> Result<(), String> {
        let now = self.now();
        let mut begun = Vec::new();
        for c in 0..self.clients.len() {
            if !self.clients[c].has_asked {
                continue;
            }
            let orders = self.clients[c].voter.orders(now);
            self.send(c, orders);
            let client = &mut self.clients[c];
            if let Some(token) = client.voter.holds(now) {
                if client.token.replace(token).is_none() {
                    begun.push(c);
                }
                client.knows |= client.voter.is_known();
            }
            if client.voter.is_lost() && !client.has_left {
                client.has_left = true;
                if self.cast.keeps_holds() {
                    return Err(format!("client {c} lost its hold, and no majority was lost"));
                }
            }
        }
        self.judge(&begun)
    }

    /// `begun`: whose holds began now.
    fn judge(&mut self, begun: &[usize]) -> Result<(), String> {
        let now = self.now();
        let holding: Vec<_> = (0..self.clients.len())
            .filter(|c| self.clients[*c].voter.holds(now).is_some())
            .collect();
        let conflicts = |a: usize, b: usize| a != b && (self.clients[a].writes || self.clients[b].writes);
        for (a, b) in holding.iter().flat_map(|a| holding.iter().map(move |b| (*a, *b))) {
            if conflicts(a, b) {
                return Err(format!("clients {a} and {b} hold at the same time"));
            }
        }
        for &b in begun {
            for a in (0..self.clients.len()).filter(|a| conflicts(*a, b)) {
                let (former, later) = (&self.clients[a], &self.clients[b]);
                if former.knows && former.token >= later.token {
                    return Err(format!("tokens do not grow from client {a} to client {b}"));
                }
                if self.cast.keeps_places() && later.behind.contains(&a) && former.voter.waits() && !former.has_left {
                    return Err(format!(
                        "client {b} asked after client {a} had its place, and enters first"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether only time, a user or a fault can change anything.
    pub(super) fn is_at_rest(&self) -> bool {
        self.deliveries().is_empty()
    }

    /// From here on nothing disturbs anybody: everybody gets in and out again, and nobody is left.
    pub(super) fn comes_to_its_end(mut self) -> Result<(), String> {
        let rounds = if self.cast.is_calm() { 0 } else { REST };
        for round in 0..=rounds {
            self.settle()?;
            if self.clients.iter().all(|client| client.has_left || !client.has_asked) {
                return self.is_empty_in_the_end();
            }
            if round < rounds {
                self.pass_time()?;
            }
        }
        let waits = |c: &usize| self.clients[*c].has_asked && !self.clients[*c].has_left;
        let stuck: Vec<_> = (0..self.clients.len()).filter(waits).collect();
        Err(format!("nothing is on its way, and clients {stuck:?} wait for ever"))
    }

    /// From here on nothing disturbs anybody, and nobody leaves: a hold gets the votes of all servers, so that the next loss of
    /// one of them ends no hold.
    pub(super) fn comes_to_all_votes(mut self) -> Result<(), String> {
        let holds = |client: &Client| client.has_asked && !client.has_left && client.token.is_some();
        if !self.clients.iter().any(holds) {
            return Ok(());
        }
        for _ in 0..VOTES {
            self.pass_time()?;
            while let Some(step) = self.deliveries().first().copied() {
                self.take(step)?;
            }
        }
        let now = self.now();
        for (c, client) in self.clients.iter().enumerate().filter(|(_, client)| holds(client)) {
            let votes = client.voter.votes(now);
            if votes.len() < self.servers.len() {
                return Err(format!("client {c} holds, and has the votes of servers {votes:?} only"));
            }
        }
        Ok(())
    }

    /// Everything that is on its way arrives, and who holds leaves.
    fn settle(&mut self) -> Result<(), String> {
        loop {
            let now = self.now();
            let holding = (0..self.clients.len()).find(|c| {
                let client = &mut self.clients[*c];
                !client.has_left && client.voter.holds(now).is_some()
            });
            let step = self.deliveries().first().copied().or(holding.map(Step::Leave));
            match step {
                Some(step) => self.take(step)?,
                None => return Ok(()),
            }
        }
    }

    fn pass_time(&mut self) -> Result<(), String> {
        self.take(Step::Tick)?;
        for c in 0..self.clients.len() {
            if self.clients[c].has_asked {
                self.take(Step::Renew(c))?;
            }
        }
        // Somebody looks after the dead, as whoever waits does.
        for at in 0..self.servers.len() {
            self.execute(at, &Order::Renew(None));
        }
        Ok(())
    }

    fn is_empty_in_the_end(&mut self) -> Result<(), String> {
        // What came late is gone by then.
        if !self.cast.is_calm() {
            for _ in 0..4 {
                self.settle()?;
                self.pass_time()?;
            }
        }
        match self.servers.iter().position(|server| !server.lock.is_quiet()) {
            None => Ok(()),
            Some(at) => {
                let left: Vec<_> = self.servers[at].lock.alive().collect();
                Err(format!("everybody has left, and {left:?} stand at server {at}"))
            }
        }
    }
}

impl Link {
    /// Whether such a call is on its way already.
    fn knows_of(&self, order: &Order) -> bool {
        let is_same = |call: &Order| call == order;
        self.calls.iter().any(|(call, _)| is_same(call)) || self.replies.iter().any(|(call, ..)| is_same(call))
    }
}

/// The grants in the words of a message.
fn pushes(words: &str) -> Vec<(String, u64)> {
    let words = words.split('\n').next().unwrap_or_default();
    let (mut token, mut grants) = (0, Vec::new());
    for word in words.split(' ') {
        match word.parse() {
            Ok(number) => token = number,
            Err(_) => {
                debug_assert!(!client_of(word).is_empty());
                grants.push((word.to_owned(), token));
            }
        }
    }
    grants
}
