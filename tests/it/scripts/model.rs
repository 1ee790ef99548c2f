//! Thousands of random steps of the scripts, in step with a model of the lock that fits on a page.
//!
//! FAIRLOCK_SEED=n repeats a run, FAIRLOCK_STEPS=n makes it longer.

use crate::lua::{Ask, Got, Lock, ask, named_owner, owner_of, writes};
use crate::server::Server;
use fairlock_support::random::Rng;
use std::collections::BTreeMap;

fn number(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().expect("a number"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Expect {
    Granted,
    Queued,
    Busy,
    Conflict,
    OwnerWaits,
}

#[derive(Debug)]
struct Waiter {
    /// Upgrades first, then by policy.
    band: i8,
    ticket: u64,
    request: String,
}

/// What the lock should be. The numbers are the server's: the model only says which are new.
#[derive(Debug, Default)]
struct Model {
    policy: &'static str,
    holding: Vec<String>,
    queue: Vec<Waiter>,
    /// In this step a token was drawn: for readers that waited or for an upgrade, while the phase goes on.
    drawn: bool,
    /// In this step a phase began, and nothing was drawn since.
    begun: bool,
    token: u64,
    first: u64,
    greatest: u64,
}

impl Model {
    fn inside(&self, owner: &str) -> bool {
        self.holding.iter().any(|r| owner_of(r) == owner)
    }

    fn fits(&self, request: &str) -> bool {
        let mut others = self.holding.iter().filter(|r| owner_of(r) != owner_of(request));
        if writes(request) {
            others.next().is_none()
        } else {
            !others.any(|r| writes(r))
        }
    }

    fn enter(&mut self, request: &str) {
        if self.holding.is_empty() {
            self.begun = true;
        } else if writes(request) && !self.holding.iter().any(|r| writes(r)) {
            self.drawn = true;
        }
        self.holding.push(request.to_owned());
    }

    /// Whoever is at the head enters, for as long as it can.
    fn admit(&mut self) {
        let was_inside = !self.holding.is_empty();
        while self.queue.first().is_some_and(|head| self.fits(&head.request)) {
            let head = self.queue.remove(0);
            // It was told a number while it waited, so its token must be greater.
            self.drawn |= was_inside;
            self.enter(&head.request);
        }
    }

    fn acquire(&mut self, request: &str, only_now: bool) -> Expect {
        if self.holding.iter().any(|r| r == request) {
            return Expect::Granted;
        }
        if self.queue.iter().any(|w| w.request == request) {
            return Expect::Queued;
        }
        let owner = owner_of(request);
        let inside = self.inside(owner);
        let upgrade = inside && writes(request) && !self.holding.iter().any(|r| writes(r));
        let last = (self.policy == "w" && !writes(request)) || (self.policy == "r" && writes(request));
        let band = if upgrade { -1 } else { i8::from(last) };
        let first = self.queue.first().is_none_or(|head| band < head.band);
        let waits = named_owner(request).is_some() && self.queue.iter().any(|w| owner_of(&w.request) == owner);
        if self.fits(request) && (inside || first) {
            self.enter(request);
            return Expect::Granted;
        }
        if waits {
            return Expect::OwnerWaits;
        }
        if upgrade && self.queue.iter().any(|w| w.band == -1) {
            return Expect::Conflict;
        }
        if only_now {
            return Expect::Busy;
        }
        let waiter = Waiter {
            band,
            ticket: u64::MAX,
            request: request.to_owned(),
        };
        let place = self
            .queue
            .partition_point(|w| (w.band, w.ticket) <= (band, waiter.ticket));
        self.queue.insert(place, waiter);
        Expect::Queued
    }

    /// 2 it held, 1 it waited, 0 unknown.
    fn leave(&mut self, request: &str) -> i64 {
        if let Some(n) = self.holding.iter().position(|r| r == request) {
            self.holding.remove(n);
            let owner = owner_of(request);
            if !self.inside(owner) {
                // An upgrade ends with its read hold.
                self.queue.retain(|w| w.band != -1 || owner_of(&w.request) != owner);
            }
            return 2;
        }
        if let Some(n) = self.queue.iter().position(|w| w.request == request) {
            self.queue.remove(n);
            return 1;
        }
        0
    }

    fn live(&self) -> Vec<&str> {
        self.holding
            .iter()
            .chain(self.queue.iter().map(|w| &w.request))
            .map(String::as_str)
            .collect()
    }
}

/// A lock and its model, side by side.
struct Pair {
    model: Model,
    lock: Lock,
    numbers: u32,
    gone: Vec<String>,
    /// How often acquire answered what.
    answers: BTreeMap<Expect, u32>,
}

impl Pair {
    async fn new(server: &Server, policy: &'static str) -> Self {
        let lock = Lock::new(server, &format!("policy {policy}")).await;
        let model = Model {
            policy,
            ..Model::default()
        };
        Self {
            model,
            lock,
            numbers: 0,
            gone: Vec::new(),
            answers: BTreeMap::new(),
        }
    }

    async fn step(&mut self, dice: &mut Rng) -> String {
        let live: Vec<String> = self.model.live().into_iter().map(str::to_owned).collect();
        let live: Vec<&str> = live.iter().map(String::as_str).collect();
        // Between an idle lock and a crowd.
        let what = match dice.usize(..if live.len() > 16 { 12 } else { 30 }) {
            0..6 => self.release(dice, &live).await,
            6..8 => self.renew(dice, &live).await,
            8..10 => self.expire(dice, &live).await,
            10..12 if !live.is_empty() => {
                let again = dice.choice(live.iter().copied()).expect("not empty").to_owned();
                self.acquire(&again, dice.usize(..2) == 0).await
            }
            _ => {
                let request = self.new_request(dice);
                self.acquire(&request, dice.usize(..5) == 0).await
            }
        };
        self.compare(&what).await;
        what
    }

    fn new_request(&mut self, dice: &mut Rng) -> String {
        self.numbers += 1;
        let mode = if dice.usize(..3) == 0 { 'w' } else { 'r' };
        let request = format!("{mode}{}:{}", dice.usize(..3), self.numbers);
        let inside: Vec<_> = self.model.holding.iter().filter_map(|r| named_owner(r)).collect();
        match (dice.usize(..8), dice.choice(inside.iter().copied())) {
            (0..3, _) => request,
            // Reentry and upgrades are rare otherwise.
            (3..6, Some(owner)) => format!("{request}:{owner}"),
            (owner, _) => format!("{request}:owner{owner}"),
        }
    }

    async fn acquire(&mut self, request: &str, only_now: bool) -> String {
        let what = format!("acquire {request} {}", if only_now { "try" } else { "" });
        let expected = self.model.acquire(request, only_now);
        *self.answers.entry(expected).or_default() += 1;
        let ask = Ask {
            only_now,
            policy: self.model.policy,
            ..ask(request)
        };
        let (got, ..) = self.lock.ask(ask).await;
        let same = match got {
            Got::Granted(token) => {
                let now = self.lock.state().await.packed.token;
                assert_eq!(token, now, "{what}: the token of all who are inside");
                Expect::Granted
            }
            Got::Queued(ticket) => {
                let waiter = self.model.queue.iter_mut().find(|w| w.request == request);
                let waiter = waiter.unwrap_or_else(|| panic!("{what}: queued"));
                if waiter.ticket == u64::MAX {
                    assert!(ticket > self.model.greatest, "{what}: ticket {ticket}");
                    (waiter.ticket, self.model.greatest) = (ticket, ticket);
                }
                assert_eq!(waiter.ticket, ticket, "{what}: the same ticket");
                Expect::Queued
            }
            Got::Busy => Expect::Busy,
            Got::Conflict => Expect::Conflict,
            Got::OwnerWaits => Expect::OwnerWaits,
            Got::OtherPolicy(code) => panic!("{what}: policy {code}"),
        };
        assert_eq!(same, expected, "{what}");
        what
    }

    /// Of some that are there, and sometimes of one that is not any more.
    async fn release(&mut self, dice: &mut Rng, live: &[&str]) -> String {
        let mut requests = Vec::new();
        for _ in 0..=dice.usize(..2) {
            let gone: Vec<_> = self.gone.iter().map(String::as_str).collect();
            let from = if dice.usize(..6) == 0 { &gone[..] } else { live };
            requests.extend(dice.choice(from.iter().copied()).map(str::to_owned));
        }
        let requests: Vec<_> = requests.iter().map(String::as_str).collect();
        if requests.is_empty() {
            return "nothing to release".to_owned();
        }
        let expected: Vec<_> = requests.iter().map(|r| self.model.leave(r)).collect();
        self.model.admit();
        self.gone.extend(requests.iter().map(|r| (*r).to_owned()));
        let what = format!("release {requests:?}");
        assert_eq!(self.lock.release(&requests).await.1, expected, "{what}");
        what
    }

    async fn renew(&mut self, dice: &mut Rng, live: &[&str]) -> String {
        let gone: Vec<_> = self.gone.iter().map(String::as_str).collect();
        let requests: Vec<_> = dice
            .choice(live.iter().copied())
            .into_iter()
            .chain(dice.choice(gone.iter().copied()))
            .collect();
        let what = format!("renew {requests:?}");
        let (_, standings) = self.lock.renew(&requests).await;
        for (request, standing) in requests.iter().zip(standings) {
            let waits = self.model.queue.iter().any(|w| w.request == *request);
            let holds = self.model.holding.iter().any(|r| r == request);
            let expected = match holds {
                true => self.model.token as i64,
                false => -i64::from(!waits),
            };
            assert_eq!(standing, expected, "{what}");
        }
        what
    }

    /// Some die. One of them may come late, but before anybody took over: then it still counts.
    async fn expire(&mut self, dice: &mut Rng, live: &[&str]) -> String {
        let mut dead: Vec<&str> = live.iter().copied().filter(|_| dice.usize(..5) == 0).collect();
        let what = format!("dead: {dead:?}");
        self.lock.die(&dead).await;
        let late = dice.choice(dead.iter().copied());
        match (dice.usize(..3), late) {
            (0, Some(late)) => {
                dead.retain(|r| *r != late);
                self.lock.renew(&[late]).await;
            }
            (1, Some(late)) => {
                let status = self.lock.release(&[late]).await.1;
                assert_eq!(status, [self.model.leave(late)], "{what}, {late} releases");
            }
            _ => {}
        }
        for request in &dead {
            self.model.leave(request);
        }
        self.model.admit();
        self.gone.extend(dead.iter().map(|r| (*r).to_owned()));
        self.lock.renew(&[]).await;
        what
    }

    async fn compare(&mut self, what: &str) {
        let model = &mut self.model;
        let state = self.lock.state().await;
        let mut holding: Vec<_> = model.holding.iter().map(String::as_str).collect();
        holding.sort_unstable();
        assert_eq!(state.holding(), holding, "{what}: who holds; {model:?}");
        let waiting: Vec<_> = model.queue.iter().map(|w| w.request.as_str()).collect();
        assert_eq!(state.waiting(), waiting, "{what}: who waits; {model:?}");
        let (token, first) = (state.packed.token, state.packed.first);
        let (drawn, begun) = (std::mem::take(&mut model.drawn), std::mem::take(&mut model.begun));
        if drawn || begun {
            assert!(token > model.greatest, "{what}: {token} after {}", model.greatest);
            (model.greatest, model.token) = (token, token);
        }
        if begun {
            model.first = first;
            assert!(!drawn && first == token || drawn && first < token, "{what}: {state:?}");
        }
        assert_eq!((token, first), (model.token, model.first), "{what}: the phase goes on");
    }
}

#[tokio::test]
async fn random_steps_of_the_scripts_agree_with_the_model() {
    let seed = number("FAIRLOCK_SEED").unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0 >> 1);
    let steps = number("FAIRLOCK_STEPS").unwrap_or(3000);
    println!("FAIRLOCK_SEED={seed} FAIRLOCK_STEPS={steps}");
    let server = Server::start().await;
    let mut dice = Rng::with_seed(seed);
    let mut pairs = Vec::new();
    for policy in ["", "w", "r"] {
        pairs.push(Pair::new(&server, policy).await);
    }
    for step in 0..steps {
        let n = dice.usize(..pairs.len());
        let what = pairs[n].step(&mut dice).await;
        if number("FAIRLOCK_SEED").is_some() {
            println!("{step} {:?}: {what}", pairs[n].model.policy);
        }
    }
    for pair in pairs {
        println!("policy {:?}: {:?}", pair.model.policy, pair.answers);
    }
}
