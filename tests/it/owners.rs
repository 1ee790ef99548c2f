//! Owners: what they hold they take again without waiting, and each of their holds counts.

use crate::proxy::Proxy;
use crate::server::{Server, eventually, in_time, soon};
use crate::users::{LEASE, LONG, Random, client, held_by, queued, read, state, user, write};
use fairlock::{Client, Error, FencingToken, LostReason, Mode, Owner, ReadGuard, RwLock, WriteGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

enum Hold {
    Read(ReadGuard),
    Write(WriteGuard),
}

impl Hold {
    async fn of(lock: &RwLock, mode: Mode) -> Self {
        match mode {
            Mode::Read => Self::Read(read(lock).await),
            Mode::Write => Self::Write(write(lock).await),
        }
    }

    fn mode(&self) -> Mode {
        match self {
            Self::Read(_) => Mode::Read,
            Self::Write(_) => Mode::Write,
        }
    }

    fn token(&self) -> FencingToken {
        match self {
            Self::Read(guard) => guard.fencing_token(),
            Self::Write(guard) => guard.fencing_token(),
        }
    }

    fn is_held(&self) -> bool {
        match self {
            Self::Read(guard) => guard.is_held(),
            Self::Write(guard) => guard.is_held(),
        }
    }

    async fn release(self) {
        let released = match self {
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
        };
        released.expect("it is held");
    }
}

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
    let mut random = Random::seeded();
    let server = Server::start().await;
    let clients = [client(server.url(), LONG).await, client(server.url(), LONG).await];
    let mut alone = Alone::new(&server, &clients, "a");
    for _ in 0..200 {
        let depth = alone.holds.len();
        if random.below(8) < depth {
            alone.leave(random.below(depth)).await;
        } else if random.below(2) == 0 {
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
async fn a_reader_reenters_past_a_waiting_writer_also_from_another_process() {
    let server = Server::start().await;
    let (here, there, other) = (
        user(&server, LONG).await,
        user(&server, LONG).await,
        user(&server, LONG).await,
    );
    let owner = Owner::new();
    let (mine, also_mine) = (
        here.with_owner(&owner),
        there.with_owner(&Owner::from_uuid(owner.uuid())),
    );
    let outer = read(&mine).await;
    let writer = queued(&server, other.write(), 1).await;
    assert!(
        here.read().try_acquire().await.unwrap().is_none(),
        "another owner's reader passed the writer"
    );

    let inner = read(&mine).await;
    let elsewhere = read(&also_mine).await;
    let tried = mine.read().try_acquire().await.unwrap().expect("reentry is never busy");
    for guard in [&inner, &elsewhere, &tried] {
        assert_eq!(guard.fencing_token(), outer.fencing_token());
        assert_eq!(guard.owner(), owner);
    }
    // It reads alone, so it may write too, ahead of the writer that waits.
    let writing = write(&also_mine).await;
    assert!(writing.fencing_token() > outer.fencing_token());
    assert_eq!(
        state(&server, "a").await,
        held_by(&owner, 4, 1, writing.fencing_token())
    );
    assert_eq!(server.queued("a").await, 1);

    writing.release().await.unwrap();
    for guard in [outer, inner, elsewhere] {
        guard.release().await.unwrap();
    }
    assert!(!writer.entered());
    tried.release().await.unwrap();
    drop(writer.enters().await);
}

#[tokio::test]
async fn a_writer_reenters_past_waiting_readers_and_writers_also_from_another_process() {
    let server = Server::start().await;
    let (here, there, other) = (
        user(&server, LONG).await,
        user(&server, LONG).await,
        user(&server, LONG).await,
    );
    let owner = Owner::new();
    let (mine, also_mine) = (
        here.with_owner(&owner),
        there.with_owner(&Owner::from_uuid(owner.uuid())),
    );
    let outer = write(&mine).await;
    let writer = queued(&server, other.write(), 1).await;
    let reader = queued(&server, other.read(), 2).await;

    let (again, reading) = (write(&also_mine).await, read(&also_mine).await);
    assert_eq!(again.fencing_token(), outer.fencing_token());
    assert_eq!(reading.fencing_token(), outer.fencing_token());
    assert_eq!(state(&server, "a").await, held_by(&owner, 1, 2, outer.fencing_token()));

    outer.release().await.unwrap();
    reading.release().await.unwrap();
    assert_eq!(server.queued("a").await, 2);
    again.release().await.unwrap();
    writer.enters().await.release().await.unwrap();
    drop(reader.enters().await);
}

#[tokio::test]
async fn a_hold_of_a_dead_process_ends_and_the_same_owners_hold_elsewhere_stays() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let owner = Owner::new();
    let dying = client(proxy.url(), LEASE).await.rw_lock("a").with_owner(&owner);
    let living = user(&server, LONG).await.with_owner(&owner);
    let (dead, alive) = (read(&dying).await, read(&living).await);
    // Who waits looks when somebody's lease has run out.
    let writer = queued(&server, user(&server, LONG).await.write(), 1).await;
    proxy.stall(true);
    let one_read = held_by(&owner, 1, 0, alive.fencing_token());
    eventually("one read hold left", async || state(&server, "a").await == one_read).await;
    assert!(!dead.is_held(), "others may know of the loss only after its user");
    assert!(alive.is_held());
    assert!(!writer.entered(), "a writer entered beside a reader");
    alive.release().await.unwrap();
    drop(writer.enters().await);
}

#[tokio::test]
async fn a_writer_that_dies_falls_back_to_what_its_owner_reads_elsewhere() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let owner = Owner::new();
    let dying = client(proxy.url(), LEASE).await.rw_lock("a").with_owner(&owner);
    let living = user(&server, LONG).await.with_owner(&owner);
    let dead = write(&dying).await;
    let alive = read(&living).await;
    let other = user(&server, LONG).await;
    let reader = queued(&server, other.read(), 1).await;
    let writer = queued(&server, other.write(), 2).await;
    proxy.stall(true);
    let entered = reader.enters().await;
    assert!(!dead.is_held() && alive.is_held() && !writer.entered());
    assert!(entered.fencing_token() > alive.fencing_token());
    entered.release().await.unwrap();
    assert_eq!(state(&server, "a").await, held_by(&owner, 1, 0, alive.fencing_token()));
    alive.release().await.unwrap();
    drop(writer.enters().await);
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
    assert_eq!(state(&server, "a").await["rcount"], "3");
    assert_eq!(server.queued("a").await, 2);
    assert!(reading.is_held() && !writer.entered() && !behind.entered());
    for guard in [reading, first, second] {
        guard.release().await.unwrap();
    }
    writer.enters().await.release().await.unwrap();
    drop(behind.enters().await);
}

#[tokio::test]
async fn the_owner_of_a_single_request_is_named_and_cannot_acquire() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await;
    let guard = read(&lock).await;
    let stranger = guard.owner();
    assert_ne!(stranger, read(&lock).await.owner());
    let refused = lock.with_owner(&stranger).read().acquire_fair().await;
    assert!(
        matches!(refused, Err(Error::InvalidOwner { owner, .. }) if owner == stranger),
        "{refused:?}"
    );
    assert_eq!(server.queued("a").await, 0);
}

#[tokio::test]
async fn an_evicted_owner_may_come_back_at_once() {
    let server = Server::start().await;
    let lock = user(&server, LONG).await;
    let owner = Owner::new();
    let mine = lock.with_owner(&owner);
    let lost = write(&mine).await;
    assert_eq!(lock.evict(&owner).await.unwrap(), 1);
    assert_eq!(soon("the loss", lost.lost()).await, LostReason::Evicted);
    // The lost guard still exists: it stands for nothing any more.
    let again = write(&mine).await;
    assert!(again.fencing_token() > lost.fencing_token());
}

/// What the tasks of [`side_by_side`] see of each other.
#[derive(Default)]
struct Inside {
    shared: AtomicUsize,
    other_writers: AtomicUsize,
    served: AtomicUsize,
    refused: AtomicUsize,
}

/// Counts itself while it lives; dropped before the guard is released.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::SeqCst);
        Self(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A task of the shared owner: takes the lock, sometimes twice, in ways and for times drawn by lot.
async fn side_by_side(mine: RwLock, inside: Arc<Inside>, mut random: Random) {
    for _ in 0..20 {
        let mut holds = Vec::new();
        for _ in 0..=random.below(2) {
            let asked = match random.below(5) {
                0 | 1 => mine.write().acquire_fair().await.map(|guard| Some(Hold::Write(guard))),
                2 | 3 => mine.read().acquire_fair().await.map(|guard| Some(Hold::Read(guard))),
                _ => {
                    let limit = Duration::from_millis(random.below(10) as u64);
                    mine.write()
                        .try_acquire_for(limit)
                        .await
                        .map(|guard| guard.map(Hold::Write))
                }
            };
            match asked {
                Ok(Some(hold)) => holds.push((Counted::new(&inside.shared), hold)),
                Ok(None) => {}
                Err(Error::OwnerWaiting { .. }) => {
                    inside.refused.fetch_add(1, Ordering::SeqCst);
                }
                Err(error) => panic!("{error}"),
            }
            let others = inside.other_writers.load(Ordering::SeqCst);
            assert!(holds.is_empty() || others == 0, "inside beside another owner's writer");
        }
        sleep(Duration::from_millis(random.below(4) as u64)).await;
        inside.served.fetch_add(holds.len(), Ordering::SeqCst);
        while !holds.is_empty() {
            let (counted, hold) = holds.remove(random.below(holds.len()));
            drop(counted);
            if random.below(2) == 0 {
                hold.release().await;
            }
        }
    }
}

/// A task with an owner of its own.
async fn by_itself(lock: RwLock, inside: Arc<Inside>, mut random: Random) {
    for _ in 0..20 {
        if random.below(2) == 0 {
            let guard = lock.write().acquire_fair().await.expect("its turn");
            let counted = Counted::new(&inside.other_writers);
            assert_eq!(inside.shared.load(Ordering::SeqCst), 0, "a writer beside another owner");
            sleep(Duration::from_millis(random.below(3) as u64)).await;
            drop(counted);
            guard.release().await.expect("it is held");
        } else {
            let guard = lock.read().acquire_fair().await.expect("its turn");
            sleep(Duration::from_millis(random.below(3) as u64)).await;
            guard.release().await.expect("it is held");
        }
    }
}

#[tokio::test]
async fn tasks_that_share_an_owner_are_each_served_or_refused() {
    let mut random = Random::seeded();
    let server = Server::start().await;
    let (owner, inside) = (Owner::new(), Arc::new(Inside::default()));
    let users = [user(&server, LONG).await, user(&server, LONG).await];
    let mut tasks = JoinSet::new();
    for lock in users.iter().cycle().take(6) {
        tasks.spawn(side_by_side(
            lock.with_owner(&owner),
            Arc::clone(&inside),
            random.fork(),
        ));
    }
    for lock in users.iter().cycle().take(4) {
        tasks.spawn(by_itself(lock.clone(), Arc::clone(&inside), random.fork()));
    }
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no panic");
        }
    };
    soon("all tasks served or refused", all).await;
    eventually("the lock free", async || state(&server, "a").await.is_empty()).await;
    assert_eq!(server.queued("a").await, 0);
    let (served, refused) = (&inside.served, &inside.refused);
    println!("{served:?} served, {refused:?} refused");
    assert!(served.load(Ordering::SeqCst) > 0 && refused.load(Ordering::SeqCst) > 0);
}
