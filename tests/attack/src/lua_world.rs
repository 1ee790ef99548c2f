//! The real scripts on a real server, in a time of our own choosing.
//!
//! A script runs inside a wrapper that hands it the time, keeps what it publishes, and returns the keys as it left
//! them, in one round trip. The time lies decades ahead, so that no key expires by the server's own clock.

use crate::model::{Limits, Lock, Outcome};
use crate::record::{Note, Script, What};
use crate::server::Server;
use redis::{Cmd, Connection, Value};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The year 2065, us. Tickets fit their band until 2112.
pub const BEGIN_US: u64 = 3_000_000_000_000_000;

/// What clients' channels begin with.
pub const CHANNEL: &str = "c:";

/// A script that does not answer within this time never will.
const PATIENCE: Duration = Duration::from_secs(20);

const FILES: [(&str, &str); 9] = [
    ("acquire_head.lua", include_str!("../../../lua/acquire_head.lua")),
    ("listeners.lua", include_str!("../../../lua/listeners.lua")),
    ("lock.lua", include_str!("../../../lua/lock.lua")),
    ("acquire.lua", include_str!("../../../lua/acquire.lua")),
    ("release_head.lua", include_str!("../../../lua/release_head.lua")),
    ("release.lua", include_str!("../../../lua/release.lua")),
    ("renew.lua", include_str!("../../../lua/renew.lua")),
    ("downgrade.lua", include_str!("../../../lua/downgrade.lua")),
    ("evict.lua", include_str!("../../../lua/evict.lua")),
];

/// The text of the scripts, whole or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scripts {
    files: BTreeMap<&'static str, String>,
}

impl Scripts {
    pub fn real() -> Self {
        let files = FILES.iter().map(|(file, text)| (*file, (*text).to_owned()));
        Self { files: files.collect() }
    }

    /// Makes a change. Panics if the file does not have the text: such a mutant would say nothing.
    pub fn replace(&mut self, file: &str, from: &str, to: &str) {
        let Some(text) = self.files.get_mut(file) else {
            panic!("no file {file}");
        };
        assert!(text.contains(from), "{file} has no {from:?}");
        *text = text.replace(from, to);
    }

    /// With other batch limits.
    pub fn with_limits(&self, limits: Limits) -> Self {
        let mut scripts = self.clone();
        let real = Limits::default();
        for (name, from, to) in [
            ("BATCH", real.grants, limits.grants),
            ("EXPIRY_BATCH", real.expiries, limits.expiries),
        ] {
            scripts.replace(
                "lock.lua",
                &format!("local {name} = {from} "),
                &format!("local {name} = {to} "),
            );
        }
        scripts
    }

    /// As the client composes it.
    pub fn whole(&self, script: Script) -> String {
        let files: &[&str] = match script {
            Script::Acquire => &["listeners.lua", "acquire_head.lua", "lock.lua", "acquire.lua"],
            Script::Release => &["listeners.lua", "release_head.lua", "lock.lua", "release.lua"],
            Script::Renew => &["listeners.lua", "lock.lua", "renew.lua"],
            Script::Downgrade => &["listeners.lua", "lock.lua", "downgrade.lua"],
            Script::Evict => &["listeners.lua", "lock.lua", "evict.lua"],
        };
        files.iter().map(|file| self.files[file].as_str()).collect()
    }

    fn wrapped(&self, script: Script) -> String {
        format!("{BEFORE}{}{AFTER}", self.whole(script))
    }
}

/// KEYS as for the scripts. ARGV: seconds, microseconds, what to do: "s" put a state first, "d" return the keys
/// afterwards. With "s": how many words of hash, queue and leases follow, the words, and when each key expires. Then
/// the script's own.
const BEFORE: &str = "
local server, words = redis, ARGV
local own = 4
if string.find(words[3], 's', 1, true) then
  server.call('DEL', KEYS[1], KEYS[2], KEYS[3])
  own = 7
  for i, command in ipairs({ 'HSET', 'ZADD', 'ZADD' }) do
    local n = tonumber(words[3 + i])
    if n > 0 then server.call(command, KEYS[i], unpack(words, own, own + n - 1)) end
    own = own + n
  end
  for i = 1, 3 do
    if words[own] ~= '' then server.call('PEXPIREAT', KEYS[i], words[own]) end
    own = own + 1
  end
end
local published = {}
local redis = {
  call = function(command, ...)
    if command == 'TIME' then return { words[1], words[2] } end
    return server.call(command, ...)
  end,
  pcall = function(command, ...)
    if command == 'PUBLISH' then
      published[#published + 1] = { ... }
      return 0
    end
    return server.pcall(command, ...)
  end,
}
local function script(KEYS, ARGV)
";

const AFTER: &str = "
end
local ok, reply = pcall(script, KEYS, { unpack(words, own) })
if not ok then reply = type(reply) == 'table' and reply.err or tostring(reply) end
if not string.find(words[3], 'd', 1, true) then return { reply, published } end
return {
  reply, published, server.call('HGETALL', KEYS[1]),
  server.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'), server.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'),
  server.call('PEXPIRETIME', KEYS[1]), server.call('PEXPIRETIME', KEYS[2]), server.call('PEXPIRETIME', KEYS[3]),
}
";

/// The hashes by which a server knows one version of the scripts.
#[derive(Clone, Debug)]
pub struct Loaded {
    hashes: BTreeMap<Script, String>,
}

/// One call as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub script: Script,
    pub args: Vec<String>,
    pub now_us: u64,
    /// Somebody listens to events, so notes are published; otherwise the heads may answer.
    pub listened: bool,
}

impl Step {
    pub fn args(&self) -> Vec<&str> {
        self.args.iter().map(String::as_str).collect()
    }
}

/// A server, and a connection to it on which nobody waits for a reply before sending the next call.
pub struct World {
    connection: Connection,
    packed: Vec<u8>,
    waiting: usize,
    // After the connection: dropped last.
    _server: Server,
}

impl World {
    pub fn start() -> Self {
        // In a thread of its own, because the caller may be in a runtime.
        let start = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let args = ["--latency-tracking", "no", "--slowlog-log-slower-than", "-1"];
            runtime.expect("a runtime").block_on(Server::start_with(&args))
        };
        let server = std::thread::scope(|scope| scope.spawn(start).join()).expect("a server");
        let url = format!("redis+unix://{}", server.socket().display());
        let client = redis::Client::open(url).expect("a valid URL");
        let connection = client.get_connection().expect("the server answers");
        connection.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self {
            connection,
            packed: Vec::new(),
            waiting: 0,
            _server: server,
        }
    }

    /// `Err`: a script is no Lua.
    pub fn load(&mut self, scripts: &Scripts) -> Result<Loaded, String> {
        let mut hashes = BTreeMap::new();
        for script in Script::ALL {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(scripts.wrapped(script));
            let hash: Result<String, _> = load.query(&mut self.connection);
            hashes.insert(script, hash.map_err(|error| format!("{}: {error}", script.name()))?);
        }
        Ok(Loaded { hashes })
    }

    pub fn command(&mut self, command: &Cmd) {
        self.packed.extend(command.get_packed_command());
        self.waiting += 1;
    }

    pub fn delete(&mut self, key: &str) {
        self.command(redis::cmd("DEL").arg(key));
    }

    /// A call, on the keys as they are or, with `from`, on these.
    pub fn step(&mut self, loaded: &Loaded, key: &str, from: Option<&Lock>, step: &Step, keys_after: bool) {
        let mut cmd = Cmd::with_capacity(32, 512);
        cmd.arg("EVALSHA").arg(&loaded.hashes[&step.script]).arg(3);
        cmd.arg(key).arg(queue_key(key)).arg(leases_key(key));
        cmd.arg(step.now_us / 1_000_000).arg(step.now_us % 1_000_000);
        let dump = if keys_after { "d" } else { "" };
        match from {
            None => {
                cmd.arg(dump);
            }
            Some(lock) => {
                let fields = lock.fields();
                cmd.arg(format!("s{dump}"));
                cmd.arg(2 * fields.len())
                    .arg(2 * lock.queue.len())
                    .arg(2 * lock.leases.len());
                for (field, value) in &fields {
                    cmd.arg(field).arg(value);
                }
                for (request, score) in lock.queue.iter().chain(lock.leases.iter()) {
                    cmd.arg(score).arg(request);
                }
                for expiry in lock.expiries_ms() {
                    cmd.arg(expiry.map_or(String::new(), |at| at.to_string()));
                }
            }
        }
        cmd.arg("PUBLISH")
            .arg(CHANNEL)
            .arg(if step.listened { "1" } else { "" });
        cmd.arg(&step.args);
        self.command(&cmd);
    }

    /// Sends what was put together since the last time. Returns how many replies there will be.
    pub fn send(&mut self) -> Result<usize, String> {
        let sent = self.connection.send_packed_command(&self.packed);
        self.packed.clear();
        sent.map_err(|error| error.to_string())?;
        Ok(std::mem::take(&mut self.waiting))
    }

    pub fn receive(&mut self) -> Result<Value, String> {
        self.connection.recv_response().map_err(|error| error.to_string())
    }
}

pub fn queue_key(key: &str) -> String {
    format!("{key}:queue")
}

pub fn leases_key(key: &str) -> String {
    format!("{key}:leases")
}

/// What differs between the model and the server after one call. `Ok`: nothing.
pub fn compare(seen: &Value, step: &Step, key: &str, expected: &Outcome, lock: &Lock) -> Result<(), String> {
    let Value::Array(parts) = seen else {
        return Err(format!("the wrapper answered {seen:?}"));
    };
    let [reply, published, keys @ ..] = parts.as_slice() else {
        return Err(format!("the wrapper answered {seen:?}"));
    };
    let numbers = |value: &Value| match value {
        Value::Array(items) => items
            .iter()
            .map(|item| if let Value::Int(n) = item { Some(*n) } else { None })
            .collect(),
        _ => None,
    };
    let reply: Vec<i64> = numbers(reply).ok_or_else(|| format!("reply {}", shown(reply)))?;
    differ("reply", &expected.reply, &reply)?;
    compare_published(published, step, key, expected)?;
    match keys {
        [] => Ok(()),
        [hash, queue, leases, expiries @ ..] => {
            let fields = lock.fields();
            if !same_fields(hash, &fields) {
                let seen: BTreeMap<String, String> = pairs(hash).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
                differ("hash", &fields, &seen)?;
            }
            for (what, ranking, seen) in [("queue", &lock.queue, queue), ("leases", &lock.leases, leases)] {
                let seen: Vec<(&str, i64)> = pairs(seen).map(|(k, v)| (k, v.parse().unwrap_or(i64::MIN))).collect();
                if !ranking.iter().eq(seen.iter().copied()) {
                    differ(what, &ranking.iter().collect::<Vec<_>>(), &seen)?;
                }
            }
            let exists = [!fields.is_empty(), !lock.queue.is_empty(), !lock.leases.is_empty()];
            for ((what, exists), (expected, seen)) in ["hash", "queue", "leases"]
                .into_iter()
                .zip(exists)
                .zip(lock.expiries_ms().into_iter().zip(expiries))
            {
                let expected = match (exists, expected) {
                    (false, _) => -2,
                    (true, None) => -1,
                    (true, Some(at)) => at as i64,
                };
                differ(&format!("expiry of {what}"), &Value::Int(expected), seen)?;
            }
            Ok(())
        }
        _ => Err(format!("the wrapper answered {}", shown(seen))),
    }
}

fn differ<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, seen: &T) -> Result<(), String> {
    if expected == seen {
        return Ok(());
    }
    Err(format!("{what}: expected {expected:?}\n          seen {seen:?}"))
}

fn text(value: &Value) -> &str {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).unwrap_or("(no text)"),
        Value::SimpleString(text) => text,
        _ => "(no text)",
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::BulkString(_) | Value::SimpleString(_) => text(value).to_owned(),
        other => format!("{other:?}"),
    }
}

fn pairs(value: &Value) -> impl Iterator<Item = (&str, &str)> {
    let items: &[Value] = if let Value::Array(items) = value { items } else { &[] };
    items.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1])))
}

fn same_fields(hash: &Value, fields: &BTreeMap<String, String>) -> bool {
    let mut n = 0;
    let all = pairs(hash)
        .inspect(|_| n += 1)
        .all(|(k, v)| fields.get(k).is_some_and(|field| field == v));
    all && n == fields.len()
}

fn compare_published(published: &Value, step: &Step, key: &str, expected: &Outcome) -> Result<(), String> {
    let evict = step.script == Script::Evict;
    let mut notes = None;
    let mut messages = Vec::new();
    let items: &[Value] = if let Value::Array(items) = published {
        items
    } else {
        &[]
    };
    for item in items {
        let Some((channel, payload)) = pairs(item).next() else {
            return Err(format!("published {}", shown(item)));
        };
        if let Some(client) = channel.strip_prefix(CHANNEL) {
            messages.push((client.to_owned(), in_order(payload, evict)));
        } else if channel == format!("{key}:events") && notes.is_none() {
            notes = Some(payload);
        } else {
            return Err(format!("published to {channel}: {payload}"));
        }
    }
    messages.sort();
    let mut told: Vec<_> = expected
        .messages
        .iter()
        .map(|(client, payload)| (client.clone(), in_order(payload, evict)))
        .collect();
    told.sort();
    differ("messages", &told, &messages)?;
    if !step.listened {
        return differ("events", &None, &notes);
    }
    // Of those evicted in one call none is before the other.
    let mut noted = expected.notes.clone();
    let evicted = noted.iter().take_while(|note| note.what == What::Evicted).count();
    noted[..evicted].sort_by(|a, b| a.request.cmp(&b.request));
    let Some(payload) = notes else {
        return differ("notes", &noted, &Vec::new());
    };
    let Some((time, lines)) = payload.split_once('\n') else {
        return Err(format!("events {payload:?}"));
    };
    differ("time of the events", &step.now_us.to_string().as_str(), &time)?;
    let mut seen = Vec::new();
    for line in lines.split('\n') {
        seen.push(read_note(line).ok_or_else(|| format!("event {line:?}"))?);
    }
    let evicted = seen.iter().take_while(|note| note.what == What::Evicted).count();
    seen[..evicted].sort_by(|a, b| a.request.cmp(&b.request));
    differ("notes", &noted, &seen)
}

fn read_note(line: &str) -> Option<Note> {
    let mut words = line.split(' ');
    let note = Note {
        what: What::of_name(words.next()?)?,
        request: words.next()?.to_owned(),
        token: words.next()?.parse().ok()?,
    };
    words.next().is_none().then_some(note)
}

/// A message in which the evicted come by name.
fn in_order(payload: &str, evict: bool) -> String {
    if !evict {
        return payload.to_owned();
    }
    let (grants, key) = payload.split_once('\n').unwrap_or((payload, ""));
    let words: Vec<&str> = grants.split(' ').collect();
    let mut pairs: Vec<&[&str]> = words.chunks(2).collect();
    let evicted = pairs.iter().take_while(|pair| pair.get(1) == Some(&"0")).count();
    pairs[..evicted].sort();
    let mut sorted = String::new();
    for word in pairs.concat() {
        let _ = write!(sorted, "{word} ");
    }
    sorted + "\n" + key
}
