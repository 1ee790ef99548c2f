//! The scripts called directly, in the name of a client that does not exist: where a row is about the server alone.

use crate::env::connection;
use fairlock_support::scripts;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use std::collections::BTreeMap;

/// The library of functions, on a connection of its own.
pub struct Lua {
    redis: MultiplexedConnection,
    /// `s`: the scripts ask the server who listens to events, as they do in a cluster.
    options: &'static str,
    library: String,
    /// By the name of the script.
    hashes: BTreeMap<&'static str, String>,
}

/// How a script is called: the server counts the two apart. `Measured` is as a function, `Around` by its hash: to send its
/// text would throw what the next call needs out of the core's cache.
#[derive(Clone, Copy, PartialEq)]
pub enum Account {
    Measured,
    Around,
}

/// The key of a lock's state.
pub fn state(lock: &str) -> String {
    format!("fairlock:{{{lock}}}")
}

/// A lease that outlives the run.
pub const LEASE: &str = "3600000";

impl Lua {
    /// The functions as a client loads them.
    pub async fn new(url: &str) -> Self {
        let redis = connection(url).await;
        let (library, text) = scripts::library();
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(text);
        let loaded: String = load.query_async(&mut redis.clone()).await.expect("the scripts compile");
        assert_eq!(loaded, library);
        let mut hashes = BTreeMap::new();
        for script in scripts::ALL {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(script.flagged());
            let hash = load.query_async(&mut redis.clone()).await.expect("the script compiles");
            hashes.insert(script.name, hash);
        }
        Self {
            hashes,
            redis,
            options: "",
            library,
        }
    }

    /// Has the scripts ask the server who listens, as they do in a cluster.
    pub fn asking(self) -> Self {
        Self { options: "s", ..self }
    }

    fn call(&self, account: Account, script: &scripts::Script, lock: &str, options: &str, args: &[&str]) -> Cmd {
        let mut call = Cmd::new();
        match account {
            Account::Measured => call.arg("FCALL").arg(format!("{}_{}", self.library, script.name)),
            Account::Around => call.arg("EVALSHA").arg(&self.hashes[script.name]),
        };
        let state = state(lock);
        let keys = [state.clone(), format!("{state}:q"), format!("{state}:l")];
        call.arg(3)
            .arg(&keys)
            .arg(format!("{}{options}", self.options))
            .arg(args);
        call
    }

    /// To queue, or only to try.
    pub fn acquire(&self, account: Account, lock: &str, request: &str, how: &str) -> Cmd {
        let options = if how == "try" { "t" } else { "" };
        self.call(account, &scripts::ACQUIRE, lock, options, &[request, LEASE])
    }

    pub fn release(&self, account: Account, lock: &str, request: &str) -> Cmd {
        self.call(account, &scripts::RELEASE, lock, "", &[request])
    }

    pub fn renew(&self, account: Account, lock: &str, requests: &[&str]) -> Cmd {
        let pairs: Vec<&str> = requests.iter().flat_map(|request| [*request, LEASE]).collect();
        self.call(account, &scripts::RENEW, lock, "", &pairs)
    }

    /// Sends calls a hundred at a time. A reply of one number is a list of one.
    pub async fn send(&mut self, calls: impl IntoIterator<Item = Cmd>) -> Vec<Vec<i64>> {
        let mut replies = Vec::new();
        let mut calls = calls.into_iter().peekable();
        while calls.peek().is_some() {
            let mut pipeline = Pipeline::new();
            for call in calls.by_ref().take(100) {
                pipeline.add_command(call);
            }
            let some: Vec<Value> = pipeline.query_async(&mut self.redis).await.expect("the scripts answer");
            replies.extend(some.into_iter().map(|reply| match reply {
                Value::Int(number) => vec![number],
                reply => redis::from_redis_value(reply).expect("numbers"),
            }));
        }
        replies
    }

    /// While a sorted set's table of members grows it is there twice, and each look for a member moves a part.
    async fn rehash(&mut self, key: &str) {
        let mut looks = Pipeline::new();
        for _ in 0..20_000 {
            looks.cmd("ZSCORE").arg(key).arg("nobody").ignore();
        }
        if key.ends_with(":q") || key.ends_with(":l") {
            looks.exec_async(&mut self.redis).await.expect("a sorted set");
        }
    }

    /// Bytes of the lock's three keys, each element looked at.
    pub async fn memory(&mut self, lock: &str) -> f64 {
        let state = state(lock);
        let mut bytes = 0.0;
        for key in [state.clone(), format!("{state}:q"), format!("{state}:l")] {
            self.rehash(&key).await;
            let mut usage = redis::cmd("MEMORY");
            usage.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
            let used: Value = usage.query_async(&mut self.redis).await.expect("MEMORY USAGE");
            if let Value::Int(used) = used {
                bytes += used as f64;
            }
        }
        bytes
    }
}

/// Calls of scripts so far, and the microseconds that the server spent in them; of those that were called as functions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spent {
    pub calls: f64,
    pub us: f64,
}

impl Spent {
    pub async fn so_far(redis: &mut MultiplexedConnection) -> Self {
        let mut info = redis::cmd("INFO");
        let text: String = info.arg("commandstats").query_async(redis).await.expect("INFO");
        Self::read(&text)
    }

    /// None were called yet: zeros.
    fn read(text: &str) -> Self {
        let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_fcall:"));
        let field = |name: &str| {
            let value = line?
                .split(',')
                .find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            value?.parse().ok()
        };
        Self {
            calls: field("calls").unwrap_or(0.0),
            us: field("usec").unwrap_or(0.0),
        }
    }

    pub fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls - before.calls,
            us: self.us - before.us,
        }
    }
}

/// A number of INFO, such as `used_memory`.
pub async fn info(redis: &mut MultiplexedConnection, field: &str) -> f64 {
    let text: String = redis::cmd("INFO").query_async(redis).await.expect("INFO");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|number| number.parse().ok())
        .expect("a field of INFO that is a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_count_is_read_by_field() {
        let text = "# Commandstats\r\ncmdstat_evalsha:calls=9,usec=9,usec_per_call=1.00\r\n\
            cmdstat_fcall:calls=12,usec=345,usec_per_call=28.75,rejected_calls=1,failed_calls=0\r\n";
        let spent = Spent::read(text);
        assert_eq!(spent, Spent { calls: 12.0, us: 345.0 });
        assert_eq!(
            spent.since(Spent { calls: 2.0, us: 45.0 }),
            Spent { calls: 10.0, us: 300.0 }
        );
        assert_eq!(
            Spent::read("cmdstat_evalsha:calls=9,usec=9\r\n"),
            Spent { calls: 0.0, us: 0.0 }
        );
    }
}
