//! A user with the rights of a service, and no good will, beside honest ones: whatever it writes and publishes, nobody
//! panics or hangs, nobody believes in a hold for longer than a lease, and what it broke can be repaired.
//!
//! `FAIRLOCK_ROUNDS` is how many acts it does; `FAIRLOCK_SEED` repeats them.

use crate::acl::{login, rules};
use crate::observe::{View, keys, until_free};
use crate::server::{Server, connected, eventually, soon};
use fairlock::{Client, Error, RwLock, WriteGuard};
use fairlock_support::random::{self, Rng};
use redis::aio::MultiplexedConnection;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const LEASE: Duration = Duration::from_secs(1);
const LOCKS: usize = 4;
const ROUNDS: u64 = 3_000;

fn name(nth: usize) -> String {
    format!("target-{nth}")
}

fn bytes(random: &mut Rng, most: usize) -> Vec<u8> {
    let len = random.usize(..=most);
    (0..len).map(|_| random.u8(..)).collect()
}

/// Who does damage, with exactly the rights of a service.
struct Evil {
    redis: MultiplexedConnection,
    random: Rng,
    /// Members, fields and channels that the server has shown.
    seen: Vec<Vec<u8>>,
    done: u64,
    bytes: usize,
    refused: u64,
}

impl Evil {
    async fn new(server: &Server, random: Rng) -> Self {
        let url = login(server, "evil", &rules("service")).await;
        let redis = redis::Client::open(url)
            .unwrap()
            .get_multiplexed_async_connection()
            .await
            .unwrap();
        Self {
            redis,
            random,
            seen: vec![b"w000000000000001:1".to_vec()],
            done: 0,
            bytes: 0,
            refused: 0,
        }
    }

    async fn sends(&mut self, words: &[&[u8]]) -> redis::Value {
        let mut cmd = redis::cmd(std::str::from_utf8(words[0]).unwrap());
        for word in &words[1..] {
            cmd.arg(*word);
        }
        self.done += 1;
        self.bytes += cmd.get_packed_command().len();
        cmd.query_async(&mut self.redis).await.unwrap_or_else(|_| {
            self.refused += 1;
            redis::Value::Nil
        })
    }

    fn member(&mut self) -> Vec<u8> {
        match self.random.usize(..10) {
            0 => bytes(&mut self.random, 40),
            1 => format!("w{:015x}:{}", self.random.u64(..1 << 60), self.random.u64(..)).into_bytes(),
            2 => format!("r1:1:{}", "f".repeat(32)).into_bytes(),
            3 => format!("r1:1:{}:*{}", "0".repeat(32), self.random.u64(..)).into_bytes(),
            4 => vec![b'w'; 1 << self.random.usize(..20)],
            5 => Vec::new(),
            _ => self.random.choice(&self.seen).cloned().unwrap_or_default(),
        }
    }

    fn score(&mut self) -> Vec<u8> {
        let odd = [
            "inf",
            "-inf",
            "nan",
            "1e308",
            "-1e-308",
            "0",
            "-1",
            "9007199254740993",
            "1e17",
            "x",
        ];
        match self.random.usize(..odd.len() * 2) {
            at if at < odd.len() => odd[at].into(),
            _ => self.random.u64(..1 << 53).to_string().into_bytes(),
        }
    }

    /// The packed state as it is, with a few bytes changed, cut off or added.
    async fn packed(&mut self, state: &[u8]) -> Vec<u8> {
        let read = self.sends(&[b"HGET", state, b"s"]).await;
        let mut packed = redis::from_redis_value::<Vec<u8>>(read).unwrap_or_default();
        for _ in 0..self.random.usize(..4) {
            match self.random.usize(..4) {
                0 => packed.truncate(self.random.usize(..=packed.len())),
                1 => packed.extend(bytes(&mut self.random, 9)),
                _ if packed.is_empty() => {}
                2 => {
                    let at = self.random.usize(..packed.len());
                    packed[at] = self.random.u8(..);
                }
                // Eight bytes of a number that is as large, small or odd as numbers are.
                _ => {
                    let at = self.random.usize(..packed.len());
                    let odd = [f64::NAN, f64::INFINITY, -1.0, 0.0, 9e15, 1e300, 0.5];
                    let number = odd[self.random.usize(..odd.len())].to_le_bytes();
                    let end = packed.len().min(at + 8);
                    packed[at..end].copy_from_slice(&number[..end - at]);
                }
            }
        }
        packed
    }

    async fn act(&mut self) {
        let of = self.random.usize(..LOCKS);
        let [state, queue, leases] = keys(&name(of)).map(String::into_bytes);
        let member = self.member();
        let score = self.score();
        match self.random.usize(..16) {
            0..=2 => {
                let packed = self.packed(&state).await;
                self.sends(&[b"HSET", &state, b"s", &packed]).await;
            }
            3 => {
                let field = *self
                    .random
                    .choice(&["policy", "seq", "limit", "lease", "s", "x"])
                    .unwrap();
                let value = bytes(&mut self.random, 20);
                self.sends(&[b"HSET", &state, field.as_bytes(), &value]).await;
            }
            4 => {
                let kind = *self.random.choice(&["r:", "q:"]).unwrap();
                let field = [kind.as_bytes(), &member].concat();
                self.sends(&[b"HSET", &state, &field, &score]).await;
            }
            5 | 6 => drop(self.sends(&[b"ZADD", &queue, &score, &member]).await),
            7 | 8 => drop(self.sends(&[b"ZADD", &leases, &score, &member]).await),
            9 => {
                let key = [&state, &queue, &leases][self.random.usize(..3)].clone();
                self.sends(&[b"DEL", &key]).await;
            }
            10 => {
                // Of another type: nothing but a DEL helps.
                let key = [&state, &queue, &leases][self.random.usize(..3)].clone();
                self.sends(&[b"SET", &key, &member]).await;
            }
            11 => self.looks(&queue, &leases).await,
            12 | 13 => self.forges(&state, &member).await,
            14 => {
                let value = bytes(&mut self.random, 60);
                self.sends(&[b"ZADD", b"fairlock:listen", &score, &member]).await;
                self.sends(&[b"PUBLISH", b"fairlock:listen", &value]).await;
                self.sends(&[b"SET", &[&b"fairlock:waits:"[..], &member].concat(), &value])
                    .await;
                self.sends(&[b"SET", &[&b"fairlock:client:"[..], &member].concat(), &value])
                    .await;
            }
            _ => {
                self.sends(&[b"PEXPIREAT", &state, &score]).await;
                self.sends(&[b"ZREM", &leases, &member]).await;
                self.sends(&[b"ZREMRANGEBYRANK", &queue, b"0", b"0"]).await;
            }
        }
    }

    async fn looks(&mut self, queue: &[u8], leases: &[u8]) {
        for key in [queue, leases] {
            let members = self.sends(&[b"ZRANGE", key, b"0", b"9"]).await;
            self.seen
                .extend(redis::from_redis_value::<Vec<Vec<u8>>>(members).unwrap_or_default());
        }
        let more = self.seen.len().saturating_sub(50);
        self.seen.drain(..more);
    }

    /// A message on the channel of the client whose request that is: a grant, an eviction, or nonsense.
    async fn forges(&mut self, state: &[u8], member: &[u8]) {
        let client = member.split(|byte| *byte == b':').next().unwrap_or_default();
        let channel = [b"fairlock:c:", client.get(1..).unwrap_or_default()].concat();
        let payload = match self.random.usize(..4) {
            0 => bytes(&mut self.random, 100),
            1 => vec![b'9'; 1 << self.random.usize(..20)],
            _ => {
                let token = self
                    .random
                    .choice(&["0", "1", "4503599627370496", "9007199254740993", "-1"])
                    .unwrap();
                [token.as_bytes(), b" ", member, b"\n", state].concat()
            }
        };
        self.sends(&[b"PUBLISH", &channel, &payload]).await;
    }
}

/// One who asks again and again, and what came of it.
struct Honest {
    lock: RwLock,
    over: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
}

impl Honest {
    async fn asks(self, nth: usize) -> u64 {
        let mut entered = 0;
        for turn in nth.. {
            if self.over.load(Relaxed) {
                break;
            }
            self.asked.fetch_add(1, Relaxed);
            let guard = match turn % 4 {
                0 => soon("a try", self.lock.write().try_acquire()).await,
                1 => {
                    // It shows what is there, whatever that is.
                    drop(soon("a status", self.lock.status()).await);
                    Ok(None)
                }
                _ => soon("an end of the wait", self.lock.write().try_acquire_for(LEASE * 2)).await,
            };
            if let Ok(Some(guard)) = guard {
                entered += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
                drop(soon("a release", guard.release()).await);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        entered
    }
}

/// Who repairs a lock deletes its keys.
async fn repair(server: &Server, nth: usize) {
    let mut del = redis::cmd("DEL");
    let deleted = del.arg(&keys(&name(nth))).exec_async(&mut server.redis().await).await;
    deleted.unwrap();
}

/// Whoever believes in a hold is right about it a lease later.
async fn is_told(server: &Server, nth: usize, guard: &WriteGuard) {
    eventually("the server has the hold, or its guard is lost", async || {
        !guard.is_held() || View::of(server, &name(nth)).await.mode == "write"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_user_with_a_services_rights_makes_nobody_panic_hang_or_believe() {
    let (server, mut random) = (Server::start().await, random::seeded());
    let rounds = std::env::var("FAIRLOCK_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let mut evil = Evil::new(&server, random.fork()).await;
    let url = login(&server, "honest", &rules("service")).await;
    let (over, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut honest: Vec<JoinHandle<u64>> = Vec::new();
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..2 {
        let client = connected(Client::builder().lease(LEASE), &url).await;
        for nth in 0..LOCKS * 2 {
            let lock = client.rw_lock(name(nth % LOCKS));
            let (over, asked) = (Arc::clone(&over), Arc::clone(&asked));
            honest.push(tokio::spawn(Honest { lock, over, asked }.asks(nth)));
        }
        clients.push(client);
    }
    let begun = Instant::now();
    for round in 0..rounds {
        evil.act().await;
        if round % 500 == 499 {
            for nth in 0..LOCKS {
                repair(&server, nth).await;
            }
            let before = asked.load(Relaxed);
            eventually("the honest go on", async || asked.load(Relaxed) > before + 20).await;
        }
    }
    let (done, refused, megabytes) = (evil.done, evil.refused, evil.bytes / 1_000_000);
    let took = begun.elapsed();
    over.store(true, Relaxed);
    let mut entered = 0;
    for task in honest {
        entered += soon("the honest end", task).await.expect("no panic");
    }
    let asked = asked.load(Relaxed);
    println!(
        "{done} hostile commands of {megabytes} MB ({refused} refused) and {asked} honest calls, {entered} entered, in {took:?}"
    );
    assert!(entered > 0 && refused < done / 2, "nothing was attacked");
    for nth in 0..LOCKS {
        repair(&server, nth).await;
        let lock = clients[0].rw_lock(name(nth));
        let guard = soon("a repaired lock", lock.write().acquire_fair()).await.unwrap();
        is_told(&server, nth, &guard).await;
        let other = clients[1].rw_lock(name(nth)).write().try_acquire().await;
        assert!(matches!(other, Ok(None)) || !guard.is_held(), "{other:?}");
        match soon("a release", guard.release()).await {
            Ok(()) | Err(Error::Lost { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        drop(other);
        until_free(&server, &name(nth)).await;
    }
}
