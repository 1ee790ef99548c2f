//! The scripts called directly, in the name of a client that does not exist: where a row is about the server alone.

use crate::env::connection;
use fairlock_support::scripts;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Script, Value};

/// One lock's keys and the scripts, on a connection of their own.
pub struct Lua {
    redis: MultiplexedConnection,
    /// Who listens to the lock's events: see `lua/listeners.lua`.
    listeners: &'static str,
    acquire: Text,
    release: Text,
    renew: Text,
}

struct Text {
    body: String,
    hash: String,
}

/// How a script is called: the server counts the two apart. `Measured` is by hash.
#[derive(Clone, Copy, PartialEq)]
pub enum Account {
    Measured,
    Around,
}

impl Text {
    /// As servers get it from Redis 7 on.
    fn of(script: &scripts::Script) -> Self {
        let body = script.flagged();
        let hash = Script::new(&body).get_hash().to_owned();
        Self { body, hash }
    }

    fn call(&self, account: Account, lock: &str, listeners: &str, args: &[&str]) -> Cmd {
        let mut call = match account {
            Account::Measured => redis::cmd("EVALSHA"),
            Account::Around => redis::cmd("EVAL"),
        };
        call.arg(match account {
            Account::Measured => &self.hash,
            Account::Around => &self.body,
        });
        let state = state(lock);
        let keys = [state.clone(), format!("{state}:queue"), format!("{state}:leases")];
        call.arg(3)
            .arg(&keys)
            .arg("PUBLISH")
            .arg("fairlock:c:")
            .arg(listeners)
            .arg(args);
        call
    }
}

/// The key of a lock's state.
pub fn state(lock: &str) -> String {
    format!("fairlock:{{{lock}}}")
}

/// A lease that outlives the run.
pub const LEASE: &str = "3600000";

impl Lua {
    /// The scripts as a client sends them to Redis 7 and later.
    pub async fn new(url: &str) -> Self {
        let lua = Self {
            redis: connection(url).await,
            listeners: "",
            acquire: Text::of(&scripts::ACQUIRE),
            release: Text::of(&scripts::RELEASE),
            renew: Text::of(&scripts::RENEW),
        };
        for text in [&lua.acquire, &lua.release, &lua.renew] {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(&text.body);
            let hash: String = load
                .query_async(&mut lua.redis.clone())
                .await
                .expect("the scripts compile");
            assert_eq!(hash, text.hash);
        }
        lua
    }

    /// Has the scripts ask the server who listens, as they do in a cluster.
    pub fn asking(self) -> Self {
        Self { listeners: "?", ..self }
    }

    /// To queue, or only to try.
    pub fn acquire(&self, account: Account, lock: &str, request: &str, how: &str) -> Cmd {
        self.acquire
            .call(account, lock, self.listeners, &[request, LEASE, how, "", ""])
    }

    pub fn release(&self, account: Account, lock: &str, request: &str) -> Cmd {
        self.release.call(account, lock, self.listeners, &[request])
    }

    pub fn renew(&self, account: Account, lock: &str, requests: &[&str]) -> Cmd {
        let pairs: Vec<&str> = requests.iter().flat_map(|request| [*request, LEASE]).collect();
        self.renew.call(account, lock, self.listeners, &pairs)
    }

    /// Sends calls a hundred at a time.
    pub async fn send(&mut self, calls: impl IntoIterator<Item = Cmd>) -> Vec<Vec<i64>> {
        let mut replies = Vec::new();
        let mut calls = calls.into_iter().peekable();
        while calls.peek().is_some() {
            let mut pipeline = Pipeline::new();
            for call in calls.by_ref().take(100) {
                pipeline.add_command(call);
            }
            let some: Vec<Vec<i64>> = pipeline.query_async(&mut self.redis).await.expect("the scripts answer");
            replies.extend(some);
        }
        replies
    }

    /// Bytes of the lock's three keys, each element looked at.
    pub async fn memory(&mut self, lock: &str) -> f64 {
        let state = state(lock);
        let mut bytes = 0.0;
        for key in [state.clone(), format!("{state}:queue"), format!("{state}:leases")] {
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

/// Calls of scripts so far, and the microseconds that the server spent in them; of those that were called by hash.
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
        let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
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
        let text = "# Commandstats\r\ncmdstat_eval:calls=9,usec=9,usec_per_call=1.00\r\n\
            cmdstat_evalsha:calls=12,usec=345,usec_per_call=28.75,rejected_calls=1,failed_calls=0\r\n";
        let spent = Spent::read(text);
        assert_eq!(spent, Spent { calls: 12.0, us: 345.0 });
        assert_eq!(
            spent.since(Spent { calls: 2.0, us: 45.0 }),
            Spent { calls: 10.0, us: 300.0 }
        );
        assert_eq!(
            Spent::read("cmdstat_eval:calls=9,usec=9\r\n"),
            Spent { calls: 0.0, us: 0.0 }
        );
    }
}
