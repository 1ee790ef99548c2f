//! The client before a server that answers and pushes at random: nothing panics, every call returns, and there is no
//! guard without a grant.

use crate::parse::{number, push_kind, runner, seed, value};
use fairlock::testing;
use fairlock::{Client, Error, LostReason};
use futures::FutureExt;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use redis::{PushInfo, PushKind, Value};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// No call takes longer than this, whatever it is told.
const PATIENCE: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_millis(300);
const FIRST_TOKEN: i64 = 1_760_400_000_000_000;

// ---- panics, of whatever task or thread

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn count_panics() {
    static HOOK: OnceLock<()> = OnceLock::new();
    HOOK.get_or_init(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // Tasks of a runtime run on threads without the name of a test.
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            if name.starts_with("wild-") {
                PANICS.lock().expect("a list").push(panic.to_string());
            }
            default(panic);
        }));
    });
}

/// A runtime whose panics are counted. One test at a time: they share the list.
fn in_runtime(name: &str, test: impl Future<Output = ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    count_panics();
    PANICS.lock().expect("a list").clear();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime
        .worker_threads(2)
        .thread_name(format!("wild-{name}"))
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(test);
    runtime.shutdown_timeout(PATIENCE);
    let panics = std::mem::take(&mut *PANICS.lock().expect("a list"));
    assert!(panics.is_empty(), "{panics:#?}");
}

// ---- the server

/// How a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    /// As scripts do, each request being granted.
    Grants,
    /// As scripts do, each request being queued.
    Queues,
    /// Each script says that there is more to do.
    Endless,
    /// Who may wait is told "busy", and who may not "queued".
    Contrary,
    /// Whatever may come, often as scripts do.
    Wild,
}

struct Server {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    mood: Mutex<Mood>,
    seed: u128,
    connections: AtomicUsize,
    /// Names of scripts, by their hashes.
    scripts: HashMap<String, &'static str>,
    /// Every (request, token) that any reply or message granted.
    granted: Mutex<HashSet<(String, u64)>>,
    /// Names of requests that were asked for, of those that were released, and of those that were renewed.
    asked: Mutex<Vec<String>>,
    released: Mutex<Vec<String>>,
    renewed: Mutex<Vec<String>>,
    calls: AtomicUsize,
    listeners: Mutex<Vec<mpsc::UnboundedSender<Vec<u8>>>>,
}

fn random<S: Strategy>(runner: &mut TestRunner, of: S) -> S::Value {
    of.new_tree(runner).expect("no filters").current()
}

fn one_in(runner: &mut TestRunner, n: u32) -> bool {
    random(runner, 0..n) == 0
}

impl Server {
    async fn start(mood: Mood, seed: u128) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let texts = testing::scripts()
            .into_iter()
            .flat_map(|(name, texts)| texts.map(|text| (text, name)));
        let scripts = texts.map(|(text, name)| (redis::Script::new(text).get_hash().to_owned(), name));
        let shared = Arc::new(Shared {
            mood: Mutex::new(mood),
            seed,
            connections: AtomicUsize::new(0),
            scripts: scripts.collect(),
            granted: Mutex::default(),
            asked: Mutex::default(),
            released: Mutex::default(),
            renewed: Mutex::default(),
            calls: AtomicUsize::new(0),
            listeners: Mutex::default(),
        });
        let all = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&all);
                tokio::spawn(async move { shared.serve(stream).await });
            }
        });
        Self { port, shared }
    }

    async fn client(&self) -> Client {
        self.client_with(LEASE).await
    }

    async fn client_with(&self, lease: Duration) -> Client {
        let connected = Client::builder()
            .lease(lease)
            .connect(format!("redis://127.0.0.1:{}", self.port));
        timeout(PATIENCE, connected)
            .await
            .expect("in time")
            .expect("a tame server")
    }

    fn become_(&self, mood: Mood) {
        *self.shared.mood.lock().expect("a mood") = mood;
    }
}

/// The next command, or `None` when the connection is gone.
async fn command(from: &mut OwnedReadHalf, buffer: &mut Vec<u8>) -> Option<Vec<String>> {
    loop {
        // Every command is a list of texts: it is whole when it can be read.
        if let Some((words, length)) = words(buffer) {
            buffer.drain(..length);
            return Some(words);
        }
        let mut bytes = [0; 4096];
        match from.read(&mut bytes).await {
            Ok(n) if n > 0 => buffer.extend_from_slice(&bytes[..n]),
            _ => return None,
        }
    }
}

fn words(buffer: &[u8]) -> Option<(Vec<String>, usize)> {
    fn line(buffer: &[u8], at: &mut usize) -> Option<usize> {
        let end = *at + buffer.get(*at..)?.windows(2).position(|two| two == b"\r\n")?;
        let number = std::str::from_utf8(&buffer[*at + 1..end]).ok()?.parse().ok();
        *at = end + 2;
        number
    }
    let mut at = 0;
    let count = line(buffer, &mut at)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = line(buffer, &mut at)?;
        words.push(String::from_utf8_lossy(buffer.get(at..at + length)?).into_owned());
        at += length + 2;
    }
    (at <= buffer.len()).then_some((words, at))
}

fn encode(value: &Value, out: &mut Vec<u8>) {
    let list =
        |sign: char, length: usize, out: &mut Vec<u8>| out.extend_from_slice(format!("{sign}{length}\r\n").as_bytes());
    let pairs = |pairs: &[(Value, Value)], out: &mut Vec<u8>| {
        for (key, value) in pairs {
            encode(key, out);
            encode(value, out);
        }
    };
    match value {
        Value::Nil => out.extend_from_slice(b"_\r\n"),
        Value::Int(number) => out.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        Value::BulkString(bytes) => {
            list('$', bytes.len(), out);
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"\r\n");
        }
        Value::Array(items) => {
            list('*', items.len(), out);
            items.iter().for_each(|item| encode(item, out));
        }
        Value::Set(items) => {
            list('~', items.len(), out);
            items.iter().for_each(|item| encode(item, out));
        }
        Value::Map(items) => {
            list('%', items.len(), out);
            pairs(items, out);
        }
        Value::Attribute { data, attributes } => {
            list('|', attributes.len(), out);
            pairs(attributes, out);
            encode(data, out);
        }
        Value::Push { kind, data } => {
            list('>', data.len() + 1, out);
            let kind = match kind {
                PushKind::Other(kind) => kind.clone(),
                kind => format!("{kind:?}").to_lowercase(),
            };
            encode(&Value::BulkString(kind.into()), out);
            data.iter().for_each(|item| encode(item, out));
        }
        Value::SimpleString(text) => out.extend_from_slice(format!("+{text}\r\n").as_bytes()),
        Value::Okay => out.extend_from_slice(b"+OK\r\n"),
        Value::Double(number) => out.extend_from_slice(format!(",{number}\r\n").as_bytes()),
        Value::Boolean(yes) => out.extend_from_slice(format!("#{}\r\n", if *yes { 't' } else { 'f' }).as_bytes()),
        Value::BigNumber(digits) => {
            out.push(b'(');
            out.extend_from_slice(digits);
            out.extend_from_slice(b"\r\n");
        }
        Value::VerbatimString { text, .. } => {
            out.extend_from_slice(format!("={}\r\ntxt:{text}\r\n", text.len() + 4).as_bytes());
        }
        Value::ServerError(error) => {
            out.extend_from_slice(format!("-{} {}\r\n", error.code(), error.details().unwrap_or_default()).as_bytes());
        }
        // The enum may grow.
        _ => out.extend_from_slice(b"_\r\n"),
    }
}

fn encoded(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    encode(value, &mut out);
    out
}

fn ints(numbers: impl IntoIterator<Item = i64>) -> Value {
    Value::Array(numbers.into_iter().map(Value::Int).collect())
}

fn text(text: &str) -> Value {
    Value::BulkString(text.into())
}

fn message(channel: &str, payload: &str) -> PushInfo {
    PushInfo {
        kind: PushKind::Message,
        data: vec![text(channel), text(payload)],
    }
}

impl Shared {
    async fn serve(&self, stream: TcpStream) {
        let number = self.connections.fetch_add(1, Ordering::Relaxed) as u128;
        let mut runner = runner(self.seed ^ (number << 64), 1);
        let (mut from, mut to) = stream.into_split();
        let (replies, mut written) = mpsc::unbounded_channel::<Vec<u8>>();
        let writer = tokio::spawn(async move {
            while let Some(bytes) = written.recv().await {
                if to.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        });
        let (mut buffer, mut mute) = (Vec::new(), false);
        while let Some(words) = command(&mut from, &mut buffer).await {
            let wild = *self.mood.lock().expect("a mood") == Mood::Wild;
            let reply = self.answer(&words, &replies, &mut runner);
            // One reply to each command, in their order, or no further one: that much is RESP. Otherwise one request's
            // grant would reach another, and nothing in it says whose it is.
            let odd = wild.then(|| random(&mut runner, 0..400));
            let bytes = match odd {
                _ if mute => continue,
                Some(0) => break,
                Some(1) => Vec::new(),
                Some(2) => random(&mut runner, proptest::collection::vec(0..=255_u8, 0..40)),
                Some(3) => b"*1\r\n".repeat(150),
                Some(4) => b"*9223372036854775807\r\n$9223372036854775807\r\n".to_vec(),
                Some(5..60) => {
                    let odd = random(&mut runner, value());
                    mute = matches!(odd, Value::Push { .. });
                    encoded(&odd)
                }
                _ => encoded(&reply),
            };
            mute |= matches!(odd, Some(1..5));
            if replies.send(bytes).is_err() {
                break;
            }
        }
        writer.abort();
    }

    fn answer(&self, words: &[String], to: &mpsc::UnboundedSender<Vec<u8>>, runner: &mut TestRunner) -> Value {
        match words[0].to_uppercase().as_str() {
            "EVALSHA" => self.script_of(&words[1], words, runner),
            "EVAL" => self.script_of(redis::Script::new(&words[1]).get_hash(), words, runner),
            "HELLO" => Value::Array(["server", "redis", "version", "7.2.0", "proto", "3"].map(text).to_vec()),
            "SUBSCRIBE" | "PSUBSCRIBE" => {
                let kind = if words[0].to_uppercase() == "SUBSCRIBE" {
                    PushKind::Subscribe
                } else {
                    PushKind::PSubscribe
                };
                self.listeners.lock().expect("a list").push(to.clone());
                let confirmed = words[1..].iter().map(|channel| {
                    let data = vec![text(channel), Value::Int(1)];
                    encoded(&Value::Push {
                        kind: kind.clone(),
                        data,
                    })
                });
                let confirmed: Vec<_> = confirmed.collect();
                // All but the last, which is the reply.
                for bytes in &confirmed[..confirmed.len() - 1] {
                    let _ = to.send(bytes.clone());
                }
                Value::Push {
                    kind,
                    data: vec![text(&words[words.len() - 1]), Value::Int(1)],
                }
            }
            "SMEMBERS" => Value::Array(Vec::new()),
            "MGET" => Value::Array(vec![Value::Nil; words.len() - 1]),
            "PING" => Value::SimpleString("PONG".to_owned()),
            _ => Value::Okay,
        }
    }

    fn script_of(&self, hash: &str, words: &[String], runner: &mut TestRunner) -> Value {
        match self.scripts.get(hash) {
            Some(script) => self.script(script, words, runner),
            None => redis::parse_redis_value(b"-NOSCRIPT x\r\n").expect("an error"),
        }
    }

    /// What a script might say. `EVALSHA hash 3 key key key command channel listened arguments...`
    fn script(&self, script: &str, words: &[String], runner: &mut TestRunner) -> Value {
        let mood = *self.mood.lock().expect("a mood");
        let args = &words[9..];
        let call = self.calls.fetch_add(1, Ordering::Relaxed) as i64;
        let token = FIRST_TOKEN + call;
        let wild = mood == Mood::Wild;
        let next = match mood {
            Mood::Wild => random(runner, number()),
            Mood::Endless => 0,
            _ => 1000,
        };
        let number = |runner: &mut TestRunner, tame: i64| match wild && one_in(runner, 4) {
            true => random(runner, self::number()),
            false => tame,
        };
        let grant = |request: &str, token: i64| {
            if let Ok(token) = u64::try_from(token) {
                self.granted.lock().expect("a set").insert((request.to_owned(), token));
            }
        };
        let reply = match script {
            "acquire" => {
                self.asked.lock().expect("a list").push(args[0].clone());
                let status = match mood {
                    Mood::Grants | Mood::Endless => 2,
                    Mood::Queues => 1,
                    Mood::Contrary => i64::from(args[2] == "try"),
                    Mood::Wild => random(runner, -4..=3_i64),
                };
                let token = number(runner, token);
                if status == 2 {
                    grant(&args[0], token);
                }
                if wild && one_in(runner, 3) {
                    self.tell(&args[0], runner);
                }
                vec![status, token, next, token]
            }
            "renew" => {
                let each = args.chunks(2).map(|pair| {
                    self.renewed.lock().expect("a list").push(pair[0].clone());
                    let standing = match mood {
                        Mood::Wild => [0, -1, token, -token, number(runner, token)][random(runner, 0..5_usize)],
                        _ => 0,
                    };
                    grant(&pair[0], standing);
                    standing
                });
                let each: Vec<_> = each.collect();
                [vec![next], each].concat()
            }
            "release" => {
                self.released.lock().expect("a list").extend(args.iter().cloned());
                let each: Vec<_> = args.iter().map(|_| number(runner, 2)).collect();
                [vec![next], each].concat()
            }
            "downgrade" => {
                let token = number(runner, token);
                grant(&args[1], token);
                vec![next, token]
            }
            "evict" => vec![next, number(runner, 1)],
            _ => {
                let (holder, waiter) = ("w0123456789abcde:7", "r0123456789abcde:8");
                let field = |runner: &mut TestRunner, tame: &str| match wild && one_in(runner, 6) {
                    true => random(runner, value()),
                    false => text(tame),
                };
                let mut list = |fields: &[&str]| Value::Array(fields.iter().map(|tame| field(runner, tame)).collect());
                let holders = list(&[holder, "1760400000999", "0", "1760400000000000"]);
                let waiters = list(&[waiter, "1760400000000001", "1760400000999"]);
                let mut status = ["1760400000000002", "write", "", "1", "1", "1"]
                    .map(|tame| field(runner, tame))
                    .to_vec();
                status.extend([holders, waiters]);
                return Value::Array(status);
            }
        };
        ints(reply)
    }

    /// Pushes something about a request to all who listen: a grant, or whatever may come.
    fn tell(&self, request: &str, runner: &mut TestRunner) {
        let client = request[1..].split(':').next().unwrap_or_default();
        let channel = format!("fairlock:c:{client}");
        let token = random(runner, number());
        let push = match random(runner, 0..5) {
            0 => {
                if let Ok(token) = u64::try_from(token) {
                    self.granted.lock().expect("a set").insert((request.to_owned(), token));
                }
                message(&channel, &format!("{request} {token}\nfairlock:{{a}}"))
            }
            1 => message(
                &channel,
                &format!("w{client}:999999 {token} {request}:x {token}\nfairlock:{{a}}"),
            ),
            2 => message(
                "fairlock:{a}:events",
                &format!("1760400000000000\ngranted {request} {token}"),
            ),
            3 => PushInfo {
                kind: PushKind::Message,
                data: vec![text(&channel), random(runner, value())],
            },
            _ => PushInfo {
                kind: random(runner, push_kind()),
                data: random(runner, proptest::collection::vec(value(), 0..4)),
            },
        };
        let bytes = encoded(&Value::Push {
            kind: push.kind,
            data: push.data,
        });
        self.listeners
            .lock()
            .expect("a list")
            .retain(|to| to.send(bytes.clone()).is_ok());
    }
}

// ---- what must hold

fn id_of(client: &Client) -> String {
    let shown = format!("{client:?}");
    let (_, rest) = shown.split_once("id: ").expect("a client shows its number");
    rest.split(',').next().expect("more than that").to_owned()
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[derive(Default)]
struct Seen {
    guards: AtomicUsize,
    busy: AtomicUsize,
    errors: Mutex<HashMap<String, usize>>,
}

impl Seen {
    fn error(&self, error: &Error) {
        let shown = format!("{error:?}");
        let kind = shown.split([' ', '{', '(']).next().unwrap_or_default().to_owned();
        assert!(!error.to_string().is_empty());
        *self.errors.lock().expect("a map").entry(kind).or_default() += 1;
    }
}

/// A guard was granted by some reply or message, to just that request.
fn check_guard<M: fairlock::Access>(shared: &Shared, guard: &fairlock::Guard<M>, mode: char) {
    let request = format!("{mode}{}", testing::owner_name(guard.owner()));
    let token = guard.fencing_token().get();
    let granted = shared
        .granted
        .lock()
        .expect("a set")
        .contains(&(request.clone(), token));
    assert!(
        granted,
        "a guard of {request} with token {token}, which was never granted"
    );
    assert!((1..=1 << 53).contains(&token), "{token}");
}

async fn use_it(client: &Client, shared: &Shared, seen: &Seen, runner: &mut TestRunner) -> Result<(), Error> {
    let lock = client.rw_lock("a");
    let limit = Duration::from_millis(200);
    match random(runner, 0..8) {
        0 => drop(lock.status().await?),
        1 => drop(lock.evict(&fairlock::Owner::new()).await?),
        2 => drop(timeout(Duration::from_secs(3), client.events()).await),
        3 => match lock.read().try_acquire().await? {
            Some(guard) => {
                check_guard(shared, &guard, 'r');
                seen.guards.fetch_add(1, Ordering::Relaxed);
                drop(timeout(limit, guard.upgrade()).await);
            }
            None => drop(seen.busy.fetch_add(1, Ordering::Relaxed)),
        },
        4 => drop(
            timeout(limit, lock.write().acquire_fair())
                .await
                .map(|got| got.inspect_err(|error| seen.error(error))),
        ),
        more => match lock.write().try_acquire_for(limit).await? {
            Some(guard) => {
                check_guard(shared, &guard, 'w');
                seen.guards.fetch_add(1, Ordering::Relaxed);
                match more {
                    5 => guard.release().await?,
                    6 => guard.downgrade().await?.release().await?,
                    _ => drop(timeout(limit, guard.lost()).await),
                }
            }
            None => drop(seen.busy.fetch_add(1, Ordering::Relaxed)),
        },
    }
    Ok(())
}

#[test]
fn a_server_that_answers_at_random_gets_no_panic_no_hang_and_no_guard_without_a_grant() {
    let seconds = std::env::var("PARSE_SECONDS").map_or(15, |seconds| seconds.parse().expect("PARSE_SECONDS"));
    let seed = seed();
    println!("PARSE_SEED={seed:032x}");
    in_runtime("users", async move {
        let server = Server::start(Mood::Grants, seed).await;
        let clients = [server.client().await, server.client().await];
        server.become_(Mood::Wild);
        let seen = Arc::new(Seen::default());
        let until = Instant::now() + Duration::from_secs(seconds);
        let users = (0..16_u128).map(|user| {
            let (client, shared) = (clients[user as usize % 2].clone(), Arc::clone(&server.shared));
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let mut runner = runner(seed ^ (user + 1), 1);
                while Instant::now() < until {
                    let used = timeout(PATIENCE, use_it(&client, &shared, &seen, &mut runner)).await;
                    if let Err(error) = used.expect("every call returns") {
                        seen.error(&error);
                    }
                }
            })
        });
        for user in users.collect::<Vec<_>>() {
            user.await.expect("no user panics");
        }
        let mut summary = String::new();
        let calls = server.shared.calls.load(Ordering::Relaxed);
        let (guards, busy) = (seen.guards.load(Ordering::Relaxed), seen.busy.load(Ordering::Relaxed));
        write!(summary, "{calls} calls, {guards} guards, {busy} times busy").expect("a string");
        println!("{summary}, errors {:?}", seen.errors.lock().expect("a map"));
        assert!(guards > 0 && busy > 0, "{summary}: nothing was put to the test");
        // It comes to its senses, and so does the client.
        server.become_(Mood::Grants);
        for client in &clients {
            let begun = Instant::now();
            loop {
                let guard = client.rw_lock("b").write().try_acquire_for(Duration::from_secs(1));
                match timeout(PATIENCE, guard).await.expect("every call returns") {
                    Ok(Some(_)) => break,
                    other => assert!(begun.elapsed() < PATIENCE, "no lock from a tame server: {other:?}"),
                }
            }
            timeout(PATIENCE, client.shutdown()).await.expect("a shutdown returns");
        }
        let ids: Vec<_> = clients.iter().map(id_of).collect();
        let released = server.shared.released.lock().expect("a list").clone();
        let foreign = released
            .iter()
            .find(|name| !ids.iter().any(|id| name[1..].starts_with(&format!("{id}:"))));
        assert_eq!(foreign, None, "a request that neither client made was released");
    });
}

#[test]
fn a_client_passes_on_its_own_forgotten_grants_and_no_others() {
    in_runtime("forgotten", async {
        let server = Server::start(Mood::Grants, 1).await;
        let client = server.client().await;
        let id = id_of(&client);
        let guard = client.rw_lock("a").write().acquire_fair().await.expect("granted");
        guard.release().await.expect("released");
        let own = format!("w{id}:1");
        let released = |name: &str| {
            server
                .shared
                .released
                .lock()
                .expect("a list")
                .iter()
                .filter(|n| *n == name)
                .count()
        };
        assert_eq!(released(&own), 1);
        let hear = |payload: &str| testing::push(&client, &message(&format!("fairlock:c:{id}"), payload));
        // Another client's, one that was never made, one on keys that are no lock's, and what has no number.
        let others = [
            "w0123456789abcde:1 5\nfairlock:{a}".to_owned(),
            format!("w{id}:0 5\nfairlock:{{a}}"),
            format!("w{id}:999 5\nfairlock:{{a}}"),
            format!("{own} 5\nusers"),
            format!("{own} 5\nfairlock:{{a}}:queue"),
            format!("{own} 5\nother:{{a}}"),
            format!("{own} 9007199254740993\nfairlock:{{a}}"),
            format!("x{id}:1 5\nfairlock:{{a}}"),
        ];
        others.iter().for_each(|payload| hear(payload));
        // What comes after them is done after them.
        hear(&format!("{own} 5\nfairlock:{{a}}"));
        eventually("its own is released", || released(&own) == 2).await;
        client.shutdown().await;
        let all = server.shared.released.lock().expect("a list").clone();
        assert_eq!(all, [own.clone(), own]);
    });
}

#[test]
fn a_message_about_another_name_with_the_same_number_leaves_a_waiter_alone() {
    in_runtime("number", async {
        let server = Server::start(Mood::Queues, 1).await;
        let client = server.client().await;
        let id = id_of(&client);
        let waiter = tokio::spawn(client.rw_lock("a").write().acquire_fair());
        let own = format!("w{id}:1");
        eventually("it asks", || server.shared.asked.lock().expect("a list").contains(&own)).await;
        let channel = format!("fairlock:c:{id}");
        for name in [format!("r{id}:1"), format!("{own}:6ba7b8109dad41d180b400c04fd430c8")] {
            testing::push(&client, &message(&channel, &format!("{name} 5\nfairlock:{{a}}")));
        }
        server.shared.renewed.lock().expect("a list").clear();
        eventually("it is renewed", || {
            server.shared.renewed.lock().expect("a list").len() >= 3
        })
        .await;
        let token = (FIRST_TOKEN * 2).cast_unsigned();
        testing::push(&client, &message(&channel, &format!("{own} {token}\nfairlock:{{a}}")));
        let guard = timeout(PATIENCE, waiter)
            .await
            .expect("a grant wakes it")
            .expect("no panic")
            .expect("granted");
        assert_eq!(guard.fencing_token().get(), token);
        assert_eq!(*server.shared.released.lock().expect("a list"), [""; 0]);
        // And it is told when an operator throws it out.
        let lost = guard.lost();
        testing::push(&client, &message(&channel, &format!("{own} 0\nfairlock:{{a}}")));
        assert_eq!(timeout(PATIENCE, lost).await.expect("told"), LostReason::Evicted);
    });
}

#[test]
fn no_push_of_any_shape_does_harm() {
    let seed = seed();
    in_runtime("pushes", async {
        let server = Server::start(Mood::Grants, seed).await;
        // On a busy machine the pushes below take longer than a lease, and keep the renewals from running.
        let client = server.client_with(Duration::from_secs(3600)).await;
        let guard = client.rw_lock("a").write().acquire_fair().await.expect("granted");
        let mut runner = runner(seed, 1);
        let channels = [
            format!("fairlock:c:{}", id_of(&client)),
            "fairlock:listen".into(),
            "fairlock:{a}:events".into(),
        ];
        for _ in 0..20_000 {
            let mut data = random(&mut runner, proptest::collection::vec(value(), 0..4));
            if !data.is_empty() && !one_in(&mut runner, 4) {
                data[0] = text(&channels[random(&mut runner, 0..3_usize)]);
            }
            let push = PushInfo {
                kind: random(&mut runner, push_kind()),
                data,
            };
            let heard = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| testing::push(&client, &push)));
            assert!(heard.is_ok(), "PARSE_SEED={seed:032x}: {push:?}");
        }
        assert!(
            guard.lost().now_or_never().is_none() && guard.is_held(),
            "PARSE_SEED={seed:032x}"
        );
        guard.release().await.expect("released");
        client.shutdown().await;
        assert_eq!(
            server.shared.released.lock().expect("a list").len(),
            1,
            "PARSE_SEED={seed:032x}"
        );
    });
}

#[test]
fn a_server_that_never_has_done_with_it_does_not_keep_a_release_waiting() {
    in_runtime("endless", async {
        let server = Server::start(Mood::Grants, 1).await;
        // Calls of a short lease end too early on a busy machine, and with them what this is about.
        let client = server.client_with(Duration::from_secs(10)).await;
        let guard = client.rw_lock("a").write().acquire_fair().await.expect("granted");
        server.become_(Mood::Endless);
        timeout(PATIENCE, guard.release())
            .await
            .expect("an end")
            .expect("released");
        assert!(server.shared.renewed.lock().expect("a list").is_empty());
    });
}

#[test]
fn a_reply_to_another_question_is_an_error() {
    in_runtime("another", async {
        let server = Server::start(Mood::Contrary, 1).await;
        let client = server.client().await;
        let lock = client.rw_lock("a");
        for _ in 0..3 {
            let tried = timeout(PATIENCE, lock.write().try_acquire())
                .await
                .expect("a try does not wait");
            assert!(matches!(tried, Err(Error::Server { .. })), "{tried:?}");
            let turned_away = timeout(PATIENCE, lock.write().acquire_fair()).await.expect("in time");
            assert!(matches!(turned_away, Err(Error::Server { .. })), "{turned_away:?}");
        }
        client.shutdown().await;
    });
}
