//! What the server lets its user do. The probe tries each right of [`fairlock::rights`] that concerns one server, on the keys
//! of a lock that nobody uses, because only a trial tells the truth about every version of ACLs.

use fairlock::redis::aio::MultiplexedConnection;
use fairlock::redis::{self, Cmd, ErrorKind, RedisError, ServerErrorKind};
use fairlock::rights::Task;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// What a server does not let its user do.
#[derive(Debug, Default)]
pub(crate) struct Denied {
    /// The rules that would allow each denied task, as ACL SETUSER takes them.
    rules: BTreeSet<(Task, String)>,
    /// The server allows some command that only users of locks need.
    may_write: bool,
    /// The server knows no functions.
    pub(crate) has_no_functions: bool,
}

/// Without these no lock works.
const NEEDED: [Task; 3] = [Task::Connect, Task::Look, Task::Lock];

impl Denied {
    fn of(&self, tasks: &[Task]) -> BTreeSet<&str> {
        let rules = self.rules.iter().filter(|(task, _)| tasks.contains(task));
        rules.map(|(_, rule)| rule.as_str()).collect()
    }

    /// The rules that locks need.
    pub(crate) fn needed(&self) -> Vec<&str> {
        self.of(&NEEDED).into_iter().collect()
    }

    /// Further rules that a task needs.
    pub(crate) fn further(&self, task: Task) -> Vec<&str> {
        let needed = self.of(&NEEDED);
        self.of(&[task])
            .into_iter()
            .filter(|rule| !needed.contains(rule))
            .collect()
    }

    /// The user may look at locks and may run no command that changes one.
    pub(crate) fn only_looks(&self) -> bool {
        !self.may_write && self.of(&[Task::Connect, Task::Look]).is_empty()
    }
}

/// The keys and channels of a probe.
pub(crate) struct Probe {
    pub(crate) state: String,
    queue: String,
    leases: String,
    introduction: String,
    audience: String,
    pub(crate) channel: String,
    is_in_cluster: bool,
}

impl Probe {
    pub(crate) fn new(prefix: &str) -> Self {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let state = format!("{prefix}:{{fairlock-doctor-{id}}}");
        Self {
            is_in_cluster: false,
            queue: format!("{state}:q"),
            leases: format!("{state}:l"),
            // No client reads these keys or listens on this channel.
            introduction: format!("{prefix}:client:doctor-{id}"),
            audience: format!("{prefix}:listen:doctor-{id}"),
            channel: format!("{prefix}:c:doctor-{id}"),
            state,
        }
    }

    /// Of a node of a cluster that has some of the slots. `has`: whether the node has the slot of that key.
    pub(crate) fn on_node(prefix: &str, has: impl Fn(&str) -> bool) -> Self {
        // A node without slots gets a probe all the same, and redirects its commands, after it has looked at the rights.
        const MOST: usize = 1 << 20;
        let mut probes = (0..MOST).map(|_| Self::new(prefix));
        let probe = probes
            .find(|probe| has(&probe.state))
            .unwrap_or_else(|| Self::new(prefix));
        Self {
            is_in_cluster: true,
            ..probe
        }
    }

    pub(crate) fn name(&self) -> &str {
        let name = self.state.split_once('{').map_or("", |(_, name)| name);
        name.trim_end_matches('}')
    }

    /// The commands, in an order that leaves nothing behind.
    fn commands(&self) -> Vec<(Task, Cmd)> {
        use Task::{
            Connect, Events, Evict, Find, Functions, Inspect, Introduce, Lock, Look, Quarantine, Status, Unheard,
        };
        let (state, queue, leases) = (&*self.state, &*self.queue, &*self.leases);
        let (introduction, audience) = (&*self.introduction, &*self.audience);
        let none = "0000000000000000000000000000000000000000";
        // The keys expire soon, because the server may deny DEL.
        let soon = (SystemTime::now() + Duration::from_secs(60)).duration_since(SystemTime::UNIX_EPOCH);
        let soon = soon.map_or(0, |time| time.as_secs() * 1000).to_string();
        let commands: [(Task, &[&str]); 44] = [
            (Connect, &["PING"]),
            (Look, &["TIME"]),
            (Connect, &["EVAL", "return 1", "1", state]),
            (Connect, &["EVALSHA", none, "1", state]),
            // Their errors tell that they are allowed. What they name does not exist.
            (Functions, &["FCALL", "fairlock_doctor", "0"]),
            (Functions, &["FUNCTION", "LOAD", ""]),
            (Look, &["EXISTS", state]),
            (Lock, &["HSET", state, "doctor", "1"]),
            (Lock, &["HINCRBY", state, "doctor", "1"]),
            (Look, &["HGET", state, "doctor"]),
            (Look, &["HMGET", state, "doctor"]),
            (Lock, &["ZADD", queue, "1", "doctor"]),
            (Lock, &["ZADD", leases, "1", "doctor"]),
            (Look, &["ZCARD", queue]),
            (Look, &["ZRANGE", queue, "0", "-1"]),
            (Lock, &["ZRANGEBYSCORE", leases, "-inf", "+inf"]),
            (Look, &["ZSCORE", leases, "doctor"]),
            (Look, &["ZRANK", leases, "doctor"]),
            (Lock, &["ZMSCORE", leases, "doctor"]),
            (Lock, &["ZREM", queue, "nobody"]),
            (Lock, &["ZREMRANGEBYRANK", queue, "9", "9"]),
            (Lock, &["PEXPIREAT", state, &soon]),
            (Lock, &["PEXPIREAT", queue, &soon]),
            (Lock, &["PEXPIREAT", leases, &soon]),
            (Unheard, &["INFO", "replication"]),
            (Lock, &["HDEL", state, "doctor"]),
            (Connect, &["CLIENT", "SETNAME", "fairlock-doctor"]),
            (Status, &["ZDIFF", "2", leases, queue]),
            (Evict, &["ZSCAN", leases, "0"]),
            (Introduce, &["SET", introduction, "", "EX", "1"]),
            (Status, &["MGET", introduction]),
            (Status, &["GET", introduction]),
            (Events, &["ZADD", audience, "1", "doctor"]),
            (Events, &["ZREMRANGEBYSCORE", audience, "-inf", "1"]),
            (Events, &["EXPIRE", audience, "1"]),
            (Look, &["ZRANGE", audience, "0", "-1"]),
            (Find, &["SCAN", "0"]),
            (Inspect, &["INFO", "server"]),
            (Quarantine, &["INFO", "server"]),
            (Quarantine, &["GET", introduction]),
            (Quarantine, &["SET", introduction, "", "EX", "1"]),
            (Lock, &["DEL", state]),
            (Lock, &["DEL", queue, leases, audience]),
            (Introduce, &["DEL", introduction]),
        ];
        let command = |words: &[&str]| {
            let mut command = redis::cmd(words[0]);
            command.arg(&words[1..]);
            command
        };
        let by_messages = match self.is_in_cluster {
            true => self.in_cluster(),
            false => self.on_server(),
        };
        let commands = by_messages
            .iter()
            .map(|(task, words)| (*task, words.as_slice()))
            .chain(commands);
        commands.map(|(task, words)| (task, command(words))).collect()
    }

    /// The commands of a single server that a cluster does not use.
    fn on_server(&self) -> Vec<(Task, Vec<&str>)> {
        vec![
            (Task::Lock, vec!["PUBLISH", &self.channel, ""]),
            (Task::Unheard, vec!["PUBSUB", "NUMSUB", &self.channel]),
        ]
    }

    /// Those that it uses instead, and its own.
    fn in_cluster(&self) -> Vec<(Task, Vec<&str>)> {
        let words: [&[&str]; 5] = [
            &["SPUBLISH", &self.channel, ""],
            &["PUBSUB", "SHARDNUMSUB", &self.channel],
            &["CLUSTER", "SLOTS"],
            &["CLUSTER", "INFO"],
            &["ASKING"],
        ];
        words.map(|words| (Task::Cluster, words.to_vec())).into()
    }

    /// Removes the keys that a lock leaves until they expire.
    pub(crate) async fn remove(&self, redis: &mut MultiplexedConnection) {
        let mut delete = redis::cmd("DEL");
        delete.arg(&self.state).arg(&self.queue).arg(&self.leases);
        // If the command fails, the keys expire.
        let _ = delete.query_async::<redis::Value>(redis).await;
    }

    /// Tries all commands.
    pub(crate) async fn denied(&self, prefix: &str, redis: &mut MultiplexedConnection) -> Result<Denied, RedisError> {
        let mut denied = Denied::default();
        for (task, command) in self.commands() {
            let error = match command.query_async::<redis::Value>(redis).await {
                Ok(_) => {
                    denied.may_write |= task == Task::Lock;
                    continue;
                }
                Err(error) => error,
            };
            if error.is_io_error() {
                return Err(error);
            }
            if error.kind() != ErrorKind::Server(ServerErrorKind::NoPerm) {
                let is_unknown = error.to_string().to_lowercase().contains("unknown command");
                denied.has_no_functions |= task == Task::Functions && is_unknown;
                continue;
            }
            let words: Vec<_> = command.args_iter().collect();
            denied.rules.insert((task, rule(prefix, &words, &error.to_string())));
        }
        Ok(denied)
    }
}

/// The rule that would allow a denied command.
fn rule(prefix: &str, words: &[redis::Arg<&[u8]>], said: &str) -> String {
    if said.contains("command") {
        let word = |at: usize| match words.get(at) {
            Some(redis::Arg::Simple(word)) => String::from_utf8_lossy(word).to_lowercase(),
            _ => String::new(),
        };
        return match word(0).as_str() {
            parent @ ("client" | "cluster" | "function" | "pubsub") => format!("+{parent}|{}", word(1)),
            name => format!("+{name}"),
        };
    }
    match said.contains("channel") {
        true => format!("&{prefix}:*"),
        false => format!("~{prefix}:*"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_right_of_the_list_is_tried_but_those_of_subscriptions() {
        let mut tried = BTreeSet::new();
        for probe in [Probe::new("fairlock"), Probe::on_node("fairlock", |_| true)] {
            for (task, command) in probe.commands() {
                let words: Vec<_> = command.args_iter().collect();
                tried.insert((task, rule("fairlock", &words, "command")));
            }
        }
        // Doctor tries these by a message or a hand-over, on connections of their own.
        let elsewhere = [
            "subscribe",
            "unsubscribe",
            "psubscribe",
            "punsubscribe",
            "ssubscribe",
            "sunsubscribe",
        ];
        // An option of the library, or nothing that the master's user needs.
        let others = [Task::Replicas, Task::Disks, Task::Sentinel];
        for task in Task::ALL.iter().copied().filter(|task| !others.contains(task)) {
            for command in task.commands().iter().filter(|command| !elsewhere.contains(command)) {
                assert!(tried.contains(&(task, format!("+{command}"))), "{task:?}: {command}");
            }
        }
        for (task, rule) in &tried {
            let listed = task.commands().iter().any(|command| format!("+{command}") == *rule);
            // Introductions are deleted by the command that the list names for locks.
            assert!(
                listed || (*task, rule.as_str()) == (Task::Introduce, "+del"),
                "{task:?}: {rule}"
            );
        }
    }
}
