//! The functions called directly, in the name of a client that does not exist: where a row is about the server alone.

use crate::env::connection;
use fairlock_support::scripts;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};

/// One lock's keys and the scripts, on a connection of their own.
pub struct Lua {
    redis: MultiplexedConnection,
    /// The calls' first argument.
    options: &'static str,
    acquire: Text,
    release: Text,
    renew: Text,
}

struct Text {
    body: String,
    function: String,
}

/// To queue, or only to try.
#[derive(Clone, Copy, PartialEq)]
pub enum How {
    Queue,
    Try,
}

/// How a script is called: the server counts the two apart. `Measured` is as a function, like a client's.
#[derive(Clone, Copy, PartialEq)]
pub enum Account {
    Measured,
    Around,
}

impl Text {
    /// As servers get it from Redis 7 on.
    fn of(script: &scripts::Script) -> Self {
        let (library, _) = scripts::library();
        Self {
            body: script.flagged(),
            function: format!("{library}_{}", script.name),
        }
    }

    fn call(&self, account: Account, lock: &str, options: &str, args: &[&str]) -> Cmd {
        let mut call = match account {
            Account::Measured => redis::cmd("FCALL"),
            Account::Around => redis::cmd("EVAL"),
        };
        call.arg(match account {
            Account::Measured => &self.function,
            Account::Around => &self.body,
        });
        call.arg(3).arg(&keys(lock)).arg(options).arg(args);
        call
    }
}

fn keys(lock: &str) -> [String; 3] {
    ["", ":q", ":l"].map(|suffix| format!("fairlock:{{{lock}}}{suffix}"))
}

/// A lease that outlives the run.
pub const LEASE: &str = "3600000";

impl Lua {
    /// The scripts as a client sends them to Redis 7 and later.
    pub async fn new(url: &str) -> Self {
        let lua = Self {
            redis: connection(url).await,
            options: "",
            acquire: Text::of(&scripts::ACQUIRE),
            release: Text::of(&scripts::RELEASE),
            renew: Text::of(&scripts::RENEW),
        };
        let (library, text) = scripts::library();
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(text);
        let loaded: String = load.query_async(&mut lua.redis.clone()).await.expect("the functions compile");
        assert_eq!(loaded, library);
        lua
    }

    /// Has the scripts ask the server who listens, as they do in a cluster.
    pub fn asking(self) -> Self {
        Self { options: "s", ..self }
    }

    pub fn acquire(&self, account: Account, lock: &str, request: &str, how: How) -> Cmd {
        let options = format!("{}{}", self.options, if how == How::Try { "t" } else { "" });
        self.acquire.call(account, lock, &options, &[request, LEASE])
    }

    pub fn release(&self, account: Account, lock: &str, request: &str) -> Cmd {
        self.release.call(account, lock, self.options, &[request])
    }

    pub fn renew(&self, account: Account, lock: &str, requests: &[&str]) -> Cmd {
        let pairs: Vec<&str> = requests.iter().flat_map(|request| [*request, LEASE]).collect();
        self.renew.call(account, lock, self.options, &pairs)
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
                Value::Int(alone) => vec![alone],
                several => redis::from_redis_value(several).expect("numbers"),
            }));
        }
        replies
    }

    /// Bytes of the lock's three keys, each element looked at.
    pub async fn memory(&mut self, lock: &str) -> f64 {
        let mut bytes = 0.0;
        for key in keys(lock) {
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
        let text = "# Commandstats\r\ncmdstat_eval:calls=9,usec=9,usec_per_call=1.00\r\n\
            cmdstat_fcall:calls=12,usec=345,usec_per_call=28.75,rejected_calls=1,failed_calls=0\r\n";
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
