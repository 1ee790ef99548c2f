//! The scripts called directly: typed arguments and replies, and what must be true of the keys after every call.

use crate::server::{Server, content};
use fairlock_support::packed::{Packed, move_deadlines, run_out};
use fairlock_support::scripts;
use redis::aio::MultiplexedConnection;
use std::collections::{BTreeMap, BTreeSet};

pub const ACQUIRE: &str = scripts::ACQUIRE.text;
pub const RELEASE: &str = scripts::RELEASE.text;
pub const RENEW: &str = scripts::RENEW.text;
pub const PLACE: &str = scripts::PLACE.text;
pub const STATUS: &str = scripts::STATUS.text;

/// Long enough for any test, however slow the machine is.
pub const LEASE_MS: u64 = 1_200_000;
/// A deadline that has passed.
pub const PAST: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    Granted(u64),
    Queued(u64),
    Busy,
    Conflict,
    OwnerWaits,
    OtherPolicy(u8),
}

impl Got {
    pub fn token(self) -> u64 {
        match self {
            Self::Granted(token) => token,
            other => panic!("not granted: {other:?}"),
        }
    }

    pub fn ticket(self) -> u64 {
        match self {
            Self::Queued(ticket) => ticket,
            other => panic!("not queued: {other:?}"),
        }
    }
}

/// The arguments of acquire.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    pub request: &'a str,
    pub lease_ms: u64,
    pub only_now: bool,
    pub policy: &'a str,
    pub ticket: Option<u64>,
}

pub fn ask(request: &str) -> Ask<'_> {
    Ask {
        request,
        lease_ms: LEASE_MS,
        only_now: false,
        policy: "",
        ticket: None,
    }
}

/// One lock, without a client.
pub struct Lock {
    pub redis: MultiplexedConnection,
    pub keys: [String; 3],
    /// Whether the state is examined after every call. Not while it is damaged on purpose.
    pub audited: bool,
    /// "e": somebody listens to events.
    pub options: &'static str,
    /// Only lives as long as the lock.
    pub _listener: Option<redis::aio::PubSub>,
}

impl Lock {
    /// Somebody hears every grant: a script cuts the leases of those that nobody hears.
    pub async fn new(server: &Server, name: &str) -> Self {
        let client = redis::Client::open(server.url()).expect("a valid URL");
        let mut listener = client.get_async_pubsub().await.expect("the server answers");
        listener.psubscribe("*:c:*").await.expect("subscribed");
        Self {
            _listener: Some(listener),
            ..Self::through(server.redis().await, name)
        }
    }

    pub fn through(redis: MultiplexedConnection, name: &str) -> Self {
        let state = format!("fairlock:{{{name}}}");
        Self {
            redis,
            keys: [state.clone(), format!("{state}:q"), format!("{state}:l")],
            audited: true,
            options: "",
            _listener: None,
        }
    }

    pub fn command(&self, script: &str, args: &[String]) -> redis::Cmd {
        self.command_with(script, "", args)
    }

    /// A call of a script with these options and the further arguments.
    fn command_with(&self, script: &str, options: &str, args: &[String]) -> redis::Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(3).arg(&self.keys);
        command.arg(format!("{}{options}", self.options)).arg(args);
        command
    }

    /// The numbers of the reply: one, if the script replies with one number.
    pub async fn call(&self, script: &str, options: &str, args: &[String]) -> Result<Vec<i64>, redis::RedisError> {
        let command = self.command_with(script, options, args);
        let reply = match command.query_async(&mut self.redis.clone()).await? {
            redis::Value::Int(number) => vec![number],
            reply => redis::from_redis_value(reply)?,
        };
        if self.audited {
            let state = self.state().await;
            // The next ms of acquire is its third number, of the others their first. One number: nothing is left to do.
            let next_ms = match reply.as_slice() {
                [_] => -1,
                reply if script == ACQUIRE => reply[2],
                reply => reply[0],
            };
            state.check(next_ms == 0);
        }
        Ok(reply)
    }

    pub fn args_of(ask: &Ask<'_>) -> (String, Vec<String>) {
        let options = format!("{}{}", if ask.only_now { "t" } else { "" }, ask.policy);
        let args = [Some(ask.request.to_owned()), Some(ask.lease_ms.to_string())];
        let ticket = ask.ticket.map(|ticket| ticket.to_string());
        (options, args.into_iter().chain([ticket]).flatten().collect())
    }

    /// The status, ms until the next look, and seq. Both are 0 if the script does not tell them.
    pub async fn ask(&self, ask: Ask<'_>) -> (Got, i64, u64) {
        let (options, args) = Self::args_of(&ask);
        let reply = self.call(ACQUIRE, &options, &args).await.expect("acquire");
        if let [number] = reply[..] {
            let number = u64::try_from(number).expect("no negative values");
            return (if number == 0 { Got::Busy } else { Got::Granted(number) }, 0, 0);
        }
        let &[status, value, next_ms, seq, ..] = reply.as_slice() else {
            panic!("acquire answered {reply:?}");
        };
        let number = u64::try_from(value).expect("no negative values");
        let got = match status {
            2 => Got::Granted(number),
            1 => Got::Queued(number),
            0 => Got::Busy,
            -1 => Got::Conflict,
            -2 => Got::OwnerWaits,
            -3 => Got::OtherPolicy(u8::try_from(number).expect("a byte")),
            _ => panic!("acquire answered {reply:?}"),
        };
        (got, next_ms, seq.unsigned_abs())
    }

    pub async fn acquire(&self, request: &str) -> Got {
        self.ask(ask(request)).await.0
    }

    /// Asks for several, one after the other.
    pub async fn acquire_all(&self, requests: &[&str]) {
        for request in requests {
            self.acquire(request).await;
        }
    }

    /// Ms until the next look, then 2 held, 1 waited, 0 unknown for each.
    pub async fn release(&self, requests: &[&str]) -> (i64, Vec<i64>) {
        let (next_ms, stood) = self.release_told(requests).await;
        (next_ms, stood.into_iter().map(|token| token.min(2)).collect())
    }

    /// Ms until the next look, then for each the token that it is told if it held, 1 waited, 0 unknown.
    pub async fn release_told(&self, requests: &[&str]) -> (i64, Vec<i64>) {
        let args: Vec<_> = requests.iter().map(|r| (*r).to_owned()).collect();
        match self.call(RELEASE, "", &args).await.expect("release").as_slice() {
            [told] if args.len() == 1 => (-1, vec![*told]),
            reply => (reply[0], reply[1..].to_vec()),
        }
    }

    /// Ms until the next look, then a token, 0 waits, -1 unknown for each.
    pub async fn renew(&self, requests: &[&str]) -> (i64, Vec<i64>) {
        self.renew_for(requests, LEASE_MS).await
    }

    pub async fn renew_for(&self, requests: &[&str], lease_ms: u64) -> (i64, Vec<i64>) {
        let pairs = requests.iter().flat_map(|r| [(*r).to_owned(), lease_ms.to_string()]);
        let reply = self.call(RENEW, "", &pairs.collect::<Vec<_>>()).await.expect("renew");
        // Who waits is told minus the lock's counter: that is tests/conformance's.
        let standing = |n: &i64| if *n < -1 { 0 } else { *n };
        (reply[0], reply[2..].iter().map(standing).collect())
    }

    /// Asks for many at once, without looking at the state in between.
    pub async fn fill(&self, requests: &[String]) {
        let mut redis = self.redis.clone();
        let hash: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(ACQUIRE)
            .query_async(&mut redis)
            .await
            .unwrap();
        for chunk in requests.chunks(500) {
            let mut pipe = redis::pipe();
            for request in chunk {
                let (_, args) = Self::args_of(&ask(request));
                pipe.cmd("EVALSHA").arg(&hash).arg(3).arg(&self.keys);
                pipe.arg(self.options).arg(args);
            }
            let _: Vec<redis::Value> = pipe.query_async(&mut redis).await.expect("acquire");
        }
    }

    /// Moves a request's deadline, wherever it is kept.
    pub async fn set_deadline(&self, request: &str, at_ms: u64) {
        let moved = move_deadlines(&mut self.redis.clone(), &self.keys[0], &[request], at_ms).await;
        assert_eq!(moved, 1, "{request} is not there to die");
    }

    /// Its client will never renew it again, and its lease has run out.
    pub async fn die(&self, requests: &[&str]) {
        if !requests.is_empty() {
            run_out(&mut self.redis.clone(), &self.keys[0], requests).await;
        }
    }

    pub async fn run(&self, command: &str, args: &[&str]) -> redis::Value {
        redis::cmd(command)
            .arg(args)
            .query_async(&mut self.redis.clone())
            .await
            .expect("a command of the test's own")
    }

    /// When each of the three keys expires, in ms. Redis 6.2 cannot say.
    pub async fn expire_at(&self) -> Vec<Option<i64>> {
        let known = self.run("COMMAND", &["INFO", "PEXPIRETIME"]).await;
        let knows = matches!(known, redis::Value::Array(known) if known != [redis::Value::Nil]);
        let mut all = Vec::new();
        for key in &self.keys {
            all.push(match knows {
                true => redis::from_redis_value(self.run("PEXPIRETIME", &[key]).await).ok(),
                false => None,
            });
        }
        all
    }

    /// Everything about the three keys.
    pub async fn dump(&self) -> Vec<(Vec<Vec<u8>>, Option<i64>)> {
        let mut all = Vec::new();
        for (key, expires) in self.keys.iter().zip(self.expire_at().await) {
            all.push((content(&mut self.redis.clone(), key).await, expires));
        }
        all
    }

    pub async fn state(&self) -> State {
        let [lock, queue, leases] = &self.keys;
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("HGETALL").arg(lock);
        pipe.cmd("ZRANGE").arg(queue).arg(0).arg(-1).arg("WITHSCORES");
        pipe.cmd("ZRANGE").arg(leases).arg(0).arg(-1).arg("WITHSCORES");
        pipe.cmd("PTTL")
            .arg(lock)
            .cmd("PTTL")
            .arg(queue)
            .cmd("PTTL")
            .arg(leases)
            .cmd("TIME");
        type Raw = (
            BTreeMap<String, Vec<u8>>,
            Vec<(String, f64)>,
            Vec<(String, f64)>,
            i64,
            i64,
            i64,
            (u64, u64),
        );
        let raw: Raw = pipe.query_async(&mut self.redis.clone()).await.expect("the state");
        let (mut hash, queue, leases, hash_ttl, queue_ttl, leases_ttl, (s, us)) = raw;
        let packed = hash.remove("s").map(|field| Packed::read(&field).expect("layout 2"));
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        State {
            packed: packed.unwrap_or_default(),
            hash: hash.into_iter().map(|(field, bytes)| (field, text(bytes))).collect(),
            scores: queue.iter().map(|(_, score)| *score).collect(),
            queue: queue.into_iter().map(|(request, _)| request).collect(),
            leases: leases.into_iter().map(|(request, at)| (request, at as u64)).collect(),
            ttl: [hash_ttl, queue_ttl, leases_ttl],
            now_ms: s * 1000 + us / 1000,
        }
    }
}

/// The three keys of a lock.
#[derive(Clone, Debug)]
pub struct State {
    /// The field `s`.
    pub packed: Packed,
    /// The other fields.
    pub hash: BTreeMap<String, String>,
    pub queue: Vec<String>,
    /// Of the queue.
    pub scores: Vec<f64>,
    pub leases: BTreeMap<String, u64>,
    pub ttl: [i64; 3],
    pub now_ms: u64,
}

pub fn writes(request: &str) -> bool {
    request.starts_with('w')
}

pub fn named_owner(request: &str) -> Option<&str> {
    request.splitn(3, ':').nth(2)
}

pub fn owner_of(request: &str) -> &str {
    named_owner(request).unwrap_or(&request[1..])
}

impl State {
    pub fn sole(&self) -> Option<(&str, u64)> {
        let packed = &self.packed;
        packed.sole.then_some((packed.holder.as_str(), packed.near))
    }

    pub fn deadline(&self, request: &str) -> Option<u64> {
        let sole = self.sole().filter(|(sole, _)| *sole == request);
        sole.map(|(_, at)| at).or_else(|| self.leases.get(request).copied())
    }

    /// Everybody who holds, in the order of their names.
    pub fn holding(&self) -> Vec<&str> {
        let waiting: BTreeSet<_> = self.queue.iter().collect();
        let mut holding: Vec<_> = self
            .leases
            .keys()
            .filter(|r| !waiting.contains(r))
            .map(String::as_str)
            .chain(self.sole().map(|s| s.0))
            .collect();
        holding.sort_unstable();
        holding
    }

    pub fn waiting(&self) -> Vec<&str> {
        self.queue.iter().map(String::as_str).collect()
    }

    /// What must be true after every script. `unfinished`: it said "call again".
    pub fn check(&self, unfinished: bool) {
        self.check_counts();
        self.check_head(unfinished);
        self.check_keys();
    }

    fn check_counts(&self) {
        let (holding, packed) = (self.holding(), &self.packed);
        let (writing, reading): (Vec<&str>, Vec<&str>) = holding.iter().partition(|r| writes(r));
        let writers: BTreeSet<_> = writing.iter().map(|r| owner_of(r)).collect();
        assert!(writers.len() <= 1, "two writers: {self:?}");
        if let Some(writer) = writers.first() {
            assert!(
                reading.iter().all(|r| owner_of(r) == *writer),
                "a reader beside a writer: {self:?}"
            );
            assert_eq!(owner_of(&packed.holder), *writer, "the writer: {self:?}");
        } else if !packed.sole {
            assert_eq!(packed.holder, "", "{self:?}");
        }
        let counts = [packed.reads, packed.writes, packed.waiting].map(|n| n as usize);
        assert_eq!(counts, [reading.len(), writing.len(), self.queue.len()], "{self:?}");
        let mut fields: BTreeMap<String, String> = BTreeMap::new();
        for owner in reading.iter().filter_map(|request| named_owner(request)) {
            let n = reading.iter().filter(|r| named_owner(r) == Some(owner)).count();
            fields.insert(format!("r:{owner}"), n.to_string());
        }
        for request in self.queue.iter().filter(|r| named_owner(r).is_some()) {
            fields.insert(format!("q:{}", owner_of(request)), request.clone());
        }
        if packed.seq > 0 {
            // By these, layout 1 sees another layout.
            fields.insert("policy".into(), "2".into());
            fields.insert("seq".into(), "0".into());
        }
        assert_eq!(self.hash, fields, "{self:?}");
        if !holding.is_empty() {
            let numbers = [1_000_000_000_000_000, packed.first, packed.token, packed.seq];
            assert!(numbers.is_sorted(), "tokens: {self:?}");
        }
        let upgrades = self.scores.iter().any(|score| *score < 0.0);
        assert!(
            packed.up || !upgrades,
            "an upgrade that the state does not know: {self:?}"
        );
        assert!(
            self.queue.iter().all(|r| self.leases.contains_key(r)),
            "waiting without a lease: {self:?}"
        );
        let nearest = self.leases.values().copied().chain(self.sole().map(|s| s.1)).min();
        match nearest {
            Some(nearest) => assert!((1..=nearest).contains(&packed.near), "near: {self:?}"),
            None => assert_eq!(packed.near, 0, "{self:?}"),
        }
    }

    /// Whether those who hold let this request in.
    pub fn fits(&self, request: &str) -> bool {
        let holding = self.holding();
        let alone = holding.iter().all(|held| owner_of(held) == owner_of(request));
        let writing = holding.iter().any(|held| writes(held));
        alone || !writing && !writes(request)
    }

    fn check_head(&self, unfinished: bool) {
        let Some(head) = self.queue.first() else { return };
        assert!(
            !self.holding().is_empty() || unfinished,
            "a queue before a free lock: {self:?}"
        );
        assert!(unfinished || !self.fits(head), "the head could enter: {self:?}");
    }

    fn check_keys(&self) {
        let exists = [self.packed.seq > 0, !self.queue.is_empty(), !self.leases.is_empty()];
        // Read a little later than written.
        let most = i64::try_from(self.packed.cap + 60_000).expect("small");
        for (exists, ttl) in exists.into_iter().zip(self.ttl) {
            assert!(
                if exists { (1..=most).contains(&ttl) } else { ttl == -2 },
                "time to live: {self:?}"
            );
        }
        assert!(
            self.sole().is_none() || self.leases.is_empty(),
            "sole, but not alone: {self:?}"
        );
        let cap = self.now_ms + self.packed.cap;
        let last = self
            .leases
            .values()
            .copied()
            .chain(self.sole().map(|s| s.1))
            .filter(|at| *at <= cap)
            .max();
        if let Some(last) = last {
            let gone = self.now_ms + u64::try_from(self.ttl[0]).unwrap_or(0);
            assert!(gone + 10 >= last + 30_000, "the hash goes too early: {self:?}");
        }
    }
}
