//! Which commands the locks' users need, each tried on the keys of a lock that nobody uses.

use fairlock::redis::aio::MultiplexedConnection;
use fairlock::redis::{self, Cmd, ErrorKind, RedisError, ServerErrorKind};
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// What a server does not let its user do.
#[derive(Debug, Default)]
pub(crate) struct Denied {
    /// Rules that locks need, as ACL SETUSER takes them.
    pub(crate) needed: BTreeSet<String>,
    /// Rules that only status, labels and events need.
    pub(crate) extra: BTreeSet<String>,
}

/// Keys and channels of a probe.
pub(crate) struct Probe {
    pub(crate) state: String,
    queue: String,
    leases: String,
    introduction: String,
    audience: String,
    pub(crate) channel: String,
}

impl Probe {
    pub(crate) fn new(prefix: &str) -> Self {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let state = format!("{prefix}:{{fairlock-doctor-{id}}}");
        Self {
            queue: format!("{state}:queue"),
            leases: format!("{state}:leases"),
            // What nobody reads: the real ones tell clients something.
            introduction: format!("{prefix}:client:doctor-{id}"),
            audience: format!("{prefix}:listen:doctor-{id}"),
            channel: format!("{prefix}:c:doctor-{id}"),
            state,
        }
    }

    pub(crate) fn name(&self) -> &str {
        let name = self.state.split_once('{').map_or("", |(_, name)| name);
        name.trim_end_matches('}')
    }

    /// In the order in which they leave nothing behind. What is not essential comes with `false`.
    fn commands(&self) -> Vec<(bool, Cmd)> {
        let (state, queue, leases) = (&*self.state, &*self.queue, &*self.leases);
        let (introduction, audience) = (&*self.introduction, &*self.audience);
        let none = "0000000000000000000000000000000000000000";
        // Should DEL be denied.
        let soon = (SystemTime::now() + Duration::from_secs(60)).duration_since(SystemTime::UNIX_EPOCH);
        let soon = soon.map_or(0, |time| time.as_secs() * 1000).to_string();
        let commands: [(bool, &[&str]); 32] = [
            (true, &["PING"]),
            (true, &["HELLO"]),
            (true, &["TIME"]),
            (true, &["EVAL", "return 1", "1", state]),
            (true, &["EVALSHA", none, "1", state]),
            (true, &["HSET", state, "seq", "1"]),
            (true, &["HGET", state, "seq"]),
            (true, &["HMGET", state, "seq"]),
            (true, &["ZADD", queue, "1", "doctor"]),
            (true, &["ZADD", leases, "1", "doctor"]),
            (true, &["ZCARD", queue]),
            (true, &["ZRANGE", queue, "0", "-1"]),
            (true, &["ZRANGEBYSCORE", leases, "-inf", "+inf"]),
            (true, &["ZSCORE", leases, "doctor"]),
            (true, &["ZMSCORE", leases, "doctor"]),
            (true, &["ZREM", queue, "nobody"]),
            (true, &["PEXPIREAT", state, &soon]),
            (true, &["PEXPIREAT", queue, &soon]),
            (true, &["PEXPIREAT", leases, &soon]),
            (true, &["PUBLISH", &self.channel, ""]),
            (true, &["HDEL", state, "seq"]),
            (false, &["CLIENT", "SETNAME", "fairlock-doctor"]),
            (false, &["ZDIFF", "2", leases, queue]),
            (false, &["ZSCAN", leases, "0"]),
            (false, &["SET", introduction, "", "EX", "1"]),
            (false, &["MGET", introduction]),
            (false, &["SADD", audience, "doctor"]),
            (false, &["EXPIRE", audience, "1"]),
            (false, &["SMEMBERS", audience]),
            (true, &["DEL", state]),
            (true, &["DEL", queue, leases]),
            (false, &["DEL", introduction, audience]),
        ];
        let command = |words: &[&str]| {
            let mut command = redis::cmd(words[0]);
            command.arg(&words[1..]);
            command
        };
        commands.map(|(needed, words)| (needed, command(words))).into()
    }

    /// What a lock leaves until it expires.
    pub(crate) async fn remove(&self, redis: &mut MultiplexedConnection) {
        let mut delete = redis::cmd("DEL");
        delete.arg(&self.state).arg(&self.queue).arg(&self.leases);
        // Otherwise it goes by itself.
        let _ = delete.query_async::<redis::Value>(redis).await;
    }

    /// Tries all of them.
    pub(crate) async fn denied(&self, prefix: &str, redis: &mut MultiplexedConnection) -> Result<Denied, RedisError> {
        let mut denied = Denied::default();
        for (needed, command) in self.commands() {
            let error = match command.query_async::<redis::Value>(redis).await {
                Ok(_) => continue,
                Err(error) => error,
            };
            if error.is_io_error() {
                return Err(error);
            }
            if error.kind() != ErrorKind::Server(ServerErrorKind::NoPerm) {
                continue;
            }
            let words: Vec<_> = command.args_iter().collect();
            let rule = rule(prefix, &words, &error.to_string());
            if needed { &mut denied.needed } else { &mut denied.extra }.insert(rule);
        }
        denied.extra.retain(|rule| !denied.needed.contains(rule));
        Ok(denied)
    }
}

/// The rule that would allow it.
fn rule(prefix: &str, words: &[redis::Arg<&[u8]>], said: &str) -> String {
    if said.contains("command") {
        let word = |at: usize| match words.get(at) {
            Some(redis::Arg::Simple(word)) => String::from_utf8_lossy(word).to_lowercase(),
            _ => String::new(),
        };
        return match word(0).as_str() {
            "client" => format!("+client|{}", word(1)),
            name => format!("+{name}"),
        };
    }
    match said.contains("channel") {
        true => format!("&{prefix}:*"),
        false => format!("~{prefix}:*"),
    }
}
