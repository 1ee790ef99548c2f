//! Many users of several clients at once on a real server, and processes that die; the journal is checked while it
//! grows, and the users' intervals at the end. And the same with broken scripts, which must be caught.
//!
//! `FAIRLOCK_SEED` gives the same choices again, not the same timing. A run ends after so many entries of the journal as
//! `FAIRLOCK_SOAK_RECORDS` says: on a slow machine it takes longer, and proves the same.

use fairlock::{Access, Acquire, Client, Error, Guard, Owner, Policy, ReadGuard, RwLock};
use fairlock_attack::checker::{Checker, Interval, Mode};
use fairlock_attack::journal;
use fairlock_attack::lua_world::numbers_of;
use fairlock_attack::record::{Script, What, argv};
use fairlock_support::random::Rng;
use fairlock_support::scripts;
use fairlock_support::server::Server;
use redis::aio::MultiplexedConnection;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use uuid::Uuid;

const LEASE: Duration = Duration::from_millis(400);
/// The last one's keys are deleted now and then.
const LOCKS: [(&str, Policy); 4] = [
    ("a", Policy::Fifo),
    ("b", Policy::WriterFirst),
    ("c", Policy::ReaderFirst),
    ("d", Policy::Fifo),
];
const DAMAGED: usize = 3;
/// Entries of the journal, as many as this test made in 10 s.
const RECORDS: u64 = 60_000;
/// A mutant that is not caught within so many is not caught: all were in less than a tenth.
const MUTANT_RECORDS: u64 = 400_000;
/// Only a hang takes so long.
const HANG: Duration = Duration::from_secs(300);
const MUTANT: &str = "FAIRLOCK_SOAK_MUTANT";

struct Mutant {
    name: &'static str,
    find: &'static str,
    replace: &'static str,
    /// What may be found first.
    invariants: &'static [u8],
}

const MUTANTS: [Mutant; 9] = [
    Mutant {
        name: "a reader passes who waits",
        find: "local before = waiting > 0 and not inside",
        replace: "local before = waiting > 0 and not inside and (write or writing)",
        invariants: &[3, 9],
    },
    Mutant {
        name: "a grant repeats a token",
        find: "token, holder = draw(), request",
        replace: "token, holder = token > 0 and token or draw(), request",
        invariants: &[2],
    },
    Mutant {
        name: "expiry admits nobody",
        find: "      freed = true\n",
        replace: "",
        invariants: &[4],
    },
    Mutant {
        name: "leases end early",
        find: "local at = now + ms\n",
        replace: "local at = now + ms - 20\n",
        invariants: &[1, 5],
    },
    Mutant {
        name: "two may upgrade",
        find: "if upgrade and upgrading() then return answer(-1, 0) end",
        replace: "",
        invariants: &[9],
    },
    Mutant {
        name: "a writer enters beside readers",
        find: "or not writing and write and reads > held\n",
        replace: "or false\n",
        invariants: &[1],
    },
    Mutant {
        name: "a request that is sent again is granted again",
        find: "known = call('ZSCORE', LEASES, request)",
        replace: "known = false",
        invariants: &[7],
    },
    Mutant {
        name: "a renewal moves no deadline",
        find: "if leases[1] then call('ZADD', LEASES, unpack(leases)) end",
        replace: "",
        invariants: &[1, 5],
    },
    Mutant {
        name: "the dead are noticed late",
        find: "local at = now + ms\n",
        replace: "local at = now + ms + 30\n",
        invariants: &[5],
    },
];

/// The mutant that this process is to run, if any.
fn mutate(_name: &str, body: &str) -> String {
    let Ok(name) = std::env::var(MUTANT) else {
        return body.to_owned();
    };
    let mutant = MUTANTS.iter().find(|mutant| mutant.name == name).expect("a mutant");
    body.replace(mutant.find, mutant.replace)
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.expect("a clock after 1970").as_micros() as u64
}

fn key(lock: &str) -> String {
    format!("fairlock:{{{lock}}}")
}

/// An owner as requests name it.
fn name_of(owner: Owner) -> String {
    let uuid = owner.uuid();
    if uuid.get_version_num() != 8 {
        return uuid.simple().to_string();
    }
    let (high, low) = uuid.as_u64_pair();
    format!("{:015x}:{}", (high >> 16) << 12 | high & 0xfff, low & ((1 << 62) - 1))
}

type Intervals = Arc<Mutex<Vec<Interval>>>;

/// Set when the journal is long enough.
type Stop = Arc<AtomicBool>;

/// A user that takes locks until it is told to stop.
struct User {
    locks: Vec<RwLock>,
    owner: Owner,
    random: Rng,
    intervals: Intervals,
    stop: Stop,
}

/// A guard in hand, and while it is known to be held.
struct Watched<'a, M> {
    guard: &'a Guard<M>,
    from_us: u64,
    until_us: u64,
}

impl<'a, M: Access> Watched<'a, M> {
    fn new(guard: &'a Guard<M>) -> Self {
        let from_us = now_us();
        Self {
            guard,
            from_us,
            until_us: from_us,
        }
    }

    fn look(&mut self) -> bool {
        let now = now_us();
        let held = self.guard.is_held();
        if held {
            self.until_us = now;
        }
        held
    }

    async fn hold(&mut self, time: Duration) {
        let begun = Instant::now();
        while self.look() && begun.elapsed() < time {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn interval(&self, lock: &str) -> Interval {
        Interval {
            lock: key(lock),
            owner: name_of(self.guard.owner()),
            mode: if M::MODE == fairlock::Mode::Write {
                Mode::Write
            } else {
                Mode::Read
            },
            token: self.guard.fencing_token().get(),
            from_us: self.from_us,
            until_us: self.until_us,
        }
    }
}

impl User {
    async fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let at = self.random.usize(..LOCKS.len());
            let mut lock = self.locks[at].clone();
            if self.random.u64(..3) == 0 {
                lock = lock.with_owner(&self.owner);
            }
            let done = if self.random.u64(..3) == 0 {
                self.write(&lock).await
            } else {
                self.read(&lock).await
            };
            match done {
                // Leases are short here, and this machine is slow at times.
                Ok(()) | Err(Error::Lost { .. } | Error::UpgradeConflict { .. } | Error::Unavailable { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            if self.random.u64(..4) == 0 {
                tokio::time::sleep(Duration::from_millis(self.random.u64(..5))).await;
            }
        }
    }

    fn time(&mut self) -> Duration {
        Duration::from_micros(match self.random.u64(..20) {
            0 if self.random.u64(..5) == 0 => 150_000,
            1..10 => self.random.u64(..4_000),
            _ => 0,
        })
    }

    fn noted<M: Access>(&self, lock: &RwLock, watched: &Watched<'_, M>) {
        let interval = watched.interval(lock.name());
        self.intervals.lock().expect("no panic inside").push(interval);
    }

    /// In one of the ways in which one may ask.
    async fn ask<M: Access>(&mut self, acquire: Acquire<M>) -> Result<Option<Guard<M>>, Error> {
        let mut acquire = acquire;
        if self.random.u64(..5) == 0 {
            acquire = acquire.lease(Duration::from_millis(100 + self.random.u64(..100)));
        }
        if self.random.u64(..10) == 0 {
            acquire = acquire.max_hold(Duration::from_millis(1 + self.random.u64(..30)));
        }
        let limit = Duration::from_micros(self.random.u64(..20_000));
        match self.random.u64(..8) {
            0 => acquire.try_acquire().await,
            1 => acquire.try_acquire_for(limit).await,
            // Dropped at any point.
            2 => tokio::time::timeout(limit, acquire.acquire_fair())
                .await
                .ok()
                .transpose(),
            _ => acquire.acquire_fair().await.map(Some),
        }
    }

    async fn write(&mut self, lock: &RwLock) -> Result<(), Error> {
        let Some(guard) = self.ask(lock.write()).await? else {
            return Ok(());
        };
        let mut watched = Watched::new(&guard);
        watched.hold(self.time()).await;
        if self.random.u64(..6) == 0 {
            // Reentry, in both modes.
            let owned = lock.with_owner(&guard.owner());
            if guard.owner() == self.owner {
                self.again(&owned).await?;
            }
            watched.look();
        }
        self.noted(lock, &watched);
        match self.random.u64(..6) {
            0 => drop(guard),
            1 => {
                let reading = guard.downgrade().await?;
                self.read_on(lock, reading).await?;
            }
            _ => guard.release().await?,
        }
        Ok(())
    }

    async fn again(&mut self, lock: &RwLock) -> Result<(), Error> {
        if self.random.u64(..2) == 0 {
            let again = lock.write().acquire_fair().await?;
            let mut watched = Watched::new(&again);
            watched.look();
            self.noted(lock, &watched);
        }
        let again = lock.read().acquire_fair().await?;
        let mut watched = Watched::new(&again);
        watched.hold(self.time() / 4).await;
        self.noted(lock, &watched);
        again.release().await
    }

    async fn read(&mut self, lock: &RwLock) -> Result<(), Error> {
        match self.ask(lock.read()).await? {
            Some(guard) => self.read_on(lock, guard).await,
            None => Ok(()),
        }
    }

    async fn read_on(&mut self, lock: &RwLock, guard: ReadGuard) -> Result<(), Error> {
        let mut watched = Watched::new(&guard);
        watched.hold(self.time()).await;
        let upgraded = match self.random.u64(..12) {
            0 => guard.upgrade().await.map(Some),
            1 => guard.try_upgrade().await,
            2 => tokio::time::timeout(Duration::from_millis(2), guard.upgrade())
                .await
                .ok()
                .transpose(),
            _ => Ok(None),
        };
        watched.look();
        if let Ok(Some(writing)) = &upgraded {
            let mut watched_too = Watched::new(writing);
            watched_too.hold(self.time()).await;
            self.noted(lock, &watched_too);
            watched.look();
        }
        self.noted(lock, &watched);
        let upgraded = upgraded?;
        if let Some(writing) = upgraded
            && self.random.u64(..2) == 0
        {
            writing.release().await?;
        }
        if self.random.u64(..6) == 0 {
            drop(guard);
            return Ok(());
        }
        guard.release().await
    }
}

/// Calls scripts itself: sends twice, dies with what it has, evicts.
struct Rogue {
    redis: MultiplexedConnection,
    random: Rng,
    number: u64,
}

impl Rogue {
    async fn call(&mut self, script: Script, lock: usize, args: &[&str]) -> Vec<i64> {
        let scripts = fairlock::testing::scripts();
        let (_, texts) = scripts
            .iter()
            .find(|(name, _)| *name == script.name())
            .expect("a script");
        let key = key(LOCKS[lock].0);
        let mut call = redis::cmd("EVAL");
        call.arg(texts[1])
            .arg(3)
            .arg(&key)
            .arg(format!("{key}:q"))
            .arg(format!("{key}:l"));
        call.arg(argv(script, args, ""));
        let reply = call.query_async(&mut self.redis).await.expect("an answer");
        numbers_of(&reply, script).expect("a reply of the script")
    }

    async fn acquire(&mut self, lock: usize, request: &str) -> Vec<i64> {
        let policy = ["", "w", "r", ""][lock];
        let lease = (20 + self.random.u64(..100)).to_string();
        self.call(Script::Acquire, lock, &[request, &lease, "queue", policy, ""])
            .await
    }

    async fn run(mut self, stop: Stop) {
        let mut dead = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1 + self.random.u64(..60))).await;
            let lock = self.random.usize(..LOCKS.len());
            self.number += 1;
            let owner = format!("be{:x}", self.random.u64(..6));
            let request = match self.random.u64(..4) {
                0 => format!("rdead:{}:{owner}", self.number),
                1 => format!("wdead:{}:{owner}", self.number),
                2 => format!("wdead:{}", self.number),
                _ => format!("rdead:{}", self.number),
            };
            let mut reply = self.acquire(lock, &request).await;
            if self.random.u64(..3) == 0 {
                reply = self.acquire(lock, &request).await;
            }
            match self.random.u64(..12) {
                0..4 => {
                    self.call(Script::Release, lock, &[&request]).await;
                    self.call(Script::Release, lock, &[&request, "wdead:0"]).await;
                }
                4 => {
                    self.call(Script::Renew, lock, &[&request, "50", "wdead:0", "50"]).await;
                }
                5 => {
                    self.call(Script::Evict, lock, &[&owner]).await;
                }
                6 if reply[0] == 2 && request.starts_with('w') && request.ends_with(&owner) => {
                    let to = format!("rdead:{}:{owner}", self.number + 1_000_000);
                    self.call(Script::Downgrade, lock, &[&request, &to, "50"]).await;
                    self.call(Script::Downgrade, lock, &[&request, &to, "50"]).await;
                }
                _ => dead.push((lock, request)),
            }
            // The late release or renewal of one that is over.
            if dead.len() > 8 {
                let (lock, request) = dead.remove(0);
                self.call(Script::Renew, lock, &[&request, "50"]).await;
                self.call(Script::Release, lock, &[&request]).await;
            }
        }
    }
}

async fn damage(mut redis: MultiplexedConnection, mut random: Rng, stop: Stop) {
    let state = key(LOCKS[DAMAGED].0);
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(200 + random.u64(..600))).await;
        // One field, or some of the keys.
        if random.u64(..2) == 0 {
            let which = random.u64(..1_000);
            journal::delete_field(&mut redis, &state, which)
                .await
                .expect("a delete");
            continue;
        }
        let keys = [state.clone(), format!("{state}:q"), format!("{state}:l")];
        let chosen = 1 + random.u64(..7);
        let keys: Vec<String> = (0..3)
            .filter(|i| chosen >> i & 1 == 1)
            .map(|i| keys[i].clone())
            .collect();
        journal::delete(&mut redis, &state, &keys).await.expect("a delete");
    }
}

/// What the journals have by now.
struct Reader {
    redis: MultiplexedConnection,
    after: [String; 4],
    checker: Checker,
    kinds: BTreeMap<What, u64>,
}

impl Reader {
    async fn read(&mut self) -> usize {
        let mut n = 0;
        for (at, (lock, _)) in LOCKS.iter().enumerate() {
            let key = key(lock);
            match journal::read(&mut self.redis, &key, &mut self.after[at]).await {
                Ok(records) => {
                    for record in &records {
                        if let Err(violation) = self.checker.check(record) {
                            panic!("{violation}");
                        }
                        for note in &record.notes {
                            *self.kinds.entry(note.what).or_default() += 1;
                        }
                    }
                    n += records.len();
                }
                Err(error) if error.starts_with(journal::DAMAGED) && at == DAMAGED => self.checker.damaged(&key),
                Err(error) => panic!("{error}"),
            }
            journal::forget(&mut self.redis, &key, &self.after[at])
                .await
                .expect("a trim");
        }
        n
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_users_keep_every_invariant() {
    assert!(journal::install_with(journal::Options { most: None, mutate }));
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|value| value.parse::<u64>().expect("a number"))
    };
    let seed = number("FAIRLOCK_SEED").unwrap_or_else(|| Uuid::new_v4().as_u64_pair().0);
    println!("FAIRLOCK_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let enough = number("FAIRLOCK_SOAK_RECORDS").unwrap_or(RECORDS);
    let (stop, begun) = (Stop::default(), Instant::now());

    let server = Server::start().await;
    let intervals = Intervals::default();
    let (mut clients, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let client = Client::builder()
            .lease(LEASE)
            .connect(server.url())
            .await
            .expect("a server");
        for _ in 0..8 {
            let user = User {
                locks: LOCKS.map(|(name, policy)| client.rw_lock(name).policy(policy)).to_vec(),
                owner: Owner::new(),
                random: random.fork(),
                intervals: Arc::clone(&intervals),
                stop: Arc::clone(&stop),
            };
            tasks.push(tokio::spawn(user.run()));
        }
        clients.push(client);
    }
    let redis = server.redis().await;
    let rogue = |random| Rogue {
        redis: redis.clone(),
        random,
        number: 0,
    };
    tasks.push(tokio::spawn(rogue(random.fork()).run(Arc::clone(&stop))));
    tasks.push(tokio::spawn(damage(
        server.redis().await,
        random.clone(),
        Arc::clone(&stop),
    )));

    let mut reader = Reader {
        redis: server.redis().await,
        after: Default::default(),
        checker: Checker::with_holds(),
        kinds: BTreeMap::new(),
    };
    while tasks.iter().any(|task| !task.is_finished()) {
        stop.fetch_or(reader.checker.records() >= enough, Ordering::Relaxed);
        assert!(begun.elapsed() < HANG, "somebody waits for ever");
        if reader.read().await == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    for client in clients {
        client.shutdown().await;
    }
    let mut sweeper = rogue(random);
    loop {
        for lock in 0..LOCKS.len() {
            sweeper.call(Script::Renew, lock, &[]).await;
        }
        while reader.read().await > LOCKS.len() {}
        match reader.checker.finish() {
            Ok(()) => break,
            Err(violation) => assert!(begun.elapsed() < HANG, "{violation}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut intervals = std::mem::take(&mut *intervals.lock().expect("no panic inside"));
    intervals.retain(|interval| interval.lock != key(LOCKS[DAMAGED].0));
    if let Err(violation) = reader.checker.check_users(&intervals) {
        panic!("{violation}");
    }
    let (grants, records) = (reader.checker.grants(), reader.checker.records());
    println!(
        "{records} records, {grants} grants, {} intervals, {:?}",
        intervals.len(),
        reader.kinds
    );
    // All users listen here, so no lease is cut.
    let expected = |what: &&What| **what != What::Cut;
    assert!(
        What::ALL
            .iter()
            .filter(expected)
            .all(|what| reader.kinds.contains_key(what)),
        "{:?}",
        reader.kinds
    );
    assert!(intervals.len() > 100, "{} intervals", intervals.len());
}

#[test]
fn broken_scripts_are_caught() {
    // A change that changes nothing would look like one that nobody noticed.
    for mutant in &MUTANTS {
        let changes = |script: &scripts::Script| script.text.contains(mutant.find);
        assert!(scripts::ALL.iter().any(changes), "{}: nothing to change", mutant.name);
        let begun = Instant::now();
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "random_users_keep_every_invariant", "--nocapture"])
            .env(MUTANT, mutant.name)
            .env("FAIRLOCK_SOAK_RECORDS", MUTANT_RECORDS.to_string())
            .output()
            .expect("this program again");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let found = text.lines().find(|line| line.starts_with("invariant "));
        println!("{}: {found:?} after {:?}", mutant.name, begun.elapsed());
        assert!(!output.status.success(), "{}: not caught: {text}", mutant.name);
        let expected = mutant
            .invariants
            .iter()
            .any(|n| found.is_some_and(|line| line.starts_with(&format!("invariant {n}:"))));
        assert!(expected, "{}: {text}", mutant.name);
    }
}
