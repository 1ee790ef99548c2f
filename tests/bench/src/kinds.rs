//! kinds: a cycle of what is more than a plain lock / a cycle of a plain write lock. `instructions` counts the server's part
//! of the same cycles.

use crate::env::{Env, connect};
use crate::instructions::{Counted, Rows};
use crate::report::{Goal, Report, median};
use fairlock::{Access, Acquire, Client, Owner, RwLock, Semaphore};
use std::time::{Duration, Instant};

/// Cycles of one kind before the next has its turn.
const SLICE: usize = 25;
/// No renewal comes while it is measured.
const LONG: Duration = Duration::from_secs(3600);
/// A release comes before that, so the server keeps the hold for the rest.
const LEAST: Duration = Duration::from_millis(5);
/// So many locks take turns that the rest is over when one of them has its next turn.
const TURNS: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain,
    Permit,
    MaxReaders,
    All,
    AtLeast,
    Named,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Plain,
        Self::Permit,
        Self::MaxReaders,
        Self::All,
        Self::AtLeast,
        Self::Named,
    ];

    /// The keys of the ratio and of the instructions, what it is, and how many plain cycles it replaces.
    fn about(self) -> (&'static str, &'static str, &'static str, usize) {
        match self {
            Self::Plain => ("kinds_plain", "kind_plain", "a write lock", 1),
            Self::Permit => ("kinds_permit", "kind_permit", "a permit of a semaphore of 4", 1),
            Self::MaxReaders => (
                "kinds_max_readers",
                "kind_max_readers",
                "a read lock with max_readers(8)",
                1,
            ),
            Self::All => ("kinds_all", "kind_all", "all() of two write locks", 2),
            Self::AtLeast => (
                "kinds_at_least",
                "kind_at_least",
                "a write lock with hold_at_least, but for its release at the end of that time",
                1,
            ),
            Self::Named => (
                "kinds_named",
                "kind_named",
                "a write lock of a named owner, with the search for deadlocks",
                1,
            ),
        }
    }
}

struct Kinds {
    client: Client,
    plain: RwLock,
    semaphore: Semaphore,
    readers: RwLock,
    pair: [RwLock; 2],
    at_least: Vec<RwLock>,
    named: RwLock,
    turn: usize,
}

impl Kinds {
    async fn new(url: &str) -> Self {
        let client = connect(url).await;
        let lock = |name: &str| client.rw_lock(format!("kinds-{name}"));
        Self {
            plain: lock("plain"),
            semaphore: client.semaphore("kinds-semaphore", 4),
            readers: lock("readers").max_readers(8),
            pair: [lock("from"), lock("to")],
            at_least: (0..TURNS).map(|turn| lock(&format!("least-{turn}"))).collect(),
            named: lock("named").with_owner(&Owner::new()),
            turn: 0,
            client,
        }
    }

    async fn cycle(&mut self, kind: Kind) {
        match kind {
            Kind::Plain => cycle(self.plain.write()).await,
            Kind::Permit => cycle(self.semaphore.permits(1)).await,
            Kind::MaxReaders => cycle(self.readers.read()).await,
            Kind::Named => cycle(self.named.write()).await,
            Kind::AtLeast => {
                self.turn = (self.turn + 1) % TURNS;
                cycle(self.at_least[self.turn].write().hold_at_least(LEAST)).await;
            }
            Kind::All => {
                let [from, to] = &self.pair;
                let request = self.client.all().write(from).write(to).lease(LONG);
                let guard = request.acquire_fair().await.expect("granted");
                guard.release().await.expect("released");
            }
        }
    }

    async fn cycles(&mut self, kind: Kind, n: usize) {
        for _ in 0..n {
            self.cycle(kind).await;
        }
    }
}

async fn cycle<M: Access>(request: Acquire<M>) {
    let guard = request.lease(LONG).acquire_fair().await.expect("granted");
    guard.release().await.expect("released");
}

pub async fn run(env: &Env, report: &mut Report) {
    let mut kinds = Kinds::new(&env.server.url()).await;
    for kind in Kind::ALL {
        kinds.cycles(kind, TURNS).await;
    }
    let slices = env.times(40);
    let mut ratios = Kind::ALL.map(|_| Vec::new());
    for _ in env.rounds("kinds of locks") {
        let mut times = Kind::ALL.map(|_| Vec::new());
        for _ in 0..slices {
            for (kind, times) in Kind::ALL.into_iter().zip(&mut times) {
                let begun = Instant::now();
                kinds.cycles(kind, SLICE).await;
                times.push(begun.elapsed().as_secs_f64());
                if kind == Kind::AtLeast {
                    // Their releases do not come in the slice of the next kind.
                    tokio::time::sleep(2 * LEAST).await;
                }
            }
        }
        let plain = median(&times[0]);
        for ((kind, times), ratios) in Kind::ALL.into_iter().zip(&times).zip(&mut ratios) {
            let (.., replaced) = kind.about();
            ratios.push(median(times) / plain / replaced as f64);
        }
    }
    for (kind, ratios) in Kind::ALL.into_iter().zip(&ratios).skip(1) {
        let (key, _, what, replaced) = kind.about();
        let beside = if replaced == 1 {
            "a plain write lock's"
        } else {
            "two plain ones'"
        };
        report.row(key, &format!("cycle of {what} / {beside}"), Goal::None, ratios);
    }
}

/// The server's part. A hold with a least time is released when that is over, in no window that could be told.
pub async fn instructions(server: &mut Counted, env: &Env, rows: &mut Rows) {
    let mut kinds = Kinds::new(&server.server.url()).await;
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::AtLeast) {
        let (_, key, what, replaced) = kind.about();
        kinds.cycles(kind, 2).await;
        let scripts = 2 * replaced as u64;
        let cost = server
            .each(env.times(200), scripts, async |n| kinds.cycles(kind, n).await)
            .await;
        rows.add(key, what, cost);
    }
}
