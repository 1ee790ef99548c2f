//! p6: what a script costs the server, by the length of the queue.

use crate::bare::Bare;
use crate::env::{Env, connection, listening};
use crate::lua::{Account, Lua, Spent};
use crate::report::{Goal, Report, median};
use fairlock_support::random::Rng;
use redis::aio::MultiplexedConnection;
use std::collections::VecDeque;

/// Whose requests all of them are.
const CLIENT: &str = "000000000000007";

const LENGTHS: [usize; 4] = [10, 100, 1000, 10_000];

/// What is measured, each with its key.
const SCRIPTS: [(&str, What); 4] = [
    ("queue", What::Queue),
    ("release", What::Release),
    ("renew", What::Renew),
    ("try", What::Try),
];

#[derive(Clone, Copy)]
enum What {
    /// A newcomer at the tail.
    Queue,
    /// The holder leaves, the head of the queue enters and is told.
    Release,
    /// A waiter in the middle of the queue.
    Renew,
    /// A newcomer that does not want to wait, and is sent away.
    Try,
}

/// What has its turn, of [`SCRIPTS`] and [`LENGTHS`].
enum Slice {
    Script { script: usize, length: usize },
    Bare(usize),
}

pub async fn run(env: &Env, report: &mut Report) {
    // Its own: the server's count must be of these calls alone.
    let server = env.another_server().await;
    let mut redis = connection(&server.url()).await;
    // Its client listens: a grant that nobody hears is another case, which costs more.
    let mut listener = listening(&server.url(), |_| ()).await;
    let channel = format!("fairlock:c:{CLIENT}");
    listener.subscribe(channel).await.expect("subscribed");
    let mut locks = Vec::new();
    for length in LENGTHS {
        locks.push(Queue::fill(&server.url(), length).await);
    }
    let bare = Bare::new(connection(&server.url()).await);
    let mut bares = Vec::new();
    for length in [LENGTHS[0], LENGTHS[LENGTHS.len() - 1]] {
        bares.push(BareQueue::fill(&bare, length).await);
    }
    let (mut bare_ratios, mut bare_times) = (Vec::new(), [Vec::new(), Vec::new()]);
    let (mut random, repeats) = (Rng::with_seed(6), env.times(20));
    let of_script = |script| (0..LENGTHS.len()).map(move |length| Slice::Script { script, length });
    let mut slices: Vec<Slice> = (0..SCRIPTS.len()).flat_map(of_script).collect();
    slices.extend((0..bares.len()).map(Slice::Bare));
    // Microseconds of [script][length], a number per round.
    let mut times = vec![vec![Vec::new(); LENGTHS.len()]; SCRIPTS.len()];
    for _ in env.rounds("p6 server time by length of the queue") {
        // Short slices, so that drift hits every length alike. In an order by chance, because Lua collects its garbage at
        // certain calls: in a fixed order those were the releases at two of the lengths.
        let mut spent = vec![[Spent { calls: 0.0, us: 0.0 }; LENGTHS.len()]; SCRIPTS.len()];
        let mut bare_us = [0.0; 2];
        for _ in 0..repeats {
            random.shuffle(&mut slices);
            for slice in &slices {
                match *slice {
                    Slice::Script { script, length } => {
                        let slice = locks[length].slice(&mut redis, SCRIPTS[script].1).await;
                        spent[script][length].calls += slice.calls;
                        spent[script][length].us += slice.us;
                    }
                    Slice::Bare(bare) => bare_us[bare] += bares[bare].slice(&mut redis).await.us,
                }
            }
        }
        bare_ratios.push(bare_us[1] / bare_us[0]);
        for (times, us) in bare_times.iter_mut().zip(bare_us) {
            times.push(us / (repeats * Queue::SLICE) as f64);
        }
        for (times, spent) in times.iter_mut().zip(spent) {
            for (times, spent) in times.iter_mut().zip(spent) {
                times.push(spent.us / spent.calls);
            }
        }
    }
    let last = LENGTHS.len() - 1;
    let ratios = |script: usize| -> Vec<f64> {
        let rounds = times[script][last].iter().zip(&times[script][0]);
        rounds.map(|(long, short)| long / short).collect()
    };
    let all: Vec<Vec<f64>> = (0..SCRIPTS.len()).map(ratios).collect();
    let worst = all
        .iter()
        .max_by(|a, b| median(a).total_cmp(&median(b)))
        .expect("several scripts");
    let title = "server time of the script that grows most, with 10,000 waiters / with 10";
    report.row("p6", title, Goal::AtMost(1.1), worst);
    report.beside(
        "p6_bare",
        "the commands of a release alone, with 10,000 waiters / with 10",
        &bare_ratios,
    );
    report.beside("p6_bare_us_10", "us in the server", &bare_times[0]);
    report.beside("p6_bare_us_10000", "us in the server", &bare_times[1]);
    report.samples("p6_lengths", LENGTHS.map(|length| length as f64).to_vec());
    for (script, (name, _)) in SCRIPTS.iter().enumerate() {
        report.beside(&format!("p6_{name}"), "with 10,000 waiters / with 10", &all[script]);
        report.beside(&format!("p6_{name}_us_10"), "us in the server", &times[script][0]);
        report.beside(&format!("p6_{name}_us_10000"), "us in the server", &times[script][last]);
        report.samples(
            &format!("p6_{name}"),
            times[script].iter().map(|rounds| median(rounds)).collect(),
        );
    }
}

/// A lock with one writer inside and a queue of writers, who all enter in turn: the order is known without asking.
struct Queue {
    lua: Lua,
    lock: String,
    inside: String,
    waiting: VecDeque<String>,
    next: usize,
}

impl Queue {
    /// At every 50th script Redis has Lua collect garbage: these shall not be the same calls of each slice.
    const SLICE: usize = 49;

    async fn fill(url: &str, length: usize) -> Self {
        let mut queue = Self {
            lua: Lua::new(url).await,
            lock: format!("queue-of-{length}"),
            inside: String::new(),
            waiting: VecDeque::new(),
            next: 0,
        };
        queue.inside = queue.name();
        let names: Vec<String> = (0..length).map(|_| queue.name()).collect();
        let acquire = |name| queue.lua.acquire(Account::Around, &queue.lock, name, "queue");
        let calls: Vec<_> = std::iter::once(&queue.inside)
            .chain(&names)
            .map(|name| acquire(name))
            .collect();
        let replies = queue.lua.send(calls).await;
        assert!(
            replies.iter().skip(1).all(|reply| reply[0] == 1),
            "all but the first queue"
        );
        queue.waiting.extend(names);
        queue
    }

    /// Names of one length, whatever the queue's.
    fn name(&mut self) -> String {
        self.next += 1;
        format!("w{CLIENT}:{:07}", self.next)
    }

    /// Some calls of a script; others in between bring the queue back to its length, on another account.
    async fn slice(&mut self, redis: &mut MultiplexedConnection, what: What) -> Spent {
        use Account::{Around, Measured};
        let mut calls = Vec::new();
        // What an element of the reply to each of the measured calls has to be. Who waits is told minus the lock's counter.
        let waits = i64::MIN..=-2;
        let mut statuses = Vec::new();
        for _ in 0..Self::SLICE {
            let at = calls.len();
            match what {
                What::Queue => {
                    let name = self.name();
                    calls.push(self.lua.acquire(Measured, &self.lock, &name, "queue"));
                    calls.push(self.lua.release(Around, &self.lock, &name));
                    statuses.push((at, 0, 1..=1));
                }
                What::Release => {
                    let next = self.waiting.pop_front().expect("somebody waits");
                    let gone = std::mem::replace(&mut self.inside, next);
                    let name = self.name();
                    calls.push(self.lua.release(Measured, &self.lock, &gone));
                    calls.push(self.lua.acquire(Around, &self.lock, &name, "queue"));
                    self.waiting.push_back(name);
                    // A released hold is told its token.
                    statuses.push((at, 0, 2..=i64::MAX));
                }
                What::Renew => {
                    let waiter = &self.waiting[self.waiting.len() / 2];
                    calls.push(self.lua.renew(Measured, &self.lock, &[waiter]));
                    statuses.push((at, 2, waits.clone()));
                }
                What::Try => {
                    let name = self.name();
                    calls.push(self.lua.acquire(Measured, &self.lock, &name, "try"));
                    statuses.push((at, 0, 0..=0));
                }
            }
        }
        let before = Spent::so_far(redis).await;
        let replies = self.lua.send(calls).await;
        let spent = Spent::so_far(redis).await.since(before);
        for (call, at, status) in statuses {
            assert!(
                status.contains(&replies[call][at]),
                "{}: {:?}",
                self.lock,
                replies[call]
            );
        }
        assert_eq!(
            spent.calls,
            Self::SLICE as f64,
            "somebody else calls scripts on this server"
        );
        spent
    }
}

/// The same of the commands of a release alone.
struct BareQueue {
    bare: Bare,
    /// Who is inside; those after it wait.
    inside: usize,
    length: usize,
}

impl BareQueue {
    async fn fill(bare: &Bare, length: usize) -> Self {
        let mut bare = bare.of(&format!("bare-queue-of-{length}")).await;
        bare.queue((1..=length).map(Self::waiter)).await;
        Self {
            bare,
            inside: 0,
            length,
        }
    }

    fn waiter(number: usize) -> (String, usize) {
        (format!("w{CLIENT}:{number:07}"), number)
    }

    async fn slice(&mut self, redis: &mut MultiplexedConnection) -> Spent {
        let next = self.inside + Queue::SLICE;
        let length = self.length;
        let moves = (self.inside..next).map(|gone| (Self::waiter(gone).0, Self::waiter(gone + length + 1)));
        let before = Spent::so_far(redis).await;
        self.bare.enter(moves).await;
        self.inside = next;
        let spent = Spent::so_far(redis).await.since(before);
        assert_eq!(spent.calls, Queue::SLICE as f64, "each of them was executed");
        spent
    }
}
