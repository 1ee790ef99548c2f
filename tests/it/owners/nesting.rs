//! One owner that enters several times, in any modes, and leaves in any order.

use super::Hold;
use crate::lateness::in_time;
use crate::server::Server;
use crate::users::{LEASE, LONG, client, held_by, queued, read, state, user, write};
use fairlock::{Client, FencingToken, Mode, Owner, RwLock};
use fairlock_support::random;
use std::collections::BTreeMap;
use tokio::time::sleep;

/// One owner, alone with a lock, in two processes that know it by its number; and what ought to be true of it.
struct Alone<'a> {
    server: &'a Server,
    name: String,
    owner: Owner,
    doors: [RwLock; 2],
    holds: Vec<Hold>,
    token: Option<FencingToken>,
    greatest: Option<FencingToken>,
}

impl<'a> Alone<'a> {
    fn new(server: &'a Server, clients: &[Client; 2], name: &str) -> Self {
        let owner = Owner::new();
        let doors = clients.each_ref().map(|client| {
            let rebuilt = Owner::from_uuid(owner.uuid());
            client.rw_lock(name).with_owner(&rebuilt)
        });
        Self {
            server,
            name: name.to_owned(),
            owner,
            doors,
            holds: Vec::new(),
            token: None,
            greatest: None,
        }
    }

    fn count(&self, mode: Mode) -> usize {
        self.holds.iter().filter(|hold| hold.mode() == mode).count()
    }

    async fn enter(&mut self, mode: Mode) {
        let becomes_writer = mode == Mode::Write && self.count(Mode::Write) == 0;
        let hold = Hold::of(&self.doors[self.holds.len() % 2], mode).await;
        let token = hold.token();
        if self.token.is_none() || becomes_writer {
            assert!(Some(token) > self.greatest, "{token} after {:?}", self.greatest);
            self.greatest = Some(token);
        } else {
            assert_eq!(Some(token), self.token, "another token while its owner stayed inside");
        }
        self.token = Some(token);
        self.holds.push(hold);
        self.check().await;
    }

    async fn leave(&mut self, index: usize) {
        self.holds.remove(index).release().await;
        if self.holds.is_empty() {
            self.token = None;
        }
        self.check().await;
    }

    async fn check(&self) {
        let (reads, writes) = (self.count(Mode::Read), self.count(Mode::Write));
        let expected = self
            .token
            .map_or_else(BTreeMap::new, |token| held_by(&self.owner, reads, writes, token));
        assert_eq!(
            state(self.server, &self.name).await,
            expected,
            "{reads} reads, {writes} writes"
        );
        assert_eq!(self.server.queued(&self.name).await, 0);
    }
}

/// All orders of 0..n.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for next in 0..n {
        let longer = all.iter().flat_map(|shorter: &Vec<usize>| {
            (0..=shorter.len()).map(move |place| {
                let mut longer = shorter.clone();
                longer.insert(place, next);
                longer
            })
        });
        all = longer.collect();
    }
    all
}

/// All nestings of up to three holds.
fn nestings() -> Vec<Vec<Mode>> {
    let all = (1..=3_u32).flat_map(|depth| (0..1_u32 << depth).map(move |bits| (depth, bits)));
    let mode = |bits: u32, place| {
        if bits >> place & 1 == 1 {
            Mode::Write
        } else {
            Mode::Read
        }
    };
    all.map(|(depth, bits)| (0..depth).map(|place| mode(bits, place)).collect())
        .collect()
}

#[tokio::test]
async fn any_nesting_is_held_past_two_leases_and_left_in_any_order_with_exact_counts() {
    in_time(async || {
        let (server, lease) = (Server::start().await, LEASE * 3);
        let clients = [client(server.url(), lease).await, client(server.url(), lease).await];
        let mut cases = Vec::new();
        for nesting in nestings() {
            for order in permutations(nesting.len()) {
                let mut alone = Alone::new(&server, &clients, &format!("{nesting:?}{order:?}"));
                for mode in &nesting {
                    alone.enter(*mode).await;
                }
                cases.push((alone, order));
            }
        }
        assert_eq!(cases.len(), 2 + 4 * 2 + 8 * 6);
        sleep(lease * 2 + lease / 2).await;
        for (mut alone, order) in cases {
            alone.check().await;
            assert!(alone.holds.iter().all(Hold::is_held), "{} was not renewed", alone.name);
            let mut left: Vec<usize> = (0..order.len()).collect();
            for hold in order {
                let index = left.iter().position(|l| *l == hold).expect("not left yet");
                left.remove(index);
                alone.leave(index).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn random_entering_and_leaving_of_one_owner_counts_exactly() {
    let mut random = random::seeded();
    let server = Server::start().await;
    let clients = [client(server.url(), LONG).await, client(server.url(), LONG).await];
    let mut alone = Alone::new(&server, &clients, "a");
    for _ in 0..200 {
        let depth = alone.holds.len();
        if random.usize(..8) < depth {
            alone.leave(random.usize(..depth)).await;
        } else if random.usize(..2) == 0 {
            alone.enter(Mode::Read).await;
        } else {
            alone.enter(Mode::Write).await;
        }
    }
}

#[tokio::test]
async fn nothing_is_left_to_renew_after_as_many_releases_as_nested_reads() {
    in_time(async || {
        let server = Server::start().await;
        let mine = user(&server, LEASE).await.with_owner(&Owner::new());
        let mut guards = Vec::new();
        for _ in 0..5 {
            guards.push(read(&mine).await);
        }
        while guards.len() > 1 {
            guards.remove(guards.len() / 2).release().await.unwrap();
        }
        sleep(LEASE * 2).await;
        assert!(guards[0].is_held(), "the last of five was not renewed");
        for guard in guards {
            guard.release().await.unwrap();
        }
        assert!(state(&server, "a").await.is_empty());
        let calls = server.script_calls().await;
        sleep(LEASE).await;
        assert_eq!(server.script_calls().await, calls, "something is still renewed");
    })
    .await;
}

#[tokio::test]
async fn a_writer_that_still_reads_lets_in_the_readers_at_the_head_and_no_writer() {
    let server = Server::start().await;
    let (mine, other) = (
        user(&server, LONG).await.with_owner(&Owner::new()),
        user(&server, LONG).await,
    );
    let writing = write(&mine).await;
    let reading = read(&mine).await;
    let first = queued(&server, other.read(), 1).await;
    let second = queued(&server, other.read(), 2).await;
    let writer = queued(&server, other.write(), 3).await;
    let behind = queued(&server, other.read(), 4).await;
    writing.release().await.unwrap();
    let (first, second) = (first.enters().await, second.enters().await);
    assert_eq!(state(&server, "a").await["mode"], "read");
    assert_eq!(state(&server, "a").await["reads"], "3");
    assert_eq!(server.queued("a").await, 2);
    assert!(reading.is_held() && !writer.entered() && !behind.entered());
    for guard in [reading, first, second] {
        guard.release().await.unwrap();
    }
    writer.enters().await.release().await.unwrap();
    drop(behind.enters().await);
}
