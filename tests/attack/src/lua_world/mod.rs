//! The real scripts on a real server, in a time of our own choosing.
//!
//! A script runs inside a wrapper that hands it the time, keeps what it publishes, and then asks `status`, in one round
//! trip. The time lies decades ahead, so that no key expires by the server's own clock: the wrapper removes those that
//! are past their expiry by ours. What lies under the keys is passed on unread ([`Kept`]).

mod reading;

use crate::model::View;
use crate::record::{Note, Script, argv};
use fairlock_support::scripts;
use fairlock_support::server::Server;
pub use reading::numbers_of;
use reading::seen;
use redis::{Cmd, Connection, Value};
use std::collections::BTreeMap;
use std::time::Duration;

/// The year 2065, us. Tickets fit their band until 2112.
pub const BEGIN_US: u64 = 3_000_000_000_000_000;

/// A script that does not answer within this time never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// How much one call of a script may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that leave the queue.
    pub grants: usize,
    /// Requests that are found past their deadline, or whose deadline is too far ahead.
    pub expiries: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            grants: 1024,
            expiries: 200,
        }
    }
}

/// The text of the scripts, whole or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scripts {
    files: BTreeMap<&'static str, String>,
}

impl Scripts {
    /// Those of this build, or of the folder that FAIRLOCK_LUA names.
    pub fn real() -> Self {
        let folder = std::env::var_os("FAIRLOCK_LUA").map(std::path::PathBuf::from);
        let text = |file: &str, built: &str| match &folder {
            None => built.to_owned(),
            Some(folder) => std::fs::read_to_string(folder.join(file)).expect("a script in the folder of FAIRLOCK_LUA"),
        };
        let files = scripts::ALL.iter().flat_map(|script| script.files);
        let files = files.map(|(file, built)| (*file, text(file, built)));
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
        self.composed(scripts::named(script.name()))
    }

    fn composed(&self, script: &scripts::Script) -> String {
        script.files.iter().map(|(file, _)| self.files[file].as_str()).collect()
    }

    fn wrapped(&self, script: Script) -> String {
        let status = self.composed(&scripts::STATUS);
        format!("{BEFORE}{}{BETWEEN}{status}{AFTER}", self.whole(script))
    }
}

/// KEYS as for the scripts. ARGV: seconds, microseconds, what to do: "k" put kept keys back first, "s" ask status
/// afterwards (of the call's first request too), "r" return the keys to be kept, "x" refuse to publish to clients, "p"
/// the server was a replica once, "m" the slot does not migrate; the clients that nobody hears, each between spaces. With "k": how many words of hash, queue and leases follow, the words,
/// and when each key expires. Then the script's own.
const BEFORE: &str = "
local server, words = redis, ARGV
local own = 5
local function asked(letter) return string.find(words[3], letter, 1, true) end
if asked('k') then
  server.call('DEL', KEYS[1], KEYS[2], KEYS[3])
  own = 8
  for i, command in ipairs({ 'HSET', 'ZADD', 'ZADD' }) do
    local n = tonumber(words[4 + i])
    if n > 0 then server.call(command, KEYS[i], unpack(words, own, own + n - 1)) end
    own = own + n
  end
  for i = 1, 3 do
    if tonumber(words[own]) > 0 then server.call('PEXPIREAT', KEYS[i], words[own]) end
    own = own + 1
  end
end
local expired = {}
for i = 1, 3 do
  local at = server.call('PEXPIRETIME', KEYS[i])
  if at > 0 and at < words[1] * 1000 + math.floor(words[2] / 1000) then
    expired[#expired + 1] = i
    server.call('DEL', KEYS[i])
  end
end
local published = {}
local function listeners(channel)
  local client = string.match(channel, 'c:(%x+)$')
  return client and string.find(words[4], ' ' .. client .. ' ', 1, true) and 0 or 1
end
local function answer(command, ...)
  local first, second = ...
  if command == 'TIME' then return { words[1], words[2] } end
  if command == 'INFO' then
    return 'role:master\\r\\nmaster_replid2:' .. string.rep(asked('p') and 'a' or '0', 40) .. '\\r\\n'
  end
  if command == 'PUBSUB' and string.upper(first) == 'NUMSUB' then return { second, listeners(second) } end
end
-- A slot that migrates refuses a call if some of the keys are not there, and a command whose key the call has removed. A lock
-- that lost a key may touch removed keys.
local there, gone = {}, {}
if not asked('m') and server.call('EXISTS', KEYS[1], KEYS[2], KEYS[3]) == 3
  and server.call('EXISTS', KEYS[1] .. ':lost') == 0 then
  there = { [KEYS[1]] = true, [KEYS[2]] = true, [KEYS[3]] = true }
end
local removing = { ZREM = true, ZREMRANGEBYRANK = true, HDEL = true, DEL = true }
local function carried(command, ...)
  local first, second, third = ...
  for _, key in pairs({ first, second, third }) do
    if gone[key] then error('a slot that migrates refuses ' .. command .. ' ' .. key) end
  end
  local reply = server.call(command, ...)
  if removing[command] and there[first] and server.call('EXISTS', first) == 0 then gone[first] = true end
  return reply
end
local redis = {
  call = function(command, ...) return answer(command, ...) or carried(command, ...) end,
  pcall = function(command, channel, ...)
    if command == 'PUBLISH' then
      local to_client = not string.find(channel, ':events$')
      published[#published + 1] = { channel, ... }
      if asked('x') and to_client then return { err = 'NOPERM no permissions to access a channel' } end
      return listeners(channel)
    end
    gone[channel] = nil
    return answer(command, channel, ...) or server.pcall(command, channel, ...)
  end,
  error_reply = server.error_reply,
}
local function script(KEYS, ARGV)
";

const BETWEEN: &str = "
end
local function status(KEYS, ARGV)
";

const AFTER: &str = "
end
local ok, reply = pcall(script, KEYS, { unpack(words, own) })
there, gone = {}, {}
if ok and type(reply) == 'table' and reply.err then ok = false end
if not ok then reply = type(reply) == 'table' and reply.err or tostring(reply) end
local shown, kept = false, false
if asked('s') then
  ok, shown = pcall(status, KEYS, { '', '0', '100000', '100000', words[own + 1] })
  if not ok then shown = type(shown) == 'table' and shown.err or tostring(shown) end
end
if asked('r') then
  kept = { server.call('HGETALL', KEYS[1]), server.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'),
    server.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES') }
end
return {
  reply, published, expired, shown, kept,
  server.call('PEXPIRETIME', KEYS[1]), server.call('PEXPIRETIME', KEYS[2]), server.call('PEXPIRETIME', KEYS[3]),
}
";

/// Takes one thing away, as an accident might. ARGV: 1 which: 0 to 2 a key, then the fields of the hash by name.
/// Returns what it was, and how many there are to choose from.
const LOSE: &str = "
local fields, which = redis.call('HKEYS', KEYS[1]), tonumber(ARGV[1])
redis.call('SET', KEYS[1] .. ':lost', '1')
table.sort(fields)
if which < 3 then
  return { redis.call('DEL', KEYS[which + 1]) == 1 and ({ 'state', 'queue', 'leases' })[which + 1] or '', 3 + #fields }
end
local field = fields[which - 2]
if field then redis.call('HDEL', KEYS[1], field) end
return { field and 'field ' .. field or '', 3 + #fields }
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
    /// Somebody listens to events, so they are published.
    pub listened: bool,
    pub hearing: Hearing,
}

/// Who hears what scripts publish to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hearing {
    /// Clients without a subscriber, in alphabetical order.
    pub deaf: Vec<String>,
    /// The user may not publish to any client.
    pub refused: bool,
    /// The server was a replica once.
    pub promoted: bool,
    /// At how many waiters the scripts of this text look: as many as they expire.
    pub most_looked_at: usize,
}

impl Default for Hearing {
    fn default() -> Self {
        Self {
            deaf: Vec::new(),
            refused: false,
            promoted: false,
            most_looked_at: Limits::default().expiries,
        }
    }
}

impl Hearing {
    /// Whether a script takes the client for one that hears.
    pub fn listens(&self, client: &str) -> bool {
        self.refused || !self.deaf.iter().any(|deaf| deaf == client)
    }
}

impl Step {
    pub fn new(script: Script, args: &[&str], now_us: u64) -> Self {
        Self {
            script,
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            now_us,
            listened: false,
            hearing: Hearing::default(),
        }
    }

    pub fn args(&self) -> Vec<&str> {
        self.args.iter().map(String::as_str).collect()
    }

    fn is_in_quarantine(&self) -> bool {
        self.script == Script::Acquire && self.args.len() > 5
    }
}

/// What the keys contain: each one's words, and when it expires (-1: never). The packed state is no text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub words: [Vec<Vec<u8>>; 3],
    pub expiries: [i64; 3],
}

/// What came of a call.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// As the model has it: what a reply of one number does not tell is [`NOT_TOLD`](crate::model::NOT_TOLD).
    pub reply: Vec<i64>,
    /// It was one number.
    pub bare: bool,
    /// Client and payload.
    pub messages: Vec<(String, String)>,
    /// When, and what.
    pub events: Option<(u64, Vec<Note>)>,
    /// The keys that were past their expiry when it came.
    pub expired: [bool; 3],
    /// If it was asked for.
    pub view: Option<View>,
    /// What status says of the call's first request, if it has one.
    pub place: Option<Option<(u64, i64)>>,
    pub kept: Option<Kept>,
    /// Each key's expiry, ms; `Some(None)`: it never expires. `None`: it is not there.
    pub expiries: [Option<Option<u64>>; 3],
}

/// What a call returns besides its reply.
#[derive(Clone, Copy, Debug, Default)]
pub struct Want {
    pub status: bool,
    pub keys: bool,
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

    /// Removes a lock.
    pub fn delete(&mut self, key: &str) {
        let [state, queue, leases] = keys(key);
        let lost = format!("{state}:lost");
        self.command(redis::cmd("DEL").arg(state).arg(queue).arg(leases).arg(lost));
    }

    /// Takes away a key, or a field of the hash: see [`LOSE`].
    pub fn lose(&mut self, key: &str, which: usize) {
        self.command(redis::cmd("EVAL").arg(LOSE).arg(3).arg(&keys(key)).arg(which));
    }

    /// What was lost, if it was there, and how many things there are to lose.
    pub fn lost(&mut self) -> Result<(Option<String>, usize), String> {
        let lost = self.receive()?;
        match redis::from_redis_value::<(String, usize)>(lost) {
            Ok((what, all)) => Ok(((!what.is_empty()).then_some(what), all)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// A call, on the keys as they are or, with `from`, on these.
    pub fn step(&mut self, loaded: &Loaded, key: &str, from: Option<&Kept>, step: &Step, want: Want) {
        let mut cmd = Cmd::with_capacity(32, 512);
        cmd.arg("EVALSHA")
            .arg(&loaded.hashes[&step.script])
            .arg(3)
            .arg(&keys(key));
        cmd.arg(step.now_us / 1_000_000).arg(step.now_us % 1_000_000);
        let mut letters = String::new();
        letters.push_str(if from.is_some() { "k" } else { "" });
        letters.push_str(if want.status { "s" } else { "" });
        letters.push_str(if want.keys { "r" } else { "" });
        letters.push_str(if step.hearing.refused { "x" } else { "" });
        letters.push_str(if step.hearing.promoted { "p" } else { "" });
        // In a quarantine acquire may touch a key that it has removed.
        letters.push_str(if step.is_in_quarantine() { "m" } else { "" });
        cmd.arg(letters).arg(format!(" {} ", step.hearing.deaf.join(" ")));
        if let Some(kept) = from {
            for words in &kept.words {
                cmd.arg(words.len());
            }
            // A member comes before its score, and is put the other way round.
            let [hash, queue, leases] = &kept.words;
            for word in hash {
                cmd.arg(word);
            }
            for pair in queue.chunks_exact(2).chain(leases.chunks_exact(2)) {
                cmd.arg(&pair[1]).arg(&pair[0]);
            }
            cmd.arg(&kept.expiries[..]);
        }
        let options = if step.listened { "e" } else { "" };
        cmd.arg(argv(step.script, &step.args(), options));
        self.command(&cmd);
    }

    /// Sends what was put together since the last time. Returns how many replies there will be.
    pub fn send(&mut self) -> Result<usize, String> {
        if self.packed.is_empty() {
            return Ok(0);
        }
        let sent = self.connection.send_packed_command(&self.packed);
        self.packed.clear();
        sent.map_err(|error| error.to_string())?;
        Ok(std::mem::take(&mut self.waiting))
    }

    pub fn receive(&mut self) -> Result<Value, String> {
        let reply = self.connection.recv_response().or_else(|error| {
            // A process that is stopped and goes on finds its read interrupted, because the read has a time limit.
            let is_interrupted = error.is_io_error() && !error.is_timeout() && !error.is_connection_dropped();
            if is_interrupted {
                self.connection.recv_response()
            } else {
                Err(error)
            }
        });
        reply.map_err(|error| error.to_string())
    }

    /// What came of a step.
    pub fn seen(&mut self, key: &str, script: Script) -> Result<Seen, String> {
        seen(&self.receive()?, key, script)
    }
}

fn keys(key: &str) -> [String; 3] {
    [key.to_owned(), format!("{key}:q"), format!("{key}:l")]
}
