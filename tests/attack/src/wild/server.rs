//! A server that answers as it likes.

use super::{FIRST_TOKEN, LEASE, PATIENCE};
use crate::parse::{number, push_kind, runner, value};
use fairlock::{Client, testing};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use redis::{PushInfo, PushKind, Value};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
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

pub(super) struct Server {
    pub(super) port: u16,
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) mood: Mutex<Mood>,
    pub(super) seed: u128,
    pub(super) connections: AtomicUsize,
    /// Names of scripts, by their hashes.
    pub(super) scripts: HashMap<String, &'static str>,
    /// Every (request, token) that any reply or message granted.
    pub(super) granted: Mutex<HashSet<(String, u64)>>,
    /// Names of requests that were asked for, of those that were released, and of those that were renewed.
    pub(super) asked: Mutex<Vec<String>>,
    pub(super) released: Mutex<Vec<String>>,
    pub(super) renewed: Mutex<Vec<String>>,
    pub(super) calls: AtomicUsize,
    pub(super) listeners: Mutex<Vec<mpsc::UnboundedSender<Vec<u8>>>>,
}

pub(super) fn random<S: Strategy>(runner: &mut TestRunner, of: S) -> S::Value {
    of.new_tree(runner).expect("no filters").current()
}

pub(super) fn one_in(runner: &mut TestRunner, n: u32) -> bool {
    random(runner, 0..n) == 0
}

impl Server {
    pub(super) async fn start(mood: Mood, seed: u128) -> Self {
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

    pub(super) async fn client(&self) -> Client {
        self.client_with(LEASE).await
    }

    pub(super) async fn client_with(&self, lease: Duration) -> Client {
        let connected = Client::builder()
            .lease(lease)
            .connect(format!("redis://127.0.0.1:{}", self.port));
        timeout(PATIENCE, connected)
            .await
            .expect("in time")
            .expect("a tame server")
    }

    pub(super) fn become_(&self, mood: Mood) {
        *self.shared.mood.lock().expect("a mood") = mood;
    }
}

/// The next command, or `None` when the connection is gone.
pub(super) async fn command(from: &mut OwnedReadHalf, buffer: &mut Vec<u8>) -> Option<Vec<String>> {
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

pub(super) fn words(buffer: &[u8]) -> Option<(Vec<String>, usize)> {
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

pub(super) fn encode(value: &Value, out: &mut Vec<u8>) {
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

pub(super) fn encoded(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    encode(value, &mut out);
    out
}

pub(super) fn ints(numbers: impl IntoIterator<Item = i64>) -> Value {
    Value::Array(numbers.into_iter().map(Value::Int).collect())
}

pub(super) fn text(text: &str) -> Value {
    Value::BulkString(text.into())
}

pub(super) fn message(channel: &str, payload: &str) -> PushInfo {
    PushInfo {
        kind: PushKind::Message,
        data: vec![text(channel), text(payload)],
    }
}

impl Shared {
    pub(super) async fn serve(&self, stream: TcpStream) {
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
                    // A number alone grants, if it may be a token.
                    if let (Value::Int(token @ 2..), Some(request)) = (&odd, self.acquired_by(&words)) {
                        let granted = (request.to_owned(), token.unsigned_abs());
                        self.granted.lock().expect("a set").insert(granted);
                    }
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

    pub(super) fn answer(
        &self,
        words: &[String],
        to: &mpsc::UnboundedSender<Vec<u8>>,
        runner: &mut TestRunner,
    ) -> Value {
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
            "ZRANGE" => Value::Array(Vec::new()),
            "MGET" => Value::Array(vec![Value::Nil; words.len() - 1]),
            "PING" => Value::SimpleString("PONG".to_owned()),
            _ => Value::Okay,
        }
    }

    /// The request, if this is an acquire.
    fn acquired_by<'a>(&self, words: &'a [String]) -> Option<&'a str> {
        let script = match words[0].as_str() {
            "EVALSHA" => self.scripts.get(&words[1]),
            "EVAL" => self.scripts.get(redis::Script::new(&words[1]).get_hash()),
            _ => None,
        };
        words
            .get(7)
            .filter(|_| script.is_some_and(|name| *name == "acquire"))
            .map(String::as_str)
    }

    pub(super) fn script_of(&self, hash: &str, words: &[String], runner: &mut TestRunner) -> Value {
        match self.scripts.get(hash) {
            Some(script) => self.script(script, words, runner),
            None => redis::parse_redis_value(b"-NOSCRIPT x\r\n").expect("an error"),
        }
    }

    /// What a script might say. `EVALSHA hash 3 key key key options arguments...`
    pub(super) fn script(&self, script: &str, words: &[String], runner: &mut TestRunner) -> Value {
        let mood = *self.mood.lock().expect("a mood");
        let (options, args) = (&words[6], &words[7..]);
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
                    Mood::Contrary => i64::from(options.contains('t')),
                    Mood::Wild => random(runner, -4..=3_i64),
                };
                let token = number(runner, token);
                if status == 2 {
                    grant(&args[0], token);
                }
                if wild && one_in(runner, 3) {
                    self.tell(&args[0], runner);
                }
                // As one number, and as the list that says the same.
                if status == 2 && next != 0 && one_in(runner, 2) {
                    return Value::Int(token);
                }
                // A waiter is told its place too.
                let ahead = (status == 1).then_some(0);
                [status, token, next, token].into_iter().chain(ahead).collect()
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
                [vec![next, number(runner, FIRST_TOKEN)], each].concat()
            }
            "release" => {
                self.released.lock().expect("a list").extend(args.iter().cloned());
                let each: Vec<_> = args.iter().map(|_| number(runner, 2)).collect();
                if each.len() == 1 && next != 0 {
                    return Value::Int(each[0]);
                }
                [vec![next], each].concat()
            }
            // The read hold keeps the write hold's token.
            "downgrade" => vec![next, number(runner, FIRST_TOKEN)],
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
                let holder = "w0123456789abcde:7";
                let numbers = [
                    "1760400000000001",
                    "1760400000000000",
                    "1760400000000000",
                    "1760400000999",
                ];
                let more = ["1760400060999", "1000", "0", "1", "1", "0", "0", "0"];
                let state: Vec<&str> = numbers.into_iter().chain(more).chain([holder, "0", "0"]).collect();
                let state = list(&state);
                let mut status = ["1760400000000002", "write", "", "1", "1", "1"]
                    .map(|tame| field(runner, tame))
                    .to_vec();
                status.extend([holders, waiters, state]);
                return Value::Array(status);
            }
        };
        ints(reply)
    }

    /// Pushes something about a request to all who listen: a grant, or whatever may come.
    pub(super) fn tell(&self, request: &str, runner: &mut TestRunner) {
        let client = request[1..].split(':').next().unwrap_or_default();
        let channel = format!("fairlock:c:{client}");
        let token = random(runner, number());
        let push = match random(runner, 0..5) {
            0 => {
                if let Ok(token) = u64::try_from(token) {
                    self.granted.lock().expect("a set").insert((request.to_owned(), token));
                }
                message(&channel, &format!("{token} {request}\nfairlock:{{a}}"))
            }
            1 => message(
                &channel,
                &format!("{token} w{client}:999999 {request}:x {token} {request}:y\nfairlock:{{a}}"),
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
